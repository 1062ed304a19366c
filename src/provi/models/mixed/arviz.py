"""A fitted mixed model as what ArviZ works with: draws by the names of the formula, with labelled levels."""

from typing import Any

import numpy as np

from provi.models.mixed.families import draw_response
from provi.models.mixed.prediction import predictor_blocks, training_rows
from provi.report.arviz import container


def to_arviz(model: Any, num_draws: int, seed: int) -> Any:
    """Groups `posterior`, `posterior_predictive` and `observed_data`; effects have the levels as coordinates."""
    assembly, draws = model.assembly_, model._draws(num_draws, seed)
    design, observed, name = assembly.design, assembly.observed, assembly.design.response.name
    rng, parts = np.random.default_rng([seed, 1]), []
    rows = training_rows(design)
    for some, eta in predictor_blocks(design, draws, rows, model._kernel_blocks(), False, seed):
        trials = None if rows.trials is None else rows.trials[some]
        parts.append(draw_response(observed.family, eta, draws.values, trials, rng))
    dims, coords = {}, {}
    for group in design.groups:
        axes = [f"{group.name} level"] + ([f"{group.name} effect"] if len(group.effects) > 1 else [])
        dims[group.name] = axes
        coords |= dict(zip(axes, (list(group.factor.labels), list(group.effects)), strict=False))
    for term in design.structured:
        dims[term.name], coords[f"{term.name} level"] = [f"{term.name} level"], list(term.labels)
    groups = {
        "posterior": {key: np.asarray(value)[None] for key, value in model.draws(num_draws, seed).items()},
        "posterior_predictive": {name: np.concatenate(parts, axis=1)[None]},
        "observed_data": {name: np.abs(observed.y)},
    }
    return container(groups, dims, coords, model.fit_)
