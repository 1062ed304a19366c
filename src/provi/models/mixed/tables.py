"""Tables of a fitted mixed model: its parameters, the effects of levels, predictions."""

from typing import Any

import numpy as np

from provi.frontends.formula.groups import level_text
from provi.frontends.formula.tables import pandas_module
from provi.models.mixed.assembly import Assembly
from provi.models.mixed.prediction import Draws
from provi.result.summary import Summary

_DRAWS, _SEED, _NUMBERS = 10_000, 0, 2**26


def summarise(posterior: Any, assembly: Assembly, probability: float = 0.94) -> Summary:
    """Fixed effects as in the formula, then scales, correlations and the numbers of the likelihood.

    Exact marginals of the mixture; an intercept or a cut point at x = 0 is computed from draws where the target has it
    at the covariates' means.
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
    fixed, tails = assembly.priors.fixed, ((1 - probability) / 2, (1 + probability) / 2)
    drawn = _moved(posterior, assembly)
    names, rows = [], []
    for k, name in enumerate(fixed.names):
        names.append(name)
        if name in drawn:
            rows.append(_row(drawn[name], tails))
        else:
            rows.append(_marginal(posterior.fixed[fixed.target_names[k]], tails, fixed.mean[k]))
    for name, marginal in posterior.hyperparameters.items():
        names.append(name)
        rows.append(_row(drawn[name], tails) if name in drawn else _marginal(marginal, tails))
    table = np.asarray(rows).reshape(-1, 4)
    notes = (f"From draws: {', '.join(drawn)}. The other rows are exact for the fit.",) if drawn else ()
    return Summary(tuple(names), table[:, 0], table[:, 1], table[:, 2:], probability, notes)


def _moved(posterior: Any, assembly: Assembly) -> dict[str, np.ndarray]:
    """Draws of what is at x = 0 in the formula and at the covariates' means in the target."""
    fixed, ordinal = assembly.priors.fixed, assembly.observed.family == "ordinal"
    if not fixed.centre.any() or not (ordinal or fixed.intercept is not None):
        return {}
    size = sum(len(group.factor.levels) * len(group.effects) for group in assembly.design.groups) + len(fixed.names)
    num_draws = int(np.clip(_NUMBERS // max(size, 1), 100, _DRAWS))
    draws = Draws(posterior.draws(num_draws, _SEED), fixed, num_draws)
    if not ordinal:
        assert fixed.intercept is not None
        return {"Intercept": fixed.original(draws.delta)[:, fixed.intercept]}
    shift = (draws.delta + fixed.mean) @ fixed.centre
    return {name: value + shift for name, value in draws.values.items() if name.startswith("cutpoint[")}


def _row(values: np.ndarray, tails: tuple[float, float]) -> list[float]:
    return [float(values.mean()), float(values.std(ddof=1)), *map(float, np.quantile(values, tails))]


def _marginal(marginal: Any, tails: tuple[float, float], shift: float = 0.0) -> list[float]:
    ends = [float(marginal.quantile(tail)) + shift for tail in tails]
    return [float(marginal.mean) + shift, float(marginal.sd), *ends]


def effects_frame(posterior: Any, assembly: Assembly, probability: float = 0.94) -> Any:
    """A row for each level and effect: term, level, effect, mean, sd, lower, upper."""
    if not 0 < probability < 1:
        raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
    from scipy.special import ndtri

    pandas, parts = pandas_module(), []
    wide = float(ndtri((1 + probability) / 2))
    kinds = [(group.name, group.factor.labels, group.effects) for group in assembly.design.groups]
    kinds += [(term.name, term.labels, ("value",)) for term in assembly.design.structured]
    for name, levels, effects in kinds:
        found = posterior.effects[name]
        mean, sd = (np.asarray(x).reshape(len(levels), len(effects)) for x in (found.mean, found.sd))
        for k, effect in enumerate(effects):
            columns = {
                "term": name, "level": list(levels), "effect": effect, "mean": mean[:, k], "sd": sd[:, k],
                "lower": mean[:, k] - wide * sd[:, k], "upper": mean[:, k] + wide * sd[:, k],
            }  # fmt: skip
            parts.append(pandas.DataFrame(columns))
    if not parts:
        return pandas.DataFrame(columns=["term", "level", "effect", "mean", "sd", "lower", "upper"])
    return pandas.concat(parts, ignore_index=True)


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
