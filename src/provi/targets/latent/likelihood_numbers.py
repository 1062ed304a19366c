"""The likelihood of a latent Gaussian model: by name or as an object, and which of its numbers are unknown."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln

from provi.core.arguments import as_array
from provi.targets import likelihoods
from provi.targets.latent.priors import AbstractHyperprior, Gamma, HalfNormal, LogNormal, Normal
from provi.targets.likelihoods.base import AbstractLikelihood

FAMILIES = (
    "bernoulli",
    "probit",
    "binomial",
    "poisson",
    "negative-binomial",
    "gaussian",
    "ordinal",
    "weibull",
    "exponential",
    "log-normal",
)
_SHOWN = {"scale": "sigma"}


class LikelihoodNumbers(eqx.Module):
    """Fields of a likelihood that are hyperparameters, each with its prior; cut points have several."""

    fields: tuple[str, ...] = eqx.field(static=True)
    chosen: tuple[AbstractHyperprior, ...]

    @property
    def priors(self) -> dict[str, AbstractHyperprior]:
        """By the names that people see."""
        return dict(zip(self._names(), self.chosen, strict=True))

    def _names(self) -> list[str]:
        if self.fields == ("cutpoints",):
            return ["cutpoint[1]", *(f"gap[{k}]" for k in range(2, len(self.chosen) + 1))]
        return [_SHOWN.get(field, field) for field in self.fields]

    def assign(self, likelihood: AbstractLikelihood, values: Any) -> AbstractLikelihood:
        """The likelihood with these values of its unknown numbers."""
        if not self.fields:
            return likelihood
        if self.fields == ("cutpoints",):
            return eqx.tree_at(lambda x: x.cutpoints, likelihood, jnp.cumsum(jnp.stack(values)))
        return eqx.tree_at(lambda x: [getattr(x, f) for f in self.fields], likelihood, list(values))

    def reported(self, values: Any) -> dict[str, Any]:
        """The numbers themselves; of cut points the cut points, not their gaps."""
        if self.fields == ("cutpoints",):
            points = jnp.cumsum(jnp.stack(values))
            return {f"cutpoint[{k + 1}]": points[k] for k in range(len(values))}
        return dict(zip(self._names(), values, strict=True))


@dataclasses.dataclass(frozen=True)
class ReadLikelihood:
    """What `read_likelihood` found; `weights` and `constant` are those of a binomial response."""

    likelihood: AbstractLikelihood
    response: np.ndarray
    numbers: LikelihoodNumbers
    weights: np.ndarray | None = None
    constant: float = 0.0


def read_likelihood(y: Any, likelihood: Any, trials: Any, priors: Mapping[str, Any] | None) -> ReadLikelihood:
    """Responses, the likelihood and its unknown numbers, checked."""
    length = len(np.asarray(y)) if np.ndim(y) else 0
    if not length:
        raise ValueError("y is empty: a model needs one response at least.")
    given = dict(priors or {})
    if trials is not None or likelihood == "binomial":
        return _binomial(y, likelihood, trials, length)
    if isinstance(likelihood, str):
        likelihood, usual = _named(likelihood, y)
        given = usual | given
    if not isinstance(likelihood, AbstractLikelihood):
        raise TypeError(f"likelihood must be of provi.targets.likelihoods or one of {', '.join(FAMILIES)}.")
    if not likelihood.log_concave:
        raise ValueError(
            f"The {likelihood.name} likelihood is not log-concave: nested integration cannot prove anything."
        )
    response = np.asarray(likelihood.read_response(y, length), np.float64)
    for field in given:
        if not hasattr(likelihood, field):
            raise ValueError(f"likelihood_priors names {field!r}, which {type(likelihood).__name__} does not have.")
    if "cutpoints" in given:
        return ReadLikelihood(likelihood, response, LikelihoodNumbers(("cutpoints",), tuple(given["cutpoints"])))
    return ReadLikelihood(likelihood, response, LikelihoodNumbers(tuple(given), tuple(given.values())))


def _named(name: str, y: Any) -> tuple[AbstractLikelihood, dict[str, Any]]:
    """A likelihood by its name, and default priors of its numbers."""
    match name:
        case "bernoulli":
            return likelihoods.BernoulliLogit(), {}
        case "probit":
            return likelihoods.BernoulliProbit(), {}
        case "poisson":
            return likelihoods.Poisson(), {}
        case "negative-binomial":
            return likelihoods.NegativeBinomial(1.0), {"dispersion": Gamma(2.0, 0.1)}
        case "gaussian":
            spread = float(np.std(as_array("y", y))) or 1.0
            return likelihoods.GaussianNoise(spread), {"scale": HalfNormal(2.5 * spread)}
        case "weibull":
            return likelihoods.Weibull(1.0), {"shape": LogNormal(0.0, 0.5)}
        case "exponential":
            return likelihoods.Weibull(1.0), {}
        case "log-normal":
            spread = float(np.std(np.log(np.abs(as_array("y", y))))) or 1.0
            return likelihoods.LogNormalSurvival(spread), {"scale": HalfNormal(2.5 * spread)}
        case "ordinal":
            values = as_array("y", y)
            number = int(values.max()) + 1
            if number < 2:
                raise ValueError("y must have two categories at least, 0, 1, ...")
            points = np.linspace(-1.5, 1.5, number - 1) if number > 2 else np.zeros(1)
            gaps = (LogNormal(0.0, 1.0),) * (number - 2)
            return likelihoods.OrdinalLogit(points), {"cutpoints": (Normal(0.0, 3.0), *gaps)}
    raise ValueError(f"likelihood must be one of {', '.join(FAMILIES)}, not {name!r}.")


def _binomial(y: Any, likelihood: Any, trials: Any, length: int) -> ReadLikelihood:
    """Successes out of trials: a logistic likelihood of the share, weighted by the trials."""
    if trials is None:
        raise ValueError('likelihood "binomial" needs trials=, the number of trials of each datum.')
    if not (likelihood in ("binomial", "bernoulli") or isinstance(likelihood, likelihoods.BernoulliLogit)):
        raise ValueError("trials are for binomial responses with the logit link.")
    successes, number = as_array("y", y, ndim=1).astype(np.float64), as_array("trials", trials).astype(np.float64)
    number = np.broadcast_to(number, (length,))
    whole = np.array_equal(successes, np.round(successes)) and np.array_equal(number, np.round(number))
    if not whole or (successes < 0).any() or (successes > number).any() or (number < 1).any():
        raise ValueError("y must hold whole numbers of successes between 0 and trials, and trials be 1 at least.")
    constant = np.sum(gammaln(number + 1) - gammaln(successes + 1) - gammaln(number - successes + 1))
    numbers = LikelihoodNumbers((), ())
    return ReadLikelihood(likelihoods.BernoulliLogit(), successes / number, numbers, number.copy(), float(constant))
