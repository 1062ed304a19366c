"""What both ways of running ProVI share: one call of `provi.fit`, one snapshot, and what the fit says of itself."""

from typing import Any

import provi
from provi.bench.protocol import Recorder


def fit_and_record(target: Any, tol: float, record: Recorder) -> dict[str, Any]:
    """Fit to the tolerance and record the answer, certificate and all: the certificate's time counts."""
    fit = provi.fit(target, tol=tol, progress=False)
    record(fit.posterior.mean, fit.posterior.covariance, fit.gradient_evaluations)
    return {
        "certified_gap": fit.certificate.gap,
        "certificate": fit.certificate.status,
        "num_steps": fit.num_steps,
        "gradient_evaluations": fit.gradient_evaluations,
        "elbo": float(fit.elbo),
        "scale": fit.posterior.family.scale,
        "outcome": fit.outcome.name,
        "message": fit.message,
    }
