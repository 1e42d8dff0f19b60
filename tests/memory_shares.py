#!/usr/bin/env python3
"""What each way of dividing a model keeps on a device, by the compiler's own account: gpt2-medium and GPT-J 6B, compiled and not run.

Usage: tests/memory_shares.py [MODEL ...] [--xtrain FILE]

Every figure is of `xtrain train clm ... --dry_run --json`; with the seconds that this took and the most
memory of any plan so far (largest resident set). State is what a step gets and gives back: weights, both moments and the sums of two microbatches'
gradients, 16 bytes a parameter. The exit status is 1 if a share is not the promised one, or a plan took over a minute or 4 GiB.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

DATA = pathlib.Path(os.environ.get("XTRAIN_TEST_DATA", pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"))
DEVICES = 8
MODELS = {
    # rows a device, and bytes of a parameter's state
    "gpt2-medium": (4, 16),
    "gpt-j-6b": (1, 16),
}
# Shares of the 16 bytes: 4 of weights, 4 of gradients, 8 of moments.
STATES = [
    ("one device", [], 1.0),
    ("ZeRO-1: moments / 8", ["--data_parallel", "8", "--shard_optimizer_state"], (8 + 8 / DEVICES) / 16),
    ("ZeRO-3: weights, gradients, moments / 8", ["--shard_parallel", "8"], 1 / DEVICES),
    ("tensor: matrices / 8", ["--tensor_parallel", "8"], 1 / DEVICES),
]
# Vectors and what does not divide, as a share of the model.
WHOLE = 0.005
SECONDS, GIB, MIB = 60, 1 << 30, 1 << 20


def plan(xtrain, model, rows, flags):
    """The plan, with the seconds and the bytes of memory that it took."""
    command = [xtrain, "train", "clm", "--config_name", model, "--tokenizer_name", DATA / "gpt2"]
    command += ["--train_file", DATA / "tinyshakespeare" / "input.txt", "--block_size", "512", "--bf16", "--do_train"]
    command += ["--per_device_train_batch_size", str(rows), "--dry_run", "--json"]
    with tempfile.TemporaryDirectory() as scratch:
        command += ["--output_dir", f"{scratch}/out", "--cache_dir", f"{scratch}/cache"]
        began = time.monotonic()
        run = subprocess.Popen([str(word) for word in command + flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        told, problems = run.communicate()
        took = time.monotonic() - began
    if run.returncode != 0:
        sys.exit(f"memory_shares: {' '.join(flags)}: {problems}")
    # Of all children so far, the largest; they come in turn, and each has to stay below the bound.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return json.loads(told), took, peak


def largest(told, key, starts=("update", "train")):
    """Of the graphs that hold all state, the largest figure."""
    return max(graph[key] for graph in told["graphs"] if graph["name"].startswith(starts))


def main():
    """Prints the tables; the exit status is 1 if a promise is broken."""
    parser = argparse.ArgumentParser(prog="tests/memory_shares.py", description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help="gpt2-medium, gpt-j-6b (default: both)")
    parser.add_argument("--xtrain", default="target/release/xtrain", help="the program")
    options = parser.parse_args()
    broken = []

    def row(name, *cells, promised=True):
        print(f"{name:44}" + "".join(f"{cell:>16}" for cell in cells) + ("" if promised else "   BROKEN"), flush=True)
        if not promised:
            broken.append(name)

    for model in options.models:
        rows, state_bytes = MODELS[model]
        print(f"{model}, {rows} x 512 a device, bf16; GiB")
        row("", "state", "share", "promised", "took", "memory")
        for name, flags, share in STATES:
            checkpointing = [] if model == "gpt2-medium" else ["--gradient_checkpointing"]
            told, took, peak = plan(options.xtrain, model, rows, flags + checkpointing + ["--gradient_accumulation_steps", "2"])
            state = largest(told, "argument_bytes")
            found = state / (state_bytes * told["parameters"])
            fits = abs(found - share) < WHOLE and took < SECONDS and peak < 4 * GIB
            row(name, f"{state / GIB:.2f}", f"{found:.4f}", f"{share:.4f}", f"{took:.0f} s", f"{peak / GIB:.2f}", promised=fits)
        pipeline(options.xtrain, model, rows, state_bytes, row)
        activations(options.xtrain, model, rows, row)
    sys.exit(f"memory_shares: broken: {', '.join(broken)}" if broken else 0)


def pipeline(xtrain, model, rows, state_bytes, row):
    """Eight stages: none has more than its layers, and the embedding or the head."""
    flags = ["--pipeline_parallel", "8", "--gradient_accumulation_steps", "8", "--gradient_checkpointing"]
    told, took, peak = plan(xtrain, model, rows, flags)
    stages = {}
    for graph in told["graphs"]:
        if graph["name"].startswith("update.stage"):
            stage = graph["name"].split(".")[1]
            stages[stage] = max(stages.get(stage, 0), graph["argument_bytes"])
    whole = state_bytes * told["parameters"]
    layers, width, vocabulary = {"gpt2-medium": (24, 1024, 50257), "gpt-j-6b": (28, 4096, 50257)}[model]
    layer = 12 * width * width * state_bytes
    # Dealt out by cost: at most one layer more than the mean, and a vocabulary.
    bound = (-(-layers // DEVICES) + 1) * layer + vocabulary * width * state_bytes
    promised = len(stages) == DEVICES and max(stages.values()) <= bound and took < SECONDS and peak < 4 * GIB
    each = [value / GIB for value in stages.values()]
    row("pipeline: layers / 8, the largest stage", f"{max(each):.2f}", f"{max(stages.values()) / whole:.4f}", f"{bound / whole:.4f}",
        f"{took:.0f} s", f"{peak / GIB:.2f}", promised=promised)
    print("    stages: " + ", ".join(f"{value:.2f}" for value in each))


def activations(xtrain, model, rows, row):
    """Checkpointing: what a further layer costs in temporaries, by plans of two depths."""
    shallow, deep = {"gpt2-medium": (8, 16), "gpt-j-6b": (4, 8)}[model]
    key, width = {"gpt2-medium": ("n_layer", 1024), "gpt-j-6b": ("n_layer", 4096)}[model]
    # In f32, as the largest that they can be.
    parameters = 12 * width * width
    boundary = rows * 512 * width * 4
    bound = 4 * parameters + boundary
    row("temporaries of a further layer, MiB", "found", "promised", "its gradients", "its input")
    for name, flags in [("kept", []), ("attention's twice", ["--gradient_checkpointing", "attention"]), ("twice", ["--gradient_checkpointing"])]:
        sizes = []
        for depth in (shallow, deep):
            told, _, _ = plan(xtrain, model, rows, flags + ["--config_overrides", f"{key}={depth}"])
            sizes.append(largest(told, "temp_bytes", ("train",)))
        slope = (sizes[1] - sizes[0]) / (deep - shallow)
        # With everything computed twice a layer costs its gradients and its input, and nothing of its inside.
        promise = {"twice": f"{bound / MIB:.1f}"}.get(name, "")
        row(f"  activations {name}", f"{slope / MIB:.1f}", promise, f"{4 * parameters / MIB:.1f}", f"{boundary / MIB:.1f}",
            promised=not promise or slope <= bound)


if __name__ == "__main__":
    main()
