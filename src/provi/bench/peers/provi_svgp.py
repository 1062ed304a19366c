"""ProVI with inducing points: nothing is tuned, the proven gap is at most `setting`."""

from typing import Any

import provi
from provi.bench.gp_problem import SparseGPProblem
from provi.bench.protocol import Recorder, serve


def solve(problem: SparseGPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the arrays to the certified answer, a Gaussian on the whitened inducing values."""
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
    return {
        "certified_gap": fit.certificate.gap,
        "certificate": fit.certificate.status,
        "elbo": float(fit.elbo),
        "outcome": fit.outcome.name,
        "message": fit.message,
    }


if __name__ == "__main__":
    serve(solve, SparseGPProblem.load)
