"""A fit as one safetensors file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from provi.certificates.certificate import Certificate
from provi.core.arguments import double_precision
from provi.families.base import AbstractFamily
from provi.families.bases import Laplace, Normal, StudentT, Uniform
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.location_scale import LocationScale
from provi.families.nested import NestedGaussian, NestedPoint
from provi.result.fit import Estimate, Fit
from provi.result.nested import NestedPosterior
from provi.result.posterior import Posterior
from provi.runtime.record import History, Outcome
from provi.targets.priors import GaussianPrior

_FORMAT = "provi-fit-1"
_BASES = {base.name: base for base in (Normal, Laplace, Uniform)}


def save(fit: Fit, path: str | Path) -> None:
    """Write everything but the target to one safetensors file."""
    family, point = fit.posterior.family, fit.posterior.point
    tensors = {f"point/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(point))}
    tensors["history"] = fit.history.as_array()
    if isinstance(family, DualGaussian):
        tensors |= {f"family/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(family))}
    metadata = {
        "family": _describe(family),
        "names": fit.posterior.names,
        "elbo": dataclasses.asdict(fit.elbo),
        "certificate": fit.certificate.to_dict(),
        "outcome": fit.outcome.name,
        "message": fit.message,
        "num_steps": fit.num_steps,
        "gradient_evaluations": fit.gradient_evaluations,
        "seconds": fit.seconds,
        "call": fit.call,
    }
    save_file(tensors, path, metadata={"format": _FORMAT, "fit": json.dumps(metadata)})


@double_precision
def load(path: str | Path, target: Any = None) -> Fit:
    """Read a fit written by `Fit.save`.

    **Arguments:**

    - `target`: what was approximated, which the file does not hold. Without it there are no summaries in the model's
      own space, no predictions, no LOO and no k-hat; `dataclasses.replace(fit, target=target)` adds it later.
    """
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != _FORMAT:
            raise ValueError(f"{path} is not a fit saved by ProVI.")
        data = json.loads(metadata["fit"])
        if data["family"]["scale"] == "nested":
            family, structure = _nested(target, path)
        else:
            family, structure = _family(data["family"], file)
        leaves = [jnp.asarray(file.get_tensor(f"point/{i}")) for i in range(structure.num_leaves)]
        history = History.from_array(file.get_tensor("history"))
    kind: Any = NestedPosterior if isinstance(family, NestedGaussian) else Posterior
    return Fit(
        posterior=kind(family, jax.tree.unflatten(structure, leaves), tuple(data["names"]), target),
        elbo=Estimate(**data["elbo"]),
        certificate=Certificate.from_dict(data["certificate"]),
        outcome=Outcome[data["outcome"]],
        message=data["message"],
        history=history,
        num_steps=data["num_steps"],
        gradient_evaluations=data["gradient_evaluations"],
        seconds=data["seconds"],
        target=target,
        call=data.get("call"),
    )


def _describe(family: AbstractFamily) -> dict[str, Any]:
    """What `_family` needs beside the arrays."""
    if isinstance(family, NestedGaussian):
        return {"scale": family.scale}
    if isinstance(family, DualGaussian):
        return {"scale": "dual", "linear_model": family.design is not None, "root": family.root is not None}
    assert isinstance(family, LocationScale)
    df = float(family.base.df) if isinstance(family.base, StudentT) else None
    return {"dim": family.dim, "base": family.base.name, "scale": family.scale, "rank": family.rank, "df": df}


def _nested(target: Any, path: Any) -> tuple[NestedGaussian, Any]:
    """Of a latent Gaussian model, whose mixtures have no meaning without it."""
    model = None if target is None else target.latent_gaussian()
    if model is None:
        raise ValueError(f"{path} is a nested fit, which needs its model: provi.load(path, target=target).")
    return NestedGaussian(model), jax.tree.structure(NestedPoint(*range(9)))


def _family(spec: dict[str, Any], file: Any) -> tuple[AbstractFamily, Any]:
    """The family, and the structure of its points."""
    if spec["scale"] == "dual":
        one = jnp.asarray(np.ones((1, 1)))
        prior = GaussianPrior(one[0], one[0, 0]) if spec["linear_model"] else None
        like = DualGaussian(one, one[0], one if spec["linear_model"] else None, prior, one if spec["root"] else None)
        arrays = [jnp.asarray(file.get_tensor(f"family/{i}")) for i in range(len(jax.tree.leaves(like)))]
        # Rebuilt from its parts, since the dimension is a static field.
        parts = jax.tree.unflatten(jax.tree.structure(like), arrays)
        family = DualGaussian(parts.gram, parts.prior_mean, parts.design, parts.prior, parts.root)
        return family, jax.tree.structure(DualPoint(one[0], one[0]))
    base = StudentT(spec["df"]) if spec["df"] is not None else _BASES[spec["base"]]()
    family = LocationScale(spec["dim"], base, spec["scale"], rank=spec["rank"])
    return family, jax.tree.structure(family.point(np.zeros(spec["dim"]), 1.0))
