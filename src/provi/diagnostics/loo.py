r"""Leave-one-out cross-validation from draws of an approximation.

$\mathrm{elpd} = \sum_n \log p(y_n | y_{-n})$, where $p(y_n | y_{-n}) = E[p(y_n | z)\,w_n(z)] / E[w_n(z)]$ for
$z \sim q$ and $w_n(z) = \frac{p(z, y)}{q(z)} \cdot \frac{1}{p(y_n | z)}$: the first factor corrects for q not being
the posterior, the second takes datum n out of it (Magnusson, Riis Andersen, Jonasson and Vehtari 2019). The weights
are Pareto-smoothed (Vehtari et al. 2024), and k-hat of datum n says whether its term can be trusted.
"""

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import logsumexp

from provi.core.arguments import double_precision
from provi.core.interpreter import instant_jit
from provi.core.notebook import as_html
from provi.core.types import Draws
from provi.diagnostics.pareto import FEWEST_WEIGHTS, SMALL_ERROR, smoothed_log_weights, usable_k
from provi.families.base import AbstractFamily
from provi.targets.base import AbstractTarget

_LISTED, _MANY_DRAWS = 8, 20_000


@dataclasses.dataclass(frozen=True)
class LeaveOneOut:
    """The expected log predictive density of new data, by leave-one-out; prints itself with what to do next.

    - `elpd`, `standard_error`: nats; the error is that of a sum over exchangeable data, not that of the draws.
    - `p_loo`: the effective number of parameters, log p(y_n | y) - log p(y_n | y_-n) summed.
    - `pointwise`, `pareto_k`: of each datum, in the order of `names`. - `num_draws`: of q.
    - `total_variation`: E|w_n/Ew_n - 1|/2, an estimate of the distance of q to the posterior without datum n.
    """

    elpd: float
    standard_error: float
    p_loo: float
    pointwise: np.ndarray
    pareto_k: np.ndarray
    total_variation: np.ndarray
    names: tuple[str, ...]
    num_draws: int

    @property
    def bad(self) -> tuple[str, ...]:
        """The data whose terms cannot be trusted, worst first.

        Their k-hat is too large (or could not be fitted), and their weights matter: where q is within 0.1 of the
        posterior without the datum in total variation, the term is good whatever the tail of the weights is.
        """
        tails = np.nan_to_num(self.pareto_k, nan=np.inf)
        order = np.argsort(-tails, kind="stable")
        matters = (self.total_variation > SMALL_ERROR) | np.isposinf(self.pareto_k)
        return tuple(self.names[i] for i in order if tails[i] >= usable_k(self.num_draws) and matters[i])

    @property
    def advice(self) -> str:
        """Whether the sum can be trusted and, if not, what to do."""
        limit, bad = usable_k(self.num_draws), self.bad
        if not bad:
            large = int((np.nan_to_num(self.pareto_k, nan=np.inf) >= limit).sum())
            if not large:
                return f"All {len(self.names)} k-hat are below {limit:.2f}: the estimate can be trusted."
            return (
                f"{large} of {len(self.names)} k-hat are {limit:.2f} or more, but of data whose weights hardly vary, "
                f"which does no harm: the estimate can be trusted."
            )
        more = f" and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
        words = (
            f"{len(bad)} of {len(self.names)} k-hat are {limit:.2f} or more, and elpd may be too high: "
            f"{', '.join(bad[:_LISTED])}{more}. "
        )
        if self.num_draws < _MANY_DRAWS:
            words += f"First take more draws, num_draws={10 * self.num_draws}: k-hat is noisy. If they stay: "
        if len(bad) > max(0.1 * len(self.names), 5):
            return words + (
                "so many mean that q misses part of the posterior, or that the model is very flexible. See "
                "fit.diagnose(), take a richer family or NUTS, or use K-fold cross-validation."
            )
        return words + (
            "fit again without each of these data and take log p of the datum under that fit, or take a richer family "
            "or NUTS. Look at these data too: the model may be wrong about them."
        )

    def table(self) -> Table:
        """The estimates as a rich table."""
        table = Table(title="Leave-one-out cross-validation", title_justify="left", show_edge=False, pad_edge=False)
        for column in ("quantity", "estimate", "standard error"):
            table.add_column(column, justify="left" if column == "quantity" else "right")
        table.add_row("elpd, nats", f"{self.elpd:.2f}", f"{self.standard_error:.2f}")
        table.add_row("p_loo", f"{self.p_loo:.2f}", "")
        table.add_row("largest k-hat", f"{np.max(self.pareto_k):.2f}", "")
        return table

    def to_arviz(self) -> Any:
        """The same as ArviZ's `ELPDData`, which `arviz_stats.compare({"a": a.to_arviz(), "b": b.to_arviz()})` takes.

        Its `warning` is set where `bad` names data.
        """
        try:
            from arviz_stats import ELPDData
            from xarray import DataArray
        except ImportError:
            raise ImportError("to_arviz needs arviz-stats: pip install 'provi[arviz]'.") from None

        def by_datum(values: np.ndarray) -> Any:
            return DataArray(values, dims=["datum"], coords={"datum": list(self.names)})

        return ELPDData(
            kind="loo",
            elpd=self.elpd,
            se=self.standard_error,
            p=self.p_loo,
            n_samples=self.num_draws,
            n_data_points=len(self.names),
            scale="log",
            warning=bool(self.bad),
            good_k=usable_k(self.num_draws),
            elpd_i=by_datum(self.pointwise),
            pareto_k=by_datum(self.pareto_k),
            approx_posterior=True,
        )

    def _repr_html_(self) -> str:
        return as_html(self.table(), self.advice)

    def __str__(self) -> str:
        console = Console(width=100, file=io.StringIO())
        console.print(self.table())
        console.print(self.advice, markup=False, highlight=False)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def leave_one_out(log_likelihood: np.ndarray, log_ratios: np.ndarray, names: Sequence[str]) -> LeaveOneOut:
    """PSIS-LOO with the correction for an approximate posterior.

    **Arguments:**

    - `log_likelihood`: (S, N), log p(y_n | z_s) at draws z_s of q. A datum that is impossible at some draws has a
      term that is too high, and the k-hat infinity.
    - `log_ratios`: (S,), log p(z_s, y) - log q(z_s), up to a constant; zeros for draws of the posterior itself.
    - `names`: of the N data.
    """
    values, ratios = np.asarray(log_likelihood, np.float64), np.asarray(log_ratios, np.float64)
    if values.ndim != 2 or ratios.shape != values.shape[:1] or len(names) != values.shape[1]:
        raise ValueError(
            f"log_likelihood must be (S, N), log_ratios (S,) and names of length N; they have {values.shape}, "
            f"{ratios.shape} and {len(names)}."
        )
    if len(ratios) < FEWEST_WEIGHTS:
        raise ValueError(f"num_draws must be at least {FEWEST_WEIGHTS}, not {len(ratios)}.")
    _check_values(values, ratios, names)
    posterior_weights, _ = smoothed_log_weights(ratios)
    pointwise, predictive, tails, variations = (np.empty(values.shape[1]) for _ in range(4))
    for n, column in enumerate(values.T):
        impossible = np.isneginf(column)
        plain = np.where(impossible, -np.inf, ratios - np.where(impossible, 0.0, column))
        weights, tails[n] = smoothed_log_weights(plain)
        variations[n] = 0.5 * np.abs(np.exp(plain - logsumexp(plain)) - 1 / len(plain)).sum()
        # Where p(y_n | z) is zero, so is p(z, y), and the weight without datum n is 0/0: its term is too high.
        tails[n] = np.inf if impossible.any() else tails[n]
        pointwise[n] = logsumexp(weights + column)
        predictive[n] = logsumexp(posterior_weights + column)
    return LeaveOneOut(
        elpd=float(pointwise.sum()),
        standard_error=float(np.sqrt(len(pointwise) * np.var(pointwise))),
        p_loo=float((predictive - pointwise).sum()),
        pointwise=pointwise,
        pareto_k=tails,
        total_variation=variations,
        names=tuple(names),
        num_draws=len(ratios),
    )


def _check_values(values: np.ndarray, ratios: np.ndarray, names: Sequence[str]) -> None:
    broken = (np.isnan(values) | np.isposinf(values)).any(axis=0)
    if broken.any():
        raise ValueError(
            f"the log-likelihood of {int(broken.sum())} data is NaN or +infinity at some draws, the first "
            f"{names[int(np.argmax(broken))]}. Check the model, or choose a narrower q."
        )
    if (np.isnan(ratios) | np.isposinf(ratios)).any() or np.isneginf(ratios).all():
        raise ValueError("log p or log q is not finite at the draws of q. Check the log density with fit.diagnose().")


_NUMBERS_AT_ONCE = 2**20


@double_precision
def log_densities(
    target: AbstractTarget, family: AbstractFamily, point: Any, z: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """log p(z), unnormalised, and log q(z), for each row of z; the same twice where q has no density.

    **Arguments:**

    - `family`, `point`: q, as `fit.posterior` has them.
    """
    batch = int(np.clip(_NUMBERS_AT_ONCE // family.dim, 1, len(z)))
    found = _log_densities(target, family, point, jnp.asarray(z, target.dtype), batch)
    log_p, log_q = (np.asarray(values, np.float64) for values in found)
    return log_p, log_q


@instant_jit
def _log_densities(target: AbstractTarget, family: AbstractFamily, point: Any, z: Draws, batch: int) -> Any:
    def at(row: Any) -> Any:
        log_p = -target.potential(row)
        return log_p, family.log_prob(point, row) if family.has_density else log_p

    return jax.lax.map(at, z, batch_size=batch)
