"""Draws in place of q: what is known of a posterior from a sample of it, in the user's names and space."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from provi.core.arguments import check_count
from provi.result.summary import Summary, summarise_model_space


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnPosterior:
    """A sample of the posterior, equally weighted: moments, draws, summaries, ArviZ, predictions.

    - `z`: draws of the free coordinates, (chains, draws, dim). - `names`: of the coordinates. - `target`: whose
      posterior it is.
    """

    z: np.ndarray
    names: tuple[str, ...]
    target: Any = dataclasses.field(repr=False)

    origin: ClassVar[str] = "draws"
    """What the file of ArviZ says of where the draws come from."""

    exact_moments: ClassVar[bool] = True
    """The moments are those of the sample: they are taken as they are."""

    @property
    def rows(self) -> np.ndarray:
        """All draws of the free coordinates, one a row."""
        return self.z.reshape(-1, self.z.shape[-1])

    @property
    def mean(self) -> np.ndarray:
        """E[z]."""
        return self.rows.mean(axis=0)

    @property
    def covariance(self) -> np.ndarray:
        """Cov[z]."""
        return np.atleast_2d(np.cov(self.rows, rowvar=False))

    @property
    def standard_deviation(self) -> np.ndarray:
        """Marginal standard deviations."""
        return self.rows.std(axis=0, ddof=1)

    def sample(self, n: int, seed: int) -> np.ndarray:
        """`n` of the draws of z at random, one a row; repeated only where there are fewer than `n`."""
        n, rows = check_count("n", n), self.rows
        rng = np.random.default_rng(check_count("seed", seed, minimum=0))
        return rows[rng.choice(len(rows), n, replace=n > len(rows))]

    def draws(self, n: int, seed: int) -> Any:
        """The draws of `sample(n, seed)` in the model's own space, n in front."""
        return self.target.constrain(self.sample(n, seed))

    def interval(self, probability: float = 0.94) -> np.ndarray:
        """Central credible intervals of the free coordinates, shape (dim, 2)."""
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
        tail = (1 - probability) / 2
        return np.quantile(self.rows, [tail, 1 - tail], axis=0).T

    def summary(
        self,
        probability: float = 0.94,
        var_names: str | Sequence[str] | None = None,
        kind: str = "all",
        *,
        unconstrained: bool = False,
    ) -> Summary:
        """Mean, standard deviation and central interval of every parameter, by name, as `fit.posterior.summary`."""
        free = Summary(self.names, self.mean, self.standard_deviation, self.interval(probability), probability)
        if unconstrained:
            found = free.select(var_names, kind)
        else:
            found = summarise_model_space(self, free, var_names=var_names, kind=kind)  # pyright: ignore[reportArgumentType]
        return dataclasses.replace(found, notes=self.notes())

    def notes(self) -> tuple[str, ...]:
        """Lines under a summary: where the numbers come from, and what to beware of."""
        return ()

    def attributes(self) -> dict[str, Any]:
        """Texts and numbers for ArviZ's container."""
        from provi.report.arviz import library

        return library() | {"origin": self.origin}

    def to_arviz(self, num_draws: int | None = None, seed: int = 0, *, predictive: bool = True) -> Any:
        """The draws in the model's own space as ArviZ's `InferenceData`, or `DataTree` from 1.0.

        **Arguments:**

        - `num_draws`: so many of them at random, as one chain; all, chain by chain, if not given.
        - `predictive`: draw replicated data too.
        """
        from provi.report.arviz import from_draws

        z = self.z if num_draws is None else self.sample(num_draws, seed)[None]
        return from_draws(self.target, z, {}, self.attributes(), seed=seed, predictive=predictive)

    def posterior_predictive(self, *new: Any, num_draws: int = 1000, seed: int = 0) -> dict[str, np.ndarray]:
        """Responses y ~ p(y | z) at `num_draws` of the draws, by name: replicates of the data, or at new data.

        New data are those that `fit.posterior_predictive` takes for models of NumPyro, PyMC and Stan.
        """
        z = self.sample(num_draws, seed)
        if new and not self.target.takes_new_data:
            raise ValueError(
                f"posterior_predictive: {type(self.target).__name__} cannot be run again with other data; "
                f"without arguments it draws replicates."
            )
        found = self.target.predict_new(z, seed, *new) if new else self.target.predict(z, seed)
        if not found:
            raise ValueError(
                f"posterior_predictive: {type(self.target).__name__} does not say how its data are drawn. Draw them "
                f"yourself at draws(n, seed)."
            )
        return found
