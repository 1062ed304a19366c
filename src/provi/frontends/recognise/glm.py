"""Linear models that front-ends recognise: Gaussian priors, a log-concave likelihood, an affine predictor."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import device_array
from provi.core.types import Draws, Scalar, Vector
from provi.frontends.recognise.affine import Form, forms
from provi.frontends.recognise.row_likelihoods import BinomialRows
from provi.targets.likelihoods.rows import row_numbers
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.regressions import GeneralisedLinearModel, LinearRegression, LogisticRegression, PoissonRegression

_LARGEST_DESIGN = 2**26  # numbers: 512 MiB
_SMALLEST_SCALE = 1e-100  # its square can be divided by
_AGREEMENT = 1e-9
_AGREEMENT_OF_CONSTANTS = 1e-6


def linear_model_of(
    kind: str,
    parameters: Callable[[Vector], dict[str, Any]],
    potential: Callable[[Vector], Scalar],
    start: Vector,
    names: tuple[str, ...],
) -> AbstractLinearModel | None:
    """The posterior as a linear model in the same coordinates, or `None` where that is not proven.

    Proven means: the traced program of `parameters` says that locations and scales of the priors, the data and the
    known parameters of the likelihood do not depend on z, and that the predictor is affine in it
    (`provi.frontends.recognise.affine`). Its matrix is then the Jacobian at one point.

    **Arguments:**

    - `kind`: the likelihood of all data: `"bernoulli"`, `"binomial"`, `"poisson"` or `"normal"`.
    - `parameters`: of z, vectors by name: `prior_loc` and `prior_scale` of the independent normal priors of the
      coordinates, `data`, and of each datum the `predictor` (the logit, the Poisson rate itself, or the mean), with
      `total_count` for a binomial and `scale` for a normal likelihood.
    - `potential`: -log p, for a comparison at two points.
    - `start`: a vector like z.
    - `names`: of its coordinates.
    """
    shapes = jax.eval_shape(parameters, start)
    wanted = Form.LOG_AFFINE if kind == "poisson" else Form.AFFINE
    found = jax.tree.unflatten(jax.tree.structure(shapes), forms(parameters, start))
    constant = all(form == Form.CONSTANT for name, form in found.items() if name != "predictor")
    if not constant or found["predictor"] not in (wanted, Form.CONSTANT):
        return None
    if not 0 < shapes["predictor"].size * start.size <= _LARGEST_DESIGN:  # without data there is no linear model
        return None

    @jax.jit
    def read(z: Vector) -> Any:
        def predictor(z: Vector) -> Any:
            found = parameters(z)
            value = found.pop("predictor")
            return jnp.log(value) if kind == "poisson" else value, found

        offset, push, known = jax.linearize(predictor, z, has_aux=True)
        return offset, jax.vmap(push, out_axes=1)(jnp.eye(z.size, dtype=z.dtype)), known

    offset, design, known = jax.tree.map(lambda x: np.asarray(x, np.float64), read(jnp.zeros_like(start)))
    if not (np.isfinite(offset).all() and np.isfinite(design).all()):
        return None
    prior = {"prior_scale": known["prior_scale"], "prior_mean": known["prior_loc"], "names": names}
    linear = _build(kind, design, offset, known, prior)
    return linear if linear is not None and _agrees(linear, potential, start) else None


def _build(
    kind: str, design: np.ndarray, offset: np.ndarray, known: dict[str, np.ndarray], prior: dict[str, Any]
) -> AbstractLinearModel | None:
    """The linear model; `None` where the data are not of the likelihood's kind."""
    y, rows, plain = known["data"], row_numbers(offset.size), not offset.any()
    if not np.isfinite(y).all() or not (known["prior_scale"] > _SMALLEST_SCALE).all():
        return None
    if kind == "normal":
        return _gaussian(design, y - offset, known["scale"], prior)
    if (y < 0).any() or (y != np.round(y)).any():
        return None
    if kind == "poisson":
        return PoissonRegression(design, y, offset=None if plain else offset, **prior)
    trials = known["total_count"] if kind == "binomial" else np.ones_like(y)
    if (y > trials).any():
        return None
    if plain and (trials == 1).all():
        return LogisticRegression(design, y, **prior)
    likelihood = BinomialRows(jnp.asarray(y), jnp.asarray(trials - y), jnp.asarray(offset))
    return GeneralisedLinearModel(design, rows, likelihood, **prior)


def _gaussian(design: np.ndarray, y: np.ndarray, scale: np.ndarray, prior: dict[str, Any]) -> LinearRegression | None:
    """One noise scale for all rows: their geometric mean g, with row n times g/s_n, is the same normalised density."""
    if not ((scale > 0) & np.isfinite(scale)).all():
        return None
    common = float(np.exp(np.mean(np.log(scale)))) if np.ptp(scale) > 0 else float(scale[0])
    weight = common / scale
    return LinearRegression(design * weight[:, None], y * weight, common, **prior)


def _agrees(linear: AbstractLinearModel, potential: Callable[[Vector], Scalar], start: Vector) -> bool:
    """Whether the two densities are equal at two points: no proof, but a guard against a change of a package's meaning.

    PyMC rounds the logarithm of a scale such as 3.0 to single precision, so that the two may differ by a constant.
    """
    scale = np.broadcast_to(np.asarray(linear.prior.factor), (linear.dim,))
    steps = 0.1 * np.cos(np.arange(linear.dim)) * np.array([[1.0], [-2.0]])
    points = device_array(np.asarray(linear.prior.mean) + scale * steps, start.dtype)

    @eqx.filter_jit
    def both(linear: AbstractLinearModel, points: Draws) -> tuple[Any, Any]:
        return jax.lax.map(linear.potential, points), jax.lax.map(potential, points)

    ours, theirs = (np.asarray(x, np.float64) for x in both(linear, points))
    precise = start.dtype == jnp.float64
    size, error = 1 + np.abs(theirs).max(), ours - theirs
    constant = np.abs(error).max() <= (_AGREEMENT_OF_CONSTANTS if precise else 1e-3) * size
    return bool(constant and np.ptp(error) <= (_AGREEMENT if precise else 1e-3) * size)
