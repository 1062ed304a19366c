"""Stan code to a shared library, with the Stan compiler, headers and libraries that PyStan brings (in `httpstan`)."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from provi.frontends.stan_interface import INCLUDES, INTERFACE

# Those of httpstan, which its libraries were built with. Hidden names keep the programs of one process apart.
_MACROS = ("BOOST_DISABLE_ASSERTS", "BOOST_PHOENIX_NO_VARIADIC_EXPRESSION", "STAN_THREADS", "_REENTRANT")
_FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-pthread",
    "-w",
    "-fvisibility=hidden",
    "-D_GLIBCXX_USE_CXX11_ABI=0",
)
_LIBRARIES = ("sundials_cvodes", "sundials_idas", "sundials_nvecserial", "tbb")


def cache_folder() -> Path:
    """`provi/stan` in the user's cache: compiled programs, by the hash of their code."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "provi" / "stan"


def build_library(code: str, include: Path | None = None) -> Path:
    """The shared library of a Stan program with ProVI's C functions in it; compiled once, then taken from the cache.

    **Arguments:**

    - `code`: the Stan program.
    - `include`: a folder for its `#include` directives.
    """
    import fcntl  # not on Windows, where there is no PyStan either

    import httpstan

    package = Path(httpstan.__file__).parent
    source = INCLUDES + _to_cpp(code, package / "stanc", include) + INTERFACE
    identity = "\n".join((httpstan.__version__, str(package), platform.platform(), *_FLAGS, source))
    library = cache_folder() / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder, library.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process builds, others that want the same wait for it
            if not library.exists():
                os.replace(_compile(source, package, Path(folder)), library)
    return library


def _to_cpp(code: str, stanc: Path, include: Path | None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "model.stan"
        program.write_text(code, encoding="utf-8")
        # The model's name is its namespace in C++: one for each program of the process.
        name = f"provi_{hashlib.sha256(code.encode()).hexdigest()[:12]}"
        command = [str(stanc), "--name", name, "--filename-in-msg", "model.stan", "--print-cpp"]
        if include is not None and "#include" in code:  # only then: flags become part of the C++, so of its hash
            command += ["--include-paths", str(include)]
        done = subprocess.run([*command, str(program)], capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise ValueError(f"the Stan program does not compile. {shorten(done.stderr)}")
    return done.stdout


def _compile(source: str, package: Path, folder: Path) -> Path:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX") or "g++", "g++", "clang++", "c++"))), None)
    if compiler is None:
        raise RuntimeError(
            "from_stan needs a C++ compiler, and none was found. Install g++ or clang++ (apt install g++, or "
            "conda install gxx, or xcode-select --install), or name one in the variable CXX."
        )
    program, library = folder / "model.cpp", folder / "model.so"
    program.write_text(source, encoding="utf-8")
    command = [compiler, *_FLAGS, *(f"-D{macro}" for macro in _MACROS), f"-I{package / 'include'}", str(program)]
    command += ["-o", str(library), f"-L{package / 'lib'}", f"-Wl,-rpath,{package / 'lib'}"]
    done = subprocess.run([*command, *(f"-l{name}" for name in _LIBRARIES)], capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise RuntimeError(f"{compiler} failed on the C++ of the Stan program: {' '.join(lines[:3])[:1000]}")
    return library


def data_error(words: str, data: Any) -> ValueError:
    """Stan's complaint about the data in one line, which names the variable."""
    words = re.sub(r"provi_\w+::provi_\w+: |^Exception: ", "", " ".join(words.split()))
    found = re.search(r"variable name=(\w+)", words)
    if found is not None and found[1] not in data:
        return ValueError(f"data lacks the variable {found[1]!r} of the Stan program.")
    return ValueError(f"data do not fit the Stan program: {words}")


def shorten(message: str, length: int = 12) -> str:
    """Stan's message without empty lines and rulers: the first `length` lines, where it names the place."""
    kept = [line for line in message.splitlines() if line.strip(" -")]
    return "\n".join(kept[:length])
