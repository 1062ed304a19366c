"""Which coordinates of a model are its few scales: those without which the rest is a linear model."""

import itertools
from collections.abc import Callable, Collection, Mapping

from provi.frontends.recognise.affine import Form, Traced
from provi.frontends.recognise.anatomy import Parts
from provi.frontends.recognise.rows import KINDS

MOST_SCALES = 6
"""Free coordinates that are integrated numerically, at most."""

_MOST_CANDIDATES = 16  # sites in conflict: their subsets are all tried


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
