r"""Models that are linear given a few scales: a log-concave likelihood of affine predictors of Gaussian effects.

With the free coordinates split into scales $\theta$ and the rest z (`provi.frontends.recognise.split`),

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
from provi.frontends.recognise.pattern import RowPattern
from provi.frontends.recognise.rows import link, read_rows
from provi.frontends.target import Unravel
from provi.targets.likelihoods.base import AbstractLikelihood

Scales: TypeAlias = Float[Array, " scales"]
"""theta, free coordinates of the scales."""

Effects: TypeAlias = Float[Array, " effects"]
"""u, or the coordinates between it and z."""


class GivenScales(NamedTuple):
    """The model at given scales: log p(theta) + log N(u; 0, I) - sum_n potential(eta_n, response_n).

    Of u, parts that rows have many entries in come first, `dense` (N, p); then, one part a site, those with few:
    `sparse` are their entries, at the columns of the site's pattern. eta is the sum of these, and `offset`.
    """

    dense: Any
    sparse: tuple[Any, ...]
    offset: Any
    response: Any
    likelihood: AbstractLikelihood
    log_prior: Scalar
    """Of theta in the free coordinates, with the constants of rows that the likelihood does not have."""


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
    patterns: tuple[RowPattern, ...]
    """Of the last sites of z, where rows have few entries of them."""
    normal: frozenset[str] = eqx.field(static=True)
    """The sites of z that are normal given their parents."""
    all_normal: bool = eqx.field(static=True)
    """Whether nothing that is left of the prior depends on z."""

    def conditional(self, theta: Scales) -> GivenScales:
        """The linear model at theta, free coordinates of the scales."""

        def rows(v: Effects) -> tuple[Any, Any]:
            found = self.anatomy(self._sites(theta, v)[0]).rows
            return link(self.anatomy.kind, found["predictor"]), found

        zero = jnp.zeros(self.effects.size, theta.dtype)
        offset, push, numbers = jax.linearize(rows, zero, has_aux=True)
        derivatives = jax.vmap(push)(self._directions(zero))
        dense, sparse = derivatives[: self.num_dense].T, []
        start = self.num_dense
        for pattern in self.patterns:
            sparse.append(pattern.values(derivatives[start : start + pattern.num_colours]))
            start += pattern.num_colours
        likelihood, response, factor, shift, constant = read_rows(self.anatomy.kind, numbers)
        log_prior, mean, root = self._prior(theta)
        if root is not None:
            offset = offset + dense @ mean
            dense = jax.scipy.linalg.solve_triangular(root, dense.T, lower=True).T
        return GivenScales(
            factor[:, None] * dense,
            tuple(factor[:, None] * values for values in sparse),
            factor * (offset - shift),
            response,
            likelihood,
            log_prior - constant,
        )

    @property
    def num_dense(self) -> int:
        """The number of effects without a pattern."""
        return self.effects.size - sum(pattern.colour.size for pattern in self.patterns)

    def predictor(self, given: GivenScales, u: Effects) -> Any:
        """eta at u."""
        eta, start = given.offset + given.dense @ u[: self.num_dense], self.num_dense
        for pattern, values in zip(self.patterns, given.sparse, strict=True):
            part = u[start : start + pattern.colour.size]
            eta, start = eta + jnp.sum(values * part[pattern.index], axis=1), start + part.size
        return eta

    def _directions(self, zero: Effects) -> Any:
        """One for each dense effect, and one for each colour of a pattern."""
        found, start = [jnp.eye(self.num_dense, zero.size, dtype=zero.dtype)], self.num_dense
        for pattern in self.patterns:
            stop = start + pattern.colour.size
            own = jnp.zeros((pattern.num_colours, zero.size), zero.dtype)
            found.append(own.at[:, start:stop].set(pattern.directions()))
            start = stop
        return jnp.concatenate(found)

    def coordinates(self, theta: Scales, u: Effects) -> tuple[Vector, Scalar]:
        """The vector of the model's free coordinates at (theta, u), and log |dz/du|."""
        _, mean, root = self._prior(theta)
        v, log_volume = u, jnp.zeros((), u.dtype)
        if root is not None:
            v = mean + jax.scipy.linalg.solve_triangular(root, u, trans=1, lower=True)
            log_volume = -jnp.sum(jnp.log(jnp.diagonal(root)))
        sites, stretch = self._sites(theta, v)
        vector = jnp.concatenate([jnp.ravel(sites[name]) for name in self.unravel.names])
        return vector, log_volume + stretch

    def log_density(self, theta: Scales, u: Effects) -> Scalar:
        """log p of the model's free coordinates at (theta, u), in those coordinates: with log |du/dz|."""
        given = self.conditional(theta)
        rows = given.likelihood.potential(self.predictor(given, u), given.response)
        prior = given.log_prior - 0.5 * u @ u - 0.5 * u.size * math.log(2 * math.pi)
        return prior - jnp.sum(rows) - self.coordinates(theta, u)[1]

    def _sites(self, theta: Scales, v: Effects) -> tuple[dict[str, Any], Scalar]:
        """The free coordinates by site at (theta, v), and log |dz/dv|.

        The sites are found one by one: each one's location may be any affine function of those before it.
        """
        return self._substituted(theta, self.effects(v))

    def _substituted(self, theta: Scales, parts: dict[str, Any]) -> tuple[dict[str, Any], Scalar]:
        given, stretch = self.scales(theta) | parts, jnp.zeros((), theta.dtype)
        for name in self.unravel.names:
            if name in self.normal:
                loc, scale = (jnp.broadcast_to(x, given[name].shape) for x in self.anatomy(given).normals[name])
                given[name] = loc + scale * given[name]
                stretch = stretch + jnp.sum(jnp.log(scale))
        return given, stretch

    def rows_at(self, theta: Scales, parts: dict[str, Any]) -> Any:
        """The predictor, or its exponential, at v by site."""
        return self.anatomy(self._substituted(theta, parts)[0]).rows["predictor"]

    def _prior(self, theta: Scales) -> tuple[Scalar, Any, Any]:
        """log p(theta), and m and L where the sites of z are not all normal."""

        def rest(v: Effects) -> Scalar:
            terms = self.anatomy(self._sites(theta, v)[0]).terms
            return sum((terms[name] for name in terms if name not in self.normal), start=jnp.zeros((), v.dtype))

        zero = jnp.zeros(self.effects.size, theta.dtype)
        if self.all_normal:
            return rest(zero), None, None
        value, slope = jax.value_and_grad(rest)(zero)
        parts = self.effects(zero)
        ones = jnp.concatenate([jnp.full(parts[name].size, name in self.normal, zero.dtype) for name in parts])
        root = jnp.linalg.cholesky(jnp.diag(ones) - jax.hessian(rest)(zero))
        mean = jax.scipy.linalg.cho_solve((root, True), slope)
        log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root)))
        constant = 0.5 * (zero.size - jnp.sum(ones)) * math.log(2 * math.pi)
        return value + 0.5 * slope @ mean - 0.5 * log_det + constant, mean, root
