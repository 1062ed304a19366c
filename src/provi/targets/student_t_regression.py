r"""Linear regression with Student-t noise whose scale and degrees of freedom are unknown: robust to outliers.

$$y_n = x_n'w + o_n + \sigma e_n,\quad e_n \sim t_\nu,\qquad w \sim N(m, S),\quad \sigma \sim p(\sigma),\quad
\nu \sim p(\nu),\qquad z = (w, \log\sigma, \log\nu).$$

In a residual r the potential is $\tfrac{\nu + 1}{2}\log(1 + r^2/\nu\sigma^2)$, concave beyond $|r| = \sigma\sqrt\nu$:
that is why an outlier pulls ever less, and why nothing here is log-concave. There may be several maxima, and no bound
of the library applies: a fit of it has no certificate. By default $\sigma$ is half-normal on the scale of the
responses, as in the other regressions, and $\nu \sim \mathrm{Gamma}(2, 0.1)$ (Juarez and Steel 2010): mean 20, from
nearly Cauchy to nearly Gaussian. With $\nu \le 1$ y has no mean: $x'w$ is then its median only; with $\nu \le 2$ it has
no variance.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from provi.core.arguments import check_count, device_array, double_precision
from provi.core.types import Indices, Scalar, Vector
from provi.targets.base import AbstractFiniteSum, Constants, read_points, unknown, violated
from provi.targets.data import default_names, read_design, read_real
from provi.targets.latent.priors import AbstractHyperprior, Gamma, HalfNormal
from provi.targets.likelihoods.rows import read_row_table, read_weights
from provi.targets.likelihoods.student_t import StudentT
from provi.targets.priors import GaussianPrior, gaussian_prior
from provi.targets.regressions import by_name

NUMBERS = ("sigma", "nu")
"""The noise scale and the degrees of freedom: their logarithms are the last two coordinates."""

_WIDE = 2.5  # deviations of y in the default prior of sigma, as `LatentGaussian` has it
_STREAM = 2**31 - 3  # of the seed: not the one that drew the parameters
_CONCAVE = "a Student-t density is not log-concave: -log p is concave in residuals beyond sigma sqrt(nu)"


class StudentTRegression(AbstractFiniteSum):
    """y_n ~ x_n' w + sigma t_nu with w ~ N(m, S) and unknown sigma and nu; not log-concave, so without a certificate.

    The parameter vector is (w, log sigma, log nu).
    """

    variable: ClassVar[str] = "coefficients"
    design: Float[Array, "terms columns"]
    response: Float[Array, " terms"]
    offset: Float[Array, " terms"] | None
    weights: Float[Array, " terms"] | None
    prior: GaussianPrior
    """Of the coefficients."""
    sigma_prior: AbstractHyperprior
    nu_prior: AbstractHyperprior
    likelihood: StudentT
    """Its kind; its two numbers are those of z."""
    names: tuple[str, ...] | None = eqx.field(static=True)

    @double_precision
    def __init__(
        self,
        X: Any,
        y: Any,
        prior_scale: Any = 1.0,
        *,
        prior_covariance: Any = None,
        prior_mean: Any = None,
        sigma_prior: Any = None,
        nu_prior: Any = None,
        intercept: bool = False,
        names: Sequence[str] | None = None,
        offset: Any = None,
        weights: Any = None,
    ):
        """**Arguments:**

        - `X`: (N, d) covariates, an array or a data frame. - `y`: (N,) real responses.
        - `sigma_prior`, `nu_prior`: of `provi.targets.latent`, for positive numbers; None for
            `HalfNormal(2.5 * deviation of y)` and `Gamma(2.0, 0.1)`.
        - `prior_scale`, `prior_covariance`, `prior_mean`, `intercept`, `names`, `offset`, `weights`: as for
            `LogisticRegression`; the prior is that of the coefficients.
        """
        self.design, self.names = read_design(X, names, intercept)
        length, dtype = self.num_terms, self.design.dtype
        for name in set(NUMBERS).intersection(self.column_names):
            raise ValueError(f"A column is called {name!r}, as a number of the Student-t noise is: rename it.")
        self.response = device_array(np.asarray(read_real(y, length), dtype))
        table = None if offset is None else read_row_table("offset", offset, length)
        self.offset = None if table is None else device_array(np.asarray(table, dtype))
        table = None if weights is None else read_weights(weights, length)
        self.weights = None if table is None else device_array(np.asarray(table, dtype))
        _check_noise(*self._rows(), float(jnp.finfo(dtype).eps))
        scale = by_name("prior_scale", prior_scale, self.column_names, 1.0)
        mean = by_name("prior_mean", prior_mean, self.column_names, 0.0)
        self.prior = gaussian_prior(self.design.shape[1], scale, prior_covariance, mean, dtype)
        sigma_prior = HalfNormal(_WIDE * self._deviation()) if sigma_prior is None else sigma_prior
        self.sigma_prior = _read_prior("sigma_prior", sigma_prior, dtype)
        self.nu_prior = _read_prior("nu_prior", Gamma(2.0, 0.1) if nu_prior is None else nu_prior, dtype)
        _check_planes(*self._rows(), float(jnp.finfo(dtype).eps), self.sigma_prior)
        self.likelihood = StudentT()

    @property
    def column_names(self) -> tuple[str, ...]:
        """Of the design."""
        return default_names("coefficient", self.design.shape[1]) if self.names is None else self.names

    @property
    def dim(self) -> int:
        """The columns, and two."""
        return self.design.shape[1] + 2

    @property
    def dtype(self) -> Any:
        """The floating type of the design matrix."""
        return self.design.dtype

    @property
    def num_terms(self) -> int:
        """The number of rows."""
        return self.design.shape[0]

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The columns, `log(sigma)` and `log(nu)`."""
        return (*self.column_names, *(f"log({name})" for name in NUMBERS))

    @property
    def constrained_names(self) -> tuple[str, ...]:
        """The columns, `nu` and `sigma`: in the order of the dictionary's keys."""
        return (*self.column_names, *sorted(NUMBERS))

    @property
    def axis_labels(self) -> dict[str, dict[str, Sequence[str]]]:
        """The columns' names, where there are any."""
        return {} if self.names is None else {self.variable: {"parameter": self.names}}

    @property
    def hyperpriors(self) -> dict[str, AbstractHyperprior]:
        """Of sigma and nu."""
        return dict(zip(NUMBERS, (self.sigma_prior, self.nu_prior), strict=True))

    def constrain(self, z: Any) -> dict[str, np.ndarray]:
        """The coefficients, sigma and nu; for draws (n, dim), n in front."""
        points = read_points(z, self.dim)
        return {
            self.variable: points[..., :-2],
            **{name: np.asarray(np.exp(points[..., k])) for name, k in zip(NUMBERS, (-2, -1), strict=True)},
        }

    def unconstrain(self, values: Any) -> np.ndarray:
        """The vector z of a dictionary as `constrain` returns it."""
        wanted = (self.variable, *NUMBERS)
        if not isinstance(values, Mapping) or any(name not in values for name in wanted):
            raise ValueError(f"values must be a dictionary with {', '.join(wanted)}, as `constrain` returns it.")
        logs = [np.log(np.asarray(values[name], np.float64))[..., None] for name in NUMBERS]
        return read_points(np.concatenate([np.asarray(values[self.variable], np.float64), *logs], axis=-1), self.dim)

    def prior_potential(self, z: Vector) -> Scalar:
        """-log N(w; m, S) - log p(log sigma) - log p(log nu), normalised."""
        total = self.prior.potential(z[:-2])
        for prior, t in ((self.sigma_prior, z[-2]), (self.nu_prior, z[-1])):
            total -= prior.log_density(jnp.exp(t)) + t
        return total

    def term_potentials(self, z: Vector, indices: Indices | slice) -> Float[Array, " batch"]:
        """-w_n log p(y_n | z) for n in `indices`."""
        eta = self.design[indices] @ z[:-2]
        eta = eta if self.offset is None else eta + self.offset[indices]
        terms = self._noise(z).potential(eta, self.response[indices])
        return terms if self.weights is None else self.weights[indices] * terms

    def _noise(self, z: Any) -> StudentT:
        """The likelihood at z; traced."""
        return eqx.tree_at(lambda x: (x.df, x.scale), self.likelihood, (jnp.exp(z[-1]), jnp.exp(z[-2])))

    @property
    def constants(self) -> Constants:
        """None: the potential is not convex."""
        reason = "the target is not log-concave"
        return Constants(violated(False, _CONCAVE), unknown(reason), unknown(reason))

    @property
    def default_location(self) -> np.ndarray:
        """The posterior mean under Gaussian noise, the deviation of its residuals, and a typical nu of the prior."""
        design, response, weights = self._rows()
        scaled = design * (weights / self._deviation() ** 2)[:, None]
        precision, mean = self.prior.precision_matrix(), np.asarray(self.prior.mean, np.float64)
        found = np.linalg.solve(precision + scaled.T @ design, precision @ mean + scaled.T @ response)
        noise = math.sqrt(np.average((response - design @ found) ** 2, weights=weights))
        # Fewer rows than columns leave residuals that say nothing of the noise.
        noise = max(noise, 1e-2 * self._deviation())
        return np.concatenate([found, [math.log(noise), math.log(self.nu_prior.typical)]])

    def _rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X, y less the offset, and the weights, in float64."""
        design, response = (np.asarray(x, np.float64) for x in (self.design, self.response))
        response = response if self.offset is None else response - np.asarray(self.offset, np.float64)
        return design, response, np.ones(len(design)) if self.weights is None else np.asarray(self.weights, np.float64)

    def _deviation(self) -> float:
        """That of the responses; of one alone, or of equal ones, their size, or 1."""
        _, response, weights = self._rows()
        centre = np.average(response, weights=weights)
        return math.sqrt(np.average((response - centre) ** 2, weights=weights)) or abs(centre) or 1.0

    @property
    def observed_data(self) -> dict[str, np.ndarray]:
        """The responses, as "y"."""
        return {"y": np.asarray(self.response)}

    def response_law(self, z: Any) -> tuple[StudentT, np.ndarray] | None:
        """The noise and x_n' w + o_n at a point; None for draws, whose noise differs, and for weighted rows."""
        points = np.asarray(z, np.float64)
        if points.ndim != 1 or self.weights is not None:
            return None
        eta = np.asarray(self.design, np.float64) @ points[:-2]
        eta = eta if self.offset is None else eta + np.asarray(self.offset, np.float64)
        return StudentT(math.exp(points[-1]), math.exp(points[-2])), eta

    @double_precision
    def log_likelihood(self, z: Any) -> dict[str, np.ndarray]:
        """log p(y_n | z) of each row, times its weight; for draws (n, dim), n in front."""
        points = read_points(z, self.dim)
        found = -np.asarray(_terms(self, np.atleast_2d(points).astype(self.dtype)))
        return {"y": found if points.ndim == 2 else found[0]}

    @double_precision
    def predict(self, z: Any, seed: int) -> dict[str, np.ndarray]:
        """Responses drawn from p(y | z), one replicate of all rows for each row of z; none for weighted data."""
        if self.weights is not None:
            return {}
        points = np.atleast_2d(read_points(z, self.dim)).astype(self.dtype)
        key = jax.random.fold_in(jax.random.key(check_count("seed", seed, minimum=0)), _STREAM)
        return {"y": np.asarray(_draws(self, points, jax.random.split(key, len(points))))}


def _read_prior(argument: str, prior: Any, dtype: Any) -> Any:
    """A prior of a positive number, its own numbers in the type of the data."""
    if not isinstance(prior, AbstractHyperprior) or prior.support != (0.0, math.inf):
        raise ValueError(
            f"{argument} must be a prior of a positive number, such as provi.targets.latent.HalfNormal(2.0), "
            f"not {prior!r}."
        )
    return jax.tree.map(lambda leaf: device_array(np.asarray(leaf, dtype)), prior)


def _check_noise(design: np.ndarray, response: np.ndarray, weights: np.ndarray, unit: float) -> None:
    """Where rows beyond those that fix w have no residual, p(y | sigma) grows without bound as sigma falls to 0."""
    kept = weights > 0
    found, _, rank, _ = np.linalg.lstsq(design[kept], response[kept], rcond=None)
    left = np.abs(response[kept] - design[kept] @ found).max()
    if weights.sum() >= rank + 1 and left <= 1e3 * unit * max(np.abs(response[kept]).max(), 1e-300):
        raise ValueError("X explains y without any residual: there is no noise, whose scale is to be estimated.")


def _check_planes(design: np.ndarray, response: np.ndarray, weights: np.ndarray, unit: float, prior: Any) -> None:
    r"""A `ValueError` where most rows lie exactly on a plane y = x'w, so that there is no posterior.

    Of k rows on a plane, whose x have rank r, and m others, the likelihood near the plane is of the order
    $\sigma^{\nu m - k}$ as sigma falls, and the w that are so near a share $\sigma^r$. With a prior like
    $\sigma^{a-1}$ there (half-normal: a = 1) the integral over sigma is infinite where $k \ge r + a + \nu m$. Refused
    is what is infinite for $\nu$ up to 1: beyond it the fits of rows with a few ties are those of any other data, and
    the infinite part is at degrees of freedom that the prior all but excludes.
    """
    points = np.array([1e-100, 1e-110]) * float(prior.typical)
    with np.errstate(all="ignore"):
        logs = np.asarray(prior.log_density(jnp.asarray(points)), np.float64)
    vanishing = 1 + (logs[0] - logs[1]) / math.log(1e10)
    if not math.isfinite(vanishing):  # faster than any power
        return
    on = _largest_plane(design, response, weights, unit)
    k, m = weights[on].sum(), weights[~on].sum()
    if k >= np.linalg.matrix_rank(design[on]) + vanishing + m:
        raise ValueError(
            f"y: {int(on.sum())} of its {len(on)} values are exactly a linear function of X, so that the density grows "
            f"without bound as sigma falls to 0: there is no posterior. Give sigma_prior= a law that vanishes at 0, "
            f"such as provi.targets.latent.InverseGamma(), or leave out the rows that were not measured."
        )


_SAMPLE, _SHRINK, _MOST_STARTS, _STARTS_WORK = 200, 0.3, 30, 1e8


def _largest_plane(design: np.ndarray, response: np.ndarray, weights: np.ndarray, unit: float) -> np.ndarray:
    """The rows that lie, to rounding, on the plane that most of them lie on, if most do: a mask.

    By least squares with the weights 1 / (r^2 + e^2) for falling e, of rows enough to see a majority: as sigma falls
    the likelihood does the same. From all rows first, then from a few at random: it may end on another plane.
    """
    rng, dim = np.random.default_rng(_STREAM), design.shape[1]
    chosen = np.flatnonzero(weights > 0)
    chosen = rng.choice(chosen, min(len(chosen), max(_SAMPLE, 10 * dim)), replace=False)
    x, y = design[chosen], response[chosen]
    exact = 1e3 * unit * max(float(np.abs(response).max()), 1e-300)
    on = np.zeros(len(design), bool)
    starts = int(np.clip(_STARTS_WORK / (30 * len(y) * dim**2), 1, _MOST_STARTS))
    for start in range(starts):
        some = slice(None) if start == 0 else rng.choice(len(y), min(2 * dim, len(y)), replace=False)
        found = np.linalg.lstsq(x[some], y[some], rcond=None)[0]
        width = float(np.median(np.abs(y - x @ found)))
        while width > 0.1 * exact:
            root = 1 / np.hypot(y - x @ found, width)
            found, width = np.linalg.lstsq(x * root[:, None], y * root, rcond=None)[0], _SHRINK * width
        now = (weights > 0) & (np.abs(response - design @ found) <= exact)
        on = now if weights[now].sum() > weights[on].sum() else on
        if weights[on].sum() > 0.5 * weights.sum():
            break
    if on.any():  # with all of them, the others no longer count
        found = np.linalg.lstsq(design[on], response[on], rcond=None)[0]
        on = (weights > 0) & (np.abs(response - design @ found) <= exact)
    return on


@eqx.filter_jit
def _terms(target: StudentTRegression, points: Any) -> Any:
    return jax.lax.map(lambda z: target.term_potentials(z, slice(None)), jnp.asarray(points))


@eqx.filter_jit
def _draws(target: StudentTRegression, points: Any, keys: Any) -> Any:
    def one(pair: Any) -> Any:
        eta = target.design @ pair[0][:-2]
        return target._noise(pair[0]).draw(pair[1], eta if target.offset is None else eta + target.offset)

    return jax.lax.map(one, (jnp.asarray(points), keys))
