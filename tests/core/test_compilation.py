"""The compilation cache: a second process reads what the first one compiled, and a user's own setting stays; programs
that are compiled quickly where the arguments are small."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core import compilation
from provi.core.compilation import sized_jit

# JAX says through its monitoring events whether a program came from the cache.
PROGRAM = """
import sys, runpy, jax
# The file alone: importing the package takes longer than everything else here.
enable_compilation_cache = runpy.run_path(sys.argv.pop(1))["enable_compilation_cache"]
counts = {"hit": 0, "miss": 0}
def listen(event, **kwargs):
    if event.endswith("/cache_hits"): counts["hit"] += 1
    if event.endswith("/cache_misses"): counts["miss"] += 1
jax.monitoring.register_event_listener(listen)
import jax.numpy as jnp
jnp.ones(3).block_until_ready()  # something is compiled before the cache is turned on
folder = enable_compilation_cache(*sys.argv[1:])
def slow(x):
    for _ in range(60):
        x = jnp.linalg.solve(jnp.eye(3) + jnp.outer(x, x), jnp.sin(x))
    return x
jax.jit(slow)(jnp.arange(3.0)).block_until_ready()
print(folder, counts["hit"], counts["miss"])
"""


def run(*arguments, **environment):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("JAX_COMPILATION")}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, compilation.__file__, *map(str, arguments)],
        env={**kept, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    folder, hits, misses = result.stdout.split()
    return folder, int(hits), int(misses)


def test_the_second_process_reads_what_the_first_compiled(tmp_path):
    default = str(tmp_path / "provi" / "compiled")
    first = run(XDG_CACHE_HOME=str(tmp_path))
    assert first[0] == default and first[2] > 0 and list(Path(default).iterdir())
    second = run(XDG_CACHE_HOME=str(tmp_path))
    assert second[0] == default and second[1] >= 1 and second[2] < first[2]


def test_the_users_own_setting_is_kept_unless_a_folder_is_named(tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    kept = run(JAX_COMPILATION_CACHE_DIR=str(own), XDG_CACHE_HOME=str(tmp_path))
    assert kept[0] == str(own) and not (tmp_path / "provi").exists()
    named = run(other, JAX_COMPILATION_CACHE_DIR=str(own))
    assert named[0] == str(other) and list(other.iterdir())


@pytest.mark.parametrize("size", [10, 20_000])
def test_sized_programs_agree_and_may_be_called_in_compiled_ones(size):
    x = jnp.linspace(0.0, 1.0, size)
    sized = sized_jit(lambda x, y: jnp.sum(jnp.sin(x)) + y)
    expected = np.sum(np.sin(np.linspace(0, 1, size))) + 2.0
    np.testing.assert_allclose(sized(x, y=2.0), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(lambda x: sized(x, 2.0))(x), expected, rtol=1e-12)


def test_small_arguments_are_compiled_quickly(monkeypatch):
    chosen = []
    monkeypatch.setattr(compilation, "quick_jit", lambda f, **_: lambda *a: chosen.append("quick"))
    monkeypatch.setattr(compilation.eqx, "filter_jit", lambda f, **_: lambda *a: chosen.append("ordinary"))
    sized = sized_jit(lambda x: x)
    sized(np.zeros(10_000))
    sized(np.zeros(10_001))
    assert chosen == ["quick", "ordinary"]
