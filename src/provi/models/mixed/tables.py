"""Tables of a fitted mixed model: its parameters, the effects of levels, predictions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from provi.frontends.formula.groups import level_text
from provi.frontends.formula.tables import pandas_module
from provi.models.glm.coefficients import RegressionSummary
from provi.models.mixed.assembly import Assembly
from provi.models.mixed.priors import FixedEffects
from provi.result.marginal import Marginal
from provi.result.summary import Summary
from provi.targets.latent.blocks import SparseRows

_RATIOS = {
    "bernoulli": "odds ratio", "binomial": "odds ratio", "ordinal": "odds ratio", "poisson": "rate ratio",
    "negative-binomial": "rate ratio", "weibull": "hazard ratio", "exponential": "hazard ratio",
    "log-normal": "time ratio",
}  # fmt: skip
_MOST_EXACT = 500
"""Effects whose intervals are quantiles of the mixture; of more they are taken as Gaussian."""


def summarise(posterior: Any, assembly: Assembly, probability: float = 0.94) -> Summary:
    """Fixed effects as in the formula, then scales, correlations and the numbers of the likelihood.

    The intercept, and cut points, are those at x = 0; the target has them at the covariates' means.
    """
    check_probability(probability)
    fixed, rows = assembly.priors.fixed, {}
    for k, name in enumerate(fixed.names):
        rows[name] = _row(posterior.fixed[fixed.target_names[k]], probability, fixed.mean[k])
    found, order = posterior.hyperparameters, list(posterior.target.hyperpriors)
    for name in sorted(found, key=lambda name: order.index(name) if name in order else len(order)):
        rows[name] = _row(found[name], probability)
    moved = ["Intercept"] if fixed.intercept is not None else [name for name in rows if name.startswith("cutpoint[")]
    for name in moved if fixed.centre.any() else ():
        rows[name] = _row(_at_zero(posterior, fixed, name), probability)
    table = np.asarray(list(rows.values())).reshape(-1, 4)
    return Summary(tuple(rows), table[:, 0], table[:, 1], table[:, 2:], probability)


def with_ratios(found: Summary, assembly: Assembly) -> RegressionSummary:
    """The table with exp of every fixed effect but the intercept."""
    word = _RATIOS.get(assembly.observed.family)
    if word is None:
        raise ValueError(f"exp(effect) of the family {assembly.observed.family!r} is no ratio.")
    chosen = tuple(name for name in assembly.priors.fixed.names if name != "Intercept")
    numbers = found.mean, found.standard_deviation, found.interval, found.probability
    return RegressionSummary(found.names, *numbers, word, chosen, found.notes)


def check_probability(probability: float) -> None:
    """That of an interval."""
    if not 0 < probability < 1:
        raise ValueError(f"probability must lie between 0 and 1, not {probability}.")


def _at_zero(posterior: Any, fixed: FixedEffects, name: str) -> Marginal:
    r"""The intercept less $\bar x'\beta$, or a cut point plus it: Gaussian at each node of the hyperparameters."""
    target, point, family = posterior.target, posterior.point, posterior.family
    sign = -1.0 if name == "Intercept" else 1.0
    row = sign * fixed.centre + (np.arange(len(fixed.names)) == fixed.intercept)
    with jax.enable_x64(True):
        places = jnp.arange(len(row))[None, :]
        # The coordinates of the fixed effects come first.
        spread = family.conditional_deviations(point, lambda *_: SparseRows(places, jnp.asarray(row)[None, :]))
        mean = np.asarray(family.conditional_means(point))[:, : len(row)] @ row + float(row @ fixed.mean)
        if name != "Intercept":
            mean = mean + np.asarray(jax.vmap(target.reported)(jnp.asarray(point.nodes))[name])
        spreads = np.maximum(np.asarray(spread)[:, 0], 1e-12 * (1 + np.abs(mean)))
    weights = posterior.weights
    middle = float(weights @ mean)
    variance = float(weights @ (spreads**2 + (mean - middle) ** 2))
    return Marginal(name, middle, float(np.sqrt(variance)), weights, mean, spreads)


def _row(marginal: Marginal, probability: float, shift: float = 0.0) -> list[float]:
    low, high = marginal.interval(probability)
    return [marginal.mean + shift, marginal.sd, low + shift, high + shift]


def effects_frame(posterior: Any, assembly: Assembly, probability: float = 0.94) -> Any:
    """A row for each level and effect: term, level, effect, mean, sd, lower, upper."""
    check_probability(probability)
    pandas, parts, columns = pandas_module(), [], ["term", "level", "effect", "mean", "sd", "lower", "upper"]
    kinds = [(group.name, group.factor.labels, group.effects) for group in assembly.design.groups]
    kinds += [(term.name, term.labels, ("value",)) for term in assembly.design.structured]
    for name, levels, effects in kinds:
        found, shape = posterior.effects[name], (len(levels), len(effects))
        mean, sd = (np.asarray(values).reshape(shape) for values in (found.mean, found.sd))
        wide = float(ndtri((1 + probability) / 2)) * sd
        low, high = mean - wide, mean + wide
        if mean.size <= _MOST_EXACT:
            for i, k in np.ndindex(*shape):
                low[i, k], high[i, k] = posterior.effect_marginal(name, i, k).interval(probability)
        for k, effect in enumerate(effects):
            values = (name, list(levels), effect, mean[:, k], sd[:, k], low[:, k], high[:, k])
            parts.append(pandas.DataFrame(dict(zip(columns, values, strict=True))))
    return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame(columns=columns)


def moments(values: np.ndarray, interval: float) -> np.ndarray:
    """Mean, standard deviation and ends of the central interval of draws (n, rows, ...): (rows, ..., 4)."""
    ends = np.quantile(values, [(1 - interval) / 2, (1 + interval) / 2], axis=0)
    return np.stack([values.mean(axis=0), values.std(axis=0), *ends], axis=-1)


def prediction_frame(found: np.ndarray, labels: Any, classes: tuple[Any, ...] | None) -> Any:
    """Predictions as a frame with the index of the table; one row for each category where there are several."""
    pandas, columns = pandas_module(), ["mean", "sd", "lower", "upper"]
    index = pandas.RangeIndex(len(found)) if labels is None else labels
    if found.ndim == 2:
        return pandas.DataFrame(found, index=index, columns=columns)
    names = [level_text(level) for level in classes or range(found.shape[1])]
    frame = pandas.DataFrame(found.reshape(-1, 4), index=index.repeat(len(names)), columns=columns)
    frame.insert(0, "category", names * len(found))
    return frame


def packed_column(column: Any) -> dict[str, Any]:
    """A column of a table as plain values: numbers, texts, or the codes and levels of a category in its order."""
    if hasattr(column.dtype, "categories"):
        return {"codes": np.asarray(column.cat.codes, np.int64), "levels": list(column.cat.categories)}
    if column.dtype == float:
        return {"numbers": np.asarray(column, np.float64)}
    return {"texts": [str(text) for text in column]}


def unpacked_column(packed: Any) -> Any:
    """The inverse of `packed_column`."""
    pandas = pandas_module()
    if "codes" in packed:
        return pandas.Categorical.from_codes(packed["codes"], categories=packed["levels"], ordered=True)
    return packed["numbers"] if "numbers" in packed else pandas.Series(packed["texts"], dtype=object)
