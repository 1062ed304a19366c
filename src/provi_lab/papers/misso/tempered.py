"""A setting under which the Bayesian ResNet-18 learns CIFAR-10: tempered likelihood, a sigma a weight, narrow prior.

    python -m provi_lab.papers.misso.tempered FOLDER [EPOCHS]
    python -m provi_lab.papers.misso.measuring page FOLDER_OF_2B OUTPUT FOLDER    # with it on the page of the figure

Beside paper 001's Figure 2(b), whose N(0, I) prior on eleven million weights and one sigma leave nothing to learn: the
KL counts `KL_WEIGHT` times in training (the likelihood to the power 1/`KL_WEIGHT`), and images are flipped and moved.
Its twin has the same network, steps and images, standard deviations of 1e-6 and next to no KL: a point estimate. The
-ELBO that is told is that of the untempered model and of plain images.
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.incremental.network_surrogate import network_surrogate
from provi.core.arguments import double_precision
from provi_lab.papers.misso import stepwise
from provi_lab.papers.misso.network_page import facts_of
from provi_lab.papers.misso.networks import ADAM, METHODS, NetworkProblem, cifar_problem
from provi_lab.papers.misso.tempered_page import FILE, MOST_MOVED, TEMPERED, TWIN_NAME
from provi_lab.papers.misso.training import score, trainings_of

KL_WEIGHT, PRIOR_SD, START_SD, RATE, EPOCHS, BLOCK = 1e-3, 0.1, 0.003, 1e-3, 14, 128
TWIN = {"kl_weight": 1e-12, "start_sd": 1e-6}
"""Of the point estimate."""


def augment(key: Any, x: Any) -> Any:
    """Each image flipped with probability 1/2 and moved by up to four pixels, zeros where nothing is."""
    flips, places = jax.random.split(key)
    flipped = jax.random.bernoulli(flips, shape=(x.shape[0], 1, 1, 1))
    x = jnp.where(flipped, x[:, :, ::-1], x)
    wide = jnp.pad(x, ((0, 0), (MOST_MOVED, MOST_MOVED), (MOST_MOVED, MOST_MOVED), (0, 0)))
    moves = jax.random.randint(places, (x.shape[0], 2), 0, 2 * MOST_MOVED + 1)

    def cut(image: Any, move: Any) -> Any:
        return jax.lax.dynamic_slice(image, (move[0], move[1], 0), x.shape[1:])

    return jax.vmap(cut)(wide, moves)


@double_precision
def measure(folder: Path, epochs: int = EPOCHS, problem: NetworkProblem | None = None, seed: int = 0) -> list[Any]:
    """Train both, write `tempered.json` after each; what it holds."""
    problem = cifar_problem(jnp.bfloat16) if problem is None else problem
    target = eqx.tree_at(lambda t: t.prior_sd, problem.target, jnp.asarray(PRIOR_SD, problem.target.dtype))
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Any] = []
    for name, own in ((TEMPERED, {"kl_weight": KL_WEIGHT, "start_sd": START_SD}), (TWIN_NAME, TWIN)):
        began = time.monotonic()
        surrogate = network_surrogate(
            target,
            posterior="weight",
            noise="flipout",
            block_size=BLOCK,
            augment=augment,
            kl_weight=own["kl_weight"],
        )
        steps = epochs * surrogate.num_terms

        def rate(step: int, steps: int = steps) -> float:
            return RATE * 0.5 * (1 + math.cos(math.pi * step / steps))

        means = problem.means([seed])[0]
        trace = stepwise.train(
            METHODS[ADAM], surrogate, means, rate, seed, epochs, most_draws=1, start_sd=own["start_sd"]
        )
        (curve,) = trainings_of(trace, "weight", ADAM, [RATE], [seed])
        (scores,) = score(problem, surrogate, curve, trace.points)
        facts = facts_of(problem, BLOCK, epochs=epochs, seed=seed, prior_sd=PRIOR_SD, rate=RATE, **own)
        facts["test_images"] = len(problem.test_images)
        values = np.asarray(curve.values)[0].tolist()
        seconds = time.monotonic() - began
        found.append({"name": name, **facts, **scores, "values": values, "seconds": seconds})
        (folder / FILE).write_text(json.dumps(found, indent=1), encoding="utf-8")
        text = "{}: accuracy {:.4f}, nll {:.4f}, ece {:.4f}, -ELBO {:.5g} = {:.5g} + KL {:.5g}, {:.0f} s"
        numbers = (scores["accuracy"], scores["test_nll"], scores["calibration_error"])
        print(text.format(name, *numbers, *values[-1], seconds), flush=True)
    return found


if __name__ == "__main__":
    match sys.argv[1:]:
        case [folder]:
            measure(Path(folder))
        case [folder, epochs]:
            measure(Path(folder), int(epochs))
        case _:
            raise SystemExit(__doc__)
