"""lme4, glmmTMB and rstanarm, in R, on the mixed models that they know.

    python -m provi_lab.mixed.peers [--problem NAME] [--repeats 3] [--record FOLDER]

Needs `Rscript` and the Debian packages r-cran-lme4, r-cran-glmmtmb and r-cran-rstanarm; one that is missing is a row
"not installed". R reads a CSV and times the call of the fit alone, the least of a few; neither its start nor reading is
counted. lme4 and glmmTMB maximise a likelihood (REML for `lmer`), rstanarm samples, with one core, four chains.
"""

import argparse
import csv
import dataclasses
import datetime
import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from provi_lab.bench.record import make_record
from provi_lab.common.tables import Row, print_cells
from provi_lab.mixed.problems import Problem, grouped_logistic, radon

RESULTS = Path("benchmarks/results")

_PROGRAM = """\
words <- commandArgs(trailingOnly = TRUE)
data <- read.csv(words[1])
for (name in strsplit(words[2], ",")[[1]]) data[[name]] <- factor(data[[name]])
repeats <- as.integer(words[3])
library({package}, warn.conflicts = FALSE, quietly = TRUE)
formula <- {formula}
fit <- function() {call}
times <- sapply(seq_len(repeats), function(i) {{
  time <- system.time(model <<- fit())
  c(time[["elapsed"]], time[["user.self"]] + time[["sys.self"]])
}})
fixed <- {fixed}
scales <- {scales}
cat("\\n@seconds", times[1, ], "\\n")
cat("@cpu", times[2, ], "\\n")
for (name in names(fixed)) cat("@", name, " ", format(fixed[[name]], digits = 10), "\\n", sep = "")
for (name in names(scales)) cat("@", name, " ", format(scales[[name]], digits = 10), "\\n", sep = "")
cat("@version", as.character(packageVersion("{package}")), R.version.string, "\\n")
"""

# The table of variances: the second variable is empty for a standard deviation, and a name for a correlation.
_SCALES = """local({{
  table <- as.data.frame({source})
  kind <- ifelse(table$grp == "Residual", "sigma", ifelse(is.na(table$var2),
    paste0("sd(", table$grp, ": ", table$var1, ")"),
    paste0("cor(", table$grp, ": ", table$var1, ", ", table$var2, ")")))
  setNames(as.list(table$sdcor), gsub("(Intercept)", "Intercept", kind, fixed = TRUE))
}})"""

_TMB_SCALES = """local({
  found <- VarCorr(model)$cond
  values <- unlist(lapply(names(found), function(group) setNames(attr(found[[group]], "stddev"),
    paste0("sd(", group, ": ", names(attr(found[[group]], "stddev")), ")"))))
  as.list(setNames(values, gsub("(Intercept)", "Intercept", names(values), fixed = TRUE)))
})"""

_PRIORS = "prior = normal(0, 2.5, autoscale = FALSE), prior_intercept = normal(0, 2.5, autoscale = FALSE)"


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library's call for one family; `{family}` is filled in. - `slow`: run once."""

    name: str
    package: str
    call: Mapping[str, str]
    fixed: str = "as.list(fixef(model))"
    scales: str = _SCALES.format(source="VarCorr(model)")
    slow: bool = False


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "lme4",
            "lme4",
            {
                "gaussian": "lmer(formula, data)",
                "binomial": "glmer(formula, data, family = binomial, nAGQ = 1)",
            },
        ),
        Peer(
            "glmmTMB",
            "glmmTMB",
            {"gaussian": "glmmTMB(formula, data)", "binomial": "glmmTMB(formula, data, family = binomial)"},
            fixed="as.list(fixef(model)$cond)",
            scales=_TMB_SCALES,
        ),
        Peer(
            "rstanarm",
            "rstanarm",
            {
                "gaussian": f"stan_lmer(formula, data, {_PRIORS}, chains = 4, cores = 1, refresh = 0, seed = 1)",
                "binomial": f"stan_glmer(formula, data, family = binomial, {_PRIORS}, chains = 4, cores = 1, "
                "refresh = 0, seed = 1)",
            },
            slow=True,
        ),
    )
}


@dataclasses.dataclass(frozen=True)
class Answer:
    """Seconds of each fit, of the clock and of the processor, estimates by our names, versions of the package and R."""

    seconds: list[float]
    cpu: list[float]
    estimates: dict[str, float]
    versions: str


def fit(peer: Peer, problem: Problem, repeats: int = 3, limit: float = 300.0) -> Answer:
    """Fit `problem` by `peer` in a process of R; `limit`: seconds of that process."""
    if problem.formula is None or problem.family is None:
        raise ValueError(f"{problem.name} has no formula that {peer.name} could read.")
    if shutil.which("Rscript") is None:
        raise FileNotFoundError("Rscript is not installed: apt-get install r-base-core")
    filled = {"package": peer.package, "formula": problem.formula, "call": peer.call[problem.family]}
    program = _PROGRAM.format(**filled, fixed=peer.fixed, scales=peer.scales)
    groups = [name for name, column in problem.table.items() if column.dtype.kind == "i"]
    with tempfile.TemporaryDirectory() as folder:
        data, script = Path(folder, "data.csv"), Path(folder, "fit.R")
        _write(data, problem.table)
        script.write_text(program, encoding="utf-8")
        words = ["Rscript", "--vanilla", str(script), str(data), ",".join(groups), str(1 if peer.slow else repeats)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit, check=False)
    if "there is no package called" in done.stderr:
        raise ModuleNotFoundError(f"{peer.package} is not installed: apt-get install r-cran-{peer.package.lower()}")
    if done.returncode:
        raise RuntimeError(f"{peer.name} failed: {done.stderr.strip().splitlines()[-1:]}")
    return _read(done.stdout)


def _write(path: Path, table: Mapping[str, np.ndarray]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*(column.tolist() for column in table.values()), strict=True))


def _read(text: str) -> Answer:
    """The lines of the program's output that begin with @."""
    numbers, estimates, versions = {"seconds": [], "cpu": []}, {}, ""
    for line in (line[1:].strip() for line in text.splitlines() if line.startswith("@")):
        first, _, rest = line.partition(" ")
        if first in numbers:
            numbers[first] = [float(word) for word in rest.split()]
        elif first == "version":
            versions = rest
        else:
            name, _, value = line.rpartition(" ")
            estimates["Intercept" if name == "(Intercept)" else name] = float(value)
    # One coefficient a group needs no label in our names.
    plain = [name for name in estimates if name.startswith("sd(")]
    for name in plain:
        group = name[3:].partition(":")[0]
        if sum(other.startswith(f"sd({group}:") for other in plain) == 1:
            estimates[f"sd({group})"] = estimates.pop(name)
    return Answer(numbers["seconds"], numbers["cpu"], estimates, versions)


def problems() -> dict[str, Problem]:
    """Those that R's libraries are timed on."""
    return {
        "logistic": grouped_logistic(),
        "large": grouped_logistic(100_000, 10_000, 4),
        "radon": radon(),
    }


def measure(names: list[str] | None = None, repeats: int = 3) -> list[Row]:
    """A row for each problem and peer; rstanarm is not asked for the large one."""
    rows = []
    for key, problem in problems().items():
        for peer in PEERS.values():
            if (names and key not in names) or (key == "large" and peer.slow):
                continue
            row: Row = {"problem": key, "rows": len(problem.table["y"]), "peer": peer.name, "call": None}
            row["call"] = peer.call[str(problem.family)].replace("formula", str(problem.formula), 1)
            try:
                found = fit(peer, problem, 1 if key == "large" else repeats)
            except (ModuleNotFoundError, RuntimeError, subprocess.TimeoutExpired) as error:
                rows.append({**row, "status": str(error)})
                continue
            row |= {"status": "ok", "seconds": min(found.seconds), "cpu_seconds": min(found.cpu)}
            row["load_average"] = round(os.getloadavg()[0], 2)
            rows.append({**row, "estimates": found.estimates, "versions": found.versions})
            print(f"{key}, {peer.name}: {min(found.seconds):.2f} s", flush=True)
    return rows


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m provi_lab.mixed.peers", description=__doc__)
    parser.add_argument("--problem", action="append", choices=["logistic", "large", "radon"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path, nargs="?", const=RESULTS, help="a folder to write rows to, as JSON")
    chosen = parser.parse_args()
    rows = measure(chosen.problem, chosen.repeats)
    cells = [
        [row["problem"], row["peer"], _seconds(row), f"{row.get('cpu_seconds', math.nan):.3g}", _words(row)]
        for row in rows
    ]
    print_cells(
        "Fits in R, seconds of the fit alone", (["problem", "peer", "seconds", "processor", "estimates"], cells)
    )
    if chosen.record is not None:
        record = {**make_record("mixed-peers", rows), "command": "python -m provi_lab.mixed.peers --record"}
        path = chosen.record / f"{datetime.date.today().isoformat()}-mixed-peers.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")


def _seconds(row: Row) -> str:
    return f"{row['seconds']:.3g}" if row["status"] == "ok" else row["status"][:60]


def _words(row: Row) -> str:
    found: dict[str, Any] = row.get("estimates", {})
    return ", ".join(f"{name} {value:.3f}" for name, value in found.items())


if __name__ == "__main__":
    main()
