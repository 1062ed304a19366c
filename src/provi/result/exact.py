r"""A way to be sure: NUTS, in the coordinates in which q is round, started by draws of q.

With $z = m + Cx$, m and CC' the moments of q, the posterior of x is nearly of unit scale and uncorrelated, so the
sampler needs a short warm-up and few steps a draw. Chains that begin at draws of q, and at the modes that q does not
reach, either agree or say by R-hat that they do not.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cholesky

from provi.core.arguments import check_count, double_precision
from provi.core.limits import check_memory
from provi.result.drawn import DrawnPosterior

if TYPE_CHECKING:
    from provi.result.posterior import Posterior

LARGEST_DENSE = 1000
"""Dimensions up to which the coordinates are decorrelated; only scaled beyond."""

ENOUGH_DRAWS, CONVERGED_R_HAT = 400, 1.01
"""Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021): what a sampler should reach for every parameter."""

_STREAM = 2**31 - 5


@dataclasses.dataclass(frozen=True, eq=False)
class ExactDraws(DrawnPosterior):
    """Draws of the posterior by NUTS, (chains, draws, dim), with what says whether they can be trusted.

    - `effective_sample_size`, `r_hat`: of each free coordinate. - `num_divergences`: transitions that went astray.
    - `shift`: how far q's means are off, in standard deviations of the posterior; `ratio`: q's deviations over these.
    """

    effective_sample_size: np.ndarray
    r_hat: np.ndarray
    num_divergences: int
    shift: np.ndarray
    ratio: np.ndarray

    origin: ClassVar[str] = "NUTS, preconditioned and started by q"

    @property
    def reliable(self) -> bool:
        """Whether all chains agree, with enough effective draws and no divergence."""
        return not self._doubts()

    def _doubts(self) -> list[str]:
        found = []
        if not np.nanmax(self.r_hat) <= CONVERGED_R_HAT:
            found.append(f"chains disagree (R-hat {np.nanmax(self.r_hat):.2f}, should be {CONVERGED_R_HAT} at most)")
        if not np.nanmin(self.effective_sample_size) >= ENOUGH_DRAWS:
            found.append(f"fewer than {ENOUGH_DRAWS} effective draws")
        if self.num_divergences:
            found.append(f"{self.num_divergences} divergent transitions")
        return found

    def notes(self) -> tuple[str, ...]:
        """How the draws were made, whether they can be trusted, and how far q was."""
        worst = int(np.argmax(np.abs(self.shift)))
        chains, draws = self.z.shape[:2]
        made = (
            f"NUTS started by q: {chains} chains of {draws} draws, at least "
            f"{np.nanmin(self.effective_sample_size):,.0f} effective, R-hat at most {np.nanmax(self.r_hat):.3f}."
        )
        far = (
            f"q was off by at most {abs(self.shift[worst]):.2g} sd in a mean ({self.names[worst]}); its standard "
            f"deviations are {self.ratio.min():.2f} to {self.ratio.max():.2f} times these."
        )
        doubts = self._doubts()
        remedy = "more draws, target_accept= nearer 1, or another parameterisation"
        return (made, far, *([f"Warning: {', '.join(doubts)}: {remedy}."] if doubts else []))

    def attributes(self) -> dict[str, Any]:
        """With what says whether the draws can be trusted."""
        worst = {"r_hat": np.nanmax(self.r_hat), "effective_sample_size": np.nanmin(self.effective_sample_size)}
        return super().attributes() | {name: float(value) for name, value in worst.items()}

    def __str__(self) -> str:
        return str(self.summary())

    def __repr__(self) -> str:
        return f"<provi.ExactDraws: {self.notes()[0]}>"


@double_precision
def sample_exact(
    posterior: "Posterior",
    num_draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    *,
    num_warmup: int = 500,
    target_accept: float = 0.9,
) -> ExactDraws:
    """NUTS of NumPyro on the target of `posterior`; the arguments are those of `Fit.sample_exact`."""
    num_draws, chains = check_count("num_draws", num_draws, minimum=4), check_count("chains", chains)
    num_warmup, seed = check_count("num_warmup", num_warmup), check_count("seed", seed, minimum=0)
    if not 0 < target_accept < 1:
        raise ValueError(f"target_accept must lie between 0 and 1, not {target_accept}.")
    target = posterior.target
    try:
        from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
        from numpyro.infer import MCMC, NUTS
    except ImportError:
        raise ImportError("sample_exact needs NumPyro: pip install 'provi[numpyro]'.") from None
    dim = target.dim
    check_memory(f"{chains * num_draws} draws of {dim} dimensions", 32 * chains * num_draws * dim, "take fewer")
    mean, deviation = posterior.mean, posterior.standard_deviation
    factor = cholesky(posterior.covariance, lower=True) if dim <= LARGEST_DENSE else deviation
    begin = _whitened(_first_points(posterior, chains, seed), mean, factor)
    loc, scale = jnp.asarray(mean, target.dtype), jnp.asarray(factor, target.dtype)

    def potential(x: Any) -> Any:
        # The sampler is in float64 whatever the target: NumPyro's own numbers are, where that is switched on.
        x = x.astype(target.dtype)
        return target.potential(loc + (scale * x if scale.ndim == 1 else scale @ x)).astype(jnp.float64)

    sampler = MCMC(
        NUTS(potential_fn=potential, target_accept_prob=target_accept),
        num_warmup=num_warmup,
        num_samples=num_draws,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = jnp.asarray(begin if chains > 1 else begin[0], jnp.float64)
    sampler.run(jax.random.key(seed), init_params=start, extra_fields=("diverging",))
    x = np.asarray(sampler.get_samples(group_by_chain=True), np.float64)
    diverging = int(np.sum(np.asarray(sampler.get_extra_fields()["diverging"])))
    z = mean + (x * factor if factor.ndim == 1 else x @ factor.T)
    spread = z.reshape(-1, dim).std(axis=0, ddof=1)
    return ExactDraws(
        z=z,
        names=posterior.names,
        target=target,
        effective_sample_size=np.asarray(effective_sample_size(z), np.float64),
        r_hat=np.asarray(split_gelman_rubin(z), np.float64),
        num_divergences=diverging,
        shift=(mean - z.reshape(-1, dim).mean(axis=0)) / spread,
        ratio=deviation / spread,
    )


def _first_points(posterior: "Posterior", chains: int, seed: int) -> np.ndarray:
    """Draws of q where the density is finite; of several chains some begin at modes that q does not reach."""
    wanted = 4 * chains  # a draw of q may lie where the density is zero
    z = posterior.sample(wanted, int(np.random.SeedSequence((seed, _STREAM)).generate_state(1)[0]))
    values, gradients = jax.vmap(jax.value_and_grad(posterior.target.potential))(jnp.asarray(z, posterior.target.dtype))
    finite = np.isfinite(np.asarray(values)) & np.isfinite(np.asarray(gradients)).all(axis=1)
    if not finite.any():
        raise ValueError("sample_exact: the density is not finite at any draw of q.")
    points = np.resize(z[finite], (chains, z.shape[1]))
    modes = posterior.modes
    if modes is not None and modes.missed > 0:
        others = [mode.location for number, mode in enumerate(modes) if number != modes.chosen][: chains // 2]
        points[chains - len(others) :] = others or points[:0]
    return points


def _whitened(points: np.ndarray, mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
    away = points - mean
    return away / factor if factor.ndim == 1 else np.linalg.solve(factor, away.T).T
