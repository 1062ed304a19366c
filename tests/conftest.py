"""Settings of every test: double precision, no silent rank promotion, run-time type checks, no display."""

import importlib.util

import jax
import matplotlib
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
# (n, d) * (d,) must be written as (n, d) * (1, d): a forgotten axis is an error, not a wrong answer.
jax.config.update("jax_numpy_rank_promotion", "raise")
matplotlib.use("Agg")

# Only modules imported while the hook is in place are checked, so it is installed before any of `provi`,
# and is kept for the whole session because rooms are imported by the tests as they need them.
# The GPU machine has no beartype: there the tests run without these checks.
if importlib.util.find_spec("beartype") is not None:
    install_import_hook("provi", "beartype.beartype")


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Each compiled program holds memory maps, of which Linux grants 65530: a worker that keeps all of them crashes."""
    yield
    jax.clear_caches()
