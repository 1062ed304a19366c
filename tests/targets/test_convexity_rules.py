"""What the rules of convexity prove holds, and what does not hold they never prove."""

import functools
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy import special, stats
from jax.scipy.linalg import solve_triangular
from scipy.stats import ortho_group

import provi
from provi.targets import LogDensity, interval
from provi.targets.convexity.trace import analyse
from support.hidden import hidden

RNG = np.random.default_rng(7)
DIM = 4
X = RNG.normal(size=(30, DIM))
Y = (RNG.random(30) < 0.4).astype(float)
COUNTS = RNG.poisson(2.0, size=30).astype(float)
WEIGHTS = RNG.uniform(0.5, 2.0, size=30)
GROUPS = RNG.integers(0, DIM, size=30)
ROTATION = ortho_group.rvs(DIM, random_state=1)
PRECISION = ROTATION @ np.diag([0.5, 1.0, 2.0, 5.0]) @ ROTATION.T
PRECISION = (PRECISION + PRECISION.T) / 2
FACTOR = np.linalg.cholesky(PRECISION)
NEARLY = ROTATION @ np.diag([-1e-10, 1.0, 2.0, 5.0]) @ ROTATION.T
NEARLY = (NEARLY + NEARLY.T) / 2
pytestmark = pytest.mark.usefixtures("quick_compilation")
softplus, log_sigmoid, sigmoid = jax.nn.softplus, jax.nn.log_sigmoid, jax.nn.sigmoid


def ridge(z):
    return 0.5 * jnp.sum(z**2)


def bernoulli_loss(x, y):
    return jnp.clip(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x))) - x * y


def walk(z):
    """A random walk, by a scan."""

    def step(previous, current):
        return current, (current - previous) ** 2

    return jnp.sum(jax.lax.scan(step, jnp.zeros(()), z)[1]) / 2


def loop(z):
    """A sum by a fori_loop of constant length, which is a scan."""
    return jax.lax.fori_loop(0, DIM, lambda k, total: total + jnp.cosh(z[k]), 0.0)


def student(eta, y, freedom=4.0):
    return jnp.sum((freedom + 1) / 2 * jnp.log1p((y - eta) ** 2 / freedom))


@jax.custom_gradient
def flipped(x):
    return x**2, lambda cotangent: (-cotangent,)


borrowed, borrowed_too = jax.custom_jvp(jnp.square), jax.custom_jvp(jnp.square)
borrowed.defjvp(lambda primals, tangents: (primals[0] ** 2, -tangents[0]))
borrowed_too.defjvps(lambda tangent, ans, x: -tangent)
wrapped = eqx.filter_custom_jvp(jnp.square)
wrapped.def_jvp(lambda primals, tangents: (primals[0] ** 2, -tangents[0]))


# Potentials, and whether they are quadratic: then the numbers are exact.
PROVEN = {
    "gaussian": (ridge, True),
    "gaussian, by dot": (lambda z: 0.5 * z @ z, True),
    "gaussian, by mul": (lambda z: jnp.sum(0.5 * z * z), True),
    "gaussian, by pow": (lambda z: jnp.sum(z**2.0), True),
    "gaussian, logpdf": (lambda z: -jnp.sum(stats.norm.logpdf(z, 1.0, jnp.arange(1.0, 5.0))), True),
    "matrix": (lambda z: 0.5 * z @ jnp.asarray(PRECISION) @ z, True),
    "matrix, after a shift": (lambda z: (z - 1.0) @ (jnp.asarray(PRECISION) @ (z - 1.0)), True),
    "matrix, by its factor": (lambda z: jnp.sum((FACTOR.T @ z) ** 2), True),
    "matrix, by solving": (lambda z: 0.5 * jnp.sum(solve_triangular(FACTOR, z, lower=True) ** 2), True),
    "multivariate normal": (lambda z: -stats.multivariate_normal.logpdf(z, jnp.ones(DIM), PRECISION), True),
    "least squares": (lambda z: jnp.sum(WEIGHTS * (Y - X @ z) ** 2), True),
    "least squares, weights inside": (lambda z: jnp.sum((Y - X @ z) * WEIGHTS * (Y - X @ z)), True),
    "random walk": (walk, True),
    "differences": (lambda z: ridge(z) + 3 * jnp.sum(jnp.diff(z) ** 2), True),
    "cumulative": (lambda z: ridge(jnp.cumsum(z)), True),
    "variance and mean": (lambda z: 4 * jnp.var(z) + jnp.mean(z) ** 2, True),
    "groups": (lambda z: jnp.sum((Y - z[GROUPS]) ** 2) + ridge(z), True),
    "indefinite parts, definite sum": (lambda z: 2 * ridge(z) + z[0] * z[1] - z[2] * z[3], True),
    "scatter": (lambda z: ridge(jnp.zeros(6).at[jnp.array([0, 2, 4, 4])].add(z)) + ridge(z), True),
    "scatter, set": (lambda z: ridge(jnp.ones(6).at[jnp.array([0, 2, 4, 5])].set(2 * z)), True),
    "logistic": (lambda z: jnp.sum(softplus(X @ z) - Y * (X @ z)) + ridge(z), False),
    "logistic, by log_sigmoid": (lambda z: -jnp.sum(log_sigmoid((2 * Y - 1) * (X @ z))), False),
    "logistic, by logaddexp": (lambda z: jnp.sum(jnp.logaddexp(0.0, X @ z)), False),
    "logistic, by cross-entropy": (lambda z: jnp.sum(bernoulli_loss(X @ z, Y)) + 2 * ridge(z), False),
    "logistic, by log of sigmoid": (lambda z: -jnp.sum(jnp.log(sigmoid(z)) + 2 * jnp.log(1 - sigmoid(z))), False),
    "logistic, by log1p": (lambda z: jnp.sum(jnp.log1p(jnp.exp(X @ z))), False),
    "product of sigmoids, logarithm": (lambda z: -jnp.log(jnp.square(sigmoid(z[0])) * sigmoid(z[1] - 2.0)), False),
    "probit": (lambda z: -jnp.sum(stats.norm.logcdf((2 * Y - 1) * (X @ z))) + ridge(z), False),
    "poisson": (lambda z: jnp.sum(jnp.exp(X @ z) - COUNTS * (X @ z)) + ridge(z), False),
    "poisson, by xlogy": (lambda z: -jnp.sum(stats.poisson.logpmf(COUNTS, jnp.exp(X @ z))), False),
    "negative binomial": (lambda z: jnp.sum((COUNTS + 2.0) * softplus(X @ z) - COUNTS * (X @ z)), False),
    "multinomial": (lambda z: -jnp.sum(jax.nn.log_softmax((X @ z).reshape(10, 3), axis=1)[:, 0]), False),
    "logsumexp": (lambda z: special.logsumexp(X @ z) + ridge(z), False),
    "logsumexp with weights": (lambda z: special.logsumexp(X @ z, b=WEIGHTS), False),
    "ordered, fixed cut points": (lambda z: -jnp.sum(jnp.log(sigmoid(1.0 - X @ z) - sigmoid(-1.0 - X @ z))), False),
    "log cosh": (lambda z: jnp.sum(jnp.log(jnp.cosh(X @ z))), False),
    "loop": (loop, False),
    "laplace": (lambda z: jnp.sum(jnp.abs(z)), False),
    "quantile loss": (lambda z: jnp.sum(jnp.maximum(0.9 * (Y - X @ z), -0.1 * (Y - X @ z))), False),
    "hinge": (lambda z: jnp.sum(jnp.maximum(0.0, 1 - (2 * Y - 1) * (X @ z))) + ridge(z), False),
    "support function": (lambda z: jnp.max(X @ z), False),
    "fourth power": (lambda z: jnp.sum(z**4), False),
    "exponential of a square": (lambda z: jnp.sum(jnp.exp(z**2)), False),
    "softplus of a square": (lambda z: jnp.sum(softplus(z**2)), False),
    "bend below the ridge": (lambda z: ridge(z) + 0.5 * jnp.sum(jnp.sin(z)) + jnp.sum(sigmoid(z)), False),
    "gamma, log coordinates": (lambda z: jnp.sum(3 * jnp.exp(z) - 2 * jnp.log(jnp.exp(z)) - z), False),
    "half-cauchy, log coordinates": (lambda z: jnp.sum(jnp.log1p(jnp.square(jnp.exp(z) / 2)) - z), False),
    "inverse gamma, log coordinates": (lambda z: jnp.sum(2 / jnp.exp(z) + 3 * z), False),
    "half-normal, log coordinates": (lambda z: jnp.sum(jnp.exp(z) ** 2 / 2 - z), False),
    "a shift that cancels": (lambda z: ridge(z) + jax.lax.stop_gradient(z[0]) - jax.lax.stop_gradient(z[0]), True),
    "where on data": (lambda z: jnp.sum(jnp.where(Y > 0, softplus(X @ z), (X @ z) ** 2)), False),
    "checkpoint and vmap": (jax.checkpoint(lambda z: jnp.sum(jax.vmap(lambda x: softplus(x @ z))(X))), False),
}  # fmt: skip

# Potentials that are not convex, or not smooth functions as their derivatives say. All are finite at moderate points.
TRAPS = {
    "student likelihood": lambda z: student(X @ z, 3 * Y) + 0.1 * ridge(z),
    "cauchy prior": lambda z: jnp.sum(jnp.log1p(z**2)),
    "funnel": lambda z: z[0] ** 2 / 18 + jnp.sum(z[1:] ** 2) * jnp.exp(-z[0]) / 2 + 1.5 * z[0],
    "scale in log coordinates": lambda z: jnp.sum((Y - X[:, 1:] @ z[1:]) ** 2) * jnp.exp(-2 * z[0]) / 2 + 30 * z[0],
    "random-effect scale": lambda z: jnp.sum(softplus(jnp.exp(z[0]) * (X[:, 1:] @ z[1:]))) + ridge(z),
    "mixture": lambda z: -jnp.sum(jnp.logaddexp(stats.norm.logpdf(z, -3.0, 1.0), stats.norm.logpdf(z, 3.0, 1.0))),
    "mixture, by logsumexp": lambda z: -special.logsumexp(jnp.stack([-ridge(z - 1.5), -ridge(z + 1.5)])),
    "product": lambda z: z[0] * z[1],
    "product of four": lambda z: ridge(z) + z[0] * z[1] * z[2] * z[3],
    "factorisation": lambda z: (1.0 - z[0] * z[1]) ** 2 + 0.01 * ridge(z),
    "difference of squares": lambda z: z[0] ** 2 - z[1] ** 2,
    "difference of convex": lambda z: jnp.sum(softplus(2 * z) - 2 * softplus(z)),
    "softplus of a square, less": lambda z: jnp.sum(softplus(z**2) - z**2),
    "concave of convex": lambda z: jnp.sum(jnp.log(1 + z**4)),
    "minus softplus": lambda z: -jnp.sum(softplus(X @ z)),
    "minus logsumexp": lambda z: -special.logsumexp(X @ z),
    "logsumexp subtracted": lambda z: jnp.sum(jnp.log(jnp.cosh(2 * z))) - 4 * special.logsumexp(3 * z),
    "sigmoid itself": lambda z: jnp.sum(1 / (1 + jnp.exp(-z))),
    "sigmoid product, no logarithm": lambda z: -jnp.prod(sigmoid(z)),
    "squared loss of sigmoids": lambda z: jnp.sum((Y - sigmoid(X @ z)) ** 2),
    "indefinite matrix": lambda z: z @ jnp.asarray(PRECISION - 2 * np.eye(DIM)) @ z,
    "nearly semidefinite": lambda z: z @ jnp.asarray(NEARLY) @ z,
    "hidden subtraction": lambda z: jnp.sum(jnp.array([1.0, 1.0, 1.0, 1e-3 - 2e-3]) * z**2),
    "sums that hide a sign": lambda z: jnp.sum(jnp.tile(z**2, 3) * jnp.tile(jnp.array([1.0, 1.0, -2.5]), 4)),
    "min": lambda z: jnp.sum(jnp.minimum(z, 0.0)) + 0.01 * ridge(z),
    "max with the wrong sign": lambda z: ridge(z) - 3 * jnp.max(z),
    "minus abs": lambda z: ridge(z) - jnp.sum(jnp.abs(z)),
    "abs of a square, less one": lambda z: jnp.sum(jnp.abs(z**2 - 1)),
    "clip": lambda z: jnp.sum(jnp.clip(z, -1, 1) ** 2) + jnp.sum(jnp.clip(z, -1, 1)),
    "where on the sign": lambda z: jnp.sum(jnp.where(z > 0, z, 3 * z)),
    "where, a kink down": lambda z: 0.05 * ridge(z) + jnp.sum(jnp.where(z < 1, z**2, 1.0)) * 5,
    "cube": lambda z: jnp.sum(z**3),
    "sine": lambda z: jnp.sum(jnp.sin(z)),
    "bend above the ridge": lambda z: 0.4 * ridge(z) + 0.5 * jnp.sum(jnp.sin(z)),
    "inverse": lambda z: 1 / (1 + jnp.sum(z**2)),
    "minus exponential": lambda z: -jnp.sum(jnp.exp(z)) + ridge(z),
    "norm, less": lambda z: -jnp.linalg.norm(z + 2.0),
    "erf": lambda z: jnp.sum(jax.lax.erf(z)),
    "log normal in its own scale": lambda z: 3 * jnp.sum(jnp.log1p(jnp.exp(z)) ** 2) - 9 * jnp.sum(softplus(z)),
    "horseshoe": lambda z: jnp.sum(z[:2] ** 2 * jnp.exp(-2 * z[2:])) / 2 + jnp.sum(softplus(2 * z[2:])),
    "fold": lambda z: jnp.sum(jnp.maximum(jnp.abs(z), 1.0) - 2 * jnp.maximum(jnp.abs(z), 2.0)) + 0.1 * ridge(z),
    "hidden concave loop": lambda z: jax.lax.fori_loop(0, 3, lambda k, t: t - (k - 1.0) * z[k] ** 2, 0.0),
    "while that depends on z": lambda z: jax.lax.while_loop(lambda t: t < z[0], lambda t: t + 1.0, 0.0) + ridge(z),
    "cond that depends on z": lambda z: jax.lax.cond(z[0] > 0, lambda: ridge(z), lambda: 3 * ridge(z) - z[0]),
    "index that depends on z": lambda z: -z[jnp.argmax(z)] + 0.01 * ridge(z),
    "sort": lambda z: -jnp.sum(jnp.sort(z) * jnp.arange(4.0)),
}  # fmt: skip

# Convex or constant as functions, but with derivatives that say otherwise, or not defined everywhere.
LIES = {
    "stop_gradient": lambda z: ridge(jax.lax.stop_gradient(z)),
    "stop_gradient of a part": lambda z: jnp.sum(z * jax.lax.stop_gradient(z)),
    "a straight-through shift": lambda z: ridge(z) + z[0] - jax.lax.stop_gradient(z[0]),
    "rounding": lambda z: ridge(jnp.round(z)),
    "integers": lambda z: ridge(z.astype(int).astype(float)),
    "single precision": lambda z: ridge(z.astype(jnp.float32)).astype(jnp.float64),
    "a stranger's derivative": lambda z: ridge(hidden(z)),
    "a wrong derivative": lambda z: jnp.sum(flipped(z)) + ridge(z),
    "a wrong derivative of a known function": lambda z: jnp.sum(borrowed(z)) + ridge(z),
    "the same by parts": lambda z: jnp.sum(borrowed_too(z)) + ridge(z),
    "the same by Equinox": lambda z: jnp.sum(wrapped(z)) + ridge(z),
    "two roundings that are not the same": lambda z: ridge(z) + jnp.sum(z.astype(int) - z.astype(jnp.float32)),
    "x log x": lambda z: jnp.sum(z * jnp.log(z)),
    "log of an affine function": lambda z: -jnp.sum(jnp.log(z + 3.0)) + ridge(z),
    "zero times log": lambda z: ridge(z) + 0.0 * jnp.sum(jnp.log(z)),
    "log minus itself": lambda z: ridge(z) + jnp.sum(jnp.log(z)) - jnp.sum(jnp.log(z)),
    "square root": lambda z: -jnp.sum(jnp.sqrt(z)) + ridge(z),
    "power": lambda z: jnp.sum(z**1.5),
    "inverse": lambda z: jnp.sum(1 / z),
    "log gamma": lambda z: jnp.sum(special.gammaln(z)),
    "minus infinity on data": lambda z: ridge(z) - jnp.sum(jnp.where(Y > 0, X @ z, -jnp.inf)),
    "not a number": lambda z: ridge(z) * jnp.nan,
    "an indicator": lambda z: ridge(z) + jnp.where(z[0] > 0, 0.0, jnp.inf),
    "a callback": lambda z: ridge(z) + jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((), float), z[0]),
}  # fmt: skip


@functools.cache
def points():
    """From near the origin to far away."""
    return np.random.default_rng(0).normal(size=(12, DIM)) * np.geomspace(0.05, 6, 12)[:, None]


def look(potential, derivatives=True):
    """How far the middles of segments lie above the means of their ends, over the scale; and Hessians at points."""
    first, second = np.triu_indices(len(points()), 1)
    places = np.concatenate([points(), (points()[first] + points()[second]) / 2])

    @jax.jit
    def read(places):
        values = jax.lax.map(potential, places)
        return values, jax.lax.map(jax.hessian(potential), places[: len(points())]) if derivatives else None

    values, hessians = jax.tree.map(np.asarray, read(places))
    ends, middle = values[: len(points())], values[len(points()) :]
    rise = (middle - (ends[first] + ends[second]) / 2) / (1 + abs(ends[first]) + abs(ends[second]))
    return np.nanmax(rise), hessians[np.isfinite(hessians).all(axis=(1, 2))] if derivatives else None


@pytest.mark.parametrize("name", PROVEN)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_proven_holds(name):
    potential, quadratic = PROVEN[name]
    found = analyse(potential, jnp.zeros(DIM))
    assert found.log_concave, found.reason
    rise, hessians = look(potential)
    assert rise < 1e-12
    values = np.linalg.eigvalsh(hessians)
    scale = 1e-9 * max(1.0, np.abs(values[:6]).max())
    assert found.strong_convexity <= values.min() + scale
    low, high = found.bounds
    assert np.linalg.eigvalsh(hessians[:6] - low).min() > -scale
    assert np.linalg.eigvalsh(low)[0] >= found.strong_convexity - scale
    if high is None:
        assert found.smoothness is None
    else:
        assert found.smoothness >= values.max() - scale
        assert np.linalg.eigvalsh(high - hessians).min() > -scale
    if quadratic:
        np.testing.assert_allclose([found.strong_convexity, found.smoothness], [values.min(), values.max()], atol=1e-8)
        assert found.strong_convexity <= values.min() + 1e-14 and found.smoothness >= values.max() - 1e-14


@pytest.mark.parametrize("name", TRAPS)
def test_what_is_not_convex_is_not_proven(name):
    potential = TRAPS[name]
    found = analyse(potential, jnp.zeros(DIM))
    assert not found.log_concave and found.strong_convexity is None and found.bounds is None
    if name == "nearly semidefinite":  # too little for segments
        assert np.linalg.eigvalsh(NEARLY)[0] < 0
        return
    rise, hessians = look(potential, derivatives=name != "while that depends on z")  # which has none
    values = np.zeros(1) if hessians is None else np.linalg.eigvalsh(hessians)
    assert rise > 1e-9 or values.min() < -1e-9
    assert found.smoothness is None or found.smoothness >= np.abs(values).max() - 1e-9


@pytest.mark.parametrize("name", LIES)
def test_what_lies_about_itself_is_not_proven(name):
    found = analyse(LIES[name], jnp.ones(DIM))
    assert not found.log_concave and found.strong_convexity is None and found.smoothness is None


def quick(z):
    return -jnp.sum(softplus(X @ z)) - ridge(z)


def test_a_density_says_what_its_program_proves():
    target = LogDensity(quick, DIM)
    constants = target.constants
    assert constants.log_concave.status == constants.strong_convexity.status == constants.smoothness.status == "proven"
    assert "30 log-sum-exp" in constants.log_concave.reason and 1 - 1e-9 < constants.strong_convexity.value <= 1
    low, high = target.curvature_bounds()
    np.testing.assert_allclose(low, np.eye(DIM), atol=1e-9)
    np.testing.assert_allclose(high, np.eye(DIM) + X.T @ X / 4, atol=1e-9)
    single = LogDensity(quick, DIM, dtype=jnp.float32).constants
    assert single.log_concave.status == "proven" and 0.99 < single.strong_convexity.value <= 1


def test_declarations_stay_where_they_say_more_than_the_proof():
    close = LogDensity(quick, DIM, strong_convexity=1.0).constants.strong_convexity
    assert close.status == "proven" and close.value <= 1
    more = LogDensity(quick, DIM, strong_convexity=1.5, smoothness=2.0)
    assert more.constants.strong_convexity.status == more.constants.smoothness.status == "declared"
    assert more.constants.log_concave.status == "proven" and more.curvature_bounds() is None
    impossible = LogDensity(quick, DIM, strong_convexity=1e6, log_concave=True).constants
    assert impossible.strong_convexity.status == "proven" and impossible.strong_convexity.value <= 1
    hidden_one = LogDensity(lambda z: quick(hidden(z)), DIM, log_concave=True)
    assert hidden_one.constants.log_concave.status == "declared" and hidden_one.curvature_bounds() is None


def test_what_is_proven_of_one_set_of_data_is_not_said_of_another():
    def density(weights, z):
        return -jnp.sum(weights * z**2)

    first = LogDensity(jax.tree_util.Partial(density, jnp.ones(DIM)), DIM)
    assert first.constants.log_concave.status == "proven"
    other = eqx.tree_at(lambda target: target.fn.args[0], first, jnp.array([1.0, 1.0, 1.0, -1.0]))
    assert other.constants.log_concave.status == "unknown"
    on_host = LogDensity(jax.tree_util.Partial(density, np.ones(DIM)), DIM)
    assert on_host.constants.log_concave.status == "proven"
    on_host.fn.args[0][:] = -1.0
    assert on_host.constants.log_concave.status == "unknown"


@pytest.mark.parametrize(("constraints", "proven"), [("positive", True), (interval(0.0, 1.0), False)])
def test_constraints_are_part_of_the_program(constraints, proven):
    target = LogDensity(lambda y: jnp.sum(jnp.log(y) - 2 * y), DIM, constraints=constraints)
    found = target.constants.log_concave
    assert found.status == ("proven" if proven else "unknown")


def test_a_fit_is_certified_without_a_declaration():
    fit = provi.fit(LogDensity(quick, DIM), tol=0.1)
    assert fit.certificate.status == "proven"
    rows = {row.statement.split()[0]: row.status for row in fit.certificate.assumptions}
    assert rows["potential"] == rows["strong"] == "proven"


def test_analysis_is_quick_and_large_programs_are_left_alone():
    design = RNG.normal(size=(2000, 20))
    analyse(lambda z: jnp.sum(softplus(design @ z)), jnp.zeros(20))
    begun = time.perf_counter()
    found = analyse(lambda z: jnp.sum(softplus(design @ z)) + ridge(z), jnp.zeros(20))
    assert found.log_concave and time.perf_counter() - begun < 2  # a tenth of a second on an idle machine
    wide = analyse(lambda z: jnp.sum(jnp.cumsum(z) ** 2), jnp.zeros(5000))
    assert not wide.log_concave and "too large" in wide.reason
    many = analyse(lambda z: ridge(z) + jnp.sum(jnp.abs(z)), jnp.zeros(3000))
    assert many.log_concave and abs(many.strong_convexity - 1) < 1e-9 and many.bounds is None
