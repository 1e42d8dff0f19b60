"""Trains GPT-2 with transformers' Trainer on a text, as the native run that xtrain's runs are compared with.

    python tests/native_run.py --text FILE --valid FILE --tokenizer DIR --steps N [--layers 6 --hidden 192 --block 64 --batch 4] > native.log

Only the Trainer's records are needed of its output.
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--text", required=True)
parser.add_argument("--valid", required=True)
parser.add_argument("--tokenizer", required=True)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--hidden", type=int, default=192)
parser.add_argument("--block", type=int, default=64)
parser.add_argument("--batch", type=int, default=4)
arguments = parser.parse_args()

tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{arguments.tokenizer}/tokenizer.json")
block = arguments.block


def blocks(path):
    ids = tokenizer(open(path).read())["input_ids"]
    rows = [torch.tensor(ids[at : at + block]) for at in range(0, len(ids) - block + 1, block)]
    return [{"input_ids": row, "labels": row} for row in rows]


torch.manual_seed(42)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(tokenizer), n_layer=arguments.layers, n_head=6, n_embd=arguments.hidden, n_positions=2 * block,
        bos_token_id=0, eos_token_id=0,
    )
)
with tempfile.TemporaryDirectory() as directory:
    settings = TrainingArguments(
        output_dir=directory, max_steps=arguments.steps, per_device_train_batch_size=arguments.batch, learning_rate=1e-3,
        logging_steps=5, save_strategy="no", eval_strategy="steps", eval_steps=20, report_to="none", use_cpu=True, disable_tqdm=True,
    )
    Trainer(model=model, args=settings, train_dataset=blocks(arguments.text), eval_dataset=blocks(arguments.valid)).train()
