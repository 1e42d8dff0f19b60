#!/usr/bin/env python3
"""The kernels of GPT-2 small and of a Llama-like model as JAX users write them, beside those of xtrain's step of the same size.

Usage: tests/beside_jax.py DIR [--target h100] [--model gpt2|llama|all] [--batch N] [--tokens N] [--layers N] [--lower_only]

DIR gets the modules and the reports. It needs jax (0.10 or newer; no GPU and no plugin of jax's own), the plugin that XTRAIN_CUDA_PLUGIN
names (tests/cuda_wheels), target/release/xtrain and the example `foreign_module` beside it (cargo build --release --example
foreign_module). jax only lowers: the module is compiled by the same plugin, for the same described card, as xtrain's own. So what differs
is what the two programs say, and not the compilers.

As JAX users write it: float32 parameters, bf16 compute by casting where they are used (autocast), cuDNN's attention by
jax.nn.dot_product_attention, cross-entropy over float32 logits, AdamW as optax writes it, everything donated, one jit.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {
    "gpt2": dict(batch=32, tokens=1024, layers=12, width=768, heads=12, kv_heads=12, inner=3072, words=50257),
    "llama": dict(batch=2, tokens=2048, layers=16, width=2048, heads=32, kv_heads=8, inner=8192, words=128256),
}


def pretend_to_have_cudnn():
    """jax asks the GPU of this machine, which is not the one to compile for."""
    from jax._src.cudnn import fused_attention_stablehlo as fused

    fused.check_cudnn_version = lambda: 91501
    fused.check_compute_capability = lambda capability: True
    if hasattr(fused, "is_cuda_compute_capability_equal"):
        fused.is_cuda_compute_capability_equal = lambda capability: False


def parameters(kind, s):
    def array(*dims):
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    width, inner, head = s["width"], s["inner"], s["width"] // s["heads"]
    if kind == "gpt2":
        norm = {"g": array(width), "b": array(width)}
        layer = {
            "ln_1": norm, "ln_2": norm, "c_attn": {"w": array(width, 3 * width), "b": array(3 * width)},
            "c_proj": {"w": array(width, width), "b": array(width)}, "c_fc": {"w": array(width, inner), "b": array(inner)},
            "out": {"w": array(inner, width), "b": array(width)},
        }  # fmt: skip
        return {"wte": array(s["words"], width), "wpe": array(s["tokens"], width), "ln_f": norm, "h": [layer] * s["layers"]}
    layer = {
        "n1": array(width), "n2": array(width), "q": array(width, s["heads"] * head), "k": array(width, s["kv_heads"] * head),
        "v": array(width, s["kv_heads"] * head), "o": array(s["heads"] * head, width), "gate": array(width, inner),
        "up": array(width, inner), "down": array(inner, width),
    }  # fmt: skip
    return {"embed": array(s["words"], width), "norm": array(width), "layers": [layer] * s["layers"]}


def bf16(x):
    return x.astype(jnp.bfloat16)


def attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


def gpt2(p, ids, s):
    def norm(x, n):
        x = x.astype(jnp.float32)
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return bf16((x - mean) * jax.lax.rsqrt(variance + 1e-5) * n["g"] + n["b"])

    def linear(x, l):
        return x @ bf16(l["w"]) + bf16(l["b"])

    b, t = ids.shape
    x = bf16(p["wte"])[ids] + bf16(p["wpe"])[:t]
    for l in p["h"]:
        q, k, v = jnp.split(linear(norm(x, l["ln_1"]), l["c_attn"]).reshape(b, t, 3 * s["heads"], -1), 3, axis=2)
        x = x + linear(attention(q, k, v).reshape(b, t, -1), l["c_proj"])
        x = x + linear(jax.nn.gelu(linear(norm(x, l["ln_2"]), l["c_fc"]), approximate=True), l["out"])
    return norm(x, p["ln_f"]) @ bf16(p["wte"]).T


def llama(p, ids, s):
    def norm(x, g):
        x = x.astype(jnp.float32)
        return bf16(x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g)

    b, t = ids.shape
    head = s["width"] // s["heads"]
    angles = jnp.arange(t)[:, None] * (500000.0 ** (-jnp.arange(0, head, 2) / head))[None]
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]

    def rotate(x):
        a, c = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return bf16(jnp.concatenate([a * cos - c * sin, c * cos + a * sin], axis=-1))

    x = bf16(p["embed"])[ids]
    for l in p["layers"]:
        h = norm(x, l["n1"])
        q, k, v = ((h @ bf16(l[name])).reshape(b, t, -1, head) for name in "qkv")
        x = x + attention(rotate(q), rotate(k), v).reshape(b, t, -1) @ bf16(l["o"])
        h = norm(x, l["n2"])
        x = x + (jax.nn.silu(h @ bf16(l["gate"])) * (h @ bf16(l["up"]))) @ bf16(l["down"])
    return norm(x, p["norm"]) @ bf16(p["embed"]).T


def step_of(kind, s):
    forward = {"gpt2": gpt2, "llama": llama}[kind]

    def loss_of(p, ids):
        logits = forward(p, ids, s)[:, :-1].astype(jnp.float32)
        labels = ids[:, 1:]
        picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()

    def step(p, m, v, count, ids, rate):
        loss, g = jax.value_and_grad(loss_of)(p, ids)
        scale = jnp.minimum(1.0, 1.0 / (jnp.sqrt(sum((x * x).sum() for x in jax.tree.leaves(g))) + 1e-6))
        g = jax.tree.map(lambda x: x * scale, g)
        count = count + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        c1, c2 = 1 - 0.9**count, 1 - 0.999**count
        p = jax.tree.map(lambda p, m, v: p - rate * (m / c1 / (jnp.sqrt(v / c2) + 1e-8) + 0.01 * p), p, m, v)
        return p, m, v, count, loss

    return step


def lower(kind, s, path):
    pretend_to_have_cudnn()
    p = parameters(kind, s)
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    ids = jax.ShapeDtypeStruct((s["batch"], s["tokens"]), jnp.int32)
    traced = jax.jit(step_of(kind, s), donate_argnums=(0, 1, 2, 3)).trace(p, p, p, scalar, ids, scalar)
    lowered = traced.lower(lowering_platforms=("cuda",))
    path.write_bytes(lowered.compiler_ir(dialect="hlo").as_serialized_hlo_module_proto())


def run(command):
    print("$", " ".join(map(str, command)), file=sys.stderr)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"beside_jax: {done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def own(kind, s, target, directory, release):
    overrides = dict(vocab_size=s["words"])
    if kind == "gpt2":
        overrides |= dict(n_layer=s["layers"], n_embd=s["width"], n_head=s["heads"], n_positions=s["tokens"])
        overrides |= dict(embd_pdrop=0, attn_pdrop=0, resid_pdrop=0)
    else:
        overrides |= dict(num_hidden_layers=s["layers"], hidden_size=s["width"], num_attention_heads=s["heads"])
        overrides |= dict(num_key_value_heads=s["kv_heads"], intermediate_size=s["inner"], head_dim=s["width"] // s["heads"])
        overrides |= dict(max_position_embeddings=s["tokens"], rope_theta=500000.0, tie_word_embeddings="true")
    flags = ["--model_type", kind, "--config_overrides", ",".join(f"{key}={value}" for key, value in overrides.items())]
    flags += ["--tokenizer_name", ROOT / "tests/data/gpt2", "--block_size", s["tokens"], "--per_device_train_batch_size", s["batch"]]
    flags += ["--weight_decay", "0.01", "--max_grad_norm", "1", "--bf16", "--device", "cuda", "--target", target, "--kernels", "--json"]
    graphs = run([release / "xtrain", "compile", "clm", *map(str, flags), "--cache_dir", str(directory / "cache")])["graphs"]
    return next(graph for graph in graphs if graph["graph"].startswith("train "))


def side_by_side(title, ours, theirs):
    print(f"\n{title:34}{'xtrain':>14}{'JAX':>14}")

    def row(name, a, b):
        print(f"  {name:32}{a:>14}{b:>14}")

    def work(name, a, b):
        a, b = a or {}, b or {}
        for what, scale, unit in [("kernels", 1, ""), ("bytes", 2**30, " GiB"), ("ms", 1, " ms")]:
            shown = [f"{x.get(what, 0) / scale:.{0 if what == 'kernels' else 2}f}{unit}" for x in (a, b)]
            row(f"{name}, {what}" if what != "ms" else f"{name}, time", *shown)

    for name in dict.fromkeys([*ours["classes"], *theirs["classes"]]):
        work(name, ours["classes"].get(name), theirs["classes"].get(name))
    work("all", ours["total"], theirs["total"])
    found = [{one["what"]: one for one in report["to_look_at"]} for report in (ours, theirs)]
    for name in dict.fromkeys([*found[0], *found[1]]):
        work(name.strip(), found[0].get(name), found[1].get(name))
    for name, of in [("temporaries", "temporary_bytes"), ("peak", "peak_bytes")]:
        row(name, *(f"{report['memory'][of] / 2**30:.2f} GiB" for report in (ours, theirs)))
    for name in ("optimistic_ms", "honest_ms", "share_of_peak"):
        row(name, *(f"{report['bounds'][name]:.3f}" for report in (ours, theirs)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--target", default="h100")
    parser.add_argument("--model", default="gpt2", choices=[*MODELS, "all"])
    parser.add_argument("--batch", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--lower_only", action="store_true", help="write the modules and stop")
    parser.add_argument("--release", type=pathlib.Path, default=ROOT / "target/release")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    for kind in MODELS if options.model == "all" else [options.model]:
        given = {name: getattr(options, name) for name in ("batch", "tokens", "layers")}
        sizes = MODELS[kind] | {name: value for name, value in given.items() if value}
        module = options.directory / f"jax-{kind}.pb"
        lower(kind, sizes, module)
        if options.lower_only:
            print(module)
            continue
        if "XTRAIN_CUDA_PLUGIN" not in os.environ:
            sys.exit("beside_jax: XTRAIN_CUDA_PLUGIN names no plugin; tests/cuda_wheels DIR fetches one")
        theirs = run([options.release / "examples/foreign_module", module, options.target, "--json"])
        ours = own(kind, sizes, options.target, options.directory, options.release)
        for name, report in [("jax", theirs), ("xtrain", ours)]:
            (options.directory / f"{name}-{kind}.json").write_text(json.dumps(report, indent=1))
        side_by_side(f"{kind}, {sizes['batch']} x {sizes['tokens']}, {options.target}", ours, theirs)


if __name__ == "__main__":
    main()
