"""Paper 002, Figure 2, and paper 000, Figure 1: PG-SVI, SGD and the adaptive methods, by passes through the data."""

import dataclasses
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from provi.algorithms.natural.dual_natural_gradient import DualNaturalGradient
from provi.core.arguments import double_precision
from provi.core.files import write_text
from provi.report.style import INK, PALETTE, save_figure
from provi_lab.common.curves import Curve, all_rows, select
from provi_lab.common.pictures import picture
from provi_lab.common.report import Claim, Report, publish
from provi_lab.common.tables import Row, read_rows, write_rows
from provi_lab.papers.pgsvi.baselines import EPSILON, PLAIN, Form, adaptive_rules, first_adadelta
from provi_lab.papers.pgsvi.measure import STABLE, follow_dual, follow_pgsvi, follow_rule, follow_stable_sgd
from provi_lab.papers.pgsvi.problem import (
    IONOSPHERE,
    SONAR,
    TRUE_USPS,
    USPS,
    Factors,
    Problem,
    Setting,
    factors,
    problem,
    synthetic_problem,
)

NAME = "pgsvi-figure2"
SHOWN = (1, 2, 4, 7, 10)
LONGEST, NUM_SEEDS = 100, 5
"""Passes and seeds of every baseline; PG-SVI makes as many passes as are shown."""

WHITENED_RATE = 0.03
"""Of whitened Adam: the best of 0.01, 0.03, 0.1 and 0.3 after 100 passes, on Sonar and on Ionosphere."""

LEVEL, WITHIN, CLAIMED_PASSES = 1.0, 10, 100
"""Converged means a gap of at most LEVEL nats; the papers say within 10 passes for PG-SVI, above 100 for the others."""

PAPER_002, PAPER_000, PROXIMAL = "PG-SVI", "PG-SVI (000)", "PG-SVI (B)"
FULL_BATCH, WHITENED = "full batch", "whitened Adam"
FIRST, UNWEIGHTED = " (000)", ", unweighted"
"""What the name of a baseline ends with: settings of paper 000; without the factor N/M, as in the authors' code."""

ADAPTIVE = ("ADAGRAD", "RMSprop", "ADADELTA", "ADAM")
BASELINES = ("SGD", f"SGD{STABLE}", *ADAPTIVE)
"""Paper 002's own, SGD also repaired."""

BASELINES_000 = (f"SGD{FIRST}", f"SGD{FIRST}{STABLE}", f"ADADELTA{FIRST}")
AUTHORS = (f"SGD{UNWEIGHTED}", f"SGD{UNWEIGHTED}{STABLE}", *(f"{name}{UNWEIGHTED}" for name in ADAPTIVE))
OTHERS = (*BASELINES, *BASELINES_000, *AUTHORS)

METHODS = (PAPER_002, PAPER_000, FULL_BATCH, *BASELINES, WHITENED, PROXIMAL, *BASELINES_000, *AUTHORS)
SETTINGS = (SONAR, IONOSPHERE, USPS, TRUE_USPS)


@dataclasses.dataclass(frozen=True)
class Part:
    """What was measured on one data set, and what the page says about it."""

    setting: Setting
    terms: int
    optimum: float
    proven: float
    machine: str
    seconds: float
    curves: tuple[Curve, ...]


@double_precision
def run(output: Path, quick: bool = False, seed: int = 0) -> Report:
    """Run it; `quick` takes 40 made-up data, 10 passes and one seed instead of four data sets, 100 and five."""
    if quick:
        parts = [measure(lambda: synthetic_problem(seed), 1, SHOWN[-1], seed)]
    else:
        parts = [measure(functools.partial(problem, setting), NUM_SEEDS, LONGEST, seed) for setting in SETTINGS]
    return conclude(Path(output), parts)


def conclude(output: Path, parts: Sequence[Part]) -> Report:
    """The picture and the page of what was measured, perhaps elsewhere and in parts."""
    curves = [curve for part in parts for curve in part.curves]
    more = save_figure(draw_passes(parts, curves, OTHER_LOOKS), output / f"{NAME}-others.png")
    return publish(
        output,
        time.monotonic() - sum(part.seconds for part in parts),
        name=NAME,
        title="Paper 002, Figure 2, and paper 000, Figure 1: PG-SVI and adaptive gradient methods on GP classification",
        setting=_setting(parts),
        picture=draw_passes(parts, curves, LOOKS),
        lines=all_rows(curves),
        rows=[row for part in parts for row in summary(part.setting, curves)],
        claims=claims([part.setting for part in parts], curves),
        more=(more,),
    )


def measure(
    make: Callable[[], Problem],
    num_seeds: int,
    longest: int,
    seed: int,
    *,
    before: Part | None = None,
    limit: float = math.inf,
    baseline_seeds: int | None = None,
) -> Part:
    """Every method on the data set that `make` makes, which is on the clock too.

    **Arguments:** `before`: what was measured already and is not again. - `limit`: seconds after which no other method
    is begun. - `baseline_seeds`: of the baselines, if not all.
    """
    began = time.monotonic()
    task = make()
    curves = [] if before is None else list(before.curves)
    there = {curve.method for curve in curves}
    seeds = range(seed, seed + num_seeds)
    for names, work in _works(task, seeds, seeds[:baseline_seeds], longest):
        if there.isdisjoint(names) and time.monotonic() - began < limit:
            curves += work()
            print(f"{names[0]}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    device = jax.devices()[0]
    where = f"{device.device_kind} ({device.platform}), {os.cpu_count()} cores, jax {jax.__version__}"
    taken = time.monotonic() - began + (0 if before is None else before.seconds)
    return Part(task.setting, task.target.num_terms, task.optimum, task.proven, where, taken, tuple(curves))


def _works(
    task: Problem, seeds: Sequence[int], of_baselines: Sequence[int], longest: int
) -> list[tuple[Sequence[str], Callable[[], list[Curve]]]]:
    """The names of the curves, and what makes them."""
    factored, short = factors(task), range(SHOWN[-1] + 1)
    long = (*short, *range(2 * SHOWN[-1], longest + 1, SHOWN[-1]))

    def whole() -> list[Curve]:
        return [follow_dual(task, DualNaturalGradient(), 1, (FULL_BATCH, seeds[0], math.nan), range(41))]

    def proximal() -> list[Curve]:
        return [curve for each in seeds for curve in _proximal(task, each, short)]

    return [((FULL_BATCH,), whole), ((PAPER_002,), proximal), *_baselines(task, factored, of_baselines, long)]


def _proximal(task: Problem, seed: int, passes: Sequence[int]) -> list[Curve]:
    first, second = task.setting.pgsvi
    curves = [follow_pgsvi(task, PAPER_002, seed, first, passes)]
    if abs(first - second) > 0.1 * first:  # on USPS the two papers' steps are nearly the same
        curves.append(follow_pgsvi(task, PAPER_000, seed, second, passes))
    return [*curves, follow_pgsvi(task, PROXIMAL, seed, first, passes, form="proximal")]


def _baselines(
    task: Problem, parts: Factors, seeds: Sequence[int], passes: Sequence[int]
) -> list[tuple[Sequence[str], Callable[[], list[Curve]]]]:
    setting, bare = task.setting, Form(weighted=False)
    kappa, first = setting.sgd[0], setting.sgd[1] / task.target.num_terms
    sgd = functools.partial(follow_stable_sgd, task, parts)

    def rule(name: str, way: Any, form: Form = PLAIN) -> tuple[Sequence[str], Callable[[], list[Curve]]]:
        return (name,), lambda: follow_rule(task, parts, way, name, seeds, passes, form=form)

    found = [
        (("SGD",), lambda: sgd("SGD", kappa, first, seeds, passes)),
        ((f"SGD{FIRST}",), lambda: sgd(f"SGD{FIRST}", setting.first_sgd, 1.0, seeds, passes)),
        *(rule(name, way) for name, way in adaptive_rules(setting).items()),
        rule(f"ADADELTA{FIRST}", first_adadelta(setting)),
        (
            (f"SGD{UNWEIGHTED}",),
            lambda: sgd(f"SGD{UNWEIGHTED}", kappa, first, seeds, passes, bare),
        ),
        *(rule(f"{name}{UNWEIGHTED}", way, bare) for name, way in adaptive_rules(setting).items()),
    ]
    decay = optax.linear_schedule(WHITENED_RATE, 0.0, passes[-1] * task.steps_a_pass)
    return [*found, rule(WHITENED, optax.adam(decay, eps=EPSILON), Form(whitened=True))]


def keep(part: Part, folder: Path) -> None:
    """Its tables, for `kept`."""
    write_rows(folder / f"{part.setting.data}.csv", all_rows(part.curves))
    facts = {name: getattr(part, name) for name in ("terms", "optimum", "proven", "machine", "seconds")}
    write_text(folder / f"{part.setting.data}.json", json.dumps(facts, indent=1))


def kept(setting: Setting, folder: Path) -> Part:
    """A part that was measured before, perhaps on another machine."""
    facts = json.loads((folder / f"{setting.data}.json").read_text(encoding="utf-8"))
    return Part(setting, **facts, curves=tuple(read_curves(folder / f"{setting.data}.csv")))


def read_curves(path: Path) -> list[Curve]:
    """The runs in a CSV file of this figure."""
    runs: dict[tuple, list[tuple]] = {}
    for row in read_rows([path]):
        names = (row["data"], row["method"], int(row["seed"]), float(row["step_size"]))
        key = (*names[:3], row["step_size"])
        runs.setdefault(key, [names]).append((int(row["passes"]), float(row["gap"]), float(row["test_bits"])))
    found = []
    for names, *lines in runs.values():
        columns: dict[str, np.ndarray] = dict(
            zip(("passes", "gap", "test_bits"), map(np.array, zip(*lines, strict=True)), strict=True)
        )
        found.append(Curve(dict(zip(("data", "method", "seed", "step_size"), names, strict=True)), columns))
    return found


def summary(setting: Setting, curves: Sequence[Curve]) -> list[Row]:
    """Means over the seeds; the passes to one nat are the median's."""
    rows = []
    for method in METHODS:
        own = select(curves, data=setting.data, method=method)
        if not own:
            continue
        gaps = {f"gap at {p}": _mean([_gap_at(curve, p) for curve in own]) for p in SHOWN}
        bits = [curve.at("test_bits", SHOWN[-1]) for curve in own if SHOWN[-1] in curve.when]
        rows.append(
            {
                "data": setting.title,
                "method": method,
                "seeds": len(own),
                **gaps,
                f"passes to {LEVEL:g} nat": _passes(own),
                "last gap": _mean([curve["gap"][-1] for curve in own]),
                f"test bits at {SHOWN[-1]}": _mean(bits) if bits else math.nan,
            }
        )
    return rows


def _gap_at(curve: Curve, passes: int) -> float:
    """The gap after so many passes; a run that ended before has diverged."""
    gap = curve.at("gap", passes)
    return math.inf if math.isnan(gap) else gap


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _passes(own: Sequence[Curve]) -> str:
    """The median over the seeds."""
    if not all(math.isfinite(curve["gap"][-1]) for curve in own):
        return "diverges"
    reached = float(np.median([curve.first("gap", LEVEL) for curve in own]))
    return f"{reached:g}" if math.isfinite(reached) else f"> {int(own[0].when[-1])}"


def _setting(parts: Sequence[Part]) -> str:
    sets = "; ".join(
        f"{part.setting.title} N = {part.terms}, M = {part.setting.batch}, S = {part.setting.samples}, -ELBO* = "
        f"{part.optimum:.6f} (proven to {part.proven:.0e}), baselines {_lengths(part)}, measured on {part.machine} in "
        f"{part.seconds:.0f} s"
        for part in parts
    )
    seeds = len({curve.names["seed"] for part in parts for curve in part.curves})
    return (
        f"GP classification, Bernoulli-logit, squared-exponential kernel, hyperparameters and jitter as in the papers "
        f"({sets}); from the prior; the papers' split; {seeds} seeds. PG-SVI with the score estimator, {SHOWN[-1]} "
        f"passes; beta N as in paper 002 and, where it differs, paper 000; (B) is the proximal form, the others the "
        f"natural one. The baselines move m and the Cholesky factor of V (its "
        f"diagonal by logarithms) with paper 002's updates and settings, epsilon {EPSILON:g}, exact expectations "
        f"(the papers' have S draws), and the factor N/M. '(000)': the settings of paper 000, which has SGD with steps "
        f"(1 + k)^-tau and ADADELTA without a step size. 'Unweighted': without N/M, as in the authors' code, whose "
        f"figures the papers show; that is the gradient of another objective, with M/N of the likelihood, and its gap "
        f"to the best Gaussian cannot vanish. 'Stable' is SGD with its first step halved until it does not diverge, "
        f"seed by seed. Whitened Adam (step {WHITENED_RATE:g} falling linearly to zero) is the strongest such opponent "
        f"we know. The full batch is ProVI's default, a pass a step. 'USPS 2v4' is what the papers call USPS 3vs5: "
        f"their files hold twos and fours; 'USPS 3v5' is the data set of that name. Gaps are exact, in nats; infinite "
        f"means diverged. The log-loss is in bits: 1 is a coin."
    )


def _lengths(part: Part) -> str:
    """Passes and seeds of the baselines."""
    own = [curve for curve in part.curves if curve.method in OTHERS]
    seeds = len({curve.names["seed"] for curve in own})
    return f"{max(int(curve.when[-1]) for curve in own)} passes, {seeds} seed{'s' if seeds > 1 else ''}"


def claims(settings: Sequence[Setting], curves: Sequence[Curve]) -> tuple[Claim, ...]:
    """Three a data set, one for all."""
    found = [claim for setting in settings for claim in _of(setting, curves)]
    ahead = [_gap(setting, curves, PAPER_002) < _gap(setting, curves, PROXIMAL) for setting in settings]
    compared = "; ".join(
        f"{setting.title} {_gap(setting, curves, PAPER_002):.3g} against {_gap(setting, curves, PROXIMAL):.3g}"
        for setting in settings
    )
    natural = Claim.of(
        f"The mean update printed as approximate (natural form, A) beats the exact proximal one (B) after {WITHIN} "
        f"passes.",
        all(ahead),
        f"Gaps in nats: {compared}.",
    )
    return (*found, natural)


def _of(setting: Setting, curves: Sequence[Curve]) -> list[Claim]:
    title = setting.title
    ours = {name: _gap(setting, curves, name) for name in (PAPER_002, PAPER_000)}
    ours = {name: gap for name, gap in ours.items() if not math.isnan(gap)}
    others = {name: _gap(setting, curves, name) for name in OTHERS}
    others = {name: gap for name, gap in others.items() if not math.isnan(gap)}
    nearest = min(others, key=lambda name: others[name])
    runs = [curve for curve in select(curves, data=setting.data) if curve.method in OTHERS]
    seen = _seen(runs)
    first: dict[str, float] = {}
    for c in runs:
        first[c.method] = min(first.get(c.method, math.inf), c.first("gap", LEVEL))
    reached = {name: passes for name, passes in first.items() if math.isfinite(passes)}
    within = f"{title}: the others need more than {CLAIMED_PASSES} passes (rule: gap above {LEVEL:g} nat till then)."
    evidence = f"None within {seen} passes; the smallest gap was {min(np.min(c['gap']) for c in runs):.3g} nats."
    if reached:
        evidence = "; ".join(f"{name} after {passes:g}" for name, passes in reached.items())
    settled = seen >= CLAIMED_PASSES or reached
    return [
        Claim.of(
            f"{title}: PG-SVI converges within {WITHIN} passes (rule: mean gap of at most {LEVEL:g} nat by then, with "
            f"the step of either paper).",
            min(ours.values()) <= LEVEL,
            f"Mean gaps after {WITHIN} passes: {', '.join(f'{name} {gap:.3g}' for name, gap in ours.items())} nats.",
        ),
        Claim(within, ("does not hold" if reached else "holds") if settled else "not tested", evidence),
        Claim.of(
            f"{title}: PG-SVI is ahead of every baseline after {WITHIN} passes.",
            min(ours.values()) < others[nearest],
            f"PG-SVI {min(ours.values()):.3g} nats, the next {nearest} {others[nearest]:.3g}.",
        ),
    ]


def _seen(runs: Sequence[Curve]) -> int:
    """Passes that all runs were followed for; those that diverged ended there, and no longer run would converge."""
    finite = [int(curve.when[-1]) for curve in runs if math.isfinite(curve["gap"][-1])]
    return min(finite or [int(curve.when[-1]) for curve in runs])


def _gap(setting: Setting, curves: Sequence[Curve], method: str) -> float:
    """The mean gap after ten passes; NaN without runs, infinite where one diverged."""
    own = select(curves, data=setting.data, method=method)
    return _mean([_gap_at(curve, WITHIN) for curve in own]) if own else math.nan


LOOKS = {
    PAPER_002: (PALETTE[0], "-"),
    PAPER_000: (PALETTE[0], "--"),
    PROXIMAL: (PALETTE[0], ":"),
    FULL_BATCH: (INK, "-"),
    "SGD": (PALETTE[5], "--"),
    f"SGD{STABLE}": (PALETTE[5], "-"),
    "ADAGRAD": (PALETTE[1], "-"),
    "RMSprop": (PALETTE[2], "-"),
    "ADADELTA": (PALETTE[3], "-"),
    "ADAM": (PALETTE[4], "-"),
    WHITENED: (PALETTE[4], "--"),
}
"""Colour and line of paper 002's figure; forms of one method share a colour."""

OTHER_LOOKS = {
    PAPER_002: (PALETTE[0], "-"),
    PAPER_000: (PALETTE[0], "--"),
    f"SGD{FIRST}": (PALETTE[5], ":"),
    f"SGD{FIRST}{STABLE}": (PALETTE[5], "-"),
    f"ADADELTA{FIRST}": (PALETTE[3], "-"),
    f"SGD{UNWEIGHTED}": (PALETTE[5], (0, (1, 3))),
    f"SGD{UNWEIGHTED}{STABLE}": (PALETTE[5], "--"),
    f"ADAGRAD{UNWEIGHTED}": (PALETTE[1], "--"),
    f"RMSprop{UNWEIGHTED}": (PALETTE[2], "--"),
    f"ADADELTA{UNWEIGHTED}": (PALETTE[3], "--"),
    f"ADAM{UNWEIGHTED}": (PALETTE[4], "--"),
}
"""Of the second picture: paper 000's settings, and the authors' baselines."""


def draw_passes(parts: Sequence[Part], curves: Sequence[Curve], looks: dict[str, tuple[str, Any]]) -> Any:
    """One column a data set: the gap above, the test log-loss below, against passes through the data."""
    with picture(3.4 * len(parts) + 0.6, 6.2) as figure:
        axes = figure.subplots(2, len(parts), squeeze=False, sharex="col")
        for column, part in enumerate(parts):
            for name, look in looks.items():
                _draw_method(axes[:, column], part.setting, curves, name, look)
            top, bottom = axes[:, column]
            top.set_title(part.setting.title)
            top.set_yscale("log")
            # What diverges, of (B) and of SGD, leaves the picture: it would press the rest into a line.
            highest = max((curve["gap"][0] for curve in select(curves, data=part.setting.data)), default=1.0)
            top.set_ylim(1e-3, 30 * highest)
            top.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
            bottom.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
            # A wrong mean with a small variance costs hundreds of bits, and would hide the rest.
            bottom.set_ylim(0.0, 1.25)
            bottom.set_xscale("symlog", linthresh=1.0)
            bottom.set_xlim(left=0.0)
            bottom.set_xticks([0, 1, 2, 4, 10, 20, 50, 100], ["0", "1", "2", "4", "10", "20", "50", "100"], minor=False)
            bottom.set_xticks([], minor=True)
            bottom.set_xlabel("passes through the data")
        axes[0, 0].set_ylabel("gap to the best Gaussian [nats]")
        axes[1, 0].set_ylabel("test log-loss [bits]")
        handles = dict(zip(*reversed(axes[0, 0].get_legend_handles_labels()), strict=True))
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4)
    return figure


def _draw_method(axes: Any, setting: Setting, curves: Sequence[Curve], name: str, look: tuple[str, Any]) -> None:
    for index, curve in enumerate(select(curves, data=setting.data, method=name)):
        style = {"color": look[0], "linestyle": look[1], "alpha": 1.0 if index == 0 else 0.25}
        style["linewidth"] = 2.4 if name == PAPER_002 else 1.4
        finite = np.isfinite(curve["gap"])
        label = name if index == 0 else None
        axes[0].plot(curve.when[finite], np.maximum(curve["gap"][finite], 1e-9), label=label, **style)
        axes[1].plot(curve.when[finite], curve["test_bits"][finite], **style)


@double_precision
def main(words: Sequence[str]) -> None:
    """Measure data sets in parts, or draw the page of what was measured.

    `python -m provi_lab.papers.pgsvi.figure2 FOLDER DATA [SECONDS [SEEDS PASSES]]` measures what the folder has not yet
    of this data set, and begins no method after so many seconds; SEEDS and PASSES are those of the baselines, where
    there is no time for all. Without DATA it concludes.
    """
    match words:
        case [folder]:
            from provi_lab.papers.catalogue import refresh

            conclude(Path("docs/results"), [kept(setting, Path(folder)) for setting in SETTINGS])
            refresh(Path("docs/results"), NAME)
        case [folder, data, *more]:
            (setting,) = (setting for setting in SETTINGS if setting.data == data)
            before = kept(setting, Path(folder)) if (Path(folder) / f"{data}.csv").is_file() else None
            limit, seeds, passes = (float(x) for x in (*more, *("inf", NUM_SEEDS, LONGEST)[len(more) :]))
            make, options = functools.partial(problem, setting), {"before": before, "baseline_seeds": int(seeds)}
            keep(measure(make, NUM_SEEDS, int(passes), 0, limit=limit, **options), Path(folder))
        case _:
            raise SystemExit(main.__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
