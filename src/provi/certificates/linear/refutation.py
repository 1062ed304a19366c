"""What the user declared of a likelihood, contradicted by its slopes where q has its mass."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.certificates.certificate import Counterexample
from provi.core.compilation import quick_jit


class LinkCounterexample(Counterexample):
    """Of one datum's term: `point` is (eta,), `direction` (y,)."""

    def __str__(self) -> str:
        side = "least" if self.curvature < self.claimed else "most"
        return (
            f"the second derivative of -log_prob(y = {self.direction[0]:.6g}, eta) in eta is {self.curvature:.4g} near "
            f"eta = {self.point[0]:.6g}, where at {side} {self.claimed:.4g} was declared"
        )


def link_counterexample(likelihood: Any, centre: Any, variance: Any, response: Any) -> Counterexample | None:
    """The datum whose second derivative between two nodes of N(centre, variance) is farthest beyond the declared limit.

    Only for a user's likelihood: those of the package are log-concave by proof.
    """
    if not hasattr(likelihood.plain, "contradiction"):
        return None
    centre, variance, response = (np.asarray(x, np.float64) for x in (centre, variance, response))
    likelihood, *moved = likelihood.seen(centre, response)
    centre, response = (np.asarray(x) for x in moved)
    place, found, limit = (np.asarray(x) for x in _contradiction(likelihood, centre, variance, response))
    beyond = np.nan_to_num(np.abs(found - limit), nan=0.0)
    worst = int(np.argmax(beyond))
    if not beyond[worst] > 0:
        return None
    row = slice(worst, worst + 1)
    return LinkCounterexample(place[row], response[row], float(found[worst]), float(limit[worst]))


@quick_jit
def _contradiction(likelihood: Any, centre: Any, variance: Any, response: Any) -> Any:
    return likelihood.contradiction(*(jnp.asarray(x) for x in (centre, variance, response)))
