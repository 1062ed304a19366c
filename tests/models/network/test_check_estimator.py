"""scikit-learn's own checks: all of them for classes, those of responses for numbers."""

import pytest
from sklearn.utils import estimator_checks

from provi.models import BayesianNetwork


def model(likelihood):
    """Small and quick to compile: most of these fits have a shape of their own."""
    return BayesianNetwork(
        likelihood=likelihood,
        method="adam",
        noise="weights",
        rate=0.1,
        epochs=100,
        block_size=1000,
        predictive_draws=8,
    )


def test_classes(quick_compilation):
    estimator_checks.check_estimator(model("categorical"), on_skip=None)


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_regressors_train,
        estimator_checks.check_regressor_multioutput,
        estimator_checks.check_requires_y_none,
    ],
)
def test_numbers(check, quick_compilation):
    check("BayesianNetwork", model("gaussian"))
