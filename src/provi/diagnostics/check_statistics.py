r"""What tells data from data simulated under a model, with a stated rate of false alarms.

The observed data and S simulated sets stand in one table, the observed ones first. Under the model all S + 1 rows are
exchangeable, and every statistic here treats them alike: means, bins and scales are those of the whole table. So the
rank of the observed row is uniform, and with the largest standardised statistic $M_s = \max_j t_j(y_s)$ of each row,

$$p = \frac{\#\{s : M_s \ge M_0\}}{S + 1}$$

is at most a with a probability of at most a, however the statistics depend on each other (Westfall and Young 1993).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

Kind: TypeAlias = Literal["binary", "classes", "counts", "grades", "real"]

_FEWEST_A_BIN, _FEWEST_BINS, _MOST_BINS = 25, 3, 8
_MOST_COLUMNS, _MOST_CLASSES, _MOST_RANKED = 40, 8, 2000
_REACH, _DEVIATIONS = 0.975, 1.96


@dataclasses.dataclass(frozen=True)
class Statistic:
    """One number of each row of the table.

    - `shown`: (S + 1,), as people read it. - `scaled`: the same on a scale on which it is nearly normal.
    - `two_sided`: whether too small is as bad as too large. - `column`: which covariate it is about, if any.
    """

    name: str
    shown: np.ndarray
    scaled: np.ndarray
    two_sided: bool = True
    column: str | None = None


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """Where the observed row stands: `adjusted` p-values hold for all statistics together; `p_value` is the least."""

    adjusted: np.ndarray
    p_value: float


def response_kind(table: np.ndarray, known: Kind | None = None) -> Kind:
    """What the numbers are, by their values; `known`: what whole numbers are, if not counts."""
    if np.isin(table, (0, 1)).all():
        return "binary"
    if (table >= 0).all() and (table == np.round(table)).all():
        return "counts" if known is None else known
    return "real"


def quantile_bins(x: np.ndarray) -> np.ndarray:
    """The bin of each entry: up to 8 of about the same size, 25 entries in each at least; equal entries share one."""
    wanted = int(np.clip(len(x) // _FEWEST_A_BIN, _FEWEST_BINS, _MOST_BINS))
    edges = np.unique(np.quantile(x, np.arange(1, wanted) / wanted))
    return np.unique(np.searchsorted(edges, x, side="left"), return_inverse=True)[1]


def statistics(table: np.ndarray, kind: Kind, columns: Mapping[str, np.ndarray], seed: int = 0) -> list[Statistic]:
    """The statistics that suit the kind of response.

    **Arguments:**

    - `table`: (S + 1, N), the observed data first.
    - `columns`: covariates by name, (N,) each, against which residuals are held. - `seed`: breaks ties at random.
    """
    varied = {name: x for name, x in columns.items() if len(np.unique(x[:1000])) > 2}
    if kind == "classes":
        return _classes(table, dict(list(varied.items())[: _MOST_COLUMNS // 4]))
    mean, deviation = table.mean(axis=0), table.std(axis=0)
    off = table - mean
    residual = np.divide(off, deviation, out=np.zeros_like(off), where=deviation > 0)
    found = {"binary": _binary, "counts": _counts, "grades": _grades, "real": _real}[kind](table, mean, residual)
    variance = deviation**2
    # Beside the spread that a row of the table has on the whole: more of that is another check's business.
    scale = np.ones(len(table)) if kind == "binary" else np.maximum((residual**2).mean(axis=1), 1e-300)
    name = "calibration" if kind == "binary" else "residuals against the prediction"
    if np.ptp(mean) > 0:
        found += _binned({name: mean}, off, variance, scale)
        found = [dataclasses.replace(row, name=name, column=None) if row.column == name else row for row in found]
    if kind in ("counts", "real"):
        found += [_growth(mean, residual), _uniformity(table, kind, seed)]
    varied = dict(list(varied.items())[:_MOST_COLUMNS])
    return found + (_binned(varied, off, variance, scale) if varied else [])


def calibrate(found: Sequence[Statistic]) -> Calibrated:
    """p-values of the observed row that hold for all statistics together, by the largest of each row."""
    scores = np.stack([_scores(row) for row in found])
    largest = scores.max(axis=0)
    adjusted = (largest[None, :] >= scores[:, :1]).mean(axis=1)
    return Calibrated(adjusted, float(adjusted.min()))


def _scores(row: Statistic) -> np.ndarray:
    """How far each row of the table is from the median, in deviations of its own side."""
    values = row.scaled
    low, middle, high = np.quantile(values, [1 - _REACH, 0.5, _REACH])
    spread = values.std()
    if spread == 0:
        return np.zeros(len(values))
    # A statistic with few values may have no width between quantiles.
    up, down = (max(width / _DEVIATIONS, 0.3 * spread) for width in (high - middle, middle - low))
    away = values - middle
    return np.where(away > 0, away / up, -away / down if row.two_sided else 0.0)


def _counts(table: np.ndarray, mean: np.ndarray, residual: np.ndarray) -> list[Statistic]:
    spread, largest, zeros = table.std(axis=1), table.max(axis=1), (table == 0).mean(axis=1)
    return [
        Statistic("standard deviation", spread, _logarithm(spread)),
        Statistic("share of zeros", zeros, zeros),
        Statistic("largest count", largest, np.log1p(largest)),
        _dispersion("over-dispersion", residual),
    ]


def _binary(table: np.ndarray, mean: np.ndarray, residual: np.ndarray) -> list[Statistic]:
    share, inside = table.mean(axis=1), np.clip(mean, 1e-12, 1 - 1e-12)
    # -log p(y) is linear in y: a product, not a table.
    surprise = (-np.log1p(-inside).sum() - table @ (np.log(inside) - np.log1p(-inside))) / table.shape[1]
    return [Statistic("share of ones", share, share), Statistic("surprise a label, nats", surprise, surprise)]


def _grades(table: np.ndarray, mean: np.ndarray, residual: np.ndarray) -> list[Statistic]:
    middle = table.mean(axis=1)
    return [Statistic("mean grade", middle, middle), _shares("shares of the grades", table)]


def _shares(name: str, table: np.ndarray) -> Statistic:
    """Pearson's distance of the shares of the values from those in the whole table."""
    shares = np.stack([(table == value).mean(axis=1) for value in np.unique(table)], axis=1)
    expected = shares.mean(axis=0)
    distance = table.shape[1] * ((shares - expected) ** 2 / expected).sum(axis=1)
    return Statistic(name, distance, np.cbrt(distance), False)


def _classes(table: np.ndarray, columns: Mapping[str, np.ndarray]) -> list[Statistic]:
    """The shares of the classes, and of each class, as one against the others, the residuals against each column."""
    found = [_shares("shares of the classes", table)]
    for value in np.unique(table)[:_MOST_CLASSES] if columns else ():
        one = (table == value).astype(float)
        mean = one.mean(axis=0)
        rows = _binned(columns, one - mean, mean * (1 - mean), np.ones(len(table)))
        found += [dataclasses.replace(row, name=f"{row.name}, class {value:g}") for row in rows]
    return found


def _real(table: np.ndarray, mean: np.ndarray, residual: np.ndarray) -> list[Statistic]:
    square = residual**2
    second = np.maximum(square.mean(axis=1), 1e-300)
    skewness = (square * residual).mean(axis=1) / second**1.5
    tails, largest = (square**2).mean(axis=1) / second**2, np.abs(residual).max(axis=1)
    return [
        _dispersion("residual variance", residual),
        Statistic("skewness of residuals", skewness, skewness),
        Statistic("tails of residuals (kurtosis)", tails, _logarithm(tails)),
        Statistic("largest residual", largest, _logarithm(largest), False),
    ]


def _dispersion(name: str, residual: np.ndarray) -> Statistic:
    """Var(y)/Var(y | model), 1 under the model: the mean square of Pearson's residuals."""
    ratio = np.einsum("sn,sn->s", residual, residual) / max(int((residual != 0).any(axis=0).sum()), 1)
    return Statistic(name, ratio, _logarithm(ratio))


def _growth(mean: np.ndarray, residual: np.ndarray) -> Statistic:
    """Whether residuals spread more where the prediction is larger: their squares against its rank."""
    ranks = np.argsort(np.argsort(mean, kind="stable"), kind="stable").astype(float)
    ranks -= ranks.mean()
    slope = (residual**2) @ (ranks / max(np.sqrt((ranks**2).sum()), 1e-300)) / np.sqrt(len(mean))
    return Statistic("spread against the prediction", slope, slope)


def _uniformity(table: np.ndarray, kind: Kind, seed: int) -> Statistic:
    """How far randomised quantile residuals are from uniform: the largest difference of distribution functions.

    The residual of an entry is its rank in its column, ties broken at random: for any model, and without its
    distribution function (Dunn and Smyth 1996; Hartig 2022).
    """
    rng = np.random.default_rng([seed, 1])
    size = table.shape[1]
    chosen = table if size <= _MOST_RANKED else table[:, np.sort(rng.choice(size, _MOST_RANKED, replace=False))]
    if kind == "counts":
        chosen = chosen + 0.5 * rng.random(chosen.shape)
    order = np.argsort(chosen, axis=0)
    residual: Any = np.empty(chosen.shape, np.float32)
    ranks = (np.arange(len(chosen))[:, None] + 0.5) / len(chosen)
    np.put_along_axis(residual, order, np.broadcast_to(ranks, chosen.shape).astype(np.float32), axis=0)
    residual.sort(axis=1)
    places = (np.arange(residual.shape[1], dtype=np.float32) + 0.5) / residual.shape[1]
    distance = np.abs(residual - places).max(axis=1).astype(float)
    return Statistic("quantile residuals (uniformity)", distance, _logarithm(distance), False)


def _binned(
    columns: Mapping[str, np.ndarray], off: np.ndarray, variance: np.ndarray, scale: np.ndarray
) -> list[Statistic]:
    r"""$\sum_b (\sum_{n \in b} y_n - \mu_n)^2 / \sum_{n \in b} \sigma_n^2$ over bins b of each column, over `scale`."""
    bins = [quantile_bins(x) for x in columns.values()]
    counts = [int(b.max()) + 1 for b in bins]
    starts = np.concatenate([[0], np.cumsum(counts)])
    member = np.zeros((off.shape[1], starts[-1]))
    for b, start in zip(bins, starts, strict=False):
        member[np.arange(len(b)), start + b] = 1.0
    weight = variance @ member
    square = np.divide((off @ member) ** 2, weight, out=np.zeros((len(off), starts[-1])), where=weight > 0)
    found = []
    for k, name in enumerate(columns):
        # Divided by the number of bins: about 1 under the model.
        ratio = square[:, starts[k] : starts[k + 1]].mean(axis=1) / scale
        found.append(Statistic(f"residuals against {name}", ratio, np.cbrt(ratio), False, name))
    return found


def _logarithm(values: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(values, 1e-300))


ADVICE = {
    "over-dispersion": (
        "the counts vary more than the model allows: try a response with more variance (negative binomial), an effect "
        "that varies by row or group, or terms that are missing",
        "the counts vary less than the model allows: try a response with less variance, such as a binomial one",
    ),
    "standard deviation": (
        "the counts spread more than the model's: try a negative binomial response, or terms that are missing",
        "the counts spread less than the model's: look for an upper limit of the counts, or wider priors",
    ),
    "share of zeros": (
        "there are more zeros than the model has: try a negative binomial response, or a model with extra zeros",
        "there are fewer zeros than the model has: were rows with zeros left out?",
    ),
    "largest count": (
        "the largest count is too large for the model: look at that row, or try a negative binomial response",
        "the largest count is too small for the model: look for an upper limit of the counts",
    ),
    "share of ones": ("the share of ones is not the model's: give the intercept a wider prior",) * 2,
    "surprise a label, nats": (
        "labels are more of a surprise than the model thinks: look for wrong labels, or try other terms",
        "labels are less of a surprise than the model thinks: give the coefficients wider priors",
    ),
    "calibration": (
        "predicted probabilities are not the observed shares: try curved terms (x^2, splines, a Gaussian process), "
        "interactions, or another link",
    )
    * 2,
    "residuals against the prediction": (
        "residuals depend on the prediction: try curved terms, interactions, or another link",
    )
    * 2,
    "spread against the prediction": (
        "the spread grows with the prediction: model the logarithm of the response, or take a response whose variance "
        "grows with its mean",
        "the spread shrinks where the prediction is larger: transform the response, or let its scale vary",
    ),
    "quantile residuals (uniformity)": (
        "the distribution of the responses is not the model's: try another response distribution",
    )
    * 2,
    "residual variance": (
        "the noise is wider than the model's: let its scale be estimated, or add terms",
        "the noise is narrower than the model's: let its scale be estimated",
    ),
    "skewness of residuals": (
        "residuals are skewed to the right: model the logarithm of the response, or take a skewed response",
        "residuals are skewed to the left: transform the response, or take a skewed response",
    ),
    "tails of residuals (kurtosis)": (
        "residuals have heavier tails than the model's: try a Student-t response, and look at the outliers",
        "residuals have lighter tails than the model's: look for limits of the response",
    ),
    "largest residual": ("a response is too far from its prediction: look at that row, or try a Student-t response",)
    * 2,
    "mean grade": ("the grades are off on the whole: let the cut points be estimated",) * 2,
    "shares of the classes": ("the shares of the classes are not the model's: give the intercepts wider priors",) * 2,
    "shares of the grades": ("the shares of the grades are not the model's: let the cut points be estimated",) * 2,
}
"""Of each statistic: what it means that the observed number is too large, and too small; and what to try."""

EXPLAINS = {
    "over-dispersion": ("standard deviation", "share of zeros", "largest count", "spread against", "quantile res"),
    "tails of residuals (kurtosis)": ("largest residual", "skewness", "residual variance", "residuals against",
                                      "spread against", "quantile res"),
    "residual variance": ("quantile res", "largest residual"),
    "residuals against": ("calibration", "surprise", "quantile res"),
}  # fmt: skip
"""Where the first fails, it is the likely reason for the others, by the beginnings of their names."""
