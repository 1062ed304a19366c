"""Compiled programs kept on disk: what one process compiled, the next one reads.

JAX's own persistent cache, which is a setting of the whole process. ProVI switches it on inside its own calls
(`kept_programs`), so that other programs of the process are as ever, in a folder of its own: one for each version of
JAX and ProVI, at most 1 GiB, the oldest programs going first. `PROVI_COMPILATION_CACHE=off` switches it off.

What the folder holds is executed. So it is the user's alone (`make_private`): one that belongs to somebody else is not
used, with a warning, and one that others could write to is emptied first.
"""

import contextlib
import importlib.metadata
import os
import shutil
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

_SWITCH = "PROVI_COMPILATION_CACHE"
_SMALLEST_SECONDS, _LARGEST_FOLDER = 0.05, 2**30
_DIRECTORY, _SECONDS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
_lock = threading.RLock()
_state: dict[str, Any] = {"depth": 0, "before": None, "trimmed": False, "obstacle": None}


@contextmanager
def kept_programs() -> Iterator[None]:
    """Inside, programs are read from ProVI's folder and kept there, unless a folder is configured or it is off."""
    if os.environ.get(_SWITCH, "").lower() in ("off", "0", "no", "false"):
        yield
        return
    with _lock:
        _state["depth"] += 1
        if _state["depth"] == 1 and not _configured():
            folder = _prepared_folder()
            if folder is not None:
                _state["before"] = getattr(jax.config, _SECONDS)
                _switch_on(folder, _SMALLEST_SECONDS)
    try:
        yield
    finally:
        with _lock:
            _state["depth"] -= 1
            if _state["depth"] == 0 and _state["before"] is not None:
                _switch_on(None, _state["before"])
                _state["before"] = None


def enable_compilation_cache(folder: str | Path | None = None) -> Path:
    """Let JAX keep the compiled programs of the whole process in `folder`, by default ProVI's own in the user's cache.

    ProVI does so for its own programs by itself; this is for those of yours. A folder that is already configured
    (`jax_compilation_cache_dir`) is kept. Do not share the folder with users whom you do not trust: what it holds is
    executed, and a folder that you name is taken as it is.

    **Returns:** the folder in use.
    """
    configured = _configured()
    if configured and folder is None:
        return Path(configured)
    chosen = _prepared_folder() if folder is None else Path(folder)
    if chosen is None:
        raise PermissionError("ProVI's own cache folder is not yours alone: pass a folder.")
    _switch_on(chosen, _SMALLEST_SECONDS)
    return chosen


def _configured() -> str | None:
    return getattr(jax.config, _DIRECTORY)


def _switch_on(folder: Path | None, seconds: float) -> None:
    jax.config.update(_DIRECTORY, None if folder is None else str(folder))
    # JAX's default leaves out what took less than a second, which is most of what ProVI compiles.
    jax.config.update(_SECONDS, seconds)
    compilation_cache.reset_cache()  # JAX decides at the first compilation whether there is a cache


def user_cache() -> Path:
    """`provi` in the user's cache: $XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "provi"


def make_private(folder: Path) -> str | None:
    """Make `folder`, in ProVI's part of the user's cache, readable and writable by the user alone (mode 0700).

    Contents that others could have written are removed: they would be executed.

    **Returns:** what is in the way, in words; None where the folder is the user's own now.
    """
    if not hasattr(os, "geteuid"):  # Windows, where a user's folders are private by themselves
        folder.mkdir(parents=True, exist_ok=True)
        return None
    root = user_cache()
    places = [place for place in (*reversed(folder.parents), folder) if place == root or root in place.parents]
    root.parent.mkdir(parents=True, exist_ok=True)
    for place in places:
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
        found = place.stat()
        if found.st_uid != os.geteuid():
            return f"{place} belongs to another user (number {found.st_uid})"
        if found.st_mode & 0o022 and place != root:
            shutil.rmtree(place)
            place.mkdir(mode=0o700)
        elif found.st_mode & 0o077:
            place.chmod(0o700)
    return None


def _prepared_folder() -> Path | None:
    """The folder of this version; what is too much or of older versions is removed, once a process.

    None where it is not private, with a warning the first time.
    """
    home = user_cache() / "compiled"
    folder = home / f"jax-{jax.__version__}-provi-{_version()}"
    if not _state["trimmed"]:
        try:
            _state["obstacle"] = make_private(folder)
        except OSError:  # a home that cannot be written: nothing is kept, and that needs no words
            _state["obstacle"] = ""
        if _state["obstacle"]:
            warnings.warn(
                f"Compiled programs are not kept: {_state['obstacle']}, and what it holds would run. Remove it, "
                f"or set XDG_CACHE_HOME to a folder of yours; {_SWITCH}=off silences this.",
                stacklevel=2,
            )
    if not _state["trimmed"]:
        _state["trimmed"] = True
        with contextlib.suppress(OSError):
            _trim(home, folder)
    return folder if _state["obstacle"] is None else None


def _version() -> str:
    try:
        return importlib.metadata.version("provi")
    except importlib.metadata.PackageNotFoundError:  # a copy of the source that is not installed
        return "0"


def _trim(home: Path, folder: Path) -> None:
    files = sorted((path for path in home.rglob("*") if path.is_file()), key=lambda path: path.stat().st_mtime)
    excess = sum(path.stat().st_size for path in files) - _LARGEST_FOLDER
    for path in files:
        if excess <= 0 and folder in path.parents:
            continue
        excess -= path.stat().st_size
        path.unlink()
