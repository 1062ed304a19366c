r"""The contract of an algorithm: all that the compiled loop, the driver and the stopping rules read of it.

| who | reads of the algorithm | reads of its state |
| --- | --- | --- |
| the loop | `init`, `step`, `cost_at`, `guards_itself`, `arranged`; what its `ClassVar`s say of compilation | `step` |
| its driver | `resolve`, `output`, `recorded_elbo`, `quantities`, `cost_at`, `donated_fields` | `point`, `step` |
| stopping rules | `progress`, `cost_at` | `point`, `step` |

Nothing else is read, and nothing is looked for that is not declared here. What only some methods have (a number of
draws, say) is theirs alone.
"""

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar, Protocol, runtime_checkable

import equinox as eqx
from equinox import AbstractVar

from provi.algorithms.guarantee import Guarantee
from provi.core.types import Count, RandomKey, Scalar
from provi.families.base import AbstractFamily
from provi.schedules.sampling import AbstractSampling
from provi.targets.base import AbstractFiniteSum, AbstractTarget


@runtime_checkable
class State(Protocol):
    """Where a run is: a module that holds all that the next step reads, and so all that a checkpoint holds.

    What else is in it is the algorithm's own.
    """

    @property
    def point(self) -> Any:
        """The iterate, with the structure of the start; what is returned is `output(state)`, which may be another."""
        ...

    @property
    def step(self) -> Count:
        """The number of steps taken, rejected ones among them; one leaf, which the loop replaces."""
        ...


class StepInfo(eqx.Module):
    """What one step tells people; the next step does not read it.

    - `step_size`: in the method's own units.
    - `cost`: gradient evaluations that it took, at most `cost_at` of its number; `history["num_draws"]`.
    - `norms`: of the three `quantities` of the algorithm. The step is rejected if one is not finite;
      `history["gradient_norm"]` is the root of the sum of squares of the first two.
    """

    step_size: Scalar
    cost: Count
    norms: tuple[Scalar, Scalar, Scalar]


@dataclasses.dataclass(frozen=True)
class Progress:
    """What an algorithm itself thinks of its state: numbers on the host for stopping rules, none of them proven.

    - `gap`: an estimate of the excess over a (local) optimum, nats. - `negative_elbo`: of the state's point, or of the
      last point where it was computed. NaN where not known.
    """

    gap: float = float("nan")
    negative_elbo: float = float("nan")


class AbstractAlgorithm(eqx.Module):
    """A method on a family of approximations: pure functions on its own kind of `State`.

    Without a default: `guarantee`, `resolve`, `init`, `step`, `output`, `cost_at`. The rest has one.
    """

    guarantee: AbstractVar[Guarantee | None]

    guards_itself: ClassVar[bool] = False
    """Whether `step` itself keeps the old state when something is not finite: the loop then need not select."""

    few_steps: ClassVar[bool] = False
    """Whether a run is some tens of steps, each a pass over the data: a small one is then interpreted, not compiled."""

    some_steps: ClassVar[bool] = False
    """Whether a run is some hundreds of steps: a small one is then compiled with little optimisation."""

    donated_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of the state whose large arrays the loop takes over instead of working on a copy: a table, say."""

    quantities: ClassVar[tuple[str, str, str]] = (
        "the gradient of the location",
        "the gradient of the scale",
        "the new parameters",
    )
    """What the three norms of `StepInfo` are of: the words for the one that was not finite.

    "" is for one that the method does not have: its norm is zero.
    """

    @abstractmethod
    def resolve(self, target: Any, family: Any) -> "AbstractAlgorithm":
        """Check that the parts fit together (`ValueError` otherwise) and fill in what depends on the target.

        The target is an `AbstractTarget`, or the `AbstractSurrogate` of a plain sum.
        """

    @abstractmethod
    def init(self, point: Any) -> State:
        """The state at the start `point`."""

    @abstractmethod
    def step(self, key: RandomKey, state: Any, target: Any, family: Any, shrink: Scalar) -> tuple[Any, StepInfo]:
        """One step with the step size multiplied by `shrink`. `key` is the run's key, the same at every step."""

    @abstractmethod
    def output(self, state: Any) -> Any:
        """The point to return."""

    @abstractmethod
    def cost_at(self, step: Count) -> Count:
        """What step number `step` takes from a budget of gradient evaluations, at most: draws, data or passes."""

    def arranged(self, state: Any) -> Any:
        """The state, told how it lies on several devices: at both ends of the compiled loop, so that they agree."""
        return state

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

    def progress(self, state: Any) -> Progress | None:
        """For stopping rules, on the host; None while nothing has been evaluated at `state`, or if nothing ever is."""
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
