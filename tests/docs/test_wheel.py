"""What a reader gets: the built wheel, outside of the repository, with what `pip install` brings and nothing else.

Every command and every block of code of the README and of the page Getting started runs so. The extras of a block are
those that its section names: `pip install 'provi[formula]'`. The environment has the wheel in it and takes its other
packages from the one that runs the tests, but for those that the extras do not bring: these are hidden.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest
from execution import Block, find_blocks
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
README, COMMANDS = ROOT / "README.md", ROOT / "docs" / "command-line.md"
STARTED, EXECUTION = ROOT / "docs" / "getting-started.md", ROOT / "docs" / "tools" / "execution.py"
HIDE = """\
import os, sys

NAMES = frozenset(os.environ.get("HIDDEN_PACKAGES", "").split(","))

class Without:  # a finder that finds no hidden package, as if it were not there
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in NAMES else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


class Environment:
    """A virtual environment with the wheel, whose other packages are those of the tests."""

    def __init__(self, folder):
        self.folder = folder
        copy = folder / "source"  # a copy, so that nothing of earlier builds gets into the wheel
        copy.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        shutil.copytree(ROOT / "src" / "provi", copy / "src" / "provi", ignore=shutil.ignore_patterns("__pycache__"))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, copy], check=True)
        venv.create(folder / "env", with_pip=False)
        (wheel,) = folder.glob("provi-*.whl")
        self.python = folder / "env" / "bin" / "python"
        install = ["--python", self.python, "install", "--no-deps", wheel]
        subprocess.run([*pip[:3], *install, "--quiet", "--disable-pip-version-check"], check=True)
        (site,) = (folder / "env" / "lib").glob("python*/site-packages")
        (site / "hide_packages.py").write_text(HIDE)
        (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\nimport hide_packages\n")
        (info,) = site.glob("provi-*.dist-info")
        self.requirements = importlib.metadata.PathDistribution(info).requires or []

    def hidden(self, extras):
        """The modules of all packages that are installed here and that `pip install provi[extras]` would not bring."""
        wanted, seen = [("provi", frozenset(extras))], set()
        while wanted:
            name, own = wanted.pop()
            if (name, own) in seen:
                continue
            seen.add((name, own))
            for text in self.requirements if name == "provi" else _requirements(name):
                needed = Requirement(text)
                if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in own or {""}):
                    wanted.append((_normal(needed.name), frozenset(needed.extras)))
        brought = {name for name, _ in seen}
        modules = importlib.metadata.packages_distributions()
        return {module for module, names in modules.items() if brought.isdisjoint(map(_normal, names))} - {"provi"}

    def run(self, command, extras=(), cwd=None, **environment):
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        variables |= {"PATH": f"{self.python.parent}:{os.environ['PATH']}", "COLUMNS": "100", "NO_COLOR": "1"}
        variables |= {"HIDDEN_PACKAGES": ",".join(self.hidden(extras)), "MPLBACKEND": "Agg", **environment}
        return subprocess.run(command, cwd=cwd or self.folder, env=variables, capture_output=True, text=True)

    def run_page(self, page, extras=(), **environment):
        """What each block of a page printed, as docs/tools/execution.py runs them."""
        answer = self.folder / "answer.json"
        done = self.run([self.python, EXECUTION, page, answer], extras, **environment)
        assert done.returncode == 0, done.stderr
        found = json.loads(answer.read_text())
        assert "error" not in found, found["error"]
        return [output["text"] for output in found["outputs"]]


def _requirements(name):
    """Of an installed package; nothing of one that is not, as some extras are not those of the tests."""
    try:
        return importlib.metadata.requires(name) or ()
    except importlib.metadata.PackageNotFoundError:
        return ()


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("wheel"))


def sections(page):
    """The blocks of each section of a page, and the extras that its text names."""
    lines, found = page.read_text().splitlines(), []
    blocks = find_blocks(page.read_text())
    inside = {number for block in blocks for number in range(block.first, block.last + 1)}
    starts = [n for n, line in enumerate(lines, 1) if line.startswith("## ") and n not in inside]
    for start, end in zip(starts, [*starts[1:], len(lines) + 1], strict=True):
        text = "\n".join(lines[start - 1 : end - 1])
        named = [word for words in re.findall(r"pip install 'provi\[([\w,]+)\]'", text) for word in words.split(",")]
        found.append(([block for block in blocks if start <= block.first < end], tuple(sorted(set(named) - {"all"}))))
    return found


def examples():
    """README's blocks of Python by the extras that they need, each with what is printed below it."""
    groups: dict[tuple[str, ...], list[tuple[Block, Block]]] = {}
    for blocks, extras in sections(README):
        for place, block in enumerate(blocks):
            if block.language == "python":
                groups.setdefault(extras, []).append((block, blocks[place + 1]))
    return groups


def without_trailing_spaces(text):
    return [line.rstrip() for line in text.strip().splitlines()]


def test_every_block_of_the_readme_is_run_here():
    blocks = [block for pairs in examples().values() for block, _ in pairs]
    assert len(blocks) == sum(block.language == "python" for block in find_blocks(README.read_text())) >= 6
    assert {(), ("formula",), ("models",), ("numpyro",)} == set(examples())
    assert not any(block.language in ("bash", "console") for block in find_blocks(README.read_text()))


@pytest.mark.parametrize("extras", examples(), ids=lambda extras: ",".join(extras) or "none")
def test_examples_of_the_readme_print_what_is_shown(extras, environment, tmp_path):
    pairs = examples()[extras]
    page = tmp_path / "page.md"
    page.write_text("\n".join(f"```python\n{block.code}```\n" for block, _ in pairs))
    for printed, (block, shown) in zip(environment.run_page(page, extras), pairs, strict=True):
        assert shown.language == "text", f"README.md:{block.first}: each example is followed by what it prints"
        assert without_trailing_spaces(printed) == without_trailing_spaces(shown.code)


def test_getting_started_needs_no_extras(environment):
    blocks = [block for block in find_blocks(STARTED.read_text()) if block.is_run]
    outputs = environment.run_page(STARTED, JAX_DISABLE_MOST_OPTIMIZATIONS="true")
    assert len(outputs) == len(blocks) and "provi demo\n" in [block.code for block in blocks]
    assert "Picture: out/demo.png" in outputs[0] and "k-hat" in "".join(outputs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """data.csv as a person might have it: texts, units in brackets, something like HTML; some ages are not known."""
    rng = np.random.default_rng(5)
    age, ward = rng.normal(60, 12, 80).round(1), rng.choice(["<b>east</b>", "north & south"], 80)
    outcome = np.where(rng.random(80) < 1 / (1 + np.exp(-0.1 * (age - 60))), "yes", "no")
    folder = tmp_path_factory.mktemp("own")
    for name, ages in (("data.csv", age), ("gaps.csv", np.where(rng.random(80) < 0.2, "", age.astype(str)))):
        rows = zip(ages, ward, outcome, strict=True)
        lines = ["age [years],ward,outcome", *(",".join(map(str, row)) for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_three_commands_make_and_open_a_report(environment, folder):
    """From install to a report on one's own CSV: as README and the page Command line have them, word for word."""
    (first,) = [block.code for block in find_blocks(README.read_text()) if "webbrowser" in block.code]
    (second,) = [block.code for block in find_blocks(COMMANDS.read_text()) if "webbrowser" in block.code]
    install, *rest = first.splitlines()
    assert first == second and install == "pip install provi" and len(rest) == 2
    browser = folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {folder / "opened"}\n')
    browser.chmod(0o755)
    done = environment.run(["bash", "-c", "\n".join(["set -eu", *rest])], cwd=folder, BROWSER=f"{browser} %s")
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


def test_missing_entries_need_no_extras(environment, folder):
    words = ["provi", "fit", "gaps.csv", "--target", "outcome", "--model", "missing-logistic"]
    done = environment.run(words, cwd=folder, JAX_DISABLE_MOST_OPTIMIZATIONS="true")
    assert done.returncode in (0, 1) and "(intercept)" in done.stdout and "onverged" in done.stdout, done.stderr


PROBES = {
    ("arviz",): """
        x = np.random.default_rng(0).normal(size=(30, 2))
        fit = provi.fit(provi.targets.LinearRegression(x, x @ [1.0, -1.0]))
        loo = fit.loo(200).to_arviz()
        import arviz_stats
        print(fit.to_arviz(100).posterior.sizes["draw"], arviz_stats.compare({"a": loo, "b": loo}).shape[0])
    """,
    (): """
        for call, extra in (
            (lambda: provi.models.GPClassifier, "models"),
            (lambda: provi.models.MixedModel, "formula"),
            (lambda: provi.from_numpyro(print), "numpyro"),
            (lambda: provi.from_pymc(None), "pymc"),
            (lambda: provi.from_stan("parameters { real x; } model { x ~ normal(0, 1); }", {}), "stan"),
        ):
            try:
                call()
            except ImportError as error:
                assert f"pip install 'provi[{extra}]'" in str(error), str(error)
            else:
                raise AssertionError(extra)
        print(100, 2)
    """,
}


@pytest.mark.parametrize("extras", PROBES, ids=lambda extras: ",".join(extras) or "none")
def test_extras_bring_what_they_are_for_and_are_named_where_they_are_missing(extras, environment):
    code = "import numpy as np\nimport provi\n" + re.sub(r"(?m)^ {8}", "", PROBES[extras])
    done = environment.run([environment.python, "-c", code], extras, JAX_DISABLE_MOST_OPTIMIZATIONS="true")
    assert done.returncode == 0 and done.stdout == "100 2\n", done.stdout + done.stderr


def test_the_repository_cannot_be_seen_from_there(environment):
    code = (
        "import provi, importlib.util as u; print(provi.__file__, u.find_spec('provi_lab'), bool(u.find_spec('jax')))"
    )
    place, lab, jax = environment.run([environment.python, "-c", code]).stdout.split()
    assert Path(place).is_relative_to(environment.folder) and lab == "None" and jax == "True"
    everything = environment.hidden(["all", "stan"])
    assert {"sklearn", "pandas", "arviz_base", "numpyro", "formulae"} <= environment.hidden([]) - everything
    assert {"pytest", "beartype"} <= everything
