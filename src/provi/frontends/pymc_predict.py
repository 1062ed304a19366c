"""Data drawn from a PyMC model at given values of its free variables."""

from typing import Any

import numpy as np

from provi.frontends.pymc_graphs import in_python
from provi.frontends.pymc_program import PyMCProgram


def replicate(program: PyMCProgram, values: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """New data for each draw of the free variables, by observed variable: what `sample_posterior_predictive` draws.

    **Arguments:**

    - `program`: the model.
    - `values`: draws of each free variable in its own space, n of each; other entries do not count.
    - `seed`: the same draws and seed give the same data.

    Written here rather than called, because PyMC draws anew each variable that depends on a `pm.Data` or on a
    dimension, even one whose values it is given, unless it can see that those have not changed.
    """
    from pymc.pytensorf import replace_rng_nodes
    from pytensor.tensor.type import tensor

    if not program.observed:
        return {}
    draws = [np.asarray(values[rv.name], rv.dtype) for rv in program.free]
    pairs = zip(program.free, draws, strict=True)
    inputs = [tensor(rv.name, dtype=rv.dtype, shape=draw.shape[1:]) for rv, draw in pairs]
    # New generators, for those of the user's model must not be seeded.
    outputs = replace_rng_nodes(program.fixed(program.observed, dict(zip(program.free, inputs, strict=True))))
    draw = in_python(inputs, outputs, seed)
    rows = [draw(*(part[row] for part in draws)) for row in range(len(draws[0]))]
    return {rv.name: np.stack(column) for rv, column in zip(program.observed, zip(*rows, strict=True), strict=True)}
