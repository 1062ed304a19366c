"""What a visit of MISO costs when the number of terms grows: it should not grow with it.

    python benchmarks/misso_visits.py

One term a visit, uniform draws, four numbers a term. The copy of the table that a call from Python makes is measured
by a call of ten visits, and taken off the time of a call of 40,010.
"""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms import MISO, Surrogate

SIZES, FEW, MANY, WIDTH = (10**3, 10**5, 10**6), 10, 40_010, 4


def build(parameters, row, summary):
    del parameters, summary
    return row


def minimise(mean, parameters, constraint):
    del parameters, constraint
    return mean


@eqx.filter_jit
def visits(algorithm, surrogate, state, key, count):
    def one(i, state):
        now = jax.random.fold_in(key, i)
        return algorithm.visit(now, surrogate, state, jax.random.randint(now, (1,), 0, surrogate.num_terms), 1)

    return jax.lax.fori_loop(0, count, one, state)


def best_of_three(*arguments) -> float:
    jax.block_until_ready(visits(*arguments))
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(visits(*arguments))
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    algorithm = MISO(sampling=1, refresh_every=10**9)
    for size in SIZES:
        table = np.random.default_rng(0).normal(size=(size, WIDTH))
        surrogate = Surrogate(jnp.asarray(table), build=build, minimise=minimise)
        state = algorithm.begin(jax.random.key(0), surrogate, jnp.zeros(WIDTH))
        few, many = (
            best_of_three(algorithm, surrogate, state, jax.random.key(1), jnp.asarray(count)) for count in (FEW, MANY)
        )
        print(f"n = {size:>7}: {1e6 * (many - few) / (MANY - FEW):.1f} us a visit, {1e3 * few:.2f} ms a call")


if __name__ == "__main__":
    main()
