"""The compilation cache: a second process reads what the first one compiled; other programs and settings stay."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from provi.core import cache

# JAX says through its monitoring events whether a program came from the cache.
PROGRAM = """
import sys, runpy, jax
# The file alone: importing the package takes longer than everything else here.
cache = runpy.run_path(sys.argv.pop(1))
counts = {"hit": 0, "miss": 0}
def listen(event, **kwargs):
    if event.endswith("/cache_hits"): counts["hit"] += 1
    if event.endswith("/cache_misses"): counts["miss"] += 1
jax.monitoring.register_event_listener(listen)
import jax.numpy as jnp
x = jnp.arange(3.0).block_until_ready()  # something is compiled before the cache is turned on
def slow(x):
    for _ in range(60):
        x = jnp.linalg.solve(jnp.eye(3) + jnp.outer(x, x), jnp.sin(x))
    return x
if sys.argv[1:] == ["inside"]:
    with cache["kept_programs"](), cache["kept_programs"]():
        jax.jit(slow)(x).block_until_ready()
    folder = jax.config.jax_compilation_cache_dir
    found = dict(counts)
    jax.jit(lambda x: slow(x) + 1)(x).block_until_ready()  # not ProVI's
    assert folder or counts == found, (counts, found)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == 1.0
else:
    folder = cache["enable_compilation_cache"](*sys.argv[1:])
    jax.jit(slow)(x).block_until_ready()
print(folder, counts["hit"], counts["miss"])
"""


def run(*arguments, **environment):
    kept = {key: value for key, value in os.environ.items() if "COMPILATION_CACHE" not in key}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, cache.__file__, *map(str, arguments)],
        env={**kept, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    folder, hits, misses = result.stdout.split()
    return folder, int(hits), int(misses)


def kept_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_second_process_reads_what_the_first_compiled_inside_its_calls(tmp_path):
    first = run("inside", XDG_CACHE_HOME=str(tmp_path))
    assert first[0] == "None" and first[2] > 0
    (folder,) = (tmp_path / "provi" / "compiled").iterdir()
    assert jax.__version__ in folder.name and kept_in(folder)
    second = run("inside", XDG_CACHE_HOME=str(tmp_path))
    assert second[1] >= 1 and second[2] < first[2]
    whole = run(XDG_CACHE_HOME=str(tmp_path))
    assert whole[0] == str(folder) and whole[1] >= 1


def test_one_switch_turns_it_off(tmp_path):
    assert run("inside", XDG_CACHE_HOME=str(tmp_path), PROVI_COMPILATION_CACHE="off") == ("None", 0, 0)
    assert not (tmp_path / "provi").exists()


def test_a_users_setting_stays_unless_a_folder_is_named(tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    kept = run("inside", JAX_COMPILATION_CACHE_DIR=str(own), XDG_CACHE_HOME=str(tmp_path))
    assert kept[0] == str(own) and not (tmp_path / "provi").exists()
    named = run(other, JAX_COMPILATION_CACHE_DIR=str(own))
    assert named[0] == str(other) and list(other.iterdir())


def test_the_folder_is_bounded_and_forgets_other_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_LARGEST_FOLDER", 250)
    now, old = tmp_path / "now", tmp_path / "old"
    for folder, name, age in ((now, "a", 30), (now, "b", 20), (now, "c", 10), (old, "d", 5)):
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(bytes(100))
        os.utime(folder / name, (1e9 - age, 1e9 - age))
    cache._trim(tmp_path, now)
    assert [path.name for path in kept_in(tmp_path)] == ["c"]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_folders_of_programs_are_the_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "provi" / "compiled" / "v1"
    old = os.umask(0)
    try:
        assert cache.make_private(folder) is None
    finally:
        os.umask(old)
    assert [mode(place) for place in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3
    (folder / "program").write_text("x")
    folder.chmod(0o755)  # others could read, and write nothing: it is closed, and kept
    assert cache.make_private(folder) is None and mode(folder) == 0o700 and (folder / "program").exists()


def test_programs_that_others_could_have_written_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "provi" / "stan"
    folder.mkdir(parents=True)
    (folder / "planted.so").write_text("x")
    folder.chmod(0o775)
    assert cache.make_private(folder) is None
    assert mode(folder) == 0o700 and not list(folder.iterdir())


def test_a_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    """Neither for JAX's programs, with a warning, nor for Stan's, with an error."""
    from provi.frontends.stan.build import cache_folder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PROVI_COMPILATION_CACHE", raising=False)
    (tmp_path / "provi").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)
    assert "belongs to another user" in cache.make_private(tmp_path / "provi" / "compiled")
    with pytest.raises(PermissionError, match="belongs to another user.*XDG_CACHE_HOME"):
        cache_folder()
    monkeypatch.setattr(cache, "_state", {"depth": 0, "before": None, "trimmed": False, "obstacle": None})
    configured = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        with pytest.warns(UserWarning, match="Compiled programs are not kept: .*another user"), cache.kept_programs():
            assert jax.config.jax_compilation_cache_dir is None
        with cache.kept_programs():  # and once is enough
            assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", configured)
