"""A target without its data, in a form that can be pickled: the structure of a pytree, which it holds, cannot."""

from typing import Any

import numpy as np

from provi.targets.bayesian_network import BayesianNetwork


def pack(target: BayesianNetwork) -> dict[str, Any]:
    """The network and the numbers of the target, and one row of the data, which is what predictions need."""
    network = target.network.unravel(target.start)
    function = target.network.apply
    return {
        "network": network if function is None else function,
        "params": None if function is None else network,
        "X": np.asarray(target.inputs[:1]),
        "y": np.asarray(target.outputs[:1]),
        "likelihood": "categorical" if target.categorical else "gaussian",
        "noise_sd": float(target.noise_sd),
        "prior_sd": float(target.prior_sd),
    }


def unpack(packed: dict[str, Any]) -> BayesianNetwork:
    """The inverse of `pack`, but for the data: `num_terms` is 1."""
    return BayesianNetwork(**packed)
