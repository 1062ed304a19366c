"""What the pages of paper 002's Figures 1 and 2 begin with; paper 000's Figure 1 is on the second."""

import math
import re
from pathlib import Path

from provi_lab.common.page import About, Head, Lines, Settings, count, listed, made_by, mean, those, values

LEVEL, WITHIN, CLAIMED = 1.0, 10, 100
TITLES = {"sonar": "Sonar", "ionosphere": "Ionosphere", "usps_2v4_paper": "USPS 2v4", "usps_3v5": "USPS 3v5"}
OURS = ("PG-SVI", "PG-SVI (000)")
ELSE = (*OURS, "PG-SVI (B)", "full batch", "whitened Adam")


def _first(lines: Lines) -> float:
    """The mean over seeds of the first pass with a gap of at most `LEVEL`; infinite if one has none."""
    found = []
    for seed in values(lines, "seed"):
        there = [float(line["passes"]) for line in those(lines, seed=seed) if float(line["gap"]) <= LEVEL]
        found.append(min(there, default=math.inf))
    return mean(found)


def _head1(lines: Lines) -> Head:
    best, largest = {}, {}
    for method in values(lines, "method"):
        own = those(lines, method=method)
        first = {float(step): _first(those(own, step_size=step)) for step in values(own, "step_size")}
        best[method] = min(first.values())
        largest[method] = max((step for step, passes in first.items() if math.isfinite(passes)), default=0.0)
    slower, wider = best["GD"] >= 10 * best["PG"], largest["PG"] >= 10 * largest["GD"]
    alike = best["PG-SVI"] <= 2 * best["PG"]
    held = [slower, wider, alike]
    word = "holds" if all(held) else "holds in part" if any(held) else "does not hold"
    return Head(
        f"passes through the data to within {LEVEL:g} nat of the best Gaussian, each at its best step: "
        + ", ".join(
            f"{name} {passes:,.3g}" if passes < 1000 else f"{name} {passes:,.0f}" for name, passes in best.items()
        )
        + "; largest step that gets there: "
        + ", ".join(f"{name} {step:.3g}" for name, step in largest.items()),
        f"{word}: GD {'needs' if slower else 'does not need'} ten times the passes, PG "
        f"{'bears' if wider else 'does not bear'} "
        f"ten times the step, and PG-SVI {'is' if alike else 'is not'} within twice the passes of PG",
    )


def _defaults1() -> Settings:
    from provi_lab.papers.pgsvi.figure1 import METHODS, _sweeps

    sweeps = _sweeps(False)
    return {
        "methods": set(METHODS),
        "seeds": max(sweep.seeds for sweep in sweeps),
        "passes": max(s.longest for s in sweeps),
    }


def _at(lines: Lines, passes: int) -> float:
    """The mean gap over seeds after so many passes; infinite where a run ended before."""
    gaps = [[float(line["gap"]) for line in those(lines, seed=seed, passes=passes)] for seed in values(lines, "seed")]
    return mean([gap[0] if gap else math.inf for gap in gaps])


def _head2(lines: Lines) -> Head:
    words, converged, ahead = [], 0, 0
    sets = values(lines, "data")
    for data in sets:
        own = those(lines, data=data)
        methods = values(own, "method")
        ours = min(_at(those(own, method=name), WITHIN) for name in OURS if name in methods)
        others = {name: _at(those(own, method=name), WITHIN) for name in methods if name not in ELSE}
        next_one = min(others, key=lambda name: others[name])
        converged += ours <= LEVEL
        ahead += ours < others[next_one]
        words.append(f"{TITLES.get(data, data)} {ours:.3g} nats (the best rival, {next_one}: {others[next_one]:.3g})")
    word = "holds" if converged == len(sets) else "holds in part" if ahead else "does not hold"
    return Head(
        f"gap of PG-SVI to the best Gaussian after {WITHIN} passes: {'; '.join(words)}",
        f"{word}: PG-SVI is ahead of every rival on {ahead} of {len(sets)} data sets, and within {LEVEL:g} nat after "
        f"{WITHIN} passes on {converged}",
    )


def _made2(lines: Lines, text: str) -> Settings:
    """Passes and seeds are the fewest that a baseline has on a data set."""
    found = made_by({"methods": "method"}, {})(lines, text)
    runs = [
        those(lines, data=data, method=name) for data in values(lines, "data") for name in found["methods"] - set(ELSE)
    ]
    runs = [run for run in runs if run]
    finite = [run for run in runs if all(math.isfinite(float(line["gap"])) for line in run)]
    found["seeds"] = min(count(run, "seed") for run in runs)
    return found | {"passes": min(int(max(float(line["passes"]) for line in run)) for run in finite)}


def _defaults2() -> Settings:
    from provi_lab.papers.pgsvi import figure2

    return {"methods": set(figure2.METHODS), "passes": figure2.LONGEST, "seeds": figure2.NUM_SEEDS}


def _left_out2(lines: Lines, text: str) -> list[str]:
    made = _made2(lines, text)
    found = ["Passes 101 to 1,000 of paper 000: they would take ten times as long, and show no more of PG-SVI."]
    if made["passes"] < CLAIMED:
        found.append(f"Baselines on USPS beyond {made['passes']} passes, for want of time.")
    if made["seeds"] < 5:
        found.append(f"{5 - made['seeds']} of the 5 seeds of baselines on USPS, for want of time.")
    for data in values(lines, "data"):
        absent = [name for name in values(lines, "method") if not those(lines, data=data, method=name)]
        absent = [name for name in absent if name != OURS[1]]  # where the papers' steps are nearly the same
        if absent:
            found.append(f"On {TITLES.get(data, data)} {listed(absent)}, for want of time.")
    if not any("(000)" in name for name in made["methods"] - set(OURS)):
        found.append(
            "SGD and ADADELTA with paper 000's own settings, and the authors' baselines without N/M: not run yet."
        )
    return found


def _tables2(folder: Path) -> dict[str, str]:
    from provi_lab.common.report import tables_of
    from provi_lab.papers.pgsvi import figure2

    curves = figure2.read_curves(folder / f"{figure2.NAME}.csv")
    rows = [row for setting in figure2.SETTINGS for row in figure2.summary(setting, curves)]
    return tables_of(figure2.claims(figure2.SETTINGS, curves), rows)


def _tables1(folder: Path) -> dict[str, str]:
    """Passes are counted in the CSV file, examples on the page, which says how many make a pass."""
    from provi_lab.common.page import parts_of, read_lines
    from provi_lab.common.report import tables_of
    from provi_lab.papers.pgsvi import figure1

    name = figure1.NAME
    text = parts_of((folder / f"{name}.md").read_text(encoding="utf-8"), name).setting
    found = re.search(r"N = (\d+)", text)
    assert found is not None
    curves = figure1.read_curves(read_lines(folder / f"{name}.csv"))
    rows = figure1.rows_of(curves, int(found[1]))
    return tables_of(figure1.claims(int(found[1]), figure1.IONOSPHERE.batch, rows), rows)


FIGURE1 = About(
    name="pgsvi-figure1",
    source="paper 002, Figure 1",
    claim="gradient descent needs many more passes than the proximal-gradient method (PG), which bears much "
    "larger steps, "
    "and PG-SVI, with batches of five data, is as fast as PG",
    head=_head1,
    made=made_by({"methods": "method"}, {"passes": "passes"}),
    defaults=_defaults1,
    tables=_tables1,
    differs="the paper stops when the lower bound changes by less than a threshold that it does not give; here "
    "a run has "
    "converged when its exact gap to the best Gaussian is at most 1 nat (or 0.1).",
)
FIGURE2 = About(
    name="pgsvi-figure2",
    source="paper 002, Figure 2; paper 000, Figure 1",
    claim="in GP classification PG-SVI always converges within 10 passes through the data, where SGD, ADAGRAD, "
    "RMSprop, "
    "ADADELTA and ADAM need more than 100",
    head=_head2,
    made=_made2,
    defaults=_defaults2,
    left_out=_left_out2,
    tables=_tables2,
    differs="the baselines have exact expectations, which favours them; the papers' have S draws.",
)
