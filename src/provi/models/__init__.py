"""Models with the scikit-learn interface. They need scikit-learn: pip install 'provi[models]'."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provi.models.bayesian_network import BayesianNetwork
    from provi.models.correlated_topic_model import CorrelatedTopicModel
    from provi.models.gaussian_mixture import VariationalGaussianMixture
    from provi.models.glm.logistic_regression import LogisticRegression
    from provi.models.glm.regressors import GLM, LinearRegression, PoissonRegression
    from provi.models.gp_classifier import GPClassifier
    from provi.models.gp_regressor import GPRegressor
    from provi.models.latent_dirichlet_allocation import LatentDirichletAllocation
    from provi.models.missing_logistic_regression import MissingLogisticRegression

__all__ = [
    "BayesianNetwork",
    "CorrelatedTopicModel",
    "GLM",
    "GPClassifier",
    "GPRegressor",
    "LatentDirichletAllocation",
    "LinearRegression",
    "LogisticRegression",
    "MissingLogisticRegression",
    "PoissonRegression",
    "VariationalGaussianMixture",
]

_FILES = {
    "BayesianNetwork": "provi.models.bayesian_network",
    "CorrelatedTopicModel": "provi.models.correlated_topic_model",
    "GLM": "provi.models.glm.regressors",
    "GPClassifier": "provi.models.gp_classifier",
    "GPRegressor": "provi.models.gp_regressor",
    "LatentDirichletAllocation": "provi.models.latent_dirichlet_allocation",
    "LinearRegression": "provi.models.glm.regressors",
    "LogisticRegression": "provi.models.glm.logistic_regression",
    "MissingLogisticRegression": "provi.models.missing_logistic_regression",
    "PoissonRegression": "provi.models.glm.regressors",
    "VariationalGaussianMixture": "provi.models.gaussian_mixture",
}


def __getattr__(name: str) -> Any:
    """A model is imported when it is asked for: `import provi.models` works without scikit-learn."""
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_FILES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ImportError(f"provi.models.{name} needs scikit-learn: pip install 'provi[models]'.") from None
