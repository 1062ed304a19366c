"""The posterior of a PyMC model as a target."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.checks import check_count
from provi.core.precision import double_precision
from provi.core.types import Draws, Scalar, Vector
from provi.frontends.pymc_graphs import Traced
from provi.frontends.pymc_inverse import free_coordinates
from provi.frontends.pymc_predict import replicate
from provi.frontends.pymc_program import PyMCProgram
from provi.targets.assumptions import Assumptions
from provi.targets.base import AbstractTarget, read_points
from provi.targets.constants import Constants
from provi.targets.linear_models import AbstractLinearModel
from provi.targets.parameters import element_names


class PyMCTarget(AbstractTarget):
    """The posterior density of a model's free variables, in PyMC's own unconstrained coordinates.

    The vector z holds the value variables in the order of `model.value_vars`, as `model.initial_point()` does.
    """

    log_density: Traced
    start: Vector
    assumptions: Assumptions
    recognised: AbstractLinearModel | None
    program: PyMCProgram = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def dim(self) -> int:
        """The number of free coordinates."""
        return self.start.shape[0]

    @property
    def dtype(self) -> Any:
        """The floating type of the parameters."""
        return self.start.dtype

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The variables' names with indices; `log(sigma)` for a coordinate that is not the variable itself."""
        return self.names

    @property
    def default_location(self) -> np.ndarray:
        """PyMC's initial point, or the `start` that was given."""
        return np.asarray(self.start, np.float64)

    @property
    def constants(self) -> Constants:
        """Proven where the model was recognised as a linear one; else declared or unknown."""
        return self.assumptions.constants if self.recognised is None else self.recognised.constants

    def linear_model(self) -> AbstractLinearModel | None:
        """The same density as a linear model, where it was recognised as one."""
        return self.recognised

    def curvature_bounds(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Those of the linear model, where there is one."""
        return None if self.recognised is None else self.recognised.curvature_bounds()

    def potential(self, z: Vector) -> Scalar:
        """Minus PyMC's log density, with the Jacobian."""
        return -self.log_density(jnp.asarray(z, self.dtype))

    @double_precision
    def constrain(self, z: Any) -> dict[str, np.ndarray]:
        """The free variables in the model's own space, and its Deterministics; for draws (n, dim), n of each."""
        return self._at(z, lambda points: _over_draws(self.program.values, points))

    @property
    def constrained_names(self) -> tuple[str, ...]:
        """A name for each number of `constrain`, its variables sorted by name."""
        return element_names(self.constrain(self.default_location))

    @property
    def axis_labels(self) -> dict[str, dict[str, Sequence[Any]]]:
        """The coordinates of the variables that were given dimensions by name."""
        return self.program.axis_labels

    @double_precision
    def unconstrain(self, values: Any) -> np.ndarray:
        """The vector z of values of the free variables, a dictionary by name; other entries do not count."""
        return free_coordinates("values", self.program, values)

    @property
    @double_precision
    def observed_data(self) -> dict[str, np.ndarray]:
        """The data, by observed variable; where some are missing, the others only, as `y_observed`."""
        return self.program.observed_data

    @double_precision
    def log_likelihood(self, z: Any) -> dict[str, np.ndarray]:
        """log p(y | z) of each datum, by observed variable; for draws (n, dim), n of each."""
        return self._at(z, lambda points: _over_draws(self.program.log_likelihoods, points))

    @double_precision
    def predict(self, z: Any, seed: int) -> dict[str, np.ndarray]:
        """Data drawn from p(y | z), by observed variable; for draws (n, dim), one of each for each row."""
        check_count("seed", seed, minimum=0)
        return self._at(z, lambda points: replicate(self.program, _over_draws(self.program.values, points), seed))

    def _at(self, z: Any, function: Callable[[Draws], dict[str, Any]]) -> dict[str, np.ndarray]:
        points = read_points(z, self.dim)
        found = function(jnp.asarray(np.atleast_2d(points), self.dtype))
        return {name: np.asarray(leaf if points.ndim == 2 else leaf[0]) for name, leaf in found.items()}


@eqx.filter_jit
def _over_draws(function: Traced, points: Draws) -> dict[str, Any]:
    return jax.vmap(function)(points)
