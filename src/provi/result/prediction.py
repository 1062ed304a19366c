r"""Predictions for new rows: the linear predictor, the expected response and new responses, each with intervals.

Under q the predictor of a row is $\eta = m + su$, with u of the family's base: for Gaussians exactly $N(m, s^2)$. With
$\mu(\eta) = E[y|\eta]$, which is monotone, the expected response has the mean $E\mu(\eta)$ and the quantiles
$\mu(m + sF^{-1}(p))$; nothing of that is drawn. Quantiles of a new response are closed for Gaussian and Bernoulli ones,
and else those of draws with a fixed seed.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from provi.core.arguments import as_array, check_count, check_length
from provi.core.frames import is_frame, listed, matched_numbers
from provi.core.limits import check_memory
from provi.data.encoding import TableEncoding
from provi.data.tables import as_table
from provi.families.bases import AbstractBase, Normal, marginal_quantile
from provi.result.nested import ClassRows, NestedRows, StudentTRows, graded
from provi.result.predictors import (
    AbstractNewRows,
    Four,
    Latent,
    draw_responses,
    linear_predictor,
    mean_function,
    no_draw,
    process_rows,
    response_means,
)
from provi.targets.data import default_names
from provi.targets.gaussian_process import GaussianProcess
from provi.targets.hierarchical_logistic_regression import HierarchicalLogisticRegression, scale_factor
from provi.targets.latent_gaussian import LatentGaussian
from provi.targets.likelihoods import (
    AbstractLikelihood,
    BernoulliLogit,
    BernoulliProbit,
    GaussianNoise,
    NegativeBinomial,
    OrdinalLogit,
    Poisson,
)
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.multinomial import MultinomialLogistic
from provi.targets.sparse_gaussian_process import SparseGaussianProcess
from provi.targets.student_t_regression import StudentTRegression

KINDS = ("mean", "latent", "response")
_LISTED, _CLASSES_LISTED, _NUMBERS_AT_ONCE = 20, 8, 2**22
_REACH, _NUM_NODES, _NUM_QUANTILES = 12.0, 601, 199
_WIDEST = 8.0
"""The largest deviation of eta at which `_NUM_NODES` nodes resolve a sigmoid to all digits."""


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Predictions, one a row: `mean`, `sd`, and the interval from `lower` to `upper`; `linear` is the predictor.

    Of several classes they are probabilities, (rows, classes).

    - `kind`: what they are of: "mean", the expected response; "latent", the linear predictor; "response", a new one.
    - `interval`: the probability of the central interval. - `labels`: of the classes, where they are known.
    """

    mean: np.ndarray
    sd: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    linear: Latent
    kind: str
    interval: float
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.mean)

    def to_dict(self) -> dict[str, list[float]]:
        """The columns as lists: mean, sd, lower, upper, linear_mean, linear_sd."""
        columns = {"mean": self.mean, "sd": self.sd, "lower": self.lower, "upper": self.upper}
        columns |= {"linear_mean": self.linear.mean, "linear_sd": self.linear.sd}
        return {name: np.asarray(values).tolist() for name, values in columns.items()}

    def __str__(self) -> str:
        what = {"mean": "Expected response", "latent": "Linear predictor", "response": "New response"}[self.kind]
        if self.labels is not None and self.kind == "mean":
            what = f"Probability of {self.labels[1]!r}" if self.mean.ndim == 1 else "Probability"
        lines = [f"{what}, with the central {100 * self.interval:g}% interval", ""]
        heads, columns = ("mean", "sd", "lower", "upper"), (self.mean, self.sd, self.lower, self.upper)
        if self.mean.ndim == 2:
            lines = [f"{what} of each class; lower and upper have the {100 * self.interval:g}% intervals", ""]
            names = self.labels if self.labels and self.kind == "mean" else map(str, range(self.mean.shape[1]))
            heads, columns = tuple(names)[:_CLASSES_LISTED], tuple(self.mean.T[:_CLASSES_LISTED])
        lines.append(f"{'row':>6}" + "".join(f" {head[:11]:>11}" for head in heads))
        for row in range(min(len(self), _LISTED)):
            lines.append(f"{row:>6}" + "".join(f"{column[row]:>12.5g}" for column in columns))
        if len(self) > _LISTED:
            lines.append(f"... {len(self) - _LISTED} more rows: to_dict() has all")
        return "\n".join([*lines, *self.notes])

    def __repr__(self) -> str:
        return f"<provi.Prediction: {self.kind} of {len(self)} rows, {100 * self.interval:g}% intervals>"


@dataclasses.dataclass(frozen=True)
class SphericalRows(AbstractNewRows):
    """Rows whose predictors are m + s u, each u of the `base` in `dim` dimensions.

    - `joint`: draws (n, rows) of all predictors together, of a number and a seed.
    """

    likelihood: AbstractLikelihood
    mean: np.ndarray
    sd: np.ndarray
    joint: Callable[[int, int], np.ndarray]
    base: AbstractBase = dataclasses.field(default_factory=Normal)
    dim: int = 1

    def moments(self) -> Latent:
        """As they are."""
        return Latent(self.mean, self.sd)

    def predict(self, kind: str, interval: float, num_draws: int, seed: int) -> Four:
        """In closed form, or from draws for the interval of a new response that has none."""
        width = marginal_quantile(self.base, self.dim, (1 + interval) / 2)
        ends = self.mean - width * self.sd, self.mean + width * self.sd
        if kind == "latent":
            return self.mean, self.sd, *ends
        mean, sd = self._expected()
        if kind == "mean":
            first, second = (mean_function(self.likelihood, end) for end in ends)
            return mean, sd, np.minimum(first, second), np.maximum(first, second)
        return self._response(mean, interval, num_draws, seed)

    def _expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of mu(eta)."""
        nodes, weights = self._nodes()
        size = max(1, _NUMBERS_AT_ONCE // len(nodes))
        parts = []
        for start in range(0, len(self.mean), size):
            here = slice(start, start + size)
            values = mean_function(self.likelihood, self.mean[here, None] + self.sd[here, None] * nodes)
            mean = values @ weights
            parts.append((mean, np.sqrt(np.maximum((values - mean[:, None]) ** 2 @ weights, 0))))
        mean, sd = (np.concatenate(column) for column in zip(*parts, strict=True))
        if isinstance(self.base, Normal):
            variance = self.sd**2
            if isinstance(self.likelihood, Poisson | NegativeBinomial):
                mean = np.exp(self.mean + variance / 2)
                sd = mean * np.sqrt(np.expm1(variance))
            elif not isinstance(self.likelihood, BernoulliLogit) or self.sd.max(initial=0.0) > _WIDEST:
                mean = response_means(self.likelihood, self.mean, variance)
        return mean, sd

    def _nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Of u: by the trapezoidal rule for a normal base, else quantiles."""
        if isinstance(self.base, Normal):
            nodes = np.linspace(-_REACH, _REACH, _NUM_NODES)
            weights = np.exp(-0.5 * nodes**2)
            return nodes, weights / weights.sum()
        levels = (np.arange(_NUM_QUANTILES) + 0.5) / _NUM_QUANTILES
        nodes = np.array([marginal_quantile(self.base, self.dim, float(level)) for level in levels])
        return nodes, np.full(_NUM_QUANTILES, 1 / _NUM_QUANTILES)

    def _response(self, mean: np.ndarray, interval: float, num_draws: int, seed: int) -> Four:
        low, high = (1 - interval) / 2, (1 + interval) / 2
        if isinstance(self.likelihood, BernoulliLogit | BernoulliProbit):
            # The quantile at p is 0 where P(y = 0) is p at least.
            lower, upper = ((mean > 1 - level).astype(float) for level in (low, high))
            return mean, np.sqrt(mean * (1 - mean)), lower, upper
        if isinstance(self.likelihood, GaussianNoise) and isinstance(self.base, Normal):
            sd = np.hypot(self.sd, float(self.likelihood.scale))
            width = marginal_quantile(self.base, self.dim, high)
            return mean, sd, mean - width * sd, mean + width * sd
        parts, size = [], max(1, _NUMBERS_AT_ONCE // num_draws)
        rng = np.random.default_rng([seed, 1])
        if not isinstance(self.base, Normal):
            _check_draws(num_draws, self.mean)
        every = None if isinstance(self.base, Normal) else self.joint(num_draws, seed)
        for start in range(0, len(self.mean), size):
            here = slice(start, start + size)
            if every is None:
                eta = self.mean[here] + self.sd[here] * rng.standard_normal((num_draws, len(self.mean[here])))
            else:
                eta = every[:, here]
            drawn = draw_responses(self.likelihood, eta, seed + start)
            if drawn is None:
                raise ValueError(no_draw(self.likelihood))
            parts.append([np.std(drawn, axis=0), *np.quantile(drawn, [low, high], axis=0)])
        sd, lower, upper = (np.concatenate(column) for column in zip(*parts, strict=True))
        return mean, sd, lower, upper

    def responses(self, num_draws: int, seed: int) -> np.ndarray | None:
        """At joint draws of the predictors."""
        return draw_responses(self.likelihood, self.joint(num_draws, seed), seed)


def predict(
    fit: Any,
    X_new: Any,
    interval: float,
    kind: str,
    num_draws: int,
    seed: int,
    groups: Any = None,
    offset: Any = None,
    exposure: Any = None,
) -> Prediction:
    """What `Fit.predict` returns."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, not {kind!r}.")
    if not 0 < interval < 1:
        raise ValueError(f"interval must lie between 0 and 1, not {interval}.")
    num_draws, seed = check_count("num_draws", num_draws), check_count("seed", seed, minimum=0)
    encoding = fit.encoding
    if encoding is None:
        rows = new_rows(fit, X_new, groups, offset, exposure)
        labels = fit.target.classes if isinstance(fit.target, MultinomialLogistic) else None
        return Prediction(*rows.predict(kind, interval, num_draws, seed), rows.moments(), kind, interval, labels)
    features, shift = encoded_rows(encoding, X_new)
    complete = ~(np.isnan(features).any(axis=1) | np.isnan(shift))
    parts = [np.zeros(0)] * 6
    if complete.any():
        moved = shift[complete] if encoding.moves or offset is None else np.asarray(offset)[complete]
        rows = new_rows(fit, features[complete], groups, moved if moved.any() or encoding.moves else None)
        latent = rows.moments()
        parts = [*rows.predict(kind, interval, num_draws, seed), latent.mean, latent.sd]
    wholes = [np.full((len(features), *part.shape[1:]), np.nan) for part in parts]
    for place, (whole, part) in enumerate(zip(wholes, parts, strict=True)):
        unit = (encoding.scale, 0.0 if place == 1 else encoding.centre) if kind != "latent" and place < 4 else (1, 0)
        whole[complete] = unit[0] * part + unit[1]  # the response's own unit
    mean, sd, lower, upper, *linear = wholes
    gone = int((~complete).sum())
    notes = (f"No predictions for {gone} of {len(features)} rows, which have missing entries.",) if gone else ()
    return Prediction(mean, sd, lower, upper, Latent(*linear), kind, interval, encoding.labels, notes)


def _check_draws(num_draws: int, table: Any) -> None:
    """Predictors of all rows at all draws, and the responses."""
    rows = len(table) if hasattr(table, "__len__") else 1
    check_memory(f"num_draws={num_draws} for {rows} rows", 24.0 * num_draws * rows, "take fewer draws or fewer rows")


def draw_new(fit: Any, X_new: Any, num_draws: int, seed: int, **given: Any) -> np.ndarray:
    """New responses (draws, rows) at draws of the posterior, in the unit of the response."""
    encoding, table = fit.encoding, X_new
    if encoding is not None:
        table, shift = encoded_rows(encoding, X_new)
        gone = np.isnan(table).any(axis=1) | np.isnan(shift)
        if gone.any():
            raise ValueError(f"The new table has missing entries, the first in row {int(np.argmax(gone)) + 1}.")
        given |= {"offset": shift} if encoding.moves else {}
    rows = new_rows(fit, table, **given)
    _check_draws(num_draws, table)
    found = rows.responses(check_count("num_draws", num_draws), check_count("seed", seed, minimum=0))
    if found is None:
        raise ValueError(no_draw(fit.target.likelihood))
    return found if encoding is None else encoding.centre + encoding.scale * found


def encoded_rows(encoding: TableEncoding, X_new: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows and offsets of a frame with the columns of the table that was fitted, or of columns by name."""
    if is_frame(X_new) or isinstance(X_new, Mapping):
        return encoding.rows(as_table(X_new))
    wanted = listed([column.name for column in encoding.columns])
    raise ValueError(f"The fit was made from a table: X_new must be a data frame with its columns, {wanted}.")


def new_rows(fit: Any, X_new: Any, groups: Any = None, offset: Any = None, exposure: Any = None) -> AbstractNewRows:
    """The rows of X_new as the model of a fit sees them; a `ValueError` says what does not match."""
    target, posterior = fit.target, fit.posterior
    if groups is not None and not isinstance(target, HierarchicalLogisticRegression):
        raise ValueError(f"groups= is for models with groups; {type(target).__name__} has none.")
    if isinstance(target, GaussianProcess | SparseGaussianProcess):
        if offset is not None or exposure is not None:
            raise ValueError("offset= and exposure= are for regressions; a Gaussian process has none.")
        matrix = _matrix(X_new, target.columns, target.inputs.shape[1])
        mean, variance, joint = process_rows(target, posterior, matrix)
        return SphericalRows(target.likelihood, mean, np.sqrt(variance), joint)
    if isinstance(target, HierarchicalLogisticRegression):
        if offset is not None or exposure is not None:
            raise ValueError("offset= and exposure= are for regressions; HierarchicalLogisticRegression has none.")
        return _group_rows(target, posterior, X_new, groups)
    if isinstance(target, AbstractLinearModel):
        names, count, added = _columns_of(target)
        matrix = _matrix(X_new, names, count, added)
        shift, likelihood = new_offset(target, len(matrix), offset, exposure), target.likelihood.plain
        if isinstance(likelihood, OrdinalLogit):
            cuts = np.asarray(likelihood.cutpoints, np.float64)
            whole = np.concatenate([matrix, shift[:, None]], axis=1)
            return ClassRows(
                posterior, whole, lambda z, rows: z @ rows[:, :-1].T + rows[:, -1], lambda z, eta: graded(eta, cuts)
            )
        return _linear_rows(likelihood, posterior, matrix, shift)
    if isinstance(target, MultinomialLogistic):
        if offset is not None or exposure is not None:
            raise ValueError("offset= and exposure= are for one linear predictor; MultinomialLogistic has several.")
        return _multinomial_rows(target, posterior, X_new)
    if isinstance(target, StudentTRegression):
        matrix = _matrix(X_new, *_columns_of(target))
        return StudentTRows(posterior, matrix, new_offset(target, len(matrix), offset, exposure))
    if isinstance(target, LatentGaussian) and not target.blocks:
        matrix = _matrix(X_new, target.fixed_names if is_frame(X_new) else None, target.fixed.shape[1])
        nested = NestedRows(posterior, target, matrix, new_offset(target, len(matrix), offset, exposure))
        return nested.grades() if isinstance(target.likelihood, OrdinalLogit) else nested
    raise ValueError(_no_rows(target))


def _multinomial_rows(target: MultinomialLogistic, posterior: Any, X_new: Any) -> ClassRows:
    names, count, added = _columns_of(target)

    def latent(z: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.einsum("nkd,rd->nrk", target.coefficients(z), rows)

    def shares(_: np.ndarray, eta: np.ndarray) -> np.ndarray:
        return softmax(np.concatenate([0 * eta[:, :, :1], eta], axis=2), axis=2)

    return ClassRows(posterior, _matrix(X_new, names, count, added), latent, shares)


def new_offset(target: Any, count: int, offset: Any, exposure: Any) -> np.ndarray:
    """What is added to the predictors of new rows, offset + log(exposure); a model fitted with some needs them."""
    if offset is None and exposure is None:
        own = None if isinstance(target, SparseGaussianProcess) else getattr(target, "offset", None)
        if own is not None and np.any(np.asarray(own)):
            raise ValueError("The model was fitted with an offset: give offset= or exposure= for the new rows, too.")
    total = np.zeros(count)
    for name, given in (("offset", offset), ("exposure", exposure)):
        if given is not None:
            values = as_array(name, given).astype(np.float64)
            if values.ndim:
                check_length(name, values, count, "one entry for each row of X_new")
            if name == "exposure" and not (values > 0).all():
                raise ValueError(f"exposure must be positive; its smallest entry is {values.min():g}.")
            total = total + (np.log(values) if name == "exposure" else values)
    return total


def _columns_of(target: Any) -> tuple[Sequence[str] | None, int, bool]:
    """Names and number of the columns of X, without the intercept where ProVI put it in front; whether it did."""
    names, width = target.names, target.design.shape[1]
    stream = getattr(target, "stream", None)
    if stream is not None:
        added = stream.intercept
    else:
        added = names is not None and names[0] == "intercept" and _begins_with_ones(target.design)
    if names is None:
        return None, width, False
    own = names[1:] if added else names
    return (None if own == default_names("coefficient", len(own)) else own), len(own), added


def _begins_with_ones(design: Any) -> bool:
    # A slice is a compilation, a copy of a large table a long way from its device.
    first = np.asarray(design)[:, 0] if design.size <= 2**20 else np.asarray(design[:, 0])
    return bool(np.all(first == 1))


def _matrix(X_new: Any, names: Sequence[str] | None, count: int, added: bool = False) -> np.ndarray:
    """The columns in the order of the fit, by name where both sides have names; a column of ones in front if `added`.

    Columns of a frame that the fit does not know do not count.
    """
    if isinstance(X_new, Mapping) and names is None:
        raise ValueError("The target has no names of columns to match those of X_new: pass an array.")
    if names is not None and (isinstance(X_new, Mapping) or is_frame(X_new)):
        table = matched_numbers("X_new", X_new, names)
    else:
        table = as_array("X_new", X_new)
        if table.ndim == 1:
            raise ValueError(
                f"X_new must have 2 axes, a row for each prediction; for one row pass X_new[None, :] (its shape is "
                f"{table.shape})."
            )
        if table.ndim == 2 and added and table.shape[1] == count + 1 and (table[:, 0] == 1).all():
            return table.astype(np.float64)
    if table.ndim != 2 or table.shape[1] != count:
        known = "" if names is None else f" ({listed(names)})"
        ones = ", and the intercept is added" if added else ""
        raise ValueError(f"X_new has shape {table.shape}, but X has {count} columns{known}{ones}.")
    table = table.astype(np.float64)
    return np.concatenate([np.ones((len(table), 1)), table], axis=1) if added else table


def _linear_rows(
    likelihood: AbstractLikelihood, posterior: Any, matrix: np.ndarray, shift: np.ndarray, extra: Any = 0.0
) -> SphericalRows:
    """eta = x'z + shift, with noise of variance `extra` that `joint` leaves out."""
    mean, variance = linear_predictor(posterior).moments(matrix)

    def joint(num_draws: int, seed: int) -> np.ndarray:
        return np.asarray(posterior.sample(num_draws, seed), np.float64) @ matrix.T + shift

    family = posterior.family
    return SphericalRows(likelihood, mean + shift, np.sqrt(variance + extra), joint, family.base, family.dim)


def _group_rows(target: HierarchicalLogisticRegression, posterior: Any, X_new: Any, groups: Any) -> SphericalRows:
    r"""$\eta = x'z_g$ of a known group; $x'\theta + t\,x'e$, $e \sim N(0, I)$, of one that the fit has not seen."""
    matrix = _matrix(X_new, target.names, target.design.shape[1])
    if groups is None:
        raise ValueError("groups= is needed: the group of each row of X_new, as in the fit; others are new groups.")
    labels = [str(label) for label in np.atleast_1d(np.asarray(groups))]
    if len(labels) != len(matrix):
        raise ValueError(f"groups has length {len(labels)}, but X_new has {len(matrix)} rows.")
    place = {group: 1 + k for k, group in enumerate(target.groups)}
    where = np.array([place.get(label, 0) for label in labels])
    rows, width = matrix.shape
    design = np.zeros((rows, 1 + target.num_groups, width))
    design[np.arange(rows), where] = matrix
    wide, spread = design.reshape(rows, -1), scale_factor(target.group_scale, width)
    extra = np.where(where == 0, np.sum((matrix @ spread) ** 2, axis=1), 0.0)
    found = _linear_rows(target.likelihood, posterior, wide, np.zeros(rows), extra)
    if not (where == 0).any():
        return found
    if not isinstance(posterior.family.base, Normal):
        raise ValueError(f"groups: {labels[int(np.argmin(where))]!r} is new, and new groups need a Gaussian family.")

    def joint(num_draws: int, seed: int) -> np.ndarray:
        eta = np.asarray(posterior.sample(num_draws, seed), np.float64) @ wide.T
        rng = np.random.default_rng([seed, 2])
        for label in sorted({label for label, at in zip(labels, where, strict=True) if at == 0}):
            mine = np.array([other == label for other in labels])
            own = rng.standard_normal((num_draws, width))  # one draw for all of its rows
            eta[:, mine] += own @ (matrix[mine] @ spread).T
        return eta

    return dataclasses.replace(found, joint=joint)


def _no_rows(target: Any) -> str:
    name = type(target).__name__
    if isinstance(target, LatentGaussian):
        return (
            f"{name} has effects of groups, and does not know those of new rows: provi.models.MixedModel(formula, "
            f"data) predicts for new tables."
        )
    return (
        f"predict is for linear models and Gaussian processes; {name} does not say what its rows are. For a model of "
        f"NumPyro or PyMC call fit.posterior_predictive with its new arguments; else compute what you need at "
        f"fit.posterior.draws(n, seed)."
    )
