"""Less waiting for the compiler: quick compilation where machine code hardly matters, shared sizes."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

from provi.core.arguments import check_count

_SMALL = 10_000
"""Numbers in the arguments up to which `sized_jit` is quick. Logistic regression with missing entries, 200 x 4: 2 s of
compilation for 4, a fit in 5 ms for 3; 2000 x 8, which is beyond: 48 ms for 15."""


@cache
def less_work(optimisation: int) -> dict[str, Any]:
    """What to tell XLA's compiler for the CPU: little optimisation, and the older code generator, which is quicker."""
    level: dict[str, Any] = {"xla_backend_optimization_level": optimisation}
    older = {**level, "xla_cpu_use_fusion_emitters": False}
    try:  # a version of XLA without this option refuses it
        jax.jit(lambda: 0).lower().compile(compiler_options=older)
    except jax.errors.JaxRuntimeError:
        return level
    return older


GPU_OPTIONS: dict[str, Any] = {"xla_gpu_enable_triton_gemm": False}
"""XLA tries dozens of kernels of its own for every product of matrices: a pass over a table took 7.6 s to compile and
0.9 ms to run, with cuBLAS's products 0.5 s and 0.9 ms (H200, 60,000 x 256; 8.6 and 9.1 ms for 10^6 rows)."""


def program_jit(function: Callable, **options: Any) -> Callable[..., Any]:
    """`eqx.filter_jit` of a program of ProVI's own, without the search for kernels on a GPU."""
    ordinary = eqx.filter_jit(function, **options)

    @cache
    def on_gpu() -> Callable[..., Any]:
        settings: Any = {"compiler_options": GPU_OPTIONS, **options}
        return eqx.filter_jit(function, **settings)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # Inside another compiled function it is that one's compiler that decides.
        if jax.default_backend() != "gpu" or _traced(args, kwargs):
            return ordinary(*args, **kwargs)
        return on_gpu()(*args, **kwargs)

    # How often it was compiled, and what it would be compiled to.
    call._cached, call.lower = ordinary._cached, ordinary.lower  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _traced(args: Any, kwargs: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs)))


def quick_jit(function: Callable, **options: Any) -> Callable[..., Any]:
    """`eqx.filter_jit` with the least optimisation, for what spends its time in LAPACK, or on short vectors.

    The first fit of logistic regression with missing entries, 200 x 4: 4.6 s to 2.1 s for the older code generator
    alone, and milliseconds lost in the fits after it. On the CPU only: other back ends keep their own setting.
    """
    return _cpu_jit(function, 0, options)


def lean_jit(function: Callable, **options: Any) -> Callable[..., Any]:
    """`eqx.filter_jit` with some optimisation, for loops over small matrix products.

    The posteriors of 64 documents with ten topics: 0.95 s of compilation for 2.2, and the same 39 ms to run; with the
    least optimisation 63 ms.
    """
    return _cpu_jit(function, 1, options)


def _cpu_jit(function, optimisation, options):
    ordinary = program_jit(function, **options)

    @cache
    def quick() -> Callable[..., Any]:
        settings: Any = {"compiler_options": less_work(optimisation), **options}
        return eqx.filter_jit(function, **settings)

    def call(*args: Any, **kwargs: Any) -> Any:
        # Inside another compiled function it is that one's compiler that decides.
        quickly = jax.default_backend() == "cpu" and not _traced(args, kwargs)
        return (quick() if quickly else ordinary)(*args, **kwargs)

    return call


def sized_jit(function: Callable, **options: Any) -> Callable[..., Any]:
    """`quick_jit` where the arguments are small, `eqx.filter_jit` where they are not.

    A small table takes longer to compile for than to compute with, however poor the machine code.
    """
    ordinary, quick = program_jit(function, **options), quick_jit(function, **options)

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = [leaf for leaf in jax.tree.leaves((args, kwargs)) if eqx.is_array(leaf)]
        small = sum(map(np.size, leaves)) <= _SMALL
        return (quick if small else ordinary)(*args, **kwargs)

    return call


def padded_size(size: int, smallest: int) -> int:
    """`size` rounded up to a multiple of `smallest`, or of an eighth of its power of two if that is more.

    So that data of similar size share one compiled program.
    At most an eighth is wasted on large sizes, and between n and 2n there are at most eight programs to compile.
    """
    step = smallest
    while 16 * step <= check_count("size", size, minimum=0):
        step *= 2
    return max(step, -(-size // step) * step)


def scan_counts(params: Any) -> tuple[int, int]:
    """How many constants and how many carried values a `scan` equation has: numbers in jax 0.10, trees in 0.11."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carried, _ = (len(part) for part in params["ft_in"].unpack())
    return consts, carried
