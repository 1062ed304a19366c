"""Training a Bayesian network: the methods by name, target, surrogates, algorithm, run, the ELBO of what came out."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from provi.algorithms.base import AbstractAlgorithm
from provi.algorithms.incremental.block_descent import adagrad, adam, bayes_by_backprop, momentum
from provi.algorithms.incremental.misso import MISSO
from provi.algorithms.incremental.network_surrogate import NetworkPoint, NetworkSurrogate, network_surrogate
from provi.algorithms.incremental.paced_misso import PacedMISSO
from provi.algorithms.incremental.sag import SAG
from provi.core.arguments import check_count, check_positive
from provi.families.base import AnyParameters
from provi.result.fit import Estimate
from provi.runtime.record import Outcome, show_throughput
from provi.runtime.run import Run, run
from provi.schedules.batch_sizes import AbstractBatchSize
from provi.targets.bayesian_network import BayesianNetwork, check_noise


@dataclasses.dataclass(frozen=True)
class Method:
    """How an algorithm is made from a rate and draws a visit, and its default rate.

    MISSO's default is for one block and is multiplied by their number: with B blocks and the rate r its parameters
    move about as those of SAG with r / B.
    """

    make: Callable[..., AbstractAlgorithm]
    rate: float


def _paced(rate: float, num_draws: Any) -> PacedMISSO:
    return PacedMISSO(rule=adam(rate).rule, rate=rate, num_draws=num_draws)


def _misso(rate: float, num_draws: Any) -> MISSO:
    del rate  # the curvature of the surrogates has it
    return MISSO(sampling=1, num_draws=num_draws)


METHODS = {
    "paced": Method(_paced, 0.01),
    "adam": Method(lambda rate, num_draws: adam(rate, num_draws=num_draws), 0.01),
    "momentum": Method(lambda rate, num_draws: momentum(rate, num_draws=num_draws), 0.03),
    "bbb": Method(lambda rate, num_draws: bayes_by_backprop(rate, num_draws=num_draws), 0.3),
    "adagrad": Method(lambda rate, num_draws: adagrad(rate, num_draws=num_draws), 0.05),
    "sag": Method(lambda rate, num_draws: SAG(rate=rate, num_draws=num_draws), 0.01),
    "misso": Method(_misso, 0.01),
}
"""Rates at which LeNet-5 on 3,840 digits and a small perceptron both train; SAG and MISSO broke down on the former from
about ten times theirs."""


def make_algorithm(method: Any, rate: Any, num_draws: Any, num_blocks: int) -> tuple[AbstractAlgorithm, float]:
    """The algorithm and the rate of the surrogates, 1/L, which `MISSO` alone makes use of.

    **Arguments:**

    - `method`: a name, or an algorithm over the blocks, used as it is. - `rate`: None for the method's own.
    """
    rate = None if rate is None else check_positive("rate", rate)
    if isinstance(method, AbstractAlgorithm):
        if rate is not None and not isinstance(method, MISSO):
            raise ValueError(f"rate={rate} has no effect beside an algorithm: give it to {type(method).__name__}(...).")
        return method, METHODS["misso"].rate * num_blocks if rate is None else rate
    if not isinstance(method, str) or method not in METHODS:
        names = ", ".join(map(repr, METHODS))
        raise ValueError(f"method must be one of {names}, or an algorithm such as PacedMISSO(...), not {method!r}.")
    chosen = METHODS[method]
    if rate is None:
        rate = chosen.rate * (num_blocks if method == "misso" else 1)
    return chosen.make(rate, num_draws), rate


ELBO_PARTS, ELBO_DRAWS, ELBO_ROWS = 5, 20, 20_000
"""The ELBO at the end is the mean of so many estimates, each of a pass over the data, or of more, up to so many passes
and rows, where the data are few."""

FEW_STEPS = 100
"""Below it a network has hardly left its start; a warning says so."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What `train` found: the point, its ELBO in nats in all, the run, and its records by epoch."""

    target: BayesianNetwork
    point: NetworkPoint
    sd: np.ndarray
    elbo: Estimate
    run: Run
    epochs: int
    history: dict[str, np.ndarray]


def train(model: Any, target: BayesianNetwork, seed: int) -> Trained:
    """Minimise the -ELBO per row with the options of a `provi.models.BayesianNetwork`."""
    epochs = check_count("epochs", model.epochs)
    draws = model.num_draws
    draws = draws if isinstance(draws, AbstractBatchSize) else check_count("num_draws", draws)
    num_blocks = -(-target.num_terms // min(check_count("block_size", model.block_size), target.num_terms))
    algorithm, rate = make_algorithm(model.method, model.rate, draws, num_blocks)
    surrogate = network_surrogate(
        target,
        posterior=model.posterior,
        noise=_chosen_noise(model.noise, target),
        block_size=model.block_size,
        rate=rate,
        augment=model.augment,
        kl_weight=model.kl_weight,
        table_dtype=model.table_dtype,
        devices=model.devices,
    )
    # As it resolves a sampling that is not given; the run does it again by itself.
    batch = algorithm.resolve(surrogate, AnyParameters()).sampling.batch  # pyright: ignore
    steps = max(1, epochs * surrogate.num_terms // batch)
    _warn_few(steps, epochs, surrogate, batch)
    rows = "image" if target.inputs.ndim > 2 else "row"
    with show_throughput(batch * target.num_terms / surrogate.num_terms, f"{rows}s", f"−ELBO per {rows}"):
        ended = run(
            algorithm,
            surrogate,
            AnyParameters(),
            surrogate.start(check_positive("start_sd", model.start_sd)),
            seed=seed,
            num_steps=steps,
            num_records=min(max(4 * epochs, 10), 60),
            progress=model.progress,
            checkpoint=model.checkpoint,
            resume=model.resume,
        )
    _warn_ending(ended, steps)
    share = batch / surrogate.num_terms
    return Trained(
        target,
        ended.point,
        np.asarray(surrogate.sd(ended.point)),
        measure_elbo(surrogate, ended.point, jax.random.fold_in(jax.random.key(seed), 1)),
        ended,
        max(1, round(ended.num_steps * share)),
        {
            "epoch": ended.history["step"] * share,
            "negative_elbo": -ended.history["elbo"],
            "seconds": ended.history["seconds"],
        },
    )


def measure_elbo(surrogate: NetworkSurrogate, point: NetworkPoint, key: Any) -> Estimate:
    """The ELBO in nats in all, with its Monte-Carlo error, from `ELBO_PARTS` independent estimates."""
    rows, keys = surrogate.target.num_terms, jax.random.split(key, ELBO_PARTS)
    draws = max(1, min(ELBO_DRAWS, ELBO_ROWS // rows))
    values = [-rows * float(surrogate.negative_elbo(own, point, draws)[0]) for own in keys]
    error = np.std(values, ddof=1) / ELBO_PARTS**0.5 if np.isfinite(values).all() else np.nan
    return Estimate(float(np.mean(values)), float(error))


def _chosen_noise(noise: Any, target: BayesianNetwork) -> Any:
    """For "auto": local reparameterisation of networks of linear layers alone, where it costs little.

    A network that does more with its layers than call them cannot have them replaced by noisy ones: it is tried out.
    """
    if noise != "auto":
        return noise
    network = target.network
    shapes = jax.tree.unflatten(network.structure, [jax.ShapeDtypeStruct(shape, float) for shape in network.shapes])
    nodes = jax.tree.leaves(shapes, is_leaf=lambda node: isinstance(node, eqx.nn.Linear))
    if network.apply is not None or not all(isinstance(node, eqx.nn.Linear) for node in nodes):
        return "weights"
    try:
        return check_noise("local", target)
    except ValueError:
        return "weights"


def _warn_few(steps: int, epochs: int, surrogate: NetworkSurrogate, batch: int) -> None:
    if steps < FEW_STEPS:
        warnings.warn(
            f"{epochs} epochs of {surrogate.num_terms} blocks of data are {steps} steps, too few to train a network: "
            f"set epochs={max(1, 2000 * batch // surrogate.num_terms)}, or a smaller block_size.",
            ConvergenceWarning,
            stacklevel=5,
        )


def _warn_ending(ended: Run, steps: int) -> None:
    if ended.num_steps > steps:
        warnings.warn(
            f"The checkpoint is of {ended.num_steps} steps, and epochs asks for {steps}: the longer fit is returned. "
            f"Set resume=False for a shorter one.",
            ConvergenceWarning,
            stacklevel=5,
        )
    if ended.outcome is Outcome.COMPLETED:
        return
    remedy = " Set a smaller rate, or scale X and y." if ended.outcome is Outcome.NONFINITE else ""
    warnings.warn(f"The training ended early: {ended.message}.{remedy}", ConvergenceWarning, stacklevel=5)
