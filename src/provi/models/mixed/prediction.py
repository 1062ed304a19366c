r"""Predictions from draws of the posterior: $\eta = x'\beta + \sum_k z_k'u_k + $ offset, at known and at new levels.

A new level of a group has the effect zero ("population"), or one drawn from $N(0, \Sigma)$ at each draw of $\Sigma$
("sample"): the same for all rows of that level. New inputs of a Gaussian process have values drawn given those at the
old ones.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from provi.frontends.formula.design import Design, NewRows
from provi.frontends.formula.groups import Group
from provi.frontends.formula.structured import Structured
from provi.models.mixed.families import draw_response
from provi.models.mixed.priors import FixedEffects
from provi.report.arviz import container

_NUMBERS_AT_ONCE = 2**23
"""Draws times rows of a block: 64 MiB."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """Draws of the posterior, the number of them in front: `values` by name, as the target names them."""

    values: Mapping[str, np.ndarray]
    fixed: FixedEffects
    num_draws: int

    @property
    def delta(self) -> np.ndarray:
        """The target's coefficients, (n, p)."""
        if not self.fixed.names:
            return np.zeros((self.num_draws, 0))
        return np.stack([np.asarray(self.values[name]) for name in self.fixed.target_names], axis=1)

    def covariance_root(self, group: Group) -> np.ndarray:
        r"""L with $LL' = \Sigma$ of a group's effects, (n, b, b)."""
        alone, width = group.effects == ("Intercept",), len(group.effects)
        names = [f"sd({group.name})" if alone else f"sd({group.name}: {effect})" for effect in group.effects]
        scales = np.stack([np.asarray(self.values[name]) for name in names], axis=1)
        matrix = np.broadcast_to(np.eye(width), (self.num_draws, width, width)).copy()
        if group.correlated:
            for i in range(width):
                for j in range(i):
                    name = f"cor({group.name}: {group.effects[j]}, {group.effects[i]})"
                    matrix[:, i, j] = matrix[:, j, i] = self.values[name]
        return scales[:, :, None] * np.linalg.cholesky(matrix + 1e-12 * np.eye(width))


def training_rows(design: Design) -> NewRows:
    """The rows of the fit as a table to predict."""
    groups = tuple((group.index, group.covariates) for group in design.groups)
    structured = tuple(
        np.asarray(term.levels)[term.index] if term.kind == "gp" else term.index for term in design.structured
    )
    return NewRows(design.fixed, groups, structured, design.offset, design.response.trials, {})


def predictor_blocks(
    design: Design, draws: Draws, rows: NewRows, kernels: Mapping[str, Any], sample: bool, seed: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """eta for some rows at a time, (draws, rows); `kernels`: the blocks of Gaussian processes, by name.

    **Arguments:**

    - `sample`: whether new levels have effects drawn from their law; else they have none.
    """
    rng = np.random.default_rng(seed)
    count, total = draws.num_draws, len(rows.offset)
    matrix, delta = draws.fixed.matrix(rows.fixed), draws.delta
    constant = rows.offset + draws.fixed.offset(rows.fixed)
    fresh = [
        _fresh_effects(group, index, draws, rng) if sample and (index < 0).any() else None
        for group, (index, _) in zip(design.groups, rows.groups, strict=True)
    ]
    functions = {
        term.name: _new_values(term, inputs, draws, kernels[term.name], rng)
        for term, inputs in zip(design.structured, rows.structured, strict=True)
        if term.kind == "gp"
    }
    step = max(1, _NUMBERS_AT_ONCE // count)
    for start in range(0, total, step):
        some = slice(start, min(start + step, total))
        eta = constant[some] + delta @ matrix[some].T
        for group, (index, covariates), new in zip(design.groups, rows.groups, fresh, strict=True):
            eta += _group_part(group, index, covariates, new, draws, some)
        for term, index in zip(design.structured, rows.structured, strict=True):
            if term.kind == "gp":
                values, place = functions[term.name]
                eta += values[:, place[some]]
            else:
                eta += np.asarray(draws.values[term.name])[:, index[some]]
        yield some, eta


def _group_part(
    group: Group, index: np.ndarray, covariates: np.ndarray | None, new: Any, draws: Draws, some: slice
) -> np.ndarray:
    effects = np.asarray(draws.values[group.name])
    effects = effects[:, :, None] if effects.ndim == 2 else effects
    here, part = index[some], np.zeros((draws.num_draws, some.stop - some.start))
    known = here >= 0
    for k in range(effects.shape[2]):
        column = 1.0 if covariates is None else covariates[some, k]
        values = np.where(known, effects[:, np.maximum(here, 0), k], 0.0)
        if new is not None:
            fresh, place = new
            values = np.where(known, values, fresh[:, np.maximum(place[some], 0), k])
        part += values * column
    return part


def _fresh_effects(group: Group, index: np.ndarray, draws: Draws, rng: Any) -> tuple[np.ndarray, np.ndarray]:
    """Effects of new levels, (draws, levels, b), and which of them a row has."""
    place = np.where(index < 0, -index - 1, -1)
    root = draws.covariance_root(group)
    noise = rng.standard_normal((draws.num_draws, int(place.max()) + 1, root.shape[1]))
    return np.einsum("nij,nlj->nli", root, noise), place


def _new_values(
    term: Structured, inputs: np.ndarray, draws: Draws, block: Any, rng: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Values of a Gaussian process at the different rows of `inputs`, (draws, different), and which a row has."""
    known = np.asarray(draws.values[term.name])
    unique, place = np.unique(inputs, axis=0, return_inverse=True)
    place = place.reshape(-1)
    where = {tuple(row): k for k, row in enumerate(np.asarray(term.levels))}
    old = np.array([where.get(tuple(row), -1) for row in unique])
    values = known[:, np.maximum(old, 0)]
    if (old < 0).any():
        values = values.copy()
        values[:, old < 0] = _conditional(block, draws, term, unique[old < 0], known, rng)
    return values, place


def _conditional(
    block: Any, draws: Draws, term: Structured, new: np.ndarray, known: np.ndarray, rng: Any
) -> np.ndarray:
    r"""Draws of $f_* \mid f \sim N(K_{*x}K^{-1}f, K_{**} - K_{*x}K^{-1}K_{x*})$, one for each draw of the kernel."""
    import jax
    import jax.numpy as jnp

    from provi.kernels import parameter_names, with_log_parameters

    names = [f"{key}({term.name})" for key in parameter_names(block.kernel)]
    with jax.enable_x64(True):
        logs = jnp.log(jnp.stack([jnp.asarray(draws.values[name]) for name in names], axis=1))
        old, fresh = jnp.asarray(block.inputs), jnp.asarray(new)
        noise = jnp.asarray(rng.standard_normal((draws.num_draws, len(new))))

        def one(item: Any) -> Any:
            theta, f, z = item
            kernel = with_log_parameters(block.kernel, theta)
            every = kernel.matrix(jnp.concatenate([old, fresh]))
            every += jnp.asarray(block.jitter) * jnp.max(jnp.diagonal(every)) * jnp.eye(len(every))
            # The lower factor of both together: its last rows are those of the conditional law.
            lower = jnp.linalg.cholesky(every)
            white = jax.scipy.linalg.solve_triangular(lower[: len(old), : len(old)], f, lower=True)
            return lower[len(old) :, : len(old)] @ white + lower[len(old) :, len(old) :] @ z

        return np.asarray(jax.lax.map(one, (logs, jnp.asarray(known), noise)))


def to_arviz(model: Any, num_draws: int, seed: int) -> Any:
    """A fitted model for ArviZ: draws by the names of the formula, their effects with the levels as coordinates.

    The groups are `posterior`, `posterior_predictive` and `observed_data`.
    """
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
