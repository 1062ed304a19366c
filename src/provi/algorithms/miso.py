"""MISO (Mairal 2015; paper 001, algorithm 1): minimisation by incremental surrogates with exact expectations."""

from typing import Any

import equinox as eqx

from provi.algorithms.incremental import AbstractIncremental
from provi.algorithms.incremental_state import as_refresh, as_sampling
from provi.algorithms.surrogates import AbstractSurrogate
from provi.certificates.guarantee import Guarantee
from provi.schedules.batch_sizes import AbstractBatchSize, ConstantBatch


class MISO(AbstractIncremental):
    r"""Incremental majorisation: `MISSO` with infinitely many draws.

    Minimises $n^{-1}\sum_iL_i(\theta)$ over a convex set; the update is that of `MISSO` with the surrogates themselves.
    With b = n it is majorisation-minimisation (EM), with b = 1 Neal and Hinton's incremental EM.

    **Arguments:** as of `MISSO`.

    **Requires** an `AbstractSurrogate` with `expect`, or one whose `build` needs no summary.
    **Guarantee**: the mean surrogate, which is above the objective, falls at each visit; Theorem 1 without its noise
    for uniform sampling (`provi.theory.misso`). **Cost per step** b surrogates and one minimisation, whatever n is.
    **Reference**: Mairal, Incremental majorization-minimization optimization, SIAM J. Optim. 25, 2015.
    """

    sampling: Any = eqx.field(default=None, converter=as_sampling)
    constraint: Any = None
    refresh_every: Any = eqx.field(default=1, converter=as_refresh)
    curvature: Any = None
    num_draws: AbstractBatchSize = eqx.field(default_factory=lambda: ConstantBatch(1))
    guarantee: Guarantee | None = eqx.field(static=True, default=None)
    surrogate: AbstractSurrogate | None = None
    for_target: bool = eqx.field(static=True, default=False)

    def first_chains(self, key, surrogate, parameters, rows, prepared):
        return None

    def summarise(self, key, surrogate, parameters, rows, prepared, chains, num_draws):
        return surrogate.expect(parameters, rows, prepared), chains
