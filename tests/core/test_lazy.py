"""Packages that import their names when they are used: light, complete, and functions that modules do not hide."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import provi
from provi.core.lazy import lazy_exports

STUBS = sorted(Path(provi.__file__).parent.rglob("__init__.pyi"))


def package_of(stub):
    parts = stub.relative_to(Path(provi.__file__).parents[1]).parent.parts
    return ".".join(parts)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize("stub", STUBS, ids=package_of)
def test_every_name_of_a_stub_is_there(stub):
    package = importlib.import_module(package_of(stub))
    nodes = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    names = [alias.asname for node in nodes for alias in node.names]
    assert names and sorted(names) == package.__all__ == sorted(set(names))
    assert all(alias.asname == alias.name for node in nodes for alias in node.names)
    for name in names:
        assert getattr(package, name) is not None and name in dir(package)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'provi.targets' has no attribute 'LogisticRegresion'"):
        _ = provi.targets.LogisticRegresion
    get, names, listed = lazy_exports("provi.schedules", importlib.import_module("provi.schedules").__file__)
    assert names() == listed and get("ConstantStep") is provi.schedules.ConstantStep


def test_importing_provi_imports_nothing_heavy():
    done = run(
        "import sys, provi\n"
        "heavy = {'jax', 'numpy', 'scipy', 'matplotlib', 'typer', 'jinja2', 'sklearn', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert provi.__version__ and 'fit' in dir(provi)"
    )
    assert done.returncode == 0, done.stderr


def test_a_fit_needs_neither_the_command_line_nor_pictures_nor_pages():
    done = run(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('typer', 'jinja2', 'matplotlib', 'sklearn', 'arviz_base'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import numpy as np, provi\n"
        "target = provi.targets.LogisticRegression(np.eye(3), [0, 1, 1])\n"
        "fit = provi.fit(target, provi.families.Gaussian(3), progress=False)\n"
        "print(fit.certificate.status, fit.posterior.summary(), fit.certificate)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("proven")


@pytest.mark.parametrize(
    "order", ["import provi.fit, provi.certify", "from provi.models import gp", "import provi.models"]
)
def test_functions_are_not_hidden_by_the_modules_of_their_names(order):
    done = run(f"{order}\nimport provi\nassert callable(provi.fit) and callable(provi.certify)")
    assert done.returncode == 0, done.stderr


def test_models_say_what_to_install(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")

    monkeypatch.setattr(provi.models, "_get", absent)
    with pytest.raises(
        ImportError, match=r"provi.models.GPClassifier needs scikit-learn: pip install 'provi\[models\]'"
    ):
        _ = provi.models.GPClassifier
