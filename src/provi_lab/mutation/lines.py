"""A plugin of pytest that writes which lines of some files the tests run: `-p provi_lab.mutation.lines`.

The folder is in `PROVI_MUTATION_FOLDER`, the answer goes to `PROVI_MUTATION_LINES`, as {file: [lines]}.
"""

import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

_FOLDER = os.environ.get("PROVI_MUTATION_FOLDER", "")
_seen: dict[str, set[int]] = {}


def _enter(frame: FrameType, event: str, argument: Any) -> Any:
    if not frame.f_code.co_filename.startswith(_FOLDER):
        return None
    _seen.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
    return _step


def _step(frame: FrameType, event: str, argument: Any) -> Any:
    _seen[frame.f_code.co_filename].add(frame.f_lineno)
    return _step


def pytest_configure(config: Any) -> None:
    """Before anything of the library is imported: constants of a module are lines as well."""
    if _FOLDER:
        sys.settrace(_enter)


def pytest_unconfigure(config: Any) -> None:
    """Write what was seen."""
    sys.settrace(None)
    out = os.environ.get("PROVI_MUTATION_LINES")
    if out:
        Path(out).write_text(json.dumps({name: sorted(lines) for name, lines in _seen.items()}))
