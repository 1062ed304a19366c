"""References of the suite's posteriors: means and standard deviations with their Monte-Carlo errors, by long NUTS runs.

`python -m provi_lab.posteriors.references --out references.json --processes 16`: one process a posterior, each on one
core, what the file has already is skipped, and the file is written after each posterior. Needs jax and numpyro only.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np

CHAINS, WARM_UP, DRAWS = 4, 1000, 2000
ENOUGH = 20_000
"""Effective draws of the worst mean and square: errors of 0.7% of a standard deviation, and as much of it."""
LARGEST_R_HAT = 1.01


def reference_of(name: str, seconds: float, draws: int = DRAWS, warm_up: int = WARM_UP) -> dict[str, Any]:
    """The record of one posterior: its moments, their errors, and how they came about."""
    import numpyro

    from provi_lab.posteriors.suite import EVERY

    numpyro.enable_x64()
    posterior = EVERY[name]
    if posterior.exact is not None:
        sites = {site: _record(mean, sd) for site, (mean, sd) in posterior.exact(*posterior.data()).items()}
        return {"how": "exact", "sites": sites}
    return _run(posterior, seconds, draws, warm_up)


def _run(posterior: Any, seconds: float, draws: int, warm_up: int) -> dict[str, Any]:
    """NUTS in rounds of `draws` a chain, until there are `ENOUGH` effective ones or the time is over."""
    import jax
    from numpyro.handlers import reparam
    from numpyro.infer import MCMC, NUTS, init_to_uniform
    from numpyro.infer.reparam import LocScaleReparam

    began = time.monotonic()
    names = _latent_sites(posterior)
    model = posterior.reference or posterior.model
    if posterior.decentre:
        model = reparam(
            model, config={site: LocScaleReparam(0, shape_params=posterior.shapes) for site in posterior.decentre}
        )
    kernel = NUTS(model, target_accept_prob=0.9, dense_mass=True, init_strategy=init_to_uniform(radius=1))
    sampler = MCMC(
        kernel,
        num_warmup=warm_up,
        num_samples=draws,
        num_chains=CHAINS,
        chain_method="sequential",
        progress_bar=False,
    )
    rounds, divergences, key, spent = [], 0, jax.random.key(0), 0.0
    while True:
        sampler.run(jax.random.fold_in(key, len(rounds)), *posterior.data(), extra_fields=("diverging",))
        rounds.append(jax.device_get(sampler.get_samples(group_by_chain=True)))
        divergences += int(np.sum(sampler.get_extra_fields()["diverging"]))
        found = {site: np.concatenate([part[site] for part in rounds], axis=1) for site in rounds[0]}
        if posterior.complete is not None:
            found = posterior.complete(found)
        sites, r_hat, effective = _moments({site: np.asarray(found[site], float) for site in names})
        last, spent = spent, time.monotonic() - began
        # The first round compiles and warms up: another takes less.
        if effective >= ENOUGH or spent + (spent - last) * (0.5 if len(rounds) == 1 else 1.0) > seconds:
            break
        sampler.post_warmup_state = sampler.last_state
    return {
        "how": "NUTS",
        "sites": sites,
        "chains": CHAINS,
        "draws": draws * len(rounds) * CHAINS,
        "r_hat": r_hat,
        "effective_draws": effective,
        "divergences": divergences,
        "converged": r_hat <= LARGEST_R_HAT and effective >= 400,
        "seconds": spent,
    }


def _latent_sites(posterior: Any) -> list[str]:
    from numpyro.handlers import seed, trace

    sites = trace(seed(posterior.model, 0)).get_trace(*posterior.data())
    return [name for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]]


def _moments(draws: dict[str, np.ndarray]) -> tuple[dict[str, Any], float, float]:
    """The records of all sites, the largest R-hat and the fewest effective draws of means and of squares."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    sites, r_hats, effectives = {}, [1.0], []
    for name, values in draws.items():
        mean, sd = values.mean((0, 1)), values.std((0, 1))
        squares = (values - mean) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            first, second = effective_sample_size(values), effective_sample_size(squares)
            r_hat = np.maximum(split_gelman_rubin(values), split_gelman_rubin(squares))
            of_sd = squares.std((0, 1)) / (2 * sd * np.sqrt(second))
            of_mean = sd / np.sqrt(first)
        varies = sd > 1e-12  # an entry that is always the same, as in a Cholesky factor of correlations
        sites[name] = _record(mean, sd, np.where(varies, of_mean, 0.0), np.where(varies, of_sd, 0.0))
        r_hats += list(np.ravel(np.where(varies, r_hat, 1.0)))
        effectives += [float(x) for part in (first, second) for x in np.ravel(part[varies] if np.ndim(part) else part)]
    return sites, float(np.max(r_hats)), float(np.min(effectives))


def _record(mean: Any, sd: Any, of_mean: Any = 0.0, of_sd: Any = 0.0) -> dict[str, Any]:
    mean = np.asarray(mean, float)
    parts = {"mean": mean, "sd": sd, "mean_error": of_mean, "sd_error": of_sd}
    return {word: np.broadcast_to(np.asarray(part, float), mean.shape).tolist() for word, part in parts.items()}


def _child(name: str, core: int | None, seconds: float, draws: int, warm_up: int) -> dict[str, Any]:
    """`reference_of` in a process of its own with one thread; what goes wrong there is a record, too."""
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part.json"
        words = [sys.executable, "-m", "provi_lab.posteriors.references", "--one", name, "--out", str(part)]
        words += ["--seconds", str(seconds), "--draws", str(draws), "--warm-up", str(warm_up)]
        if core is not None:
            words += ["--core", str(core)]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        try:
            done = subprocess.run(words, env=os.environ | threads, capture_output=True, text=True, timeout=3 * seconds)
        except subprocess.TimeoutExpired:
            return {"how": "NUTS", "failed": f"no result within {3 * seconds:g} s"}
        if done.returncode != 0:
            return {"how": "NUTS", "failed": done.stderr.strip().splitlines()[-1][:300] if done.stderr else "died"}
        return json.loads(part.read_text())


def _effective(record: dict[str, Any]) -> float:
    """Effective draws of a record: none of one that failed or whose chains disagree, all of one in closed form."""
    if "sites" not in record or not record.get("converged", True):
        return 0.0
    return record.get("effective_draws", float("inf"))


def _write(path: Path, records: dict[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(dict(sorted(records.items())), indent=1) + "\n")
    fresh.replace(path)


def main(words: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file of all references; what it has is kept")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="for one posterior")
    parser.add_argument("--draws", type=int, default=DRAWS, help="of each chain in each round")
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--at-least", type=float, default=1.0, help="effective draws: fewer in the file are made anew")
    parser.add_argument("--only", nargs="*", help="names of posteriors")
    parser.add_argument("--one", help="used by the command itself: one posterior, in this process")
    parser.add_argument("--core", type=int)
    options = parser.parse_args(words)
    if options.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.core})  # before JAX counts the cores
    plan = (options.seconds, options.draws, options.warm_up)
    if options.one:
        options.out.write_text(json.dumps(reference_of(options.one, *plan)))
        return
    _run_all(options, plan)


def _run_all(options: Any, plan: tuple[float, int, int]) -> None:
    from provi_lab.posteriors.suite import EVERY

    records = json.loads(options.out.read_text()) if options.out.exists() else {}
    wanted = options.only or list(EVERY)
    missing = [name for name in wanted if _effective(records.get(name, {})) < options.at_least]
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    cores: Queue[Any] = Queue()
    for index in range(options.processes):
        cores.put(allowed[index % len(allowed)] if allowed else None)

    def one(name: str) -> tuple[str, dict[str, Any]]:
        core = cores.get()
        try:
            return name, _child(name, core, *plan)
        finally:
            cores.put(core)

    with ThreadPoolExecutor(options.processes) as pool:
        for done in as_completed([pool.submit(one, name) for name in missing]):
            name, record = done.result()
            if _effective(record) >= _effective(records.get(name, {})):
                records[name] = record
            _write(options.out, records)
            told = {word: record[word] for word in ("failed", "r_hat", "effective_draws", "seconds") if word in record}
            print(name, record["how"], told, flush=True)


if __name__ == "__main__":
    main()
