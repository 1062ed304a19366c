"""The code of a Markdown page, run from top to bottom as a reader would: used by the site's build and by the tests.

The fence says what a block is:

- `python` is run, all blocks of a page in one module and one temporary directory;
- `bash` and `console` hold `provi` commands and are run in the same directory (`bash exit=2` where an error is shown);
- `sh`, or nothing, is for what cannot be run here: pip, git, make and cd;
- everything else (`text`, `stan`, `json`) is not code of ours and is left alone.
"""

import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import traceback
import types
from dataclasses import asdict, dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent>[ ]*)(?P<fence>`{3,}|~{3,})[ ]*(?P<info>[^`\n]*)$")
_RUN_BY_HAND = re.compile(r"(pip|python3? -m pip|git|make|cd) ")


class PageError(Exception):
    """A block failed; the message has page and line."""


@dataclass(frozen=True)
class Block:
    """A fenced block: `first` and `last` are the lines of its fences, counted from 1."""

    language: str
    options: tuple[str, ...]
    code: str
    indent: str
    first: int
    last: int

    @property
    def is_run(self) -> bool:
        return self.language in ("python", "bash", "console")


@dataclass
class Output:
    """What a block printed, and the figures it left open as (PNG in base64, alternative text, width in pixels)."""

    text: str = ""
    figures: list[tuple[str, str, int]] = field(default_factory=list)


def find_blocks(markdown: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    blocks: list[Block] = []
    opened: re.Match[str] | None = None
    first, lines = 0, []
    for number, line in enumerate(markdown.splitlines(), start=1):
        match = _FENCE.match(line)
        if opened is None and match:
            opened, first, lines = match, number, []
        elif opened is not None and match and match["fence"].startswith(opened["fence"]) and not match["info"].strip():
            language, *options = opened["info"].split() or [""]
            code = textwrap.dedent("\n".join(lines) + "\n")
            blocks.append(Block(language, tuple(options), code, opened["indent"], first, number))
            opened = None
        elif opened is not None:
            lines.append(line)
    if opened is not None:
        raise PageError(f"line {first}: this block is never closed.")
    return blocks


def is_run_by_hand(code: str) -> bool:
    """Whether every line is a comment or calls pip, git, make or cd: what an `sh` block may hold."""
    lines = [line.strip() for line in code.splitlines()]
    return all(not line or line.startswith("#") or _RUN_BY_HAND.match(line + " ") for line in lines)


def run_page(page: Path, markdown: str | None = None) -> list[Output]:
    """Run a page in this process, and return the output of each block that is run; a failure is a `PageError`."""
    text = page.read_text() if markdown is None else markdown
    module = types.ModuleType("page_" + re.sub(r"\W", "_", page.stem))
    sys.modules[module.__name__] = module  # dataclasses and pickle look for the classes of the page there
    outputs = []
    try:
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
            for block in find_blocks(text):
                if block.is_run:
                    run = _run_python if block.language == "python" else _run_commands
                    outputs.append(run(page, block, module))
    finally:
        del sys.modules[module.__name__]
    return outputs


def _run_python(page: Path, block: Block, module: types.ModuleType) -> Output:
    # Empty lines in front give tracebacks, and `inspect.getsource`, the line numbers of the page.
    source = "\n" * block.first + block.code
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(page), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(page)]
        line = frames[-1].lineno if frames else getattr(error, "lineno", None) or block.first
        raise PageError(f"{page}:{line}: {type(error).__name__}: {error}") from error
    return Output(printed.getvalue(), _take_figures())


def _run_commands(page: Path, block: Block, _: types.ModuleType) -> Output:
    code = re.sub(r"^\$ ", "", block.code, flags=re.MULTILINE)
    if not code.startswith("provi "):
        raise PageError(
            f"{page}:{block.first}: a {block.language} block starts with `provi `; what is not run is `sh`."
        )
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    expected = next((int(option[5:]) for option in block.options if option.startswith("exit=")), 0)
    if done.returncode != expected:
        raise PageError(
            f"{page}:{block.first}: exit code {done.returncode}, not {expected}.\n{done.stdout}{done.stderr}"
        )
    return Output(done.stdout + (done.stderr if expected else ""))


def _take_figures() -> list[tuple[str, str, int]]:
    if "matplotlib.pyplot" not in sys.modules:
        return []
    import matplotlib.pyplot as plt

    figures = []
    for number in plt.get_fignums():
        figure = plt.figure(number)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
        encoded = base64.b64encode(picture.getvalue()).decode()
        figures.append((encoded, _alternative_text(figure), round(90 * figure.get_figwidth())))
    plt.close("all")
    return figures


def _alternative_text(figure) -> str:
    """A sentence made of what the figure itself says: its title, or the titles and labels of its panels."""
    panels = []
    for axes in figure.axes:
        title = axes.get_title() or axes.get_title(loc="left") or axes.get_title(loc="right")
        labels = " against ".join(label for label in (axes.get_ylabel(), axes.get_xlabel()) if label)
        panels.append(": ".join(part for part in (title, labels) if part))
    said = [figure.get_suptitle(), *dict.fromkeys(panels)]
    return " ".join("; ".join(part for part in said if part).split()) or "Figure made by the code above"


if __name__ == "__main__":  # python execution.py PAGE ANSWER: each page has a process of its own at build time
    os.environ.update(MPLBACKEND="Agg", COLUMNS="100")
    try:
        answer = {"outputs": [asdict(output) for output in run_page(Path(sys.argv[1]).resolve())]}
    except PageError as failure:
        answer = {"error": str(failure)}
    Path(sys.argv[2]).write_text(json.dumps(answer))
