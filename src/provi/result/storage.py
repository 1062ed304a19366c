"""A fit as one safetensors file, with its target where that is made of arrays and plain values.

The file has a digest of all that it holds, and the log density at three draws of q: what was damaged is refused, and so
is another target than that of the fit.

A target is written as its classes, by name, and their fields; to read it back, classes of `provi.targets` and
`provi.kernels` are found by these names and their fields are set. No code is stored, and none is run.
"""

import dataclasses
import hashlib
import importlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.natural.modes import Mode, Modes
from provi.certificates.certificate import Certificate
from provi.core.arguments import device_array, double_precision
from provi.core.files import DamagedFileError, opened_tensors, write_tensors
from provi.data.encoding import TableEncoding
from provi.diagnostics.loo import log_densities
from provi.families.base import AbstractFamily
from provi.families.bases import Laplace, Normal, StudentT, Uniform
from provi.families.dual_gaussian import DualGaussian, DualPoint, dual_gaussian
from provi.families.location_scale import LocationScale
from provi.families.mixture import GaussianMixture
from provi.families.nested import NestedGaussian, NestedPoint
from provi.families.pushed import Pushed
from provi.families.richer import AbstractRicher, Frame, Student
from provi.kernels.rows import is_streamed
from provi.result.description import ModelDescription
from provi.result.evidence import response_fingerprint
from provi.result.fit import Estimate, Fit
from provi.result.nested import NestedPosterior
from provi.result.posterior import Posterior
from provi.runtime.record import History, Outcome
from provi.targets.base import AbstractTarget
from provi.targets.priors import GaussianPrior
from provi.targets.sparse_gaussian_process import SparseGaussianProcess

_FORMATS = ("provi-fit-1", "provi-fit-2")
_WHAT = "a fit saved by ProVI"
_UNVERIFIED = (
    "was written by an earlier version of ProVI, without a digest: whether its numbers and its certificate are those "
    "that were written is not verified, nor that a target given with it is the one of the fit. Save it again."
)
_POINTS, _VALUES = "fingerprint/points", "fingerprint/values"
_LARGEST_TARGET = 2**28
_ROOMS = ("provi.targets.", "provi.kernels.")
_RICHER: dict[str, Any] = {
    "student": lambda spec: Student(spec["dim"]),
    "skewed": lambda spec: Pushed(spec["dim"], 0, spec["width"]),
    "flow": lambda spec: Pushed(spec["dim"], spec["couplings"], spec["width"]),
    "mixture": lambda spec: GaussianMixture(spec["dim"], spec["components"]),
}
_BASES = {base.name: base for base in (Normal, Laplace, Uniform)}


def save(fit: Fit, path: str | Path, target: bool | None = None, model: Any = None) -> None:
    """Write a fit to one safetensors file.

    **Arguments:**

    - `target`: as in `Fit.save`. - `model`: what made the target, of arrays and plain values, for `load_model`.
    """
    family, point = fit.posterior.family, fit.posterior.point
    tensors = {f"point/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(point))}
    tensors["history"] = fit.history.as_array()
    shared: dict[int, str] = {}
    if isinstance(family, DualGaussian) and is_streamed(family.gram) and target is False:
        raise ValueError("target=False: the fit of a process with stream=True is known by its inputs and kernel.")
    if isinstance(family, DualGaussian) and not is_streamed(family.gram):
        leaves = jax.tree.leaves(family)
        tensors |= {f"family/{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        shared = {id(leaf): f"family/{i}" for i, leaf in enumerate(leaves)}
    metadata = {
        "family": _describe(family),
        "names": fit.posterior.names,
        "richer_tried": fit.posterior.richer_tried,
        "elbo": dataclasses.asdict(fit.elbo),
        "certificate": fit.certificate.to_dict(),
        "outcome": fit.outcome.name,
        "message": fit.message,
        "num_steps": fit.num_steps,
        "gradient_evaluations": fit.gradient_evaluations,
        "seconds": fit.seconds,
        "call": fit.call,
        "encoding": None if fit.encoding is None else fit.encoding.to_dict(),
        "description": None if fit.description is None else fit.description.to_dict(),
        "response": response_fingerprint(fit.target),
    }
    if fit.posterior.modes is not None:
        metadata["modes"] = _packed_modes(fit.posterior.modes, tensors)
    if target is not False and fit.target is not None:
        streamed = isinstance(family, DualGaussian) and is_streamed(family.gram)
        metadata |= _packed_target(fit.target, True if streamed else target, tensors, shared)
    if model is not None:
        arrays: dict[str, Any] = {}
        try:
            metadata["model"] = _pack(model, arrays, {}, "model")
        except _CannotBeStoredError as error:
            raise ValueError(f"The model cannot be stored, since it holds {error}.") from None
        tensors |= arrays
    write_tensors(path, tensors | _fingerprint(fit), {"format": _FORMATS[-1], "fit": json.dumps(metadata)})


@contextmanager
def opened_fit(path: str | Path, say: bool = True) -> Iterator[tuple[dict[str, Any], Any]]:
    """What a file of `save` says, as plain data, and the open file for its arrays; `ValueError` where it is damaged.

    Files of before (format 1) have a digest of their target only; there is a warning unless `say` is false.
    """
    with opened_tensors(path, _FORMATS, _WHAT) as file:
        metadata = file.metadata()
        if metadata["format"] == _FORMATS[0]:
            if "digest" in metadata:  # a damaged 2
                raise DamagedFileError(f"{path} is damaged: its format is not the one that was written.")
            if say:
                warnings.warn(f"{path} {_UNVERIFIED}", stacklevel=4)
        yield json.loads(metadata["fit"]), file


@double_precision
def load(path: str | Path, target: Any = None) -> Fit:
    """Read a fit written by `Fit.save`.

    A file that is damaged, cut short or of something else is a `ValueError` that names it.

    **Arguments:**

    - `target`: what was approximated, where the file does not hold it; another one is refused. Without any there are no
      summaries in the model's own space, no predictions, no LOO and no k-hat; `dataclasses.replace(fit, target=target)`
      adds it later.
    """
    if target is not None and not isinstance(target, AbstractTarget):
        raise TypeError(f"target must be the provi target of the fit, not {type(target).__name__}.")
    given = target
    with opened_fit(path) as (data, file):
        if target is None and data.get("target") is not None:
            target = _unpacked_target(data, file, path)
        known = {name: file.get_tensor(name) for name in (_POINTS, _VALUES) if name in file.keys()}
        if given is not None and known and known[_POINTS].shape[1] != given.dim:
            number = known[_POINTS].shape[1]
            raise ValueError(
                f"{path} is the fit of another target: it has {number} parameters, target= has {given.dim}."
            )
        if data["family"]["scale"] == "nested":
            family, structure = _nested(target, path)
        elif data["family"].get("streamed"):
            family, structure = dual_gaussian(target), jax.tree.structure(dual_gaussian(target).prior_point())
        else:
            family, structure = _family(data["family"], file)
        leaves = [jnp.asarray(file.get_tensor(f"point/{i}")) for i in range(structure.num_leaves)]
        point = jax.tree.unflatten(structure, leaves)
        history = History.from_array(file.get_tensor("history"))
        modes = None if data.get("modes") is None else _unpacked_modes(data["modes"], file)
        fit = _fit(data, family, point, history, target, modes)
    if given is not None:
        _check_target(given, family, point, known, path)
    return fit


def _packed_modes(modes: Modes, tensors: dict[str, Any]) -> dict[str, Any]:
    """The modes as plain data, their arrays added to `tensors`."""
    plain = {field.name: getattr(modes, field.name) for field in dataclasses.fields(modes) if field.name != "found"}
    for number, mode in enumerate(modes.found):
        tensors |= {f"modes/{number}/location": mode.location, f"modes/{number}/factor": mode.factor}
    numbers = ("log_density", "log_evidence", "share", "searches", "converged")
    return {**plain, "found": [{name: getattr(mode, name) for name in numbers} for mode in modes.found]}


def _unpacked_modes(data: dict[str, Any], file: Any) -> Modes:
    """The inverse of `_packed_modes`."""
    found = tuple(
        Mode(file.get_tensor(f"modes/{number}/location"), file.get_tensor(f"modes/{number}/factor"), **plain)
        for number, plain in enumerate(data["found"])
    )
    return Modes(found, **{name: value for name, value in data.items() if name != "found"})


def _fit(data: dict[str, Any], family: Any, point: Any, history: History, target: Any, modes: Modes | None) -> Fit:
    kind: Any = NestedPosterior if isinstance(family, NestedGaussian) else Posterior
    encoding, description = data.get("encoding"), data.get("description")
    posterior = kind(family, point, tuple(data["names"]), target)
    return Fit(
        posterior=dataclasses.replace(posterior, modes=modes, richer_tried=data.get("richer_tried", False)),
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
        encoding=None if encoding is None else TableEncoding.from_dict(encoding),
        description=None if description is None else ModelDescription.from_dict(description),
    )


class _CannotBeStoredError(Exception):
    """A part of a target is neither an array nor a plain value."""


def _packed_target(target: Any, wanted: bool | None, tensors: dict[str, Any], shared: dict[int, str]) -> dict[str, Any]:
    """The target as plain data, its arrays added to `tensors`; empty where it cannot be stored.

    **Arguments:**

    - `wanted`: True where the user asked for it: then what cannot be stored is an error.
    - `shared`: names of arrays that are stored already, by identity.
    """
    if isinstance(target, SparseGaussianProcess):  # features that can be computed again are not data
        target = eqx.tree_at(lambda t: (t.design, t.offset), target, (None, None), is_leaf=lambda x: x is None)
    stream = getattr(target, "stream", None)
    if stream is not None:  # what identifies the data stands for them
        target = eqx.tree_at(lambda t: t.design, target, stream.detached(), is_leaf=lambda x: x is stream)
    arrays: dict[str, Any] = {}
    try:
        spec = _pack(target, arrays, dict(shared))
    except _CannotBeStoredError as error:
        if wanted:
            raise ValueError(
                f"target=True: {type(target).__name__} cannot be stored, since it holds {error}."
            ) from None
        return {}
    if wanted is None and sum(array.nbytes for array in arrays.values()) > _LARGEST_TARGET:
        return {}
    tensors |= arrays
    return {"target": spec}


def load_model(path: str | Path) -> Any:
    """The `model` that `save` was given; None in a file without one."""
    with opened_fit(path, say=False) as (data, file):  # the fit itself says it
        spec = data.get("model")
        return None if spec is None else _unpacked(spec, file, {}, path)


def _fingerprint(fit: Fit) -> dict[str, np.ndarray]:
    """The log density at three draws of q, by which `load` knows the target again; empty where there is none.

    Its value and not its code: functions have no name that could be trusted, and classes may move.
    """
    if fit.target is None:
        return {}
    try:
        points = np.asarray(fit.posterior.sample(3, 0))
        values = log_densities(fit.target, fit.posterior.family, fit.posterior.point, points)[0]
    except Exception:  # of a user's density that cannot be evaluated any more: no reason to lose the fit
        return {}
    return {_POINTS: points, _VALUES: values}


def _check_target(target: Any, family: Any, point: Any, known: dict[str, np.ndarray], path: Any) -> None:
    """`ValueError` where the log density of `target` is not that of the fit, up to rounding."""
    if not known:
        warnings.warn(f"{path} does not say what it is the fit of: that it is target= is not verified.", stacklevel=4)
        return
    before, now = known[_VALUES], log_densities(target, family, point, known[_POINTS])[0]
    rounding = max(np.finfo(dtype).eps for dtype in (known[_POINTS].dtype, target.dtype)) ** 0.5
    if not np.allclose(now, before, rounding, rounding, equal_nan=True):
        then, found = (", ".join(f"{x:.6g}" for x in values) for values in (before, now))
        raise ValueError(
            f"{path} is the fit of another target: at three draws of q its log density was {then}, and that of target= "
            f"is {found}. Give the target of the fit; provi.certify(target, provi.load(path).posterior) says how good "
            f"q is for another."
        )


def _pack(value: Any, arrays: dict[str, Any], stored: dict[int, str], folder: str = "target") -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() | jax.Array():
            if getattr(value.dtype, "kind", "") not in tuple("fiub"):
                raise _CannotBeStoredError(f"an array of dtype {value.dtype}")
            if id(value) not in stored:
                stored[id(value)] = f"{folder}/{len(arrays)}"
                arrays[stored[id(value)]] = np.asarray(value)
            return {"array": stored[id(value)], "jax": isinstance(value, jax.Array)}
        case np.generic():
            return value.item()
        case tuple() | list():
            return {type(value).__name__: [_pack(item, arrays, stored, folder) for item in value]}
        case Mapping():
            return {"items": [[_pack(part, arrays, stored, folder) for part in pair] for pair in value.items()]}
    kind = type(value)
    if not dataclasses.is_dataclass(kind) or not kind.__module__.startswith(_ROOMS):
        raise _CannotBeStoredError(f"a {kind.__module__}.{kind.__qualname__}")
    # What an instance has not set itself is its class's, and no part of it.
    names = [field.name for field in dataclasses.fields(kind) if field.name in vars(value)]
    fields = {name: _pack(getattr(value, name), arrays, stored, folder) for name in names}
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": fields}


def _unpacked_target(data: Any, file: Any, path: Any) -> Any:
    tensors: dict[tuple[str, bool], Any] = {}
    found = _unpacked(data["target"], file, tensors, path)
    arrays = {name: np.asarray(array) for (name, _), array in tensors.items()}
    if "digest" in data and _digest(data["target"], arrays) != data["digest"]:
        raise ValueError(f"{path} is damaged: the digest of its target is not the one that was written.")
    return found


def _unpacked(spec: Any, file: Any, tensors: dict[tuple[str, bool], Any], path: Any) -> Any:
    """The inverse of `_pack`; the arrays that were read are added to `tensors`."""

    def unpack(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "array" in value:
            name = (value["array"], value["jax"])
            if name not in tensors:
                array = file.get_tensor(value["array"])
                tensors[name] = device_array(array) if value["jax"] else array
            return tensors[name]
        if "items" in value:
            return {unpack(key): unpack(item) for key, item in value["items"]}
        if "class" not in value:
            kind, items = next(iter(value.items()))
            return {"tuple": tuple, "list": list}[kind](unpack(item) for item in items)
        return _rebuilt(value["class"], {name: unpack(part) for name, part in value["fields"].items()})

    try:
        return unpack(spec)
    except (ImportError, AttributeError, KeyError) as error:
        raise ValueError(
            f"{path} holds a target of another version of ProVI ({error}): give it, provi.load(path, target=target)."
        ) from None


def _rebuilt(name: str, fields: dict[str, Any]) -> Any:
    """An instance of a class of ours with these fields; `__init__`, which reads the user's data, is not run again."""
    module, _, qualified = name.partition(":")
    if not module.startswith(_ROOMS):
        raise ImportError(f"{name} is no part of a target")
    kind: Any = importlib.import_module(module)
    for part in qualified.split("."):
        kind = getattr(kind, part)
    if not dataclasses.is_dataclass(kind) or not isinstance(kind, type) or kind.__module__ != module:
        raise ImportError(f"{name} is no part of a target")
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        if field.name in fields or field.default is dataclasses.MISSING:
            object.__setattr__(made, field.name, fields.get(field.name))
    return made


def _digest(spec: Any, arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of a target in a file of format 1: of its plain data, and of the arrays that they name."""
    text, found = json.dumps(spec, sort_keys=True), hashlib.sha256()
    found.update(text.encode())
    for name in sorted(arrays):
        if f'"{name}"' in text:
            array = np.asarray(arrays[name], order="C")
            found.update(f"{name} {array.dtype.str} {array.shape}".encode())
            found.update(array.data if array.ndim else array.tobytes())
    return found.hexdigest()


def _describe(family: AbstractFamily) -> dict[str, Any]:
    """What `_family` needs beside the arrays."""
    if isinstance(family, NestedGaussian):
        return {"scale": family.scale}
    if isinstance(family, DualGaussian):
        known = {"scale": "dual", "linear_model": family.design is not None, "root": family.root is not None}
        return known | ({"streamed": True} if is_streamed(family.gram) else {})
    if isinstance(family, AbstractRicher):
        sizes = {name: getattr(family, name, None) for name in ("couplings", "width", "components")}
        return {"dim": family.dim, "scale": family.scale, **sizes}
    assert isinstance(family, LocationScale)
    df = float(family.base.df) if isinstance(family.base, StudentT) else None
    if not isinstance(family.base, StudentT) and family.base.name not in _BASES:
        raise ValueError(f"The base '{family.base.name}' holds a function of yours, which a file cannot: not saved.")
    return {"dim": family.dim, "base": family.base.name, "scale": family.scale, "rank": family.rank, "df": df}


def _richer(spec: dict[str, Any], file: Any) -> tuple[AbstractFamily, Any]:
    """A richer family; `ValueError` where its first two arrays, which say its size, are not those of `dim`."""
    family = _RICHER[spec["scale"]](spec)
    small: Any = _RICHER[spec["scale"]]({**spec, "dim": 2})
    one = Frame(jnp.zeros(2), jnp.eye(2))
    structure = jax.tree.structure(small.first_point((one,), np.ones(1)))
    shapes = [tuple(file.get_slice(f"point/{i}").get_shape()) for i in range(structure.num_leaves)]
    loc = shapes[1][1:] if family.scale == "mixture" else shapes[0]
    if loc != (family.dim,):
        raise ValueError(f"its numbers are not those of a {family.scale} family in {family.dim} dimensions")
    return family, structure


def _nested(target: Any, path: Any) -> tuple[NestedGaussian, Any]:
    """Of a latent Gaussian model, whose mixtures have no meaning without it."""
    model = None if target is None else target.latent_gaussian()
    if model is None:
        raise ValueError(f"{path} is a nested fit without its model, which it needs: provi.load(path, target=target).")
    return NestedGaussian(model), jax.tree.structure(NestedPoint(*range(9)))


def _family(spec: dict[str, Any], file: Any) -> tuple[AbstractFamily, Any]:
    """The family, and the structure of its points."""
    if spec["scale"] == "dual":
        one = device_array(np.ones((1, 1)))
        prior = GaussianPrior(one[0], one[0, 0]) if spec["linear_model"] else None
        like = DualGaussian(one, one[0], one if spec["linear_model"] else None, prior, one if spec["root"] else None)
        arrays = [jnp.asarray(file.get_tensor(f"family/{i}")) for i in range(len(jax.tree.leaves(like)))]
        # Rebuilt from its parts, since the dimension is a static field.
        parts = jax.tree.unflatten(jax.tree.structure(like), arrays)
        family = DualGaussian(parts.gram, parts.prior_mean, parts.design, parts.prior, parts.root)
        return family, jax.tree.structure(DualPoint(one[0], one[0]))
    if spec["scale"] in _RICHER:
        return _richer(spec, file)
    base = StudentT(spec["df"]) if spec["df"] is not None else _BASES[spec["base"]]()
    family = LocationScale(spec["dim"], base, spec["scale"], rank=spec["rank"])
    dim = family.dim
    second = {"diagonal": (dim,), "low_rank": (dim,)}.get(family.scale, (dim, dim))
    shapes = [(dim,), second, *([(dim, family.rank)] if family.scale == "low_rank" else [])]
    if [tuple(file.get_slice(f"point/{i}").get_shape()) for i in range(len(shapes))] != shapes:
        raise ValueError(f"its numbers are not those of a {family.scale} scale in {dim} dimensions")
    # Of one dimension, as all have the same structure: nothing is made in a size that only the header claims.
    one = LocationScale(1, base, spec["scale"], rank=1)
    return family, jax.tree.structure(one.point(np.zeros(1), 1.0))
