"""Checkpoints from which a run resumes bit for bit: safetensors, written atomically, never pickled."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from provi.runtime.record import History

_FORMAT = "provi-checkpoint-1"
_REMEDY = "Pass resume=False to start afresh, or give the path of an intact checkpoint."


def fingerprint(*parts: Any) -> str:
    """A hash of the types, settings and array values of a run's parts, to refuse a checkpoint of another run.

    Functions enter by name only: of two optax rules that differ in a learning rate it cannot tell one from the other.
    """
    digest = hashlib.sha256()
    for part in parts:
        # The structure holds the static settings; memory addresses in it change from process to process.
        digest.update(re.sub(r"0x[0-9a-f]+", "", str(jax.tree.structure(part))).encode())
        for leaf in jax.tree.leaves(eqx.filter(part, eqx.is_array_like)):
            array = np.asarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _content_digest(tensors: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()


def save_checkpoint(path: Path, carry: Any, history: History, seconds: float, identity: str, segments: int = 1) -> None:
    """Write everything needed to go on. A crash while writing leaves the previous checkpoint intact.

    `segments`: calls that this run was made in so far, the present one included.
    """
    tensors = {f"carry/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(carry))}
    tensors["history"] = history.as_array()
    metadata = {
        "format": _FORMAT,
        "identity": identity,
        "seconds": json.dumps(seconds),
        "segments": json.dumps(segments),
        "digest": _content_digest(tensors),
    }
    temporary = path.with_name(path.name + ".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, temporary, metadata=metadata)
    with open(temporary, "rb") as handle:
        os.fsync(handle.fileno())
    os.replace(temporary, path)


def saved_segments(path: Path) -> int:
    """In how many calls the run that was saved at `path` was made; 0 where there is no checkpoint."""
    if not path.exists():
        return 0
    try:
        with safe_open(path, framework="numpy") as file:
            return int(json.loads((file.metadata() or {}).get("segments", "1")))
    except SafetensorError as error:
        raise ValueError(f"checkpoint {path} is damaged or not a checkpoint ({error}). {_REMEDY}") from None


def load_checkpoint(path: Path, like: Any, identity: str) -> tuple[Any, History, float]:
    """The carry, the history and the seconds already spent; `like` gives the carry's structure."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise ValueError(f"checkpoint {path} is damaged or not a checkpoint ({error}). {_REMEDY}") from None
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"checkpoint {path} is not a ProVI checkpoint. {_REMEDY}")
    if metadata["identity"] != identity:
        raise ValueError(
            f"checkpoint {path} belongs to another run (other data, family, algorithm, start or seed). "
            f"Pass resume=False to start afresh, or the arguments of the first call."
        )
    if metadata["digest"] != _content_digest(tensors):
        raise ValueError(f"checkpoint {path} is damaged: its numbers are not those that were saved. {_REMEDY}")
    leaves, structure = jax.tree.flatten(like)
    loaded = [jnp.asarray(tensors[f"carry/{i}"]) for i in range(len(leaves))]
    history = History.from_array(tensors["history"])
    return jax.tree.unflatten(structure, loaded), history, json.loads(metadata["seconds"])
