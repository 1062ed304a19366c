"""How well the suite's posteriors are approximated: default fit, `corrected()`, `family="auto"`, NumPyro's guides.

`python -m provi_lab.posteriors.table --out table.json`: one process a posterior with a time limit, what the file has is
skipped, and the file is written after each. `--page docs/posteriors.md` writes the page of what the file has.

Compared are all values of all latent sites, in the model's own space: the worst error of a mean in standard deviations
of the reference, and the worst ratio of standard deviations.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

REFERENCES = Path("benchmarks/results/posterior-references.json")
MEAN_ERROR, SD_ERROR = 0.1, 0.1
"""What counts as right: means within a tenth of a standard deviation, deviations within a tenth of themselves."""

_DRAWS, _GUIDE_STEPS = 40_000, 5000


def errors(draws: dict[str, np.ndarray], reference: dict[str, Any]) -> dict[str, Any]:
    """The worst error of a mean, in deviations, and the ratio of deviations that is farthest from one."""
    shifts, ratios = [], []
    for name, site in reference["sites"].items():
        mean, sd = np.ravel(site["mean"]), np.ravel(site["sd"])
        values = np.asarray(draws[name], float).reshape(len(draws[name]), -1)
        varies = sd > 1e-12
        shifts += list(np.abs(values.mean(0) - mean)[varies] / sd[varies])
        ratios += list(values.std(0)[varies] / sd[varies])
    shift, ratio = float(np.max(shifts)), float(ratios[int(np.argmax(np.abs(np.log(ratios))))])
    return {"mean_error": shift, "sd_ratio": ratio, "right": bool(shift <= MEAN_ERROR and abs(ratio - 1) <= SD_ERROR)}


def measure(name: str, reference: dict[str, Any], peers: bool) -> dict[str, Any]:
    """The row of one posterior."""
    import provi
    from provi_lab.posteriors.held_out import HELD_OUT
    from provi_lab.posteriors.suite import EVERY

    posterior = EVERY[name]
    target = provi.from_numpyro(posterior.model, *posterior.data())
    row: dict[str, Any] = {"kind": posterior.kind, "dim": target.dim, "reference": reference["how"]}
    row |= {"held_out": name in HELD_OUT, "where": f"{os.cpu_count()} cores, {_commit()}"}

    def add(column: str, make: Callable[[], tuple[Any, dict[str, Any]]]) -> Any:
        began = time.process_time()
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                found, more = make()
            row[column] = {**more, **errors(more.pop("draws"), reference)}
            row[column].pop("draws", None)
            row[column]["warned"] = bool(more["warned"] or any("k-hat" in str(w.message) for w in heard))
        except Exception as error:
            found, row[column] = (
                None,
                {"failed": f"{type(error).__name__}: {error}"[:300], "warned": True, "right": False},
            )
        row[column]["cpu_seconds"] = time.process_time() - began
        return found

    fit = add("default", lambda: _fitted(provi.fit(target, progress=False)))
    if fit is not None and fit.posterior.family.has_density:
        add("corrected", lambda: _corrected(fit))
    auto = add("auto", lambda: _fitted(provi.fit(target, family="auto", progress=False)))
    if auto is not None and auto.posterior.family.has_density:
        add("auto corrected", lambda: _corrected(auto))
    if peers:
        for guide in ("AutoMultivariateNormal", "AutoIAFNormal"):
            add(guide, lambda guide=guide: _guided(posterior, target, guide))
    return row


def _commit() -> str:
    """A digest of the library's own sources: rows of different code are told apart on a machine without git, too."""
    import provi

    digest = hashlib.sha256()
    for path in sorted(Path(str(provi.__file__)).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return f"sources {digest.hexdigest()[:12]}"


def _fitted(fit: Any) -> tuple[Any, dict[str, Any]]:
    notes = fit.posterior.summary().notes
    found = fit.posterior.latest_diagnosis
    return fit, {
        "family": fit.posterior.family.scale,
        "elbo": fit.elbo.value,
        "k_hat": None if found is None else found.pareto_k,
        "warned": any(note.startswith("Warning") for note in notes) or not fit.outcome.ok,
        "draws": fit.posterior.draws(_DRAWS, 1),
    }


def _corrected(fit: Any) -> tuple[Any, dict[str, Any]]:
    found = fit.posterior.corrected(_DRAWS)
    draws = found.target.constrain(found.rows)
    return found, {"k_hat": found.pareto_k, "warned": not found.reliable, "draws": draws}


def _guided(posterior: Any, target: Any, guide: str) -> tuple[Any, dict[str, Any]]:
    """NumPyro's guide by Adam, as its manual has it; k-hat is not its own but of its draws."""
    import jax
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    with jax.enable_x64(True):
        made = getattr(autoguide, guide)(posterior.model)
        svi = SVI(
            posterior.model, made, numpyro.optim.Adam(0.005), Trace_ELBO(num_particles=10, vectorize_particles=True)
        )
        found = svi.run(jax.random.key(0), _GUIDE_STEPS, *posterior.data(), progress_bar=False)
        draws = made.sample_posterior(jax.random.key(1), found.params, sample_shape=(_DRAWS,))
        draws = {name: np.asarray(value, float) for name, value in draws.items()}
    return found, {"warned": False, "draws": draws}


def _child(name: str, reference: dict[str, Any], seconds: float, peers: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        given, part = Path(folder) / "reference.json", Path(folder) / "part.json"
        given.write_text(json.dumps(reference))
        words = [sys.executable, "-m", "provi_lab.posteriors.table", "--one", name, "--out", str(part)]
        words += ["--references", str(given), *(["--peers"] if peers else [])]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        try:
            done = subprocess.run(words, env=os.environ | threads, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"failed": f"no result within {seconds:g} s"}
        if done.returncode != 0:
            return {"failed": done.stderr.strip().splitlines()[-1][:300] if done.stderr else "died"}
        return json.loads(part.read_text())


def usable(reference: dict[str, Any]) -> bool:
    """Whether a reference came about and its chains agree."""
    return "sites" in reference and reference.get("converged", True)


def main(words: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file of all rows; what it has is kept")
    parser.add_argument("--references", type=Path, default=REFERENCES)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=400.0, help="for one posterior")
    parser.add_argument("--only", nargs="*", help="names of posteriors")
    parser.add_argument("--peers", action="store_true", help="also NumPyro's guides")
    parser.add_argument("--page", type=Path, help="write the page of what the file has, and run nothing")
    parser.add_argument("--one", help="used by the command itself: one posterior, in this process")
    options = parser.parse_args(words)
    if options.page is not None:
        from provi_lab.posteriors.page import page

        options.page.write_text(page(json.loads(options.out.read_text())))
        return
    references = json.loads(options.references.read_text())
    if options.one:
        options.out.write_text(json.dumps(measure(options.one, references, options.peers)))
        return
    rows = json.loads(options.out.read_text()) if options.out.exists() else {}
    wanted = [
        n for n in options.only or references if "default" not in rows.get(n, {}) and usable(references.get(n, {}))
    ]
    with ThreadPoolExecutor(options.processes) as pool:
        plan = {pool.submit(_child, name, references[name], options.seconds, options.peers): name for name in wanted}
        for done in as_completed(plan):
            rows[plan[done]] = done.result()
            fresh = options.out.with_suffix(".new")
            fresh.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
            fresh.replace(options.out)
            print(plan[done], json.dumps(done.result())[:1500], flush=True)


if __name__ == "__main__":
    main()
