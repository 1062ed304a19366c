"""Stan code to a shared library, with the Stan compiler, headers and libraries that PyStan brings (in `httpstan`).

Behind the program's own C++ the model is compiled as six C functions (`_INTERFACE`), which `ctypes` calls.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from provi.core.cache import make_private, user_cache
from provi.core.files import replacing

_INCLUDES = r"""
#include <stan/io/json/json_data.hpp>
#include <stan/services/util/create_rng.hpp>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <sstream>
#include <thread>
"""

# Row by row and without Python: the threads of `provi_density` share the rows, and Stan's own state is one a thread.
_INTERFACE = r"""
#define PROVI_EXPORT extern "C" __attribute__((visibility("default")))

namespace provi {
using Model = stan::model::model_base;

inline const Model& model_of(void* handle) { return *static_cast<Model*>(handle); }

inline void write_text(const std::string& text, char* buffer, int room) {
  const size_t length = std::min(text.size(), static_cast<size_t>(room - 1));
  std::memcpy(buffer, text.data(), length);
  buffer[length] = 0;
}

inline void prepare_thread() {
  static thread_local stan::math::ChainableStack tape;  // Stan's tape belongs to the thread that makes it
  (void)tape;
}

// No exception may pass into Python or XLA: it becomes the return value 1 and a message.
template <typename Work>
int guarded(char* message, int room, const Work& work) {
  prepare_thread();
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    write_text(error.what(), message, room);
  } catch (...) {
    write_text("unknown C++ exception", message, room);
  }
  return 1;
}

// The normalised log density with the Jacobian, and its gradient unless that is null.
inline double density(const Model& model, const double* z, int dim, double* gradient) {
  if (gradient == nullptr) {
    Eigen::VectorXd point = Eigen::Map<const Eigen::VectorXd>(z, dim);
    return model.log_prob_jacobian(point, nullptr);
  }
  stan::math::nested_rev_autodiff tape;
  Eigen::Matrix<stan::math::var, Eigen::Dynamic, 1> point = Eigen::Map<const Eigen::VectorXd>(z, dim);
  stan::math::var value = model.log_prob_jacobian(point, nullptr);
  value.grad();
  for (int i = 0; i < dim; ++i) gradient[i] = point(i).adj();
  return value.val();
}
}  // namespace provi

PROVI_EXPORT int provi_new(const char* data, unsigned int seed, void** handle, char* message, int room) {
  return provi::guarded(message, room, [&] {
    std::istringstream stream(data);
    stan::json::json_data context(stream);
    *handle = &new_model(context, seed, nullptr);
  });
}

PROVI_EXPORT void provi_delete(void* handle) { delete static_cast<provi::Model*>(handle); }

// Names as a text with a line each: of the free coordinates (depth -1), of the parameters (0), with the transformed
// parameters (1), with the generated quantities (2). Returns the room that the text needs.
PROVI_EXPORT int provi_names(void* handle, int depth, char* text, int room) {
  std::vector<std::string> names;
  if (depth < 0) provi::model_of(handle).unconstrained_param_names(names, false, false);
  else provi::model_of(handle).constrained_param_names(names, depth > 0, depth > 1);
  std::string lines;
  for (const std::string& name : names) lines += name + '\n';
  if (room > 0) provi::write_text(lines, text, room);
  return static_cast<int>(lines.size()) + 1;
}

// A row where Stan raises has the value -inf and a gradient of NaN; returns how many, with a message of one thread.
PROVI_EXPORT int provi_density(void* handle, const double* z, int rows, int dim, int threads, double* values,
                               double* gradients, char* message, int room) {
  std::atomic<int> next(0), failed(0);
  auto work = [&](char* reason, int length) {
    for (int row = next++; row < rows; row = next++) {
      const size_t first = static_cast<size_t>(row) * dim;
      double* gradient = gradients == nullptr ? nullptr : gradients + first;
      if (provi::guarded(reason, length, [&] {
            values[row] = provi::density(provi::model_of(handle), z + first, dim, gradient);
          })) {
        ++failed;
        values[row] = -std::numeric_limits<double>::infinity();
        if (gradient != nullptr) std::fill_n(gradient, dim, std::numeric_limits<double>::quiet_NaN());
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i)
    others.emplace_back([&] {
      char ignored[1];
      work(ignored, 1);
    });
  work(message, room);
  for (std::thread& other : others) other.join();
  return failed;
}

// Parameters, and more as `depth` says, in Stan's order; a row where Stan raises is NaN. Returns how many are.
PROVI_EXPORT int provi_constrain(void* handle, const double* z, int rows, int dim, int depth, unsigned int seed,
                                 int width, double* values, char* message, int room) {
  auto generator = stan::services::util::create_rng(seed, 1);
  int failed = 0;
  for (int row = 0; row < rows; ++row) {
    double* out = values + static_cast<size_t>(row) * width;
    if (provi::guarded(message, room, [&] {
          Eigen::VectorXd point = Eigen::Map<const Eigen::VectorXd>(z + static_cast<size_t>(row) * dim, dim), found;
          provi::model_of(handle).write_array(generator, point, found, depth > 0, depth > 1, nullptr);
          if (found.size() != width) throw std::length_error("the number of values is not that of the names");
          std::copy_n(found.data(), width, out);
        })) {
      ++failed;
      std::fill_n(out, width, std::numeric_limits<double>::quiet_NaN());
    }
  }
  return failed;
}

PROVI_EXPORT int provi_unconstrain(void* handle, const char* values, int dim, double* z, char* message, int room) {
  return provi::guarded(message, room, [&] {
    std::istringstream stream(values);
    stan::json::json_data context(stream);
    Eigen::VectorXd found;
    provi::model_of(handle).transform_inits(context, found, nullptr);
    if (found.size() != dim) throw std::length_error("the number of free coordinates is not the dimension");
    std::copy_n(found.data(), dim, z);
  });
}
"""


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
    """`provi/stan` in the user's cache: compiled programs, by the hash of their code. It is the user's alone."""
    folder = user_cache() / "stan"
    obstacle = make_private(folder)
    if obstacle is not None:
        raise PermissionError(
            f"{obstacle}, and programs in it would be executed. Remove it, or set XDG_CACHE_HOME to a folder of yours."
        )
    return folder


def build_library(code: str, include: Path | None = None) -> Path:
    """The shared library of a Stan program with ProVI's C functions in it; compiled once, then taken from the cache.

    **Arguments:**

    - `code`: the Stan program.
    - `include`: a folder for its `#include` directives.
    """
    import fcntl  # not on Windows, where there is no PyStan either

    import httpstan

    package = Path(httpstan.__file__).parent
    source = _INCLUDES + _to_cpp(code, package / "stanc", include) + _INTERFACE
    identity = "\n".join((httpstan.__version__, str(package), platform.platform(), *_FLAGS, source))
    library = cache_folder() / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as folder, library.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process builds, others that want the same wait for it
            if not library.exists():
                built = _compile(source, package, Path(folder))
                with replacing(library) as draft:
                    os.replace(built, draft)
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
