"""Nested fits against exact nested quadrature, and what they promise."""

import numpy as np
import pytest
from tests.support.nested_quadrature import RandomIntercepts, conditional

import provi
from provi.certificates.distance.nested import node_brackets
from provi.core.arguments import double_precision
from provi.structures.nested import Search
from provi.targets import LatentGaussian, latent
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise


def _data(groups, rows, seed, family="bernoulli", sd=0.7):
    rng = np.random.default_rng(seed)
    index = np.repeat(np.arange(groups), rows)
    x, u = rng.normal(size=groups * rows), sd * rng.normal(size=groups)
    eta = 0.3 + 0.8 * x + u[index]
    y = rng.random(len(x)) < 1 / (1 + np.exp(-eta)) if family == "bernoulli" else rng.poisson(np.exp(eta))
    return y.astype(float), index, x


def _target(y, index, x, family="bernoulli"):
    fixed = np.column_stack([np.ones(len(x)), x])
    return LatentGaussian(y, family, fixed=fixed, fixed_names=("Intercept", "x"), blocks=[latent.Independent(index)])


@double_precision
def _scales(target, nodes):
    """The hyperparameter itself at nodes of its free coordinate; above what the oracle's rule resolves."""
    prior = target.hyperpriors["sd(group)"]
    return np.maximum(np.asarray(prior.constrain(nodes[:, 0])), 1e-3)


@pytest.fixture(scope="module")
def logistic():
    y, index, x = _data(12, 10, 0)
    target = _target(y, index, x)
    return target, provi.fit(target), RandomIntercepts(y, index, x)


@pytest.mark.parametrize(("groups", "rows", "family"), [(12, 10, "bernoulli"), (30, 4, "poisson")])
def test_evidence_scale_and_slope_against_nested_quadrature(groups, rows, family):
    y, index, x = _data(groups, rows, 1, family)
    target = _target(y, index, x, family)
    found = double_precision(Search(target, 0.01, False, None).result)(0)
    scale = _scales(target, found.rule.nodes)
    exact = conditional(RandomIntercepts(y, index, x, family), scale)
    brackets = double_precision(node_brackets)(target, found.every, confidence=0.99, seed=0)
    assert (brackets.lower <= exact.log_evidence + 1e-7).all()
    assert (exact.log_evidence <= brackets.upper).all()
    assert brackets.proven
    np.testing.assert_allclose(found.corrected, exact.log_evidence, atol=0.01)
    weights = np.exp(exact.log_evidence + found.log_prior + found.rule.log_volume)
    weights /= weights.sum()
    assert 0.5 * np.abs(weights - found.every.weights).sum() < 2e-3
    fit = provi.fit(target)
    mean = weights @ exact.mean
    spread = np.sqrt(weights @ exact.second - mean**2)
    ours = fit.posterior.fixed
    for j, name in enumerate(("Intercept", "x")):
        assert abs(ours[name].mean - mean[j]) < 0.02 * spread[j]
        assert ours[name].sd == pytest.approx(spread[j], rel=0.02)
    sd = fit.posterior.hyperparameters["sd(group)"]
    centre = weights @ scale
    assert abs(sd.mean - centre) < 0.02 * sd.sd
    assert sd.sd == pytest.approx(np.sqrt(weights @ (scale - centre) ** 2), rel=0.02)
    fine = np.linspace(np.log(scale[weights > 1e-7].min()), np.log(scale.max()), 200)
    prior = -0.5 * (np.exp(fine) / 2.5) ** 2 + fine
    density = conditional(RandomIntercepts(y, index, x, family), np.exp(fine)).log_evidence + prior
    share = np.exp(density - density.max())
    below = (np.cumsum(share) - 0.5 * share) / share.sum()
    for level in (0.25, 0.5, 0.95):
        assert abs(sd.quantile(level) - np.interp(level, below, np.exp(fine))) < 0.03 * sd.sd


def test_the_bracket_holds_the_evidence_of_the_rule(logistic):
    target, fit, model = logistic
    bracket = fit.evidence
    largest = _scales(target, np.asarray(fit.posterior.point.nodes)).max()
    fine = np.linspace(-6, np.log(largest) + 0.5, 60)
    exact = conditional(model, np.exp(fine)).log_evidence
    prior = -0.5 * (np.exp(fine) / 2.5) ** 2 + 0.5 * np.log(2 / np.pi) - np.log(2.5) + fine
    total = np.log(np.sum(np.exp(exact + prior - exact.max()))) + exact.max() + np.log(fine[1] - fine[0])
    assert bracket.lower - 0.01 < total < bracket.upper
    assert bracket.status == "proven" and bracket.width < 0.3
    assert fit.certificate.kl == pytest.approx(bracket.width, abs=0.01)
    assert "on the nodes" in str(fit) and "estimated" in fit.certificate.assumptions[1].status


def test_draws_agree_with_the_marginals(logistic):
    _, fit, _ = logistic
    draws = fit.posterior.draws(4000, 0)
    assert draws["group"].shape == (4000, 12)
    for name, marginal in (fit.posterior.fixed | fit.posterior.hyperparameters).items():
        # Five standard errors: a false alarm in 10^6.
        assert abs(draws[name].mean() - marginal.mean) < 5 * marginal.sd / np.sqrt(4000)
        assert draws[name].std() == pytest.approx(marginal.sd, rel=0.1)
    effects = fit.posterior.effects["group"]
    np.testing.assert_allclose(draws["group"].mean(axis=0), effects.mean, atol=5 * effects.sd.max() / np.sqrt(4000))
    covariance = fit.posterior.covariance
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), fit.posterior.standard_deviation, rtol=1e-6)


def test_saved_and_loaded_a_fit_is_the_same(logistic, tmp_path):
    target, fit, _ = logistic
    fit.save(tmp_path / "fit")
    for again in (provi.load(tmp_path / "fit", target), provi.load(tmp_path / "fit")):
        assert again.posterior.summary().to_dict() == fit.posterior.summary().to_dict()
        assert again.evidence == fit.evidence
    fit.save(tmp_path / "fit", target=False)
    with pytest.raises(ValueError, match="nested fit without its model"):
        provi.load(tmp_path / "fit")


def test_leave_one_out_arviz_and_predictions(logistic):
    pytest.importorskip("arviz_base")
    _, fit, _ = logistic
    assert np.isfinite(fit.loo(500).elpd)
    assert fit.posterior_predictive(20)["y"].shape == (20, 120)
    posterior = fit.to_arviz(100).posterior
    assert posterior["group"].shape[-1] == 12


def test_without_hyperparameters_it_is_one_gaussian():
    y, index, x = _data(12, 10, 0)
    target = LatentGaussian(y, BernoulliLogit(), fixed=np.column_stack([np.ones(len(x)), x]), fixed_scale=1.0)
    fit = provi.fit(target)
    other = provi.fit(
        provi.targets.LogisticRegression(np.column_stack([np.ones(len(x)), x]), y, prior_scale=1.0), tol=1e-6
    )
    assert float(fit.elbo) == pytest.approx(float(other.elbo), abs=1e-4)
    # The correction is towards the posterior itself, a little beyond the best Gaussian.
    np.testing.assert_allclose([m.mean for m in fit.posterior.fixed.values()], other.posterior.mean, atol=0.02)


def test_a_scale_that_piles_up_at_zero_works():
    y, index, x = _data(12, 10, 5, sd=0.0)
    fit = provi.fit(_target(y, index, x))
    assert fit.outcome.ok
    low, high = fit.posterior.hyperparameters["sd(group)"].interval(0.9)
    assert 0 < low < 0.15 < high


def test_separable_groups_and_single_rows_work():
    index = np.array([0, 1, 2, 3, 3, 3, 4, 4, 4, 4])
    y = np.array([0.0, 1, 1, 0, 0, 0, 1, 1, 1, 1])
    target = LatentGaussian(y, "bernoulli", fixed=np.ones((10, 1)), blocks=[latent.Independent(index)])
    fit = provi.fit(target)
    assert fit.outcome.ok and np.isfinite(fit.posterior.effects["group"].mean).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": []}, "y is empty"),
        ({"blocks": [latent.Independent([0, 1])]}, "has 2 rows, but y has 3"),
        ({"fixed_scale": -1.0}, "fixed_scale must be"),
        ({"weights": [1.0, -1.0, 0.0]}, "weights must not be negative"),
        ({"likelihood": "gamma"}, "must be one of"),
        ({"blocks": [latent.Independent([0, 1, 1]), latent.Independent([0, 1, 1])]}, "two blocks are called 'group'"),
        ({"fixed": None}, "no effects"),
        ({"likelihood": "binomial"}, "needs trials"),
    ],
)
def test_bad_input_is_named(change, words):
    arguments = {"y": [0.0, 1.0, 1.0], "likelihood": "bernoulli", "fixed": np.ones((3, 1))} | change
    with pytest.raises(ValueError, match=words):
        LatentGaussian(**arguments)


def test_what_a_nested_fit_cannot_do_is_said(logistic):
    target = logistic[0]
    with pytest.raises(ValueError, match="half an integral"):
        provi.fit(target, budget=provi.Budget(seconds=1e-3))
    with pytest.raises(ValueError, match="start is not for"):
        provi.fit(target, start=np.zeros(3))
    with pytest.raises(ValueError, match="brackets the evidence"):
        logistic[1].diagnose()


def test_blocks_name_what_is_wrong():
    with pytest.raises(ValueError, match="must lie in 0, ..., 1"):
        latent.Independent([0, 2], size=2)
    with pytest.raises(ValueError, match="whole numbers"):
        latent.Independent([0.5, 1.0])
    with pytest.raises(ValueError, match="needs 3 levels"):
        latent.RandomWalk([0, 1])
    with pytest.raises(ValueError, match="2 names"):
        latent.Independent([0, 1], levels=["a"])
    with pytest.raises(ValueError, match="probability"):
        latent.PenalisedComplexity(1.0, 2.0)


def test_chains_of_many_effects_are_eliminated():
    """Thousands of effects of a walk, against the walk that made the data."""
    rng, length = np.random.default_rng(0), 3_000
    time = np.arange(length)
    walk = np.cumsum(0.02 * rng.normal(size=length))
    y = rng.poisson(np.exp(0.5 + walk - walk.mean())).astype(float)
    target = LatentGaussian(y, "poisson", fixed=np.ones((length, 1)), blocks=[latent.RandomWalk(time)])
    assert target.layout.chained and target.layout.border == 1
    fit = provi.fit(target)
    effects = fit.posterior.effects["walk"]
    assert abs(effects.mean.sum()) < 1e-6 * length  # the constraint
    error = (effects.mean - (walk - walk.mean())) / effects.sd
    assert np.sqrt(np.mean(error**2)) == pytest.approx(1, abs=0.25)


def test_gaussian_models_are_exact_on_the_rule():
    y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    sd = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    block = latent.Independent(np.arange(8), covariates=1 / sd, scale=latent.HalfNormal(5.0), name="school")
    fit = provi.fit(LatentGaussian(y / sd, GaussianNoise(1.0), fixed=1 / sd[:, None], fixed_scale=5.0, blocks=[block]))
    assert fit.certificate.kl < 1e-6
    tau = np.linspace(1e-3, 40, 4001)
    total = sd[:, None] ** 2 + tau**2
    precision = 1 / 25 + np.sum(1 / total, axis=0)
    mean = np.sum(y[:, None] / total, axis=0) / precision
    log_density = -0.5 * np.sum(np.log(total) + y[:, None] ** 2 / total, axis=0) - 0.5 * np.log(precision)
    log_density += 0.5 * precision * mean**2 - 0.5 * (tau / 5) ** 2
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    ours = fit.posterior.hyperparameters["sd(school)"]
    assert ours.mean == pytest.approx(weights @ tau, rel=0.01)
    assert ours.quantile(0.9) == pytest.approx(np.interp(0.9, np.cumsum(weights), tau), rel=0.02)
    assert fit.posterior.fixed["b[0]"].mean == pytest.approx(weights @ mean, abs=0.02)
