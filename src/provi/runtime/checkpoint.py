"""Checkpoints from which a run resumes bit for bit: safetensors, written by renaming, never pickled.

The last two are kept, `run.ckpt` and `run.ckpt.previous`: where the last one is damaged, the run goes on from the one
before it, and says so.

What is no run of steps but a search, whose every call is a function of the results before it, keeps a `Journal` of
them: the search begins again, and reads what it has computed before.
"""

import dataclasses
import hashlib
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.devices import on_host, undivided
from provi.core.files import DamagedFileError, opened_tensors, write_tensors
from provi.core.host_object import without_host_objects
from provi.runtime.record import History

_FORMATS = ("provi-checkpoint-1", "provi-checkpoint-2")
_WHAT = "a ProVI checkpoint"
_JOURNAL_FORMATS, _JOURNAL = ("provi-journal-1",), "the checkpoint of a ProVI search"
_NUMBERS_AT_ONCE = 2**22
_REMEDY = "Pass resume=False to start afresh, or give the path of an intact checkpoint."


@dataclasses.dataclass(frozen=True)
class Saved:
    """What a run needs to go on.

    - `seconds`: that it has taken. - `segments`: calls that it was made in, the present one included.
    - `rule`: what the rule that stops it remembers, plain values and arrays by name, and `asked`, the step at which
      it was asked last; None where nothing of it was saved.
    """

    carry: Any
    history: History
    seconds: float
    segments: int = 1
    rule: dict[str, Any] | None = None
    asked: int | None = None


def fingerprint(*parts: Any) -> str:
    """A hash of the types, settings and array values of a run's parts, to refuse a checkpoint of another run.

    Functions enter by name only: of two optax rules that differ in a learning rate it cannot tell one from the other.
    """
    digest = hashlib.sha256()
    for part in parts:
        # The same on any number of devices: what was added to divide it is left out.
        part, terms = undivided(part)
        part, texts = without_host_objects(part)
        digest.update(texts.encode())
        # The structure holds the static settings; memory addresses in it change from process to process.
        digest.update(re.sub(r"0x[0-9a-f]+", "", str(jax.tree.structure(part))).encode())
        for leaf in jax.tree.leaves(eqx.filter(part, eqx.is_array_like)):
            filled = terms is not None and isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1
            for array in _runs(leaf, terms if filled else None):
                digest.update(array)
    return digest.hexdigest()


def _runs(leaf: Any, terms: int | None) -> Iterator[bytes]:
    """The type, the shape and the numbers of an array, those of several processes a run of rows at a time."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated:
        array = np.asarray(leaf) if terms is None else np.asarray(leaf)[:terms]
        yield f"{array.dtype}{array.shape}".encode()
        yield np.ascontiguousarray(array).tobytes()
        return
    rows = leaf.shape[0] if terms is None else terms
    yield f"{leaf.dtype}{(rows, *leaf.shape[1:])}".encode()
    size = max(1, _NUMBERS_AT_ONCE * len(leaf) // leaf.size)
    for start in range(0, rows, size):
        yield np.ascontiguousarray(on_host(leaf[start : min(start + size, rows)])).tobytes()


def previous_of(path: Path) -> Path:
    """Where the checkpoint before the one at `path` is."""
    return path.with_name(path.name + ".previous")


class Identity(NamedTuple):
    """What a run is of: with its start, and without, by which a run on other devices knows it.

    A start that was computed from the data has other last digits there.
    """

    whole: str
    without_start: str
    devices: int

    def is_of(self, metadata: Any) -> bool:
        """Whether a checkpoint is of this run."""
        elsewhere = int(metadata.get("devices", "1")) != self.devices
        return metadata["identity"] == self.whole or (elsewhere and metadata.get("model") == self.without_start)


def identity_of(parts: Sequence[Any], start: Any, seed: Any) -> Identity:
    """Of algorithm, target and family, where the run begins, and the seed."""
    sizes = [len(x.sharding.device_set) for x in jax.tree.leaves(parts) if isinstance(x, jax.Array)]
    return Identity(fingerprint(*parts, start, seed), fingerprint(*parts, seed), max(sizes, default=1))


def save_checkpoint(path: Path, saved: Saved, identity: Identity) -> None:
    """Write everything needed to go on; `OSError` where that fails, with the previous checkpoint intact."""
    tensors = {f"carry/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(saved.carry))}
    tensors["history"] = saved.history.as_array()
    rule = saved.rule or {}
    arrays = {name: value for name, value in rule.items() if isinstance(value, np.ndarray)}
    tensors |= {f"rule/{name}": value for name, value in arrays.items()}
    plain = {name: value for name, value in rule.items() if name not in arrays}
    metadata = {
        "format": _FORMATS[-1],
        "identity": identity.whole,
        "model": identity.without_start,
        "devices": json.dumps(identity.devices),
        "seconds": json.dumps(saved.seconds),
        "segments": json.dumps(saved.segments),
        "rule": json.dumps(None if saved.rule is None else plain),
        "asked": json.dumps(saved.asked),
    }
    write_tensors(path, tensors, metadata, keep=previous_of(path))


def saved_segments(path: Path) -> int:
    """In how many calls the run that was saved at `path` was made; 0 where there is no checkpoint.

    One more where the last checkpoint is damaged: it may have been of a later call than the one before it.
    """
    if not path.exists():
        return 0

    def segments(file: Any) -> int:
        return int(json.loads(file.metadata().get("segments", "1")))

    found, error = _intact(path, segments)
    return found + (error is not None)


def load_checkpoint(path: Path, like: Any, identity: Identity) -> Saved:
    """What was saved last or, where that is damaged, before it; `like` gives the carry's structure."""

    def read(file: Any) -> Saved:
        metadata = file.metadata()
        if not identity.is_of(metadata):
            raise ValueError(
                f"checkpoint {path} belongs to another run (other data, family, algorithm, start or seed). "
                f"Pass resume=False to start afresh, or the arguments of the first call."
            )
        leaves, structure = jax.tree.flatten(like)
        carry = [jnp.asarray(file.get_tensor(f"carry/{i}")) for i in range(len(leaves))]
        rule = json.loads(metadata.get("rule", "null"))
        if rule is not None:
            names = [name for name in file.keys() if name.startswith("rule/")]
            rule |= {name.removeprefix("rule/"): file.get_tensor(name) for name in names}
        return Saved(
            jax.tree.unflatten(structure, carry),
            History.from_array(file.get_tensor("history")),
            json.loads(metadata["seconds"]),
            json.loads(metadata.get("segments", "1")),
            rule,
            json.loads(metadata.get("asked", "null")),
        )

    found, error = _intact(path, read)
    if error is None:
        return found
    _warn_of(error, path)
    return dataclasses.replace(found, segments=found.segments + 1)


def _warn_of(error: DamagedFileError, path: Path) -> None:
    text = f"{error} The run goes on from the checkpoint before it, {previous_of(path)}."
    warnings.warn(text, stacklevel=3)


class Pace:
    """When to write next: at once, after one second, two, four, ... and then every `seconds`.

    Early ones are further apart where writing takes long.
    """

    _FIRST, _SHARE_OF_WRITING = 1.0, 10

    def __init__(self, seconds: float | int) -> None:
        self.seconds, self.wait, self.due = seconds, 0.0, time.monotonic()

    def written(self, began: float) -> None:
        """After a file whose writing began at this time, by `time.monotonic`."""
        taken = time.monotonic() - began
        self.wait = min(self.seconds, max(self._FIRST, 2 * self.wait, self._SHARE_OF_WRITING * taken))
        self.due = time.monotonic() + self.wait


class Journal:
    """The results of a search in the order in which it asked for them: PyTrees of arrays on the host.

    **Arguments:**

    - `path`: where they are saved; None for nowhere. - `identity`: of all that the results depend on.
    - `like`: the structure of a result. - `writes`: whether this process saves.
    - `interrupted`: whether a signal was seen that Python may have forgotten; then the next result is not computed.
    """

    def __init__(
        self, path: Path | None, identity: Identity | None, seconds: float | int, like: Any, writes: bool = True
    ) -> None:
        self.path, self.identity, self.pace, self.writes = path, identity, Pace(seconds), writes
        self.interrupted: Callable[[], bool] = lambda: False
        self.structure = jax.tree.structure(like)
        self.results: list[list[np.ndarray]] = []
        self.known = self.asked = self.saved = 0

    def read(self, path: Path) -> None:
        """Begin with what is saved there."""

        def results(file: Any) -> list[list[np.ndarray]]:
            metadata = file.metadata()
            if self.identity is None or not self.identity.is_of(metadata):
                raise ValueError(
                    f"checkpoint {path} belongs to another run (other data, model, tol or seed). Pass resume=False to "
                    f"start afresh, or the arguments of the first call."
                )
            sizes = range(self.structure.num_leaves)
            return [[file.get_tensor(f"{k}/{i}") for i in sizes] for k in range(json.loads(metadata["results"]))]

        self.results, error = _intact(path, results, _JOURNAL_FORMATS, _JOURNAL)
        self.known = self.saved = len(self.results)
        if error is not None:
            _warn_of(error, path)

    def result(self, compute: Callable[[], Any]) -> Any:
        """The next result: one of those that were read, or computed now."""
        if self.path is None:
            return compute()
        place, self.asked = self.asked, self.asked + 1
        if place >= self.known:
            if self.interrupted():
                raise KeyboardInterrupt
            self.results.append([np.asarray(leaf) for leaf in jax.tree.leaves(compute())])
            if time.monotonic() >= self.pace.due:
                self.save()
        return jax.tree.unflatten(self.structure, self.results[place])

    def save(self) -> None:
        """Write what there is; where that fails, there is a warning, and the search goes on."""
        if self.path is None or self.identity is None or not self.writes or len(self.results) == self.saved:
            return
        began = time.monotonic()
        tensors = {f"{k}/{i}": leaf for k, leaves in enumerate(self.results) for i, leaf in enumerate(leaves)}
        metadata = {
            "format": _JOURNAL_FORMATS[-1],
            "identity": self.identity.whole,
            "model": self.identity.without_start,
            "devices": json.dumps(self.identity.devices),
            "results": json.dumps(len(self.results)),
        }
        try:
            write_tensors(self.path, tensors, metadata, keep=previous_of(self.path))
            self.saved = len(self.results)
        except OSError as error:
            warnings.warn(f"The checkpoint was not written, and the search goes on without it. {error}", stacklevel=4)
        self.pace.written(began)


def _intact(path: Path, read: Any, *kind: Any) -> tuple[Any, DamagedFileError | None]:
    """What `read` makes of the checkpoint or, where that is damaged, of the one before, and what was damaged."""
    try:
        return _opened(path, read, *kind), None
    except DamagedFileError as error:
        before = previous_of(path)
        if before.exists():
            try:
                return _opened(before, read, *kind), error
            except DamagedFileError:
                pass
        raise DamagedFileError(f"checkpoint {error} {_REMEDY}") from None


def _opened(path: Path, read: Any, formats: Sequence[str] = _FORMATS, what: str = _WHAT) -> Any:
    with opened_tensors(path, formats, what) as file:
        metadata = file.metadata()
        if metadata["format"] == _FORMATS[0] and metadata["digest"] != _first_digest(file):
            raise DamagedFileError(f"{path} is damaged: its numbers are not those that were saved.")
        return read(file)


def _first_digest(file: Any) -> str:
    """Of format 1: of the names and bytes of the arrays, but not of their types and shapes, nor of the texts."""
    digest = hashlib.sha256()
    for name in sorted(file.keys()):
        digest.update(name.encode() + np.ascontiguousarray(file.get_tensor(name)).tobytes())
    return digest.hexdigest()
