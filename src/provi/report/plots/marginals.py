"""The marginals of an approximation in the model's own space, and reference draws in the same columns."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from scipy import special

from provi.certificates.distance.bound import least_content
from provi.core.arguments import as_array
from provi.families.bases import Normal, marginal_quantile

# The draws of `posterior.summary`, so that pictures and tables show the same numbers.
_DRAWS, _FEWEST_DRAWS, _NUMBERS, _SEED = 10_000, 100, 2**25, 0
_AT_ONCE = 1000
_LARGEST_BAND = 0.2  # nats of KL, from which a band fills the picture
_BINS = np.linspace(-2.8, 2.8, 8)  # in standard deviations: few, as the bound is on the probability of each


@dataclasses.dataclass(frozen=True)
class Marginals:
    """The first of the `total` parameters: `names`, and for each the free coordinate that it is, or -1.

    What is a free coordinate has exact marginals; the rest is known by `draws`, a column each (None without any).
    """

    names: tuple[str, ...]
    total: int
    posterior: Any
    coordinate: np.ndarray
    draws: np.ndarray | None
    title: str = "Marginals"

    @property
    def mean(self) -> np.ndarray:
        """E_q of each."""
        exact = self.posterior.mean[self.coordinate]
        return exact if self.draws is None else np.where(self.coordinate >= 0, exact, self.draws.mean(axis=0))

    def interval(self, probability: float) -> np.ndarray:
        """Central intervals, shape (names, 2)."""
        exact = self.posterior.interval(probability)[self.coordinate]
        if self.draws is None:
            return exact
        tails = np.quantile(self.draws, [(1 - probability) / 2, (1 + probability) / 2], axis=0).T
        return np.where(self.coordinate[:, None] >= 0, exact, tails)

    def density(self, index: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Points and the exact density there, of a free coordinate; None of what is known by draws."""
        coordinate = int(self.coordinate[index])
        if coordinate < 0:
            return None
        (middle, slope), spread = self._standard_density, self.posterior.standard_deviation[coordinate]
        return self.posterior.mean[coordinate] + spread * middle, slope / spread

    def band(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Ends of bins, and the least and the largest mean density that the posterior can have in each.

        By data processing: kl(q(B) || p(B)) <= KL(q || p) for the probability of every bin B. None where nothing
        bounds the distance to the posterior closely, or the parameter is known by draws.
        """
        coordinate, shares = int(self.coordinate[index]), self._standard_band
        if coordinate < 0 or shares is None:
            return None
        spread = self.posterior.standard_deviation[coordinate]
        widths = spread * np.diff(_BINS)
        return self.posterior.mean[coordinate] + spread * _BINS, shares[0] / widths, shares[1] / widths

    @functools.cached_property
    def _standard_band(self) -> np.ndarray | None:
        """The least and the largest posterior probability of each bin, which are the same for all coordinates."""
        distance = self.posterior.bound
        if distance is None or distance.kl > _LARGEST_BAND or not isinstance(self.posterior.family.base, Normal):
            return None
        shares = np.diff(special.ndtr(_BINS))
        low = [least_content(share, distance.kl) for share in shares]
        return np.asarray([low, [1 - least_content(1 - share, distance.kl) for share in shares]])

    @functools.cached_property
    def _standard_density(self) -> tuple[np.ndarray, np.ndarray]:
        """The density of one coordinate of the base, as the slope of its distribution between quantiles."""
        family, levels = self.posterior.family, special.ndtr(np.linspace(-3.1, 3.1, 161))  # all but 0.2%
        quantiles = np.array([marginal_quantile(family.base, family.dim, level) for level in levels])
        return (quantiles[1:] + quantiles[:-1]) / 2, np.diff(levels) / np.diff(quantiles)


@dataclasses.dataclass(frozen=True)
class NestedMarginals(Marginals):
    """Fixed effects and hyperparameters of a mixture over nodes, each with its own exact marginal.

    - `summarise`: makes the table of them at a probability, in which the intercept may be that at x = 0.
    """

    summarise: Any = None

    @property
    def mean(self) -> np.ndarray:
        """E_q of each."""
        return self._table(0.94)[0]

    def interval(self, probability: float) -> np.ndarray:
        """Central intervals, shape (names, 2)."""
        return self._table(probability)[1]

    def _table(self, probability: float) -> tuple[np.ndarray, np.ndarray]:
        found = self.summarise(probability)
        places = [found.names.index(name) for name in self.names]
        return found.mean[places], found.interval[places]

    def density(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Points between the extreme quantiles, and the density there."""
        row = {**self.posterior.fixed, **self.posterior.hyperparameters}[self.names[index]]
        low, high = row.interval(0.998)
        x = np.linspace(low, high, 161)
        return x, row.density(x)

    def band(self, index: int) -> None:
        """None: what is proven is about the nodes."""
        return None


def nested_marginals(posterior: Any, summarise: Any = None) -> tuple[NestedMarginals, ...]:
    """The fixed effects, and the hyperparameters, of a latent Gaussian model; none of another posterior."""
    if getattr(posterior, "hyperparameters", None) is None or posterior.model is not posterior.target:
        return ()
    summarise = posterior.summary if summarise is None else summarise
    names = summarise(0.94).names
    groups = {
        "Fixed effects": tuple(name for name in names if name not in posterior.hyperparameters),
        "Scales and other hyperparameters": tuple(name for name in names if name in posterior.hyperparameters),
    }
    return tuple(
        NestedMarginals(held, len(held), posterior, np.full(len(held), -1), None, title, summarise)
        for title, held in groups.items()
        if held
    )


def model_marginals(posterior: Any, most: int) -> Marginals:
    """The marginals of the first `most` parameters in the model's own space; free coordinates without a target.

    Of a latent Gaussian model those of the fixed effects and hyperparameters.
    """
    nested = nested_marginals(posterior)
    if nested:
        every = tuple(name for group in nested for name in group.names)
        return dataclasses.replace(
            nested[0], names=every[:most], total=len(every), coordinate=np.full(min(most, len(every)), -1),
            title="Marginals",
        )  # fmt: skip
    target, names = posterior.target, posterior.names
    trial = posterior.sample(3, _SEED)
    if target is not None:
        names = target.constrained_names
    exact_family = posterior.family.exact_moments
    free = target is None or (names == posterior.names and _same(_columns(target.constrain(trial)), trial))
    if free and exact_family:
        count = min(most, len(names))
        return Marginals(names[:count], len(names), posterior, np.arange(count), None)
    count = min(most, len(names))
    num_draws = int(np.clip(_NUMBERS // max(len(names), posterior.family.dim), _FEWEST_DRAWS, _DRAWS))
    z = posterior.sample(num_draws, _SEED)
    draws = (z if target is None else _constrained(target, z))[:, :count]
    place = {name: index for index, name in enumerate(posterior.names)}
    found = [place.get(name, -1) for name in names[:count]]
    # A name alone may be the user's word for something else: the draws must agree.
    exact = [exact_family and k >= 0 and _same(draws[:, index], z[:, k]) for index, k in enumerate(found)]
    return Marginals(names[:count], len(names), posterior, np.where(exact, found, -1), draws)


def reference_columns(reference: Any, posterior: Any, most: int) -> np.ndarray:
    """Draws of the posterior from elsewhere as columns in the order of `model_marginals`; NaN where there are none.

    **Arguments:**

    - `reference`: an array of free coordinates, one draw a row; or a dictionary by variable, in the model's own
      space, of arrays (draws, ...) or (chains, draws, ...), as NumPyro, PyMC and ArviZ have them.
    """
    reference = getattr(reference, "posterior", reference)  # the group of that name of ArviZ's containers
    if isinstance(reference, Mapping):
        return _by_variable(reference, posterior)[:, :most]
    draws = as_array("reference", reference, ndim=2).astype(np.float64)
    dim = posterior.family.dim
    if draws.shape[1] != dim or len(draws) < 2:
        raise ValueError(
            f"reference has shape {draws.shape}; it must hold two or more draws, one a row, with a column for each of "
            f"the {dim} free coordinates, or be a dictionary of draws by variable."
        )
    return (draws if posterior.target is None else _constrained(posterior.target, draws))[:, :most]


def _by_variable(reference: Mapping[Any, Any], posterior: Any) -> np.ndarray:
    """Columns of the variables that the dictionary has, by the name of the variable or of a single parameter."""
    if posterior.target is None:
        variables, names = [], posterior.names
    else:
        example = posterior.target.constrain(posterior.mean)
        leaves = jax.tree_util.tree_leaves_with_path(example)
        variables = [(jax.tree_util.keystr(path, simple=True, separator=".") or "z", np.shape(x)) for path, x in leaves]
        names = posterior.target.constrained_names
    # Without a target, or where a variable is missing, its numbers may be there one by one.
    known = {name: _rows(name, reference[name], shape) for name, shape in variables if name in reference}
    singles = {name: _rows(name, reference[name], ()) for name in names if name in reference and name not in known}
    lengths = {len(rows) for rows in (*known.values(), *singles.values())}
    wanted = [name for name, _ in variables] or list(names)
    if not lengths:
        raise ValueError(f"reference has none of the model's variables: {', '.join(wanted[:8])}.")
    if len(lengths) > 1 or min(lengths) < 2:
        raise ValueError("reference must hold two or more draws, and as many of each variable.")
    absent, columns = np.full((lengths.pop(), 1), np.nan), []
    for name, shape in variables or [(name, ()) for name in names]:
        size = int(np.prod(shape))
        single = names[len(columns) : len(columns) + size]
        rows = known.get(name)
        columns += [singles.get(k, absent) for k in single] if rows is None else [rows[:, [k]] for k in range(size)]
    return np.concatenate(columns, axis=1)


def _rows(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """One draw a row, from (draws, *shape) or (chains, draws, *shape)."""
    array = as_array(f"reference[{name!r}]", np.asarray(values)).astype(np.float64)
    ahead = array.ndim - len(shape)
    if ahead not in (1, 2) or array.shape[ahead:] != shape:
        raise ValueError(
            f"reference[{name!r}] has shape {array.shape}; it must be (draws, ...) or (chains, draws, ...) with the "
            f"variable's own shape {shape} at the end."
        )
    return array.reshape(int(np.prod(array.shape[:ahead])), -1)


def _constrained(target: Any, z: np.ndarray) -> np.ndarray:
    parts = [_columns(target.constrain(z[i : i + _AT_ONCE])) for i in range(0, len(z), _AT_ONCE)]
    return np.concatenate(parts)


def _columns(values: Any) -> np.ndarray:
    """Draws of a pytree as one row a draw, leaves in their order."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(values)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _same(values: np.ndarray, others: np.ndarray) -> bool:
    return values.shape == others.shape and np.allclose(values, others, rtol=1e-6, atol=0)
