"""Settings of every test: double precision, no silent rank promotion, run-time type checks, no display."""

import importlib.util
import os
import signal
import warnings
from pathlib import Path

import jax
import matplotlib
import numpy as np
import pytest

# Most of the time goes to XLA's compiler. Its older code generator, in one thread a worker, needs about half of it for
# the same optimisation level. XLA ends the process at a flag that it does not know, so only versions tried get them.
# Set XLA_FLAGS yourself, to nothing for instance, and these are left out.
if jax.__version_info__[:2] == (0, 10):
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")

# A shell that starts the tests in the background has them ignore Ctrl-C; some send it, to themselves or to children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests neither read nor fill the cache of the user who runs them.
os.environ.setdefault("PROVI_COMPILATION_CACHE", "off")

jax.config.update("jax_enable_x64", True)
# (n, d) * (d,) must be written as (n, d) * (1, d): a forgotten axis is an error, not a wrong answer.
jax.config.update("jax_numpy_rank_promotion", "raise")
matplotlib.use("Agg")

# Only modules imported while the hook is in place are checked, so it is installed before any of them,
# and is kept for the whole session because rooms are imported by the tests as they need them.
# The GPU machine has no beartype: there the tests run without these checks.
if importlib.util.find_spec("beartype") is not None:
    from support.type_checks import install

    install()


def pytest_configure(config):
    """ArviZ writes a stamp of the day at its first import, and two workers that do so at once stumble over each other.

    So the controller, which comes before its workers, imports it first.
    """
    if not hasattr(config, "workerinput") and importlib.util.find_spec("arviz") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import arviz  # noqa: F401


@pytest.fixture(autouse=True)
def same_draws_every_time():
    """Estimators without a `random_state` draw from NumPy's global state, as scikit-learn's do."""
    np.random.seed(918_273)  # the seed of no test: `random_state=None` must differ from those that are given


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Each compiled program holds memory maps, of which Linux grants 65530: a worker that keeps all of them crashes.

    What one file compiled, the next can use, so they are forgotten only when half of the maps are taken.
    """
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or len(maps.read_bytes().splitlines()) > 30_000:
        jax.clear_caches()


@pytest.fixture(scope="module")
def quick_compilation():
    """For modules of many short runs of large programs: little optimisation saves more than it costs."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
