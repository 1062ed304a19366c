"""Every public name of the library has its entry on a page of docs/api."""

import importlib
import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "api"
ENTRIES = {
    entry for page in PAGES.glob("*.md") for entry in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)
}
MODULES = [
    "provi",
    "provi.algorithms",
    "provi.certificates",
    "provi.data",
    "provi.diagnostics",
    "provi.estimators",
    "provi.families",
    "provi.kernels",
    "provi.models",
    "provi.nets",
    "provi.runtime",
    "provi.schedules",
    "provi.targets",
    "provi.targets.latent",
    "provi.targets.likelihoods",
    "provi.theory",
]


def public_names(module):
    """What `__all__` lists, or what the module imports under its own name; not its submodules, which have pages."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [name for name in vars(found) if name[0].isupper()]
    return {name for name in names if not name.startswith("_") and f"{module}.{name}" not in MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_entries(module):
    documented_elsewhere = {"provi.certificates.Certificate", "provi.data.SOURCES", "provi.algorithms.Guarantee"}
    documented_elsewhere |= {"provi.runtime.Budget", "provi.distributed"}  # `provi.Budget`, `provi.runtime.distributed`
    # `provi.fit` is a function and a module; its entry names the function in the module.
    missing = {
        f"{module}.{name}"
        for name in public_names(module)
        if {f"{module}.{name}", f"{module}.{name}.{name}"}.isdisjoint(ENTRIES)
    } - documented_elsewhere
    assert not missing, f"docs/api lacks ::: {sorted(missing)}"


def test_entries_exist():
    for entry in ENTRIES:
        module, _, name = entry.rpartition(".")
        try:
            importlib.import_module(entry)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), name), entry
