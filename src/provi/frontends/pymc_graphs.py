"""PyTensor graphs as JAX functions."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun


def in_jax(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Any]:
    """The function from values of `inputs` to a tuple of the `outputs`, as PyTensor's JAX backend has it.

    It differs from `pymc.sampling.jax.get_jaxified_graph` in two points. That drops PyMC's checks of parameters, such
    as sigma > 0; here, as in `model.compile_logp()`, log p is minus infinity where a check fails. And constants such
    as 0.5, which PyTensor keeps in single precision, are doubles here: JAX may take over the type of a constant.
    """
    from pytensor.compile.mode import JAX
    from pytensor.graph.fg import FunctionGraph
    from pytensor.link.jax.dispatch.basic import jax_funcify
    from pytensor.link.utils import fgraph_to_python

    graph = FunctionGraph(inputs=list(inputs), outputs=list(outputs), clone=True)
    try:
        # Fused operations would hold constants of their own; XLA fuses as well.
        rewriter: Any = JAX.including("local_check_parameter_to_ninf_switch").excluding("fusion").optimizer
        rewriter.rewrite(graph)
        return fgraph_to_python(graph, jax_funcify, type_conversion_fn=_constant_in_jax)
    except NotImplementedError as error:
        raise ValueError(
            f"the model cannot be translated to JAX ({error}). Write that part of it with operations that PyTensor's "
            f"JAX backend has."
        ) from error


def _constant_in_jax(data: Any, **kwargs: Any) -> Any:
    from pytensor.configdefaults import config
    from pytensor.link.jax.dispatch.basic import jax_typify

    real = isinstance(data, np.ndarray | np.generic) and np.issubdtype(data.dtype, np.floating)
    return jax_typify(data.astype(config.floatX) if real else data, **kwargs)


def without_compiler() -> AbstractContextManager[Any]:
    """A context in which PyTensor does not compile C: for what is run once, that takes longer than Python."""
    from pytensor.configdefaults import config

    return config.change_flags(cxx="")


def in_python(inputs: Sequence[Any], outputs: Sequence[Any], seed: int | None = None) -> Callable[..., Any]:
    """The function from values of `inputs` to a list of the `outputs`, interpreted by PyTensor.

    `seed` is that of the random variables among the outputs: it seeds their generators.
    """
    from pymc.pytensorf import compile
    from pytensor.compile.mode import FAST_COMPILE

    with without_compiler():
        return compile(list(inputs), list(outputs), random_seed=seed, mode=FAST_COMPILE, on_unused_input="ignore")


class Traced(eqx.Module):
    """A function of one vector that was run once, with tracers: its constants, the data among them, are leaves."""

    constants: list[Any]
    program: Any = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    def __init__(self, function: Callable[[Any], Any], example: Any):
        """`example`: a vector of the shape and type of all arguments."""
        # PyTensor relies on what the tests forbid. Once traced, a program has no implicit promotions.
        with jax.numpy_rank_promotion("allow"):
            closed, shapes = jax.make_jaxpr(function, return_shape=True)(example)
        self.constants, self.program = list(closed.consts), closed.jaxpr
        self.structure = jax.tree.structure(shapes)

    def __call__(self, z: Any) -> Any:
        """What the function returns."""
        leaves = jaxpr_as_fun(ClosedJaxpr(self.program, self.constants))(z)
        return jax.tree.unflatten(self.structure, leaves)
