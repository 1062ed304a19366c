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
from provi.algorithms.mirror.proximal_gradient import ProximalGradient
from provi.algorithms.mirror.step import towards
from provi.families.base import AnyParameters
from provi.geometry.divergences import KL, Euclidean
from provi.models.conjugate import ascent as ascents
from provi.models.conjugate.expectations import dirichlet_expected_log, dirichlet_kl
from provi.models.conjugate.gaussian_mixture_updates import GaussianMixtureModel, MixtureNatural, Rows
from provi.runtime import run
from provi.runtime.record import Outcome


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
    ascent = ascents.coordinate_ascent(model, start, strata, max_passes=5, tolerance=1e-9)
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
    new = towards(start, model.prior, jax.tree.map(jnp.negative, statistics), beta / (1 + beta))
    moved = np.asarray(ravel_pytree(new)[0] - flat)
    np.testing.assert_allclose(fisher @ moved, beta / (1 + beta) * gradient, rtol=1e-8, atol=1e-8)
    # r lambda + (1 - r) lambda_hat with r = 1 / (1 + beta), leaf by leaf
    mean_field = np.asarray(ravel_pytree(jax.tree.map(jnp.add, model.prior, statistics))[0])
    np.testing.assert_allclose(flat + moved, flat / (1 + beta) + mean_field * beta / (1 + beta), rtol=1e-12)


def test_passes_equal_a_loop_by_hand_and_the_elbo_never_falls():
    model, start, strata = mixture(components=3)
    passes = 41
    ascent = ascents.coordinate_ascent(model, start, strata, passes, tolerance=-np.inf)
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
    ascent = ascents.coordinate_ascent(model, start, strata, max_passes=0, tolerance=0.0)
    np.testing.assert_array_equal(ascent.natural, start)
    assert len(ascent.elbo) == 1


def test_a_start_that_is_not_finite_ends_the_run():
    model, start, strata = categories()
    ascent = ascents.coordinate_ascent(model, start * jnp.asarray(np.nan), strata, max_passes=50, tolerance=0.0)
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
    ascent = ascents.stochastic_ascent(
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
    best = ascents.coordinate_ascent(model, start, strata, 200, tolerance=1e-9).elbo[-1]
    ascent = ascents.stochastic_ascent(model, start, strata, (200,), np.random.RandomState(0), 20, 100, tolerance=1e-3)
    assert (np.diff(ascent.elbo) >= 0).all()
    assert ascent.converged
    assert best - ascent.elbo[-1] < 0.1 < best - ascent.elbo[0]
    np.testing.assert_allclose(float(svi.elbo(model, ascent.natural, strata)), ascent.elbo[-1], rtol=1e-12)


class Trapped(Categories):
    """Its ELBO is not a number where the second entry is above 2.9: from the start, for rates above 0.93."""

    def divergence(self, natural):
        return jnp.where(natural[1] > 2.9, jnp.nan, dirichlet_kl(natural, self.prior))


def run_by_runtime(algorithm, split, start, num_steps, **options):
    return run(algorithm, split, AnyParameters(), start, seed=0, num_steps=num_steps, progress=False, **options)


def test_finite_steps_of_the_one_algorithm_are_the_updates_by_hand():
    """`ProximalGradient` with KL on a product family: r = 1 / (1 + beta); the first step only looks at the start."""
    _, start, strata = categories()
    for beta in (0.25, 3.0, np.inf):
        result = run_by_runtime(ProximalGradient(KL(), beta), svi.ConjugateSplit(*categories()[::2]), start, 5)
        natural, share = np.asarray(start), 1 / (1 + beta)
        for _ in range(4):
            natural = share * natural + (1 - share) * (PRIOR + ROWS.sum(axis=0))
        np.testing.assert_allclose(result.last, natural, rtol=1e-14)
        assert result.history["elbo"][-1] == pytest.approx(float(svi.elbo(categories()[0], result.last, strata)))


def test_a_step_that_is_not_finite_is_rejected_and_shortened():
    """An infinite step, the rate 1, lands where the ELBO is NaN; the loop takes the rate 1/2 and says so."""
    _, start, strata = categories()
    split = svi.ConjugateSplit(Trapped(jnp.asarray(PRIOR)), strata)
    result = run_by_runtime(ProximalGradient(KL(), np.inf), split, start, 3)
    np.testing.assert_allclose(result.last, (np.asarray(start) + PRIOR + ROWS.sum(axis=0)) / 2, rtol=1e-14)
    assert result.outcome is Outcome.COMPLETED
    assert "1 non-finite step(s) rejected, the first at iteration 1, where the objective" in result.message
    ascent = ascents.coordinate_ascent(split.model, start, strata, max_passes=20, tolerance=0.0)
    assert np.isfinite(ascent.elbo).all() and (np.diff(ascent.elbo) >= 0).all() and not ascent.converged


@pytest.mark.parametrize("kind", ["exact", "automatic", "decay"])
def test_a_run_resumes_bit_for_bit(kind, tmp_path):
    """Three steps, a checkpoint, and the rest from it: the same bits as without the stop, the host's batches too."""
    model, start, strata = mixture(rows=60)
    split = svi.ConjugateSplit(model, strata)

    def go(num_steps, **options):
        algorithm, feed = ProximalGradient(KL(), 2.0), None
        if kind != "exact":
            automatic = jnp.asarray(kind == "automatic")
            algorithm = svi.StochasticMirrorDescent(jnp.asarray(1e-3), automatic)
            forgetting = None if kind == "automatic" else (2.0, 0.7)
            feed = ascents._Feed(np.random.RandomState(4), (60,), 12, forgetting, np.float64)
        return run_by_runtime(algorithm, split, start, num_steps, feed=feed, **options)

    whole = go(9)
    go(3, checkpoint=tmp_path / "run")
    rest = go(9, checkpoint=tmp_path / "run", resume=True)
    for a, b in zip(jax.tree.leaves(whole.last), jax.tree.leaves(rest.last), strict=True):
        np.testing.assert_array_equal(a, b)
    assert whole.history["elbo"][-1] == rest.history["elbo"][-1] > whole.history["elbo"][0]


def test_new_numbers_and_batches_do_not_recompile():
    class Counting(Categories):
        traces = 0

        def local_step(self, natural, rows):
            type(self).traces += 1
            return Categories.local_step(self, natural, rows)

    def go(prior, tolerance, forgetting):
        model, strata = Counting(jnp.asarray(prior)), (jnp.asarray(ROWS),)
        ascents.coordinate_ascent(model, jnp.asarray(PRIOR + 1), strata, 3, tolerance)
        generator = np.random.RandomState(1)
        ascents.stochastic_ascent(model, jnp.asarray(PRIOR), strata, (10,), generator, 3, 5, tolerance, forgetting)

    go(PRIOR, 0.0, None)
    before = Counting.traces
    go(PRIOR + 0.3, 1e-3, (3.0, 0.8))
    assert Counting.traces == before


def test_parts_that_do_not_fit_are_named():
    model, start, strata = categories()
    split = svi.ConjugateSplit(model, strata)
    with pytest.raises(ValueError, match="Euclidean has no step in a pytree of natural parameters"):
        run_by_runtime(ProximalGradient(Euclidean(), 0.1), split, start, 2)
    with pytest.raises(ValueError, match="needs a ConjugateSplit"):
        svi.StochasticMirrorDescent(jnp.asarray(0.1), jnp.asarray(True)).resolve(model, AnyParameters())
