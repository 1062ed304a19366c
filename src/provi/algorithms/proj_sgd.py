"""Projected stochastic gradient descent on the non-degenerate scales."""

import dataclasses
from typing import Any

import equinox as eqx

from provi.algorithms.base import check_parts, planned
from provi.algorithms.nondegenerate import (
    check_projected,
    known_smallest_scale,
    optional_positive,
    project_point,
)
from provi.algorithms.proj_sgd_theorems import plan_proj_sgd
from provi.algorithms.stochastic_proximal import AbstractStochasticProximal
from provi.certificates.guarantee import Guarantee
from provi.estimators.base import AbstractEstimator
from provi.estimators.entropy import Entropy
from provi.families.location_scale import LocationScale
from provi.schedules.averaging import AbstractAveraging, LastIterate
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size
from provi.schedules.sampling import AbstractSampling
from provi.schedules.step_sizes import AbstractStepSize, as_step_size
from provi.targets.base import AbstractTarget


class ProjSGD(AbstractStochasticProximal):
    r"""Minimises f(w) = E_q[potential] - log det C by projected stochastic gradients.

    w_{t+1} = proj_{W_M}(w_t - gamma_t g_t), g_t an estimate of grad f, W_M = {sigma_min(C) >= 1/sqrt(M)}.

    **Requires** an estimator of grad f (`Entropy`, `StickingTheLanding`), a symmetric or diagonal scale (the set W_M
    is not convex for triangular ones; a low-rank scale runs without a guarantee) and the target's smoothness M.
    **Guarantee** (paper 003): E f(avg) - f* = O(1/sqrt(T)) (Theorem 11), E|w_T - w*|^2 = O(1/T) with strong convexity
    (Theorem 10), linear convergence with `StickingTheLanding` on a Gaussian target (Corollary 14).
    **Cost per step** on top of the gradient: O(dim^3) (symmetric), O(dim) (diagonal).
    Reference: Domke, Garrigos and Gower (2023), Definition 9.

    **Arguments:**

    - `smallest_scale`: 1/sqrt(M); None takes it from the target's constants.
    - the others as in `ProxSGD`.
    """

    step_size: AbstractStepSize = eqx.field(converter=as_step_size)
    num_draws: AbstractBatchSize = eqx.field(converter=as_batch_size, default=1)
    estimator: AbstractEstimator = Entropy()
    averaging: AbstractAveraging = LastIterate()
    smallest_scale: Any = eqx.field(converter=optional_positive("smallest_scale"), default=None)
    anchored: bool = eqx.field(static=True, default=False)
    data_sampling: AbstractSampling | None = None
    guarantee: Guarantee | None = None

    @classmethod
    def from_theorem(cls, target: AbstractTarget, family: LocationScale, **options: Any) -> "ProjSGD":
        """Step size, batch and averaging from the target's constants: see `plan_proj_sgd` for the options."""
        return planned(cls(**plan_proj_sgd(target, family, **options)), target, family)

    def resolve(self, target, family):
        check_parts(target, family, self.data_sampling)
        check_projected("ProjSGD", self.estimator, family)
        if self.smallest_scale is not None:
            return self
        return dataclasses.replace(self, smallest_scale=known_smallest_scale("ProjSGD", target))

    def precondition(self, gradient):
        return gradient

    def operator(self, point, step_size):
        del step_size  # a projection does not depend on it
        return project_point(point, self.smallest_scale)
