"""Unmodified JAX on xtrain's CPU plugin. Every number is checked against numpy or against JAX's own CPU backend.

Run by run_jax.sh, which installs jax; the argument is the plugin's path. Prints one PASS line per check; exits 1 at the first
that fails.
"""

import functools
import sys
import time

import jax
import jax._src.xla_bridge as xla_bridge
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

xla_bridge.register_plugin("xtrain", library_path=sys.argv[1], options={"cpu_device_count": 4})
jax.config.update("jax_platforms", "xtrain,cpu")

devices = jax.devices("xtrain")
reference = jax.devices("cpu")[0]


def passed(what):
    print("PASS", what, flush=True)


def close(got, want, tolerance, what):
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=tolerance, atol=tolerance, err_msg=what)


def clients():
    # The plugin calls its platform cpu, which it is; what tells it from JAX's own is the client.
    assert len(devices) == 4 and jax.devices() == devices, (devices, jax.devices())
    assert reference.client is not devices[0].client
    assert devices[0].memory_stats()["bytes_in_use"] >= 0
    passed(f"jax {jax.__version__} finds 4 devices")


def mlp_data():
    random = np.random.default_rng(0)
    sizes = [32, 64, 64, 8]
    weights = [(random.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32) for a, b in zip(sizes, sizes[1:])]
    return weights, random.normal(size=(128, 32)).astype(np.float32), random.normal(size=(128, 8)).astype(np.float32)


def loss_of(weights, x, y):
    for w in weights[:-1]:
        x = jnp.tanh(x @ w)
    return jnp.mean((x @ weights[-1] - y) ** 2)


def momentum_step(weights, moments, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
    moments = [0.9 * m + g for m, g in zip(moments, gradients)]
    return [w - 0.05 * m for w, m in zip(weights, moments)], moments, loss


def train(device, steps=50):
    weights, x, y = mlp_data()
    put = functools.partial(jax.device_put, device=device)
    weights, x, y = [put(w) for w in weights], put(x), put(y)
    moments = [put(np.zeros(w.shape, np.float32)) for w in weights]
    step = jax.jit(momentum_step, donate_argnums=(0, 1))
    losses = []
    for _ in range(steps):
        before = weights[0]
        weights, moments, loss = step(weights, moments, x, y)
        losses.append(loss)
        assert before.is_deleted(), "a donated buffer is still there"
    return np.array([float(loss) for loss in losses]), [np.asarray(w) for w in weights]


def training():
    losses, weights = train(devices[0])
    own_losses, own_weights = train(reference)
    assert losses[-1] < 0.7 * losses[0], losses
    close(losses, own_losses, 1e-5, "losses")
    for got, want in zip(weights, own_weights):
        close(got, want, 1e-5, "weights")
    passed(f"training loop with donation: 50 losses and weights as JAX's own CPU backend, {losses[0]:.4f} -> {losses[-1]:.4f}")

    x = jax.device_put(np.ones(4, np.float32), devices[0])
    double = jax.jit(lambda a: a * 2, donate_argnums=0)
    double(x)
    try:
        np.asarray(x)
        raise SystemExit("a donated buffer could be read")
    except RuntimeError as error:
        assert "delete" in str(error), error
    passed("a donated buffer cannot be read")


def scan():
    def body(carry, x):
        carry = 0.5 * carry + x
        return carry, jnp.sum(carry)

    xs = np.arange(40, dtype=np.float32).reshape(10, 4)
    carry, sums = jax.jit(lambda xs: jax.lax.scan(body, jnp.zeros(4), xs))(xs)
    want, want_sums = np.zeros(4), []
    for x in xs:
        want = 0.5 * want + x
        want_sums.append(want.sum())
    close(carry, want, 1e-6, "carry")
    close(sums, want_sums, 1e-6, "sums")
    passed("scan")


def pmap():
    data = np.arange(4 * 6, dtype=np.float32).reshape(4, 6)
    total = jax.pmap(lambda x: jax.lax.psum(x, "d"), axis_name="d", devices=devices)(data)
    close(total, np.tile(data.sum(0), (4, 1)), 0, "psum")

    weights, x, y = mlp_data()

    def step(weights, x, y):
        loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
        gradients = jax.lax.pmean(gradients, "d")
        return [w - 0.05 * g for w, g in zip(weights, gradients)], jax.lax.pmean(loss, "d")

    parallel = jax.pmap(step, axis_name="d", in_axes=(None, 0, 0), devices=devices)
    got, loss = parallel(weights, x.reshape(4, 32, 32), y.reshape(4, 32, 8))
    own, own_moments, own_loss = jax.jit(momentum_step)(
        *jax.device_put((weights, [np.zeros_like(w) for w in weights], x, y), devices[0]))
    close(loss[3], own_loss, 1e-6, "loss over 4 devices")
    for a, b in zip(got, own):
        close(a[2], b, 1e-6, "weights over 4 devices")
    passed("pmap over 4 devices: psum, and a data-parallel step equal to one device")


def shard_map():
    mesh = Mesh(np.array(devices), ("d",))
    mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("d"))
    data = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
    blocks = data.reshape(4, 2, 4)

    ring = jax.jit(mapped(lambda x: jax.lax.ppermute(x, "d", [(i, (i + 1) % 4) for i in range(4)]), out_specs=P("d")))
    close(ring(data), np.roll(blocks, 1, axis=0).reshape(8, 4), 0, "ppermute")
    gathered = jax.jit(mapped(lambda x: jax.lax.all_gather(x, "d", tiled=True)[None], out_specs=P("d")))
    close(gathered(data), np.tile(data, (4, 1, 1)), 0, "all_gather")
    summed = jax.jit(mapped(lambda x: jax.lax.psum(x, "d"), out_specs=P()))
    close(summed(data), blocks.sum(0), 1e-6, "psum")
    square = np.random.default_rng(2).normal(size=(16, 4)).astype(np.float32)
    scattered = jax.jit(mapped(lambda x: jax.lax.psum_scatter(x, "d", tiled=True), out_specs=P("d")))
    close(scattered(square), square.reshape(4, 4, 4).sum(0), 1e-6, "psum_scatter")
    exchanged = jax.jit(mapped(lambda x: jax.lax.all_to_all(x, "d", 1, 0, tiled=True), out_specs=P("d")))
    # Block i of rows swaps its column j for row block j of column i.
    want = np.concatenate([np.concatenate([square[4 * j:4 * j + 4, i:i + 1] for j in range(4)]) for i in range(4)])
    close(exchanged(square), want, 0, "all_to_all")
    passed("shard_map: ppermute, all_gather, psum, psum_scatter, all_to_all")

    grid = Mesh(np.array(devices).reshape(2, 2), ("x", "y"))
    a = np.random.default_rng(3).normal(size=(64, 32)).astype(np.float32)
    b = np.random.default_rng(4).normal(size=(32, 48)).astype(np.float32)
    product = jax.jit(jnp.matmul, out_shardings=NamedSharding(grid, P("x", "y")))(
        jax.device_put(a, NamedSharding(grid, P("x", "y"))), jax.device_put(b, NamedSharding(grid, P("y", None))))
    close(product, a.astype(np.float64) @ b, 1e-4, "sharded matmul")
    passed("2x2 sharded matmul through Shardy")


def types():
    x = np.random.default_rng(5).normal(size=(64, 64)).astype(np.float32)
    low = jax.device_put(x, devices[0]).astype(jnp.bfloat16)
    assert np.array_equal(np.asarray(low), x.astype(jnp.bfloat16))
    product = jax.jit(lambda a: jnp.matmul(a, a, preferred_element_type=jnp.float32))(low)
    exact = np.asarray(low).astype(np.float64) @ np.asarray(low).astype(np.float64)
    close(product, exact, 1e-4, "bf16 product in f32")  # products of bf16 are exact in f32, sums of 64 are not
    for dtype in (np.float16, np.int8, np.uint8, np.int32, np.bool_, np.complex64, jnp.float8_e4m3fn, jnp.int4):
        values = (np.arange(12) % 5).astype(dtype).reshape(3, 4)
        assert np.array_equal(np.asarray(jax.device_put(values, devices[1])), values), dtype
    gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w).astype(jnp.float32)))(low)
    assert gradient.dtype == jnp.bfloat16 and np.isfinite(np.asarray(gradient, np.float32)).all()
    passed("bf16 training arithmetic, round trips of 9 types")


def serialize():
    from jax.experimental import serialize_executable

    weights, x, y = mlp_data()
    moments = [np.zeros_like(w) for w in weights]
    arguments = jax.device_put((weights, moments, x, y), devices[0])
    compiled = jax.jit(momentum_step).lower(*arguments).compile()
    payload, in_tree, out_tree = serialize_executable.serialize(compiled)
    loaded = serialize_executable.deserialize_and_load(payload, in_tree, out_tree, execution_devices=[devices[0]])
    for a, b in zip(jax.tree.leaves(compiled(*arguments)), jax.tree.leaves(loaded(*arguments))):
        assert np.array_equal(np.asarray(a), np.asarray(b)), "a loaded executable gives other bits"
    try:
        serialize_executable.deserialize_and_load(payload[: len(payload) // 2], in_tree, out_tree)
        raise SystemExit("half an executable could be loaded")
    except Exception:  # unpickling fails, or the plugin refuses: either is an error, not a crash
        pass
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    assert cost["flops"] > 3 * 2 * 128 * (32 * 64 + 64 * 64 + 64 * 8) * 0.9, cost["flops"]
    assert memory.argument_size_in_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(arguments))
    assert "HloModule" in compiled.as_text()
    passed("serialize and load bit for bit, cost and memory analysis, optimized text")


def misuse():
    compiled = jax.jit(lambda a: a + 1).lower(jnp.ones((4, 4))).compile()
    for wrong in (jnp.ones((2, 8)), jnp.ones((4, 4), jnp.int32)):
        try:
            compiled(wrong)
            raise SystemExit("a wrong argument was taken")
        except TypeError:
            pass
    moved = jax.device_put(jax.device_put(np.arange(5), devices[0]), devices[3])
    assert moved.devices() == {devices[3]} and np.array_equal(np.asarray(moved), np.arange(5))
    passed("copies between devices, wrong arguments refused")


def main():
    start = time.time()
    for check in (clients, training, scan, pmap, shard_map, types, serialize, misuse):
        check()
    print(f"ALL PASS in {time.time() - start:.1f} s", flush=True)


main()
