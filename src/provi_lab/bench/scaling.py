"""`provi bench scaling`: a fit and a Monte-Carlo step on more devices, and a black-box step with more draws."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row, aim, number

_TEXT = """\
Processor seconds of all threads, in brackets wall seconds, the least of some repetitions, each measurement in a process
of its own; compilation stands apart, as the wall seconds that the first call took longer. *Fit*: a certified logistic
regression (`provi.fit`, tol 0.01), whose rows are divided among the devices. *Step*: one step of `ProxSGD` on a log
density, whose draws are divided; its time is the difference of a long and a short run, over that of their steps, and is
left out where a busy machine makes the long one the shorter. The devices are simulated
(`--xla_force_host_platform_device_count`): beyond the number of cores **nothing can become faster**, and what is seen
is the overhead of dividing the work. One device takes NumPy where that is the default, more take XLA."""

DEVICES, DRAWS = (1, 2, 4, 8), (10, 100, 1000, 10_000)
QUICK_DEVICES, QUICK_DRAWS = (1, 2), (10, 100)
_FIT, _QUICK_FIT = (100_000, 64), (2000, 8)
_STEP, _QUICK_STEP = (500, 20), (100, 5)
"""Rows and columns of the fit and of the log density."""
_DIVIDED, _QUICK_DIVIDED = 1000, 80
"""Draws of the step that is divided among devices: eight divide them."""
_WORK, _FEWEST, _MOST = 100_000, 20, 400
"""Draws that a short run takes in all, and the bounds of its steps; the long one takes three times the steps."""
_LIMIT = 1200.0
_CLOCKS = ("cpu", "wall")


def measure_scaling(
    devices: Sequence[int], draws: Sequence[int], *, quick: bool = False, report: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """A row for each number of devices, then one for each number of draws on one device; a process each."""
    rows = []
    for count in devices:
        report(f"{count} devices" if count > 1 else "one device")
        rows.append(_child("devices", count, count, quick))
    for count in draws:
        report(f"{count:,} draws")
        rows.append(_child("draws", count, 1, quick))
    return rows


def _child(what: str, count: int, devices: int, quick: bool) -> Row:
    """What the process printed; an error with its last words otherwise."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    # Without the cache of compiled programs: else the first call of the next run compiles nothing.
    own = {"XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu", "PROVI_COMPILATION_CACHE": "off"}
    command = [sys.executable, "-m", "provi_lab.bench.scaling", what, str(count), *(["--quick"] if quick else [])]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=_LIMIT)
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise RuntimeError(f"{count} {what}: {words[-1] if words else f'exit status {done.returncode}'}")
    return json.loads(done.stdout.splitlines()[-1])


def problem(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """A design and answers of a logistic model."""
    rng = np.random.default_rng(0)
    design = rng.standard_normal((rows, columns))
    chance = 1 / (1 + np.exp(-design @ (rng.standard_normal(columns) / columns**0.5)))
    return design, (rng.random(rows) < chance).astype(float)


def fit_row(devices: int, quick: bool, repeats: int) -> Row:
    """The certified fit of a regression on so many devices."""
    import provi

    design, response = problem(*(_QUICK_FIT if quick else _FIT))
    target = provi.targets.LogisticRegression(design, response, prior_scale=1.0)

    def fitted() -> Any:
        return provi.fit(target, tol=0.01, seed=0, mesh=devices, progress=False)

    first, _, fit = _timed(fitted)
    runs = [_timed(fitted)[:2] for _ in range(repeats)]
    wall, cpu = (min(run[k] for run in runs) for k in (0, 1))
    gap = fit.certificate.gap
    facts = {"gap": None if gap is None else float(gap), "status": str(fit.certificate.status)}
    facts |= {"elbo": float(fit.elbo.value), "rows": len(design), "columns": design.shape[1]}
    return {**facts, "fit_cpu": cpu, "fit_wall": wall, "fit_compiling": max(first - wall, 0.0)}


def step_row(draws: int, devices: int, quick: bool, repeats: int) -> Row:
    """A step of ProxSGD with so many draws: runs of two lengths, so that what a run needs once cancels."""
    import jax.numpy as jnp

    import provi

    design, response = problem(*(_QUICK_STEP if quick else _STEP))

    def density(w: Any) -> Any:
        predictor = design @ w
        return jnp.sum(response * predictor - jnp.logaddexp(0.0, predictor)) - jnp.sum(w**2) / 2

    target = provi.targets.LogDensity(density, design.shape[1])
    algorithm = provi.algorithms.ProxSGD(step_size=1.0 / len(design), num_draws=draws)
    short = min(max(_WORK // draws, _FEWEST), _MOST) // (4 if quick else 1)
    long = 3 * short

    def run(steps: int) -> tuple[float, float, Any]:
        budget = provi.Budget(steps=steps)
        return _timed(lambda: provi.fit(target, None, algorithm, budget=budget, mesh=devices, progress=False))

    first = run(short)[0]
    runs = [(run(short), run(long)) for _ in range(repeats)]  # by turns: a slow phase of the machine meets both
    least = [[min(pair[k][clock] for pair in runs) for k in (0, 1)] for clock in (0, 1)]
    wall, cpu = (_difference(one, three, long - short) for one, three in least)
    facts = {"step_draws": draws, "steps": [short, long], "step_compiling": max(first - least[0][0], 0.0)}
    return {**facts, "step_cpu": cpu, "step_wall": wall}


def _difference(short: float, long: float, steps: int) -> float | None:
    """Seconds a step; None where there is no telling."""
    return (long - short) / steps if long > short else None


def _timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and processor seconds, and what was made."""
    cpu, wall = time.process_time(), time.perf_counter()
    made = work()
    return time.perf_counter() - wall, time.process_time() - cpu, made


def growth(rows: Sequence[Row]) -> float | None:
    """The slope of log processor seconds of a step over log draws; None where there are not three."""
    own = [row for row in rows if row["what"] == "draws" and row["step_cpu"] is not None]
    if len(own) < 3:
        return None
    logs = np.log([[row["draws"], row["step_cpu"]] for row in own])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def _both(row: Row, name: str, unit: float = 1.0) -> str:
    """Processor and wall seconds times `unit`; a dash for what could not be told."""
    cpu, wall = ("-" if row[f"{name}_{clock}"] is None else number(unit * row[f"{name}_{clock}"]) for clock in _CLOCKS)
    return f"{cpu} ({wall})"


def _over(row: Row, base: Row | None, name: str) -> str:
    """The same over those of one device."""
    if base is None:
        return ""
    pairs = [(row[f"{name}_{clock}"], base[f"{name}_{clock}"]) for clock in _CLOCKS]
    cpu, wall = ("-" if None in pair else f"{pair[0] / pair[1]:.2f}" for pair in pairs)
    return f"{cpu} ({wall})"


def device_cells(rows: Sequence[Row]) -> Cells:
    """One line a number of devices; ratios are to one device."""
    own = [row for row in rows if row["what"] == "devices"]
    names = ["devices", "fit, s", "over one device's", "compilation, s", "proven gap"]
    names += ["a step, ms", "over one device's", "compilation, s"]
    base = next((row for row in own if row["devices"] == 1), None)
    lines = []
    for row in own:
        line = [str(row["devices"]), _both(row, "fit"), _over(row, base, "fit"), number(row["fit_compiling"])]
        line += [number(row["gap"]), _both(row, "step", 1e3), _over(row, base, "step"), number(row["step_compiling"])]
        lines.append(line)
    return names, lines


def draw_cells(rows: Sequence[Row]) -> Cells:
    """One line a number of draws."""
    own = [row for row in rows if row["what"] == "draws"]
    names = ["draws", "a step, ms", "a draw, microseconds", "compilation, s"]
    return names, [
        [
            f"{row['draws']:,}",
            _both(row, "step", 1e3),
            _both(row, "step", 1e6 / row["draws"]),
            number(row["step_compiling"]),
        ]
        for row in own
    ]


def verdicts(rows: Sequence[Row]) -> list[str]:
    """The cores, so what devices can show; what is divided; how a step grows with its draws."""
    cores, own = rows[0]["cores"], [row for row in rows if row["what"] == "devices"]
    lines = []
    if own:
        most = max(row["devices"] for row in own)
        lines.append(f"{cores} cores and up to {most} simulated devices: {_meaning(cores, most)}.")
        lines.append(
            f"The fit has {own[0]['rows']:,} x {own[0]['columns']} numbers, the step {own[0]['step_draws']:,} draws."
        )
        spread = max(row["elbo"] for row in own) - min(row["elbo"] for row in own)
        lines.append(f"The ELBOs of the fits differ by {spread:.1e} nats.")
    slope = growth(rows)
    if slope is not None:
        lines.append(aim("Processor time of a step grows with its draws to the power", round(slope, 2), 1.0))
    return [*lines, f"Load average before the first run: {rows[0]['load']:.2f}."]


def _meaning(cores: int, devices: int) -> str:
    return "beyond the cores this is overhead, not a speed-up" if devices > cores else "each has a core at least"


SECTION = Section(
    kind="scaling",
    heading="More devices, more draws",
    text=_TEXT,
    title="A fit and a Monte-Carlo step on simulated devices",
    cells=device_cells,
    verdicts=verdicts,
    further=(("A step on one device, with more draws:", draw_cells),),
)


def main() -> None:
    """One measurement, in a process that was given its devices: `python -m provi_lab.bench.scaling draws 1000`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=["devices", "draws"])
    parser.add_argument("count", type=int)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    repeats, row = 1 if given.quick else 5, {"what": given.what, given.what: given.count, "cores": os.cpu_count()}
    row |= {"load": os.getloadavg()[0]}
    if given.what == "devices":
        row |= fit_row(given.count, given.quick, repeats)
        row |= step_row(_QUICK_DIVIDED if given.quick else _DIVIDED, given.count, given.quick, repeats)
    else:
        row |= step_row(given.count, 1, given.quick, repeats)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
