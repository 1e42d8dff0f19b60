"""Makes golden/finetune/optim8*: optimizers whose moments are in 8 bits, in plain numpy (see README.md).

Usage: python make_optim8.py

The maps are made as Dettmers et al. 2021 (arXiv:2110.02861) describe them, codes are found by searching the sorted map, and
arithmetic is in float32. Each case has the files of the case of that name among the golden references: meta.json (settings and spans), problem.safetensors
(the weight and each step's gradient), states.safetensors (after each step of a number: weight, codes and absmax).
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

GOLDEN = Path(__file__).parent / "golden/finetune"
BLOCK = 256
STEPS = 2
F = np.float32


def dynamic_map(signed):
    """The 256 entries in rising order, in float64."""
    values = [0.0, 1.0]
    for i in range(7):
        cells = 2**i if signed else 2 ** (i + 1)
        edges = np.linspace(0.1, 1, cells + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (i - 6)
        values += [*middles, *(-middles if signed else [])]
    assert len(values) == 256
    return np.sort(values)


SIGNED, UNSIGNED = dynamic_map(True), dynamic_map(False)


def blocks(x):
    return np.pad(x, (0, -len(x) % BLOCK)).reshape(-1, BLOCK)


def encode(x, entries, floor):
    absmax = np.maximum(np.abs(blocks(x)).max(1), F(floor))
    scaled = blocks(x) / np.where(absmax > 0, absmax, F(1))[:, None]
    middles = (entries[:-1] + entries[1:]) / 2
    codes = np.searchsorted(middles, scaled.astype(np.float64), side="right").astype(np.uint8)
    return codes.reshape(-1)[: len(x)], absmax


def decode(codes, absmax, entries):
    return (entries.astype(F)[blocks(codes)] * absmax[:, None]).reshape(-1)[: len(codes)]


def adamw(w, g, moments, k, s):
    m = F(s["beta1"]) * moments["m"] + F(1 - s["beta1"]) * g
    v = F(s["beta2"]) * moments["v"] + F(1 - s["beta2"]) * g * g
    w = w * F(1 - s["lr"] * s["weight_decay"])
    correction1, correction2 = 1 - s["beta1"] ** k, 1 - s["beta2"] ** k
    return w - F(s["lr"] / correction1) * m / (np.sqrt(v) / F(correction2**0.5) + F(s["eps"])), {"m": m, "v": v}


def lion(w, g, moments, k, s):
    direction = F(s["beta1"]) * moments["m"] + F(1 - s["beta1"]) * g
    w = w * F(1 - s["lr"] * s["weight_decay"]) - F(s["lr"]) * np.sign(direction)
    return w, {"m": F(s["beta2"]) * moments["m"] + F(1 - s["beta2"]) * g}


def gradients(rng, sizes):
    """Spans of blocks of different sizes of numbers; the last are so small that their squares are below torchao's least scale."""
    count = sum(size for size, _ in sizes)
    g = rng.standard_normal((STEPS, count)).astype(F)
    at = 0
    for size, scale in sizes:
        g[:, at : at + size] *= F(scale)
        at += size
    return g


def make(name, optimizer, rule, names, sizes, floor):
    settings = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999 if names == "mv" else 0.99, "eps": 1e-8, "weight_decay": 0.01, "block": BLOCK}
    rng = np.random.default_rng(47)
    g = gradients(rng, sizes)
    w = rng.standard_normal(g.shape[1]).astype(F)
    folder = GOLDEN / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": w, "gradients": g}, folder / "problem.safetensors")
    entries = {"m": SIGNED, "v": UNSIGNED}
    state = {moment: encode(np.zeros_like(w), entries[moment], floor) for moment in names}
    for k in range(1, STEPS + 1):
        moments = {moment: decode(*state[moment], entries[moment]) for moment in names}
        w, new = rule(w, g[k - 1], moments, k, settings)
        assert w.dtype == F and all(value.dtype == F for value in new.values())
        state = {moment: encode(value, entries[moment], floor) for moment, value in new.items()}
    stored = {f"{STEPS}.weight": w}
    for moment, (codes, absmax) in state.items():
        stored |= {f"{STEPS}.{moment}_codes": codes, f"{STEPS}.{moment}_absmax": absmax}
    save_file(stored, folder / "states.safetensors")
    ends = np.cumsum([size for size, _ in sizes]).tolist()
    spans = [{"kind": f"normal, scale {scale}", "from": end - size, "to": end} for (size, scale), end in zip(sizes, ends)]
    meta = {"optimizer": optimizer, "settings": settings, "steps": STEPS, "elements": len(w), "spans": spans, "numpy": np.__version__}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    print(f"{name}: {len(w)} numbers, {STEPS} steps")


if __name__ == "__main__":
    short = [(2048, 1), (1024, 1e-4), (1024, 30), (137, 1)]
    make("optim8", "adamw_8bit", adamw, "mv", short, 0)
    make("optim8-lion", "lion_8bit", lion, "m", short, 0)
    make("optim8-torch", "adamw_torch_8bit", adamw, "mv", [(2048, 1), (1024, 1e-4), (1024, 1e-7)], 1e-12)
