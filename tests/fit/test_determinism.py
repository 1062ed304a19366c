"""What docs/developer/determinism.md calls the same bits."""

import hashlib
import os
import subprocess
import sys
import threading

import jax.numpy as jnp
import numpy as np

import provi

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3))
Y = (X[:, 0] + RNG.normal(size=30) > 0).astype(float)

PROGRAM = """
import hashlib, sys
import numpy as np, jax.numpy as jnp, provi
rng = np.random.default_rng(0)
X = rng.normal(size=(30, 3)); y = (X[:, 0] + rng.normal(size=30) > 0).astype(float)
names = {f"c{k}" for k in range(20)}  # their order is that of the hash seed
fits = [provi.fit(provi.targets.LogisticRegression(X, y), seed=5)]
long = rng.normal(size=(20_000, 64))  # in two blocks, which threads share
fits.append(provi.fit(provi.targets.LogisticRegression(long, (long[:, 0] > 0).astype(float)), seed=5, tol=0.1))
fn = lambda p: -0.5 * jnp.sum(p["a"] ** 2) - jnp.sum(jnp.cosh(p["b"])) - p["a"][0] * p["b"][1]
fits.append(provi.fit(provi.targets.LogDensity(fn, {"b": np.zeros(2), "a": np.zeros(2)}), seed=5, budget=1000))
fits.append(provi.fit(fits[2].target, algorithm=provi.algorithms.ProxSGD(0.01), seed=5, budget=500))  # is compiled
digest = hashlib.sha256()
for fit in fits:
    for part in (float(fit.elbo), fit.posterior.mean, fit.posterior.covariance, fit.posterior.sample(5, 1)):
        digest.update(np.asarray(part).tobytes())
    digest.update(repr((fit.certificate.gap, [bound.value for bound in fit.certificate.bounds])).encode())
print(next(iter(names)), digest.hexdigest())
"""


LINEAR = provi.targets.LogisticRegression(X, Y)
# One target for all: each function of its own would be compiled again.
DENSITY = provi.targets.LogDensity(lambda z: -0.5 * jnp.sum(z**2) - jnp.sum(jnp.cosh(z)) - z[0] * z[1], 2)


def digest(fit) -> str:
    found = hashlib.sha256()
    for part in (float(fit.elbo), fit.posterior.mean, fit.posterior.covariance, fit.posterior.sample(5, 1)):
        found.update(np.asarray(part).tobytes())
    found.update(repr((fit.certificate.gap, [bound.value for bound in fit.certificate.bounds])).encode())
    return found.hexdigest()


def test_the_same_seed_twice_after_others_and_in_threads_gives_the_same_bits():
    jobs = {"linear": lambda: provi.fit(LINEAR, seed=5), "density": lambda: provi.fit(DENSITY, seed=5, budget=1000)}
    first = {name: digest(job()) for name, job in jobs.items()}
    assert digest(provi.fit(DENSITY, seed=6, budget=1000)) != first["density"]
    found: dict[str, str] = {}

    def work(name: str) -> None:
        found[name] = digest(jobs[name]())

    threads = [threading.Thread(target=work, args=(name,)) for name in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == first


def test_a_fit_neither_reads_nor_changes_global_random_states():
    np.random.seed(1)
    before, first = np.random.get_state()[1].tobytes(), digest(provi.fit(LINEAR, seed=5))
    assert np.random.get_state()[1].tobytes() == before
    np.random.seed(2)
    assert digest(provi.fit(LINEAR, seed=5)) == first


def test_other_processes_hash_seeds_threads_and_the_cache_of_programs_give_the_same_bits(tmp_path):
    """The first compiles, the second reads what the first has kept; names are in another order in each.

    The second has one core, hence one thread of XLA, and three of BLAS: small fits are not split, and sums over long
    tables are of one thread of BLAS a block.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    environment.pop("PROVI_COMPILATION_CACHE", None)
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    said = []
    core = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    for seed, threads, before in (("1", "1", ""), ("4", "3", core if hasattr(os, "sched_setaffinity") else "")):
        done = subprocess.run(
            [sys.executable, "-c", before + PROGRAM],
            env={**environment, "PYTHONHASHSEED": seed, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split())
    (first_name, first), (second_name, second) = said
    assert first_name != second_name, "these hash seeds must order the names differently"
    assert first == second
    assert any((tmp_path / "provi" / "compiled").rglob("*-cache"))
