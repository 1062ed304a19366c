"""The compilation cache: a second process reads what the first one compiled, and a user's own setting stays."""

import os
import subprocess
import sys
from pathlib import Path

from provi.core import compilation

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
