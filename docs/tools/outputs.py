"""What the pages print, made at build time: run in processes of their own, kept in build/docs-cache, and inserted."""

import hashlib
import html
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from execution import Block, PageError, find_blocks

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "docs-cache"
_LIMIT = 600  # seconds a page; the slowest, with a Stan model to compile, takes about a minute on a busy machine


@cache
def _state_of_the_library() -> bytes:
    """A hash of all that can change what a page prints: the package, the engine and the pinned versions."""
    files = [*(ROOT / "src").rglob("*.*"), ROOT / "constraints.txt", Path(__file__).with_name("execution.py")]
    digest = hashlib.sha256(sys.version.encode())
    for file in sorted(files):
        if file.is_file() and file.suffix in (".py", ".csv", ".json", ".txt", ".jinja", ".html"):
            digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.digest()


def make_outputs(pages: Iterable[Path], jobs: int) -> dict[Path, list[dict]]:
    """The outputs of each page's blocks; only pages that changed, or all when the library did, are run."""
    CACHE.mkdir(parents=True, exist_ok=True)
    to_run = [page for page in pages if any(block.is_run for block in find_blocks(page.read_text()))]
    with ThreadPoolExecutor(jobs) as workers:
        return dict(zip(to_run, workers.map(_outputs_of, to_run), strict=True))


def _outputs_of(page: Path) -> list[dict]:
    digest = hashlib.sha256(_state_of_the_library() + page.read_bytes()).hexdigest()[:32]
    name = f"{page.parent.name}.{page.stem}"  # two folders may have pages of one name
    kept = CACHE / f"{name}.{digest}.json"
    if not kept.exists():
        with tempfile.TemporaryDirectory() as directory:
            answer = Path(directory) / "answer.json"
            engine = Path(__file__).with_name("execution.py")
            environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
            command = [sys.executable, str(engine), str(page), str(answer)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False)
            result = json.loads(answer.read_text()) if answer.exists() else {"error": f"{page}:\n{done.stderr}"}
        if "error" in result:
            raise PageError(result["error"])
        for outdated in CACHE.glob(f"{name}.*.json"):
            outdated.unlink()
        kept.write_text(json.dumps(result))
    return json.loads(kept.read_text())["outputs"]


def insert_outputs(markdown: str, outputs: list[dict] | None) -> str:
    """The page with each block's output below it; options such as `exit=2` are taken off the fences."""
    lines = markdown.splitlines()
    blocks = [block for block in find_blocks(markdown) if block.is_run]
    for number, block in reversed(list(enumerate(blocks))):
        if outputs:
            lines[block.last : block.last] = _shown(block, outputs[number])
        lines[block.first - 1] = f"{block.indent}```{block.language}"
    return "\n".join(lines) + "\n"


def _shown(block: Block, output: dict) -> list[str]:
    shown = []
    if output["text"].strip():
        text = [line.rstrip() for line in output["text"].strip("\n").splitlines()]
        shown += ["", "````{ .text .output }", *text, "````", ""]
    for picture, alternative, width in output["figures"]:
        described = html.escape(alternative, quote=True)
        source = f"data:image/png;base64,{picture}"
        shown += ["", f'<img class="output" src="{source}" alt="{described}" width="{width}">', ""]
    return [block.indent + line if line else line for line in shown]
