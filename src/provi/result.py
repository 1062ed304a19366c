"""What `provi.fit` returns: the approximation, its ELBO, the ledger, the history, and why it stopped."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors import safe_open
from safetensors.numpy import save_file

from provi.certificates.ledger import Certificate
from provi.core.checks import as_array, check_count
from provi.core.outcomes import Outcome
from provi.core.precision import double_precision
from provi.families.bases import Laplace, Normal, StudentT, Uniform
from provi.families.location_scale import LocationScale, Point
from provi.families.quantiles import marginal_quantile
from provi.runtime.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMAT = "provi-fit-1"
_BASES = {base.name: base for base in (Normal, Laplace, Uniform)}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A Monte-Carlo estimate: `float(estimate)` is its value."""

    value: float
    standard_error: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.6g} +- {self.standard_error:.2g}"


@dataclasses.dataclass(frozen=True)
class Posterior:
    """The fitted approximation, in NumPy: exact moments, draws and densities of the location-scale member."""

    family: LocationScale
    point: Point
    names: tuple[str, ...]

    @property
    def mean(self) -> np.ndarray:
        """E_q[z] = m."""
        return np.asarray(self.point.loc)

    @property
    @double_precision
    def covariance(self) -> np.ndarray:
        """Cov_q[z] = CC'."""
        return np.asarray(self.point.scale.covariance())

    @property
    @double_precision
    def standard_deviation(self) -> np.ndarray:
        """Marginal standard deviations."""
        return np.asarray(self.family.marginal_standard_deviation(self.point))

    @double_precision
    def sample(self, n: int, seed: int) -> np.ndarray:
        """`n` independent draws, one a row."""
        return np.asarray(self.family.sample(jax.random.key(seed), self.point, check_count("n", n)))

    @double_precision
    def log_prob(self, z: Any) -> np.ndarray:
        """log q(z) for one point or for each row of an array of points."""
        array = as_array("z", z)
        if array.shape[-1] != self.family.dim or array.ndim > 2:
            raise ValueError(f"z has shape {array.shape}; its last axis must be the dimension {self.family.dim}.")
        rows = jnp.asarray(np.atleast_2d(array), self.point.loc.dtype)
        values = jax.vmap(lambda row: self.family.log_prob(self.point, row))(rows)
        return np.asarray(values if array.ndim == 2 else values[0])

    def interval(self, probability: float = 0.94) -> np.ndarray:
        """Central credible intervals, shape (dim, 2); exact for the family."""
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
        width = marginal_quantile(self.family.base, self.family.dim, (1 + probability) / 2)
        deviation = self.standard_deviation
        return np.stack([self.mean - width * deviation, self.mean + width * deviation], axis=1)

    def summary(self, probability: float = 0.94) -> "Summary":
        """Mean, standard deviation and central interval of every parameter, by name."""
        return Summary(self.names, self.mean, self.standard_deviation, self.interval(probability), probability)


@dataclasses.dataclass(frozen=True)
class Summary:
    """A table of marginals; prints itself, `to_dict()` for code."""

    names: tuple[str, ...]
    mean: np.ndarray
    standard_deviation: np.ndarray
    interval: np.ndarray
    probability: float

    def to_dict(self) -> dict[str, dict[str, float]]:
        """name -> {"mean", "sd", "low", "high"}."""
        columns = zip(self.names, self.mean, self.standard_deviation, self.interval, strict=True)
        return {
            name: {"mean": float(mean), "sd": float(sd), "low": float(low), "high": float(high)}
            for name, mean, sd, (low, high) in columns
        }

    def table(self, largest: int = 40) -> Table:
        """A rich table of at most `largest` rows."""
        tail = 50 * (1 - self.probability)
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("parameter")
        for name in ("mean", "sd", f"{tail:g}%", f"{100 - tail:g}%"):
            table.add_column(name, justify="right")
        for name, row in list(self.to_dict().items())[:largest]:
            table.add_row(name, *(f"{row[key]:.3f}" for key in ("mean", "sd", "low", "high")))
        if len(self.names) > largest:
            table.add_row(f"... {len(self.names) - largest} more", "", "", "", "")
        return table

    def __str__(self) -> str:
        console = Console(width=100)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()


@dataclasses.dataclass(frozen=True)
class Fit:
    """The result of `provi.fit`."""

    posterior: Posterior
    elbo: Estimate
    certificate: Certificate
    outcome: Outcome
    message: str
    history: History
    num_steps: int
    gradient_evaluations: int
    seconds: float

    def plot(self) -> "Figure":
        """The ELBO along the run, and the marginals of the approximation: a matplotlib figure."""
        from provi.report.plots import plot_fit

        return plot_fit(self)

    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file; `provi.load(path)` reads it back."""
        family, point = self.posterior.family, self.posterior.point
        tensors = {f"point/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(point))}
        tensors["history"] = self.history.as_array()
        metadata = {
            "family": {
                "dim": family.dim,
                "base": family.base.name,
                "scale": family.scale,
                "rank": family.rank,
            },
            "df": float(family.base.df) if isinstance(family.base, StudentT) else None,
            "names": self.posterior.names,
            "elbo": dataclasses.asdict(self.elbo),
            "certificate": self.certificate.to_dict(),
            "outcome": self.outcome.name,
            "message": self.message,
            "num_steps": self.num_steps,
            "gradient_evaluations": self.gradient_evaluations,
            "seconds": self.seconds,
        }
        save_file(tensors, path, metadata={"format": _FORMAT, "fit": json.dumps(metadata)})


@double_precision
def load(path: str | Path) -> Fit:
    """Read a fit written by `Fit.save`."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != _FORMAT:
            raise ValueError(f"{path} is not a fit saved by ProVI.")
        data = json.loads(metadata["fit"])
        spec = data["family"]
        base = StudentT(data["df"]) if data["df"] is not None else _BASES[spec["base"]]()
        family = LocationScale(spec["dim"], base, spec["scale"], rank=spec["rank"])
        like = family.point(np.zeros(spec["dim"]), 1.0)
        structure = jax.tree.structure(like)
        leaves = [jnp.asarray(file.get_tensor(f"point/{i}")) for i in range(structure.num_leaves)]
        history = History.from_array(file.get_tensor("history"))
    return Fit(
        posterior=Posterior(family, jax.tree.unflatten(structure, leaves), tuple(data["names"])),
        elbo=Estimate(**data["elbo"]),
        certificate=Certificate.from_dict(data["certificate"]),
        outcome=Outcome[data["outcome"]],
        message=data["message"],
        history=history,
        num_steps=data["num_steps"],
        gradient_evaluations=data["gradient_evaluations"],
        seconds=data["seconds"],
    )
