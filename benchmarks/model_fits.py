"""What fits of NumPyro, PyMC and Stan models cost one after another in a process: who waits for the compiler again?

python benchmarks/model_fits.py [--output FILE]

A robust regression (five parameters, 40 rows); the same model translated anew; with other data; another model with as
many parameters. A process for each package and each state of the cache of compiled programs, empty and filled by the
process before. Processor seconds of `provi.fit` alone, and programs that XLA compiled or that were read from the cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from provi_lab.bench.record import make_record

MODELS = '''
import sys, time, warnings
warnings.simplefilter("ignore")
import jax, numpy as np
import provi

package, counted = sys.argv[1], []
rng = np.random.default_rng(0)
X = rng.normal(size=(40, 3))
y = X @ [1.0, -1.0, 0.5] + rng.standard_t(4, size=40)


def numpyro_model(other, y):
    import numpyro, numpyro.distributions as dist

    def first(X, y):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
        s, nu = numpyro.sample("s", dist.HalfNormal(1)), numpyro.sample("nu", dist.Gamma(2, 0.1))
        numpyro.sample("y", dist.StudentT(nu, X @ b, s), obs=y)

    def second(X, y):
        b = numpyro.sample("b", dist.Laplace(0, 1).expand([3]).to_event(1))
        s, nu = numpyro.sample("s", dist.Exponential(1)), numpyro.sample("nu", dist.Gamma(3, 0.2))
        numpyro.sample("y", dist.StudentT(nu, X @ b, s), obs=y)

    return provi.from_numpyro(second if other else first, X, y)


def pymc_model(other, y):
    import pymc as pm

    with pm.Model() as model:
        b = (pm.Laplace if other else pm.Normal)("b", 0, 1, shape=3)
        s = pm.Exponential("s", 1) if other else pm.HalfNormal("s", 1)
        nu = pm.Gamma("nu", 3, 0.2) if other else pm.Gamma("nu", 2, 0.1)
        pm.StudentT("y", nu, pm.math.dot(X, b), sigma=s, observed=y)
    return provi.from_pymc(model)


def stan_model(other, y):
    priors = ("b ~ normal(0, 1); s ~ normal(0, 1); nu ~ gamma(2, 0.1);",
              "b ~ double_exponential(0, 1); s ~ exponential(1); nu ~ gamma(3, 0.2);")
    code = """data { int n; matrix[n, 3] X; vector[n] y; }
    parameters { vector[3] b; real<lower=0> s; real<lower=0> nu; }
    model { PRIORS y ~ student_t(nu, X * b, s); }""".replace("PRIORS", priors[other])
    return provi.from_stan(code, dict(n=40, X=X, y=y))


def count(name, *_, **__):
    if name.endswith("backend_compile_duration"):
        counted.append(name)


make = {"numpyro": numpyro_model, "pymc": pymc_model, "stan": stan_model}[package]
make(0, y), make(1, y)  # PyTensor's and Stan's own work, and their imports
jax.monitoring.register_event_duration_secs_listener(count)
for label, other, data in (("first", 0, y), ("again", 0, y), ("other data", 0, y + 1), ("another model", 1, y)):
    target = make(other, data)
    counted.clear()
    started = time.process_time()
    provi.fit(target, progress=False)
    print("row", label, round(time.process_time() - started, 2), len(counted), sep="\\t")
'''


def rows_of(package: str, cache: Path) -> list[dict]:
    """Of one fresh process."""
    # Stan's libraries are compiled beforehand, and are kept in the user's own folder: half a minute each.
    kept = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    kept["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"
    done = subprocess.run(
        [sys.executable, "-c", MODELS, package], env=kept, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("row\t")]
    return [{"fit": label, "seconds": float(spent), "programs": int(count)} for label, spent, count in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    chosen, rows = parser.parse_args(), []
    with tempfile.TemporaryDirectory() as name:
        for package in ("numpyro", "pymc", "stan"):
            for state in ("empty", "filled"):
                for row in rows_of(package, Path(name) / package):
                    rows.append({"package": package, "cache": state, **row})
                    print(f"{package:8} {state:7} {row['fit']:14} {row['seconds']:6.2f} s {row['programs']:3} programs")
    record = make_record("model-fits", rows) | {"cores": os.cpu_count()}
    if chosen.output:
        chosen.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
