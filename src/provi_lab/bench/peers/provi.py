"""ProVI itself: regressions told and as black boxes, Gaussian processes, topic models, and missing covariates."""

import resource
import sys
from typing import Any

import jax
import numpy as np

import provi
from provi.core.arguments import double_precision
from provi.runtime.run import run
from provi.structures.black_box import laplace_start
from provi_lab.bench.peers.log_density import as_data, log_density
from provi_lab.bench.problems import (
    GPProblem,
    LogisticProblem,
    MissingProblem,
    SparseGPProblem,
    TopicsProblem,
    snapshot_steps,
)
from provi_lab.bench.protocol import Recorder

_MOST_STEPS = 3000

PASSES = 2

_BATCH, _GROWTH = 64, 10

DOCUMENT_PRIOR, WORD_PRIOR = 0.1, 0.01
"""The same as for the other libraries' LDA."""

_MISSING_TOLERANCE = 0.01


def glm(problem: LogisticProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Told that the target is a logistic regression; the tolerance is `setting`."""
    target = provi.targets.LogisticRegression(problem.design, problem.response, problem.prior_scale)
    return _fit(target, setting, record)


def blackbox(problem: LogisticProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Given the log density as a function and its strong convexity, nothing else; the tolerance is `setting`."""
    density = jax.tree_util.Partial(log_density, *as_data(problem))
    target = provi.targets.LogDensity(density, problem.dim, strong_convexity=problem.prior_scale**-2.0)
    return _fit(target, setting, record)


def _fit(target: Any, tol: float, record: Recorder) -> dict[str, Any]:
    """Fit to the tolerance and record the answer, certificate and all: the certificate's time counts."""
    fit = provi.fit(target, tol=tol, progress=False)
    record(fit.posterior.mean, fit.posterior.covariance, fit.gradient_evaluations)
    return {**_facts(fit), "scale": fit.posterior.family.scale}


def _facts(fit: Any) -> dict[str, Any]:
    """What a fit says of itself."""
    return {
        "certified_gap": fit.certificate.gap,
        "certificate": fit.certificate.status,
        "num_steps": fit.num_steps,
        "gradient_evaluations": fit.gradient_evaluations,
        "elbo": float(fit.elbo),
        "outcome": fit.outcome.name,
        "message": fit.message,
    }


@double_precision
def optimiser(problem: LogisticProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """The black-box method by itself, without a certificate: Laplace start and stochastic natural gradient.

    It is timed as the peers are, by snapshots, one a step, and an oracle's stop; `setting` is the largest step.
    """
    density = jax.tree_util.Partial(log_density, *as_data(problem))
    target = provi.targets.LogDensity(density, problem.dim)
    family = provi.families.Gaussian(problem.dim)

    def watch(state: Any) -> bool:
        record(state.point.loc, state.point.scale.matrix @ state.point.scale.matrix.T)
        return record.done

    algorithm = provi.algorithms.StochasticNaturalGradient(largest_step=setting)
    start = laplace_start(target, family)
    found = run(algorithm, target, family, start, seed=0, num_steps=_MOST_STEPS, progress=False, stop=watch)
    return {"num_steps": found.num_steps, "gradient_evaluations": found.gradient_evaluations}


def gp(problem: GPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Told that the target is a Gaussian process: nothing is tuned, the proven gap is at most `setting`.

    The certificate's time counts.
    """
    target = provi.targets.GaussianProcess(
        problem.inputs,
        problem.response,
        kernel=provi.kernels.SquaredExponential(problem.length_scale, problem.amplitude),
        likelihood=provi.targets.likelihoods.BernoulliLogit(),
        jitter=problem.jitter,
    )
    fit = provi.fit(target, tol=setting, progress=False)
    with record.off_the_clock():
        mean, covariance = fit.posterior.mean, fit.posterior.covariance
    record(mean, covariance, fit.num_steps)
    return _facts(fit)


def sparse_gp(problem: SparseGPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """With inducing points: nothing is tuned, the proven gap is at most `setting`.

    The answer is a Gaussian on the whitened inducing values.
    """
    target = provi.targets.SparseGaussianProcess(
        problem.inputs,
        problem.response,
        inducing=problem.inducing,
        kernel=provi.kernels.SquaredExponential(problem.length_scale, problem.amplitude),
        likelihood=provi.targets.likelihoods.BernoulliLogit(),
        relative_jitter=problem.jitter / problem.amplitude**2,
    )
    fit = provi.fit(target, tol=setting, progress=False)
    with record.off_the_clock():
        mean, covariance = fit.posterior.mean, fit.posterior.covariance
    record(mean, covariance, fit.gradient_evaluations)
    return _facts(fit)


def ctm(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """`CorrelatedTopicModel` with its defaults; full covariance where `setting` is 1, diagonal where it is 0.

    A snapshot after some of the passes, and one when the fit has ended by itself.
    """
    with record.off_the_clock():
        from provi.models.topics.correlated_topic_model import CorrelatedTopicModel

    passes = []

    def look(model: Any) -> bool:
        passes.append(len(passes) + 1)
        if passes[-1] in steps:
            record(model.components_, problem.no_shares(), float(passes[-1]))
        return len(record.snapshots) == record.largest  # the run that times the compilation is over

    model = CorrelatedTopicModel(
        problem.num_topics, covariance=_covariance_of(setting), callback=look, random_state=problem.seed
    )
    steps = snapshot_steps(int(model.max_iter))[:-1]
    model.fit(problem.train)
    if len(record.snapshots) != record.largest:
        with record.off_the_clock():
            shares = model.transform(problem.observed)
        record(model.components_, shares, float(passes[-1]))
    return {
        "passes": passes[-1],
        "converged": bool(model.converged_),
        "elbo_a_word": float(model.elbo_[-1]) / problem.num_tokens,
    }


def ctm_passes(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """The same few passes of it at any size, which no tolerance ends, its start included; `setting` as for `ctm`.

    The snapshot holds the peak memory.
    """
    with record.off_the_clock():
        from provi.models.topics.correlated_topic_model import CorrelatedTopicModel

    model = CorrelatedTopicModel(
        problem.num_topics,
        covariance=_covariance_of(setting),
        max_iter=PASSES,
        tol=0.0,
        random_state=problem.seed,
    )
    model.fit(problem.train)
    record(_peak_mib(), 0.0, float(model.n_iter_))
    return {"tokens": problem.num_tokens}


def ctm_stream(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """Its `partial_fit` over a stream of `setting` batches drawn with replacement: does its memory grow?

    Snapshots hold the peak memory, and the documents so far, after a tenth of the batches and after all. Only one batch
    is held at a time. Making the batches is on the clock, and is little beside the rest.
    """
    with record.off_the_clock():
        from provi.models.topics.correlated_topic_model import CorrelatedTopicModel

    generator, total = np.random.default_rng(problem.seed), int(setting)
    model = CorrelatedTopicModel(problem.num_topics, random_state=problem.seed)
    for batch in range(1, total + 1):
        model.partial_fit(problem.train[generator.integers(problem.train.shape[0], size=_BATCH)])
        if batch in (total // _GROWTH, total):
            record(_peak_mib(), float(batch * _BATCH), float(batch))
        if len(record.snapshots) == record.largest:
            break  # the run that times the compilation is over
    return {}


def _covariance_of(setting: float) -> str:
    """The name that the estimator has for it."""
    return "full" if setting else "diagonal"


def _peak_mib() -> float:
    """The most memory that this process has had, in MiB; Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def lda(problem: TopicsProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """`LatentDirichletAllocation` by coordinate ascent, at most `setting` passes."""
    with record.off_the_clock():
        from provi.models import LatentDirichletAllocation

    model = LatentDirichletAllocation(
        problem.num_topics,
        doc_topic_prior=DOCUMENT_PRIOR,
        topic_word_prior=WORD_PRIOR,
        max_iter=int(setting),
        random_state=problem.seed,
    )
    model.fit(problem.train)
    with record.off_the_clock():
        shares = model.transform(problem.observed)
    record(model.components_ / model.components_.sum(axis=1, keepdims=True), shares, float(model.n_iter_))
    return {"passes": int(model.n_iter_), "converged": bool(model.converged_)}


def missing(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """`MissingLogisticRegression` to an estimated gap of `setting` nats by the exact likelihood."""
    return _fit_missing(problem, record, solver="exact", tol=setting)


def missing_misso(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """The same by MISSO; `setting` is the share of the rows visited in a step."""
    return _fit_missing(problem, record, solver="misso", batch=setting, tol=_MISSING_TOLERANCE)


def missing_mcem(problem: MissingProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """The same by Monte-Carlo EM."""
    return _fit_missing(problem, record, solver="mcem", tol=setting)


def _fit_missing(problem: MissingProblem, record: Recorder, **arguments: Any) -> dict[str, Any]:
    """From the table to estimate, standard errors and log-likelihood: the estimator always gives all of them."""
    with record.off_the_clock():
        from provi.models import MissingLogisticRegression

    model = MissingLogisticRegression(random_state=problem.seed, **arguments).fit(problem.features, problem.response)
    coefficients = np.concatenate([model.intercept_, model.coef_[0]])
    record(np.concatenate([coefficients, model.mean_]), model.covariance_, float(model.n_iter_))
    return {
        "passes": float(model.n_iter_),
        "estimated_gap": float(model.gap_),
        "converged": bool(model.converged_),
        "log_likelihood": float(model.log_likelihood_),
        "standard_errors": np.asarray(model.standard_errors_).tolist(),
    }
