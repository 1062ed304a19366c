r"""Coefficients of regressions as people read them: tables with ratios, and fits whose likelihood has unknown numbers.

A noise scale, a dispersion, a shape or cut points are integrated numerically (`provi.targets.LatentGaussian`): the
posterior is a mixture over nodes k with weights $p_k$ of Gaussians of the coefficients, and so is every prediction,
$\sum_kp_k\,p(y \mid x, k)$. The target has columns less their means and prior means of zero; here $(b, w)$ are those of
the columns as they are, $w = \delta + m$, $b = \delta_0 + m_0 - \bar x'w$.
"""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from scipy.special import logsumexp, ndtri

from provi.core.arguments import double_precision
from provi.models.weak_priors import WIDE, WeakPriors, prior_words, read_prior
from provi.result.marginal import Marginal
from provi.targets.likelihoods import AbstractLikelihood

RATIOS = {
    "Bernoulli, logit link": "odds ratio",
    "ordinal, logit link": "odds ratio",
    "Poisson, log link": "rate ratio",
    "negative binomial, log link": "rate ratio",
    "Weibull, log hazard": "hazard ratio",
    "log-normal survival": "time ratio",
}
"""What exp(coefficient) is called, by the name of the likelihood."""


@dataclasses.dataclass(frozen=True)
class RegressionSummary:
    """A table of coefficients; prints itself, `to_dict()` for code.

    - `ratio`: what exp(coefficient) is called, or None where it is not shown; its point is exp(mean).
    - `ratio_names`: the rows that have one. - `notes`: lines under the table.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    standard_deviation: np.ndarray
    interval: np.ndarray
    probability: float
    ratio: str | None = None
    ratio_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """name -> {"mean", "sd", "low", "high"}, with "ratio", "ratio_low" and "ratio_high" where there is one."""
        found = {}
        for k, name in enumerate(self.names):
            numbers = self.mean[k], self.standard_deviation[k], *self.interval[k]
            found[name] = dict(zip(("mean", "sd", "low", "high"), map(float, numbers), strict=True))
            if self.ratio is not None and name in self.ratio_names:
                ratios = map(float, self._ratios(k))
                found[name] |= dict(zip(("ratio", "ratio_low", "ratio_high"), ratios, strict=True))
        return found

    def _ratios(self, k: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.exp([self.mean[k], *self.interval[k]])

    def table(self, largest: int = 40) -> Table:
        """A rich table of at most `largest` rows."""
        tail = 50 * (1 - self.probability)
        ends = f"{tail:g}%", f"{100 - tail:g}%"
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("parameter")
        for name in ("mean", "sd", *ends, *(() if self.ratio is None else (self.ratio, *ends))):
            table.add_column(name, justify="right")
        for k, name in enumerate(self.names[:largest]):
            row = [f"{value:.3f}" for value in (self.mean[k], self.standard_deviation[k], *self.interval[k])]
            if self.ratio is not None:
                row += [f"{value:.4g}" for value in self._ratios(k)] if name in self.ratio_names else [""] * 3
            # A `Text`, so that brackets in a name are no markup, whatever console prints the table.
            table.add_row(Text(name), *row)
        if len(self.names) > largest:
            table.add_row(f"... {len(self.names) - largest} more")
        return table

    def __str__(self) -> str:
        console = Console(width=100, file=io.StringIO())
        console.print(self.table())
        for note in self.notes:
            console.print(note, markup=False, highlight=False)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def mixture_summary(
    predictor: "NestedPredictor",
    names: tuple[str, ...],
    numbers: Mapping[str, Marginal],
    probability: float,
    ratio: str | None,
) -> RegressionSummary:
    """Of (b, w) by these names, and of numbers of the likelihood; every row of w has a ratio."""
    rows = [*predictor.marginals(names), *numbers.values()]
    table = np.array([[row.mean, row.sd, *row.interval(check_probability(probability))] for row in rows])
    chosen = tuple(name for name in names if name != "intercept" and not name.endswith(": intercept"))
    listed = tuple(row.name for row in rows)
    return RegressionSummary(listed, table[:, 0], table[:, 1], table[:, 2:], probability, ratio, chosen)


def ratio_word(likelihood: AbstractLikelihood) -> str | None:
    """What exp(coefficient) is called, or None where it means nothing."""
    return RATIOS.get(likelihood.name)


def gaussian_summary(
    names: tuple[str, ...],
    mean: np.ndarray,
    deviation: np.ndarray,
    probability: float,
    likelihood: AbstractLikelihood,
    ratios: bool,
) -> RegressionSummary:
    """Of Gaussian marginals; every row but the intercept has a ratio."""
    wide = float(ndtri((1 + check_probability(probability)) / 2)) * deviation
    interval = np.stack([mean - wide, mean + wide], axis=1)
    chosen = tuple(name for name in names if name != "intercept")
    word = _checked_ratio(likelihood) if ratios else None
    return RegressionSummary(names, mean, deviation, interval, probability, word, chosen)


def _checked_ratio(likelihood: AbstractLikelihood) -> str:
    word = ratio_word(likelihood)
    if word is None:
        raise ValueError(
            f"exp(coefficient) of a {likelihood.name} likelihood is no ratio: ratios are of log and logit."
        )
    return word


def check_probability(probability: float) -> float:
    """That of an interval."""
    if not 0 < probability < 1:
        raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
    return probability


def summarise_regression(model: Any, probability: float, ratios: bool) -> RegressionSummary:
    """The summary of a fitted estimator, with its priors as notes."""
    intercept = ("intercept",) if model.fit_intercept else ()
    names = (*intercept, *model.names_)
    predictor = model._predictor
    if isinstance(predictor, NestedPredictor):
        word = _checked_ratio(model.likelihood_) if ratios else None
        found = mixture_summary(predictor, names, model.numbers_, probability, word)
    else:
        moments = model.fit_.posterior.mean, model.fit_.posterior.standard_deviation
        found = gaussian_summary(names, *moments, probability, model.likelihood_, ratios)
    return dataclasses.replace(found, notes=prior_notes(model.priors_))


def prior_notes(words: Mapping[str, str]) -> tuple[str, ...]:
    """The priors, a line each; those of many coefficients by the first few."""
    listed, most = list(words.items()), 12
    lines = [f"  {name}: {text}" for name, text in listed[:most]]
    more = (f"  ... {len(listed) - most} more in priors_",) if len(listed) > most else ()
    return ("Priors:", *lines, *more)


@dataclasses.dataclass(frozen=True)
class NestedPredictor:
    """The mixture of Gaussians of (b, w), b first where there is one, in NumPy.

    - `weights` (K,), `means` (K, p), `roots` (K, p, p). - `likelihoods`: at each node. - `shift`: rows are x - shift.
    """

    weights: np.ndarray
    means: np.ndarray
    roots: np.ndarray
    likelihoods: tuple[AbstractLikelihood, ...]
    intercept: bool
    shift: np.ndarray

    def by_node(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the linear predictor at each row, (K, rows)."""
        rows = np.asarray(X, np.float64) - self.shift
        if self.intercept:
            rows = np.concatenate([np.ones((len(rows), 1)), rows], axis=1)
        return self.means @ rows.T, np.stack([np.sum((rows @ root) ** 2, axis=1) for root in self.roots])

    def moments(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the linear predictor at each row of X."""
        mean, variance = self.by_node(X)
        middle = self.weights @ mean
        return middle, self.weights @ (variance + (mean - middle) ** 2)

    def mean_response(self, X: np.ndarray, offset: Any = 0.0) -> np.ndarray:
        """E[y] at each row."""
        from provi.result.predictors import response_means  # a table of coefficients has no need of it

        return self.weights @ np.stack(self._each(X, offset, response_means))

    def response_moments(self, X: np.ndarray, offset: Any, variances: Any) -> tuple[np.ndarray, np.ndarray]:
        """E[y] and Var y at each row; `variances`: Var y of a node, as `response_variances`."""
        from provi.result.predictors import response_means

        means = np.stack(self._each(X, offset, response_means))
        spread = np.stack(self._each(X, offset, variances))
        middle = self.weights @ means
        return middle, self.weights @ (spread + (means - middle) ** 2)

    def log_predictive_density(self, X: np.ndarray, offset: Any, y: np.ndarray) -> np.ndarray:
        """log p(y) of each row."""
        from provi.result.predictors import log_predictive_densities

        each = self._each(X, offset, lambda node, mean, variance: log_predictive_densities(node, mean, variance, y))
        return np.asarray(logsumexp(np.stack(each) + np.log(self.weights)[:, None], axis=0))

    def _each(self, X: np.ndarray, offset: Any, function: Any) -> list[np.ndarray]:
        means, variances = self.by_node(X)
        nodes = zip(self.likelihoods, means, variances, strict=True)
        return [function(likelihood, mean + offset, variance) for likelihood, mean, variance in nodes]

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations, b first, zero where there is none."""
        mean = self.weights @ self.means
        inside = np.stack([np.sum(root**2, axis=1) for root in self.roots])
        deviation = np.sqrt(self.weights @ (inside + (self.means - mean) ** 2))
        if self.intercept:
            return mean, deviation
        return np.concatenate([[0.0], mean]), np.concatenate([[0.0], deviation])

    def transformed(self, matrix: np.ndarray) -> "NestedPredictor":
        """The law of `matrix` (b, w): for its marginals, in other units."""
        return dataclasses.replace(self, means=self.means @ matrix.T, roots=matrix @ self.roots)

    def marginals(self, names: tuple[str, ...]) -> list[Marginal]:
        """Of b and w by these names."""
        means, deviations = (x if self.intercept else x[1:] for x in self.coefficients())
        spreads = np.sqrt(np.stack([np.sum(root**2, axis=1) for root in self.roots]))
        return [
            Marginal(name, float(means[k]), float(deviations[k]), self.weights, self.means[:, k], spreads[:, k])
            for k, name in enumerate(names)
        ]


def default_numbers(likelihood: AbstractLikelihood, unit: float) -> dict[str, Any]:
    """The default priors of a likelihood's unknown numbers, by field; `unit`: the responses' standard deviation."""
    from provi.targets import likelihoods

    match likelihood:
        case likelihoods.BernoulliLogit() | likelihoods.Poisson():  # the most frequent, and without any
            return {}
    from provi.targets import latent

    match likelihood:
        case likelihoods.GaussianNoise():
            return {"scale": latent.HalfNormal(WIDE * unit)}
        case likelihoods.StudentT():
            return {"scale": latent.HalfNormal(WIDE * unit), "df": latent.Gamma(2.0, 0.1)}
        case likelihoods.NegativeBinomial():
            return {"dispersion": latent.Gamma(2.0, 0.1)}
        case likelihoods.Weibull():
            return {"shape": latent.LogNormal(0.0, 0.5)}
        case likelihoods.LogNormalSurvival():
            return {"scale": latent.HalfNormal(WIDE * unit)}
    return {}


def one_node(posterior: Any, columns: int, likelihood: AbstractLikelihood, intercept: bool) -> NestedPredictor:
    """The mixture of one Gaussian: that of the first `columns` coordinates, which are (b, w)."""
    mean = np.asarray(posterior.mean, np.float64)[:columns]
    root = np.linalg.cholesky(np.asarray(posterior.covariance, np.float64)[:columns, :columns])
    shift = np.zeros(columns - 1 if intercept else columns)
    return NestedPredictor(np.ones(1), mean[None], root[None], (likelihood,), intercept, shift)


def log_normal_numbers(posterior: Any, names: Sequence[str]) -> dict[str, Marginal]:
    """Marginals of the numbers whose logarithms are the last coordinates of a Gaussian, on a rule of 2001 nodes."""
    nodes = np.linspace(-8.0, 8.0, 2001)
    weights = np.exp(-0.5 * nodes**2) / np.exp(-0.5 * nodes**2).sum()
    moments = (np.asarray(x, np.float64)[-len(names) :] for x in (posterior.mean, posterior.standard_deviation))
    found = {}
    for name, centre, spread in zip(names, *moments, strict=True):
        mean = float(np.exp(centre + spread**2 / 2))
        sd = mean * float(np.sqrt(np.expm1(spread**2)))
        found[name] = Marginal(name, mean, sd, weights, np.exp(centre + spread * nodes))
    return found


def student_t_target(
    X: np.ndarray, y: np.ndarray, priors: WeakPriors, unit: float, given: Mapping[str, Any], **rows: Any
) -> tuple[Any, dict[str, str]]:
    """A Student-t regression of a table, and the priors of sigma and nu in words.

    **Arguments:**

    - `unit`: the responses' deviation. - `given`: priors by name, of which those of "sigma" and "nu" count.
    """
    from provi.targets import StudentTRegression
    from provi.targets.likelihoods import StudentT
    from provi.targets.student_t_regression import NUMBERS

    chosen = dict(zip(NUMBERS, default_numbers(StudentT(), unit).values(), strict=True))
    for name in chosen:
        prior = given.get(name, chosen[name])
        chosen[name] = read_prior(name, prior) if isinstance(prior, str) else prior
    own = {f"{name}_prior": prior for name, prior in chosen.items()}
    target = StudentTRegression(X, y, intercept=priors.intercept is not None, **priors.arguments(), **own, **rows)
    return target, {name: prior_words(prior) for name, prior in chosen.items()}


@dataclasses.dataclass(frozen=True)
class NestedProblem:
    """A `LatentGaussian` of a table, and the way back from its coordinates.

    - `centre`: the columns' means that were taken off. - `mean`: the prior means, the intercept's first where there is
      one. - `words`: the priors of the likelihood's numbers.
    """

    target: Any
    centre: np.ndarray
    mean: np.ndarray
    intercept: bool
    words: dict[str, str]

    @double_precision
    def predictor(self, posterior: Any) -> NestedPredictor:
        """The posterior of (b, w), and the likelihood at each node."""
        family, point = posterior.family, posterior.point
        means = np.asarray(family.conditional_means(point)) + self.mean
        covariances = np.asarray(family.conditional_covariances(point))
        if self.intercept:
            back = np.eye(means.shape[1])
            back[0, 1:] = -self.centre
            means, covariances = means @ back.T, back @ covariances @ back.T
        stacked = jax.tree.map(np.asarray, _likelihoods(self.target, np.asarray(point.nodes)))
        likelihoods = tuple(jax.tree.map(lambda x, k=k: x[k], stacked) for k in range(len(means)))
        shift = np.zeros(len(self.centre)) if self.intercept else self.centre
        roots = np.linalg.cholesky((covariances + np.swapaxes(covariances, 1, 2)) / 2)
        return NestedPredictor(posterior.weights, means, roots, likelihoods, self.intercept, shift)

    def numbers(self, posterior: Any) -> dict[str, Marginal]:
        """The marginals of the likelihood's numbers."""
        return posterior.hyperparameters


@eqx.filter_jit
def _likelihoods(target: Any, nodes: Any) -> Any:
    """The likelihood at each node, its numbers stacked; the target has no other hyperparameters."""
    return jax.vmap(lambda theta: target.numbers.assign(target.likelihood, target.hyperparameters(theta)))(nodes)


def nested_problem(
    X: np.ndarray,
    y: np.ndarray,
    likelihood: AbstractLikelihood | str,
    unknown: Mapping[str, Any],
    priors: WeakPriors,
    *,
    offset: Any = None,
    weights: Any = None,
    centred: bool = False,
) -> NestedProblem:
    """The target with some numbers of the likelihood unknown.

    **Arguments:**

    - `unknown`: by field, a prior of `provi.targets.latent`, or a text as `read_prior` takes it.
    - `centred`: take the columns' means off although there is no intercept (beside cut points).
    """
    from provi.targets import LatentGaussian

    if priors.factor.ndim == 2:
        raise ValueError("prior_covariance cannot be a matrix where numbers of the likelihood are estimated.")
    if priors.at_zero:
        raise ValueError("intercept_scale cannot be used where numbers of the likelihood are estimated: use priors=.")
    intercept = priors.intercept is not None
    centre = priors.centre if intercept or centred else np.zeros(X.shape[1])
    columns, scale, mean = np.asarray(X, np.float64) - centre, priors.factor, priors.mean
    names = priors.names
    if priors.intercept is not None:
        columns = np.concatenate([np.ones((len(columns), 1)), columns], axis=1)
        scale, mean = np.append(priors.intercept[1], scale), np.append(priors.intercept[0], mean)
        names = ("intercept (at means)" if centre.any() else "intercept", *names)
    # The target's own coordinates are what is left of the prior means.
    names = tuple(
        f"{name} {'-' if m > 0 else '+'} {abs(m):.4g}" if m else name for name, m in zip(names, mean, strict=True)
    )
    chosen = {field: read_prior(field, prior) if isinstance(prior, str) else prior for field, prior in unknown.items()}
    target = LatentGaussian(
        np.asarray(y, np.float64),
        likelihood,
        fixed=columns,
        fixed_names=names,
        fixed_scale=scale,
        offset=columns @ mean + (0.0 if offset is None else offset),
        weights=weights,
        likelihood_priors=chosen,
    )
    words = {name: prior_words(prior) for name, prior in target.numbers.priors.items()}
    return NestedProblem(target, centre, mean, intercept, words)
