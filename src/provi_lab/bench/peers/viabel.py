"""viabel: its full-rank family.

viabel's only family with a full covariance is the multivariate t; with 10^6 degrees of freedom it is a Gaussian.
"""

import importlib.util
import sys
import types
from typing import Any

import numpy as np

from provi_lab.bench.problems import LogisticProblem
from provi_lab.bench.protocol import Recorder

DRAWS = 10


def _viabel() -> Any:
    """viabel 0.5 as it is, but for two names of its time that its import needs: neither changes what is computed.

    It imports PyStan 2, used for Stan models only, which newer Pythons cannot build; and its package paragami calls
    `product`, which NumPy 2 has under the name `prod` alone.
    """
    import autograd.numpy as anp

    if "pystan" not in sys.modules and importlib.util.find_spec("pystan") is None:
        sys.modules["pystan"] = types.ModuleType("pystan")
    if not hasattr(anp, "product"):
        anp.product = anp.prod  # pyright: ignore[reportAttributeAccessIssue]
    import viabel

    return viabel


def full_rank(problem: LogisticProblem, setting: float, record: Recorder) -> None:
    """Path derivatives (STL), ten draws, its Adam at the rate `setting`.

    viabel's loop: a gradient, its optimiser's direction, and the average of the last fifth as the answer. Both the
    average and the last iterate are recorded; the better one counts.
    """
    viabel = _viabel()
    import autograd.numpy as anp

    signed = (1 - 2 * problem.response)[:, None] * problem.design

    def log_density(z: Any) -> Any:
        fit = -anp.sum(anp.logaddexp(0.0, anp.dot(z, signed.T)), axis=-1)
        return fit - 0.5 * anp.sum(z**2, axis=-1) / problem.prior_scale**2

    family = viabel.MultivariateT(problem.dim, 1e6)
    objective = viabel.ExclusiveKL(family, viabel.Model(log_density), DRAWS, use_path_deriv=True)
    optimiser = viabel.optimization.Adam(setting)
    parameters, steps = family.init_param(), 0
    total, earlier = np.zeros_like(parameters), [(0, np.zeros_like(parameters))]
    while not record.done:
        parameters = objective.update(parameters, setting * optimiser.descent_direction(objective(parameters)[1]))
        total, steps = total + parameters, steps + 1
        if record.due(steps):
            earlier.append((steps, total))
            first, before = next(pair for pair in reversed(earlier[:-1]) if pair[0] <= 0.8 * steps)
            for answer in ((total - before) / (steps - first), parameters):
                mean, covariance = family.mean_and_cov(answer)
                record(mean, covariance, steps * DRAWS)
