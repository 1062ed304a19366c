"""The engine that runs the pages: what it runs, what it shows, and that a failure names page and line."""

import base64
import sys

import pytest
from execution import PageError, find_blocks, is_run_by_hand, run_page


def write(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text.replace("'''", "```"))
    return page


def test_blocks_share_a_module_and_a_directory(tmp_path, as_a_reader):
    page = write(
        tmp_path,
        "'''python\nfrom pathlib import Path\nPath('x.txt').write_text('7')\nx = 1\n'''\n\n"
        "'''text\nnot run: raise\n'''\n\n- a list\n\n"
        "    '''python\n    print(x, Path('x.txt').read_text())\n    '''\n",
    )
    assert [output.text for output in run_page(page)] == ["", "1 7\n"]


def test_figures_are_taken_with_a_description(tmp_path, as_a_reader):
    code = (
        "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots()\naxes.set(title='T', xlabel='a', ylabel='b')\n"
    )
    first, second = run_page(write(tmp_path, f"'''python\n{code}'''\n\n'''python\nprint(plt.get_fignums())\n'''\n"))
    [(picture, description, _)] = first.figures
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert description == "T: b against a"
    assert (second.text, second.figures) == ("[]\n", [])


@pytest.mark.parametrize("code", ["x = 1\nraise KeyError('gone')", "x = 1\nx = = 2", "x = 1\nraise SystemExit('gone')"])
def test_a_failure_names_page_and_line(code, tmp_path, as_a_reader):
    page = write(tmp_path, f"# Title\n\n'''python\n{code}\n'''\n")
    with pytest.raises(PageError, match=r"page\.md:5: (KeyError|SyntaxError|SystemExit)"):
        run_page(page)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A `provi` beside the interpreter, as in a virtual environment, that is quick: it fails when told to."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "provi"
    script.write_text('#!/bin/sh\necho "called with $*"\n[ "$1" != fail ] || exit 2\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))


def test_commands_run_where_the_code_ran(tmp_path, program, as_a_reader):
    commands = "'''bash\nprovi fit a.csv > said.txt\n'''\n\n'''console exit=2\n$ provi fail\n'''\n\n"
    code = "'''python\nfrom pathlib import Path\nprint(Path('said.txt').read_text(), end='')\n'''\n"
    outputs = run_page(write(tmp_path, commands + code))
    assert [output.text for output in outputs] == ["", "called with fail\n", "called with fit a.csv\n"]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("'''bash\nprovi fail\n'''", r"page\.md:1: exit code 2, not 0\.\ncalled with fail"),
        ("'''bash exit=2\nprovi fit\n'''", r"page\.md:1: exit code 0, not 2"),
        ("'''bash\nls\n'''", "starts with `provi `"),
        ("'''python\nx = 1\n", "never closed"),
    ],
)
def test_commands_that_end_otherwise_fail(block, message, tmp_path, program, as_a_reader):
    with pytest.raises(PageError, match=message):
        run_page(write(tmp_path, block + "\n"))


def test_what_a_reader_runs_by_hand():
    assert is_run_by_hand("# first\npip install provi\ncd x\nmake\n")
    assert not is_run_by_hand("pip install provi\nprovi demo\n")


def test_blocks_know_their_lines():
    blocks = find_blocks("a\n\n```bash exit=2\nprovi\n```\n\n````text\n```python\n```\n````\n")
    assert [(b.language, b.options, b.first, b.last) for b in blocks] == [
        ("bash", ("exit=2",), 3, 5),
        ("text", (), 7, 10),
    ]
