"""How long a new user waits: fresh processes, with an empty cache of compiled programs and with a warm one.

python benchmarks/first_fit.py [--repeats 3] [--statsmodels PYTHON] [--output FILE]

The ten lines of README up to the printed summary and certificate, `provi fit data.csv --report`, `provi --version`,
`--help` and a TAB; beside them the same regression by statsmodels (of another Python, where it is not in this one), by
scikit-learn, and by NumPyro's AutoMultivariateNormal with 2,000 steps of Adam. Wall seconds, the least of `--repeats`.

Then, measured inside fresh processes: what a target and its first fit take beyond `import provi` (and `import
numpyro`), of a logistic regression and of two black boxes, in wall and in processor seconds, and how many programs were
compiled or read. What is imported only now, as it is needed, is a part of it, and how long that took is told apart.
`--beyond` measures these alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provi_lab.bench.record import make_record

TEN_LINES = """
import provi
from provi.data import breast_cancer

data = breast_cancer()
target = provi.targets.LogisticRegression(data.features[:, :6], data.response, names=data.names[:6])
fit = provi.fit(target, tol=0.01, seed=0)
print(f"ELBO {fit.elbo.value:.1f} nats; {fit.message}")
print(fit.posterior.summary())
print(fit.certificate)
"""

PROCESS = """
import provi
from provi.data import breast_cancer

data = breast_cancer()
target = provi.targets.GaussianProcess(data.features[:200, :3], data.response[:200])
fit = provi.fit(target)
print(fit.posterior.summary())
print(fit.certificate)
"""

STATSMODELS = """
import numpy as np, statsmodels.api as sm
table = np.load("data.npz")
print(sm.Logit(table["y"], sm.add_constant(table["x"])).fit(disp=0).summary())
"""

SCIKIT_LEARN = """
import numpy as np
from sklearn.linear_model import LogisticRegression
table = np.load("data.npz")
print(LogisticRegression().fit(table["x"], table["y"]).coef_)
"""

NUMPYRO = """
import jax, numpy as np, numpyro, numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal
table = np.load("data.npz")
def model(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([6]).to_event(1))
    numpyro.sample("y", dist.BernoulliLogits(x @ w), obs=y)
guide = AutoMultivariateNormal(model)
found = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO()).run(
    jax.random.key(0), 2000, table["x"], table["y"], progress_bar=False)
print(guide.get_posterior(found.params).mean)
"""


BEYOND = """
import builtins, importlib, json, sys, time, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp, numpy as np
import provi
what, programs = sys.argv[1], []
if what == "numpyro":
    import numpyro, numpyro.distributions as dist

def count(name, *_, **__):
    if name.endswith("backend_compile_duration"):
        programs.append(name)

importing = {"depth": 0, "wall": 0.0, "cpu": 0.0}

def timed(function):
    def call(*args, **kwargs):
        before = time.perf_counter(), time.process_time()
        importing["depth"] += 1
        try:
            return function(*args, **kwargs)
        finally:
            importing["depth"] -= 1
            if importing["depth"] == 0:  # the outermost: a module imports others
                importing["wall"] += time.perf_counter() - before[0]
                importing["cpu"] += time.process_time() - before[1]
    return call

jax.monitoring.register_event_duration_secs_listener(count)
rng = np.random.default_rng(0)
x = rng.normal(size=(40, 10 if what == "density" else 3))
y = x @ np.resize([1.0, -1.0, 0.5], x.shape[1]) + rng.standard_t(4, size=40)

def density(w):
    eta = x @ w
    return jnp.sum((y > 0) * eta - jnp.logaddexp(0.0, eta)) - jnp.sum(w**2) / 2

def robust(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    s, nu = numpyro.sample("s", dist.HalfNormal(1)), numpyro.sample("nu", dist.Gamma(2, 0.1))
    numpyro.sample("y", dist.StudentT(nu, x @ b, s), obs=y)

def regression():
    from provi.data import breast_cancer
    data = breast_cancer()
    return provi.targets.LogisticRegression(data.features[:, :6], data.response)

make = {"logistic": regression, "density": lambda: provi.targets.LogDensity(density, 10),
        "numpyro": lambda: provi.from_numpyro(robust, x, y)}[what]
builtins.__import__, importlib.import_module = timed(builtins.__import__), timed(importlib.import_module)
clocks = [(time.perf_counter(), time.process_time())]
for step in (make, lambda: provi.fit(target, seed=0, progress=False)):
    target = step()
    clocks.append((time.perf_counter(), time.process_time()))
names = ("target", "fit")
found = {f"{n}_{kind}": b[k] - a[k] for k, kind in ((0, "wall"), (1, "cpu"))
         for n, a, b in zip(names, clocks, clocks[1:])}
found |= {f"imports_{kind}": importing[kind] for kind in ("wall", "cpu")}
print(json.dumps({**found, "programs": len(programs)}))
"""


def beyond(what, cache, repeats, empty):
    """Of fresh processes the one whose target and fit took the least processor time."""
    runs = []
    for repeat in range(repeats + (not empty)):
        place = cache / (f"beyond-{what}-{repeat}" if empty else f"beyond-{what}-warm")
        kept = {**os.environ, "XDG_CACHE_HOME": str(place), "JAX_PLATFORMS": "cpu"}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        done = subprocess.run(
            [sys.executable, "-c", BEYOND, what], env=kept, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        if empty or repeat > 0:  # the first run fills the cache
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    best = min(runs, key=lambda run: run["target_cpu"] + run["fit_cpu"])
    return {name: round(value, 3) for name, value in best.items()}


def seconds(command, folder, cache, repeats, empty=False, **environment):
    """The least wall time of some runs in fresh processes; with `empty`, each has an empty cache."""
    best = float("inf")
    for repeat in range(repeats):
        place = cache / f"empty-{time.monotonic_ns()}" if empty else cache / "warm"
        kept = {**os.environ, "XDG_CACHE_HOME": str(place), "JAX_PLATFORMS": "cpu", **environment}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs has its byte code; here the first run leaves it
        started = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)
        spent = time.perf_counter() - started
        if done.returncode not in (0, 1) or "Traceback" in done.stderr:
            raise RuntimeError(f"{command}: {done.stderr[-2000:]}")
        if empty or repeat > 0 or repeats == 1:  # the first run fills the cache
            best = min(best, spent)
    return round(best, 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--statsmodels", default=sys.executable, help="a Python that has statsmodels")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--beyond", action="store_true", help="only what is measured inside the processes")
    chosen = parser.parse_args()
    provi = str(Path(sys.executable).with_name("provi"))
    python, rows, inside = sys.executable, [], []
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name), Path(name) / "cache"
        made = (
            "import numpy as np; from provi.data import breast_cancer; d = breast_cancer(); x = d.features[:, :6];"
            "np.savez('data.npz', x=x, y=d.response); names = [n.replace(' ', '_') for n in d.names[:6]];"
            "np.savetxt('data.csv', np.column_stack([x, d.response]), delimiter=',', comments='',"
            "header=','.join([*names, 'outcome']))"
        )
        subprocess.run([python, "-c", made], cwd=folder, check=True)
        report = [provi, "fit", "data.csv", "--target", "outcome", "--model", "logistic", "--report", "report.html"]
        complete = {"_PROVI_COMPLETE": "complete_bash", "COMP_WORDS": "provi fi", "COMP_CWORD": "1"}
        for label, command, environment in (
            ("import jax", [python, "-c", "import jax"], {}),
            ("import provi", [python, "-c", "import jax, provi"], {}),
            ("ten lines, summary and certificate", [python, "-c", TEN_LINES], {}),
            ("Gaussian process, 200 rows", [python, "-c", PROCESS], {}),
            ("provi fit data.csv --report", report, {}),
            ("provi --version", [provi, "--version"], {}),
            ("provi --help", [provi, "--help"], {}),
            ("provi fi<TAB>", [provi], complete),
            ("scikit-learn: LogisticRegression", [python, "-c", SCIKIT_LEARN], {}),
            ("statsmodels: Logit summary", [chosen.statsmodels, "-c", STATSMODELS], {}),
            ("NumPyro: AutoMultivariateNormal", [python, "-c", NUMPYRO], {}),
        ):
            if chosen.beyond:
                break
            try:
                cold = seconds(command, folder, cache, chosen.repeats, empty=True, **environment)
                warm = seconds(command, folder, cache, chosen.repeats + 1, **environment)
            except (RuntimeError, OSError) as error:
                print(f"{label:40} not measured: {str(error).splitlines()[-1]}")
                continue
            rows.append({"what": label, "empty_cache": cold, "warm_cache": warm})
            print(f"{label:40} {cold:7.2f} s with an empty cache {warm:7.2f} s with a warm one")
        for label, what in (
            ("logistic regression, 569 x 6", "logistic"),
            ("black box: LogDensity, 10 parameters, 40 data", "density"),
            ("black box: robust regression in NumPyro", "numpyro"),
        ):
            for state in ("empty", "filled"):
                found = beyond(what, cache, chosen.repeats, state == "empty")
                inside.append({"what": label, "cache": state, **found})
                print(
                    f"{label:46} {state:6} target {found['target_wall']:5.2f} s, fit {found['fit_wall']:5.2f} s "
                    f"(processor {found['target_cpu']:.2f}, {found['fit_cpu']:.2f}), of it imports "
                    f"{found['imports_wall']:.2f} s ({found['imports_cpu']:.2f}), {found['programs']} programs"
                )
    record = make_record("first-fit", rows) | {"cores": os.cpu_count(), "beyond_imports": inside}
    if chosen.output:
        chosen.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
