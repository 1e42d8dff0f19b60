"""Adapters of every family to and fro between PEFT and xtrain. For each, a model of a configuration drawn at random is saved by transformers;
xtrain trains an adapter of it, evaluates and merges it; PEFT loads the adapter, and transformers the merged model. Then PEFT makes an adapter,
which xtrain evaluates and merges. Losses of the same rows and logits agree within 1e-5. Prints the figures; exit code 1 if anything differs.

    python tests/peft_families.py [--xtrain PROGRAM] [--families llama,...] [--seed S]

Needs torch, transformers and peft; tests/run_hf_roundtrip.sh --peft finds or makes an environment that has them.
"""

import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import peft
import torch
import transformers as hf

import hf_families as families
from hf_families import LENGTH, TOLERANCE, Failed, Language, Sequences, golden, drawn, with_tokenizer, xtrain

VARIANTS = [
    ["--lora_target_modules", "all-linear", "--lora_r", 4, "--lora_alpha", 8],
    ["--use_rslora", "--lora_dropout", 0],
    ["--use_dora", "--lora_r", 3, "--lora_target_modules", "all-linear"],
]


def ids(model):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(1, model.config.vocab_size, (2, LENGTH), generator=generator)


def logits(model):
    with torch.no_grad():
        return model(input_ids=ids(model), attention_mask=torch.ones(2, LENGTH, dtype=torch.long)).logits


def largest(a, b):
    return float((a - b).abs().max())


def agree(what, difference, size=1.0):
    if not (math.isfinite(difference) and difference <= TOLERANCE * max(1.0, size)):
        raise Failed(f"{what}: {difference:.1e} apart")
    return difference


def evaluate(args, kind, words, file):
    found = xtrain(args, "eval", kind.task, "--json", "--disable_tqdm", "--validation_file", file, *kind.words(None), *words)
    return json.loads(found)["eval_loss"]


def beside(args, kind, cls, folder, adapter, file, merged):
    """xtrain's loss with the adapter beside PEFT's, and the logits of the merged model."""
    base = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    before = logits(base)
    theirs = peft.PeftModel.from_pretrained(base, adapter).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    expected = logits(theirs)
    loss = agree("loss", abs(evaluate(args, kind, ["--model_name_or_path", folder, "--adapter_name_or_path", adapter], file) - kind.loss(theirs, tokenizer, file)))
    xtrain(args, "merge", "--model_name_or_path", folder, "--adapter_name_or_path", adapter, "--output_dir", merged)
    found = logits(families.loads(cls, merged))
    own = largest(logits(theirs.merge_and_unload()), expected)  # what rounding does where PEFT merges
    off = agree("merged logits", largest(found, expected), max(float(expected.abs().max()), 4 * own / TOLERANCE))
    return f"loss {loss:.0e}, merged {off:.0e}, of {largest(before, expected):.0e}"


def check(args, family, scratch):
    draw = drawn.Draw(f"{family.__name__}-{args.seed}")
    names, config_class, settings = family(draw)
    encoder = config_class.model_type in golden.ENCODERS
    kind = Sequences() if encoder else Language()
    file = kind.files(scratch)
    positions = "n_positions" if "n_positions" in settings else "max_position_embeddings"
    settings |= {"vocab_size": 1000, positions: 64, "pad_token_id": 0}
    if "original_max_position_embeddings" in settings:
        settings["original_max_position_embeddings"] = 64
    if encoder:
        settings |= dict(id2label=dict(enumerate(kind.names)), label2id={name: i for i, name in enumerate(kind.names)})
    name = next(name for name in names if name.endswith("ForSequenceClassification")) if encoder else names[0]
    cls = getattr(hf, name)
    folder = scratch / "model"
    golden.new_model(cls, config_class(**settings), args.seed).to(torch.float32).save_pretrained(folder)
    with_tokenizer(kind.tokenizer, folder)
    figures = []
    for number, variant in enumerate(VARIANTS):
        out = scratch / f"out-{number}"
        xtrain(args, "train", kind.task, "--disable_tqdm", "--model_name_or_path", folder, "--train_file", file, *kind.words(scratch), "--use_peft", *variant,
               "--max_steps", 3, "--learning_rate", 1e-2, "--per_device_train_batch_size", 4, "--save_strategy", "no", "--output_dir", out)
        figures.append((f"xtrain's {number}", beside(args, kind, cls, folder, out, file, scratch / f"merged-{number}")))
    model = cls.from_pretrained(folder, dtype=torch.float32)
    # PEFT fails on all of DistilBERT's: its pre_classifier would be adapted and saved.
    targets = ["q_lin", "lin1"] if config_class.model_type == "distilbert" else "all-linear"
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=targets, task_type="SEQ_CLS" if encoder else "CAUSAL_LM", init_lora_weights=False)
    torch.manual_seed(args.seed)
    theirs = peft.get_peft_model(model, config)
    theirs.save_pretrained(scratch / "theirs")
    figures.append(("PEFT's", beside(args, kind, cls, folder, scratch / "theirs", file, scratch / "merged-theirs")))
    return figures


def main():
    def lines(args, family, scratch):
        return [f", {what}: {figure}" for what, figure in check(args, family, scratch)]

    families.over_families(__doc__, f", peft {peft.__version__}", lines)


if __name__ == "__main__":
    main()
