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
from provi.families.base import AbstractFamily
from provi.families.bases import Laplace, Normal, StudentT, Uniform
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.location_scale import LocationScale
from provi.families.quantiles import marginal_quantile
from provi.runtime.history import History
from provi.targets.priors import GaussianPrior

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
    """The fitted approximation, in NumPy: exact moments, draws and densities of the family's member."""

    family: AbstractFamily
    point: Any
    names: tuple[str, ...]

    @property
    @double_precision
    def mean(self) -> np.ndarray:
        """E_q[z]."""
        return np.asarray(self.family.mean(self.point))

    @property
    @double_precision
    def covariance(self) -> np.ndarray:
        """Cov_q[z]."""
        return np.asarray(self.family.covariance(self.point))

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
        rows = jnp.asarray(np.atleast_2d(array), jax.tree.leaves(self.point)[0].dtype)
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
    """The result of `provi.fit`; `target`, `guarantee` and `call` are None where they are not known."""

    posterior: Posterior
    elbo: Estimate
    certificate: Certificate
    outcome: Outcome
    message: str
    history: History
    num_steps: int
    gradient_evaluations: int
    seconds: float
    target: Any = dataclasses.field(default=None, compare=False, repr=False)
    guarantee: Any = dataclasses.field(default=None, compare=False, repr=False)
    call: str | None = None

    def plot(self, kind: str = "overview", *, reference: Any = None) -> "Figure":
        """A matplotlib figure: "overview" (run and marginals), "trace", "bound", "marginals" or "noise".

        `reference`: draws of the posterior from elsewhere, one a row, to show beside the "marginals".
        """
        from provi.report.plots import plot

        return plot(self, kind, reference)

    def report(
        self, path: str | Path, *, title: str | None = None, reference: Any = None, num_draws: int = 2000
    ) -> Path:
        """Write one self-contained HTML page: verdict, pictures, ledger, diagnostics, timing, how to reproduce it.

        The arguments are those of `provi.report.html.write_report`.
        """
        from provi.report.html import write_report

        return write_report(self, path, title=title, reference=reference, num_draws=num_draws)

    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file; `provi.load(path)` reads it back."""
        family, point = self.posterior.family, self.posterior.point
        tensors = {f"point/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(point))}
        tensors["history"] = self.history.as_array()
        if isinstance(family, DualGaussian):
            tensors |= {f"family/{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(family))}
        metadata = {
            "family": _describe(family),
            "names": self.posterior.names,
            "elbo": dataclasses.asdict(self.elbo),
            "certificate": self.certificate.to_dict(),
            "outcome": self.outcome.name,
            "message": self.message,
            "num_steps": self.num_steps,
            "gradient_evaluations": self.gradient_evaluations,
            "seconds": self.seconds,
            "call": self.call,
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
        family, structure = _family(data["family"], file)
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
        call=data.get("call"),
    )


def _describe(family: AbstractFamily) -> dict[str, Any]:
    """What `_family` needs beside the arrays."""
    if isinstance(family, DualGaussian):
        return {"scale": "dual", "linear_model": family.design is not None, "root": family.root is not None}
    assert isinstance(family, LocationScale)
    df = float(family.base.df) if isinstance(family.base, StudentT) else None
    return {"dim": family.dim, "base": family.base.name, "scale": family.scale, "rank": family.rank, "df": df}


def _family(spec: dict[str, Any], file: Any) -> tuple[AbstractFamily, Any]:
    """The family, and the structure of its points."""
    if spec["scale"] == "dual":
        one = jnp.asarray(np.ones((1, 1)))
        prior = GaussianPrior(one[0], one[0, 0]) if spec["linear_model"] else None
        like = DualGaussian(one, one[0], one if spec["linear_model"] else None, prior, one if spec["root"] else None)
        arrays = [jnp.asarray(file.get_tensor(f"family/{i}")) for i in range(len(jax.tree.leaves(like)))]
        # Rebuilt from its parts, since the dimension is a static field.
        parts = jax.tree.unflatten(jax.tree.structure(like), arrays)
        family = DualGaussian(parts.gram, parts.prior_mean, parts.design, parts.prior, parts.root)
        return family, jax.tree.structure(DualPoint(one[0], one[0]))
    base = StudentT(spec["df"]) if spec["df"] is not None else _BASES[spec["base"]]()
    family = LocationScale(spec["dim"], base, spec["scale"], rank=spec["rank"])
    return family, jax.tree.structure(family.point(np.zeros(spec["dim"]), 1.0))
