"""The true optimality gap of a Gaussian, by quadrature: what every method is judged by, after its run."""

import dataclasses

import numpy as np

from provi.bench.protocol import Problem
from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.optimum import linear_model_optimum
from provi.families.location_scale import Gaussian, LocationScale
from provi.targets.regressions import LogisticRegression


@dataclasses.dataclass(frozen=True)
class Oracle:
    """The exact optimum of a problem over the Gaussians of one scale ("triangular" is any covariance)."""

    target: LogisticRegression
    family: LocationScale
    negative_elbo: float

    @staticmethod
    def of(problem: Problem, scale: str = "triangular") -> "Oracle":
        """Solve the problem, in seconds where the dimension is a few hundred."""
        target = LogisticRegression(problem.design, problem.response, problem.prior_scale)
        family = Gaussian(problem.dim, scale)
        return Oracle(target, family, linear_model_optimum(target, family).negative_elbo)

    def gap(self, mean: np.ndarray, covariance: np.ndarray) -> float:
        """f(m, C) - f* in nats; infinite where the covariance is not positive definite or something is not finite."""
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            return np.inf
        symmetric = (covariance + covariance.T) / 2
        try:
            point = self.family.point_from_covariance(mean, symmetric)
        except ValueError:
            return np.inf
        value = float(exact_negative_elbo(self.target, self.family, point))
        return value - self.negative_elbo if np.isfinite(value) else np.inf
