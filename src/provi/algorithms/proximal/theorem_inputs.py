"""From a target, a family and a start to the plain numbers that the theorems of `provi.theory` take.

What the plans of all theorems share: exactly one goal, and the number of steps it allows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.guarantee import Guarantee, weakest
from provi.core.arguments import check_count, check_positive, double_precision
from provi.core.tree import squared_norm
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget, Constant, declared, proven
from provi.theory import solution_region

_RADII = (1.0, 10.0, 1e2, 1e3, 1e4, 1e6)
_MOST_AXES = 256  # of the linear program that shows growth


@dataclasses.dataclass(frozen=True)
class TheoremInputs:
    """The constants of a problem, with the grounds for each.

    - `reference_distance_squared`: |w* - wbar|^2 = |m* - mode|^2 + |C*|^2, or an upper bound of it;
    - `initial_distance_squared`: |w_0 - w*|^2, or an upper bound of it.
    """

    start: Point
    dim: int
    smoothness: float
    strong_convexity: float
    kurtosis: float
    reference_distance_squared: float
    initial_distance_squared: float
    assumptions: tuple[tuple[str, str], ...]
    status: str

    def guarantee(
        self, theorem: str, metric: str, num_steps: int, curve: Callable[[np.ndarray], np.ndarray]
    ) -> Guarantee:
        """What `theorem` promises of a run of `num_steps` from `start`, `curve` being its bound by steps."""
        bound = float(curve(np.asarray([num_steps]))[0])
        return Guarantee(theorem, metric, num_steps, bound, curve, self.assumptions, self.start, self.status)

    def initial_distance_squared_scaled(self, scale_factor: float) -> float:
        """|w_0 - w*|^2 in the norm that divides the scale's block by `scale_factor` <= 1."""
        return self.initial_distance_squared / scale_factor


@double_precision
def theorem_inputs(
    target: AbstractTarget,
    family: LocationScale,
    *,
    start: Point | None = None,
    initial_distance_squared: float | None = None,
    reference_distance_squared: float | None = None,
) -> TheoremInputs:
    """Collect the constants, or raise a `ValueError` that says which one is missing and what to do.

    The two distances involve the unknown optimum. With strong convexity mu they are bounded by
    |w* - wbar|^2 <= d/mu (Domke 2020, Theorem 10) and |m_0 - mode| <= |grad potential(m_0)|/mu; without it,
    or to do better, the user may declare them.
    """
    if family.dim != target.dim:
        raise ValueError(f"family has dimension {family.dim}, but the target has {target.dim}.")
    constants = target.constants
    smoothness = _need(constants.smoothness, "smoothness", "declare smoothness= on the target")
    _need(constants.log_concave, "log-concavity", "declare log_concave=True on the target")
    if constants.log_concave.value is not True:
        raise ValueError("The theorems need a log-concave target; this one is declared or found not to be.")
    convexity = constants.strong_convexity if constants.strong_convexity.known else None
    strong_convexity = float(convexity.value) if convexity is not None else 0.0  # pyright: ignore
    if start is None:
        start = family.point(target.default_location, solution_region.smallest_scale(smoothness), target.dtype)
    initial, reference = _distances(
        target, start, strong_convexity, initial_distance_squared, reference_distance_squared
    )
    assumptions = _assumptions(target, family, start, initial, reference)
    own = [constants.log_concave, constants.smoothness, *([convexity] if convexity is not None else [])]
    return TheoremInputs(
        start=start,
        dim=family.dim,
        smoothness=smoothness,
        strong_convexity=strong_convexity,
        kurtosis=float(family.base.kurtosis(family.dim)),
        reference_distance_squared=float(reference.value),  # pyright: ignore
        initial_distance_squared=float(initial.value),  # pyright: ignore
        assumptions=assumptions,
        status=weakest([*(constant.status for constant in own), *(status for _, status in assumptions)]),
    )


def _need(constant: Constant, name: str, remedy: str) -> float:
    if not constant.known:
        raise ValueError(
            f"The theorems need the target's {name}, which is {constant.status}: {constant.reason}. "
            f"Remedy: {remedy}, or use an algorithm without from_theorem."
        )
    return float(constant.value)  # pyright: ignore


def _distances(
    target: AbstractTarget, start: Point, strong_convexity: float, initial: Any, reference: Any
) -> tuple[Constant, Constant]:
    if (initial is None or reference is None) and strong_convexity <= 0:
        raise ValueError(
            "The target has no known strong convexity, so the distance to the optimum cannot be bounded. Pass "
            "initial_distance_squared= (|w0 - w*|^2) and reference_distance_squared= (|m* - mode|^2 + |C*|^2)."
        )
    if reference is None:
        reference_constant = proven(
            solution_region.reference_distance_squared_bound(target.dim, strong_convexity), "d / mu"
        )
    else:
        reference_constant = declared(float(reference))
    if initial is not None:
        return declared(float(initial)), reference_constant
    gradient_norm = float(jnp.linalg.norm(jax.grad(target.potential)(start.loc)))
    to_mode = solution_region.mode_distance_bound(gradient_norm, strong_convexity)
    to_reference = float(np.sqrt(to_mode**2 + float(squared_norm(start.scale))))
    bound = solution_region.start_distance_squared_bound(to_reference, target.dim, strong_convexity)
    return proven(bound, "(|w0 - wbar| + sqrt(d/mu))^2"), reference_constant


def _existence(target: AbstractTarget, family: LocationScale, start: Point) -> tuple[str, str]:
    """That a best approximation exists, and on what grounds; a `ValueError` where there are none.

    Log-concavity is not enough: softplus(z) is convex, and E_q of it - log(scale) falls for ever as q moves and widens.
    """
    constants = target.constants
    convexity, growth = constants.strong_convexity, target.growth
    strong = float(convexity.value) if convexity.known and convexity.value else None
    if strong is None and not growth.known and _grows(target, start):
        growth = Constant(1.0, constants.log_concave.status, "convexity, and tangents that enclose a bounded set")
    exponent = float(growth.value) if growth.known else None  # pyright: ignore
    verdict = solution_region.minimiser_exists(exponent, family.base.log_concave, strong)
    if not verdict.holds:
        raise ValueError(
            "The theorems need a best approximation, and nothing shows that there is one: the density may have no "
            "integral. Declare growth_exponent= on the target (an r > 0 for which the potential is at least "
            "c |z|^r - c'), or strong_convexity=, or use an algorithm without from_theorem."
        )
    grounds = convexity.status if strong is not None else growth.status
    return f"a best approximation exists: {verdict.reason}", grounds


def _grows(target: AbstractTarget, start: Point) -> bool:
    """Whether gradients on the axes through the start prove growth of order 1, of a convex potential."""
    dim = target.dim
    if dim > _MOST_AXES or start.loc.dtype != np.float64:  # rounding of float32 could be taken for a slope
        return False
    axes = jnp.concatenate([jnp.eye(dim), -jnp.eye(dim)]).astype(start.loc.dtype)
    slopes = jax.vmap(jax.grad(target.potential))
    for radius in _RADII:
        gradients = np.asarray(slopes(start.loc[None, :] + radius * axes), np.float64)
        if np.isfinite(gradients).all() and solution_region.linear_growth(gradients) > 0:
            return True
    return False


def _assumptions(
    target: AbstractTarget, family: LocationScale, start: Point, initial: Constant, reference: Constant
) -> tuple[tuple[str, str], ...]:
    convexity = target.constants.strong_convexity
    return (
        _existence(target, family, start),
        (f"|w0 - w*|^2 <= {initial.value:.6g} ({initial.reason})", _weaker(initial.status, convexity.status)),
        (
            f"|w* - wbar|^2 <= {reference.value:.6g} ({reference.reason})",
            _weaker(reference.status, convexity.status),
        ),
    )


def _weaker(own: str, source: str) -> str:
    """A number declared by the user stands on its own; one derived from mu is as good as mu."""
    return own if own == "declared" else source


def check_start_nondegenerate(inputs: TheoremInputs) -> None:
    """The projected methods' theorems begin inside W_M: singular values of C_0 of at least 1/sqrt(M)."""
    smallest = float(np.linalg.eigvalsh(np.asarray(inputs.start.scale.covariance(), np.float64))[0]) ** 0.5
    floor = solution_region.smallest_scale(inputs.smoothness)
    if smallest < floor * (1 - 1e-6):
        raise ValueError(
            f"start has a scale with singular value {smallest:.4g}, below 1/sqrt(smoothness) = {floor:.4g}, where the "
            f"theorem does not hold. Use family.point(loc, scale) with a larger scale."
        )


def check_goal(budget: int | None, accuracy: float | None, num_draws: int = 1) -> None:
    """Exactly one of a budget of gradient evaluations and an accuracy to reach."""
    if (budget is None) == (accuracy is None):
        raise ValueError("Pass exactly one of budget= (gradient evaluations) and accuracy= (the bound's value).")
    check_count("num_draws", num_draws)
    if budget is not None and check_count("budget", budget) < num_draws:
        raise ValueError(f"budget={budget} does not pay for one step of num_draws={num_draws}.")
    if accuracy is not None:
        check_positive("accuracy", accuracy)


def planned_steps(
    budget: int | None, accuracy: float | None, num_draws: int, steps_for_accuracy: Callable[[float], int]
) -> int:
    """Steps that the budget pays for, or that the accuracy needs (at least one)."""
    if budget is not None:
        return budget // num_draws
    assert accuracy is not None  # check_goal
    return max(1, steps_for_accuracy(accuracy))
