r"""The families of responses: what is read of the table, the mean as a function of the predictor, and new responses.

A family has a link g with $E[y] = g^{-1}(\eta)$. The prior of the intercept is centred where the data lie: at the mean
of a Gaussian response, at the logarithm of the mean rate of counts, at zero log odds.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit, gamma, ndtr

from provi.frontends.formula.groups import level_text
from provi.frontends.formula.response import Response
from provi.frontends.formula.syntax import nearest
from provi.models.weak_priors import response_location

_LINKS = {
    "bernoulli": "logit", "probit": "probit", "binomial": "logit", "poisson": "log", "negative-binomial": "log",
    "gaussian": "identity", "ordinal": "logit", "weibull": "log", "exponential": "log", "log-normal": "log time",
}  # fmt: skip
_OTHER_NAMES = {
    "logistic": "bernoulli", "normal": "gaussian", "negativebinomial": "negative-binomial",
    "negbinomial": "negative-binomial", "nbinom2": "negative-binomial", "cumulative": "ordinal",
    "lognormal": "log-normal",
}  # fmt: skip
FAMILIES = tuple(_LINKS)
_LISTED = 6


@dataclasses.dataclass(frozen=True)
class Observed:
    """Responses as the model takes them.

    - `y`: numbers; a censored time is negative. - `classes`: labels of the categories. - `words`: for people.
    - `centre`, `scale`: of the predictor, for the priors.
    """

    family: str
    y: np.ndarray
    trials: np.ndarray | None
    weights: np.ndarray | None
    classes: tuple[Any, ...] | None
    words: str
    centre: float
    scale: float

    @property
    def link(self) -> str:
        """The name of g."""
        return _LINKS[self.family]


def family_name(family: Any) -> str:
    """The name of a family as it stands here; names that other packages use are understood."""
    if not isinstance(family, str):
        raise TypeError(f"family must be a text, one of {', '.join(FAMILIES)}, not {type(family).__name__}.")
    name = family.strip().lower().replace("_", "-")
    name = _OTHER_NAMES.get(name.replace("-", ""), name)
    if name not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, not {family!r}.{nearest(name, FAMILIES)}")
    return name


def read_observed(family: str, response: Response, offset: np.ndarray) -> Observed:
    """The responses of a family, checked; an error names the response and what to do."""
    name, weights = response.name, _checked_weights(response)
    _check_parts(family, response)
    if response.trials is not None:
        y, words = _successes(response), "successes"
        total = float(response.trials.sum())
        words = f"{y.sum():g} successes in {total:g} trials"
        return Observed("binomial", y, response.trials, weights, None, words, 0.0, 1.0)
    if family in ("bernoulli", "probit"):
        y, classes = _labels(response)
        ones = int(y.sum())
        words = f"1 for {level_text(classes[1])!r} ({ones} rows), 0 for {level_text(classes[0])!r} ({len(y) - ones})"
        return Observed(family, y, None, weights, classes, words, 0.0, 1.0)
    if family == "ordinal":
        y, classes = _categories(response)
        words = " < ".join(level_text(level) for level in classes)
        return Observed(family, y, None, weights, classes, words, 0.0, 1.0)
    y = _numbers(response)
    if family == "gaussian":
        if np.ptp(y) == 0:
            raise ValueError(f"The response {name!r} has one value only, {y[0]:g}: there is nothing to explain.")
        words = f"numbers from {y.min():.4g} to {y.max():.4g}"
        return Observed(family, y, None, weights, None, words, *response_location("gaussian", y, offset))
    if family in ("poisson", "negative-binomial"):
        wrong = y[(y < 0) | (y != np.round(y))]
        if wrong.size:
            raise ValueError(f"The response {name!r} must hold counts 0, 1, 2, ... for {family}, not {wrong[0]:g}.")
        words = f"counts, mean {y.mean():.4g}, largest {y.max():g}"
        return Observed(family, y, None, weights, None, words, *response_location("counts", y, offset))
    return _survival(family, response, y, weights, offset)


def _survival(family: str, response: Response, y: np.ndarray, weights: Any, offset: np.ndarray) -> Observed:
    if (y <= 0).any():
        raise ValueError(f"The times {response.name!r} must be positive for {family}, not {y[y <= 0][0]:g}.")
    event = np.ones(len(y), bool) if response.event is None else response.event
    if not event.any():
        raise ValueError(f"Every time of {response.name!r} is censored: no event was seen.")
    words = f"{int(event.sum())} events, {int((~event).sum())} censored times"
    signed = np.where(event, y, -y)
    location = response_location("log time" if family == "log-normal" else "hazard", signed, offset)
    return Observed(family, signed, None, weights, None, words, *location)


def mean_response(family: str, eta: np.ndarray, numbers: Mapping[str, np.ndarray]) -> np.ndarray:
    """E[y | eta], (draws, rows); `numbers` are draws of those of the likelihood, (draws,) each.

    Of a binomial response the probability; of an ordinal one (draws, rows, categories), the probability of each.
    """
    match family:
        case "bernoulli" | "binomial":
            return expit(eta)
        case "probit":
            return ndtr(eta)
        case "gaussian":
            return eta
        case "poisson" | "negative-binomial":
            return np.exp(eta)
        case "ordinal":
            below = expit(_cutpoints(numbers)[:, None, :] - eta[:, :, None])
            ends = np.zeros((*eta.shape, 1)), np.ones((*eta.shape, 1))
            return np.diff(np.concatenate([ends[0], below, ends[1]], axis=2), axis=2)
        case "log-normal":
            return np.exp(eta + 0.5 * numbers["sigma"][:, None] ** 2)
        case _:
            shape = numbers.get("shape", np.ones(len(eta)))[:, None]
            return _time_scale(eta, shape) * gamma(1 + 1 / shape)


def draw_response(
    family: str, eta: np.ndarray, numbers: Mapping[str, np.ndarray], trials: np.ndarray | None, rng: Any
) -> np.ndarray:
    """New responses y ~ p(y | eta), (draws, rows); categories 0, 1, ... of an ordinal one."""
    mean = mean_response(family, eta, numbers)
    match family:
        case "bernoulli" | "probit":
            return (rng.random(eta.shape) < mean).astype(float)
        case "binomial":
            if trials is None:
                raise ValueError("The new data have no column of trials: kind='response' draws successes out of them.")
            return rng.binomial(np.asarray(trials, np.int64)[None, :], mean).astype(float)
        case "gaussian" | "log-normal":
            drawn = eta + numbers["sigma"][:, None] * rng.standard_normal(eta.shape)
            return drawn if family == "gaussian" else np.exp(drawn)
        case "poisson":
            return rng.poisson(np.minimum(mean, 1e18)).astype(float)
        case "negative-binomial":
            shape = numbers["dispersion"][:, None]
            return rng.poisson(np.minimum(rng.gamma(np.broadcast_to(shape, mean.shape)) * mean / shape, 1e18)) * 1.0
        case "ordinal":
            return np.sum(np.cumsum(mean, axis=2)[:, :, :-1] < rng.random((*eta.shape, 1)), axis=2).astype(float)
        case _:
            shape = numbers.get("shape", np.ones(len(eta)))[:, None]
            return _time_scale(eta, shape) * rng.standard_exponential(eta.shape) ** (1 / shape)


def _time_scale(eta: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """The scale of Weibull times whose cumulative hazard is t^shape exp(eta)."""
    return np.exp(-eta / shape)


def _cutpoints(numbers: Mapping[str, np.ndarray]) -> np.ndarray:
    count = sum(name.startswith("cutpoint[") for name in numbers)
    return np.stack([numbers[f"cutpoint[{k + 1}]"] for k in range(count)], axis=1)


def _check_parts(family: str, response: Response) -> None:
    """Trials belong to binomial responses, censoring to survival times."""
    if family == "binomial" and response.trials is None:
        raise ValueError("family 'binomial' needs trials: write p(successes, trials) ~ ... on the left side.")
    if response.trials is not None and family not in ("binomial", "bernoulli"):
        raise ValueError(f"Trials are for family 'binomial', not {family!r}.")
    if response.event is not None and family not in ("weibull", "exponential", "log-normal"):
        raise ValueError(f"Censored times are for family 'weibull', 'exponential' or 'log-normal', not {family!r}.")


def _checked_weights(response: Response) -> np.ndarray | None:
    weights = response.weights
    if weights is not None and ((weights < 0).any() or not weights.any()):
        raise ValueError("weights must not be negative, and not all zero.")
    return weights


def _numbers(response: Response) -> np.ndarray:
    if response.values.dtype.kind != "f":
        raise ValueError(f"The response {response.name!r} must hold numbers, not texts such as {response.values[0]!r}.")
    return np.asarray(response.values, float)


def _successes(response: Response) -> np.ndarray:
    y, trials = _numbers(response), response.trials
    assert trials is not None
    if (trials < 1).any() or (trials != np.round(trials)).any():
        raise ValueError(
            f"Trials must be whole numbers, 1 at least, not {trials[(trials < 1) | (trials % 1 > 0)][0]:g}."
        )
    wrong = (y < 0) | (y > trials) | (y != np.round(y))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"{response.name!r} must be whole numbers from 0 to the trials, not {y[row]:g} of {trials[row]:g}."
        )
    return y


def _labels(response: Response) -> tuple[np.ndarray, tuple[Any, Any]]:
    """0 and 1, and the classes that they stand for: the later one in order is 1 unless another is named."""
    levels = list(response.levels or sorted(set(response.values.tolist())))
    listed = ", ".join(repr(level_text(level)) for level in levels[:_LISTED]) + (
        ", ..." if len(levels) > _LISTED else ""
    )
    name = response.name
    if len(levels) == 1:
        raise ValueError(f"The response {name!r} has one class only, {listed}: rows of two classes are needed.")
    if response.positive is None:
        if len(levels) > 2:
            raise ValueError(
                f"The response {name!r} has {len(levels)} classes ({listed}); bernoulli takes two. Name the one that "
                f"is 1, {name}[{level_text(levels[-1])}] ~ ..., or take another family."
            )
        return (response.values == levels[1]).astype(float), (levels[0], levels[1])
    texts = [level_text(level) for level in levels]
    if response.positive not in texts:
        raise ValueError(f"The response {name!r} has no label {response.positive!r}: its labels are {listed}.")
    place = texts.index(response.positive)
    other = levels[1 - place] if len(levels) == 2 else "another"
    return (response.values == levels[place]).astype(float), (other, levels[place])


def _categories(response: Response) -> tuple[np.ndarray, tuple[Any, ...]]:
    """0, 1, ... in the order of the categories."""
    if response.values.dtype.kind != "f" and response.levels is None:
        raise ValueError(
            f"The response {response.name!r} holds texts, whose order is not known: make it an ordered pandas "
            f"Categorical or numbers."
        )
    levels: Any = tuple(response.levels or sorted(set(response.values.tolist())))
    if len(levels) < 2:
        raise ValueError(f"The response {response.name!r} has one category only, {level_text(levels[0])!r}.")
    if len(levels) > 30:
        raise ValueError(f"The response {response.name!r} has {len(levels)} categories; ordinal takes 30 at most.")
    where = {level: place for place, level in enumerate(levels)}
    return np.array([where[value] for value in response.values], float), levels
