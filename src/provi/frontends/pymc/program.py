"""A PyMC model with its data as they are now, and its PyTensor graphs as JAX functions of the free coordinates."""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from provi.core.arguments import default_dtype, device_array
from provi.core.equal_programs import EqualProgram
from provi.core.types import Vector
from provi.frontends.target import Unravel


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
    """A function of a vector, or of vectors by name, run once with tracers: its constants, data too, are leaves."""

    constants: list[Any]
    program: EqualProgram = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    def __init__(self, function: Callable[[Any], Any], example: Any):
        """`example`: an argument of the shape and type of all others."""
        # PyTensor relies on what the tests forbid. Once traced, a program has no implicit promotions.
        with jax.numpy_rank_promotion("allow"):
            closed, shapes = jax.make_jaxpr(function, return_shape=True)(example)
        self.constants, self.program = list(closed.consts), EqualProgram(closed.jaxpr)
        self.structure = jax.tree.structure(shapes)

    def __call__(self, z: Any) -> Any:
        """What the function returns."""
        leaves = jaxpr_as_fun(ClosedJaxpr(self.program.jaxpr, self.constants))(*jax.tree.leaves(z))
        return jax.tree.unflatten(self.structure, leaves)


class PyMCProgram:
    """The variables of a PyMC model, their graphs, and functions of its free coordinates in JAX.

    Data and sizes are those at construction: a later `pm.set_data` changes nothing here. Each function is translated
    when it is first asked for.
    """

    def __init__(self, model: Any, point: dict[str, np.ndarray]):
        """`point`: a value of each free coordinate by PyMC's names, as `model.initial_point()` has them."""
        from pytensor.compile.sharedvalue import SharedVariable
        from pytensor.graph.traversal import graph_inputs
        from pytensor.tensor.basic import constant
        from pytensor.tensor.type import tensor

        self.model = model
        self.free, self.observed = tuple(model.free_RVs), tuple(model.observed_RVs)
        self.deterministics, self.potentials = tuple(model.deterministics), tuple(model.potentials)
        self.data = tuple(model.rvs_to_values[rv] for rv in self.observed)
        self.transforms = tuple(model.rvs_to_transforms[rv] for rv in self.free)
        values = [model.rvs_to_values[rv] for rv in self.free]
        shapes = [np.shape(point[value.name]) for value in values]
        self.unravel = Unravel(tuple(rv.name for rv in self.free), tuple(shapes))
        dtype = min(default_dtype(), *(value.dtype for value in values), key=_bits)
        self.example = device_array(np.zeros(self.unravel.size), dtype)
        # Inputs and data of known shape: JAX has no others, and PyTensor's rewrites then settle all sizes.
        sized = zip(values, shapes, strict=True)
        self.inputs = [tensor(value.name, dtype=value.dtype, shape=shape) for value, shape in sized]
        self._fixed: dict[Any, Any] = dict(zip(values, self.inputs, strict=True))
        for variable in graph_inputs([*self.free, *self.observed, *self.deterministics, *self.potentials, *self.data]):
            if isinstance(variable, SharedVariable) and not _is_generator(variable):
                self._fixed[variable] = constant(variable.get_value())

        # Of a vector of data with one density, such as a row of an MvNormal, the log-likelihood has fewer axes.
        scalar = [rv for rv in self.observed if getattr(rv.owner.op, "ndim_supp", 1) == 0]
        self.axis_labels = _axis_labels(model, [rv.name for rv in (*self.free, *self.deterministics, *scalar)])

    def fixed(
        self, graphs: Sequence[Any], replace: dict[Any, Any] | None = None, held: dict[Any, Any] | None = None
    ) -> list[Any]:
        """The graphs with data and sizes as constants, or with those of `held`, after other replacements."""
        from pytensor.graph.replace import clone_replace

        graphs = clone_replace(list(graphs), replace, rebuild_strict=False) if replace else list(graphs)
        return clone_replace(graphs, self._fixed if held is None else held, rebuild_strict=False)

    def renewed(self, data: dict[str, Any]) -> dict[Any, Any]:
        """What `fixed` puts in place of data and sizes, with new values of `pm.Data` by name."""
        from pytensor.tensor.basic import constant

        known = {variable.name: variable for variable in self.model.data_vars if variable in self._fixed}
        held = dict(self._fixed)
        for name, given in data.items():
            if name not in known:
                listed = ", ".join(map(repr, known)) or "none: write pm.Data('x', x) for what is to be replaced"
                raise ValueError(f"the model has no pm.Data {name!r} to replace; it has {listed}.")
            variable, value = known[name], np.asarray(given)
            if value.ndim != variable.ndim:
                raise ValueError(f"new data {name!r} must have {variable.ndim} axes; its shape is {value.shape}.")
            held[variable] = constant(value.astype(variable.dtype))
            for dim, length in zip(self.model.named_vars_to_dims.get(name, ()), value.shape, strict=False):
                size = self.model.dim_lengths.get(dim)
                if size in held:
                    held[size] = constant(np.asarray(length, size.dtype))
        return held

    def by_values(self, graphs: Sequence[Any]) -> list[Any]:
        """The graphs as functions of the free coordinates, `inputs`, instead of the random variables."""
        return self.fixed(self.model.replace_rvs_by_values(list(graphs)))

    def of_vector(self, graphs: Sequence[Any]) -> Callable[[Vector], Any]:
        """The values of graphs in `inputs`, as a function of the vector z."""
        function = self.of_sites(graphs)
        return lambda z: function(self.unravel(z))

    def of_sites(self, graphs: Sequence[Any]) -> Callable[[dict[str, Any]], Any]:
        """The values of graphs in `inputs`, as a function of free coordinates by variable."""
        _check_not_random(graphs)
        function = in_jax(self.inputs, graphs)
        return lambda sites: [jnp.asarray(x) for x in function(*(sites[name] for name in self.unravel.names))]

    @functools.cached_property
    def logp(self) -> Any:
        """The graph of log p, the Jacobian of the transforms included."""
        return self.fixed([self.model.logp()])[0]

    @functools.cached_property
    def values(self) -> Traced:
        """Of z: the free variables in their own space, and the deterministic ones."""
        variables = [*self.free, *self.deterministics]
        return self._by_name(variables, self.by_values(variables))

    @functools.cached_property
    def log_likelihoods(self) -> Traced:
        """Of z: log p of each datum, by observed variable."""
        graphs = self.model.logp(list(self.observed), sum=False) if self.observed else []
        return self._by_name(self.observed, self.fixed(graphs))

    @functools.cached_property
    def log_density_terms(self) -> Traced:
        """Of z: log p of each entry of each variable, and the potentials."""
        variables = [*self.free, *self.observed, *self.potentials]
        return self._by_name(variables, self.fixed(self.model.logp(variables, sum=False)))

    @functools.cached_property
    def observed_data(self) -> dict[str, np.ndarray]:
        """The data, by observed variable."""
        found = in_jax([], self.fixed(self.data))() if self.data else ()
        return {rv.name: np.asarray(value) for rv, value in zip(self.observed, found, strict=True)}

    def log_density(self) -> Traced:
        """log p of z. New at each call: its data are leaves of a target."""
        function = self.of_vector([self.logp])
        return Traced(lambda z: function(z)[0].astype(self.example.dtype), self.example)

    def _by_name(self, variables: Sequence[Any], graphs: Sequence[Any]) -> Traced:
        function, names = self.of_vector(graphs), [variable.name for variable in variables]
        return Traced(lambda z: dict(zip(names, function(z), strict=True)), self.example)


def _axis_labels(model: Any, names: Sequence[str]) -> dict[str, dict[str, Sequence[Any]]]:
    """Of each variable whose dimensions all have coordinates: dimension -> a label for each entry, in order.

    The labels are the user's own, numbers as numbers: xarray aligns a fit with PyMC's draws by them.
    """
    known = {axis: list(labels) for axis, labels in model.coords.items() if labels is not None}
    dims = {name: model.named_vars_to_dims[name] for name in names if name in model.named_vars_to_dims}
    return {name: {axis: known[axis] for axis in axes} for name, axes in dims.items() if known.keys() >= set(axes)}


def _bits(dtype: Any) -> int:
    return np.dtype(dtype).itemsize


def _is_generator(variable: Any) -> bool:
    from pytensor.tensor.random.type import RandomType

    return isinstance(variable.type, RandomType)


def _check_not_random(graphs: Sequence[Any]) -> None:
    from pytensor.graph.traversal import graph_inputs

    if any(_is_generator(variable) for variable in graph_inputs(list(graphs))):
        raise ValueError(
            "the model draws random numbers that are not variables of its own, as from a `.dist()` inside a "
            "Deterministic or a Potential. Give each random variable a name in the model."
        )
