"""The Gaussian-process target: its density, its constants, its other forms, and bad input."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import provi
from provi import kernels
from provi.targets import GaussianProcess, GeneralisedLinearModel
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise, Poisson, StudentT, UserLikelihood

RNG = np.random.default_rng(0)
SIZE = 6
X, Y = RNG.normal(size=(SIZE, 2)), np.array([0, 1, 1, 0, 1, 0])
KERNEL = kernels.SquaredExponential(0.8, 1.5)


def covariance(jitter):
    square = ((X[:, None, :] - X[None, :, :]) ** 2).sum(axis=-1)
    return 1.5**2 * np.exp(-0.5 * square / 0.8**2) + jitter * np.eye(SIZE)


def test_the_potential_is_minus_the_log_of_prior_times_likelihood():
    target = GaussianProcess(X, Y, KERNEL, jitter=0.1, mean=-0.4)
    z = RNG.normal(size=SIZE)
    prior = stats.multivariate_normal(np.full(SIZE, -0.4), covariance(0.1)).logpdf(z)
    likelihood = stats.bernoulli.logpmf(Y, 1 / (1 + np.exp(-z))).sum()
    assert float(target.potential(jnp.asarray(z))) == pytest.approx(-prior - likelihood, rel=1e-12)
    assert (target.dim, target.num_terms, target.dtype) == (SIZE, SIZE, np.float64)
    assert target.parameter_names == tuple(f"f[{n}]" for n in range(SIZE))


def test_defaults_are_a_smooth_kernel_and_labels():
    target = GaussianProcess(X, Y)
    assert isinstance(target.kernel, kernels.SquaredExponential) and isinstance(target.likelihood, BernoulliLogit)
    np.testing.assert_allclose(np.diagonal(target.gram), 1 + 1e-6)


def test_what_is_proven_and_what_is_violated():
    constants = GaussianProcess(X, Y, KERNEL, jitter=0.1).constants
    assert constants.log_concave.value is True and constants.log_concave.status == "proven"
    assert float(constants.strong_convexity.value) > 0
    robust = GaussianProcess(X, RNG.normal(size=SIZE), KERNEL, StudentT())
    concave = robust.constants.log_concave
    assert concave.value is False and concave.status == "violated" and robust.linear_model() is None


def test_as_a_linear_model_it_is_the_same_density():
    target = GaussianProcess(X, Y, KERNEL, jitter=0.1, mean=0.3)
    linear, z = target.linear_model(), jnp.asarray(RNG.normal(size=SIZE))
    assert linear is not None
    assert float(linear.potential(z)) == pytest.approx(float(target.potential(z)), rel=1e-12)
    duplicate = GaussianProcess(np.r_[X[:3], X[:3]], Y, KERNEL, jitter=0.0)
    with pytest.raises(ValueError, match="singular.*leave family at None.*jitter"):
        duplicate.linear_model()


def test_another_kernel_on_the_same_data():
    other = kernels.Matern12(2.0, 0.5)
    changed = GaussianProcess(X, Y, KERNEL, jitter=0.1).with_kernel(other)
    np.testing.assert_array_equal(changed.gram, GaussianProcess(X, Y, other, jitter=0.1).gram)


def test_types():
    assert GaussianProcess(X.astype(np.float32), Y, KERNEL).dtype == np.float32
    assert GaussianProcess(X.astype(np.float32), Y, KERNEL, dtype=np.float64).dtype == np.float64
    assert GaussianProcess(X.tolist(), Y.tolist()).dtype == np.float64


def broken(value):
    array = X.copy()
    array[2, 1] = value
    return array


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((broken(np.nan), Y), {}, "X has 1 entries that are NaN or infinite"),
        ((broken(np.inf), Y), {}, "X has 1 entries that are NaN or infinite"),
        ((X[:, 0], Y), {}, "X must have 2 axes"),
        ((X[:0], Y[:0]), {}, "X is empty"),
        ((X, Y[:-1]), {}, "y has length 5"),
        ((X, 2 * Y - 1), {}, r"y must hold 0 and 1.*\(y \+ 1\) / 2"),
        ((X, np.where(Y, np.nan, 0.0)), {}, "y has 3 entries that are NaN"),
        ((X, np.where(Y, np.inf, 0.0)), {"likelihood": GaussianNoise()}, "y has 3 entries that are NaN or infinite"),
        ((X, -Y), {"likelihood": Poisson()}, "y must"),
        ((X, Y), {"jitter": -1.0}, "jitter must be a number of at least 0"),
        ((X, Y), {"jitter": np.nan}, "jitter must be a number of at least 0"),
        ((X, Y), {"mean": np.inf}, "mean must be a finite number"),
        ((1e200 * X, Y, kernels.Linear()), {}, "kernel gives inf between rows 0 and 0 of X: scale the columns"),
        (
            (0 * X, Y, kernels.Linear(1.0, offset=1e-200)),
            {"jitter": 0.0},
            "kernel gives row 0 of X the variance 0.0: add jitter",
        ),
    ],
)
def test_bad_input_is_refused_by_name(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        GaussianProcess(*arguments, **options)


def test_what_the_user_declares_is_not_called_proven():
    likelihood = UserLikelihood(_quadratic, log_concave=True)
    values = RNG.normal(size=SIZE)
    models = GaussianProcess(X, values, KERNEL, likelihood), GeneralisedLinearModel(X, values, likelihood)
    for model in models:
        assert model.constants.log_concave.status == model.constants.strong_convexity.status == "declared"
        rows = {row.statement: row.status for row in provi.fit(model, progress=False).certificate.assumptions}
        assert rows["potential is convex (log-concave target)"] == "declared"


def _quadratic(y, eta):
    return -0.5 * (y - eta) ** 2
