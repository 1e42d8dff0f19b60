#!/usr/bin/env python3
"""Makes tests/data/golden/sft.json: examples for supervised fine-tuning, with the ids and labels that TRL makes of them.

    pip install torch==2.15.0 transformers==5.23.0 trl==1.16.0
    python tests/data/make_tokenizers.py && python tests/data/make_sft.py

A case has its rows, xtrain's flags, max_length, and for each row that is left the ids and labels (-100: not counted).
"""

import json
import pathlib
import tempfile

from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

HERE = pathlib.Path(__file__).resolve().parent
TEMPLATE = """{%- for message in messages %}
{{- '<' + message.role + '>\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content + '<|endoftext|>' }}{% endgeneration %}
{%- else %}{{ message.content + '<|endoftext|>' }}{% endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>\\n' }}{% endif %}"""


def turn(role, content):
    return {"role": role, "content": content}


CHATS = [
    {"messages": [turn("system", "Be brief."), turn("user", "What is two and two?"), turn("assistant", "Four."),
                  turn("user", "And three more?"), turn("assistant", "Seven,  of course. ")]},
    {"messages": [turn("user", "Hello"), turn("assistant", "ünïcode 🙂\n\nand lines")]},
]
PAIRS = [
    {"prompt": "The sky is", "completion": " blue."},
    {"prompt": "Count: ", "completion": "one two three"},
    {"prompt": "It ends", "completion": " here.<|endoftext|>"},
]
CHAT_PAIRS = [
    {"prompt": [turn("user", "Who wrote it?")], "completion": [turn("assistant", "A friend.")]},
    {"prompt": [turn("user", "a"), turn("assistant", "b"), turn("user", "c")], "completion": [turn("assistant", "d e f")]},
]
TEXTS = [{"text": "Once upon a time"}, {"text": "there was a text.<|endoftext|>"}]
# Name, rows, settings of TRL and flags of xtrain, longest row.
CASES = [
    ("texts", TEXTS, {}, 64),
    ("pairs", PAIRS, {}, 64),
    ("whole pairs", PAIRS, {"completion_only_loss": False}, 64),
    ("truncated pairs", PAIRS, {}, 5),
    ("chats", CHATS, {}, 256),
    ("assistant's turns", CHATS, {"assistant_only_loss": True}, 256),
    ("truncated chats", CHATS, {"assistant_only_loss": True}, 45),
    ("chats of two parts", CHAT_PAIRS, {}, 256),
    ("whole chats of two parts", CHAT_PAIRS, {"completion_only_loss": False}, 256),
    ("assistant's turns of two parts", CHAT_PAIRS, {"assistant_only_loss": True}, 256),
]


def made(rows, settings, max_length):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE / "gpt2" / "tokenizer.json"), eos_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1, n_positions=256))
    with tempfile.TemporaryDirectory() as output:
        config = SFTConfig(output_dir=output, max_length=max_length, report_to=[], use_cpu=True, **settings)
        trainer = SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        for row in trainer.train_dataset:
            batch = trainer.data_collator([row])
            yield {"ids": batch["input_ids"][0].tolist(), "labels": batch["labels"][0].tolist()}


cases = [{"name": name, "rows": rows, "flags": flags, "max_length": length, "made": list(made(rows, flags, length))}
         for name, rows, flags, length in CASES]
target = HERE / "golden" / "sft.json"
target.write_text(json.dumps({"template": TEMPLATE, "cases": cases}, ensure_ascii=False, indent=0) + "\n")
print(f"{target}: {sum(len(case['made']) for case in cases)} rows")
