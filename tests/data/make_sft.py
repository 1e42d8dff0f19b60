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
# Tags that also hold what ends a turn, or the text alone.
TAGS_WITH_END = """{% for m in messages %}{{ '<' + m.role + '>\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|endoftext|>\\n' }}{% endgeneration %}\
{% else %}{{ m.content + '<|endoftext|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>\\n' }}{% endif %}"""
TAGS_ALONE = """{% for m in messages %}{{ '<' + m.role + '>\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}\
{{ '<|endoftext|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>\\n' }}{% endif %}"""
# Tags within words, at the text's end, and within a macro, of which transformers marks other tokens.
TAGS_WITHIN = """{% macro show(m) %}{% generation %}{{ m.content[:3] }}{% endgeneration %}{{ m.content[3:] }}{% endmacro %}{% for m in messages %}{{ m.role }}:\
{% if m.role == 'assistant' %}{{ show(m) }}{% generation %}{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}{% generation %}end{% endgeneration %}"""
# What a row has besides its messages, and fields of these.
READS_ALL = """{% if tools %}{{ 'tools ' + (tools | tojson) + '\\n' }}{% endif %}{% if mode is defined %}{{ 'mode ' ~ mode ~ '\\n' }}{% endif %}{% for m in messages %}{{ '<' + m.role + (':' + m.name if m.name else '') + '>' }}\
{% if m.content is string %}{{ m.content }}{% elif m.content %}{% for part in m.content %}{{ part.text if part.type == 'text' else '[' + part.type + ']' }}{% endfor %}{% endif %}\
{% if m.reasoning_content %}{{ '(' + m.reasoning_content + ')' }}{% endif %}{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}{{ m.tool_call_id or '' }}{{ m.weight }}{{ eos_token }}{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}"""
TOOL = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"day": {"type": "string"}}}}}]
ASKED = [turn("user", "and now?"), turn("assistant", "not yet")]
CALLS = [turn("user", "look"), {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"day": "1"}}}]},
         {"role": "tool", "name": "look", "tool_call_id": "c1", "content": "sun"}, turn("assistant", "sun")]  # fmt: skip
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
    ("all assistant's turns of two parts", CHAT_PAIRS, {"assistant_only_loss": True, "completion_only_loss": False}, 256),
    *[(f"{name}{what}", CHATS, {"assistant_only_loss": True}, length, template) for name, template in
      [("tags with the end", TAGS_WITH_END), ("tags of the text", TAGS_ALONE), ("tags within", TAGS_WITHIN)] for what, length in [("", 256), (", truncated", 41)]],
    ("tags with the end of two parts", CHAT_PAIRS, {"assistant_only_loss": True}, 256, TAGS_WITH_END),
    ("two parts of another beginning", CHAT_PAIRS, {}, 256, TAGS_WITHIN),
    ("tools", [{"messages": ASKED, "tools": TOOL}], {}, 256, READS_ALL),
    ("tools as JSON", [{"messages": ASKED, "tools": json.dumps(TOOL)}], {}, 256, READS_ALL),
    ("no tools", [{"messages": ASKED, "tools": []}], {}, 256, READS_ALL),
    ("variables", [{"messages": ASKED, "chat_template_kwargs": {"mode": "fast"}}], {}, 256, READS_ALL),
    ("variables of two parts", [{"prompt": ASKED[:1], "completion": ASKED[1:], "tools": TOOL, "chat_template_kwargs": {"mode": 1}}], {}, 256, READS_ALL),
    ("variables over tools", [{"messages": ASKED, "tools": TOOL, "chat_template_kwargs": {"tools": None, "eos_token": "!"}}], {}, 256, READS_ALL),
    ("names", [{"messages": [{**ASKED[0], "name": "Ann"}, ASKED[1]]}], {}, 256, READS_ALL),
    ("calls", [{"messages": CALLS}], {}, 256, READS_ALL),
    ("parts", [{"messages": [turn("user", [{"type": "text", "text": "see"}, {"type": "image"}]), turn("assistant", [{"type": "text", "text": "yes"}])]}], {}, 256, READS_ALL),
    ("reasoning", [{"messages": [ASKED[0], {**ASKED[1], "thinking": "hm", "weight": 1.5}]}], {}, 256, READS_ALL),
    ("nulls", [{"messages": [{**ASKED[0], "name": None}, {**ASKED[1], "tool_calls": None, "reasoning_content": None}]}], {}, 256, READS_ALL),
]


def made(rows, settings, max_length, template=TEMPLATE):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE / "gpt2" / "tokenizer.json"), eos_token="<|endoftext|>")
    tokenizer.chat_template = template
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1, n_positions=256))
    with tempfile.TemporaryDirectory() as output:
        config = SFTConfig(output_dir=output, max_length=max_length, report_to=[], use_cpu=True, **settings)
        trainer = SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        for row in trainer.train_dataset:
            batch = trainer.data_collator([row])
            yield {"ids": batch["input_ids"][0].tolist(), "labels": batch["labels"][0].tolist()}


cases = [{"name": name, "rows": rows, "flags": flags, "max_length": length, "template": (*template, None)[0], "made": list(made(rows, flags, length, *template))}
         for name, rows, flags, length, *template in CASES]
target = HERE / "golden" / "sft.json"
target.write_text(json.dumps({"template": TEMPLATE, "cases": cases}, ensure_ascii=False, indent=0) + "\n")
print(f"{target}: {sum(len(case['made']) for case in cases)} rows")
