"""Black-box log densities: vectors and pytrees, declarations, counter-examples, refusals."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from provi.targets import LogDensity
from support.hidden import hidden

SCALES = np.array([0.5, 1.0, 2.0])


def gaussian(z):
    return -0.5 * jnp.sum((hidden(z) / SCALES) ** 2)


def test_potential_of_a_vector():
    target = LogDensity(lambda z: jnp.sum(jax.scipy.stats.norm.logpdf(z, 1.0, 2.0)), 3)
    z = np.array([0.3, -1.0, 2.0])
    np.testing.assert_allclose(target.potential(jnp.asarray(z)), -stats.norm(1, 2).logpdf(z).sum(), rtol=1e-13)
    assert target.dim == 3 and target.dtype == jnp.float64
    assert target.parameter_names == ("z[0]", "z[1]", "z[2]")


def test_potential_of_a_pytree():
    example = {"rate": jnp.asarray(0.5), "weights": {"w": np.array([[1.0, 2.0]]), "b": [3.0]}}

    def log_density(parameters):
        w, b = parameters["weights"]["w"], parameters["weights"]["b"][0]
        assert w.shape == (1, 2) and parameters["rate"].shape == ()
        return -(parameters["rate"] ** 2) - jnp.sum(3 * w**2) - 7 * b**2

    target = LogDensity(log_density, example)
    assert target.parameter_names == ("rate", "weights.b.0", "weights.w[0,0]", "weights.w[0,1]")
    np.testing.assert_array_equal(target.start, [0.5, 3.0, 1.0, 2.0])
    z = np.array([2.0, -1.0, 0.5, 0.25])
    expected = 2.0**2 + 7.0 + 3 * (0.5**2 + 0.25**2)
    np.testing.assert_allclose(target.potential(jnp.asarray(z)), expected, rtol=1e-14)
    np.testing.assert_array_equal(target.unravel(jnp.asarray(z))["weights"]["w"], [[0.5, 0.25]])


def test_an_array_is_an_example_too():
    target = LogDensity(lambda a: -jnp.sum(a[0] * a[1]), np.ones((2, 2)))
    assert target.dim == 4 and target.parameter_names == ("z[0,0]", "z[0,1]", "z[1,0]", "z[1,1]")


def test_declarations():
    nothing = LogDensity(gaussian, 3).constants
    assert not (nothing.log_concave.known or nothing.strong_convexity.known or nothing.smoothness.known)
    assert "smoothness" in nothing.smoothness.reason
    declared = LogDensity(gaussian, 3, strong_convexity=0.25, smoothness=4).constants
    assert declared.strong_convexity.value == 0.25 and declared.smoothness.value == 4.0
    assert declared.log_concave.value is True
    assert {c.status for c in (declared.log_concave, declared.strong_convexity)} == {"declared"}
    concave = LogDensity(gaussian, 3, log_concave=False).constants.log_concave
    assert concave.value is False and concave.status == "declared"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"strong_convexity": -1.0}, "strong_convexity"),
        ({"strong_convexity": np.nan}, "strong_convexity"),
        ({"smoothness": 0.0}, "smoothness"),
        ({"smoothness": np.inf}, "smoothness"),
        ({"strong_convexity": 2.0, "smoothness": 1.0}, "smoothness"),
        ({"strong_convexity": 1.0, "log_concave": False}, "log_concave"),
        ({"log_concave": "yes"}, "log_concave"),
        ({"dim": 0}, "dim"),
        ({"dim": 2.5}, "dim"),
        ({"dim": {}}, "dim"),
        ({"dim": 2}, "fn .* dim"),
        ({"dim": {"a": np.array([np.nan])}}, "dim"),
        ({"names": ["a"]}, "names"),
        ({"dtype": jnp.int32}, "dtype"),
        ({"start": [1.0, 2.0]}, "start"),
        ({"start": {"a": 1.0}}, "start"),
        ({"start": [1.0, np.nan, 2.0]}, "start"),
    ],
)
def test_wrong_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        LogDensity(**({"fn": gaussian, "dim": 3} | arguments))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda z: z, r"fn must return one number.*shape \(3,\)"),
        (lambda z: (z[0], z[1]), "fn must return one number.*tuple"),
        (lambda z: jnp.sum(z).astype(int), "fn must return a real number.*int"),
        (lambda z: float(np.sum(np.asarray(z))), "fn cannot be traced.*jax.numpy"),
        (3.0, "fn must be a function"),
    ],
    ids=["vector", "tuple", "integer", "numpy", "not a function"],
)
def test_wrong_functions_are_refused(fn, message):
    with pytest.raises(TypeError, match=f"(?s){message}"):
        LogDensity(fn, 3)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda z: jnp.sum(jnp.log(z)), "fn returned -inf.*start"),
        (lambda z: jnp.sum(jnp.log(z - 1)), "fn returned nan.*start"),
        (lambda z: -jnp.sum(jnp.sqrt(z)), "gradient of fn.*element 0.*start"),
    ],
)
def test_a_start_outside_the_support_is_refused_with_the_remedy(fn, message):
    with pytest.raises(ValueError, match=message):
        LogDensity(fn, 2)
    target = LogDensity(fn, 2, start=[2.0, 3.0])
    np.testing.assert_array_equal(target.start, [2.0, 3.0])
    assert LogDensity(fn, np.array([2.0, 3.0])).dim == 2


def test_estimated_smoothness_of_a_quadratic_is_exact():
    target = LogDensity(gaussian, 3).estimate_smoothness(seed=0, num_points=3)
    smoothness = target.constants.smoothness
    assert smoothness.status == "estimated"
    np.testing.assert_allclose(smoothness.value, 4.0, rtol=1e-10)
    assert target.counterexample is None and not target.constants.log_concave.known


def test_estimate_is_the_largest_over_points():
    # The second derivative of log(2 cosh z) is 1 - tanh(z)^2: largest at the starting point.
    target = LogDensity(lambda z: -jnp.sum(jnp.logaddexp(hidden(z), -hidden(z))), 2)
    np.testing.assert_allclose(target.estimate_smoothness(1).constants.smoothness.value, 1.0, rtol=1e-10)
    moved = LogDensity(lambda z: -jnp.sum(jnp.logaddexp(hidden(z), -hidden(z))), 2, start=[3.0, 3.0])
    narrow = moved.estimate_smoothness(1, num_points=1).constants.smoothness.value
    np.testing.assert_allclose(narrow, 1 - np.tanh(3.0) ** 2, rtol=1e-8)
    assert moved.estimate_smoothness(1, 16, 2).constants.smoothness.value > 2 * narrow
    repeat = moved.estimate_smoothness(1, 16, 2).constants.smoothness.value
    assert repeat == moved.estimate_smoothness(1, 16, 2).constants.smoothness.value


def test_negative_curvature_refutes_log_concavity():
    def two_modes(z):
        return jnp.logaddexp(-0.5 * jnp.sum((z - 2) ** 2), -0.5 * jnp.sum((z + 2) ** 2))

    target = LogDensity(two_modes, 2, log_concave=True).estimate_smoothness(seed=2)
    constants = target.constants
    assert constants.log_concave.status == "violated" and constants.log_concave.value is False
    point = np.asarray(target.counterexample)
    assert np.linalg.eigvalsh(jax.hessian(target.potential)(jnp.asarray(point)))[0] < 0
    assert np.array2string(point, precision=6) in constants.log_concave.reason
    # At the origin the Hessian is I - 4 1 1', so the extreme eigenvalue is 1 - 8.
    np.testing.assert_allclose(constants.smoothness.value, 7.0, rtol=1e-10)


def test_declarations_are_confronted():
    kept = LogDensity(gaussian, 3, 0.25, 4.0).estimate_smoothness(0, 2).constants
    assert kept.smoothness.status == kept.strong_convexity.status == kept.log_concave.status == "declared"
    wrong = LogDensity(gaussian, 3, 0.3, 3.0).estimate_smoothness(0, 2)
    assert wrong.constants.smoothness.status == wrong.constants.strong_convexity.status == "violated"
    # Log-concavity was only implied by the claim that has fallen; declared by itself it stays.
    assert wrong.constants.log_concave.status == "unknown" and wrong.constants.log_concave.value is None
    both = LogDensity(gaussian, 3, 0.3, 3.0, log_concave=True).estimate_smoothness(0, 2)
    assert both.constants.strong_convexity.status == "violated" and both.constants.log_concave.status == "declared"
    np.testing.assert_array_equal(wrong.counterexample, np.zeros(3))
    again = wrong.estimate_smoothness(1, 2).constants
    assert again.smoothness.status == again.strong_convexity.status == "violated"
    assert again.log_concave.status == "unknown"


def test_estimate_refuses_points_where_the_density_ends():
    target = LogDensity(lambda z: jnp.sum(jnp.log(z)), 2, start=[1.0, 1.0])
    with pytest.raises(ValueError, match="spread"):
        target.estimate_smoothness(0, spread=10.0)
    for arguments in ({"num_points": 0}, {"spread": -1.0}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            target.estimate_smoothness(0, **arguments)


class Model(eqx.Module):
    scales: jax.Array

    def __call__(self, z):
        return -0.5 * jnp.sum((z / self.scales) ** 2)


def test_new_numbers_do_not_retrace():
    traces = []

    @jax.jit
    def potential(target, z):
        traces.append(1)
        return target.potential(z)

    def value(target):
        return float(potential(target, jnp.ones(3)))

    def shape(scales, z):
        return -0.5 * jnp.sum((z / scales) ** 2)

    plain = [LogDensity(gaussian, 3, smoothness=m, start=s * np.ones(3)) for m, s in ((4, 0), (5, 1), (6.0, 2))]
    assert len({value(target) for target in plain}) == 1 and len(traces) == 1
    partials = [LogDensity(jax.tree_util.Partial(shape, s * jnp.ones(3)), 3) for s in (1.0, 2.0)]
    assert value(partials[0]) == 4 * value(partials[1]) and len(traces) == 2
    modules = [LogDensity(Model(s * jnp.ones(3)), 3) for s in (1.0, 2.0)]
    assert value(modules[0]) == 4 * value(modules[1]) and len(traces) == 3


def test_dtype():
    single = LogDensity(lambda z: -jnp.sum(z**2), 2, dtype=jnp.float32)
    assert single.potential(jnp.ones(2, jnp.float32)).dtype == jnp.float32
    example = LogDensity(lambda z: -jnp.sum(z["a"] ** 2), {"a": np.ones(2, np.float32)})
    assert example.dtype == jnp.float32
    assert LogDensity(lambda z: -jnp.sum(z["a"] ** 2), {"a": np.ones(2, int)}).dtype == jnp.float64


OUTSIDE = np.ones(2)


def reads_a_global(z):
    return -0.5 * jnp.sum((z - OUTSIDE) ** 2)


def test_a_program_compiled_before_a_global_changed_is_not_used_again(monkeypatch):
    """A notebook's way: the same function, other data in its variable, a new target."""
    points = jnp.zeros((1, 2))
    values = jax.jit(lambda target: jax.vmap(target.potential)(points))
    first = LogDensity(reads_a_global, 2)
    assert float(values(first)[0]) == 1.0
    monkeypatch.setitem(globals(), "OUTSIDE", np.full(2, 3.0))
    assert float(values(LogDensity(reads_a_global, 2))[0]) == 9.0
    assert LogDensity(reads_a_global, 2).captured != first.captured
