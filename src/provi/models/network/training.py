"""Training a Bayesian network: target, surrogates, algorithm, run, and the ELBO of what came out."""

import dataclasses
import warnings
from typing import Any

import equinox as eqx
import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from provi.algorithms.network_surrogate import NetworkPoint, NetworkSurrogate, network_surrogate
from provi.core.checks import check_count, check_positive
from provi.core.outcomes import Outcome
from provi.families.parameters import AnyParameters
from provi.models.network.methods import make_algorithm
from provi.result.estimate import Estimate
from provi.runtime.progress import show_throughput
from provi.runtime.run import Run, run
from provi.schedules.batch_sizes import AbstractBatchSize
from provi.targets.bayesian_network import BayesianNetwork, check_noise

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
