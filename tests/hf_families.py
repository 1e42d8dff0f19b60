"""Every family to and fro between transformers and xtrain. For each, a model of a configuration drawn at random is saved by transformers in
float32, in bfloat16, in shards, and as pytorch_model.bin, whole and in shards; xtrain evaluates and trains each and saves it; transformers
loads what xtrain saved, without a key missing or too many. Losses of the same rows agree within 1e-5. Prints the figures; exit code 1 if
anything differs.

    python tests/hf_families.py [--xtrain PROGRAM] [--families llama,...] [--seed S]

Needs torch and transformers; tests/run_hf_roundtrip.sh --all_families finds or makes an environment that has them.
"""

import argparse
import csv
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "data"))

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
import transformers as hf

import hf_roundtrip
import make_golden as golden
import make_random_golden as drawn

TOLERANCE = 1e-5
LENGTH = 24


class Failed(Exception):
    pass


def xtrain(args, *words):
    done = subprocess.run([args.xtrain, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def save_torch(model, folder, parts):
    """As transformers 4 did with safe_serialization=False: every name, tied tensors too."""
    state = model.state_dict()
    if model.config.model_type == "gpt_neox" and "lm_head.weight" in state:
        state["embed_out.weight"] = state.pop("lm_head.weight")  # its name in files, and there
    if parts == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return
    names, index = list(state), {}
    for part in range(parts):
        file = f"pytorch_model-{part + 1:05}-of-{parts:05}.bin"
        chosen = names[part::parts]
        torch.save({name: state[name] for name in chosen}, folder / file)
        index |= {name: file for name in chosen}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": index}))


def forms(model, scratch):
    """Folders with the model, by name."""
    for name in ["float32", "bfloat16", "shards", "bin", "bin-shards"]:
        folder = scratch / name
        saved = model.to(torch.bfloat16) if name == "bfloat16" else model.to(torch.float32)
        saved.save_pretrained(folder, max_shard_size="10KB" if name == "shards" else "1GB")
        if name.startswith("bin"):
            for file in folder.glob("*.safetensors"):
                file.unlink()
            save_torch(model, folder, 3 if name == "bin-shards" else 1)
        yield name, folder
        model = type(model).from_pretrained(scratch / "float32", dtype=torch.float32)


class Language:
    """Evaluated on packed rows of text."""

    tokenizer = "byte_bpe"

    def words(self, scratch):
        return ["--block_size", LENGTH]

    def files(self, scratch):
        lines = (HERE / "data/play.txt").read_text().splitlines(keepends=True)[:120]
        (scratch / "text.txt").write_text("".join(lines))
        return scratch / "text.txt"

    task = "clm"

    def loss(self, model, tokenizer, file):
        ids = tokenizer(hf_roundtrip.read_lines(file))["input_ids"]
        return hf_roundtrip.evaluate_with_transformers(model, hf_roundtrip.cut_rows(ids, LENGTH), 8)


class Sequences:
    """Evaluated as a classifier of texts."""

    tokenizer = "wordpiece"
    task = "cls"

    def words(self, scratch):
        return ["--max_seq_length", LENGTH]

    def files(self, scratch):
        with open(HERE / "data/posts-train.csv", newline="") as file:
            rows = list(csv.DictReader(file))[:48]
        names = sorted({row["sentiment"] for row in rows})
        self.rows = [(row["text"], names.index(row["sentiment"])) for row in rows]
        with open(scratch / "text.csv", "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["text", "label"])
            writer.writerows((text, names[label]) for text, label in self.rows)
        self.names = names
        return scratch / "text.csv"

    def loss(self, model, tokenizer, file):
        texts, labels = zip(*self.rows)
        batch = tokenizer(list(texts), max_length=LENGTH, truncation=True, padding="max_length", return_tensors="pt")
        batch = {name: value for name, value in batch.items() if name != "token_type_ids" or getattr(model.config, "type_vocab_size", 1) > 1}
        with torch.no_grad():
            return float(model(**batch, labels=torch.tensor(labels)).loss)


def with_tokenizer(name, folder):
    """A tokenizer with a padding token."""
    shutil.copy(HERE / "data/golden/tokenizers" / name / "tokenizer.json", folder / "tokenizer.json")
    pad = "[PAD]" if name == "wordpiece" else "<|endoftext|>"
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad}))


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
    if encoder:  # the masked-LM class has other keys; its loss depends on a draw
        masked = getattr(hf, next(name for name in names if name.endswith("ForMaskedLM")))
        plain = golden.new_model(masked, config_class(**settings), args.seed)
        plain.save_pretrained(scratch / "masked")
        with_tokenizer(kind.tokenizer, scratch / "masked")
        lines = (HERE / "data/articles-train.txt").read_text().splitlines(keepends=True)[:40]
        (scratch / "masked.txt").write_text("".join(lines))
        xtrain(args, "train", "mlm", "--disable_tqdm", "--model_name_or_path", scratch / "masked", "--train_file", scratch / "masked.txt", "--max_seq_length", LENGTH,
               "--max_steps", 1, "--save_strategy", "no", "--output_dir", scratch / "masked-out")
        loads(masked, scratch / "masked-out")
    model = golden.new_model(cls, config_class(**settings), args.seed)
    figures = []
    for form, folder in forms(model, scratch):
        with_tokenizer(kind.tokenizer, folder)
        theirs = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        tokenizer = hf.AutoTokenizer.from_pretrained(folder)
        figures.append((form, compare(args, kind, folder, file, theirs, tokenizer)))
        out = scratch / f"out-{form}"
        xtrain(args, "train", kind.task, "--disable_tqdm", "--model_name_or_path", folder, "--train_file", file, *kind.words(scratch), "--max_steps", 1,
               "--learning_rate", 1e-3, "--per_device_train_batch_size", 4, "--save_strategy", "no", "--max_shard_size", "10KB" if "shards" in form else "1GB", "--output_dir", out)
        back = loads(cls, out)
        dtype = json.loads((out / "config.json").read_text())
        wanted = "bfloat16" if form == "bfloat16" else "float32"
        if dtype.get("dtype", dtype.get("torch_dtype")) != wanted:
            raise Failed(f"{form} came back as {dtype.get('dtype', dtype.get('torch_dtype'))}")
        figures.append((f"{form} back", compare(args, kind, out, file, back, hf.AutoTokenizer.from_pretrained(out))))
    return figures


def compare(args, kind, folder, file, model, tokenizer):
    found = xtrain(args, "eval", kind.task, "--json", "--disable_tqdm", "--model_name_or_path", folder, "--validation_file", file, *kind.words(folder))
    ours, theirs = json.loads(found)["eval_loss"], kind.loss(model, tokenizer, file)
    difference = abs(ours - theirs)
    if not (math.isfinite(theirs) and difference <= TOLERANCE):
        raise Failed(f"{folder.name}: loss {ours}, transformers {theirs}")
    return difference


def loads(cls, folder):
    """The model that xtrain saved, in float32; every tensor has its place."""
    model, loading = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    unclear = {key: sorted(map(str, value)) for key, value in loading.items() if value}
    if unclear:
        raise Failed(f"{folder.name}: {unclear}")
    return model.eval()


def over_families(description, versions, check):
    """Prints what `check(args, family, scratch)` finds of each family that the arguments name, in lines."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xtrain", default=str(HERE.parent / "target/release/xtrain"), help="the program")
    parser.add_argument("--families", default="", help="model types, all if not given")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    hf.utils.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {hf.__version__}{versions}")
    failed = []
    for family in drawn.FAMILIES:
        if args.families and family.__name__ not in args.families.split(","):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["XTRAIN_CACHE_DIR"] = str(pathlib.Path(scratch) / "cache")
            try:
                for line in check(args, family, pathlib.Path(scratch)):
                    print(f"ok    {family.__name__}{line}", flush=True)
            except Failed as error:
                failed.append(family.__name__)
                print(f"FAIL  {family.__name__}: {error}", flush=True)
    if failed:
        sys.exit(f"error: {', '.join(failed)} differ")


def main():
    def line(args, family, scratch):
        figures = check(args, family, scratch)
        return [": " + ", ".join(f"{form} {difference:.0e}" for form, difference in figures)]

    over_families(__doc__, "", line)


if __name__ == "__main__":
    main()
