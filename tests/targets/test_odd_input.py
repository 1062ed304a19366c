"""What targets, fits and estimators refuse of their arguments, with a message that names the argument."""

import jax.numpy as jnp
import numpy as np
import pytest

import provi

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
Y = (X[:, 0] > 0).astype(float)
MASKED = np.ma.masked_array(X, mask=np.arange(40).reshape(20, 2) == 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: provi.targets.LogisticRegression(X, Y, prior_scale=1e-160), "prior_scale must lie between"),
        (lambda: provi.targets.LogisticRegression(X, Y, prior_scale=1e160), "prior_scale must lie between"),
        (lambda: provi.targets.LogisticRegression(X, Y, prior_covariance=[1.0, 1e-320]), "prior_covariance must lie"),
        (lambda: provi.targets.LogisticRegression(MASKED, Y), "X is a masked array with 1 masked"),
        (lambda: provi.targets.LogisticRegression(X, np.ma.masked_array(Y, mask=Y == 1)), "y is a masked array"),
        (lambda: provi.targets.LogisticRegression(X, Y, names=["a", "a"]), "Two names are 'a'"),
        (lambda: provi.targets.LogisticRegression(X, Y, names="ab"), "names must be a list"),
        (
            lambda: provi.targets.LogisticRegression(X, Y, names=["intercept", "b"], intercept=True),
            "called 'intercept'",
        ),
        (lambda: provi.targets.LogDensity(lambda z: -jnp.sum(z**2), 2, names=["a", "a"]), "Two names are 'a'"),
        (lambda: provi.targets.Gaussian(np.zeros(2), names=["a", "a"]), "Two names are 'a'"),
        (lambda: provi.targets.LinearRegression(X, Y.astype("m8[s]")), "y must hold numbers, not dtype timedelta64"),
        (lambda: provi.models.LogisticRegression().fit(MASKED, Y), "X is a masked array"),
        (lambda: provi.models.MissingLogisticRegression().fit(MASKED, Y), r"X.filled\(np.nan\)"),
    ],
)
def test_refused_with_the_name_of_the_argument(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_fit_refuses_numbers_beyond_its_integers():
    """Other types are refused by the same checks (tests/core/test_checks.py); here beartype is before them."""
    target = provi.targets.LogisticRegression(X, Y)
    for options in ({"budget": 2**70}, {"seed": 2**64}, {"budget": 2**63}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be below 2\\^63"):
            provi.fit(target, **options)
    with pytest.raises(ValueError, match="budget.steps must be below"):
        provi.Budget(steps=2**63)


def test_the_other_byte_order_makes_no_difference():
    target, other = provi.targets.LogisticRegression(X, Y), provi.targets.LogisticRegression(X.astype(">f8"), Y)
    assert float(provi.fit(target, seed=3).elbo) == float(provi.fit(other, seed=3).elbo)
    assert provi.targets.LogisticRegression(X.astype(">f4"), Y).dtype == np.float32
