"""The models of `provi fit TABLE`: each a target made from the encoded table, with its prior in words.

`--model missing-logistic`: maximum likelihood on incomplete rows, whose gap is estimated, not proven.
"""

import dataclasses
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from provi.cli.answer import Answer, Verdict, print_plain
from provi.cli.table_data import Model, TableData
from provi.kernels import SquaredExponential
from provi.models.gp.hyperparameters import learn_hyperparameters
from provi.targets.base import AbstractTarget
from provi.targets.gaussian_process import GaussianProcess
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise
from provi.targets.regressions import LogisticRegression, PoissonRegression

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


def fit_missing(data: TableData, tol: float, seed: int, progress: bool) -> Answer:
    """Fit `MissingLogisticRegression` with its exact solver."""
    from provi.models import MissingLogisticRegression

    model: Any = MissingLogisticRegression(tol=tol, random_state=seed, progress=progress)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            model.fit(data.features.values, data.response.values.astype(int))
        except ValueError as error:
            raise ValueError(_by_name(str(error), data.features.names)) from error
    notes = [" ".join(str(warning.message).split()) for warning in caught]
    model.feature_names_in_ = np.array(data.features.names, object)  # for the table: the fit itself takes arrays
    summary = model.summary()

    def show(console: Console) -> None:
        print_plain(console, *data.description(), summary.title, "", summary.table(), *(f"Note: {n}" for n in notes))

    document: dict[str, Any] = {
        "data": data.to_dict(),
        "log_likelihood": model.log_likelihood_,
        "estimated_gap": model.gap_,
        "converged": model.converged_,
        "coefficients": [{"name": name, **row} for name, row in summary.to_dict().items()],
        "notes": notes,
    }
    return Answer(_verdict(model, tol), document, show)


def _by_name(message: str, names: Sequence[str]) -> str:
    """An error about columns by number, with their names instead, and without remedies that only Python has."""

    def named(found: re.Match) -> str:
        return re.sub(r"\d+", lambda number: repr(names[int(number[0])]), found[0])

    numbered = r"columns? \d+(?:(?:, | and )\d+(?! more))*"
    return re.sub(numbered, named, message.partition(", or give rank=")[0].rstrip(".")) + "."


def _verdict(model: Any, tol: float) -> Verdict:
    grounds = "The likelihood of incomplete rows is not log-concave, and this model has no certificate"
    if model.separated_:
        return Verdict("not certified", f"Not certified: the labels are separated, and no maximum exists. {grounds}.")
    state = "converged" if model.converged_ else "not converged"
    gap = f"the gap to the maximum is estimated at {model.gap_:.2g} nats (tol = {tol:g}), not proven"
    return Verdict("not certified", f"Not certified, {state}: {gap}. {grounds}.")
