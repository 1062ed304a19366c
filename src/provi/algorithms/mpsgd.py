"""Minibatch projected SGD with a block preconditioner and dynamic batches (paper 004)."""

import dataclasses
from typing import Any

import equinox as eqx

from provi.algorithms.base import check_parts, planned
from provi.algorithms.mpsgd_theorems import plan_mpsgd, plan_mpsgd_dynamic
from provi.algorithms.nondegenerate import (
    check_projected,
    known_smallest_scale,
    optional_positive,
    project_point,
)
from provi.algorithms.stochastic_proximal import AbstractStochasticProximal
from provi.certificates.guarantee import Guarantee
from provi.estimators.base import AbstractEstimator
from provi.estimators.entropy import Entropy
from provi.families.location_scale import LocationScale
from provi.geometry.preconditioner import BlockPreconditioner
from provi.schedules.averaging import AbstractAveraging, LastIterate
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size
from provi.schedules.sampling import AbstractSampling
from provi.schedules.step_sizes import AbstractStepSize, as_step_size
from provi.targets.base import AbstractTarget


class MPSGD(AbstractStochasticProximal):
    r"""Minimises f(w) = E_q[potential] - log det C by preconditioned minibatch projected gradients.

    w_{k+1} = proj_{W_M}(w_k - gamma_k Lambda g_k), g_k the mean of N_k draws, Lambda = (1, lambda_C) by blocks.

    **Requires** as `ProjSGD`; the guarantees also need the `Entropy` estimator and a finite kurtosis of the base.
    **Guarantee** (paper 004, with our corrections): with E = sum N_k gradient evaluations, E f(avg) - f* =
    O(1/sqrt(E)) (Theorems 4 and 6); with growing batches, rates arbitrarily close to that and almost-sure
    convergence when sum gamma_k^2/N_k is finite (Theorem 7).
    **Cost per step** on top of the N_k gradients: one O(dim^3) projection, which the batch amortises.
    Reference: Labarriere, Molinari, Villa and Rosasco (2026), equation 7.
    """

    step_size: AbstractStepSize = eqx.field(converter=as_step_size)
    num_draws: AbstractBatchSize = eqx.field(converter=as_batch_size, default=1)
    # Made when it is asked for: it holds arrays, and `import provi` must not start JAX, after which forks hang.
    preconditioner: BlockPreconditioner = eqx.field(default_factory=BlockPreconditioner)
    estimator: AbstractEstimator = Entropy()
    averaging: AbstractAveraging = LastIterate()
    smallest_scale: Any = eqx.field(converter=optional_positive("smallest_scale"), default=None)
    anchored: bool = eqx.field(static=True, default=False)
    data_sampling: AbstractSampling | None = None
    guarantee: Guarantee | None = None

    @classmethod
    def from_theorem(cls, target: AbstractTarget, family: LocationScale, **options: Any) -> "MPSGD":
        """Step, batch, preconditioner and averaging of Theorem 4: see `plan_mpsgd` for the options."""
        return planned(cls(**plan_mpsgd(target, family, **options)), target, family)

    @classmethod
    def dynamic(cls, target: AbstractTarget, family: LocationScale, **options: Any) -> "MPSGD":
        """The three dynamic strategies of Theorem 7: see `plan_mpsgd_dynamic` for the options."""
        return planned(cls(**plan_mpsgd_dynamic(target, family, **options)), target, family)

    def resolve(self, target, family):
        check_parts(target, family, self.data_sampling)
        check_projected("MPSGD", self.estimator, family)
        if self.smallest_scale is not None:
            return self
        return dataclasses.replace(self, smallest_scale=known_smallest_scale("MPSGD", target))

    def precondition(self, gradient):
        return self.preconditioner(gradient)

    def operator(self, point, step_size):
        del step_size  # a projection does not depend on it
        return project_point(point, self.smallest_scale)
