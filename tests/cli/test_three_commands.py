"""From install to a report on one's own CSV in three commands: those of the documentation, run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "command-line.md"


@pytest.fixture(scope="module")
def commands():
    """The lines of the first block of the page; `text`, since the site's build runs no browser."""
    block = re.search(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return block[1].splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data.csv as a person might have it: texts, units in brackets, something like HTML."""
    rng = np.random.default_rng(5)
    age, ward = rng.normal(60, 12, 80).round(1), rng.choice(["<b>east</b>", "north & south"], 80)
    outcome = np.where(rng.random(80) < 1 / (1 + np.exp(-0.1 * (age - 60))), "yes", "no")
    folder = tmp_path_factory.mktemp("own")
    lines = ["age [years],ward,outcome", *(",".join(map(str, row)) for row in zip(age, ward, outcome, strict=True))]
    (folder / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_they_make_and_open_a_report(commands, folder):
    install, *rest = commands
    assert len(rest) == 2 and re.fullmatch(r"pip install '?provi(\[\w+\])?'?", install)
    scripts = Path(sys.executable).parent
    browser = folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {folder / "opened"}\n')
    browser.chmod(0o755)
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "BROWSER": f"{browser} %s"}
    script = "\n".join(["set -eu", *rest])
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for words in (
        "reference '<b>east</b>'",
        "1 for 'yes'",
        "age [years]",
        "Wrote report.html.",
        "\nCertified: the gap",
    ):
        assert words in done.stdout
    assert (folder / "opened").read_text().strip() == f"file://{folder}/report.html"
    check_report((folder / "report.html").read_text(encoding="utf-8"), rest[0])


def check_report(page, command):
    """The verdict, the parameters, the command; nothing from the network, nothing of the data as HTML."""
    assert "Certified" in page and "age [years]" in page and command in page
    assert "ward=north &amp; south" in page and "<b>east" not in page
    assert not re.search(r"(?:src|href)=[\"'](?!data:|#)", page) and "<script" not in page
