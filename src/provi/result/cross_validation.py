"""Leave-one-out cross-validation of a fit."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from provi.core.checks import check_count
from provi.core.memory import available_bytes
from provi.diagnostics.log_densities import log_densities
from provi.diagnostics.loo import LeaveOneOut, leave_one_out
from provi.targets.parameters import element_names

if TYPE_CHECKING:
    from provi.result.posterior import Posterior

_AT_ONCE = 1000


def cross_validate(target: Any, posterior: "Posterior", num_draws: int, seed: int) -> LeaveOneOut:
    """PSIS-LOO from `num_draws` draws of q; all observed sites of a model count, in the order of their names."""
    num_draws = check_count("num_draws", num_draws)
    size = sum(np.size(value) for value in target.observed_data.values())
    needed = 24 * num_draws * size  # the table of log-likelihoods, and what is made of it
    if needed > available_bytes():
        raise ValueError(
            f"num_draws={num_draws} for {size} data takes {needed / 2**30:.1f} GiB, more than is free: take fewer."
        )
    z = posterior.sample(num_draws, seed)
    parts = [target.log_likelihood(z[i : i + _AT_ONCE]) for i in range(0, num_draws, _AT_ONCE)]
    if not parts[0]:
        raise ValueError(
            f"loo: {type(target).__name__} does not know the log-likelihood of each datum. Take a model with a "
            f"likelihood, or call provi.diagnostics.leave_one_out with your own."
        )
    tables = [np.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(part)], axis=1) for part in parts]
    names = element_names({name: values[0] for name, values in parts[0].items()})
    log_p, log_q = log_densities(target, posterior.family, posterior.point, z)
    return leave_one_out(np.concatenate(tables), log_p - log_q, names)
