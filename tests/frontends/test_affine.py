"""Affine functions are recognised from their programs, and nothing else is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.frontends.recognise.affine import Form, Traced, forms

X = np.random.default_rng(0).normal(size=(5, 4))
GROUPS = np.array([0, 1, 1, 3, 2])

AFFINE = {
    "product": lambda z: X @ z + 1.0,
    "gather": lambda z: 2.0 * z[GROUPS] - z[0],
    "einsum": lambda z: jnp.einsum("ni,i->n", X, z),
    "select": lambda z: jnp.where(GROUPS > 1, z[GROUPS], 0.5),
    "scatter": lambda z: jnp.zeros(5).at[GROUPS].add(X @ z),
    "stack": lambda z: jnp.stack([z, -z]).sum(0) / 3.0,
    "log of a rate": lambda z: jnp.log(2.0 * jnp.exp(X @ z)),
    "differences": lambda z: jnp.diff(jnp.cumsum(z)),
    "scaled by a constant's exponential": lambda z: jnp.exp(X[:, 0]) * (X @ z),
    "inside jit": jax.jit(lambda z: jnp.concatenate([z[:2], z[2:] * 3.0]).reshape(2, 2).T),
}
LOG_AFFINE = {
    "rate": lambda z: jnp.exp(X @ z),
    "exposure": lambda z: jnp.arange(1.0, 6.0) * jnp.exp(X @ z) / 2.0,
    "product of rates": lambda z: jnp.exp(z[0]) * jnp.exp(z[1:]),
    "inverse": lambda z: 1.0 / jnp.exp(z),
}
QUADRATIC = {
    "square": lambda z: (z - 1.0) ** 2,
    "product of two": lambda z: z[0] * z[1:],
    "form": lambda z: z @ (X.T @ X) @ z - 3.0 * z.sum(),
    "differences": lambda z: -0.5 * jnp.sum(jnp.diff(z) ** 2) / 3.0,
    "solve": lambda z: jnp.sum(jax.scipy.linalg.solve_triangular(jnp.tril(X[:4]), z, lower=True) ** 2),
    "loop": lambda z: jnp.sum(jax.lax.scan(lambda x, y: (0.5 * x + y, (y - 0.5 * x) ** 2), 0.0, z)[1]),
}
OTHER = {
    "cube": lambda z: z**2 * z[0],
    "quotient": lambda z: z / z[0],
    "exponential of a square": lambda z: jnp.exp(-(z**2)),
    "square and rate": lambda z: z**2 + jnp.exp(z),
    "loop that multiplies": lambda z: jax.lax.scan(lambda x, y: (x * y, x), 1.0, z)[0],
    "round": lambda z: jnp.round(z) @ X.T,
    "sign": lambda z: jnp.sign(z),
    "stop_gradient": lambda z: jax.lax.stop_gradient(z) + 1.0,
    "branch": lambda z: jnp.where(z > 0, 1.0, 2.0),
    "index": lambda z: jnp.asarray(X[0])[jnp.argmax(z)] + z[0],
    "relu": lambda z: jax.nn.relu(z),
    "clip": lambda z: jnp.clip(X @ z, -5, 5),
    "sum of rates": lambda z: jnp.sum(jnp.exp(z)),
    "rate plus one": lambda z: jnp.exp(z) + 1.0,
    "tanh": lambda z: jnp.tanh(X @ z),
    "half precision": lambda z: z.astype(jnp.float16),
    "loop": lambda z: jax.lax.fori_loop(0, 3, lambda i, x: x * z, z),
    "sort": lambda z: jnp.sort(z),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_functions(name):
    function = AFFINE[name]
    assert forms(function, jnp.ones(4)) == [Form.AFFINE]
    # And the Jacobian at one point is the linear map.
    z = jnp.asarray([0.3, -1.0, 2.0, 0.7])
    slope = jnp.tensordot(jax.jacobian(function)(jnp.zeros(4)), z, 1)
    np.testing.assert_allclose(function(z), function(jnp.zeros(4)) + slope, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOG_AFFINE)
def test_exponentials_of_affine_functions(name):
    assert forms(LOG_AFFINE[name], jnp.ones(4)) == [Form.LOG_AFFINE]


@pytest.mark.parametrize("name", QUADRATIC)
def test_quadratic_functions(name):
    function = QUADRATIC[name]
    assert forms(function, jnp.ones(4)) == [Form.QUADRATIC]
    # And value, gradient and Hessian at one point are the function.
    z, zero = jnp.asarray([0.3, -1.0, 2.0, 0.7]), jnp.zeros(4)
    slope = jnp.tensordot(jax.jacobian(function)(zero), z, 1)
    bend = jnp.tensordot(jnp.tensordot(jax.hessian(function)(zero), z, 1), z, 1)
    np.testing.assert_allclose(function(z), function(zero) + slope + 0.5 * bend, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OTHER)
def test_everything_else_is_refused(name):
    assert forms(OTHER[name], jnp.ones(4)) == [Form.OTHER]


def test_constants_and_several_outputs():
    found = forms(lambda z: (jnp.sort(jnp.asarray(X[0])), z + 1.0, jnp.exp(z), jnp.sin(z)), jnp.ones(4))
    assert found == [Form.CONSTANT, Form.AFFINE, Form.LOG_AFFINE, Form.OTHER]


def test_arguments_that_are_held():
    """A scale held fixed may enter as it likes."""

    def function(parts):
        scale, raw = jnp.exp(parts["scale"]), parts["raw"]
        return {"mean": 1.0 + scale * raw, "density": -0.5 * jnp.sum((raw / scale) ** 2) - jnp.log(scale)}

    traced = Traced(function, {"scale": jnp.zeros(()), "raw": jnp.zeros(3)})
    assert traced.forms({"raw"}) == {"mean": Form.AFFINE, "density": Form.QUADRATIC}
    assert traced.forms({"scale"}) == {"mean": Form.OTHER, "density": Form.OTHER}
    assert traced.forms({"raw", "scale"}) == {"mean": Form.OTHER, "density": Form.OTHER}
    assert traced.forms(()) == {"mean": Form.CONSTANT, "density": Form.CONSTANT}
