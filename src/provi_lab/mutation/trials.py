"""A copy of the tree, what each test file runs of it and how long it takes, and one changed file at a time."""

import ast
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from provi_lab.mutation.mutants import Mutant

ROOT = Path(__file__).resolve().parents[3]
TESTS = {
    "certificates": ("certificates", "soundness", "structures"),
    "theory": ("theory", "soundness"),
    "geometry": ("geometry", "algorithms"),
}
"""Folders of tests whose files are asked, by room; which of them run a line is measured."""

_LONGEST_FILE = 300.0


@dataclasses.dataclass(frozen=True)
class TestFile:
    """What it runs: lines by module. `seconds` that it takes."""

    path: str
    seconds: float
    lines: dict[str, frozenset[int]]


class Copy:
    """A copy of the tree in a folder: nothing is ever written to the tree itself."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(ROOT / "src", self.root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copytree(ROOT / "tests", self.root / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
            shutil.copy(ROOT / name, self.root / name)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(self.root / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",  # of two changes within a second the older bytecode would be run
            "OPENBLAS_NUM_THREADS": "1",
        }
        words = [sys.executable, "-c", "import provi; print(provi.__file__)"]
        where = subprocess.run(words, cwd=self.root, env=self.environment, capture_output=True, text=True).stdout
        if not where.startswith(str(self.root)):
            raise RuntimeError(f"the tests of the copy would run {where.strip()}, not {self.root}")

    def test_files(self, room: str, module: str) -> list[str]:
        """Files of the room's tests that name the module, or something that is defined in it; those of the room all."""
        names = _names(self.root / "src" / module)
        found = []
        for folder in TESTS[room]:
            for path in sorted((self.root / "tests" / folder).rglob("test_*.py")):
                text = path.read_text()
                if folder == room or any(name in text for name in names):
                    found.append(str(path.relative_to(self.root)))
        return found

    def measured(self, path: str) -> TestFile:
        """Run one file of tests on the unchanged copy; one that does not pass there has no say."""
        out = self.root / "lines.json"
        folder = str(self.root / "src" / "provi")
        traced = {**self.environment, "PROVI_MUTATION_FOLDER": folder, "PROVI_MUTATION_LINES": str(out)}
        out.unlink(missing_ok=True)
        began = time.monotonic()
        code = self._pytest(["-p", "provi_lab.mutation.lines", path], traced, _LONGEST_FILE)
        if (
            code != 0 or not out.exists()
        ):  # too long to be asked a hundred times, or of something that is not in the copy
            return TestFile(path, time.monotonic() - began, {})
        seen = json.loads(out.read_text())
        lines = {str(Path(name).relative_to(self.root / "src")): frozenset(seen[name]) for name in seen}
        return TestFile(path, time.monotonic() - began, lines)

    def passes(self, paths: list[str], limit: float) -> bool | None:
        """Whether the tests of these files pass; None where that takes longer than `limit` seconds."""
        code = self._pytest(["-x", *paths], self.environment, limit)
        return None if code is None else code == 0

    def judged(self, module: str, mutant: Mutant, files: list[TestFile]) -> str:
        """How a change ends: killed, survived, timed out (it goes round for ever), or not run by any of these tests."""
        covering = sorted((f for f in files if mutant.line in f.lines.get(module, ())), key=lambda file: file.seconds)
        if not covering:
            return "not run"
        path = self.root / "src" / module
        before = path.read_text()
        try:
            path.write_text(mutant.applied(before))
            limit = 60 + 4 * sum(file.seconds for file in covering)
            passed = self.passes([file.path for file in covering], limit)
        finally:
            path.write_text(before)
        return {None: "timed out", True: "survived", False: "killed"}[passed]

    def _pytest(self, words: list[str], environment: dict[str, str], limit: float) -> int | None:
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *words]
        process = subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started
            process.wait()


def modules_of(room: str) -> list[str]:
    """Its source files, relative to src."""
    folder = ROOT / "src" / "provi" / room
    paths = folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]
    return sorted(str(path.relative_to(ROOT / "src")) for path in paths if path.name != "__init__.py")


def _names(path: Path) -> list[str]:
    defined = [n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    dotted = ".".join(path.with_suffix("").parts[path.parts.index("src") + 1 :]) if "src" in path.parts else path.stem
    return [dotted, *(name for name in defined if not name.startswith("_"))]
