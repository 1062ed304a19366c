"""`provi.from_pymc`: a PyMC model as a target."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import device_array, double_precision
from provi.core.host_object import HostObject
from provi.core.interpreter import weighed_jit
from provi.core.types import Vector
from provi.frontends.pymc.anatomy import anatomy_of, family_of
from provi.frontends.pymc.graphs import logit_of
from provi.frontends.pymc.program import PyMCProgram, Traced, in_python, without_compiler
from provi.frontends.pymc.target import PyMCTarget, free_coordinates
from provi.frontends.recognise.glm import linear_model_of
from provi.frontends.recognise.nested import latent_gaussian_of
from provi.frontends.target import coordinate_names
from provi.targets.assumptions import declare
from provi.targets.linear_model import AbstractLinearModel

_FAMILIES = {
    "BernoulliRV": ("bernoulli", "predictor"),
    "BinomialRV": ("binomial", "total_count", "predictor"),
    "PoissonRV": ("poisson", "predictor"),
    "NormalRV": ("normal", "predictor", "scale"),
}
"""Of each recognised distribution of PyTensor: our word for it, and for its parameters in order."""

_LABELS = {"NoneType": "", "LogTransform": "log", "LogOddsTransform": "logit"}
"""What the free coordinates of a variable are called, by its transform; "free" for others."""


@double_precision
def from_pymc(
    model: Any,
    *,
    strong_convexity: Any = None,
    smoothness: Any = None,
    log_concave: Any = None,
    start: Any = None,
) -> PyMCTarget:
    """The posterior of a PyMC model, a target over all of its free variables.

    Constrained variables are in PyMC's transformed coordinates, and the density includes the Jacobians: it is
    `model.logp()` in JAX. `target.constrain(draws)` goes back, with the Deterministics; `target.observed_data`,
    `target.log_likelihood(draws)` and `target.predict(draws, seed)` are the data, the log-likelihood of each datum and
    replicated data. Data (`pm.Data`) and dimensions are taken as they are now. Missing observations that PyMC imputes
    are free variables.

    A model is recognised as linear when all free variables have independent normal priors with constant locations and
    scales, all observed variables are of one kind (`Bernoulli` or `Binomial` with `logit_p`, or with a sigmoid as `p`;
    `Poisson(exp(...))`; `Normal` with known scales), their predictors are affine in the free variables, as proven from
    the program, and there is no `Potential`. Then its constants are proven, and `provi.fit` certifies
    deterministically.

    It is recognised as a latent Gaussian model when that holds given a few scales (at most 6 free coordinates: standard
    deviations, noise, concentrations, correlations), which may enter as they like: random effects centred or not,
    walks, Gaussian processes; the likelihood may also be `NegativeBinomial` with `mu` and `alpha`. Then `provi.fit`
    integrates the scales numerically and brackets the evidence at each of their values by a proof.

    **Arguments:**

    - `model`: a `pymc.Model`. Discrete free variables are refused, by name, and mini-batches.
    - `strong_convexity`, `smoothness`, `log_concave`: what is known of the density in the unconstrained coordinates,
      as for `provi.targets.LogDensity`. Not needed for a model that is recognised.
    - `start`: values of free variables in their own space, a dictionary by name, where the density is finite; PyMC's
      initial point for those left out.

    **Returns:** an `AbstractTarget`.
    """
    _import_pymc()
    assumptions = declare(strong_convexity, smoothness, log_concave)
    _check_model(model)
    point = _initial_point(model)
    program = PyMCProgram(model, point)
    if program.unravel.size == 0:
        raise ValueError("the free variables of the model have no entries: nothing is left to infer.")
    vector = np.concatenate([np.ravel(point[value.name]) for value in model.value_vars])
    vector = device_array(vector, program.example.dtype)
    if start is not None:
        vector = jnp.asarray(_merged(program, vector, start))
    density = program.log_density()
    _check_density(program, density, vector)
    labels = [_LABELS.get(type(transform).__name__, "free") for transform in program.transforms]
    names = coordinate_names(program.unravel(np.asarray(vector)), labels, program.axis_labels)
    linear, nested = recognise(program, density, vector, names), None
    if linear is None:
        anatomy = anatomy_of(program)
        nested = latent_gaussian_of(anatomy, lambda z: -density(z), program.unravel, vector, labels)
    return PyMCTarget(
        log_density=density,
        start=vector,
        assumptions=assumptions,
        recognised=linear,
        nested=nested,
        model=HostObject(program),
        names=names,
    )


def _import_pymc() -> None:
    """Load PyMC's JAX backend, which sets JAX for all of the process, and set it back."""
    if "pymc.sampling.jax" in sys.modules:
        return
    with ThreadPoolExecutor(1) as another_thread:  # has the setting of the process, not that of a context of this one
        double = another_thread.submit(lambda: jnp.result_type(float) == jnp.float64).result()
    flags = os.environ.get("XLA_FLAGS")
    try:
        # For the JAX versions of PyMC's own operations. It asks XLA for 100 devices, and PyTensor for 64 bits.
        import pymc.sampling.jax  # noqa: F401
    except ImportError as error:
        raise ImportError("from_pymc needs PyMC: pip install 'provi[pymc]'.") from error
    finally:
        jax.config.update("jax_enable_x64", double)
        os.environ.pop("XLA_FLAGS", None)
        if flags is not None:
            os.environ["XLA_FLAGS"] = flags


def _check_model(model: Any) -> None:
    """A `pymc.Model` with continuous free variables and whole data, or an error that says what is wrong."""
    import pymc

    if not isinstance(model, pymc.Model):
        raise TypeError(f"model must be a pymc.Model, not {type(model).__name__}.")
    if not model.free_RVs:
        raise ValueError("the model has no free variable: nothing is left to infer.")
    discrete = [model.values_to_rvs[value].name for value in model.discrete_value_vars]
    if discrete:
        raise ValueError(
            f"discrete free variables: {', '.join(discrete)}; Gaussian approximations need continuous ones. Sum over "
            f"their values: with pymc_extras.marginalize(model, {discrete!r}), or with a pm.Mixture. If they stand for "
            f"missing data, leave those rows out."
        )
    _check_whole(model)
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        kinds = [type(part).__name__ for part in getattr(transform, "transform_list", [transform])]
        if "CircularTransform" in kinds:
            raise ValueError(
                f"variable {rv.name!r} is an angle on the whole line (PyMC's circular transform), where its density "
                f"has no integral. Give it transform=pm.distributions.transforms.Interval(-np.pi, np.pi)."
            )


def _check_whole(model: Any) -> None:
    from pymc.data import MinibatchOp
    from pymc.variational.minibatch_rv import MinibatchRandomVariable
    from pytensor.graph.traversal import ancestors

    graphs = [*model.basic_RVs, *model.potentials, *model.rvs_to_values.values()]
    ops = [variable.owner.op for variable in ancestors(graphs) if variable.owner is not None]
    if any(isinstance(op, MinibatchOp | MinibatchRandomVariable) for op in ops):
        raise ValueError(
            "the model takes mini-batches (pm.Minibatch or total_size). Pass it the whole data, without total_size."
        )


def _initial_point(model: Any) -> dict[str, np.ndarray]:
    try:
        with without_compiler():
            return model.initial_point(0)
    except Exception as error:
        raise ValueError(f"PyMC has no initial point for the model: {str(error).splitlines()[0]}.") from error


def _merged(program: PyMCProgram, vector: Any, start: Any) -> np.ndarray:
    """The vector at the values given, and at `vector` for the other variables."""
    names = program.unravel.names
    unknown = sorted(map(str, set(start) - set(names))) if isinstance(start, dict) else [type(start).__name__]
    if unknown:
        wanted = f"start must be a dictionary of values of free variables ({', '.join(names)})"
        raise ValueError(f"{wanted}; unknown: {', '.join(unknown)}.")
    return free_coordinates("start", program, eqx.filter_jit(program.values)(vector) | start)


def _check_density(program: PyMCProgram, density: Traced, vector: Any) -> None:
    """The density at the start: an error names the variable that is not finite there, or says that PyMC has another."""
    value, gradient = map(np.asarray, _value_and_gradient(density, vector))
    remedy = "Pass start={name: value, ...} where the density is finite, or check the data."
    # JAX moves an index that is out of bounds to the last entry, without a word; PyMC raises.
    theirs = _logp_in_python(program, vector)
    if not (np.isfinite(value) and np.isfinite(gradient).all()):
        for name, term in eqx.filter_jit(program.log_density_terms)(vector).items():
            if not np.isfinite(term).all():
                raise ValueError(f"the log density of {name!r} is not finite at the start. {remedy}")
        raise ValueError(f"the log density ({float(value)}) or its gradient is not finite at the start. {remedy}")
    if np.isfinite(theirs) and abs(value - theirs) > 1e-3 * (1 + abs(theirs)):
        raise ValueError(
            f"the model's log density at the start is {theirs} in PyTensor and {float(value)} in its translation to "
            f"JAX. Write the model with other operations, or report this to PyTensor."
        )


@weighed_jit
def _value_and_gradient(density: Traced, vector: Any) -> tuple[Any, Any]:
    return jax.value_and_grad(density)(vector)


def _logp_in_python(program: PyMCProgram, vector: Any) -> float:
    """PyMC's own log density."""
    pairs = zip(program.unravel(np.asarray(vector)).values(), program.inputs, strict=True)
    parts = [np.asarray(part, value.dtype) for part, value in pairs]
    try:
        return float(in_python(program.inputs, [program.logp])(*parts)[0])
    except Exception as error:
        raise ValueError(f"PyMC cannot evaluate the model: {str(error).splitlines()[0]}.") from error


def recognise(
    program: PyMCProgram, log_density: Callable[[Vector], Any], start: Vector, names: tuple[str, ...]
) -> AbstractLinearModel | None:
    """The model's posterior as a linear model in the same coordinates, or `None` where that is not proven.

    That is: Gaussian priors, a log-concave likelihood, an affine predictor. All free variables must be normal and
    without a transform, all observed ones of one kind, and there must be no potential; the rest of the proof is in
    `provi.frontends.recognise.glm`. PyMC keeps the probability of a `Bernoulli(logit_p=...)` only: its logit is read
    off the graph, where the probability is a sigmoid.
    """
    families = {family_of(rv) for rv in program.observed}
    gaussian = all(family_of(rv) == "NormalRV" for rv in program.free)
    transformed = any(transform is not None for transform in program.transforms)
    if len(families) != 1 or not families <= set(_FAMILIES) or not gaussian or transformed or program.potentials:
        return None
    kind, *words = _FAMILIES[str(families.pop())]
    columns = {"prior_loc": [], "prior_scale": [], "data": list(program.data)} | {word: [] for word in words}
    for rvs, targets in ((program.free, ("prior_loc", "prior_scale")), (program.observed, words)):
        for rv in rvs:
            for word, parameter in zip(targets, rv.owner.op.dist_params(rv.owner), strict=True):
                columns[word].append(parameter)
    graphs = {word: program.by_values(column) for word, column in columns.items()}
    if kind in ("bernoulli", "binomial"):
        graphs["predictor"] = [logit_of(probability) for probability in graphs["predictor"]]
        if any(predictor is None for predictor in graphs["predictor"]):
            return None
    function = program.of_vector([graph for column in graphs.values() for graph in column])

    def parameters(z: Vector) -> dict[str, Any]:
        outputs = iter(function(z))
        return {word: [next(outputs) for _ in column] for word, column in graphs.items()}

    traced = Traced(lambda z: _flat(parameters(z), program.unravel.shapes), start)
    return linear_model_of(kind, traced, lambda z: -log_density(z), start, names)


def _flat(columns: dict[str, list[Any]], shapes: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    """Each parameter as one vector over all entries, of the free variables or of the data."""
    sizes = {"prior_loc": shapes, "prior_scale": shapes}
    words = [word for word in columns if word not in sizes]
    rows = [
        jnp.broadcast_shapes(*(np.shape(part) for part in parts))
        for parts in zip(*(columns[w] for w in words), strict=True)
    ]
    found = {}
    for word, column in columns.items():
        pairs = zip(column, sizes.get(word, rows), strict=True)
        found[word] = jnp.concatenate([jnp.ravel(jnp.broadcast_to(part, shape)) for part, shape in pairs])
    return found
