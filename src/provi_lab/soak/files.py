"""Damaged files are refused, or the run falls back and says so; a full disk costs neither result nor old file."""

import contextlib
import errno
import os
import resource
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import provi
from provi.runtime.checkpoint import previous_of
from provi_lab.soak.damage import DAMAGES
from provi_lab.soak.problems import answer, content, fitted
from provi_lab.soak.tally import Tally, ViolationError, clear

_SAVED = (("linear", 0), ("linear", 1), ("dual", 0), ("dual", 1))
_CALLS = ("fsync", "replace", "open", "link", "chmod")
_ERRORS = (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EACCES)


@contextlib.contextmanager
def cases() -> Iterator[Callable[[np.random.Generator, Tally], str]]:
    """A case: a saved fit or a checkpoint with one kind of damage; one in eight is a disk that fails."""
    with tempfile.TemporaryDirectory() as folder:
        yield _Files(Path(folder)).case


class _Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fits: dict[tuple[str, int], tuple[bytes, str]] = {}
        self.runs: dict[tuple[str, int], tuple[bytes, bytes, str]] = {}
        for key in _SAVED:
            name = f"{key[0]}{key[1]}"
            path = folder / f"{name}.ckpt"
            fit = fitted(*key, checkpoint=path, checkpoint_seconds=0.0)
            self.runs[key] = path.read_bytes(), previous_of(path).read_bytes(), answer(fit)
            fit.save(folder / f"{name}.fit")
            loaded = provi.load(folder / f"{name}.fit")
            self.fits[key] = (folder / f"{name}.fit").read_bytes(), content(loaded)
        self.fit = fitted("linear", 0)

    def case(self, rng: np.random.Generator, tally: Tally) -> str:
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            way = rng.random()
            if way < 0.125:
                return self.failing_disk(rng, tally, Path(place))
            tally.counts["damaged files"] += 1
            return self.damaged_fit(rng, Path(place)) if way < 0.6 else self.damaged_run(rng, Path(place))

    def damaged_fit(self, rng: np.random.Generator, place: Path) -> str:
        """A fit is refused, or it is the one that was saved: nothing between."""
        key, how = _SAVED[rng.integers(len(_SAVED))], str(rng.choice(list(DAMAGES)))
        good, wanted = self.fits[key]
        others = [self.fits[other][0] for other in _SAVED if other != key] + [self.runs[key][0]]
        path = place / "fit.safetensors"
        made = DAMAGES[how](rng, good, others[rng.integers(len(others))])
        path.write_bytes(made)
        for whole, held in self.fits.values():  # spliced where both begin alike, the file is the other one, whole
            wanted = held if made == whole else wanted
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = content(provi.load(path))
        except Exception as error:
            return f"fit: {clear(error, str(path))}"
        if found != wanted:
            raise ViolationError(f"a fit with damage ({how}) was loaded with other content than was saved")
        return "fit: harmless"

    def damaged_run(self, rng: np.random.Generator, place: Path) -> str:
        """A run is refused or, where the checkpoint before is there, goes on from it with a warning: same answer."""
        key, how = _SAVED[rng.integers(len(_SAVED))], str(rng.choice([*DAMAGES, "another run's", "a fit"]))
        good, before, wanted = self.runs[key]
        others = [run[0] for other, run in self.runs.items() if other != key]
        other, path = others[rng.integers(len(others))], place / "run.ckpt"
        if how in DAMAGES:
            path.write_bytes(DAMAGES[how](rng, good, other))
        else:
            path.write_bytes(other if how == "another run's" else self.fits[key][0])
        kept = rng.random() < 0.3
        if kept:
            previous_of(path).write_bytes(before)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found = answer(fitted(*key, checkpoint=path, resume=True))
        except Exception as error:
            return f"checkpoint: {clear(error, str(path))}"
        if found != wanted:
            raise ViolationError(f"a run went on from a checkpoint with damage ({how}) to another answer")
        if any("goes on from the checkpoint before" in str(warning.message) for warning in said):
            return "checkpoint: fell back"
        return "checkpoint: harmless"

    def failing_disk(self, rng: np.random.Generator, tally: Tally, place: Path) -> str:
        """A write that fails: the old file stays as it was, the run keeps its answer, and the error names the file."""
        tally.counts["failing disks"] += 1
        what = str(rng.choice(["save", "run", "text"]))
        path = place / "old"
        old = self.runs["linear", 0][1] if what == "run" else self.fits["linear", 1][0]
        path.write_bytes(old)
        with failing_writes(rng) as how, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                end = self.write(what, path)
            except Exception as error:
                end = clear(error, str(path))
        if what == "run":
            return f"failing disk, run: {self.run_after(end, path, said)}"
        now = path.read_bytes()
        if end == "refused" and now != old:
            raise ViolationError(f"{what}: a write that failed ({how}) changed the old file")
        if what == "save" and end == "written":
            provi.load(path)
        left = [file.name for file in place.iterdir() if file != path]
        if left:
            raise ViolationError(f"{what}: a write that failed ({how}) left {left}")
        return f"failing disk, {what}: {end}"

    def write(self, what: str, path: Path) -> str:
        if what == "save":
            self.fit.save(path)
        elif what == "text":
            from provi.core.files import write_text

            write_text(path, "a report\n" * 500)
        else:
            return answer(fitted("linear", 0, checkpoint=path, checkpoint_seconds=0.0, resume=True))
        return "written"

    def run_after(self, end: str, path: Path, said: list[Any]) -> str:
        """The run was refused before it began, or kept its answer; and its checkpoint still leads there."""
        wanted = self.runs["linear", 0][2]
        if end not in ("refused", wanted):
            raise ViolationError("a run whose checkpoint could not be written came to another answer")
        if answer(fitted("linear", 0, checkpoint=path, resume=True)) != wanted:
            raise ViolationError("after a disk that failed the checkpoint leads to another answer")
        if end == "refused":
            return "refused before the run"
        return "warned, result kept" if said else "written"


@contextlib.contextmanager
def failing_writes(rng: np.random.Generator) -> Iterator[str]:
    """Inside, files cannot grow beyond some bytes, for the system itself; or a call of `os` fails, from its k-th on."""
    if rng.random() < 0.5:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = int(rng.choice([0, 100, 1000, 2048, 4096]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))  # Python ignores the signal that goes with it
        try:
            yield "full"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return
    name, first, number = str(rng.choice(_CALLS)), int(rng.integers(6)), int(rng.choice(_ERRORS))
    real, calls = getattr(os, name), [0]

    def failing(*words: Any, **options: Any) -> Any:
        writes = name != "open" or (len(words) > 1 and words[1] & (os.O_CREAT | os.O_WRONLY))
        if writes:
            calls[0] += 1
        if writes and calls[0] > first:
            raise OSError(number, os.strerror(number), *(str(word) for word in words[:1] if not isinstance(word, int)))
        return real(*words, **options)

    with mock.patch.object(os, name, failing):
        yield name
