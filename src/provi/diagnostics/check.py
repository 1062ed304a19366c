"""Does the model fit its data: the observed responses beside responses simulated at a draw of the posterior.

With z* of the prior and y of the model, a posterior draw z and y have the joint law of the model; so have z and data
simulated at z. Hence y and S such simulations are exchangeable given z, and the rank of any statistic of y among theirs
is uniform (Johnson 2007, Gosselin 2011): a rate of false alarms without the caution that posterior predictive p-values
have because y was used twice. It is as exact as q is the posterior.
"""

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from scipy import special

from provi.core.arguments import check_count
from provi.diagnostics.check_statistics import (
    ADVICE,
    EXPLAINS,
    Kind,
    Statistic,
    calibrate,
    quantile_bins,
    response_kind,
    statistics,
)
from provi.diagnostics.pareto import USABLE_K, pareto_tails
from provi.targets import likelihoods

RATE = 0.01
"""The rate of false alarms of all checks together."""

_MOST_REPLICATES, _FEWEST_REPLICATES = 1000, 200
_NUMBERS = 2**22  # of the table of simulated responses
_MOST_ROWS = 2**16
_LOO_DRAWS, _LOO_NUMBERS, _FEWEST_LOO_DRAWS = 1000, 2**22, 400
_LISTED, _NAMED = 5, 3


@dataclasses.dataclass(frozen=True)
class CheckRow:
    """One check: the observed value, the central 98% of the simulated ones, and the p-value for all checks together."""

    name: str
    observed: float
    low: float
    high: float
    p_value: float
    ok: bool
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.observed:.3g}, under the model {self.low:.3g} to {self.high:.3g}"


@dataclasses.dataclass(frozen=True)
class Influence:
    """Rows without which the posterior would be another one: k-hat of leave-one-out above 0.7. No test, no rate.

    - `p_loo`: the effective number of parameters, beside their number. - `pareto_k`: of every row.
    """

    p_loo: float
    num_parameters: int
    pareto_k: np.ndarray = dataclasses.field(repr=False)

    @property
    def rows(self) -> tuple[int, ...]:
        """The influential rows, the worst first."""
        tails = np.nan_to_num(self.pareto_k, nan=-np.inf)  # NaN: too many weights are equal to fit a tail
        order = np.argsort(-tails, kind="stable")
        return tuple(int(i) for i in order if tails[i] > USABLE_K)

    @property
    def words(self) -> str:
        """What is found, in a sentence or two."""
        rows = self.rows
        said = f"p_loo {self.p_loo:.3g} for {self.num_parameters} parameters"
        if self.p_loo > 1.5 * self.num_parameters + 3:
            said += ", far more than there are: single rows pull at the fit, as they do where a model is too narrow"
        if not rows:
            return f"{said}; no influential row (all k-hat at most {USABLE_K})."
        more = f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
        listed = ", ".join(f"{row} ({self.pareto_k[row]:.2f})" for row in rows[:_LISTED])
        return f"{said}; influential rows (k-hat above {USABLE_K}, rows counted from 0): {listed}{more}."


@dataclasses.dataclass(frozen=True)
class ModelCheck:
    """Whether the model fits its data; prints itself.

    - `rows`: the checks. - `p_value`: of all together; `ok` where it is above `false_alarm_rate`.
    - `influence`: rows that decide by themselves, where log-likelihoods are known. - `notes`: lines below the table.
    - `table`: (S + 1, N), the observed responses and the simulated ones. - `kind`: "binary", "classes", "counts",
      "grades" or "real".
    """

    rows: tuple[CheckRow, ...]
    p_value: float
    kind: Kind
    num_replicates: int
    influence: Influence | None
    notes: tuple[str, ...]
    table: np.ndarray = dataclasses.field(repr=False, compare=False)
    false_alarm_rate: float = RATE

    @property
    def ok(self) -> bool:
        """Whether no check fails."""
        return self.p_value > self.false_alarm_rate

    @property
    def failed(self) -> tuple[CheckRow, ...]:
        """The checks that fail; those that are the likely reason for others first."""
        failed = [row for row in self.rows if not row.ok]
        return tuple(sorted(failed, key=lambda row: (not row.name.startswith(tuple(EXPLAINS)), row.p_value)))

    @property
    def verdict(self) -> str:
        """One sentence."""
        level = f"false-alarm rate {100 * self.false_alarm_rate:g}%"
        if self.ok:
            return f"The model fits: none of {len(self.rows)} checks fails ({level}; p = {self.p_value:.2g})."
        failed = self.failed
        more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        return f"The model does not fit ({level}): {'; '.join(map(str, failed[:_NAMED]))}{more}."

    @property
    def advice(self) -> tuple[str, ...]:
        """What the failed checks mean and what to try, a sentence each."""
        names = [row.name for row in self.failed]
        explained = {
            name
            for reason, others in EXPLAINS.items()
            if any(failed.startswith(reason) for failed in names)
            for name in names
            if name.startswith(others) and not name.startswith(reason)
        }
        said = dict.fromkeys(row.advice for row in self.failed if row.advice and row.name not in explained)
        return tuple(f"{line[0].upper()}{line[1:]}." for line in said)

    def grid(self) -> Table:
        """The checks as a rich table; those against columns but for the worst one and those that fail are left out."""
        table = Table(title="Does the model fit?", title_justify="left", title_style="bold", show_edge=False)
        for name in ("check", "observed", "1% simulated", "99%", "p, all checks", ""):
            table.add_column(name, justify="left" if name in ("check", "") else "right")
        for row in self.shown_rows():
            numbers = (f"{row.observed:.3g}", f"{row.low:.3g}", f"{row.high:.3g}", f"{row.p_value:.2g}")
            table.add_row(Text(row.name), *numbers, "" if row.ok else "fails")
        return table

    def shown_rows(self) -> list[CheckRow]:
        """All rows but those against covariates that pass, of which the worst is kept."""
        about = [row for row in self.rows if row.name.startswith("residuals against ") and row.name not in ADVICE]
        kept = {id(row) for row in about if not row.ok} | {id(min(about, key=lambda row: row.p_value))} if about else {}
        found = [row for row in self.rows if row not in about or id(row) in kept]
        return [row for row in found if not row.observed == row.low == row.high]

    def __str__(self) -> str:
        console = Console(width=100, file=io.StringIO())
        console.print(self.grid())
        influence = [] if self.influence is None else [self.influence.words]
        for line in (self.verdict, *self.advice, *influence, *self.notes):
            console.print(line, markup=False, highlight=False)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the verdict, the checks, influential rows."""
        influence = self.influence
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "p_value": self.p_value,
            "false_alarm_rate": self.false_alarm_rate,
            "num_replicates": self.num_replicates,
            "kind": self.kind,
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "advice": list(self.advice),
            "p_loo": None if influence is None else influence.p_loo,
            "influential_rows": None if influence is None else list(influence.rows),
            "notes": list(self.notes),
        }


def check_model(
    target: Any, posterior: Any, num_replicates: int | None = None, seed: int = 0, names: Sequence[str] = ()
) -> ModelCheck:
    """Compare the observed data of `target` with data simulated at a draw of the posterior.

    **Arguments:**

    - `num_replicates`: simulated sets; 1000, and down to 200 where there are more than 4000 responses.
    - `names`: of the inputs, where the target itself has none for them.

    A `ValueError` says why a target cannot be checked: it knows no data, or not how they are drawn.
    """
    observed = _observed(target)
    size, trials = len(observed), _trials(target, observed)
    count = int(np.clip(_NUMBERS // size, _FEWEST_REPLICATES, _MOST_REPLICATES))
    count = count if num_replicates is None else check_count("num_draws", num_replicates, minimum=_FEWEST_REPLICATES)
    rng = np.random.default_rng([check_count("seed", seed, minimum=0), 20])
    places = np.arange(size) if size <= _MOST_ROWS else np.sort(rng.choice(size, _MOST_ROWS, replace=False))
    draws = posterior.sample(1 + _loo_draws(size), seed)
    if trials is None:
        simulated = _simulate(target, draws[0], places, count, seed, rng)
        table = np.concatenate([observed[None, places], simulated])
    else:
        successes = np.round(observed * trials)[None, places]
        table = np.concatenate([successes, _successes(target, draws[0], trials, places, count, rng)])
    graded = isinstance(getattr(target, "likelihood", None), likelihoods.OrdinalLogit)
    kind = response_kind(table, "grades" if graded else "classes" if hasattr(target, "classes") else None)
    found = statistics(table, kind, {name: x[places] for name, x in _columns(target, size, names).items()}, seed)
    calibrated = calibrate(found)
    rows = tuple(_row(statistic, float(p)) for statistic, p in zip(found, calibrated.adjusted, strict=True))
    mean_law = target.response_law(draws.mean(axis=0))
    score = table[1:].mean(axis=0) if mean_law is None else np.asarray(mean_law[1])[places]
    notes = _notes(table, kind, size, score)
    return ModelCheck(
        rows, calibrated.p_value, kind, count, _influence(target, observed, draws[1:]), notes, table
    )  # fmt: skip


def _row(statistic: Statistic, p_value: float) -> CheckRow:
    low, high = np.quantile(statistic.shown[1:], [0.01, 0.99])
    name = statistic.name
    observed = float(statistic.shown[0])
    advice = ADVICE.get(name, ("", ""))[int(observed < np.median(statistic.shown))]
    if statistic.column is not None:
        advice = f"residuals depend on {statistic.column}: try a curved term in it (its square, a spline), or its "
        advice += "interactions"
    return CheckRow(name, observed, float(low), float(high), p_value, p_value > RATE, advice)


def _observed(target: Any) -> np.ndarray:
    data = target.observed_data
    if getattr(target, "stream", None) is not None:
        raise ValueError("check: the rows are read in blocks, and it needs all of them. Take a sample in memory.")
    if not data:
        raise ValueError(f"check: {type(target).__name__} does not know its data. Take a model with a likelihood.")
    values = np.concatenate([np.ravel(np.asarray(part, np.float64)) for _, part in sorted(data.items())])
    if isinstance(getattr(target, "likelihood", None), likelihoods.Weibull | likelihoods.LogNormalSurvival):
        if (values < 0).any():
            raise ValueError("check: some times are censored, and how long others would have been watched is unknown.")
    if len(values) < 2 or not np.isfinite(values).all():
        raise ValueError("check: it takes two observed numbers or more, all finite.")
    return values


def _trials(target: Any, observed: np.ndarray) -> np.ndarray | None:
    """The trials of shares of successes, which are their weights; an error for rows that stand for several data."""
    weights = getattr(target, "weights", getattr(getattr(target, "likelihood", None), "weights", None))
    if weights is None:
        return None
    weights = np.asarray(weights, np.float64)
    shares = ((observed > 0) & (observed < 1)).any() and ((observed >= 0) & (observed <= 1)).all()
    if not shares or (weights != np.round(weights)).any() or len(weights) != len(observed):
        raise ValueError("check: the rows are weighted, and stand for several data: give each datum a row of its own.")
    return weights


def _successes(target: Any, z: np.ndarray, trials: np.ndarray, places: np.ndarray, count: int, rng: Any) -> np.ndarray:
    """`count` sets of numbers of successes drawn at z."""
    law = target.response_law(z)
    link = None if law is None else {"BernoulliLogit": special.expit, "BernoulliProbit": special.ndtr}.get(
        type(law[0]).__name__
    )  # fmt: skip
    if law is None or link is None:
        raise ValueError("check: the shares of successes are not binomial.")
    chance = link(np.asarray(law[1])[places])
    return rng.binomial(trials[places].astype(int), chance, (count, len(places))).astype(np.float64)


def _simulate(target: Any, z: np.ndarray, places: np.ndarray, count: int, seed: int, rng: Any) -> np.ndarray:
    """`count` sets of responses drawn at z, the entries at `places`; on the host where the likelihood is known."""
    law = target.response_law(z)
    if law is not None:
        drawn = _draw(law[0], np.asarray(law[1])[places], count, rng)
        if drawn is not None:
            return drawn
    at_once = max(1, 2**24 // max(target.dim, sum(np.size(part) for part in target.observed_data.values())))
    parts = []
    for block, start in enumerate(range(0, count, at_once)):
        rows = np.repeat(z[None], min(at_once, count - start), axis=0)
        found = target.predict(rows, seed + 7919 * block)
        if not found:
            raise ValueError(f"check: {type(target).__name__} does not say how its data are drawn.")
        names = [name for name, _ in sorted(target.observed_data.items())]
        if any(name not in found for name in names):
            raise ValueError(f"check: {type(target).__name__} does not draw all of its data.")
        flat = [np.asarray(found[name], np.float64).reshape(len(rows), -1) for name in names]
        parts.append(np.concatenate(flat, axis=1)[:, places])
    return np.concatenate(parts)


def _draw(law: Any, eta: np.ndarray, count: int, rng: Any) -> np.ndarray | None:
    """y ~ p(y | eta), `count` times, in NumPy; None for likelihoods that are not here."""
    shape = (count, len(eta))
    match law:
        case likelihoods.BernoulliLogit():
            return (rng.random(shape) < special.expit(eta)).astype(np.float64)
        case likelihoods.BernoulliProbit():
            return (rng.random(shape) < special.ndtr(eta)).astype(np.float64)
        case likelihoods.Poisson():
            return rng.poisson(np.exp(np.minimum(eta, 40.0)), shape).astype(np.float64)
        case likelihoods.NegativeBinomial():
            size = float(law.dispersion)
            rate = rng.gamma(size, size=shape) * np.exp(np.minimum(eta, 40.0)) / size
            return rng.poisson(np.minimum(rate, 1e18)).astype(np.float64)
        case likelihoods.GaussianNoise():
            return eta + float(law.scale) * rng.standard_normal(shape)
        case likelihoods.StudentT():
            return eta + float(law.scale) * rng.standard_t(float(law.df), shape)
        case _:
            return None


def _log_likelihoods(law: Any, eta: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """log p(y_n | eta_sn) in NumPy, (S, N); None for likelihoods that are not here."""
    match law:
        case likelihoods.BernoulliLogit():
            return -np.logaddexp(0, (1 - 2 * y) * eta)
        case likelihoods.BernoulliProbit():
            return special.log_ndtr((2 * y - 1) * eta)
        case likelihoods.Poisson():
            return y * eta - np.exp(np.minimum(eta, 700.0)) - special.gammaln(y + 1)
        case likelihoods.NegativeBinomial():
            r = float(law.dispersion)
            whole = special.gammaln(y + r) - special.gammaln(r) - special.gammaln(y + 1)
            shift = eta - np.log(r)
            return whole - y * np.logaddexp(0, -shift) - r * np.logaddexp(0, shift)
        case likelihoods.GaussianNoise():
            scale = float(law.scale)
            return -0.5 * ((y - eta) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
        case _:
            return None


def _columns(target: Any, size: int, inputs: Sequence[str]) -> dict[str, np.ndarray]:
    """Covariates by name, one entry a response; none where the target does not show them."""
    design, names = getattr(target, "inputs", None), None  # of Gaussian processes
    if design is None and hasattr(target, "fixed"):  # of latent Gaussian models
        design, names = target.fixed, target.fixed_names
    elif design is None:
        model = target.linear_model()
        model = target if model is None else model
        design = getattr(model, "design", None)
        names = None if design is None else getattr(model, "column_names", model.parameter_names)
    if design is None or getattr(design, "ndim", 0) != 2 or design.shape[0] != size:
        return {}
    if names is None:
        names = inputs if len(inputs) == design.shape[1] else [f"column {k}" for k in range(design.shape[1])]
    return {str(name): x for name, x in zip(names, np.asarray(design, np.float64).T, strict=True)}


def _loo_draws(size: int) -> int:
    """Draws for leave-one-out; none where there are too many rows for enough of them."""
    found = min(_LOO_DRAWS, _LOO_NUMBERS // size)
    return found if found >= _FEWEST_LOO_DRAWS else 0


def _influence(target: Any, observed: np.ndarray, draws: np.ndarray) -> Influence | None:
    """PSIS leave-one-out from draws of q taken as the posterior's; `fit.loo()` corrects for what q is not."""
    if not len(draws):
        return None
    law = target.response_law(draws)
    values = None if law is None else _log_likelihoods(law[0], np.asarray(law[1]), observed)
    if values is None:
        found = target.log_likelihood(draws)
        if not found or sum(part[0].size for part in found.values()) != len(observed):
            return None
        flat = [np.asarray(part, np.float64).reshape(len(draws), -1) for _, part in sorted(found.items())]
        values = np.concatenate(flat, axis=1)
    if not np.isfinite(values).all():
        return None
    # p(y_n | y) is the mean of p(y_n | z), and p(y_n | y_-n) one over the mean of 1/p(y_n | z).
    loo = np.log(len(draws)) - special.logsumexp(-values, axis=0)
    whole = special.logsumexp(values, axis=0) - np.log(len(draws))
    return Influence(float((whole - loo).sum()), target.dim, pareto_tails(-values))


def _notes(table: np.ndarray, kind: Kind, size: int, score: np.ndarray) -> tuple[str, ...]:
    """`score`: by which rows are ordered from zeros to ones."""
    notes = []
    if not _loo_draws(size):
        notes.append(f"Influential rows were not looked for among {size:,}: fit.loo() does.")
    if table.shape[1] < size:
        notes.append(f"Checked on {table.shape[1]:,} of {size:,} responses, chosen at random.")
    ones, zeros = score[table[0] == 1], score[table[0] == 0]
    if kind == "binary" and len(ones) and len(zeros) and ones.min() > zeros.max():
        notes.append("The labels are separated by the predictor: how large the coefficients are, the prior decides.")
    return tuple(notes)


def reliability(checked: ModelCheck) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The calibration curve: in each bin the mean prediction, the observed mean, and the simulated 1% and 99%."""
    mean = checked.table.mean(axis=0)
    bins = quantile_bins(mean)
    member = np.eye(int(bins.max()) + 1)[bins]
    shares = checked.table @ (member / member.sum(axis=0))
    low, high = np.quantile(shares[1:], [0.01, 0.99], axis=0)
    return (mean @ member) / member.sum(axis=0), shares[0], low, high
