"""Fits, saves and reports that are killed at random moments: nothing is lost, and nothing is half written."""

import contextlib
import os
import re
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import provi
from provi.runtime.checkpoint import previous_of
from provi_lab.soak.problems import FOLDER, RESUMABLE, answer, content, fitted
from provi_lab.soak.tally import Tally, ViolationError
from provi_lab.soak.worker import Victims

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SHARES = {"linear": 0.28, "dual": 0.24, "streamed": 0.03, "planned": 0.08, "black_box": 0.06, "modes": 0.04}
SHARES |= {"whitened": 0.03, "richer": 0.02, "network": 0.03, "nested": 0.03, "mixed": 0.02, "save": 0.1}
SHARES |= {"report": 0.05}
"""Of the cases. A victim that compiles takes seconds to start."""

_NUMBERS = 3  # problems of each structure
_SLOW = ("planned", "black_box", "modes", "whitened", "richer", "network", "nested", "mixed", "report")
_MOST_KILLS = 3  # of one run


@contextlib.contextmanager
def cases() -> Iterator[Callable[[np.random.Generator, Tally], str]]:
    """A case: a run that is killed, up to three times, and then resumed; or a file that is being written."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {FOLDER: folder}))
        kills = _Kills(Path(folder), Victims())
        stack.callback(kills.victims.close)
        yield kills.case


class _Kills:
    def __init__(self, folder: Path, victims: Victims) -> None:
        self.folder, self.victims = folder, victims
        self.references: dict[tuple[str, int], str] = {}
        self.seconds: dict[str, float] = {}
        self.fits: dict[str, Any] = {}

    def case(self, rng: np.random.Generator, tally: Tally) -> str:
        what = str(rng.choice(list(SHARES), p=np.array(list(SHARES.values())) / sum(SHARES.values())))
        place = Path(tempfile.mkdtemp(dir=self.folder))
        if what in ("save", "report"):
            return self.writing(what, rng, tally, place)
        return self.fit(what, rng, tally, place)

    def fit(self, structure: str, rng: np.random.Generator, tally: Tally, place: Path) -> str:
        number, path = int(rng.integers(_NUMBERS)), place / "run.ckpt"
        wanted = self.reference(structure, number)
        for count in range(int(rng.integers(1, _MOST_KILLS + 1)) if structure in RESUMABLE else 1):
            said = self.killed(
                {"what": "fit", "structure": structure, "number": number, "resume": count > 0}, path, rng, tally
            )
            if "error " in said:
                raise ViolationError(f"{structure} {number}: a fit that was to be interrupted failed: {said}")
            # One that was hit in its last step may still be proven to be within the tolerance, by one more certificate.
            if said.startswith("in time") and said.split()[-1] != wanted:
                raise ViolationError(f"{structure} {number}: ended as {said}, uninterrupted as {wanted}")
            if said.startswith("INTERRUPTED") and structure in RESUMABLE and not path.exists():
                raise ViolationError(f"{structure} {number}: interrupted, and no checkpoint was left")
        saving = {"checkpoint": path, "checkpoint_seconds": 0.0, "resume": True} if structure in RESUMABLE else {}
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a fallback to the previous checkpoint: kills must not lead to one
            resumed = fitted(structure, number, **saving)
        if answer(resumed) != wanted:
            raise ViolationError(f"{structure} {number}: resumed {answer(resumed)}, uninterrupted {wanted}")
        left = {file.name for file in place.iterdir()} - {path.name, previous_of(path).name}
        # A run that resumes removes what killed ones left, but only of this path.
        if any(not name.endswith(".lock") for name in left):
            raise ViolationError(f"{structure} {number}: files were left behind: {', '.join(sorted(left))}")
        return f"{structure}, resumed alike"

    def writing(self, what: str, rng: np.random.Generator, tally: Tally, place: Path) -> str:
        """A file is always one of two versions, whole."""
        sources = self.sources()
        path = place / ("fit.safetensors" if what == "save" else "fit.html")
        getattr(self.fits["first"], what)(path)
        job = {"what": what, "sources": [str(source) for source in sources], "times": 20 if what == "save" else 2}
        said = self.killed(job, path, rng, tally)
        if "error " in said:
            raise ViolationError(f"{what}: {said}")
        if what == "save":
            found = content(provi.load(path))
            wanted = [content(fit) for fit in self.fits.values()]
        else:
            found, wanted = _without_clock(path), self.pages()
        if found not in wanted:
            broken = "a broken file" if what == "report" and not found.rstrip().endswith("</html>") else "another one"
            raise ViolationError(f"{what}: what is there after {said} is not the old version or the new one: {broken}")
        drafts = [file.name for file in place.iterdir() if file != path]
        if drafts and not said.startswith("killed"):  # a killed process cannot clean up
            raise ViolationError(f"{what}: drafts were left after {said}: {drafts}")
        return f"{what}, old or new"

    def killed(self, job: dict[str, Any], path: Path, rng: np.random.Generator, tally: Tally) -> str:
        """What the victim of a random signal at a random moment says."""
        name = job.get("structure", job["what"])
        # A victim that dies has to start again, which takes as long as many small fits.
        signals = SIGNALS if name not in _SLOW or rng.random() < 0.3 else SIGNALS[1:]
        number, part = signals[int(rng.integers(len(signals)))], float(rng.random())
        pid = self.victims.begin({**job, "path": str(path)})
        began = time.monotonic()
        said = self.victims.end(pid, number, 1.1 * part * self.seconds.get(name, 0.3))
        taken = time.monotonic() - began
        hit = not said.startswith("in time")
        tally.counts[f"{number.name} that hit" if hit else f"{number.name} too late"] += 1
        tally.counts["kills"] += hit
        # How long a job takes is learnt from those that end, so that the moments spread over all of it.
        known = self.seconds.get(name, 0.3)
        self.seconds[name] = 0.7 * known + 0.3 * taken if not hit else max(known, taken)
        return said

    def reference(self, structure: str, number: int) -> str:
        key = structure, number
        if key not in self.references:
            # With a checkpoint: whitened rounds are one round then.
            with tempfile.TemporaryDirectory(dir=self.folder) as place:
                saving = {"checkpoint": Path(place) / "run.ckpt"} if structure in RESUMABLE else {}
                self.references[key] = answer(fitted(structure, number, **saving))
        return self.references[key]

    def sources(self) -> list[Path]:
        paths = [self.folder / "first.safetensors", self.folder / "second.safetensors"]
        if not self.fits:
            for name, path, number in zip(("first", "second"), paths, (0, 1), strict=True):
                fitted("linear", number).save(path)
                self.fits[name] = provi.load(path)
        return paths

    def pages(self) -> list[str]:
        pages = []
        for name, fit in self.fits.items():
            path = self.folder / f"{name}.html"
            if not path.exists():
                fit.report(path)
            pages.append(_without_clock(path))
        return pages


def _without_clock(page: Path) -> str:
    """A report says when it was written, to the minute."""
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", page.read_text())
