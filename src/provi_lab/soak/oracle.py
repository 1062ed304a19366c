"""A certificate held against the truth: the ELBO of better members, and KL and evidence by quadrature."""

import math
from typing import Any

import numpy as np
from scipy import special

import provi
from provi_lab.bench.distance_oracle import LinearPosterior, Truth, grid_log_evidence, truth
from provi_lab.soak.tally import ViolationError

CONFIDENCE = 1 - 1e-6
"""Of the certificates that are held against the truth: one false alarm in a million, where they are from draws."""

_ROUNDING, _PANELS = 1e-12, (10, 13)


def check_sane(fit: provi.Fit, certificate: Any = None) -> None:
    """What must hold of every fit, whatever the problem: no number that is none behind an outcome that is good.

    `certificate`: where it is not that of the fit.
    """
    certificate = fit.certificate if certificate is None else certificate
    for name, value in (("gap", certificate.gap), ("kl", certificate.kl)):
        if value is not None and not value >= 0:
            raise ViolationError(f"certificate.{name} is {value}")
    if not fit.outcome.ok:
        if (
            fit.certificate.gap is not None
            and fit.certificate.status == "proven"
            and not math.isfinite(float(fit.elbo))
        ):
            raise ViolationError(f"a proven gap of {fit.certificate.gap} with an ELBO of {float(fit.elbo)}")
        return
    numbers = np.concatenate([np.ravel(fit.posterior.mean), np.ravel(fit.posterior.standard_deviation)])
    if not (math.isfinite(float(fit.elbo)) and np.all(np.isfinite(numbers))):
        raise ViolationError(f"outcome {fit.outcome.name} with an ELBO of {float(fit.elbo)} and numbers {numbers}")


def check_against(
    certificate: Any, posterior: LinearPosterior, member: Any, better: list[Any], plane: bool = True
) -> str:
    """Hold a certificate of the Gaussian `member`, (mean, covariance), against the truth; "verified" or why not.

    The gap is at least what any other Gaussian's ELBO is higher, so that each of `better` is a test of it, whoever
    found it. All ELBOs are the oracle's.

    **Arguments:**

    - `plane`: whether the KL in two dimensions is worth a second of quadrature.
    """
    mean, covariance = (np.asarray(part, np.float64) for part in member)
    with np.errstate(all="ignore"):
        try:
            elbo = posterior.elbo(mean, covariance)
            size = abs(elbo) + len(mean) + _size(posterior, mean)
            highest = max((posterior.elbo(*other) for other in better), default=-math.inf)
        except np.linalg.LinAlgError:
            return "beyond the oracle"
    if not (math.isfinite(elbo) and math.isfinite(size)):
        return "beyond the oracle"
    error = 32 * float(np.finfo(float).eps) * size + 1e-10
    if certificate.gap is not None and certificate.gap < highest - elbo - error:
        raise ViolationError(f"gap {certificate.gap} ({certificate.status}) is below the truth, {highest - elbo}")
    if certificate.kl is None or len(mean) > (2 if plane else 1):
        return "gap verified"
    with np.errstate(all="ignore"):
        try:
            found = _truth(posterior, mean, covariance, elbo)
        except (np.linalg.LinAlgError, ValueError, FloatingPointError):
            return "gap verified"
    if not (found.reliable and math.isfinite(found.kl)):
        return "gap verified"
    error += found.error
    if certificate.kl < found.kl - error:
        raise ViolationError(f"KL {certificate.kl} ({certificate.status}) is below the truth, {found.kl} +- {error}")
    return "gap and KL verified"


def _size(posterior: LinearPosterior, mean: np.ndarray) -> float:
    """Of what the oracle adds up, before it cancels: of a count of 1e11, y eta and log y! are 1e12 and differ by 20."""
    eta = mean @ posterior.design.T
    size = float(np.abs(posterior.terms(eta)).sum())
    if posterior.link in ("poisson", "binomial"):
        parts = (posterior.response * eta, special.gammaln(posterior.response + posterior.parameter))
        size += 2 * float(sum(np.abs(part).sum() for part in parts))
    return size


def _truth(posterior: LinearPosterior, mean: np.ndarray, covariance: np.ndarray, elbo: float) -> Truth:
    """As the benchmark's, but for two dimensions on a grid that takes a tenth of a second; with its own error."""
    if len(mean) == 1 or posterior.link == "gaussian":
        return truth(posterior, mean, covariance)
    coarse, fine = (grid_log_evidence(posterior, panels) for panels in _PANELS)
    error = 3 * abs(fine - coarse) + _ROUNDING * (abs(fine) + len(posterior.response)) + 1e-10
    return Truth(fine - elbo, fine, error, "quadrature", error < max(1e-6, 0.01 * (fine - elbo)))


def gaussian_of(fit: provi.Fit) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the answer."""
    return np.asarray(fit.posterior.mean, np.float64), np.asarray(fit.posterior.covariance, np.float64)
