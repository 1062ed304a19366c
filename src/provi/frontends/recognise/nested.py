"""The few scales of a model, the proof that it is linear given these, and the model as such."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.types import Scalar, Vector
from provi.frontends.recognise.affine import Form, Traced
from provi.frontends.recognise.anatomy import AbstractAnatomy, Parts
from provi.frontends.recognise.conditional import ConditionalGLM
from provi.frontends.recognise.latent import RecognisedLatentGaussian
from provi.frontends.recognise.pattern import AffineRows, RowPattern, pattern_of
from provi.frontends.recognise.rows import KINDS, are_data
from provi.frontends.recognise.sparsity import columns_of_rows
from provi.frontends.target import Unravel

MOST_SCALES = 6
"""Free coordinates that are integrated numerically, at most."""

_MOST_CANDIDATES = 16  # sites in conflict: their subsets are all tried
_LARGEST_DESIGN = 2**24  # numbers: 128 MiB at each value of the scales
_LARGEST_DENSE = 2000  # effects whose prior is not normal site by site
_AGREEMENT_OF_CONSTANTS = 1e-6


def conditional_glm_of(
    anatomy: AbstractAnatomy, potential: Callable[[Vector], Scalar], unravel: Unravel, start: Vector
) -> ConditionalGLM | None:
    """The posterior as a linear model given a few of its coordinates, or `None` where that is not proven.

    Proven means: read off the traced program of `anatomy` (`provi.frontends.recognise.affine`). The data must not
    depend on anything unknown, and there must be scales: a model without is linear, or is not found here.

    **Arguments:**

    - `anatomy`: the terms of the log density.
    - `potential`: -log p, for a comparison at two points.
    - `unravel`, `start`: the free coordinates by site, and a vector of them.
    """
    sites, kind = unravel(start), anatomy.kind
    shapes: Parts = jax.eval_shape(anatomy, sites)
    rows = shapes.rows["predictor"].size
    if not rows or any(shapes.rows[word].size != 1 for word in KINDS[kind].common):
        return None
    traced = Traced(anatomy, sites)
    everything: Parts = traced.forms(sites)
    if any(everything.rows[word] != Form.CONSTANT for word in ("data", *KINDS[kind].known)):
        return None
    sizes = {name: math.prod(shape) for name, shape in zip(unravel.names, unravel.shapes, strict=True)}
    scales = find_scales(traced, kind, {name: size for name, size in sizes.items() if size})
    if not scales:
        return None
    found = _with_patterns(_assemble(anatomy, traced, unravel, scales))
    pairs = zip(found.predictor_rows.sizes, found.predictor_rows.patterns, strict=True)
    full = sum(size for size, pattern in pairs if pattern is None)
    if rows * full > _LARGEST_DESIGN or (not found.all_normal and found.effects.size > _LARGEST_DENSE):
        return None
    known = jax.jit(lambda parts: {word: anatomy(parts).rows[word] for word in ("data", *KINDS[kind].known)})(sites)
    valid = are_data(kind, {word: np.asarray(value, np.float64) for word, value in known.items()})
    return found if valid and _agrees(found, potential, start) else None


def latent_gaussian_of(
    anatomy: AbstractAnatomy | None,
    potential: Callable[[Vector], Scalar],
    unravel: Unravel,
    start: Vector,
    labels: Iterable[str],
) -> RecognisedLatentGaussian | None:
    """The same as a latent Gaussian model; `labels`, one a site, say what its free coordinates are called."""
    found = None if anatomy is None else conditional_glm_of(anatomy, potential, unravel, start)
    named = dict(zip(unravel.names, labels, strict=True))
    return None if found is None else RecognisedLatentGaussian(found, start, named)


def _assemble(anatomy: AbstractAnatomy, traced: Traced, unravel: Unravel, scales: frozenset[str]) -> ConditionalGLM:
    shapes = dict(zip(unravel.names, unravel.shapes, strict=True))
    held = {name: shapes[name] for name in unravel.names if name in scales}
    free = {name: shapes[name] for name in unravel.names if name not in scales}
    forms: Parts = traced.forms(free)
    normal = frozenset(name for name in forms.normals if name in free)
    rest = [form for name, form in forms.terms.items() if name not in normal]
    full = AffineRows(tuple(math.prod(shape) for shape in free.values()), (None,) * len(free))
    return ConditionalGLM(
        anatomy=anatomy,
        unravel=unravel,
        scales=Unravel(tuple(held), tuple(held.values())),
        effects=Unravel(tuple(free), tuple(free.values())),
        generations=_generations(traced, normal, unravel.names),
        all_normal=all(form == Form.CONSTANT for form in rest) and normal == frozenset(free),
        predictor_rows=full,
        effect_rows=full,
    )


def _generations(traced: Traced, normal: frozenset[str], order: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The normal sites, each after all those that its location depends on; the fewest groups."""
    dependent = {name: traced.forms({name}).normals for name in normal}
    found: dict[str, int] = {}
    for name in (name for name in order if name in normal):  # parents come first
        above = [found[other] for other in found if dependent[other][name][0] != Form.CONSTANT]
        found[name] = max(above, default=-1) + 1
    return tuple(tuple(n for n in found if found[n] == k) for k in range(max(found.values(), default=-1) + 1))


def _with_patterns(found: ConditionalGLM) -> ConditionalGLM:
    """The same with the sites last that rows have few entries of; not where the prior has to be factored."""
    if not found.all_normal:
        return found
    parts, theta = found.effects(jnp.zeros(found.effects.size)), jnp.zeros(found.scales.size)

    def predictor(theta: Any, parts: dict[str, Any]) -> Any:
        return found.anatomy(found.sites(theta, parts)[0]).rows["predictor"]

    patterns = _patterns(predictor, theta, parts)
    order = sorted(parts, key=lambda name: patterns[name] is not None)

    def own(theta: Any, parts: dict[str, Any]) -> Any:
        sites = found.sites(theta, parts)[0]
        return jnp.concatenate([jnp.ravel(sites[name]) for name in order])

    sizes, own_patterns = tuple(parts[name].size for name in order), _patterns(own, theta, parts)
    return dataclasses.replace(
        found,
        effects=Unravel(tuple(order), tuple(parts[name].shape for name in order)),
        predictor_rows=AffineRows(sizes, tuple(patterns[name] for name in order)),
        effect_rows=AffineRows(sizes, tuple(own_patterns[name] for name in order)),
    )


def _patterns(function: Callable, theta: Any, parts: dict[str, Any]) -> dict[str, RowPattern | None]:
    """Of each site, what the rows that `function` gives have of it."""
    columns = columns_of_rows(function, theta, parts)
    return {name: pattern_of(columns[name], part.shape) for name, part in parts.items()}


def _agrees(found: ConditionalGLM, potential: Callable[[Vector], Scalar], start: Vector) -> bool:
    """Whether the two densities are equal at two points, and finite.

    No proof, but a guard against a change of a package's meaning, and against a prior that is not proper.
    """
    places = np.array([name in found.scales.names for name in found.unravel.names])
    sizes = [math.prod(shape) for shape in found.unravel.shapes]
    theta = jnp.asarray(start)[np.repeat(places, sizes)]

    @jax.jit
    def both(shift: Scalar) -> tuple[Scalar, Scalar]:
        moved = theta + shift * jnp.cos(jnp.arange(theta.size))
        u = 3 * shift * jnp.cos(jnp.arange(found.effects.size))
        return -found.log_density(moved, u), potential(found.coordinates(moved, u)[0])

    ours, theirs = np.array([both(shift) for shift in jnp.asarray([0.1, -0.2], start.dtype)], np.float64).T
    precise = start.dtype == jnp.float64
    size, error = 1 + np.abs(theirs).max(), ours - theirs
    constant = np.abs(error).max() <= (_AGREEMENT_OF_CONSTANTS if precise else 1e-3) * size
    shape = np.ptp(error) <= (KINDS[found.anatomy.kind].agreement if precise else 1e-3) * size
    return bool(constant and shape)


def is_linear_given_the_rest(traced: Traced, kind: str, varying: Collection[str]) -> bool:
    r"""Whether the log density is a linear model's in the sites `varying`, at every value of the others.

    That is: $\log p = \mathrm{quadratic}(z) + \sum_n \log p(y_n \mid \eta_n)$ with $\eta$ affine in z, all coefficients
    and the numbers of the likelihood functions of the other sites. A normal site of z counts by its location, affine,
    and its scale, constant: their values may then be moved and stretched to N(0, 1). Any other term must be
    quadratic as it stands.
    """
    found: Parts = traced.forms(varying)
    normal = {
        name: loc <= Form.AFFINE and scale == Form.CONSTANT
        for name, (loc, scale) in found.normals.items()
        if name in varying
    }
    terms = (form <= Form.QUADRATIC for name, form in found.terms.items() if name not in normal)
    numbers = (form == Form.CONSTANT for word, form in found.rows.items() if word != "predictor")
    predictor = found.rows["predictor"] in (Form.CONSTANT, KINDS[kind].predictor)
    return predictor and all(normal.values()) and all(terms) and all(numbers)


def find_scales(traced: Traced, kind: str, sizes: Mapping[str, int]) -> frozenset[str] | None:
    """The sites to hold, with the fewest coordinates found; `None` where they are too many or leave nothing.

    A site that is not linear by itself must be held. Of two that are not linear together, such as a scale and what it
    multiplies, one must. What is found so is then proven for all of the rest at once.
    """

    def linear(*names: str) -> bool:
        return is_linear_given_the_rest(traced, kind, names)

    held = {name for name in sizes if not linear(name)}
    if sum(sizes[name] for name in held) > MOST_SCALES:
        return None
    free = [name for name in sizes if name not in held]
    conflicts = [pair for pair in itertools.combinations(free, 2) if not linear(*pair)]
    budget = MOST_SCALES - sum(sizes[name] for name in held)
    cover = _smallest_cover(conflicts, sizes, budget)
    if cover is None:
        return None
    rest = [name for name in free if name not in cover]
    return frozenset(held | cover) if rest and linear(*rest) else None


def _smallest_cover(conflicts: list[tuple[str, str]], sizes: Mapping[str, int], budget: int) -> set[str] | None:
    """The sites with the fewest coordinates of which every conflict has one; earlier sites where there is a choice."""
    candidates = [name for name in sizes if sizes[name] <= budget and any(name in pair for pair in conflicts)]
    if len(candidates) > _MOST_CANDIDATES:
        return None
    weight: Callable[[tuple[str, ...]], int] = lambda chosen: sum(sizes[name] for name in chosen)  # noqa: E731
    subsets = (s for count in range(len(candidates) + 1) for s in itertools.combinations(candidates, count))
    covers = (s for s in subsets if weight(s) <= budget and all(a in s or b in s for a, b in conflicts))
    found = min(covers, key=weight, default=None)
    return None if found is None else set(found)
