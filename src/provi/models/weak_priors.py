r"""Weakly informative Gaussian priors on the scale of the data: the same for estimators, formulas and the command line.

With $s_y$ the standard deviation of a Gaussian response and 1 for others, and $s_x$ that of a column x:

$$w \sim N(0, (2.5\,s_y/s_x)^2), \qquad b + \bar x'w \sim N(c, (2.5\,s_y)^2),$$

rstanarm's rule: the intercept is that at the columns' means, and c says where the data lie: the mean of a Gaussian
response, the logarithm of the mean rate of counts (rstanarm has zero), zero log odds. In the coordinates (b, w) this is
a Gaussian with the covariance $AA'$, $A = (s_b, -\bar x'F; 0, F)$, F the deviations of w or a factor of its covariance.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

WIDE = 2.5
_LARGEST_DENSE, _CENTRED, _FARTHEST = 1000, 1e-8, 1e6
_PRIORS = {
    "normal": ("Normal", 2), "halfnormal": ("HalfNormal", 1), "exponential": ("Exponential", 1),
    "gamma": ("Gamma", 2), "lognormal": ("LogNormal", 2), "beta": ("Beta", 2), "uniform": ("Uniform", 2),
}  # fmt: skip


def response_location(
    kind: str,
    y: np.ndarray,
    offset: np.ndarray | float = 0.0,
    weights: np.ndarray | None = None,
    *,
    intercept: bool = True,
) -> tuple[float, float]:
    """(c, s_y) of responses of this kind: "gaussian", "counts", of signed times "hazard" or "log time", or any other.

    Without an intercept coefficients may be means themselves, however far from zero: s_y is then a root mean square.
    """
    if kind == "gaussian":
        centre = float(np.average(y - offset, weights=weights)) if intercept else 0.0
        return centre, float(np.sqrt(np.average((y - offset - centre) ** 2, weights=weights))) or 1.0
    if kind == "counts":
        # Half a count more, so that the logarithm is finite without any.
        each = np.ones(len(y)) if weights is None else weights
        return float(np.log((each @ y + 0.5) / (each @ np.exp(offset + np.zeros(len(y)))))), 1.0
    if kind == "hazard":  # the logarithm of the rate of events
        each = np.ones(len(y)) if weights is None else weights
        return float(np.log((each @ (y > 0)) / (each @ (np.abs(y) * np.exp(offset))))), 1.0
    if kind == "log time":
        return response_location("gaussian", np.log(np.abs(y)), offset, weights, intercept=intercept)
    return 0.0, 1.0


def slope_scales(
    matrix: np.ndarray, unit: float, *, about_zero: bool = False, weights: np.ndarray | None = None
) -> np.ndarray:
    """2.5 s_y / s_x of each column; `about_zero`: s_x is the root of the mean square, where there is no intercept."""
    centre = np.zeros(matrix.shape[1]) if about_zero else np.average(matrix, axis=0, weights=weights)
    spread = np.sqrt(np.average((matrix - centre) ** 2, axis=0, weights=weights))
    spread = np.where(spread > 1e-12 * np.abs(centre), spread, 0.0)  # what rounding leaves of a constant
    return WIDE * unit / np.where(spread > 0, spread, 1.0)


@dataclasses.dataclass(frozen=True)
class WeakPriors:
    """Normal priors of the columns' coefficients, and of the intercept at the columns' means or (`at_zero`) at zero.

    - `names`, `mean`: of the columns. - `factor`: F, (columns,) or a matrix. - `centre`: the columns' means.
    - `intercept`: (mean, standard deviation), or None without one. - `units`: columns are (x - c)/unit of what people
      call x, or None where they are x.
    """

    names: tuple[str, ...]
    mean: np.ndarray
    factor: np.ndarray
    centre: np.ndarray
    intercept: tuple[float, float] | None
    at_zero: bool = False
    units: np.ndarray | None = None

    @property
    def scale(self) -> np.ndarray:
        """The standard deviations of the coefficients."""
        return self.factor if self.factor.ndim == 1 else np.sqrt(np.sum(self.factor**2, axis=1))

    def arguments(self) -> dict[str, Any]:
        """`prior_mean`, and `prior_scale` or `prior_covariance`, of a target with the intercept first.

        With more than 1000 columns, or means of more than a million deviations, b is independent of w, with the same
        variance.
        """
        factor = self.factor
        if self.intercept is None:
            return {"prior_mean": self.mean, **_second(factor)}
        centre = np.zeros(len(self.mean)) if self.at_zero else self.centre
        moved = centre * factor if factor.ndim == 1 else centre @ factor
        first = np.array([self.intercept[0] - centre @ self.mean])
        mean, own = np.concatenate([first, self.mean]), self.intercept[1]
        size = float(np.linalg.norm(moved))
        if size <= _CENTRED * own or len(self.mean) > _LARGEST_DENSE or size > _FARTHEST * own:
            own = float(np.hypot(own, size))
            if factor.ndim == 1:
                return {"prior_mean": mean, "prior_scale": np.concatenate([[own], factor])}
            covariance = np.zeros((len(mean), len(mean)))
            covariance[0, 0], covariance[1:, 1:] = own**2, factor @ factor.T
            return {"prior_mean": mean, "prior_covariance": covariance}
        full = np.zeros((len(mean), len(mean)))
        full[0, 0], full[0, 1:] = own, -moved
        full[1:, 1:] = factor if factor.ndim == 2 else np.diag(factor)
        return {"prior_mean": mean, "prior_covariance": full @ full.T}

    @property
    def words(self) -> dict[str, str]:
        """What was chosen, by name, the intercept first, of what people call x."""
        found = {}
        if self.intercept is not None:
            at = ", at x = 0" if self.at_zero else ", at the columns' means"
            found["intercept"] = f"normal({self.intercept[0]:.4g}, {self.intercept[1]:.4g}){at}"
        units = np.ones(len(self.names)) if self.units is None else self.units
        for name, mean, scale in zip(self.names, self.mean / units, self.scale / units, strict=True):
            found[name] = f"normal({mean:.4g}, {scale:.4g})"
        return found


def _second(factor: np.ndarray) -> dict[str, Any]:
    return {"prior_scale": factor} if factor.ndim == 1 else {"prior_covariance": factor @ factor.T}


def weak_priors(
    matrix: np.ndarray,
    names: Sequence[str],
    location: tuple[float, float],
    *,
    intercept: bool = True,
    about_zero: bool = False,
    weights: np.ndarray | None = None,
    given: Mapping[str, Any] | None = None,
    units: np.ndarray | None = None,
) -> WeakPriors:
    """The rule above for the columns of `matrix`, with `given` by name in its place ("intercept" is one).

    **Arguments:**

    - `location`: of the responses, `response_location`. - `about_zero`: that of `slope_scales`.
    - `given`: a standard deviation, "normal(0, 1)", (mean, sd) or `provi.targets.latent.Normal`.
    - `units`: columns are (x - c)/unit of what people call x, and `given` is of x's coefficient.
    """
    matrix, names = np.asarray(matrix, np.float64), tuple(names)
    given = dict(given or {})
    for name in given:
        if name not in names and not (intercept and name == "intercept"):
            known = (("intercept",) if intercept else ()) + names
            raise ValueError(f"priors names {name!r}; the coefficients are {', '.join(map(repr, known))}.")
    scale = slope_scales(matrix, location[1], about_zero=about_zero, weights=weights)
    mean, centre = np.zeros(len(names)), np.average(matrix, axis=0, weights=weights)
    for k, name in enumerate(names):
        if name in given:
            unit = 1.0 if units is None else units[k]
            mean[k], scale[k] = unit * np.asarray(read_normal(name, given[name], 0.0))
    own = None
    if intercept:
        own = (location[0], WIDE * location[1])
        own = read_normal("intercept", given["intercept"], own[0]) if "intercept" in given else own
    return WeakPriors(names, mean, scale, centre, own, units=units)


def read_normal(name: str, prior: Any, mean: float) -> tuple[float, float]:
    """Mean and standard deviation of a Gaussian prior: a number is the latter; texts and pairs are understood."""
    from provi.targets import latent

    prior = read_prior(name, prior) if isinstance(prior, str) else prior
    if isinstance(prior, latent.Normal):
        return float(prior.mean), float(prior.sd)
    if isinstance(prior, tuple) and len(prior) == 2 and prior[1] > 0 and np.isfinite(prior).all():
        return float(prior[0]), float(prior[1])
    if isinstance(prior, int | float) and not isinstance(prior, bool) and 0 < prior < np.inf:
        return mean, float(prior)
    raise ValueError(
        f"The prior of {name!r} must be a positive number, its standard deviation, 'normal(mean, sd)' or "
        f"provi.targets.latent.Normal(mean, sd), not {prior!r}."
    )


def read_prior(name: str, text: str) -> Any:
    """A prior as it is written: "normal(0, 1)", "halfnormal(2)", "exponential(1)", "gamma(2, 0.1)"."""
    from provi.targets import latent

    match = re.fullmatch(r"\s*([A-Za-z_-]+)\s*\(([^()]*)\)\s*", text)
    kind = None if match is None else match[1].lower().replace("-", "").replace("_", "")
    if match is None or kind not in _PRIORS:
        raise ValueError(
            f"The prior of {name!r} must be written as normal(0, 1), with one of {', '.join(_PRIORS)}, not {text!r}."
        )
    made, count = _PRIORS[kind]
    try:
        numbers = [float(part) for part in match[2].split(",")] if match[2].strip() else []
    except ValueError:
        raise ValueError(f"The prior of {name!r}, {text!r}, must have numbers between its brackets.") from None
    if len(numbers) != count:
        raise ValueError(f"The prior of {name!r}, {text!r}, has {len(numbers)} numbers; {kind} takes {count}.")
    return getattr(latent, made)(*numbers)


def prior_words(prior: Any) -> str:
    """`HalfNormal(2.5)`."""
    from provi.targets import latent

    if isinstance(prior, latent.Exponential):  # a penalised complexity prior is one, and forgets how it was asked for
        return f"Exponential({float(prior.rate):.4g})"
    numbers = [float(getattr(prior, field.name)) for field in dataclasses.fields(prior)]
    return f"{type(prior).__name__}({', '.join(f'{number:.4g}' for number in numbers)})"
