"""How long a new user waits: fresh processes, with an empty cache of compiled programs and with a warm one.

python benchmarks/first_fit.py [--repeats 3] [--statsmodels PYTHON] [--output FILE]

The ten lines of README up to the printed summary and certificate, `provi fit data.csv --report`, `provi --version`,
`--help` and a TAB; beside them the same regression by statsmodels (of another Python, where it is not in this one), by
scikit-learn, and by NumPyro's AutoMultivariateNormal with 2,000 steps of Adam. Wall seconds, the least of `--repeats`.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    chosen = parser.parse_args()
    provi = str(Path(sys.executable).with_name("provi"))
    python, rows = sys.executable, []
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
            try:
                cold = seconds(command, folder, cache, chosen.repeats, empty=True, **environment)
                warm = seconds(command, folder, cache, chosen.repeats + 1, **environment)
            except (RuntimeError, OSError) as error:
                print(f"{label:40} not measured: {str(error).splitlines()[-1]}")
                continue
            rows.append({"what": label, "empty_cache": cold, "warm_cache": warm})
            print(f"{label:40} {cold:7.2f} s with an empty cache {warm:7.2f} s with a warm one")
    record = {
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "command": " ".join(["python", *sys.argv]),
        "rows": rows,
    }
    if chosen.output:
        chosen.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
