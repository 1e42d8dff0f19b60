"""Trains the same weights on the same batches in xtrain and in a loop of transformers and torch, and compares every loss.

    python tests/train_beside_torch.py --xtrain target/release/xtrain [--torch_dtype bfloat16 [--master_weights]]
        [--config SETTINGS.json --tokenizer DIR --train_file FILE --steps N --batch N --block_size N --learning_rate X]
        [--tolerance SHARE] [--work DIR]

Without --config it is a small Llama on the text of tests/data. The weights are random and transformers saves them; batches are
the blocks of the text in order, tokenized line by line as run_clm does it; AdamW with a linear schedule and clipping at 1. With
--torch_dtype bfloat16 torch's model, gradients and moments are bfloat16, and with --master_weights its optimizer has float32
copies. Prints the losses of some steps and the largest relative difference; exits with 1 if it is above --tolerance.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

DATA = pathlib.Path(__file__).resolve().parent / "data"
SMALL = {
    "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 384, "tie_word_embeddings": True, "max_position_embeddings": 512,
}


def blocks(tokenizer, file, size, count):
    ids = []
    for line in file.read_text().splitlines(keepends=True):
        ids += tokenizer(line, add_special_tokens=False)["input_ids"]
        if len(ids) >= size * count:
            break
    count = min(count, len(ids) // size)
    return torch.tensor(ids[: size * count]).view(count, size)


def train_torch(directory, batches, args):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, args.torch_dtype))
    model.train()
    weights = list(model.parameters())
    trained = [weight.detach().float().requires_grad_() for weight in weights] if args.master_weights else weights
    optimizer = torch.optim.AdamW(trained, lr=args.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / args.steps)
    losses = []
    for step in range(args.steps):
        batch = batches[step * args.batch : (step + 1) * args.batch]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        if args.master_weights:
            for copy, weight in zip(trained, weights):
                copy.grad = weight.grad.float()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        if args.master_weights:
            with torch.no_grad():
                for copy, weight in zip(trained, weights):
                    weight.copy_(copy)
        model.zero_grad()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_xtrain(directory, args, out, cache):
    command = [
        args.xtrain, "train", "clm", "--model_name_or_path", directory, "--tokenizer_name", args.tokenizer, "--do_train",
        "--train_file", args.train_file, "--validation_split_percentage", 0, "--block_size", args.block_size, "--per_device_train_batch_size", args.batch,
        "--max_steps", args.steps, "--learning_rate", args.learning_rate, "--train_sampling_strategy", "sequential",
        "--logging_steps", 1, "--save_strategy", "no", "--disable_tqdm", "--torch_dtype", args.torch_dtype,
        "--master_weights", str(args.master_weights).lower(), "--cache_dir", cache, "--output_dir", out,
    ]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\n{done.stderr}")
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xtrain", required=True)
    parser.add_argument("--config", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=DATA / "gpt2")
    parser.add_argument("--train_file", type=pathlib.Path, default=DATA / "play.txt")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--block_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--torch_dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--master_weights", action="store_true")
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--work", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or pathlib.Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
        settings = json.loads(args.config.read_text()) if args.config else SMALL
        config = AutoConfig.for_model(**{**settings, "vocab_size": len(tokenizer)})
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        print(f"{config.model_type}, {model.num_parameters():,} parameters, {args.torch_dtype}", flush=True)
        model.save_pretrained(work / "start")
        batches = blocks(tokenizer, args.train_file, args.block_size, args.steps * args.batch)
        if len(batches) < args.steps * args.batch:
            sys.exit(f"{args.train_file} has {len(batches)} blocks only")
        began = time.time()
        ours = train_xtrain(work / "start", args, work / "out", work / "cache")
        between = time.time()
        theirs = train_torch(work / "start", batches, args)
        print(f"xtrain {between - began:.0f} s with compilation, torch {time.time() - between:.0f} s")
    if len(ours) != len(theirs):
        sys.exit(f"{len(ours)} losses, torch has {len(theirs)}")
    differences = [abs(a - b) / b for a, b in zip(ours, theirs)]
    for step in sorted({0, *range(0, args.steps, max(1, args.steps // 10)), args.steps - 1}):
        print(f"step {step + 1:4}  xtrain {ours[step]:.5f}  torch {theirs[step]:.5f}  difference {differences[step]:.2e}")
    largest = max(differences)
    step = differences.index(largest) + 1
    print(f"largest difference {largest:.2e} at step {step}, mean {sum(differences) / len(differences):.2e}")
    sys.exit(not largest <= args.tolerance)


if __name__ == "__main__":
    main()
