r"""Bounds on the optimality gap of any log-concave target, from gradients of its log density at draws of q.

In the whitened coordinates of $q = (m, C)$ a competitor is $(m + Cv, CB)$, $B$ symmetric positive definite (diagonal
in a diagonal family). The gap is at most $\sup_{v,B}\, l(0,I) - l(v,B) + \log\det B$, $l(v,B) = E\phi(m + C(v+Bu))$.
`monte_carlo_bounds` computes, from R independent batches of antithetic draws and with
$J(S) = \mathrm{tr}(S - I) - \log\det S$,

- **(e)**, from convexity alone: $E[\hat l_b(0) - \hat l_b(v_b) + \mathrm{remainder}_b] + J(I + E G_b(v_b))$, where
  $v_b$ nearly minimises the batch's energy and $G_b(v)$ is the symmetric part of
  $\mathrm{mean}_i\,C'\nabla\phi(m + C(u_i + v))u_i' - u_iu_i'$: each $\hat l_b$ lies above its tangent at $(v_b, I)$;
- **(f)**, with a lower bound H of the Hessian: $\tfrac12 g'(C'HC)^{-1}g + J(I + G)$, $g = EC'\nabla\phi$,
  $G = EG_b(0)$;
- **(f')**, the same where an upper bound of the Hessian is known too and the base is normal: valid for any number of
  draws (`finite_sample`), and therefore 'proven'. The others take batch means as Gaussian: they are 'statistical';
- the same **in the metric of q**, $\tfrac12|g|^2 + J(I + G)$, which is conditional;
- the log-Sobolev bound $KL(q\|p) \le \tfrac12 E|C'(\nabla\phi + \nabla\log q)|^2_{(C'HC)^{-1}}$.

Without any H, (e) needs to know how far away the best mean may be: from the growth of the potential around q where it
grows in all directions, else by assumption, and it is conditional then.
"""

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from provi.certificates.bounds import GapBound, spend
from provi.certificates.certificate import Counterexample
from provi.certificates.monte_carlo.batch_minima import (
    LARGEST_DISTANCE,
    Evaluate,
    HostMeans,
    minimise_batches,
    on_host,
)
from provi.certificates.monte_carlo.batch_sums import LARGEST_DENSE, NUM_BATCHES, Frame, batch_means, displacement
from provi.certificates.monte_carlo.check_values import CheckValues, Unseen, check_values, next_guesses
from provi.certificates.monte_carlo.convexity import refuting_segment
from provi.certificates.monte_carlo.finite_sample import NAME, FiniteSample, finite_sample_bound, known_slopes
from provi.certificates.monte_carlo.whitened_frame import Grounds, growth, whitened_frame
from provi.core.arguments import check_count, check_positive, device_array, double_precision
from provi.core.randomness import key_of
from provi.core.types import RandomKey
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget

MOST_PASSES = 40
"""Evaluations of all draws in one check; the quasi-Newton method takes 3 to 10."""

FIRST_CHUNK = 2**30
"""Chunks of draws are numbered from here: a run with the same seed numbers its steps from 0 and never meets them."""

FEWEST_DRAWS = 4096
"""Draws in the first check, unless the budget forbids: with fewer, a batch mean sees two standard deviations."""

FINITE_SHARE = 0.5
"""Of the gradients and of the error probability, for (f') where it applies."""

NAMES = ("constants-free (e)", "strong convexity, Monte Carlo (f)", "in the metric of q")
INFINITE = "; infinite: too few draws, q too far from the optimum, or a potential that is not finite at a draw"


@dataclasses.dataclass(frozen=True)
class MonteCarloCertificate:
    """What draws of q say of it. All of it together holds with probability `confidence`: at least, of what is proven.

    - `bounds`: on the gap, those that apply; infinite ones say why. - `kl`: a bound on KL(q || p), or None.
    - `num_gradients`: of the potential. - `counterexample`: to the convexity that the bounds need, if one was met.
    - `fisher`, `fisher_error`: an estimate of E|C' grad phi(z) - u|^2 and its standard error; not a bound.
    """

    bounds: tuple[GapBound, ...]
    kl: float | None
    num_gradients: int
    counterexample: Counterexample | None
    fisher: float
    fisher_error: float
    confidence: float


@double_precision
def monte_carlo_bounds(
    target: AbstractTarget,
    family: LocationScale,
    point: Point,
    *,
    confidence: float = 0.99,
    seed: int = 0,
    max_gradients: int = 1_000_000,
    wanted: float | None = None,
    hidden: Callable[[int], tuple[float, float]] | None = None,
    only_proven: bool = False,
) -> MonteCarloCertificate:
    """The bounds (e), (f), (f') and in the metric of q on f(w) - f*, and the bound on KL(q || p).

    Checks are repeated with fresh draws, twice as many each time, and an error probability that is halved each
    time, until the best bound is at most `wanted`, or two checks in a row lowered it by less than a tenth, or the
    gradients are used up. The values of the last check, which has the most draws, are reported, and not the smallest
    ones: an earlier check that saw less is no better. Checks that contradict each other end in a refusal.

    **Arguments:**

    - `point`: the member q of `family` to certify. - `confidence`: of everything together.
    - `seed`: of the draws, which no run has used.
    - `max_gradients`: of the potential, in all. - `wanted`: nats that are enough.
    - `hidden`: what so many draws may miss of g and of G, from `tail_audit`. - `only_proven`: leave out what is not.
    """
    if family.dim != target.dim:
        raise ValueError(f"family has dimension {family.dim}, but the target has {target.dim}.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}.")
    if wanted is not None:
        check_positive("wanted", wanted)
    chunk = _pairs_in_a_chunk(family.dim)
    check_count("max_gradients", max_gradients, fewest_gradients(family.dim))
    if family.scale != "diagonal" and family.dim > LARGEST_DENSE:
        reason = f"a {family.scale} scale is certified up to dimension {LARGEST_DENSE}; use scale='diagonal'"
        return _refusal(reason, confidence, 0, None)
    frame, basis = whitened_frame(target, point)
    if basis.convexity == "violated":
        return _refusal("the target is known not to be log-concave", confidence, 0, None)
    finite, share = None, 1.0
    slopes = known_slopes(target, family, frame) if basis.convexity != "unknown" else None
    if slopes is not None:
        share = 1 - FINITE_SHARE
        finite = finite_sample_bound(
            key_of(seed),
            target,
            family,
            frame,
            slopes,
            chunk,
            delta=FINITE_SHARE * (1 - confidence),
            max_gradients=int(FINITE_SHARE * max_gradients),
            wanted=wanted,
        )
    rows = () if finite is None else (_finite_row(finite, basis, _notes(frame, family), confidence),)
    used = 0 if finite is None else finite.num_gradients
    if only_proven or max_gradients - used < fewest_gradients(family.dim):
        return MonteCarloCertificate(rows, None, used, None, math.nan, math.nan, confidence)
    level, left = 1 - share * (1 - confidence), max_gradients - used
    rest = _repeat(target, family, frame, basis, chunk, level, seed, left, wanted, hidden)
    # A counterexample refutes what (f') rests on too.
    rows = rows if rest.counterexample is None else ()
    bounds = tuple(dataclasses.replace(row, confidence=confidence) for row in rest.bounds)
    total = used + rest.num_gradients
    return dataclasses.replace(rest, bounds=(*rows, *bounds), num_gradients=total, confidence=confidence)


def _finite_row(finite: FiniteSample, basis: Grounds, notes: str, confidence: float) -> GapBound:
    detail = f"convexity of the potential ({basis.convexity}); {basis.curvature}; {finite.detail}{notes}"
    return GapBound(NAME, finite.value, "proven", confidence, finite.num_gradients, detail)


def _repeat(
    target: AbstractTarget,
    family: LocationScale,
    frame: Frame,
    basis: Grounds,
    chunk: int,
    confidence: float,
    seed: int,
    max_gradients: int,
    wanted: float | None,
    hidden: Callable[[int], tuple[float, float]] | None,
) -> MonteCarloCertificate:
    """Check, double the draws, check again."""
    key, dim = key_of(seed), family.dim
    whitener = None if frame.whitener is None else np.asarray(frame.whitener, np.float64)
    epsilon = float(jnp.finfo(frame.loc.dtype).eps)
    centre = np.zeros(frame.factor.shape)
    preconditioner = np.eye(dim) if dim <= LARGEST_DENSE else np.ones(dim)
    moved = float(displacement(np.asarray(frame.loc), np.asarray(frame.factor)))
    history, smallest, check = [math.inf, math.inf], math.inf, 0
    cone, used = growth(target, family, frame) if whitener is None else (None, 0)

    def distance(first: HostMeans) -> float:
        """From the largest batch mean of the potential: that all of them are below its expectation does not happen."""
        return LARGEST_DISTANCE if cone is None else cone.reach(float(np.max(first.value)))

    at_once = 2 * NUM_BATCHES * chunk
    # The first check is a pilot, for the centre and the preconditioner: it is reported only if the budget ends there.
    size, first = 1, FIRST_CHUNK
    while True:
        # No draw is used in two checks.
        chunks = range(first, first + size)
        draws = at_once * size
        passes = min(MOST_PASSES, (max_gradients - used) // draws)
        evaluate = _evaluator(key, target, family, frame, centre, chunks, chunk)
        found = minimise_batches(evaluate, whitener, preconditioner, passes, epsilon, distance)
        used += draws * found.passes
        if found.least < 0:
            segment = refuting_segment(key, target, family.base, frame, found.least_at, chunks, chunk)
            return _refusal(f"the potential is not convex: {segment}", confidence, used, segment)
        delta = spend(1 - confidence, check)
        unseen = Unseen(*(hidden(draws) if hidden else (0.0, 0.0)), draws, moved)
        values = check_values(found, whitener, family.base.has_score, centre, delta, epsilon, unseen)
        if values.least_decrease > smallest:
            reason = "two checks contradict each other: draws do not see what matters"
            return _refusal(reason, confidence, used, None)
        smallest = min(smallest, values.decrease)
        # Twice in a row, because one check may be unlucky.
        settled = math.isfinite(history[-2]) and values.best > 0.9 * history[-1] > 0.81 * history[-2]
        enough = wanted is not None and values.best <= wanted
        following = min(max(2 * size, FEWEST_DRAWS // at_once), (max_gradients - used) // (at_once * found.passes))
        if following <= size or (draws >= FEWEST_DRAWS and (settled or enough)):
            if cone is not None and basis.curvature is None:
                words = f"the best mean lies within {distance(found.first):.3g} standard deviations of q"
                basis = dataclasses.replace(basis, distance=f"{words}, as the potential grows around it")
            notes = f"; {draws} draws in the last check{_notes(frame, family)}"
            return _certificate(values, basis, notes, found.first.fisher, used, confidence)
        centre, preconditioner = next_guesses(found, centre)
        history, check, first, size = [history[-1], values.best], check + 1, first + size, following


def _evaluator(
    key: RandomKey,
    target: AbstractTarget,
    family: LocationScale,
    frame: Frame,
    centre: np.ndarray,
    chunks: range,
    chunk: int,
) -> Evaluate:
    """The function that `minimise_batches` calls, over these chunks of draws."""
    fixed, numbers = device_array(centre), (device_array(chunks.start), device_array(len(chunks)))

    def evaluate(shifts: np.ndarray, with_fisher: bool) -> HostMeans:
        arguments = (key, target, family.base, frame, fixed, device_array(shifts), *numbers)
        return on_host(batch_means(*arguments, chunk, device_array(with_fisher)))

    return evaluate


def _certificate(
    best: CheckValues, basis: Grounds, notes: str, fisher: np.ndarray, used: int, confidence: float
) -> MonteCarloCertificate:
    # Batch means are taken as Gaussian, which nothing here proves: the level is asymptotic.
    status = "conditional" if basis.convexity == "unknown" else "statistical"
    convex = f"convexity of the potential ({basis.convexity})"
    # Nobody has said, and nothing shows, how far a ridge without curvature or growth runs.
    assumed = f"and, not verified, that the best mean lies within {LARGEST_DISTANCE:g} standard deviations of q"
    remainder = basis.curvature or basis.distance
    grade, remainder = (status, remainder) if remainder else ("conditional", assumed)
    rows = [(NAMES[0], best.constants_free, grade, f"{convex}; {remainder}")]
    if basis.curvature:
        rows.append((NAMES[1], best.strong_convexity, status, f"{convex}; {basis.curvature}"))
    average = (
        "and, not verified, that the curvature of the potential, averaged over the members between q and the best "
        "one, is at least the inverse covariance of q"
    )
    rows.append((NAMES[2], best.metric_of_q, "conditional", f"{convex}; {average}"))
    bounds = tuple(
        GapBound(name, value, grade, confidence, used, detail + notes + ("" if math.isfinite(value) else INFINITE))
        for name, value, grade, detail in rows
    )
    with np.errstate(invalid="ignore"):  # A gradient that overflowed has no spread.
        error = float(np.std(fisher, ddof=1)) / math.sqrt(NUM_BATCHES)
    kl = best.kl if math.isfinite(best.kl) and status == "statistical" else None
    return MonteCarloCertificate(bounds, kl, used, None, float(np.mean(fisher)), error, confidence)


def _notes(frame: Frame, family: LocationScale) -> str:
    precision = "" if frame.loc.dtype == jnp.float64 else f"; computed in {frame.loc.dtype}"
    return precision + ("; against all covariances, not only low-rank ones" if family.scale == "low_rank" else "")


def _refusal(reason: str, confidence: float, used: int, counterexample: Counterexample | None) -> MonteCarloCertificate:
    bounds = tuple(GapBound(name, math.inf, "conditional", confidence, used, f"refused: {reason}") for name in NAMES)
    return MonteCarloCertificate(bounds, None, used, counterexample, math.nan, math.nan, confidence)


def fewest_gradients(dim: int) -> int:
    """What the smallest check costs in dimension `dim`."""
    return 4 * NUM_BATCHES * _pairs_in_a_chunk(dim)


def _pairs_in_a_chunk(dim: int) -> int:
    """A power of two near dim / 8: fewer draws than 8 dim in all cannot tell G from zero."""
    return int(np.clip(2 ** math.ceil(math.log2(dim / 8)), 8, 64))
