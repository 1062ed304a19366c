"""A step of a Bayesian LeNet-5 on the CPU: ours beside the plain JAX that a good user would write.

    PROVI_DATA=... python benchmarks/network_cpu.py [--random] [--steps 430] [--repeats 3] [--record]

Batches of 128 images, one sigma a weight, one draw of the weights a step, float32. *Plain* is Bayes by Backprop with
Adam by optax, one compiled step with donated buffers called from a Python loop, convolutions once by XLA and once as
matrix products; with *our network* it has the LeNet-5 of `provi.nets`, whose products are fewer and wider, so that
what differs is the loop. *ProVI* is a call of `provi.runtime.minimise_sum`: its records and set-up are counted, and
for PacedMISSO and MISSO the row of the table that a step writes. MISSO's first pass, in which it builds its table,
is measured by a run of one step and taken off. Everything is compiled beforehand; the methods take turns, the least of
each method's repetitions counts, and seconds are for an epoch of 430 steps. `--random` needs no data: the speed is the
same. `--record` writes benchmarks/results.
"""

import argparse
import functools
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import provi
from provi.algorithms import MISSO, PacedMISSO, adam
from provi.algorithms.incremental.network_surrogate import network_surrogate
from provi.nets import LeNet5
from provi.targets import BayesianNetwork
from provi_lab.bench.record import RESULTS, make_record

EPOCH, BATCH, RATE, START_SD = 430, 128, 1e-3, 0.05
RECORDS = 5  # an epoch's share of the 100 records of a run of 20 epochs
RULE = optax.scale_by_adam()
SHAPES = ((5, 5, 1, 6), (6,), (5, 5, 6, 16), (16,), (400, 120), (120,), (120, 84), (84,), (84, 10), (10,))


def images(count: int, random: bool) -> tuple[np.ndarray, np.ndarray]:
    """Digits scaled to [0, 1], or noise of their shape."""
    if random:
        rng = np.random.default_rng(0)
        return rng.random((count, 28, 28), np.float32), rng.integers(0, 10, count).astype(np.int32)
    data = provi.data.load("mnist").arrays
    if count > len(data["X_train"]):
        raise SystemExit(f"--steps {count // BATCH} needs {count} images, more than MNIST has: use fewer, or --random.")
    return data["X_train"][:count].astype(np.float32) / 255, data["y_train"][:count].astype(np.int32)


def by_xla(x, kernel, padding):
    """The convolution of a batch as XLA has it."""
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def by_products(x, kernel, padding):
    """The convolution of a batch as a matrix product with its patches."""
    size, _, into, out = kernel.shape
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    high, wide = x.shape[1] - size + 1, x.shape[2] - size + 1
    patches = [x[:, i : i + high, j : j + wide] for i in range(size) for j in range(size)]
    return jnp.concatenate(patches, axis=-1) @ kernel.reshape(size * size * into, out)


def pool(x):
    """The largest of each 2 x 2."""
    return x.reshape(x.shape[0], x.shape[1] // 2, 2, x.shape[2] // 2, 2, x.shape[3]).max((2, 4))


def lenet(convolve, weights, x):
    """The logits of a batch."""
    kernel1, bias1, kernel2, bias2, *dense = weights
    x = pool(jax.nn.relu(convolve(x[..., None], kernel1, 2) + bias1))
    x = pool(jax.nn.relu(convolve(x, kernel2, 0) + bias2)).reshape(x.shape[0], -1)
    for weight, bias in zip(dense[:-2:2], dense[1:-2:2], strict=True):
        x = jax.nn.relu(x @ weight + bias)
    return x @ dense[-2] + dense[-1]


def first_weights() -> list:
    """He-normal weights, biases of zero."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=s) * (len(s) > 1) * (2 / np.prod(s[:-1])) ** 0.5, jnp.float32) for s in SHAPES]


def plain_method(network, mean, x, y, steps):
    """A function that trains `network(weights, x)` for an epoch in plain JAX and returns the last loss."""
    rng = np.random.default_rng(0)
    log_sd = [jnp.full_like(m, np.log(START_SD)) for m in mean]
    x, y, count = jnp.asarray(x), jnp.asarray(y), len(x)
    optimiser = optax.adam(RATE)

    def loss(parameters, key, x, y):
        mean, log_sd = parameters
        keys = jax.random.split(key, len(mean))
        weights = [m + jnp.exp(s) * jax.random.normal(k, m.shape) for m, s, k in zip(mean, log_sd, keys, strict=True)]
        nll = optax.softmax_cross_entropy_with_integer_labels(network(weights, x), y).mean()
        kl = sum(jnp.sum((jnp.exp(2 * s) + m**2 - 1) / 2 - s) for m, s in zip(mean, log_sd, strict=True))
        return nll + kl / count

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters, state, number, rows, x, y):
        key = jax.random.fold_in(jax.random.key(0), number)
        value, gradient = jax.value_and_grad(loss)(parameters, key, x[rows], y[rows])
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(parameters, updates), state, value

    carry, visited = ((mean, log_sd), optimiser.init((mean, log_sd))), 0

    def epoch():
        nonlocal carry, visited
        order = rng.permutation(count).astype(np.int32)
        for k in range(steps):
            *carry, value = step(*carry, np.int32(visited + k), order[k * BATCH : (k + 1) * BATCH], x, y)
        visited += steps
        return float(value)

    return epoch


def our_method(surrogate, algorithm, steps):
    """A function that trains for an epoch with `minimise_sum` and returns the loss at its end."""

    def epoch():
        options = {"num_steps": steps, "num_records": RECORDS, "progress": False}
        run = provi.runtime.minimise_sum(surrogate, surrogate.start(START_SD), algorithm, seed=0, **options)
        assert run.num_steps == steps, run.message
        return -float(run.history["elbo"][-1]) if len(run.history) else np.nan

    return epoch


def timed(epoch) -> tuple[float, float, float]:
    """Wall and CPU seconds of a call, and what it returned."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = epoch()
    return time.perf_counter() - wall, time.process_time() - cpu, value


def measure(methods: dict, repeats: int) -> dict[str, tuple[float, float, float]]:
    """The least wall and CPU seconds of each method's calls, taken in turn, and its last loss."""
    for name, epoch in methods.items():
        wall, cpu, _ = timed(epoch)
        print(f"{name}: first call, with compilation, {wall:.1f} s, {cpu:.1f} CPU s", file=sys.stderr, flush=True)
    found = {name: [] for name in methods}
    for _ in range(repeats):
        for name, epoch in methods.items():
            found[name].append(timed(epoch))
    return {name: (min(w for w, _, _ in f), min(c for _, c, _ in f), f[-1][2]) for name, f in found.items()}


def main() -> None:
    """Print a line a method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--steps", type=int, default=EPOCH)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    steps = arguments.steps
    x, y = images(BATCH * steps, arguments.random)
    network = LeNet5(jax.random.key(0))
    our_weights, structure = jax.tree.flatten(network)

    def our_network(weights, x):
        return jax.vmap(jax.tree.unflatten(structure, weights))(x)

    target = BayesianNetwork(network, x, y)
    surrogate = network_surrogate(target, posterior="weight", rate=0.01)
    ours = functools.partial(our_method, surrogate)
    misso = MISSO(1, num_draws=1)
    methods = {
        "plain JAX, XLA convolutions": plain_method(functools.partial(lenet, by_xla), first_weights(), x, y, steps),
        "plain JAX, matrix products": plain_method(functools.partial(lenet, by_products), first_weights(), x, y, steps),
        "plain JAX, our network": plain_method(our_network, our_weights, x, y, steps),
        "ProVI, Adam": ours(adam(RATE), steps),
        "ProVI, PacedMISSO": ours(PacedMISSO(RULE, RATE), steps),
        "ProVI, PacedMISSO without table": ours(PacedMISSO(RULE, RATE, table=False), steps),
        "ProVI, MISSO": ours(misso, steps),
        "ProVI, MISSO's first pass": ours(misso, 1),
    }
    if arguments.methods:
        methods = {name: epoch for name, epoch in methods.items() if any(part in name for part in arguments.methods)}
    times = measure(methods, arguments.repeats)
    if "ProVI, MISSO" in times:
        whole, first = times["ProVI, MISSO"], times["ProVI, MISSO's first pass"]
        times["ProVI, MISSO"] = (whole[0] - first[0], whole[1] - first[1], whole[2])
    base = times.get("plain JAX, matrix products")
    rows = []
    for name, (wall, cpu, value) in times.items():
        seconds = [second * EPOCH / steps for second in (wall, cpu)]
        row = {"method": name, "wall_seconds_an_epoch": seconds[0], "cpu_seconds_an_epoch": seconds[1]}
        if base:
            row |= {"wall_ratio": wall / base[0], "cpu_ratio": cpu / base[1]}
        row |= {"loss": value if np.isfinite(value) else None}
        rows.append(row)
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{v!s:34}" for k, v in row.items()), flush=True)
    if arguments.record:
        record = make_record("network-cpu", rows)
        record |= {"command": " ".join(["python benchmarks/network_cpu.py", *sys.argv[1:]]), "device": "cpu"}
        (RESULTS / f"{record['date']}-network-cpu.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
