"""Conjugate natural-gradient steps against exact posteriors, automatic differentiation and loops by hand."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import gammaln

from provi.algorithms.mirror import conjugate_svi as svi
from provi.models.conjugate.expectations import dirichlet_expected_log, dirichlet_kl
from provi.models.conjugate.gaussian_mixture_updates import GaussianMixtureModel, MixtureNatural, Rows


class Categories(svi.AbstractConjugateModel):
    """Counts with a Dirichlet prior and no local factors: the posterior and the evidence are known."""

    prior: Any

    def local_step(self, natural, rows):
        return svi.LocalAnswer(jnp.sum(rows, axis=0), jnp.sum(rows @ dirichlet_expected_log(natural)))

    def divergence(self, natural):
        return dirichlet_kl(natural, self.prior)


PRIOR = np.asarray([0.5, 1.0, 2.0])
ROWS = np.eye(3)[[0, 0, 1, 2, 2, 2, 2, 0, 1, 2]]


def categories():
    return Categories(jnp.asarray(PRIOR)), jnp.asarray(np.asarray([3.0, 1.5, 0.7])), (jnp.asarray(ROWS),)


def mixture(components=2, rows=30, seed=1, diagonal=False):
    """A small mixture model, a natural parameter that is neither prior nor optimum, and its rows."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, 2)) + 4.0 * (np.arange(rows) % 2)[:, None] - 2.0
    scale = np.ones(2) if diagonal else np.eye(2)

    def natural(counts, means, spread):
        square = means**2 if diagonal else means[:, :, None] * means[:, None, :]
        second = (
            spread[(slice(None),) + (None,) * scale.ndim] * scale[None] + counts[(...,) + (None,) * scale.ndim] * square
        )
        leaves = (counts, 0.5 + counts, (0.5 + counts)[:, None] * means, 3.0 + counts, second + 0.5 * square)
        return MixtureNatural(*(jnp.asarray(leaf) for leaf in leaves))

    prior = natural(np.full(components, 0.4), np.zeros((components, 2)), np.ones(components))
    start = natural(rng.uniform(3, 9, components), rng.normal(size=(components, 2)), rng.uniform(2, 5, components))
    return GaussianMixtureModel(prior), start, (Rows(jnp.asarray(values), jnp.asarray(np.ones(rows))),)


def test_one_full_step_is_the_exact_posterior_and_its_elbo_the_evidence():
    model, start, strata = categories()
    ascent = svi.coordinate_ascent(model, start, strata, max_passes=5, tolerance=1e-9)
    posterior = PRIOR + ROWS.sum(axis=0)
    np.testing.assert_allclose(ascent.natural, posterior, rtol=1e-14)
    evidence = gammaln(posterior).sum() - gammaln(posterior.sum()) - gammaln(PRIOR).sum() + gammaln(PRIOR.sum())
    assert ascent.elbo[0] < evidence - 0.1
    np.testing.assert_allclose(ascent.elbo[1:], evidence, rtol=1e-13)
    assert ascent.converged and len(ascent.elbo) == 3


@pytest.mark.parametrize("which", [categories, mixture, lambda: mixture(diagonal=True)], ids=["counts", "full", "diag"])
def test_the_step_is_the_natural_gradient_step(which):
    """lambda + rate F^-1 grad ELBO, both by automatic differentiation; F = Hessian of the KL in its second slot."""
    model, start, strata = which()
    flat, unravel = ravel_pytree(start)

    @eqx.filter_jit
    def gradient_and_metric(model, flat, strata):
        def divergence_from(other):
            return eqx.tree_at(lambda m: m.prior, model, unravel(other)).divergence(unravel(flat))

        gradient = jax.grad(lambda x: svi.elbo(model, unravel(x), strata))(flat)
        return gradient, jax.hessian(divergence_from)(flat), svi.full_answer(model, unravel(flat), strata).statistics

    gradient, fisher, statistics = gradient_and_metric(model, flat, strata)
    beta = 0.7
    new = svi.natural_gradient_step(model, start, statistics, beta / (1 + beta))
    moved = np.asarray(ravel_pytree(new)[0] - flat)
    np.testing.assert_allclose(fisher @ moved, beta / (1 + beta) * gradient, rtol=1e-8, atol=1e-8)
    # r lambda + (1 - r) lambda_hat with r = 1 / (1 + beta), leaf by leaf
    mean_field = np.asarray(ravel_pytree(jax.tree.map(jnp.add, model.prior, statistics))[0])
    np.testing.assert_allclose(flat + moved, flat / (1 + beta) + mean_field * beta / (1 + beta), rtol=1e-12)


def test_blocks_of_passes_equal_a_loop_by_hand_and_the_elbo_never_falls():
    model, start, strata = mixture(components=3)
    passes = svi.BLOCK + 9
    ascent = svi.coordinate_ascent(model, start, strata, passes, tolerance=-np.inf)
    natural, values = start, []
    for _ in range(passes):
        values.append(float(svi.elbo(model, natural, strata)))
        one = jnp.asarray(np.asarray(1.0))
        natural = svi.answer_batch(model, natural, strata, one, one)
    values.append(float(svi.elbo(model, natural, strata)))
    np.testing.assert_allclose(ascent.elbo, values, rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(ascent.natural)[0], ravel_pytree(natural)[0], rtol=1e-9)
    assert (np.diff(ascent.elbo) >= -1e-10).all() and not ascent.converged


def test_no_passes_measures_the_start():
    model, start, strata = categories()
    ascent = svi.coordinate_ascent(model, start, strata, max_passes=0, tolerance=0.0)
    np.testing.assert_array_equal(ascent.natural, start)
    assert len(ascent.elbo) == 1


def test_a_start_that_is_not_finite_ends_the_run():
    model, start, strata = categories()
    ascent = svi.coordinate_ascent(model, start * jnp.asarray(np.nan), strata, max_passes=50, tolerance=0.0)
    assert len(ascent.elbo) == 1 and np.isnan(ascent.elbo[0])


def test_batches_are_stratified_and_their_weighted_sums_add_up_to_all_rows():
    sizes = (12, 6)
    batches = svi.draw_batches(np.random.RandomState(0), sizes, 6)
    assert [batch.shape for batch in batches] == [(3, 4), (3, 2)]
    for size, batch in zip(sizes, batches, strict=True):
        np.testing.assert_array_equal(np.sort(batch.ravel()), np.arange(size))
    # N = 7 in batches of 3: one row waits for another pass, none is drawn twice
    (short,) = svi.draw_batches(np.random.RandomState(0), (7,), 3)
    assert short.shape == (2, 3) and len(np.unique(short)) == 6


def test_a_stochastic_pass_is_hoffmans_loop():
    """lambda <- (1 - rho_k) lambda + rho_k (prior + N/M sum over the batch), rho_k = (k0 + k)^-kappa, k = 1, 2, ..."""
    model, start, _ = categories()
    offset, decay = 2.0, 0.6
    strata = (jnp.asarray(ROWS[:6]), jnp.asarray(ROWS[6:]))
    ascent = svi.stochastic_ascent(
        model, start, strata, (6, 4), np.random.RandomState(3), 5, 2, tolerance=0.0, forgetting=(offset, decay)
    )
    generator, natural, k = np.random.RandomState(3), np.asarray(start), 0
    for _ in range(2):
        first, second = svi.draw_batches(generator, (6, 4), 5)
        for i in range(2):
            k += 1
            rate = (offset + k) ** -decay
            sums = 6 / 3 * ROWS[:6][first[i]].sum(axis=0) + 4 / 2 * ROWS[6:][second[i]].sum(axis=0)
            natural = (1 - rate) * natural + rate * (PRIOR + sums)
    np.testing.assert_allclose(ascent.natural, natural, rtol=1e-13)


def test_the_automatic_step_never_lets_the_elbo_fall_and_ends_near_the_optimum():
    model, start, strata = mixture(rows=200)
    best = svi.coordinate_ascent(model, start, strata, 200, tolerance=1e-9).elbo[-1]
    ascent = svi.stochastic_ascent(model, start, strata, (200,), np.random.RandomState(0), 20, 100, tolerance=1e-3)
    assert (np.diff(ascent.elbo) >= 0).all()
    assert ascent.converged
    assert best - ascent.elbo[-1] < 0.1 < best - ascent.elbo[0]
    np.testing.assert_allclose(float(svi.elbo(model, ascent.natural, strata)), ascent.elbo[-1], rtol=1e-12)
