"""A fit as what ArviZ works with: draws, densities, data, predictions."""

import warnings
from importlib import metadata
from typing import Any

import jax
import numpy as np

from provi.core.arguments import check_count
from provi.core.limits import check_memory
from provi.diagnostics.loo import log_densities
from provi.diagnostics.pareto import FEWEST_WEIGHTS, pareto_k


def to_arviz(fit: Any, num_draws: int = 1000, seed: int = 0, *, predictive: bool = True) -> Any:
    """Draws of the approximation in the model's own space, as one chain, with all that the target knows.

    Groups: `posterior`; `sample_stats` with `log_q`, `log_p` (up to the target's constant) and `lp`, the same under
    ArviZ's name; `observed_data`, `log_likelihood` and `posterior_predictive` where the target has them. The
    attributes say what is certified. ArviZ's own `loo` takes the draws for draws of the posterior;
    `fit.loo()` corrects for q.

    **Arguments:**

    - `fit`: with its target.
    - `predictive`: draw replicated data too.

    **Returns:** an `InferenceData` where ArviZ before 1.0 is installed, else an `xarray.DataTree`.
    """
    target, posterior = fit.target, fit.posterior
    if target is None:
        raise ValueError("to_arviz needs the target: provi.load(path, target=target).")
    data = sum(np.size(value) for value in target.observed_data.values())
    needed = 8 * check_count("num_draws", num_draws) * (3 * target.dim + (4 if predictive else 2) * data)
    check_memory(f"num_draws={num_draws} with the log-likelihoods of {data} data", needed, "take fewer")
    z = posterior.sample(check_count("num_draws", num_draws), check_count("seed", seed, minimum=0))
    log_p, log_q = log_densities(target, posterior.family, posterior.point, z)
    statistics = {"lp": log_p, "log_p": log_p, "log_q": log_q}
    return from_draws(target, z[None], statistics, _attributes(fit, log_p - log_q), seed=seed, predictive=predictive)


def from_draws(
    target: Any,
    z: np.ndarray,
    statistics: dict[str, np.ndarray],
    attributes: dict[str, Any],
    *,
    seed: int,
    predictive: bool,
) -> Any:
    """Draws (chains, draws, dim) of the free coordinates as ArviZ's container, in the model's own space.

    **Arguments:**

    - `statistics`: for `sample_stats`, by name, one number a draw, chains after each other.
    - `attributes`: texts and numbers. - `seed`: of replicated data, drawn if `predictive`.
    """
    make, chains, rows = _maker(), z.shape[0], z.reshape(-1, z.shape[-1])
    groups: dict[str, dict[str, Any]] = {
        "posterior": _variables(target.constrain(rows)),
        "sample_stats": statistics,
        "log_likelihood": _variables(target.log_likelihood(rows)),
        "posterior_predictive": _variables(target.predict(rows, seed)) if predictive else {},
    }
    groups = {
        group: {name: _by_chain(value, chains, z.shape[1]) for name, value in values.items()}
        for group, values in groups.items()
        if values
    }
    if target.observed_data:
        groups["observed_data"] = target.observed_data
    labels = target.axis_labels
    dims = {variable: list(axes) for variable, axes in labels.items()}
    coords = {axis: list(names) for axes in labels.values() for axis, names in axes.items()}
    return make(groups, dims, coords, attributes)


def _by_chain(values: Any, chains: int, draws: int) -> np.ndarray:
    """Rows, chains after each other, with the chains in front."""
    array = np.asarray(values)
    return array.reshape(chains, draws, *array.shape[1:])


def library() -> dict[str, Any]:
    """The attributes that every file of ours has."""
    return {"inference_library": "provi", "inference_library_version": metadata.version("provi")}


def container(groups: Any, dims: Any, coords: Any, fit: Any) -> Any:
    """Draws that were made elsewhere, by group and name with (chain, draw) in front, with the attributes of the fit."""
    return _maker()(groups, dims, coords, _attributes(fit, np.zeros(0)))


def _variables(values: Any) -> dict[str, np.ndarray]:
    """The leaves of a pytree, each under its path."""
    leaves = jax.tree_util.tree_leaves_with_path(values)
    return {jax.tree_util.keystr(path, simple=True, separator=".") or "z": np.asarray(leaf) for path, leaf in leaves}


def _attributes(fit: Any, log_weights: np.ndarray) -> dict[str, Any]:
    """Texts and numbers only, so that they can be written to files."""
    certificate = fit.certificate
    found = library() | {
        "outcome": fit.outcome.value,
        "elbo": fit.elbo.value,
        "certificate_status": certificate.status,
    }
    if certificate.gap is not None:
        found["certificate_gap"] = certificate.gap
    if certificate.confidence is not None:
        found["certificate_confidence"] = certificate.confidence
    if len(log_weights) >= FEWEST_WEIGHTS and np.isfinite(log_weights).all():
        found["pareto_k"] = pareto_k(log_weights)
    return found


def _maker() -> Any:
    """From groups, dims, coords and attributes to the container of the ArviZ that is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its announcement of ArviZ 1.0
            import arviz
    except ImportError:
        arviz = None
    if arviz is not None and int(arviz.__version__.split(".")[0]) < 1:
        return _inference_data
    try:
        import arviz_base  # noqa: F401
    except ImportError:
        raise ImportError("to_arviz needs ArviZ: pip install 'provi[arviz]'.") from None
    return _data_tree


def _inference_data(groups: Any, dims: Any, coords: Any, attributes: Any) -> Any:
    import arviz

    return arviz.from_dict(**groups, dims=dims, coords=coords, attrs=attributes, posterior_attrs=attributes)


def _data_tree(groups: Any, dims: Any, coords: Any, attributes: Any) -> Any:
    from arviz_base import from_dict

    return from_dict(groups, dims=dims, coords=coords, attrs={"/": attributes, "posterior": attributes})
