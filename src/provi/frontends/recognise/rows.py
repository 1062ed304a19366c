"""The likelihoods of recognised models given their scales: rows that see an affine predictor."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from provi.frontends.recognise.affine import Form
from provi.frontends.recognise.row_likelihoods import BinomialRows
from provi.targets.likelihoods.base import AbstractLikelihood
from provi.targets.likelihoods.bernoulli import BernoulliLogit
from provi.targets.likelihoods.gaussian import GaussianNoise
from provi.targets.likelihoods.negative_binomial import NegativeBinomial
from provi.targets.likelihoods.poisson import Poisson
from provi.targets.likelihoods.rows import row_numbers


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a front-end says of each row of a likelihood.

    **Arguments:**

    - `predictor`: the form of the predictor that makes a linear model.
    - `numbers`: the words for its other parameters.
    - `known`: those among them that must not depend on anything unknown, as the data must not.
    - `common`: those among them of which there must be one for all rows, given as a vector of length 1.
    - `counts`: whether the data are counts.
    - `agreement`: how well a package's own density agrees with ours, relative to its size.
    """

    predictor: Form
    numbers: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    common: tuple[str, ...] = ()
    counts: bool = True
    agreement: float = 1e-9


KINDS = {
    "bernoulli": Kind(Form.AFFINE),
    "binomial": Kind(Form.AFFINE, ("total_count",), known=("total_count",)),
    "poisson": Kind(Form.LOG_AFFINE),
    "normal": Kind(Form.AFFINE, ("scale",), counts=False),
    # NumPyro's rests on JAX's logarithm of the beta function, which is off by 1e-6 for counts of 7 and more.
    "negative-binomial": Kind(Form.LOG_AFFINE, ("concentration",), common=("concentration",), agreement=1e-6),
}
"""Predictors: the logit (twice), the rate, the mean; for a negative binomial law the rate as well, its mean."""


class Rows(NamedTuple):
    """Rows given the scales: log p(y | eta) = -potential(factor * (eta - shift), response) - constant, summed."""

    likelihood: AbstractLikelihood
    response: Any
    factor: Any
    shift: Any
    constant: Any


def link(kind: str, predictor: Any) -> Any:
    """The predictor as the affine function that it stands for."""
    return jnp.log(predictor) if KINDS[kind].predictor == Form.LOG_AFFINE else predictor


def read_rows(kind: str, numbers: dict[str, Any]) -> Rows:
    r"""The likelihood with its numbers, which may be traced.

    Normal rows of any scales are rows of unit noise around zero: $-\log N(y; \eta, s^2) = t((\eta - y)/s) + \log s$.
    """
    y = numbers["data"]
    one, zero = jnp.ones_like(y), jnp.zeros_like(y)
    if kind == "normal":
        scale = numbers["scale"]
        return Rows(GaussianNoise(1.0), zero, 1 / scale, y, jnp.sum(jnp.log(scale)))
    if kind == "binomial":
        likelihood = BinomialRows(y, numbers["total_count"] - y, zero)
        return Rows(likelihood, jnp.asarray(row_numbers(y.size), y.dtype), one, zero, 0.0)
    if kind == "negative-binomial":
        # One number for all rows: `conditional_glm_of` asks for that.
        likelihood = eqx.tree_at(lambda x: x.dispersion, NegativeBinomial(1.0), numbers["concentration"][0])
        return Rows(likelihood, y, one, zero, 0.0)
    return Rows(Poisson() if kind == "poisson" else BernoulliLogit(), y, one, zero, 0.0)


def are_data(kind: str, known: dict[str, np.ndarray]) -> bool:
    """Whether the data are such as the likelihood is of."""
    y = known["data"]
    if not y.size or not np.isfinite(y).all():
        return False
    if not KINDS[kind].counts:
        return True
    if (y < 0).any() or (y != np.round(y)).any():
        return False
    most = {"bernoulli": np.ones_like(y), "binomial": known.get("total_count")}.get(kind)
    return most is None or bool((y <= most).all())
