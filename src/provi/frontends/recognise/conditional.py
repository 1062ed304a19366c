r"""Models that are linear given a few scales: a log-concave likelihood of affine predictors of Gaussian effects.

With the free coordinates split into scales $\theta$ and the rest z (`provi.frontends.recognise.nested`),

$$\log p(\theta, z, y) = q(z; \theta) + \sum_n \log p(y_n \mid \eta_n, \theta), \quad \eta = A(\theta)z + b(\theta),$$

q quadratic in z. Here z is moved and stretched to $u \sim N(0, I)$, in two steps. Normal sites first, parents before
children: $z_s = \mu_s + \sigma_s v_s$, so centred and non-centred forms of a model become one, and nothing is singular
where a scale goes to zero. What is left of q is $\rho(v; \theta)$: the scales' own priors where all sites are normal,
and nothing more is to do. Else with $g = \nabla\rho(0)$, $Q = S - \nabla^2\rho = LL'$ (S has ones for normal sites),
$m = Q^{-1}g$ and $v = m + L^{-T}u$, completing the square,

$$\log p(\theta) = \rho(0) + \tfrac12 g'm - \tfrac12\log\det Q + \tfrac12(d - \operatorname{tr}S)\log 2\pi.$$
"""

import math
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from provi.core.types import Scalar, Vector
from provi.frontends.recognise.anatomy import AbstractAnatomy
from provi.frontends.recognise.pattern import AffineRows
from provi.frontends.recognise.rows import link, read_rows
from provi.frontends.target import Unravel
from provi.targets.likelihoods.base import AbstractLikelihood

Scales: TypeAlias = Float[Array, " scales"]
"""theta, free coordinates of the scales."""

Effects: TypeAlias = Float[Array, " effects"]
"""u, or the coordinates between it and z."""


class Entries(NamedTuple):
    """Rows of an affine function of u: the constant, and of each site the entries, at the places of a pattern."""

    offset: Any
    values: tuple[Any, ...]


class GivenScales(NamedTuple):
    """The model at given scales: sum_n -potential(eta_n, response_n) + constant, eta the rows times u."""

    rows: Entries
    response: Any
    likelihood: AbstractLikelihood
    constant: Any


class Prior(NamedTuple):
    """log p(theta), and m and L where the sites of z are not all normal."""

    log_density: Scalar
    mean: Any
    root: Any


class ConditionalGLM(eqx.Module):
    """The posterior density of a model, in its own free coordinates, as a linear model given some of them.

    Proven by `conditional_glm_of`, which alone constructs it.
    """

    anatomy: AbstractAnatomy
    unravel: Unravel = eqx.field(static=True)
    """All sites in the model's order; parents come first."""
    scales: Unravel = eqx.field(static=True)
    """Those of theta, and below those of z."""
    effects: Unravel = eqx.field(static=True)
    generations: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    """The sites of z that are normal given their parents, which are in earlier generations."""
    all_normal: bool = eqx.field(static=True)
    """Whether nothing that is left of the prior depends on z."""
    predictor_rows: AffineRows
    """Of eta, and below of z."""
    effect_rows: AffineRows

    def conditional(self, theta: Scales) -> GivenScales:
        """The linear model at theta."""

        def predictor(v: Effects) -> tuple[Any, Any]:
            found = self.anatomy(self.sites(theta, self.effects(v))[0]).rows
            return link(self.anatomy.kind, found["predictor"]), found

        found, numbers = self._entries(self.predictor_rows, predictor, theta)
        likelihood, response, factor, shift, constant = read_rows(self.anatomy.kind, numbers)
        values = tuple(factor[:, None] * part for part in found.values)
        return GivenScales(Entries(factor * (found.offset - shift), values), response, likelihood, -constant)

    def own_effects(self, theta: Scales) -> Entries:
        """z, in the order of `effects`."""

        def own(v: Effects) -> tuple[Any, None]:
            found = self.sites(theta, self.effects(v))[0]
            return jnp.concatenate([jnp.ravel(found[name]) for name in self.effects.names]), None

        return self._entries(self.effect_rows, own, theta)[0]

    def log_prior(self, theta: Scales) -> Scalar:
        """Of theta in the free coordinates."""
        return self._prior(theta).log_density

    def coordinates(self, theta: Scales, u: Effects) -> tuple[Vector, Scalar]:
        """The vector of the model's free coordinates at (theta, u), and log |dz/du|."""
        prior = self._prior(theta)
        v, log_volume = u, jnp.zeros((), u.dtype)
        if prior.root is not None:
            v = prior.mean + jax.scipy.linalg.solve_triangular(prior.root, u, trans=1, lower=True)
            log_volume = -jnp.sum(jnp.log(jnp.diagonal(prior.root)))
        sites, stretch = self.sites(theta, self.effects(v))
        vector = jnp.concatenate([jnp.ravel(sites[name]) for name in self.unravel.names])
        return vector, log_volume + stretch

    def log_density(self, theta: Scales, u: Effects) -> Scalar:
        """log p of the model's free coordinates at (theta, u), in those coordinates: with log |du/dz|."""
        given = self.conditional(theta)
        eta, start = given.rows.offset, 0
        for values, index, size in zip(
            given.rows.values, self.predictor_rows.index(eta.size), self.predictor_rows.sizes, strict=True
        ):
            eta, start = eta + jnp.sum(values * u[start : start + size][index], axis=1), start + size
        rows = given.constant - jnp.sum(given.likelihood.potential(eta, given.response))
        prior = self.log_prior(theta) - 0.5 * u @ u - 0.5 * u.size * math.log(2 * math.pi)
        return prior + rows - self.coordinates(theta, u)[1]

    def sites(self, theta: Scales, parts: dict[str, Any]) -> tuple[dict[str, Any], Scalar]:
        """The free coordinates by site at theta and v, which is given by site, and log |dz/dv|.

        One generation after another: a location may be any affine function of the sites before it.
        """
        given, stretch = self.scales(theta) | parts, jnp.zeros((), theta.dtype)
        for generation in self.generations:
            numbers = self.anatomy(given).normals
            for name in generation:
                loc, scale = (jnp.broadcast_to(x, given[name].shape) for x in numbers[name])
                given[name] = loc + scale * given[name]
                stretch = stretch + jnp.sum(jnp.log(scale))
        return given, stretch

    @property
    def normal(self) -> frozenset[str]:
        """The sites of all generations."""
        return frozenset(name for generation in self.generations for name in generation)

    def _entries(self, rows: AffineRows, function: Any, theta: Scales) -> tuple[Entries, Any]:
        """The rows of an affine function of v as rows over u, and what else it returns."""
        offset, values, other = rows(function, jnp.zeros(self.effects.size, theta.dtype))
        prior = self._prior(theta)
        if prior.root is not None:  # then all rows are full
            whole = jnp.concatenate(values, axis=1)
            offset = offset + whole @ prior.mean
            whole = jax.scipy.linalg.solve_triangular(prior.root, whole.T, lower=True).T
            ends = [sum(rows.sizes[:k]) for k in range(1, len(rows.sizes))]
            values = tuple(jnp.split(whole, ends, axis=1))
        return Entries(offset, values), other

    def _prior(self, theta: Scales) -> Prior:
        def rest(v: Effects) -> Scalar:
            terms = self.anatomy(self.sites(theta, self.effects(v))[0]).terms
            return sum((terms[name] for name in terms if name not in self.normal), start=jnp.zeros((), v.dtype))

        zero = jnp.zeros(self.effects.size, theta.dtype)
        # A scale that is a site of its own may be negative, where the model has no density.
        proper = jnp.isfinite(self.sites(theta, self.effects(zero))[1])
        if self.all_normal:
            return Prior(jnp.where(proper, rest(zero), -jnp.inf), None, None)
        value, slope = jax.value_and_grad(rest)(zero)
        parts = self.effects(zero)
        ones = jnp.concatenate([jnp.full(parts[name].size, name in self.normal, zero.dtype) for name in parts])
        root = jnp.linalg.cholesky(jnp.diag(ones) - jax.hessian(rest)(zero))
        mean = jax.scipy.linalg.cho_solve((root, True), slope)
        log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        constant = 0.5 * (zero.size - jnp.sum(ones)) * math.log(2 * math.pi)
        found = value + 0.5 * slope @ mean - 0.5 * log_det + constant
        return Prior(jnp.where(proper, found, -jnp.inf), mean, root)
