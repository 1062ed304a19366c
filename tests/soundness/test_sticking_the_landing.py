"""Corollary 14: on a Gaussian target in the family, sticking the landing converges linearly to the optimum itself."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from provi.algorithms import ProjSGD
from provi.core.tree import squared_norm
from provi.estimators import Entropy, StickingTheLanding
from provi.estimators.base import minibatch_gradient
from provi.theory import proj_sgd
from soundness.problems import DIM, problem, upper

CHOSEN = problem("gaussian", "normal", "symmetric")


def test_linear_rate_down_to_rounding():
    """|w - w*|^2 < 1e-20 in every replicate; log of the mean is a line (R^2 > 0.99), steeper than the bound's."""
    planned = ProjSGD.from_theorem(
        CHOSEN.target,
        CHOSEN.family,
        budget=7000,
        theorem="strongly_convex",
        estimator=StickingTheLanding(),
        **CHOSEN.sharp,
    )
    assert "Corollary 14" in planned.guarantee.theorem
    constants, step = CHOSEN.target.constants, float(planned.step_size.value)
    mu, smoothness = constants.strong_convexity.value, constants.smoothness.value
    steps = np.arange(250, 7001, 250)
    distances = CHOSEN.squared_distances(CHOSEN.run(planned, steps).iterates)
    assert (distances[:, -1] < 1e-20).all()
    start = CHOSEN.initial_distance_squared(1.0)
    curve = proj_sgd.gaussian_target_bound(steps, step, start, mu, smoothness, DIM)
    np.testing.assert_allclose(planned.guarantee.curve(steps), curve, rtol=1e-12)
    assert (upper(distances) <= curve).all()
    seen = distances.mean(axis=0) > 1e-24
    fit = stats.linregress(steps[seen], np.log(distances.mean(axis=0)[seen]))
    assert seen.sum() >= 10
    assert fit.rvalue**2 > 0.99
    assert fit.slope < np.log1p(-step * mu / 2)
    # The slowest direction is a location along the smallest eigenvalue, where the mean contracts by (1 - step mu)^2.
    assert abs(fit.slope / (2 * np.log1p(-step * mu)) - 1) < 0.15


def test_every_single_draw_vanishes_at_the_optimum():
    """To 1e-12 of the parts that cancel; the entropy estimator there is as large as its parts."""

    def norms(estimator):
        def one(key):
            gradient = minibatch_gradient(
                key, estimator, CHOSEN.target.potential, CHOSEN.family, CHOSEN.optimum.point, jnp.asarray(1)
            )
            return jnp.sqrt(squared_norm(gradient))

        return np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(2), 1000)))

    landing, parts = norms(StickingTheLanding()), norms(Entropy())
    assert landing.max() <= 1e-12 * parts.mean()
    assert parts.min() > 0.01
