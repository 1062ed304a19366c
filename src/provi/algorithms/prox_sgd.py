"""Proximal stochastic gradient descent: the energy by gradients, the negative entropy by its proximal operator."""

from typing import Any

import equinox as eqx

from provi.algorithms.base import check_parts, planned
from provi.algorithms.prox_sgd_theorems import plan_prox_sgd
from provi.algorithms.stochastic_proximal import AbstractStochasticProximal
from provi.certificates.guarantee import Guarantee
from provi.estimators.base import AbstractEstimator
from provi.estimators.energy import Energy
from provi.families.location_scale import LocationScale, Point
from provi.geometry.proximal import prox_negative_entropy
from provi.schedules.averaging import AbstractAveraging, LastIterate
from provi.schedules.batch_sizes import AbstractBatchSize, as_batch_size
from provi.schedules.sampling import AbstractSampling
from provi.schedules.step_sizes import AbstractStepSize, as_step_size
from provi.targets.base import AbstractTarget


class ProxSGD(AbstractStochasticProximal):
    r"""Minimises f(w) = E_q[potential] - log det C by proximal stochastic gradients.

    w_{t+1} = prox_{gamma_t h}(w_t - gamma_t g_t), g_t an estimate of grad l, h = -log det C.

    **Requires** an estimator of grad l (`Energy`, `ScoreFunction`) and a triangular, symmetric or diagonal scale;
    the guarantees also need `Energy` and a convex, smooth potential.
    **Guarantee** (paper 003): E f(avg) - f* = O(1/sqrt(T)) (Theorem 8), E|w_T - w*|^2 = O(1/T) with strong
    convexity (Theorem 7); `from_theorem` computes the constants.
    **Cost per step** on top of the gradient: O(dim) (triangular, diagonal), O(dim^3) (symmetric).
    Reference: Domke, Garrigos and Gower (2023), Definition 6.

    **Arguments:**

    - `step_size`: a number or a schedule; `num_draws`: Monte-Carlo draws per step, a number or a schedule.
    - `averaging`: which point to return. - `anchored`: Halpern's variant (no bound is claimed for it).
    - `data_sampling`: e.g. `provi.schedules.UniformSampling(100)` to see 100 data terms per step.
    """

    step_size: AbstractStepSize = eqx.field(converter=as_step_size)
    num_draws: AbstractBatchSize = eqx.field(converter=as_batch_size, default=1)
    estimator: AbstractEstimator = Energy()
    averaging: AbstractAveraging = LastIterate()
    anchored: bool = eqx.field(static=True, default=False)
    data_sampling: AbstractSampling | None = None
    guarantee: Guarantee | None = None

    @classmethod
    def from_theorem(cls, target: AbstractTarget, family: LocationScale, **options: Any) -> "ProxSGD":
        """Step size, batch and averaging from the target's constants: see `plan_prox_sgd` for the options."""
        return planned(cls(**plan_prox_sgd(target, family, **options)), target, family)

    def resolve(self, target, family):
        check_parts(target, family, self.data_sampling)
        if self.estimator.includes_entropy:
            raise ValueError(
                f"ProxSGD treats the entropy by its proximal operator, but the estimator "
                f"'{self.estimator.name}' already contains the entropy's gradient: it would count twice. "
                f"Use estimator=provi.estimators.Energy(), or ProjSGD with this estimator."
            )
        if family.scale == "low_rank":
            raise ValueError("ProxSGD has no proximal operator for scale='low_rank': use ProjSGD or Optax.")
        self.estimator.check(family)
        return self

    def precondition(self, gradient):
        return gradient

    def operator(self, point, step_size):
        return Point(point.loc, prox_negative_entropy(point.scale, step_size))
