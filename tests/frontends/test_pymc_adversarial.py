"""PyMC models written to mislead: labels, empty variables, data and dimensions that do not line up."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ announces its next version, PyTensor that it found no BLAS
    pm = pytest.importorskip("pymc")

import provi  # noqa: E402

RNG = np.random.default_rng(5)
X = RNG.normal(size=(6, 2))
LABELS = np.array([0, 1, 0, 1, 1, 0])


@pytest.fixture(scope="module")
def target():
    with pm.Model(coords={"column": ["p", "q"], "row": [10, 20, 30, 40, 50, 60], "axis": [1.5, 2.5]}) as model:
        slope = pm.Normal("b", dims="column")
        pm.Bernoulli("y", logit_p=X @ slope, observed=LABELS, dims="row")
        pm.MvNormal("v", slope, np.eye(2), observed=X, dims=("row", "axis"))
    return provi.from_pymc(model)


def test_labels_keep_their_type_and_data_have_them_too(target):
    """xarray aligns two results by their labels: those of the text "10" and of the number 10 share nothing."""
    # The log-likelihood of a row of v has no second axis.
    assert target.axis_labels == {"b": {"column": ["p", "q"]}, "y": {"row": [10, 20, 30, 40, 50, 60]}}
    assert all(isinstance(label, int) for label in target.axis_labels["y"]["row"])
    assert target.log_likelihood(np.zeros(2))["v"].shape == (6,)


def test_a_seed_that_is_none(target):
    with pytest.raises(ValueError, match="seed must be at least 0"):
        target.predict(np.zeros((3, 2)), -1)


def test_variables_without_entries():
    with pm.Model() as model:
        pm.Normal("x", shape=0)
    with pytest.raises(ValueError, match="have no entries"):
        provi.from_pymc(model)


def test_data_without_entries_are_no_linear_model():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("b", 0.0, 2.0), 1.0, observed=np.zeros(0))
    target = provi.from_pymc(model)
    assert target.linear_model() is None
    assert target.potential(jnp.array([3.0])) == pytest.approx(0.5 * np.log(2 * np.pi * 4) + 9 / 8, rel=1e-7)
