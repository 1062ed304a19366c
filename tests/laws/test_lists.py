"""The lists are complete: a class without a row is a class without laws."""

import ast
import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest

from laws import members
from laws.contracts import final_classes
from provi import families, kernels, schedules, targets
from provi.algorithms import AbstractAlgorithm
from provi.algorithms.proximal.path_gradient import PathGradient
from provi.algorithms.proximal.stochastic_proximal import Fed
from provi.estimators import AbstractEstimator
from provi.families.base import AbstractFamily
from provi.families.exponential import AbstractExponentialFamily
from provi.families.nested import NestedGaussian
from provi.targets.likelihoods import AbstractLikelihood
from provi.targets.likelihoods.rows import RowLikelihood


def of(rows, *arguments):
    """What the rows of a list make."""
    return [getattr(row, "make", row)(*arguments) for row in rows.values()]


def made_families():
    return [make(np.float64, 1.0) for make in members.FAMILIES.values()]


ELSEWHERE = {
    targets.LatentGaussian,
    NestedGaussian,
    RowLikelihood,
    PathGradient,
    Fed,
    families.Radial,
    families.LogConcaveRadial,
}
"""The laws speak of two floating types and of densities, and of responses that are data: see tests/targets/latent,
tests/structures and tests/certificates/test_rows.py instead. Path gradients: tests/families/test_richer.py. Batches of
rows that are not in memory: tests/targets/test_streaming.py.
Bases of the user's own hold a function, which no file can: tests/families/test_radial_base.py."""

KINDS = {
    "ALGORITHMS": ("provi.algorithms", AbstractAlgorithm, lambda: of(members.ALGORITHMS, 1.0)),
    "TARGETS": ("provi.targets", targets.AbstractTarget, lambda: of(members.TARGETS, np.float64, 1.0)),
    "FAMILIES": ("provi.families", AbstractFamily, lambda: [family for family, _ in made_families()]),
    "FAMILIES (bases)": ("provi.families", families.AbstractBase, lambda: [f.base for f, _ in made_families()]),
    "FAMILIES (scales)": (
        "provi.families",
        families.AbstractScale,
        lambda: [point.scale for _, point in made_families() if isinstance(point, families.Point)],
    ),
    "EXPONENTIAL": ("provi.families.exponential", AbstractExponentialFamily, members.EXPONENTIAL.values),
    "LIKELIHOODS": ("provi.targets.likelihoods", AbstractLikelihood, lambda: of(members.LIKELIHOODS, 1.0)),
    "KERNELS": ("provi.kernels", kernels.AbstractKernel, lambda: of(members.KERNELS, 1.0, 3)),
    "STEP_SIZES": ("provi.schedules", schedules.AbstractStepSize, lambda: of(members.STEP_SIZES, 1.0)),
    "BATCH_SIZES": ("provi.schedules", schedules.AbstractBatchSize, lambda: of(members.BATCH_SIZES, 1.0)),
    "SAMPLINGS": ("provi.schedules", schedules.AbstractSampling, lambda: of(members.SAMPLINGS, 1.0)),
    "AVERAGINGS": ("provi.schedules", schedules.AbstractAveraging, lambda: of(members.AVERAGINGS, 1.0)),
    "ESTIMATORS": ("provi.estimators", AbstractEstimator, members.ESTIMATORS.values),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_member_has_a_row(name):
    package, base, made = KINDS[name]
    missing = final_classes(package, base) - {type(member) for member in made()} - ELSEWHERE
    names = ", ".join(sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in missing))
    assert not missing, f"{names}: no row. Add one to {name} in tests/laws/members.py; the laws then test it."


def test_a_class_without_a_row_is_found():
    assert schedules.ConstantStep in final_classes("provi.schedules", schedules.AbstractStepSize)
    assert schedules.AbstractStepSize not in final_classes("provi.schedules", schedules.AbstractStepSize)


PACKAGES = sorted(package for package, *_ in KINDS.values())


@pytest.mark.parametrize("package", sorted({*PACKAGES, "provi", "provi.geometry", "provi.theory"}))
def test_a_name_is_what_the_stub_says_whatever_was_imported_before(package):
    """A function may have the name of its module, which Python would put in its place."""
    module = importlib.import_module(package)
    stub = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text(encoding="utf-8"))
    for node in stub.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        source = importlib.import_module(str(node.module))
        for alias in node.names:
            assert getattr(module, alias.name) is getattr(source, alias.name)
            # `provi.distributed` is a module by intent, as `jax.distributed` is.
            expected = node.module == package or alias.name == "distributed"
            assert inspect.ismodule(getattr(module, alias.name)) == expected
