"""Other approximations of the suite: NumPyro's guides by Adam, BlackJAX's Pathfinder of one path and of many.

`python -m provi_lab.posteriors.peers --one NAME --reference FILE --out FILE`: one posterior, in a Python that has
numpyro and blackjax and needs nothing of ProVI; `provi_lab.posteriors.table --peers PYTHON` starts it. All of them
approximate the density that NumPyro makes of the model, in its own free coordinates.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from provi_lab.posteriors.posterior import errors

GUIDES = ("AutoMultivariateNormal", "AutoIAFNormal")
GUIDE_STEPS, RATE, GUIDE_DRAWS = 5000, 0.005, 10
PATHS, POOL, DRAWS = 16, 1000, 40_000
"""As many searches as `provi.fit` makes; draws of each path of many; draws that errors are measured by."""


def measure(name: str, reference: dict[str, Any]) -> dict[str, Any]:
    """A cell for each of the peers: errors, whether it said so itself, CPU seconds with compilation."""
    import numpyro

    from provi_lab.posteriors.suite import EVERY

    numpyro.enable_x64()
    posterior, cells = EVERY[name], {}
    runs: dict[str, Callable[[Any], tuple[dict[str, Any], float | None]]] = {
        guide: lambda p, guide=guide: (_guided(p, guide), None) for guide in GUIDES
    }
    for word, run in (runs | {"Pathfinder": _one_path, "multi-path Pathfinder": _many_paths}).items():
        began = time.process_time()
        try:
            draws, tail = run(posterior)
            cells[word] = {"k_hat": tail, "warned": tail is not None and not tail < 0.7, **errors(draws, reference)}
        except Exception as error:
            cells[word] = {"failed": f"{type(error).__name__}: {error}"[:300], "warned": True, "right": False}
        cells[word]["cpu_seconds"] = time.process_time() - began
    return cells


def _guided(posterior: Any, guide: str) -> dict[str, Any]:
    """NumPyro's guide by Adam, as its manual has it."""
    import jax
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    made = getattr(autoguide, guide)(posterior.model)
    loss = Trace_ELBO(num_particles=GUIDE_DRAWS, vectorize_particles=True)
    svi = SVI(posterior.model, made, numpyro.optim.Adam(RATE), loss)
    found = svi.run(jax.random.key(0), GUIDE_STEPS, *posterior.data(), progress_bar=False)
    draws = made.sample_posterior(jax.random.key(1), found.params, sample_shape=(DRAWS,))
    return {name: np.asarray(value, float) for name, value in draws.items()}


def _density(posterior: Any, paths: int) -> tuple[Any, Any, Any]:
    """The log density of all free coordinates, the way back, and NumPyro's own random starts, as the rows of a tree."""
    import jax
    from numpyro.infer.util import initialize_model

    keys = jax.random.split(jax.random.key(0), paths)
    model = initialize_model(keys, posterior.model, model_args=posterior.data())

    def back(z: Any) -> dict[str, np.ndarray]:
        found = jax.jit(jax.vmap(model.postprocess_fn))(z)
        return {name: np.asarray(value, float) for name, value in found.items()}

    return lambda z: -model.potential_fn(z), back, model.param_info.z


def _one_path(posterior: Any) -> tuple[dict[str, Any], None]:
    """Pathfinder with the settings of its library."""
    import jax
    from blackjax.vi import pathfinder

    density, back, starts = _density(posterior, 1)
    start = jax.tree.map(lambda rows: rows[0], starts)
    state, _ = jax.jit(lambda key, z: pathfinder.approximate(key, density, z))(jax.random.key(0), start)
    return back(pathfinder.sample(jax.random.key(1), state, DRAWS)[0]), None


def _many_paths(posterior: Any) -> tuple[dict[str, Any], float]:
    """Pathfinder of many paths, its draws resampled by Pareto-smoothed weights, and their k-hat."""
    import jax
    from blackjax.vi import multipathfinder

    density, back, starts = _density(posterior, PATHS)
    state, _ = jax.jit(lambda key, z: multipathfinder.multi_approximate(key, density, z, POOL))(
        jax.random.key(0), starts
    )
    algorithm = multipathfinder.as_top_level_api(density)
    return back(algorithm.sample(jax.random.key(1), state, DRAWS)), float(multipathfinder.psis_weights(state)[1])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.write_text(json.dumps(measure(options.one, json.loads(options.reference.read_text()))))


if __name__ == "__main__":
    main()
