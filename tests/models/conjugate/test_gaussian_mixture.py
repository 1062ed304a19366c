"""The variational Gaussian mixture against scikit-learn's, Monte Carlo, and scikit-learn's checks of estimators."""

import importlib
import sys

import jax
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture
from sklearn.mixture._bayesian_mixture import _log_dirichlet_norm, _log_wishart_norm
from sklearn.utils.estimator_checks import check_estimator

from provi.models import VariationalGaussianMixture
from support.statistics import assert_mean

RNG = np.random.default_rng(0)
BLOBS = np.concatenate(
    [RNG.normal(0, 1, (200, 3)), RNG.normal(4, 1.5, (150, 3)), RNG.normal([-5, 3, 0], 0.5, (100, 3))]
)
FIRST = RNG.dirichlet(np.ones(4), len(BLOBS))
PRIORS = dict(weight_concentration_prior=0.3, mean_precision_prior=0.7, degrees_of_freedom_prior=4.5)


def by_scikit_learn(X, passes, covariance_type="full", **priors):
    """Its steps from the responsibilities FIRST, without the ridge it adds; returns it and its lower bounds."""
    theirs = BayesianGaussianMixture(
        n_components=4,
        covariance_type=covariance_type,
        weight_concentration_prior_type="dirichlet_distribution",
        reg_covar=0.0,
        **priors,
    )
    theirs._check_parameters(X, xp=np)
    theirs._initialize(X, FIRST)
    bounds = []
    for _ in range(passes):
        log_norm, log_resp = theirs._e_step(X)
        theirs._m_step(X, log_resp)
        bounds.append(theirs._compute_lower_bound(log_resp, log_norm))
    return theirs, np.asarray(bounds)


def check_same_parameters(ours, theirs):
    for name in ("weight_concentration_", "mean_precision_", "means_", "degrees_of_freedom_", "covariances_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-6, atol=1e-8, err_msg=name)


def test_full_covariance_follows_scikit_learn_and_its_bound_up_to_constants():
    X, passes = BLOBS + 100, 7
    scale = np.cov(X.T) * 0.8 + 0.1 * np.eye(3)
    priors = dict(PRIORS, mean_prior=X.mean(axis=0) + 0.3, covariance_prior=scale)
    theirs, bounds = by_scikit_learn(X, passes, **priors)
    ours = VariationalGaussianMixture(4, responsibilities_init=FIRST, max_iter=passes, tol=0, **priors).fit(X)
    assert ours.n_iter_ == passes
    check_same_parameters(ours, theirs)
    # Their bound leaves out the prior's log-partition and (N d / 2) log 2 pi, and is taken between our two half steps.
    log_det = -np.linalg.slogdet(scale)[1] / 2
    wishart = float(_log_wishart_norm(np.asarray([4.5]), log_det, 3)[0])
    prior = -_log_dirichlet_norm(np.full(4, 0.3)) - 4 * wishart - 4 * 1.5 * np.log(0.7)
    complete = bounds - prior - len(X) * 1.5 * np.log(2 * np.pi)
    assert (ours.elbo_[:-1] <= complete).all() and (complete <= ours.elbo_[1:]).all()
    assert ours.elbo_[-1] - ours.elbo_[0] > 100


def test_diagonal_covariance_follows_scikit_learn_in_one_dimension():
    """In more dimensions scikit-learn's 'diag' takes E log|Lambda| of a d-dimensional Wishart: another model."""
    X = BLOBS[:, :1] - 30
    priors = dict(PRIORS, mean_prior=X.mean(axis=0), covariance_prior=np.asarray([1.7]))
    theirs, _ = by_scikit_learn(X, 7, covariance_type="diag", **priors)
    ours = VariationalGaussianMixture(
        4, covariance_type="diag", responsibilities_init=FIRST, max_iter=7, tol=0, **priors
    ).fit(X)
    check_same_parameters(ours, theirs)


def draws_of_q(model, count, rng):
    """Weights, means and precisions (as matrices) from the fitted posterior, by SciPy."""
    k, d = model.means_.shape
    weights = rng.dirichlet(model.weight_concentration_, count)
    means, precisions = np.empty((count, k, d)), np.zeros((count, k, d, d))
    for j in range(k):
        degrees = model.degrees_of_freedom_[j]
        scale = degrees * model.covariances_[j]
        if model.covariance_type == "full":
            precisions[:, j] = stats.wishart(degrees, np.linalg.inv(scale)).rvs(count, random_state=rng)
        else:
            precisions[:, j, range(d), range(d)] = rng.gamma(degrees / 2, 2 / scale, (count, d))
        root = np.linalg.cholesky(np.linalg.inv(precisions[:, j]) / model.mean_precision_[j])
        means[:, j] = model.means_[j] + np.einsum("sij,sj->si", root, rng.normal(size=(count, d)))
    return weights, means, precisions


def log_component(x, means, precisions):
    """log N(x | mean, precision^-1) for draws (s, d) and (s, d, d)."""
    shift = x - means
    squares = np.einsum("si,sij,sj->s", shift, precisions, shift)
    return (np.linalg.slogdet(precisions)[1] - len(x) * np.log(2 * np.pi) - squares) / 2


def log_posterior_factor(draws, concentration, mean_precision, centres, degrees, scales, full):
    """The log density of weights, means, precisions under Dirichlet and Normal-Wishart (Normal-Gamma), by SciPy."""
    weights, means, precisions = draws
    total = stats.dirichlet(concentration).logpdf(weights.T)
    for j in range(means.shape[1]):
        if full:
            inverse = np.linalg.inv(scales[j])
            total = total + stats.wishart(degrees[j], inverse).logpdf(np.moveaxis(precisions[:, j], 0, -1))
        else:
            diagonal = np.diagonal(precisions[:, j], axis1=1, axis2=2)
            total = total + stats.gamma(degrees[j] / 2, scale=2 / scales[j]).logpdf(diagonal).sum(axis=1)
        total = total + np.asarray(
            [
                stats.multivariate_normal(centres[j], np.linalg.inv(mean_precision[j] * p)).logpdf(m)
                for m, p in zip(means[:, j], precisions[:, j], strict=True)
            ]
        )
    return total


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_the_elbo_and_the_predictive_density_by_monte_carlo(kind):
    """The ELBO is E_q[log p - log q] with every constant; false-alarm rate 1e-6 for each of the two means."""
    rng = np.random.default_rng(5)
    X = np.asarray([[0.0, 1.0], [0.3, 0.8], [5.0, -1.0], [4.0, -2.0], [4.4, 0.0]])
    scale = np.asarray([[1.0, 0.4], [0.4, 2.0]]) if kind == "full" else np.asarray([1.0, 2.0])
    first = np.asarray([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.2, 0.8], [0.5, 0.5]])
    model = VariationalGaussianMixture(
        2, covariance_type=kind, covariance_prior=scale, responsibilities_init=first, max_iter=2, tol=0,
        degrees_of_freedom_prior=6.0, mean_precision_prior=0.8, mean_prior=[1.0, 0.5], weight_concentration_prior=1.3,
    ).fit(X)  # fmt: skip
    count, full = 2000, kind == "full"
    draws = draws_of_q(model, count, rng)
    resp = model.predict_proba(X)
    scales = model.covariances_ * model.degrees_of_freedom_.reshape((2,) + (1,) * (model.covariances_.ndim - 1))
    posterior = (model.weight_concentration_, model.mean_precision_, model.means_, model.degrees_of_freedom_, scales)
    prior = (np.full(2, 1.3), np.full(2, 0.8), np.asarray([[1.0, 0.5]] * 2), np.full(2, 6.0), np.stack([scale] * 2))
    samples = log_posterior_factor(draws, *prior, full) - log_posterior_factor(draws, *posterior, full)
    weights, means, precisions = draws
    for n, x in enumerate(X):
        logs = np.stack([np.log(weights[:, j]) + log_component(x, means[:, j], precisions[:, j]) for j in range(2)], 1)
        samples += (logs - np.log(resp[n])) @ resp[n]
    assert_mean(samples, model.elbo_[-1])
    point = np.asarray([2.0, 0.0])
    density = sum(weights[:, j] * np.exp(log_component(point, means[:, j], precisions[:, j])) for j in range(2))
    assert_mean(density, np.exp(model.score_samples(point[None])[0]))
    assert model.score(point[None]) == model.score_samples(point[None])[0]


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_coordinate_ascent_converges_and_batches_reach_its_elbo(kind):
    # Hard assignment to the nearest of three rows, two of which are in the same blob: a start far from the optimum.
    nearest = ((BLOBS[:, None] - BLOBS[[0, 10, 260]]) ** 2).sum(axis=2).argmin(axis=1)
    settings = dict(covariance_type=kind, random_state=0, responsibilities_init=np.eye(3)[nearest])
    exact = VariationalGaussianMixture(3, **settings).fit(BLOBS)
    assert exact.converged_ and (np.diff(exact.elbo_) >= -1e-9).all()
    labels = np.repeat([0, 1, 2], [200, 150, 100])
    assert adjusted_rand_score(labels, exact.predict(BLOBS)) > 0.9
    batches = dict(settings, solver="stochastic", batch_size=50, max_iter=30)
    automatic = VariationalGaussianMixture(3, **batches).fit(BLOBS)
    assert (np.diff(automatic.elbo_) >= 0).all()
    assert abs(exact.elbo_[-1] - automatic.elbo_[-1]) < 1e-3 * abs(exact.elbo_[-1])
    decaying = VariationalGaussianMixture(3, learning_rate="decay", **batches).fit(BLOBS)
    assert abs(exact.elbo_[-1] - decaying.elbo_[-1]) < 1e-2 * abs(exact.elbo_[-1])
    assert exact.elbo_[-1] - exact.elbo_[0] > 3e-2 * abs(exact.elbo_[-1])


def test_partial_fit_is_a_natural_gradient_step():
    model = VariationalGaussianMixture(3, total_samples=1000, learning_offset=1.0, learning_decay=0.5, random_state=0)
    model.partial_fit(BLOBS[:100])
    before = {name: getattr(model, name).copy() for name in ("weight_concentration_", "mean_precision_", "means_")}
    batch = BLOBS[100:164]
    resp, rate = model.predict_proba(batch), 3.0**-0.5
    model.partial_fit(batch)
    counts = 1000 / 64 * resp.sum(axis=0)
    concentration = (1 - rate) * before["weight_concentration_"] + rate * (1 / 3 + counts)
    np.testing.assert_allclose(model.weight_concentration_, concentration, rtol=1e-12)
    shift = (1 - rate) * before["mean_precision_"][:, None] * before["means_"]
    shift += rate * (BLOBS[:100].mean(axis=0) + 1000 / 64 * resp.T @ batch)
    precision = (1 - rate) * before["mean_precision_"] + rate * (1 + counts)
    np.testing.assert_allclose(model.means_, shift / precision[:, None], rtol=1e-10)


def test_one_component_is_the_exact_posterior():
    model = VariationalGaussianMixture(1, mean_precision_prior=2.0).fit(BLOBS)
    assert model.converged_ and model.mean_precision_[0] == pytest.approx(2 + len(BLOBS), rel=1e-14)
    np.testing.assert_allclose(model.means_[0], BLOBS.mean(axis=0), rtol=1e-10)
    assert (model.predict_proba(BLOBS) == 1).all()


def test_a_constant_column_far_data_and_float32():
    X = np.column_stack([BLOBS[:, :2] + 1e7, np.full(len(BLOBS), 3.0)])
    near = VariationalGaussianMixture(3, random_state=0).fit(X - [1e7, 1e7, 0])
    far = VariationalGaussianMixture(3, random_state=0).fit(X)
    np.testing.assert_allclose(far.weights_, near.weights_, rtol=1e-4)
    single = VariationalGaussianMixture(3, random_state=0).fit(BLOBS.astype(np.float32))
    assert single.means_.dtype == np.float32
    double = VariationalGaussianMixture(3, random_state=0).fit(BLOBS)
    np.testing.assert_allclose(np.sort(single.weights_), np.sort(double.weights_), atol=2e-3)


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        ({}, np.full((5, 2), np.nan), "NaN"),
        ({"n_components": 9}, np.eye(3), "n_components is 9, but X has 3 rows"),
        ({"covariance_type": "tied"}, np.eye(3), "covariance_type must be 'full' or 'diag'"),
        ({"covariance_prior": np.eye(2)}, np.eye(3), "covariance_prior must have shape"),
        ({"covariance_prior": -np.eye(3)}, np.eye(3), "covariance_prior is not positive definite"),
        ({"degrees_of_freedom_prior": 2.0}, np.eye(3), "degrees_of_freedom_prior must be more than 2"),
        ({"weight_concentration_prior": 0.0}, np.eye(3), "weight_concentration_prior must be a positive"),
        ({"responsibilities_init": np.ones((3, 2))}, np.eye(3), "responsibilities_init must have shape"),
        ({"init_params": "grid"}, np.eye(3), "init_params must be"),
        ({"solver": "newton"}, np.eye(3), "solver must be"),
        ({"learning_rate": "fast"}, np.eye(3), "learning_rate must be"),
        ({"learning_decay": 0.0}, np.eye(3), "learning_decay must be"),
    ],
)
def test_bad_arguments_are_named(options, data, message):
    with pytest.raises(ValueError, match=message):
        VariationalGaussianMixture(**options).fit(data)


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "provi.models.conjugate.gaussian_mixture")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    models = importlib.reload(sys.modules["provi.models"])
    with pytest.raises(ImportError, match=r"pip install 'provi\[models\]'"):
        _ = models.VariationalGaussianMixture
    with pytest.raises(AttributeError, match="Nothing"):
        _ = models.Nothing


@pytest.mark.slow
def test_scikit_learns_checks_of_estimators():
    """All of them; what each compiles is used once, so most optimisations are left out."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        results = check_estimator(VariationalGaussianMixture(max_iter=5), on_skip=None)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= {"check_array_api_input"}
