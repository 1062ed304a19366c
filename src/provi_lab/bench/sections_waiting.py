"""Sections of the page: how long a first fit takes, and who waits for the compiler again."""

from collections.abc import Sequence
from typing import Any

from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row, aim, grouped, number

_PROCESSES_TEXT = """\
Wall seconds of fresh processes, the interpreter's start and all imports included, the least of some runs: with an empty
cache of compiled programs, and with one that a process before has filled. *Ten lines* are those of the README up to the
printed summary and certificate. Other libraries fit a logistic regression to the same table: its maximum, or for
NumPyro a Gaussian by 2,000 steps of Adam, without a proof."""

_BEYOND_TEXT = """\
Seconds of a target and of its first fit, certificate included, beyond `import provi` (and `import numpyro`), measured
inside fresh processes. What is imported only as it is needed is a part of both, told in *imports*. Aims are for wall
seconds beyond imports on two cores that are not busy; processor seconds suffer less from other work. *Programs* are
those that XLA compiled or read."""

_MODELS_TEXT = """\
Fits of one process after another: processor seconds of `provi.fit` alone, of a robust regression (five parameters, 40
rows), the same translated anew, with other data, and another model with as many parameters; the cache of compiled
programs empty, and filled by the process before. In brackets: programs that XLA compiled or read from the cache."""

_FIRST = {"logistic": {"empty": 1.0, "filled": 0.4}, "black box": {"empty": 2.5}}
"""Wall seconds of a target with its first fit that are aimed at, by the beginning of the problem's name."""


def process_cells(rows: Sequence[Row]) -> Cells:
    """One line a command."""
    names = ["process", "empty cache, s", "filled cache, s"]
    # As code: <TAB> would be a tag of HTML.
    return names, [[f"`{row['what']}`" if "<" in row["what"] else row["what"], *_both(row)] for row in rows]


def _both(row: Row) -> list[str]:
    return [number(row[f"{state}_cache"], 2) for state in ("empty", "warm")]


def beyond_rows(record: dict[str, Any]) -> list[Row]:
    """What was measured inside the processes."""
    return record.get("beyond_imports", [])


def beyond_cells(rows: Sequence[Row]) -> Cells:
    """One line a problem and state of the cache."""
    names = ["problem", "cache", "target, wall s", "fit, wall s", "target, CPU s", "fit, CPU s"]
    names += ["imports, wall s", "imports, CPU s", "programs"]
    keys = ("target_wall", "fit_wall", "target_cpu", "fit_cpu", "imports_wall", "imports_cpu")
    lines = []
    for row in rows:
        seconds = [number(row[key], 2) if key in row else "" for key in keys]  # older records have no imports
        lines.append([row["what"], row["cache"], *seconds, str(row["programs"])])
    return names, lines


def beyond_verdicts(rows: Sequence[Row]) -> list[str]:
    """Target and fit together, less what the record says of their imports, against the aims, where there is one."""
    lines = []
    for row in rows:
        most = next((aims.get(row["cache"]) for name, aims in _FIRST.items() if row["what"].startswith(name)), None)
        if most is not None:
            spent, cpu = row["target_wall"] + row["fit_wall"], row["target_cpu"] + row["fit_cpu"]
            spent, cpu = spent - row.get("imports_wall", 0.0), cpu - row.get("imports_cpu", 0.0)
            beyond = " beyond imports" if "imports_wall" in row else ""
            words = f"{row['what']}, {row['cache']} cache, wall seconds{beyond} ({cpu:.2f} of processor)"
            lines.append(aim(words, spent, most))
    return lines


def model_cells(rows: Sequence[Row]) -> Cells:
    """One line a package and state of the cache, the fits one after another."""
    fits = list(dict.fromkeys(row["fit"] for row in rows))
    lines = []
    for package, own in grouped(rows, "package").items():
        for state, few in grouped(own, "cache").items():
            seen = {row["fit"]: f"{row['seconds']:.2f} ({row['programs']})" for row in few}
            lines.append([package, state, *(seen.get(fit, "") for fit in fits)])
    return ["language", "cache", *fits], lines


SECTIONS = (
    Section(
        kind="first-fit",
        heading="How long a new user waits",
        text=_PROCESSES_TEXT,
        title="Fresh processes, wall seconds",
        cells=process_cells,
        made_by="`benchmarks/first_fit.py`",
    ),
    Section(
        kind="first-fit",
        heading="First fits beyond the imports",
        text=_BEYOND_TEXT,
        title="Targets and first fits beyond the imports",
        cells=beyond_cells,
        verdicts=beyond_verdicts,
        rows=beyond_rows,
        made_by="`benchmarks/first_fit.py`",
    ),
    Section(
        kind="model-fits",
        heading="Models of NumPyro, PyMC and Stan, one after another",
        text=_MODELS_TEXT,
        title="Fits one after another, CPU seconds (programs)",
        cells=model_cells,
        made_by="`benchmarks/model_fits.py`",
    ),
)
