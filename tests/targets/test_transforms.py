"""Constraints: bijections against numerical Jacobians, inverses, extremes; LogDensity on constrained pytrees."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.targets import LogDensity, interval
from provi.targets.transforms.constraints import read_constraints
from provi.targets.transforms.scalar import HalfLine, Interval, Real
from provi.targets.transforms.vector import CorrelationCholesky, CorrelationMatrix, Ordered, Simplex

LOWER = np.tril_indices(4, -1)
CASES = {
    "real": (Real(), (3,), lambda y: y),
    "positive": (HalfLine(), (3,), lambda y: y),
    "below": (interval(-np.inf, 2.0), (3,), lambda y: y),
    "interval": (interval(-1.0, 3.0), (3,), lambda y: y),
    "simplex": (Simplex(), (5,), lambda y: y[:-1]),
    "ordered": (Ordered(), (4,), lambda y: y),
    "correlation cholesky": (CorrelationCholesky(), (4, 4), lambda y: y[LOWER]),
    "correlation matrix": (CorrelationMatrix(), (4, 4), lambda y: y[LOWER]),
}


def free_point(bijection, shape, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=bijection.free_shape(shape)))


@pytest.mark.parametrize("name", CASES)
def test_the_jacobian_is_that_of_the_independent_entries(name):
    bijection, shape, independent = CASES[name]
    x = free_point(bijection, shape, 0)

    @jax.jit
    def compute(x):
        def values(x):
            return independent(bijection.forward(x))

        step = 1e-5 * jnp.eye(x.size)
        around = jax.vmap(values)(x[None] + step) - jax.vmap(values)(x[None] - step)
        return bijection.log_det(x), jax.jacfwd(values)(x), around.T / 2e-5

    log_det, jacobian, differences = compute(x)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(jacobian, differences, atol=1e-7)  # central differences, of error about 1e-9


@pytest.mark.parametrize("name", CASES)
def test_values_lie_in_the_set_and_come_back_also_along_leading_axes(name):
    bijection, shape, _ = CASES[name]
    x = free_point(bijection, (2, 3, *shape), 3)

    @jax.jit
    def compute(x):
        y = bijection.forward(x)
        rows = x.reshape(6, *x.shape[2:])
        return y, bijection.inverse(y), bijection.log_det(x), jax.vmap(bijection.log_det)(rows), bijection.forward(rows)

    y, back, log_det, log_dets, rows = compute(x)
    assert y.shape == (2, 3, *shape) and bijection.contains(np.asarray(y))
    np.testing.assert_allclose(back, x, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(log_det, np.sum(log_dets), rtol=1e-12)
    np.testing.assert_allclose(y.reshape(6, *shape), rows, rtol=1e-13)


@pytest.mark.parametrize("name", CASES)
def test_far_out_nothing_is_infinite(name):
    bijection, shape, _ = CASES[name]

    @jax.jit
    @jax.vmap
    @jax.value_and_grad
    def compute(x):
        return bijection.log_det(x) + jnp.sum(bijection.forward(x))

    free = bijection.free_shape(shape)
    value, gradient = compute(jnp.stack([jnp.full(free, -60.0), jnp.full(free, 60.0)]))
    assert np.isfinite(value).all() and np.isfinite(gradient).all()


def test_small_shares_are_not_lost():
    x = jnp.asarray([300.0, 0.0])  # what is left of the stick is e^-300
    shares = Simplex().forward(x)
    np.testing.assert_allclose(np.log(shares[1:]), [-300.0, -300.0], rtol=1e-14)
    assert 0 < float(Interval(0.0, 1.0).forward(jnp.asarray(-700.0))) < 1e-300
    assert float(Interval(0.0, 1.0).forward(jnp.asarray(700.0))) < 1.0


def test_the_centre_is_balanced():
    np.testing.assert_allclose(Simplex().forward(jnp.zeros(4)), 0.2, rtol=1e-14)
    np.testing.assert_allclose(CorrelationMatrix().forward(jnp.zeros(3)), np.eye(3), atol=1e-15)
    # The derivative there is not lost in the seam between the two halves of the interval.
    np.testing.assert_allclose(jax.grad(Interval(0.0, 4.0).forward)(jnp.asarray(0.0)), 1.0, rtol=1e-14)


def constrained_density(parameters):
    scale, share, corr = parameters["scale"], parameters["share"], parameters["group"]["corr"]
    log_gamma = jnp.sum(2 * jnp.log(scale) - scale)
    return log_gamma + jnp.sum(jnp.log(share) * jnp.arange(1.0, 4.0)) + jnp.linalg.slogdet(corr)[1]


EXAMPLE = {"scale": np.array([1.0, 2.0]), "share": np.full(3, 1 / 3), "group": {"corr": np.eye(2)}}
NESTED = {"scale": "positive", "share": "simplex", "group": {"corr": "correlation matrix"}}


@pytest.mark.parametrize("constraints", [NESTED, {**NESTED, "group": "correlation matrix"}])
def test_density_of_the_free_vector(constraints):
    target = LogDensity(constrained_density, EXAMPLE, constraints=constraints)
    assert target.dim == 5
    assert target.parameter_names == (
        "partial(group.corr)[0]",
        "log(scale)[0]",
        "log(scale)[1]",
        "sticks(share)[0]",
        "sticks(share)[1]",
    )
    assert target.constrained_names[:5] == (*(f"group.corr[{i},{j}]" for i in (0, 1) for j in (0, 1)), "scale[0]")
    z = np.random.default_rng(0).normal(size=5)
    values = target.constrain(z)

    def flat(z):
        corr, share = CorrelationMatrix().forward(z[:1]), Simplex().forward(z[3:])
        return jnp.concatenate([corr[1, :1], jnp.exp(z[1:3]), share[:2]])

    jacobian = np.linalg.slogdet(jax.jit(jax.jacfwd(flat))(jnp.asarray(z)))[1]
    expected = constrained_density(values) + jacobian
    np.testing.assert_allclose(-target.potential(jnp.asarray(z)), expected, rtol=1e-12)
    np.testing.assert_allclose(target.unconstrain(values), z, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(target.constrain(target.start)["scale"], [1.0, 2.0], rtol=1e-14)
    draws = target.constrain(np.stack([z, 0 * z]))
    assert draws["group"]["corr"].shape == (2, 2, 2)
    np.testing.assert_allclose(draws["share"][0], values["share"], rtol=1e-14)


def test_names_by_path_and_one_constraint_for_all():
    bijections = read_constraints({"group.corr": "correlation matrix", "scale": None}, EXAMPLE)
    assert [type(b).__name__ for b in bijections] == ["CorrelationMatrix", "Real", "Real"]
    target = LogDensity(lambda y: jnp.sum(2 * jnp.log(y) - y), 2, constraints="positive")
    np.testing.assert_array_equal(target.start, [0.0, 0.0])
    assert target.parameter_names == ("log(z)[0]", "log(z)[1]") and target.constrained_names == ("z[0]", "z[1]")
    log_y = np.array([0.3, -1.0])
    exact = stats.gamma(3).logpdf(np.exp(log_y)).sum() + log_y.sum() + 2 * np.log(2.0)  # Gamma(3) = 2
    np.testing.assert_allclose(-target.potential(jnp.asarray(log_y)), exact, rtol=1e-13)


def test_without_constraints_the_tree_is_the_vector():
    target = LogDensity(lambda tree: -jnp.sum(tree["a"] ** 2), {"a": np.zeros((2, 2))})
    values = target.constrain(np.arange(4.0))
    np.testing.assert_array_equal(values["a"], [[0.0, 1.0], [2.0, 3.0]])
    np.testing.assert_array_equal(target.unconstrain(values), np.arange(4.0))
    assert target.constrained_names == target.parameter_names


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ("cube", "cube.*one of: real, positive"),
        ({"skale": "positive"}, "skale, but the parameters are: group.corr, scale, share"),
        ({"scale": "correlation matrix"}, r"'scale'.*shape \(2,\)"),
        ({"group": {"corr": "positive"}}, r"dim \(group.corr\) must be above 0"),
        ({"share": "ordered"}, "increasing"),
        ({"scale": interval(0, 1)}, "strictly between 0 and 1"),
    ],
)
def test_bad_constraints(constraints, message):
    with pytest.raises(ValueError, match=message):
        LogDensity(constrained_density, EXAMPLE, constraints=constraints)


def test_bad_values_and_intervals():
    target = LogDensity(constrained_density, EXAMPLE, constraints=NESTED)
    with pytest.raises(ValueError, match=r"parameters \(share\) must be positive, with the sum 1"):
        target.unconstrain({**EXAMPLE, "share": np.ones(3)})
    with pytest.raises(ValueError, match="parameters holds a shape"):
        target.unconstrain({**EXAMPLE, "share": np.full(4, 0.25)})
    with pytest.raises(ValueError, match=r"start \(scale\)"):
        LogDensity(constrained_density, EXAMPLE, constraints=NESTED, start={**EXAMPLE, "scale": -np.ones(2)})
    with pytest.raises(ValueError, match="dimension 5"):
        target.constrain(np.zeros(4))
    with pytest.raises(ValueError, match="lower < upper"):
        interval(1, 1)
    with pytest.raises(ValueError, match="no finite end"):
        interval(-np.inf, np.inf)
    with pytest.raises(ValueError, match="lower and upper must be numbers"):
        interval(np.zeros(2), 1)
