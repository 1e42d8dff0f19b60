#!/usr/bin/env python3
"""Labels of TRL's own training templates, as they are installed, beside those of xtrain.

    pip install torch==2.15.0 transformers==5.23.0 trl==1.16.0
    python tests/trl_templates.py target/release/xtrain

A model of random weights is evaluated on each conversation with --assistant_only_loss, whole and truncated; its loss must be that of the tokens that
`apply_chat_template(return_assistant_tokens_mask=True)` marks. Large weights make a wrong token or label show.

With --stock it is given the templates as models have them, without generation tags, and must mark what TRL's training templates for them mark
(`get_training_chat_template`). Rows that only one of both refuses are counted apart. Names of templates may follow, to compare these alone.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from trl.chat_template_utils import get_training_chat_template
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

STOCK = "--stock" in sys.argv
NAMED = [word for word in sys.argv[2:] if word != "--stock"]
ALL = sorted((pathlib.Path(trl.__file__).parent / "chat_templates").glob("*_training.jinja"))
TEMPLATES = [path for path in ALL if not NAMED or path.name.removesuffix("_training.jinja") in NAMED]
CALL = [{"type": "function", "id": "call00001", "function": {"name": "look", "arguments": {"day": 1}}}]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "See a day", "parameters": {"type": "object", "properties": {"day": {"type": "integer", "description": "Which"}}, "required": ["day"]}}}]


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


ROWS = {
    "plain": {"messages": [turn("user", "can you go now?"), turn("assistant", "no, the water is hot."), turn("user", "and the day?"), turn("assistant", "it could be  long\n")]},
    "system": {"messages": [turn("system", "Be brief."), turn("user", "who was first"), turn("assistant", "he was ünï 🙂")]},
    "reasoning": {"messages": [turn("user", "who?"), turn("assistant", "he was", reasoning_content="first of all")]},
    "tools": {"messages": [turn("user", "look"), turn("assistant", "", tool_calls=CALL), turn("tool", "sun", name="look", tool_call_id="call00001"), turn("assistant", "sun it is")], "tools": TOOLS},
    "reasoning twice": {"messages": [turn("user", "who?"), turn("assistant", "he was", reasoning_content="first"), turn("user", "and?"), turn("assistant", "hot", reasoning_content="water")]},
    "ends with a question": {"messages": [turn("user", "who?"), turn("assistant", "he was"), turn("user", "and the day?")]},
    "within": {"messages": [turn("user", "who?"), turn("assistant", "<think>\nfirst\n</think>\n\nhe was"), turn("user", "and?"), turn("assistant", "hot")]},
    "no thinking": {"messages": [turn("user", "who?"), turn("assistant", "he")], "chat_template_kwargs": {"enable_thinking": False}},
}


def make_model(directory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<bos>", "<|end|>"]
    texts = ["the water is hot and the day could be long, he was the first of all"] * 50
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": "<bos>", "pad_token": "<|endoftext|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = dict(vocab_size=tokenizer.get_vocab_size(), n_embd=32, n_layer=2, n_head=2, n_positions=2048)
    model = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.3, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).eval()
    model.save_pretrained(directory)
    return model


def wanted(model, directory, row, length):
    """The loss that TRL's labels have, or why there is none."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    if STOCK:
        tokenizer.chat_template = get_training_chat_template(tokenizer) or tokenizer.chat_template
    try:
        found = tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), return_dict=True, return_assistant_tokens_mask=True, **row.get("chat_template_kwargs", {}))
    except Exception as error:
        return str(error)
    ids, labels = found["input_ids"], [i if m else -100 for i, m in zip(found["input_ids"], found["assistant_masks"])]
    ids, labels = ids[:length], labels[:length]
    if not any(label != -100 for label in labels[1:]):
        return "nothing counts"
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:])).item()


def evaluated(xtrain, directory, row, length):
    (directory / "rows.jsonl").write_text((json.dumps(row) + "\n") * 2)
    command = [xtrain, "eval", "sft", "--model_name_or_path", directory, "--validation_file", directory / "rows.jsonl", "--output_dir", directory / "out", "--assistant_only_loss"]
    run = subprocess.run([str(it) for it in [*command, "--max_seq_length", length, "--disable_tqdm", "true"]], capture_output=True, text=True)
    if run.returncode:
        return next((line for line in run.stderr.splitlines() if line.startswith("error")), run.stderr)
    return json.loads((directory / "out" / "all_results.json").read_text())["eval_loss"]


def main():
    failures = compared = refused = apart = 0
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        model = make_model(directory)
        for path in TEMPLATES:
            source = path.with_name(path.name.replace("_training", "")) if STOCK else path
            (directory / "chat_template.jinja").write_text(source.read_text())
            for kind, row in ROWS.items():
                for length in (2048, 40):
                    theirs, ours = wanted(model, directory, row, length), evaluated(sys.argv[1], directory, row, length)
                    numbers = isinstance(theirs, float), isinstance(ours, float)
                    compared += all(numbers)
                    refused += not any(numbers)
                    # Templates as models have them refuse more than those that TRL has patched, and none is silent.
                    if STOCK and numbers[0] != numbers[1]:
                        apart += 1
                        print(f"{path.name}, {kind}, {length}: TRL {theirs}, xtrain {ours} (refused by one)", flush=True)
                        continue
                    if numbers[0] != numbers[1] or all(numbers) and abs(theirs - ours) > 2e-4 * max(1, theirs):
                        failures += 1
                        print(f"{path.name}, {kind}, {length}: TRL {theirs}, xtrain {ours}", flush=True)
    print(f"{len(TEMPLATES)} templates: {compared} losses compared, {refused} refused by both, {apart} by one, {failures} differ")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
