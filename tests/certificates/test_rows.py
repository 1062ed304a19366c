"""Offsets and weights of rows: bounds above the truth of an optimum found in NumPy, and equal problems said twice."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import provi
from provi.algorithms import SiteTable
from provi.algorithms.natural.natural_gradient import line_arguments
from provi.certificates.comparison import linear_difference_bound
from provi.certificates.distance.posterior import posterior_bound
from provi.certificates.dual.bounds import dual_bounds, iterative_bounds
from provi.certificates.linear.bounds import (
    RADII,
    curvature_on_region,
    linear_model_bounds,
    local_bound_by_the_way,
    refuted_link,
    whitened_pass,
)
from provi.certificates.linear.bounds import SHARES as REGION_SHARES
from provi.families import Gaussian, dual_gaussian
from provi.families.dual_gaussian import DualPoint
from provi.families.site_solver import site_solver
from provi.runtime.run import run
from provi.targets import (
    GeneralisedLinearModel,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    ProbitRegression,
    row_sums,
)
from provi.targets.likelihoods import BernoulliLogit, NegativeBinomial, UserLikelihood

pytestmark = pytest.mark.usefixtures("quick_compilation")

RNG = np.random.default_rng(5)
TERMS, DIM = 25, 2
X = RNG.normal(size=(TERMS, DIM))
OFFSET = RNG.normal(size=TERMS)
WEIGHTS = np.where(RNG.random(TERMS) < 0.2, 0.0, RNG.gamma(2.0, 1.0, TERMS))
ETA = X @ [0.8, -0.6] + OFFSET
NODES = np.linspace(-13.0, 13.0, 4001)
NODE_WEIGHTS = np.exp(-0.5 * NODES**2) / np.exp(-0.5 * NODES**2).sum()
PRIOR = 1.7

SHARES, LABELS = RNG.random(TERMS), RNG.random(TERMS) < special.expit(ETA)
COUNTS, REAL = RNG.poisson(np.exp(ETA)).astype(float), ETA + 0.7 * RNG.normal(size=TERMS)


def count_law(eta, y):
    return -stats.nbinom.logpmf(y, 2.5, 2.5 / (2.5 + np.exp(eta)))


MODELS = {
    "logistic": (LogisticRegression, SHARES, {}, lambda e, y: np.logaddexp(0, e) - y * e),
    "probit": (
        ProbitRegression,
        LABELS,
        {},
        lambda e, y: -special.log_ndtr(np.where(y > 0, e, -e)),
    ),
    "poisson": (PoissonRegression, COUNTS, {}, lambda e, y: np.exp(e) - y * e + special.gammaln(y + 1)),
    "negative binomial": (GeneralisedLinearModel, COUNTS, {"likelihood": NegativeBinomial(2.5)}, count_law),
    "linear": (
        LinearRegression,
        REAL,
        {"noise_scale": 0.7},
        lambda e, y: 0.5 * ((e - y) / 0.7) ** 2 + np.log(0.7) + 0.5 * np.log(2 * np.pi),
    ),
}


def model(kind, rows=slice(None), offset=OFFSET, weights=WEIGHTS, **more):
    make, y, options, _ = MODELS[kind]
    offset, weights = (None if table is None else table[rows] for table in (offset, weights))
    return make(X[rows], y[rows], prior_scale=PRIOR, offset=offset, weights=weights, **options, **more)


def term_means(kind, loc, covariance):
    """w E t and w E t' and w E[t' u]/s of every row, t by SciPy and the integral by a fine grid."""
    _, y, _, link = MODELS[kind]
    spread = np.sqrt(np.einsum("ni,ij,nj->n", X, covariance, X))
    eta = (X @ loc + OFFSET)[:, None] + spread[:, None] * NODES
    values = link(eta, np.asarray(y, float)[:, None])
    step = 1e-5
    slopes = (link(eta + step, np.asarray(y, float)[:, None]) - link(eta - step, np.asarray(y, float)[:, None])) / 2e-5
    return (
        WEIGHTS * (values @ NODE_WEIGHTS),
        WEIGHTS * (slopes @ NODE_WEIGHTS),
        WEIGHTS * (slopes @ (NODES * NODE_WEIGHTS)) / spread,
    )


def objective(kind, loc, covariance):
    """The negative ELBO, with all constants."""
    energy = term_means(kind, loc, covariance)[0].sum() + 0.5 * (loc @ loc + np.trace(covariance)) / PRIOR**2
    energy += DIM * (np.log(PRIOR) + 0.5 * np.log(2 * np.pi))
    return energy - 0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * DIM * np.log(2 * np.pi * np.e)


@pytest.fixture(scope="module")
def best():
    """The best Gaussian of each model: the damped fixed point of its stationarity conditions."""
    found = {}
    for kind in MODELS:
        loc, precision = np.zeros(DIM), np.eye(DIM) * 3.0
        for _ in range(60):
            _, slope, weight = term_means(kind, loc, np.linalg.inv(precision))
            wanted = np.eye(DIM) / PRIOR**2 + X.T @ (weight[:, None] * X)
            precision = 0.5 * (precision + wanted)
            loc = loc - 0.5 * np.linalg.solve(precision, loc / PRIOR**2 + X.T @ slope)
        found[kind] = loc, np.linalg.inv(precision)
    return found


@pytest.mark.parametrize("kind", MODELS)
def test_bounds_are_above_the_gap_of_an_independent_optimum(kind, best):
    target, family, rng = model(kind), Gaussian(DIM), np.random.default_rng(1)
    loc, covariance = best[kind]
    least, root = objective(kind, loc, covariance), np.linalg.cholesky(covariance)
    optimum = family.point_from_covariance(loc, covariance)
    for size in (0.0, 0.02, 0.2, 0.7):
        change, away = rng.normal(size=(DIM, DIM)), rng.normal(size=DIM)
        moved = root @ (np.eye(DIM) + 0.9 * size * (change + change.T) / 2 / np.linalg.norm(change))
        place = loc + size * root @ away / np.linalg.norm(away)
        gap = objective(kind, place, moved @ moved.T) - least
        point = family.point_from_covariance(place, moved @ moved.T)
        bounds = linear_model_bounds(target, family, point)
        for bound in bounds:
            assert bound.status == "proven" and bound.value >= gap - 1e-7, (size, bound)
        if 0 < size < 0.1:
            # (a) and (b) pay for a prior of a hundredth of the curvature of the weighted data.
            assert min(bound.value for bound in bounds) < 100 * gap + 1e-6
            if target.self_concordance is not None:
                assert bounds[2].value < 3 * gap + 1e-6
        difference = linear_difference_bound(target, family, point, optimum)[0]
        assert gap - 1e-7 <= difference < gap + 1e-4


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_a_long_pass_bounds_its_regions_by_the_way_and_they_are_above_the_gap(kind, best, monkeypatch):
    """In blocks of seven rows: no second pass is made, and the bound is nearly that of one."""
    target, family, rng = model(kind), Gaussian(DIM), np.random.default_rng(2)
    loc, covariance = best[kind]
    least, root = objective(kind, loc, covariance), np.linalg.cholesky(covariance)
    monkeypatch.setattr(row_sums, "_NUMBERS_IN_CACHE", 0)
    monkeypatch.setattr(row_sums, "_FEWEST_ROWS", 7)
    by_the_way = 0
    for size in (0.0, 1e-3, 0.02, 0.1, 0.3, 0.6):
        for _ in range(4):
            change, away = rng.normal(size=(DIM, DIM)), rng.normal(size=DIM)
            moved = root @ (np.eye(DIM) + 0.9 * size * (change + change.T) / 2 / np.linalg.norm(change))
            place = loc + size * root @ away / np.linalg.norm(away)
            gap = objective(kind, place, moved @ moved.T) - least
            at = whitened_pass(target, family, family.point_from_covariance(place, moved @ moved.T))
            assert at.deficits is not None and (at.deficits >= 0).all()
            excess = np.linalg.norm(at.curvature - np.eye(DIM)) + at.curvature_error
            bound = local_bound_by_the_way(at, float(excess))
            if bound is not None:
                by_the_way += 1
                assert bound.value >= gap - 1e-7, (size, bound)
                assert bound.value < 6 * gap + 1e-6
    assert by_the_way >= 12
    # What the deficits say of each region, against the matrix that a pass of its own gives for it.
    double, _ = line_arguments(target, family)
    at = whitened_pass(target, family, family.point_from_covariance(loc, covariance))
    for radius, deficits in zip(RADII, at.deficits, strict=True):
        region, _ = (np.asarray(x) for x in curvature_on_region(double, at.loc, at.root, np.asarray(radius)))
        for share, deficit in zip(REGION_SHARES, deficits, strict=True):
            assert np.linalg.eigvalsh(region - share * at.gram)[0] >= -deficit - 1e-9
    assert np.linalg.eigvalsh(region - REGION_SHARES[0] * at.gram)[0] < -1e-3  # without them it would be false


@pytest.mark.parametrize("kind", MODELS)
def test_dual_bounds_are_above_the_gap(kind, best):
    """The same optimum: in dual form the family holds the best Gaussian."""
    target = model(kind)
    family = dual_gaussian(target)
    loc, covariance = best[kind]
    _, slope, weight = term_means(kind, loc, covariance)
    for size in (1.0, 1.05):
        point = DualPoint(*(jnp.asarray(x) for x in (-slope * size, weight * size)))
        sites = np.linalg.inv(np.eye(DIM) / PRIOR**2 + X.T @ (size * weight[:, None] * X))
        mean = PRIOR**2 * X.T @ (-slope * size)
        gap = objective(kind, mean, sites) - objective(kind, loc, covariance)
        bounds = dual_bounds(target, family, point)
        if np.isfinite(target.curvature[1]) or kind == "poisson":
            solver = site_solver(family.gram, 0.0)
            bounds += iterative_bounds(target, family, point) + iterative_bounds(target, family, point, solver)
        for bound in bounds:
            assert bound.value >= gap - 1e-7, (size, bound)
            assert size > 1.0 or bound.value < 1e-4 or not np.isfinite(bound.value)
        assert any(np.isfinite(bound.value) for bound in bounds)


@pytest.mark.parametrize("kind", ["logistic", "poisson", "linear"])
def test_the_distance_to_the_posterior_is_above_the_truth(kind, best):
    """KL(q || p) by a grid in two dimensions: log Z and the mean of the potential are sums."""
    target, family = model(kind), Gaussian(DIM)
    loc, covariance = best[kind]
    loc = loc + 0.1 * np.sqrt(np.diagonal(covariance))
    axes = [np.linspace(-9, 9, 161)] * DIM
    white = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, DIM)
    root = np.linalg.cholesky(covariance)
    z = loc + white @ root.T
    link = MODELS[kind][3]
    terms = link(z @ X.T + OFFSET[None, :], np.asarray(MODELS[kind][1], float)[None, :]) @ WEIGHTS
    terms = terms + 0.5 * np.sum(z**2, axis=1) / PRIOR**2
    cell = (axes[0][1] - axes[0][0]) ** DIM
    log_z = special.logsumexp(-terms) + np.log(cell) + np.linalg.slogdet(root)[1]
    q = np.exp(-0.5 * np.sum(white**2, axis=1)) / (2 * np.pi) * cell
    kl = q @ terms - 0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * DIM * np.log(2 * np.pi * np.e) + log_z
    found = posterior_bound(target, family, family.point_from_covariance(loc, covariance), confidence=0.99, seed=0)
    assert found is not None and kl <= found.kl < 6 * kl + 1e-3


@pytest.mark.parametrize("kind", ["logistic", "probit", "poisson", "negative binomial", "linear"])
def test_whole_weights_are_repeated_rows_and_an_offset_a_known_column(kind):
    whole = np.round(WEIGHTS)
    rows = np.repeat(np.arange(TERMS), whole.astype(int))
    # Shares need weights.
    weighted, repeated = (
        model(kind, weights=whole),
        model(kind, rows, weights=np.ones(TERMS) if kind == "logistic" else None),
    )
    make, y, options, _ = MODELS[kind]
    column = make(np.c_[X, OFFSET], y, prior_scale=PRIOR, weights=whole, **options)
    first = column.prior.potential(jnp.array([0.0, 0.0, 1.0])) - weighted.prior.potential(jnp.zeros(DIM))
    for z in np.random.default_rng(2).normal(size=(3, DIM)):
        value = float(weighted.potential(jnp.asarray(z)))
        assert value == pytest.approx(float(repeated.potential(jnp.asarray(z))), rel=1e-12)
        assert value == pytest.approx(float(column.potential(jnp.append(z, 1.0))) - float(first), rel=1e-12)
    np.testing.assert_array_equal(weighted.observed_data["y"], np.asarray(y, float))
    if kind != "logistic":
        single = model(kind, weights=None).log_likelihood(z)["y"]
        np.testing.assert_allclose(weighted.log_likelihood(z)["y"], whole * single, rtol=1e-12)


def test_a_fit_of_repeated_rows_is_that_of_weights():
    whole = np.round(WEIGHTS)
    rows = np.repeat(np.arange(TERMS), whole.astype(int))
    first = provi.fit(model("poisson", weights=whole), progress=False)
    second = provi.fit(model("poisson", rows, weights=None), progress=False)
    np.testing.assert_allclose(first.posterior.mean, second.posterior.mean, rtol=1e-10)
    assert first.elbo.value == pytest.approx(second.elbo.value, rel=1e-12)
    assert first.certificate.gap == pytest.approx(second.certificate.gap, rel=1e-6)
    assert first.certificate.kl == pytest.approx(second.certificate.kl, rel=1e-4)
    replicated = second.target.predict(np.zeros((400, DIM)), seed=0)["y"]
    assert replicated.mean() == pytest.approx(np.exp(OFFSET[rows]).mean(), rel=0.1)
    assert first.target.predict(np.zeros((4, DIM)), seed=0) == {}  # rows that stand for several


def test_algorithms_of_rows_and_of_either_precision(best):
    """A table of sites and a diagonal family, and single precision: the same model."""
    target, family = model("poisson"), Gaussian(DIM)
    loc, covariance = best["poisson"]
    start = family.point(np.zeros(DIM), 1.0)
    point = run(SiteTable(), target, family, start, seed=0, num_steps=15, num_records=1, progress=False).point
    np.testing.assert_allclose(point.loc, loc, atol=1e-5)
    np.testing.assert_allclose(point.scale.covariance(), covariance, atol=1e-5)
    single = PoissonRegression(X.astype(np.float32), COUNTS, PRIOR, offset=OFFSET, weights=WEIGHTS)
    assert single.likelihood.offset.dtype == np.float32
    value = float(single.potential(jnp.asarray([0.3, -0.2], jnp.float32)))
    assert value == pytest.approx(float(target.potential(jnp.asarray([0.3, -0.2]))), rel=1e-5)
    with pytest.raises(ValueError, match="already"):
        GeneralisedLinearModel(X, np.arange(TERMS, dtype=float), target.likelihood, offset=1.0)


def test_linear_regression_knows_its_posterior_and_evidence():
    target = model("linear")
    mean, covariance = target.exact_posterior()
    found = provi.fit(target, progress=False)
    np.testing.assert_allclose(found.posterior.mean, mean, rtol=1e-6)
    assert found.elbo.value == pytest.approx(target.log_evidence(), abs=1e-6)
    assert target.log_evidence() == pytest.approx(-objective("linear", mean, covariance), abs=1e-8)
    assert found.certificate.kl < 1e-6


def test_a_users_likelihood_is_refuted_at_the_moved_place():
    """log_prob is concave below 3 only; the offset takes eta there."""
    family, bent = Gaussian(DIM), UserLikelihood(bent_at_three, log_concave=True)
    point = family.point_from_covariance(np.zeros(DIM), 0.01 * np.eye(DIM))
    assert refuted_link(GeneralisedLinearModel(X, REAL, bent), point) is None
    assert refuted_link(GeneralisedLinearModel(X, REAL, bent, offset=5.0), point) is not None


def bent_at_three(y, eta):
    return jnp.where(eta < 3, -0.5 * eta**2, 0.5 * (eta - 3) ** 2 - 3 * (eta - 3) - 4.5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LogisticRegression(X, LABELS, offset=OFFSET[:3]), "offset"),
        (lambda: LogisticRegression(X, LABELS, weights=-WEIGHTS), "weights must not be negative"),
        (lambda: LogisticRegression(X, LABELS, weights=0 * WEIGHTS), "nor all zero"),
        (lambda: PoissonRegression(X, COUNTS, exposure=WEIGHTS), "exposure must be positive"),
        (lambda: GeneralisedLinearModel(X, LABELS, BernoulliLogit(), exposure=1.0), "use offset="),
        (lambda: LogisticRegression(X, SHARES), "y must hold 0 and 1"),
        (lambda: LogisticRegression(X, LABELS, {"x1": 0.5}), "prior_scale names 'x1'"),
    ],
)
def test_wrong_rows_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_numbers_by_name():
    target = LogisticRegression(X, LABELS, {"b": 0.5}, prior_mean={"a": 2.0}, names=("a", "b"))
    np.testing.assert_array_equal(target.prior.factor, [1.0, 0.5])
    np.testing.assert_array_equal(target.prior.mean, [2.0, 0.0])


def test_exposure_is_the_logarithm_of_it():
    first = PoissonRegression(X, COUNTS, exposure=np.exp(OFFSET), offset=0.5)
    second = PoissonRegression(X, COUNTS, offset=OFFSET + 0.5)
    assert float(first.potential(jnp.ones(DIM))) == pytest.approx(float(second.potential(jnp.ones(DIM))), rel=1e-12)
