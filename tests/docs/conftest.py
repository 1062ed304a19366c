"""The tests of the documentation use the engine with which the site is built: docs/tools/execution.py."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))


@pytest.fixture
def as_a_reader(monkeypatch) -> Iterator[None]:
    """JAX and Python's warnings as they are for a reader, who has none of the suite's stricter settings."""
    monkeypatch.setenv("COLUMNS", "100")
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(False))
        stack.enter_context(jax.numpy_rank_promotion("allow"))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")
        yield
