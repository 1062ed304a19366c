"""The models of `provi fit TABLE`: each a target made from the encoded table, with its prior in words.

`--model missing-logistic`: maximum likelihood on incomplete rows, whose gap is estimated, not proven.

What one model alone needs is imported where it is made: the others do not wait for it.
"""

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from provi.cli.answer import Answer, Verdict, print_plain, table_description
from provi.cli.options import Model
from provi.cli.table_data import COUNTS, TIMES, TableData, TableOptions
from provi.models.glm.coefficients import (
    NestedProblem,
    RegressionSummary,
    default_numbers,
    log_normal_numbers,
    mixture_summary,
    nested_problem,
    one_node,
    ratio_word,
    student_t_target,
)
from provi.models.weak_priors import read_prior, response_location, weak_priors
from provi.result.summary import content_note
from provi.runtime.distributed import joined, share, started
from provi.targets.base import AbstractTarget
from provi.targets.likelihoods import (
    AbstractLikelihood,
    BernoulliLogit,
    GaussianNoise,
    LogNormalSurvival,
    NegativeBinomial,
    OrdinalLogit,
    Poisson,
    StudentT,
    Weibull,
)
from provi.targets.likelihoods.rows import log_exposure, read_weights
from provi.targets.regressions import GeneralisedLinearModel, LogisticRegression, PoissonRegression
from provi.targets.student_t_regression import NUMBERS, StudentTRegression

TITLES = {
    Model.LOGISTIC: "Logistic regression",
    Model.POISSON: "Poisson regression with the log link",
    Model.LINEAR: "Linear regression with unknown noise",
    Model.STUDENT_T: "Linear regression with Student-t noise of unknown scale and degrees of freedom",
    Model.NEGATIVE_BINOMIAL: "Negative-binomial regression with the log link and unknown dispersion",
    Model.MULTINOMIAL: "Multinomial logistic regression",
    Model.ORDINAL: "Ordinal logistic regression (proportional odds) with unknown cut points",
    Model.WEIBULL: "Weibull regression of times (proportional hazards) with unknown shape",
    Model.EXPONENTIAL: "Exponential regression of times (proportional hazards)",
    Model.LOG_NORMAL: "Log-normal regression of times with unknown scale",
}
_KINDS = {Model.LINEAR: "gaussian", Model.STUDENT_T: "gaussian", Model.LOG_NORMAL: "log time"}
_NUMBERS = {"sigma": "scale", "dispersion": "dispersion", "shape": "shape"}
"""Names that people see of a likelihood's numbers, and its fields."""

_LARGEST_PROCESS, _LARGEST_DENSE, _PRIORS_SAID = 5000, 1000, 8


@dataclasses.dataclass(frozen=True)
class Problem:
    """A target to fit, where to start, and in words what it is.

    - `hyperparameters`: if any were learnt. - `priors`: in words, by name, in the table's units.
    - `original`: of a fit, its table in these units. - `summary`: of a fit, and a probability, in those of the encoded
      columns, where the target has other coordinates. - `provable`: whether a certificate is to be had.
    """

    target: AbstractTarget
    words: str
    start: Any = None
    hyperparameters: dict[str, float] = dataclasses.field(default_factory=dict)
    priors: dict[str, str] = dataclasses.field(default_factory=dict)
    original: Callable[[Any], RegressionSummary | None] | None = None
    moved: tuple[np.ndarray, np.ndarray] | None = None
    summary: Callable[..., RegressionSummary] | None = None
    provable: bool = True


def make_problem(data: TableData, options: TableOptions, seed: int, progress: bool | None) -> Problem:
    """The target of a model, with its hyperparameters learnt where it has some."""
    model, prior_scale = options.model, options.prior_scale
    if model not in TITLES:
        for option in ("prior_scale", "prior"):
            if getattr(options, option):
                name = option.replace("_", "-")
                raise ValueError(f"--{name} is for regressions: a Gaussian process learns its amplitude.")
        return _process(data, seed, progress)
    if prior_scale is not None and not 0 < prior_scale < np.inf:
        raise ValueError(f"--prior-scale must be a positive number, not {prior_scale:g}.")
    if "intercept" in data.features.names:
        raise ValueError("A column is called 'intercept', as the intercept itself is: rename or --drop it.")
    return _regression(data, options)


def read_priors(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=PRIOR` of --prior, by name; a name may hold = itself, as `ward=south` does."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, prior = text.rpartition("=")
        if not equals or not name.strip():
            raise ValueError(f"--prior must be NAME=PRIOR, such as 'age=normal(0,1)', not {text!r}.")
        if name.strip() in found:
            raise ValueError(f"--prior names {name.strip()!r} twice.")
        found[name.strip()] = prior
    return found


def _regression(data: TableData, options: TableOptions) -> Problem:
    model, features, y, rows = options.model, data.features, data.response.values, data.rows
    assert model is not None
    columns = [column for column in features.columns for _ in column.feature_names]
    units, centres = np.array([c.scale for c in columns]), np.array([c.centre for c in columns])
    offset, weights = rows.get("offset"), rows.get("weights")
    weights = None if weights is None else read_weights(weights, len(y))
    if "exposure" in rows:
        offset = log_exposure(Poisson(), rows["exposure"], offset, len(y))
    kind = "counts" if model in COUNTS else _KINDS.get(model, "hazard" if model in TIMES else "other")
    if data.stream is None:
        location = response_location(kind, y, 0.0 if offset is None else offset, weights)
        matrix = features.values
    else:
        found = data.stream.rows
        centres_of_all, spreads = found.centres, found.spreads
        rate = float(np.log((found.num_rows * found.response_mean + 0.5) / found.num_rows))  # as of counts in memory
        if found.num_numbers > 1:
            centres_of_all, spreads, rate = found.weighted_moments()
        location = (rate, 1.0) if kind == "counts" else (0.0, 1.0)
        # Two rows with the means and deviations of all.
        matrix = centres_of_all + np.array([[-1.0], [1.0]]) * spreads
    given, ordinal = read_priors(options.prior), model is Model.ORDINAL
    likelihood = _likelihood(model, location[1], len(data.classes))
    robust = model is Model.STUDENT_T
    unknown = {} if model is Model.EXPONENTIAL or robust else default_numbers(likelihood, location[1])
    if ordinal:
        from provi.targets import latent

        gaps = (latent.LogNormal(0.0, 1.0),) * (len(data.classes) - 2)
        unknown = {"cutpoints": (latent.Normal(0.0, 3.0), *gaps)}
    for name in [name for name in given if _NUMBERS.get(name) in unknown]:
        unknown[_NUMBERS[name]] = read_prior(name, given.pop(name))
    own = {name: given.pop(name) for name in NUMBERS if robust and name in given}
    priors = weak_priors(
        matrix, features.names, location, intercept=not ordinal, weights=weights, given=given, units=units
    )
    if options.prior_scale is not None:
        if given:
            raise ValueError("--prior-scale sets all coefficients, and --prior single ones: give one of them.")
        priors = dataclasses.replace(priors, factor=np.full(len(units), options.prior_scale))
    table = {"names": features.names, "intercept": True, "weights": weights, **priors.arguments()}
    nested, words_of = None, {}
    if data.stream is not None:
        table = priors.arguments()
    if model is Model.MULTINOMIAL:
        from provi.targets.multinomial import MultinomialLogistic

        target: AbstractTarget = MultinomialLogistic(features.values, y, classes=data.classes, **table)
    elif robust:
        rows_of = {"offset": offset, "weights": weights, "names": features.names}
        target, words_of = student_t_target(features.values, y, priors, location[1], own, **rows_of)
    elif unknown:
        nested = nested_problem(
            features.values, y, likelihood, unknown, priors, offset=offset, weights=weights, centred=ordinal
        )
        target = nested.target
    else:
        kinds = {Model.LOGISTIC: LogisticRegression, Model.POISSON: PoissonRegression}
        X = features.values if data.stream is None else data.stream
        if data.stream is not None and jax.distributed.is_initialized():
            target = _of_all_processes(data.stream.rows, kinds[model], table)
        elif model in kinds:
            target = kinds[model](X, y, offset=offset, **table)
        else:
            target = GeneralisedLinearModel(X, y, likelihood, offset=offset, **table)
    said = {**priors.words, **(words_of if nested is None else nested.words)}
    listed = [f"{name} {text}" for name, text in list(said.items())[:_PRIORS_SAID]]
    more = f", and {len(said) - _PRIORS_SAID} more (--json)" if len(said) > _PRIORS_SAID else ""
    words = f"{TITLES[model]}. Priors, in the units of the table: {', '.join(listed)}{more}."

    def original(result: Any) -> RegressionSummary | None:
        return _original_units(result, target, nested, features.names, units, centres, likelihood)

    def encoded(result: Any, probability: float = 0.94) -> RegressionSummary:
        assert nested is not None
        names = features.names if ordinal else ("intercept", *features.names)
        found = nested.predictor(result.posterior), names, nested.numbers(result.posterior)
        notes = content_note(result.posterior, probability)
        return dataclasses.replace(mixture_summary(*found, probability, None), notes=notes)

    if nested is None:
        return Problem(target, words, priors=said, original=original, provable=not robust)
    moved = nested.centre, nested.mean
    return Problem(target, words, priors=said, original=original, summary=encoded, moved=moved)


def _likelihood(model: Model, unit: float, classes: int) -> AbstractLikelihood:
    """Its unknown numbers at a first guess."""
    match model:
        case Model.LINEAR:
            return GaussianNoise(unit)
        case Model.STUDENT_T:
            return StudentT()
        case Model.POISSON:
            return Poisson()
        case Model.NEGATIVE_BINOMIAL:
            return NegativeBinomial(1.0)
        case Model.ORDINAL:
            return OrdinalLogit(np.linspace(-1.5, 1.5, classes - 1) if classes > 2 else np.zeros(1))
        case Model.WEIBULL | Model.EXPONENTIAL:
            return Weibull(1.0)
        case Model.LOG_NORMAL:
            return LogNormalSurvival(unit)
    return BernoulliLogit()


def _of_all_processes(rows: Any, make: Any, prior: Mapping[str, Any]) -> AbstractTarget:
    """The model of a table that was read in blocks, of which every process holds its own rows only.

    Of a single process all of them: it can go on from a checkpoint of several.
    """
    own = share(rows.num_rows)
    design, (response, *numbers) = rows.run_of(own.start, own.stop)
    offset = None if rows.offset is None else numbers[0]
    weights = None if rows.weights is None else numbers[-1]
    target = make(design, response, names=rows.names, offset=offset, weights=weights, **prior)
    return joined(target) if started() else target


def _original_units(
    result: Any,
    target: Any,
    nested: NestedProblem | None,
    names: tuple[str, ...],
    units: np.ndarray,
    centres: np.ndarray,
    likelihood: AbstractLikelihood,
) -> RegressionSummary | None:
    """Coefficients of the columns as they are in the table, with ratios; None where the covariance is too large."""
    posterior, width = result.posterior, len(names)
    if target.dim > _LARGEST_DENSE:
        return None
    numbers, copies, labels = {}, 1, names
    if nested is not None:
        predictor, numbers = nested.predictor(posterior), nested.numbers(posterior)
    else:
        robust = isinstance(target, StudentTRegression)
        numbers = log_normal_numbers(posterior, NUMBERS) if robust else {}
        predictor = one_node(posterior, target.dim - len(numbers), likelihood, True)
        copies = (target.dim - len(numbers)) // (width + 1)
    back = np.diag(1 / units)
    if predictor.intercept:
        # b + w'(x - c)/s = (b - sum c w/s) + (w/s)'x.
        back = np.block([[np.ones((1, 1)), -(centres / units)[None, :]], [np.zeros((width, 1)), back]])
        labels = ("intercept", *names)
    if hasattr(target, "classes"):  # several labels: coefficients of each but the first
        labels = tuple(f"{label}: {name}" for label in target.classes[1:] for name in labels)
        back = np.kron(np.eye(copies), back)
    found = mixture_summary(predictor.transformed(back), labels, numbers, 0.94, ratio_word(likelihood))
    if "cutpoint[1]" in numbers:
        found = dataclasses.replace(found, notes=("Cut points are those at the columns' means.",))
    return found


def original_document(summary: RegressionSummary) -> dict[str, Any]:
    """The table in the units of the file as plain data."""
    rows = [{"name": name, **row} for name, row in summary.to_dict().items()]
    return {"ratio": summary.ratio, "parameters": rows}


def _process(data: TableData, seed: int, progress: bool | None) -> Problem:
    """Squared-exponential kernel with one length scale; labels 0 and 1 by the logit, numbers with Gaussian noise."""
    from provi.kernels import SquaredExponential
    from provi.models.gp.hyperparameters import learn_hyperparameters
    from provi.targets.gaussian_process import GaussianProcess

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


def fit_missing(
    data: TableData, tol: float, seed: int, progress: bool, report: Path | None = None, call: str | None = None
) -> Answer:
    """Fit the model of `MissingLogisticRegression` with its exact solver, without scikit-learn; write its `report`."""
    from provi.models.missing.estimation import TableFit

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            values, labels = data.features.values, data.response.values.astype(int)
            model: Any = TableFit(values, labels, data.features.names, tol=tol, seed=seed, progress=progress)
        except ValueError as error:
            raise ValueError(_by_name(str(error), data.features.names)) from error
    notes = tuple(" ".join(str(warning.message).split()) for warning in caught)
    summary = model.summary()

    def show(console: Console) -> None:
        print_plain(console, *data.description(), summary.title, "", summary.table(), *(f"Note: {n}" for n in notes))
        print_plain(console, *(["", f"Wrote {report}."] if report is not None else []))

    document: dict[str, Any] = {
        "data": data.to_dict(),
        "log_likelihood": model.log_likelihood_,
        "estimated_gap": model.gap_,
        "converged": model.converged_,
        "coefficients": [{"name": name, **row} for name, row in summary.to_dict().items()],
        "notes": notes,
        "files": {} if report is None else {"report": str(report)},
    }
    verdict = dataclasses.replace(_verdict(model, tol), warnings=notes)
    if report is not None:
        from provi.report.html.page import write_missing_report

        described = table_description(data, f"{summary.title.splitlines()[0]} Maximum likelihood.")
        write_missing_report(
            summary, data.features.values, report, sentence=verdict.sentence, good=verdict.good,
            description=described, notes=notes, call=call,
        )  # fmt: skip
    return Answer(verdict, document, show)


def _by_name(message: str, names: Sequence[str]) -> str:
    """An error about columns by number, with their names instead, and without remedies that only Python has."""

    def named(found: re.Match) -> str:
        return re.sub(r"\d+", lambda number: repr(names[int(number[0])]), found[0])

    numbered = r"columns? \d+(?:(?:, | and )\d+(?! more))*"
    return re.sub(numbered, named, message.partition(", or give rank=")[0].rstrip(".")) + "."


def _verdict(model: Any, tol: float) -> Verdict:
    grounds = "The likelihood of incomplete rows is not log-concave, and this model has no certificate"
    if model.separated_:
        words = f"Not converged: the labels are separated, and no maximum exists. {grounds}."
        return Verdict("not certified", words, False)
    state, word = ("Converged", "converged") if model.converged_ else ("Not converged", "not certified")
    gap = f"the gap to the maximum is estimated at {model.gap_:.2g} nats (tol = {tol:g}), not proven"
    return Verdict(word, f"{state}: {gap}. {grounds}.", bool(model.converged_))
