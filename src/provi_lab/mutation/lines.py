"""A plugin of pytest that records which lines of the library each test runs, and how long it takes.

What JAX has traced it does not run again, so that a line belongs to the first test of a file that needs it; a line that
runs on import only belongs to no test. `sys.monitoring` where Python has it (3.12), else `sys.settrace`, several times
slower.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

IMPORT = "on import"
"""In place of a test: what ran before the first one."""


class Recorder:
    """Writes {test: {"seconds", "passed", "lines": {module: [lines]}}} to `out`, again after each test.

    The file is whole whenever the run is ended. `folder`: with a slash, the sources whose lines count; modules are
    named relative to it.
    """

    def __init__(self, folder: str, out: Path) -> None:
        self.folder, self.out = folder, out
        self.tests: dict[str, dict[str, Any]] = {}
        self.seen: dict[str, set[int]] = {}
        self._again: Callable[[], None] = lambda: None
        self._began = 0.0

    def watch(self) -> None:
        """From now on lines are seen; before anything of the library is imported."""
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(monitoring.COVERAGE_ID, "provi_lab.mutation")
            monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self._line)
            monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
            self._again = monitoring.restart_events
        else:
            threading.settrace(self._enter)
            sys.settrace(self._enter)

    def pytest_runtest_setup(self, item: Any) -> None:
        """A new test: what was seen before, on import and by others, is not its own."""
        if not self.tests:
            self.tests[IMPORT] = {"passed": False, "seconds": 0.0, "lines": _plain(self.seen)}
        self.seen = {}
        self._again()
        self._began = time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """After each phase of a test."""
        passed = report.outcome == "passed"
        test = self.tests.setdefault(report.nodeid, {"passed": False, "seconds": 0.0, "lines": {}})
        if report.when == "call":
            test["passed"] = passed
        test["seconds"] = round(time.process_time() - self._began, 3)
        if report.when == "teardown":
            test["passed"] &= passed
            test["lines"] = _plain(self.seen)
            draft = self.out.with_suffix(".draft")
            draft.write_text(json.dumps(self.tests))
            draft.replace(self.out)

    def _line(self, code: CodeType, line: int) -> Any:
        if code.co_filename.startswith(self.folder):
            self.seen.setdefault(code.co_filename[len(self.folder) :], set()).add(line)
        return sys.monitoring.DISABLE  # until the next test: each line costs once  # pyright: ignore

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self.folder):
            return None
        return self._step(frame, event, argument)

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.seen.setdefault(frame.f_code.co_filename[len(self.folder) :], set()).add(frame.f_lineno)
        return self._step


def _plain(seen: dict[str, set[int]]) -> dict[str, list[int]]:
    return {name: sorted(lines) for name, lines in seen.items()}
