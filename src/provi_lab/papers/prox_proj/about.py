"""What the pages of paper 003's theorems begin with; the paper has no figures or tables."""

import re
from pathlib import Path

from provi_lab.common.page import About, Head, Lines, Settings, made_with, those, values

NAMES = {"7": "Prox-SGD", "8": "Prox-SGD", "10": "Proj-SGD", "11": "Proj-SGD"}


def _rates_head(lines: Lines) -> Head:
    words, least = [], {}
    for theorem in values(lines, "theorem"):
        own = those(lines, theorem=theorem)
        least[theorem] = min(float(line["bound"]) / float(line["mean"]) for line in own)
        words.append(f"Theorem {theorem} ({NAMES[theorem]}) {least[theorem]:.3g}")
    held = sum(ratio >= 1 for ratio in least.values())
    return Head(
        "the least ratio of bound to measured mean error over two small logistic regressions and up to "
        f"{max(int(line['steps']) for line in lines):,} steps: " + ", ".join(words),
        f"{'holds' if held == len(least) else 'does not hold everywhere'}: the bounds hold for {held} of {len(least)} "
        f"theorems, with much room to spare; the slopes are in the table of claims",
    )


def _replicates(text: str) -> Settings:
    found = re.search(r"(\d+) replicates", text)
    return {"replicates": int(found[1])} if found else {}


def _rates_made(lines: Lines, text: str) -> Settings:
    return made_with({"problems": "problem"}, {"steps": "steps"}, lines, text) | _replicates(text)


def _rates_defaults() -> Settings:
    return {"problems": {"well conditioned", "spread spectrum"}, "steps": 2**15, "replicates": 48}


def _whitened_made(lines: Lines, text: str) -> Settings:
    return made_with({"problems": "problem"}, {"steps": "steps"}, lines, text) | _replicates(text)


STICKING, ENTROPY = "sticking the landing", "entropy"


def _sticking_head(lines: Lines) -> Head:
    def end(estimator: str) -> tuple[float, float]:
        own = sorted(those(lines, estimator=estimator, multiple=1), key=lambda line: float(line["step"]))
        return float(own[0]["mean"]), float(own[-1]["mean"])

    (start, ours), (_, theirs) = end(STICKING), end(ENTROPY)
    bounded = [
        float(line["mean"]) <= float(line["bound"])
        for line in those(lines, estimator=STICKING, multiple=1)
        if float(line["mean"]) > 1e-20 * start
    ]
    return Head(
        f"at the corollary's step the mean squared distance to the optimum falls from {start:.3g} to {ours:.2g} with "
        f"sticking the landing, and stalls at {theirs:.2g} with the entropy estimator",
        f"{'holds' if all(bounded) and ours < 1e-10 * start else 'does not hold'}: the convergence is linear down to "
        f"rounding, below the bound at {sum(bounded)} of {len(bounded)} recorded steps",
    )


def _sticking_made(lines: Lines, text: str) -> Settings:
    dim = re.search(r"with d = (\d+)", text)
    found = made_with({"estimators": "estimator"}, {}, lines, text) | _replicates(text)
    return found | ({"dimension": int(dim[1])} if dim else {})


def _sticking_defaults() -> Settings:
    return {"estimators": {STICKING, ENTROPY}, "dimension": 10, "replicates": 32}


def _whitened_head(lines: Lines) -> Head:
    words, useful = [], 0
    problems = values(lines, "problem")
    for problem in problems:
        last = {
            name: max(those(lines, problem=problem, coordinates=name), key=lambda line: int(line["steps"]))
            for name in ("given", "whitened")
        }
        given, white = last["given"], last["whitened"]
        useful += float(white["certified_bound"]) < 1
        words.append(
            f"{problem}, {int(white['steps']):,} gradients: {float(given['bound']):.4g} nats as the theorem has it, "
            f"{float(white['bound']):.4g} in whitened coordinates, {float(white['certified_bound']):.3g} with "
            f"certified distances too; measured gaps {float(given['gap']):.3g} and, whitened, {float(white['gap']):.2g}"
        )
    held = all(float(line[key]) >= float(line["gap"]) for line in lines for key in ("bound", "certified_bound"))
    return Head(
        "; ".join(words),
        f"{'no bound is below its measured gap' if held else 'a bound is below its measured gap'}; with both remedies "
        f"it is below one nat on {useful} of {len(problems)} problems",
    )


def _whitened_defaults() -> Settings:
    from provi_lab.papers.prox_proj import certified

    sizes = {"steps": certified.HORIZONS[-1], "replicates": certified.REPLICATES}
    return {"problems": {"spread spectrum", "Ionosphere"}, **sizes}


def _whitened_tables(folder: Path) -> dict[str, str]:
    from provi_lab.common.page import read_lines
    from provi_lab.common.report import tables_of
    from provi_lab.papers.prox_proj import certified

    rows = certified.read_rows_of(read_lines(folder / "prox-whitened.csv"))
    return tables_of(certified.claims(rows), certified.summary(rows))


WHITENED = About(
    name="prox-whitened",
    source="ours, on paper 003, Theorem 8",
    claim="the bound of Theorem 8 holds in whitened coordinates too, where it is smaller, and most of what is left of "
    "it is due to the distances d/mu that strong convexity gives beforehand: a certificate's distances take that away",
    head=_whitened_head,
    made=_whitened_made,
    defaults=_whitened_defaults,
    tables=_whitened_tables,
    ours=True,
)
RATES = About(
    name="prox-proj-rates",
    source="paper 003, Theorems 7, 8, 10 and 11",
    claim="with the theorems' steps, the errors of Prox-SGD and Proj-SGD stay below explicit bounds, which "
    "fall like 1/T "
    "for strongly convex and like 1/sqrt(T) for convex problems",
    head=_rates_head,
    made=_rates_made,
    defaults=_rates_defaults,
)
STICKING_THE_LANDING = About(
    name="stl-gaussian",
    source="paper 003, Corollary 14",
    claim="on a Gaussian target, Proj-SGD with the sticking-the-landing estimator converges linearly, with "
    "constant steps "
    "and no floor of noise",
    head=_sticking_head,
    made=_sticking_made,
    defaults=_sticking_defaults,
)
