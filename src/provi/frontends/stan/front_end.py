"""`provi.from_stan`: a Stan program as a target."""

import functools
import importlib.util
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from provi.core.arguments import check_count, double_precision
from provi.frontends.stan.build import build_library
from provi.frontends.stan.compiled import CompiledStan
from provi.frontends.stan.engine import AbstractEngine, BridgeStanEngine, build_bridge, has_sources, to_json
from provi.frontends.stan.target import StanProgram, StanTarget, free_coordinates
from provi.targets.assumptions import declare

_TRIES, _RADIUS = 100, 2.0  # Stan's own search for a first point: uniform on (-2, 2)


@double_precision
def from_stan(
    program: Any,
    data: dict[str, Any] | None = None,
    *,
    engine: str | None = None,
    strong_convexity: Any = None,
    smoothness: Any = None,
    log_concave: Any = None,
    start: Any = None,
    seed: int = 0,
) -> StanTarget:
    """The posterior of a Stan program, a target over its parameters in Stan's unconstrained coordinates.

    `target.constrain(draws)` goes back to the program's variables. A generated quantity called `log_lik` is the
    log-likelihood of each datum (`target.log_likelihood`), one whose name ends in `_rep` replicated data
    (`target.predict`), as is the custom in Stan.

    The program is compiled once, in half a minute or so, and kept in `~/.cache/provi/stan`. Nothing is known of its
    shape but what you declare: a certificate needs `log_concave=True` or `strong_convexity=`, of the density in the
    unconstrained coordinates.

    **Arguments:**

    - `program`: Stan code, the path of a `.stan` file, a `stan.model.Model` of PyStan or a `bridgestan.StanModel`.
    - `data`: a dictionary with a value for each variable of the `data` block. (A built model brings its own.)
    - `engine`: `"pystan"` takes PyStan's Stan compiler and headers and any C++ compiler; `"bridgestan"` takes
      BridgeStan, where it is installed with its sources. By default BridgeStan if it is, else PyStan.
    - `strong_convexity`, `smoothness`, `log_concave`: as for `provi.targets.LogDensity`.
    - `start`: values of the parameters, a dictionary by name, where the density is finite. The default is zero in
      unconstrained coordinates or, like Stan, the first of 100 points drawn from (-2, 2) where it is finite.
    - `seed`: of that search, and of random numbers in `transformed data` and `generated quantities`.

    **Returns:** an `AbstractTarget`.
    """
    seed = check_count("seed", seed, minimum=0)
    assumptions = declare(strong_convexity, smoothness, log_concave)
    if data is not None and not isinstance(data, dict):
        raise TypeError(f"data must be a dictionary by variable, not {type(data).__name__}.")
    if engine not in (None, "pystan", "bridgestan"):
        raise ValueError(f"engine must be 'pystan', 'bridgestan' or None, not {engine!r}.")
    kind = f"{type(program).__module__}.{type(program).__name__}"
    if kind.startswith(("stan.", "bridgestan.")) and data is not None:
        raise ValueError(f"data must be left out: the {kind} that is given as program has its own.")
    rebuild, source = None, ""
    if kind.startswith("bridgestan."):
        model, data = BridgeStanEngine(program), {}
    else:
        if kind.startswith("stan."):
            program, data = program.program_code, program.data
        code, include = _read_code(program)
        data = {} if data is None else data
        model = _build(code, include, data, seed, engine)
        rebuild = functools.partial(_rebuild, code, include, seed, engine)
        source = f"{code} {to_json('data', data)}"
    compiled = StanProgram(model, data, seed, rebuild, source)
    if not compiled.free_names:
        raise ValueError("program has no parameters, so there is nothing to approximate.")
    point = jnp.asarray(_find_start(compiled, start), jnp.float64)
    return StanTarget(start=point, assumptions=assumptions, program=compiled)


_LARGEST_PROGRAM = 2**24


def _read_code(program: Any) -> tuple[str, Path | None]:
    """The Stan code, and the folder of its file."""
    if not isinstance(program, str | Path):
        raise TypeError(f"program must be Stan code or the path of a .stan file, not {type(program).__name__}.")
    if isinstance(program, str) and "{" in program:
        return program, None
    path = Path(program).expanduser()
    if path.suffix != ".stan":
        raise ValueError(f"program must be Stan code with its blocks, or the path of a .stan file, not {program!r}.")
    if not path.is_file():
        raise FileNotFoundError(f"program: there is no file {path}.")
    if path.stat().st_size > _LARGEST_PROGRAM:
        raise ValueError(f"program: {path} has more than {_LARGEST_PROGRAM >> 20} MiB, which no program of Stan has.")
    return path.read_text(encoding="utf-8"), path.resolve().parent


def _build(code: str, include: Path | None, data: dict[str, Any], seed: int, engine: str | None) -> AbstractEngine:
    if engine == "bridgestan" or (engine is None and has_sources()):
        if not has_sources():
            raise ImportError(
                "engine='bridgestan' needs BridgeStan and its sources: pip install bridgestan, then call "
                "bridgestan.compile.get_bridgestan_path(), which downloads them."
            )
        return build_bridge(code, include, data, seed)
    if importlib.util.find_spec("httpstan") is None:
        raise ImportError(
            "from_stan needs PyStan or BridgeStan: pip install 'provi[stan]'; or pip install bridgestan, then call "
            "bridgestan.compile.get_bridgestan_path(), which downloads its sources."
        )
    return CompiledStan(build_library(code, include), data, seed)


def _rebuild(code: str, include: Path | None, seed: int, engine: str | None, data: dict[str, Any]) -> AbstractEngine:
    return _build(code, include, data, seed, engine)


def _find_start(program: StanProgram, start: Any) -> np.ndarray:
    """A point where density and gradient are finite."""
    zero = np.zeros(len(program.free_names))
    first = zero if start is None else free_coordinates("start", program, start)
    points = first[None]
    if start is None:
        drawn = np.random.default_rng(program.seed).uniform(-_RADIUS, _RADIUS, (_TRIES, zero.size))
        points = np.concatenate([points, drawn])
    for point in points:
        value, gradient = program.engine.gradient(point[None])
        if np.isfinite(value).all() and np.isfinite(gradient).all():
            return point
    where = f"at zero and at {_TRIES} random points" if start is None else "at start"
    words = program.engine.reason(first) or f"its value is {program.engine.density(first[None])[0]}"
    raise ValueError(
        f"the log density of the Stan program, or its gradient, is not finite {where}: {words}. "
        f"Pass start={{parameter: value, ...}} where it is finite, or check the data."
    )
