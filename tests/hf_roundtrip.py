"""Loads a directory that xtrain wrote into Python transformers and compares: the tokenizer's ids on a validation file, the loss on
the same rows, and the loss that xtrain gives for what transformers saves again. Prints the figures; exit code 1 if they differ.

Needs torch and transformers; tests/run_hf_roundtrip.sh finds or makes an environment that has them.
"""

import argparse
import glob
import gzip
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import time

TOLERANCE = 1e-4
GROUP = 1000  # lines that run_clm joins before cutting: the batch size of datasets.map


def read_lines(path):
    """The file's lines as Python's text mode gives them, each with its line break."""
    with open(path, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    with (gzip.open if is_gzip else open)(path, "rt", encoding="utf-8") as file:
        return list(file)


def cut_rows(ids_of_lines, block_size):
    """run_clm's rows: 1000 lines at a time joined and cut, what is left over dropped."""
    rows = []
    for start in range(0, len(ids_of_lines), GROUP):
        joined = [i for ids in ids_of_lines[start : start + GROUP] for i in ids]
        rows += [joined[at : at + block_size] for at in range(0, len(joined) - block_size + 1, block_size)]
    return rows


def read_xtrain_rows(path):
    """The rows that xtrain tokenized (`src/data/dataset.rs`): a header of 128 bytes, then u16 or u32 ids."""
    with open(path, "rb") as file:
        content = file.read()
    width, block_size, rows, lines, tokens = struct.unpack("<12xI4Q", content[:48])
    assert content[:8] == b"xtrnrows", f"{path} is not a file of rows"
    ids = memoryview(content)[128 : 128 + rows * block_size * width].cast({2: "H", 4: "I"}[width]).tolist()
    return [ids[at : at + block_size] for at in range(0, len(ids), block_size)], lines, tokens


def evaluate_with_xtrain(args, model, cache_dir):
    command = [args.xtrain, "eval", "clm", "--json", "--disable_tqdm", "--model_name_or_path", model]
    command += ["--validation_file", args.validation_file, "--block_size", str(args.block_size)]
    command += ["--per_device_eval_batch_size", str(args.batch_size), "--cache_dir", cache_dir]
    if args.max_eval_samples:
        command += ["--max_eval_samples", str(args.max_eval_samples)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout)["eval_loss"]


def evaluate_with_transformers(model, rows, batch_size):
    """Mean loss per predicted token. Rows are full, so a batch's mean times its rows is its sum over T - 1."""
    import torch

    total = 0.0
    with torch.no_grad():
        for start in range(0, len(rows), batch_size):
            ids = torch.tensor(rows[start : start + batch_size])
            total += float(model(input_ids=ids, labels=ids).loss) * len(ids)
    return total / len(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="an output directory of xtrain")
    parser.add_argument("--validation_file", required=True)
    parser.add_argument("--block_size", type=int, required=True)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_eval_samples", type=int, default=0, help="only the first so many rows; 0 means all")
    parser.add_argument("--xtrain", default="xtrain", help="the program")
    args = parser.parse_args()

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    print(f"torch {torch.__version__}, transformers {transformers.__version__}, model {args.model}")
    failures = []

    def compare(what, ok, figures):
        print(f"{'ok  ' if ok else 'FAIL'}  {what}: {figures}")
        if not ok:
            failures.append(what)

    with tempfile.TemporaryDirectory() as scratch:
        cache = os.path.join(scratch, "cache")
        ours = evaluate_with_xtrain(args, args.model, cache)

        tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
        lines = read_lines(args.validation_file)
        ids_of_lines = tokenizer(lines, add_special_tokens=False)["input_ids"]
        rows = cut_rows(ids_of_lines, args.block_size)
        (rows_file,) = glob.glob(os.path.join(cache, "**", "*.rows"), recursive=True)
        our_rows, our_lines, our_tokens = read_xtrain_rows(rows_file)
        tokens = sum(map(len, ids_of_lines))
        compare("lines", len(lines) == our_lines, f"{len(lines)} and {our_lines}")
        compare("tokens", tokens == our_tokens, f"{tokens} and {our_tokens}")
        different = sum(a != b for a, b in zip(rows, our_rows)) + abs(len(rows) - len(our_rows))
        compare("rows", different == 0, f"{len(rows)} of {args.block_size} ids, {different} different")
        if different:
            sys.exit("error: the losses of different rows cannot be compared")
        if args.max_eval_samples:
            rows = rows[: args.max_eval_samples]

        model, loading = transformers.GPT2LMHeadModel.from_pretrained(
            args.model, dtype=torch.float32, output_loading_info=True
        )
        unclear = {key: sorted(map(str, loading[key])) for key in loading if loading[key] and key != "error_msgs"}
        compare("every tensor has its place", not unclear, unclear or f"{sum(1 for _ in model.parameters())} parameters")
        model.eval()
        began = time.time()
        theirs = evaluate_with_transformers(model, rows, args.batch_size)
        difference = abs(ours - theirs)
        compare(
            "loss",
            difference <= TOLERANCE,
            f"xtrain {ours:.8f}, transformers {theirs:.8f}, difference {difference:.2e} (at most {TOLERANCE:.0e}); "
            f"perplexity {math.exp(min(theirs, 700)):.4f}; {len(rows)} rows in {time.time() - began:.1f} s",
        )

        again_dir = os.path.join(scratch, "again")
        model.save_pretrained(again_dir)
        tokenizer.save_pretrained(again_dir)
        again = evaluate_with_xtrain(args, again_dir, os.path.join(scratch, "cache-again"))
        compare("loss of what transformers saved", again == ours, f"xtrain {again:.8f}, difference {abs(again - ours):.2e}")
    if failures:
        sys.exit(f"error: {', '.join(failures)} differ")


if __name__ == "__main__":
    main()
