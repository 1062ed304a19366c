"""scikit-learn's own checks: all of them for classes, those of responses for numbers."""

import pytest
from sklearn.utils import estimator_checks

from provi.models import BayesianNetwork
from provi.models.network import training
from provi.result.fit import Estimate

pytestmark = pytest.mark.usefixtures("quick_compilation", "no_final_elbo")


@pytest.fixture(scope="module")
def no_final_elbo():
    """The ELBO at the end is compiled for each of some twenty shapes; other tests are about it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "measure_elbo", lambda surrogate, point, key: Estimate(0.0, 0.0))
        yield


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


def test_classes():
    estimator_checks.check_estimator(model("categorical"), on_skip=None)


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_regressors_train,
        estimator_checks.check_regressor_multioutput,
        estimator_checks.check_requires_y_none,
    ],
)
def test_numbers(check):
    check("BayesianNetwork", model("gaussian"))
