"""ProVI told that the target is a Gaussian process: nothing is tuned, the proven gap is at most `setting`."""

from typing import Any

import provi
from provi.bench.gp_problem import GPProblem
from provi.bench.protocol import Recorder, serve


def solve(problem: GPProblem, setting: float, record: Recorder) -> dict[str, Any]:
    """From the arrays to the certified answer; the certificate's time counts."""
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
    return {
        "certified_gap": fit.certificate.gap,
        "certificate": fit.certificate.status,
        "num_steps": fit.num_steps,
        "elbo": float(fit.elbo),
        "outcome": fit.outcome.name,
        "message": fit.message,
    }


if __name__ == "__main__":
    serve(solve, GPProblem.load)
