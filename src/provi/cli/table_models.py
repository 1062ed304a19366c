"""The models of `provi fit TABLE`: each a target made from the encoded table, with its prior in words."""

import dataclasses
from typing import Any

import numpy as np

from provi.cli.table_data import Model, TableData
from provi.kernels import SquaredExponential
from provi.models.gp_hyperparameters import learn_hyperparameters
from provi.targets.base import AbstractTarget
from provi.targets.gaussian_process import GaussianProcess
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise
from provi.targets.logistic_regression import LogisticRegression
from provi.targets.poisson_regression import PoissonRegression

INTERCEPT_SCALES = {Model.LOGISTIC: 2.5, Model.POISSON: 10.0}
"""Prior standard deviation of the intercept. Log odds of 1:100 are -4.6; the logarithm of counts of 10^6 is 13.8."""

_LARGEST_PROCESS = 5000


@dataclasses.dataclass(frozen=True)
class Problem:
    """A target to fit, where to start, and in words what it is; `hyperparameters` if any were learnt."""

    target: AbstractTarget
    words: str
    start: Any = None
    hyperparameters: dict[str, float] = dataclasses.field(default_factory=dict)


def make_problem(data: TableData, model: Model, prior_scale: float | None, seed: int, progress: bool | None) -> Problem:
    """The target of a model, with its hyperparameters learnt where it has some."""
    if model is Model.GP:
        if prior_scale is not None:
            raise ValueError("--prior-scale is for logistic and poisson: a Gaussian process learns its amplitude.")
        return _process(data, seed, progress)
    if prior_scale is not None and not 0 < prior_scale < np.inf:
        raise ValueError(f"--prior-scale must be a positive number, not {prior_scale:g}.")
    if "intercept" in data.features.names:
        raise ValueError("A column is called 'intercept', as the intercept itself is: rename or --drop it.")
    kind, words = {
        Model.LOGISTIC: (LogisticRegression, "Logistic regression"),
        Model.POISSON: (PoissonRegression, "Poisson regression with the log link"),
    }[model]
    scale, at_zero = 1.0 if prior_scale is None else prior_scale, INTERCEPT_SCALES[model]
    scales = np.array([at_zero, *[scale] * len(data.features.names)])
    target = kind(data.features.values, data.response.values, scales, intercept=True, names=data.features.names)
    return Problem(target, f"{words}; prior N(0, {scale:g}^2) on coefficients, N(0, {at_zero:g}^2) on the intercept.")


def _process(data: TableData, seed: int, progress: bool | None) -> Problem:
    """Squared-exponential kernel with one length scale; labels 0 and 1 by the logit, numbers with Gaussian noise."""
    rows = len(data.features.values)
    if rows > _LARGEST_PROCESS:
        raise ValueError(
            f"{data.source} has {rows} rows, and --model gp takes {_LARGEST_PROCESS} at most: write a model file with "
            f"provi.targets.SparseGaussianProcess(X, y, inducing=500)."
        )
    labels = bool(np.isin(data.response.values, (0, 1)).all())
    likelihood = BernoulliLogit() if labels else GaussianNoise(0.5)
    # Distances between standardised rows grow as the square root of the number of columns: a start at their scale.
    kernel = SquaredExponential(float(np.sqrt(data.features.values.shape[1])), 1.0)
    process = GaussianProcess(data.features.values, data.response.values, kernel, likelihood)
    learnt = learn_hyperparameters(process, seed=seed, progress=bool(progress))
    found: Any = learnt.target
    numbers = {"length scale": float(found.kernel.length_scale), "amplitude": float(found.kernel.amplitude)}
    if not labels:
        numbers["noise scale"] = float(found.likelihood.scale)
    said = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    words = f"Gaussian-process {'classification' if labels else 'regression'}, squared-exponential kernel: {said}."
    caution = "The hyperparameters are a local maximum of the ELBO; the certificate is about the fit that they define."
    return Problem(found, f"{words}\n{caution}", learnt.start, numbers)
