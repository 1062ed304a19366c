"""What an algorithm is: pure `init`, `step`, `output` on states; the compiled loop lives in `runtime`."""

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
from equinox import AbstractVar

from provi.algorithms.guarantee import Guarantee
from provi.core.types import Count, RandomKey, Scalar
from provi.families.base import AbstractFamily
from provi.schedules.batch_sizes import AbstractBatchSize
from provi.schedules.sampling import AbstractSampling
from provi.targets.base import AbstractFiniteSum, AbstractTarget


class StepInfo(eqx.Module):
    """What one step tells people; the next step does not read it."""

    step_size: Scalar
    num_draws: Count
    gradient_norm_loc: Scalar
    gradient_norm_scale: Scalar
    point_norm: Scalar


class AbstractAlgorithm(eqx.Module):
    """A method on a family of approximations."""

    num_draws: AbstractVar[AbstractBatchSize]
    guarantee: AbstractVar[Guarantee | None]

    guards_itself: ClassVar[bool] = False
    """Whether `step` itself keeps the old state when something is not finite: the loop then need not select."""

    quantities: ClassVar[tuple[str, str, str]] = (
        "the gradient of the location",
        "the gradient of the scale",
        "the new parameters",
    )
    """What the three norms of `StepInfo` are of: the words for the one that was not finite."""

    @abstractmethod
    def resolve(self, target: Any, family: Any) -> "AbstractAlgorithm":
        """Check that the parts fit together (`ValueError` otherwise) and fill in what depends on the target.

        The target is an `AbstractTarget`, or the `AbstractSurrogate` of a plain sum.
        """

    @abstractmethod
    def init(self, point: Any) -> Any:
        """The state at the start `point`; every state has fields `point` and `step`."""

    @abstractmethod
    def step(self, key: RandomKey, state: Any, target: Any, family: Any, shrink: Scalar) -> tuple[Any, StepInfo]:
        """One step with the step size multiplied by `shrink`. `key` is the run's key, the same at every step."""

    @abstractmethod
    def output(self, state: Any) -> Any:
        """The point to return."""

    def draws_at(self, step: Count) -> Count:
        """What step number `step` takes from a budget of gradient evaluations."""
        return self.num_draws(step)

    def compile_quickly(self, family: Any) -> bool:
        """Whether the loop is compiled with little optimisation: for short runs that spend their time in LAPACK."""
        del family
        return False

    def recorded_elbo(self, state: Any) -> tuple[Any, Any] | None:
        """The ELBO for the history and its standard error, zero if exact, NaN if there is none yet.

        None leaves it to a separate estimate.
        """
        del state
        return None


def check_parts(target: AbstractTarget, family: AbstractFamily, data_sampling: AbstractSampling | None) -> None:
    """What every algorithm asks of its parts, or a `ValueError` that says which do not fit."""
    if family.dim != target.dim:
        raise ValueError(f"family has dimension {family.dim}, but the target has {target.dim}. Use dim={target.dim}.")
    if data_sampling is not None and not isinstance(target, AbstractFiniteSum):
        raise ValueError(
            f"data_sampling needs a target with data terms; {type(target).__name__} has none. Leave it at None."
        )


def without_guarantee(algorithm: Any) -> Any:
    """The algorithm as the compiled loop sees it: the guarantee's numbers must not trigger recompilation."""
    return dataclasses.replace(algorithm, guarantee=None)


def planned(algorithm: Any, target: AbstractTarget, family: AbstractFamily) -> Any:
    """The algorithm of a theorem's plan, its guarantee bound to what the plan was made for."""
    guarantee = dataclasses.replace(algorithm.guarantee, planned_for=(target, family, without_guarantee(algorithm)))
    return dataclasses.replace(algorithm, guarantee=guarantee)


def check_planned(algorithm: Any, target: AbstractTarget, family: AbstractFamily) -> None:
    """Refuse a guarantee for another target, another family or other settings: its bound could be below the truth."""
    planned_for = algorithm.guarantee.planned_for
    given = (target, family, without_guarantee(algorithm))
    for name, own, other in zip(
        ("target", "family", "choice of settings"), planned_for or (None,) * 3, given, strict=True
    ):
        if not bool(eqx.tree_equal(own, other)):
            raise ValueError(
                f"The algorithm's guarantee was computed for another {name}: its bound does not hold here. Call "
                f"from_theorem again, or drop it: dataclasses.replace(algorithm, guarantee=None)."
            )
