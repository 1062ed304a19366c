r"""Co-coercivity at the optimum on W_M, which allows MPSGD the step 1/(2M) (docs, key lemma):

$f(w^\star) \ge f(w) + \langle\nabla f(w), w^\star - w\rangle + |\nabla f(w)|^2/(4M)$.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core.tree import inner, squared_norm, subtract
from provi.diagnostics import exact_negative_elbo, linear_model_optimum
from provi.families import Laplace, LocationScale, Normal, StudentT
from provi.targets import Gaussian, LogisticRegression
from soundness.problems import nondegenerate

RNG = np.random.default_rng(31)
LOGISTIC = LogisticRegression(RNG.normal(size=(15, 3)), np.arange(15) % 2)
PRECISION = np.array([[30.0, 4.0], [4.0, 1.0]])


def _slacks(target, family, smoothness, count=300):
    """f* - f(w) - <grad, w* - w> and |grad|^2/(4M), at random points of all sizes, half of them on the boundary."""
    optimum, smallest = linear_model_optimum(target, family), smoothness**-0.5
    points = []
    for index in range(count):
        root = 10 ** RNG.uniform(-2, 1) * RNG.normal(size=(family.dim, family.dim))
        covariance = root @ root.T + (index % 2) * smallest**2 * np.eye(family.dim)
        loc = np.asarray(optimum.point.loc) + 10 ** RNG.uniform(-3, 1) * RNG.normal(size=family.dim)
        points.append(family.point_from_covariance(loc, nondegenerate(covariance, smallest)))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)

    def one(point):
        value, gradient = jax.value_and_grad(lambda w: exact_negative_elbo(target, family, w))(point)
        away = inner(gradient, subtract(optimum.point, point))
        return optimum.negative_elbo - value - away, squared_norm(gradient) / (4 * smoothness)

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(stacked))


@pytest.mark.parametrize(
    ("target", "base", "scale"),
    [
        (LOGISTIC, Normal(), "symmetric"),
        (LOGISTIC, Laplace(), "diagonal"),
        (Gaussian(np.zeros(2), precision=PRECISION), StudentT(5.0), "symmetric"),
    ],
    ids=["logistic-normal-symmetric", "logistic-laplace-diagonal", "gaussian-student_t-symmetric"],
)
def test_cocoercive_at_the_optimum(target, base, scale):
    slack, required = _slacks(target, LocationScale(target.dim, base, scale), target.constants.smoothness.value)
    assert (slack >= required * (1 - 1e-7) - 1e-11).all()


def test_the_constant_is_reached():
    """N(0, I/M): a shift of the location alone has slack |grad|^2/(2M), twice what is asked; M/3 would fail."""
    target = Gaussian(np.zeros(2), precision=np.full(2, 4.0))
    slack, required = _slacks(target, LocationScale(2, Normal(), "symmetric"), 4.0)
    assert (slack >= required * (1 - 1e-7) - 1e-11).all()
    assert (slack < 2.2 * required).any()
