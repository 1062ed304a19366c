r"""The priors of a mixed model: weakly informative by default, on the scale of the data, and always printed.

With $s_y$ the standard deviation of a Gaussian response and 1 for other families, and $s_x$ that of a covariate:

- slopes $N(0, (2.5 s_y/s_x)^2)$; the intercept, at the covariates' means, $N(c, (2.5 s_y)^2)$, c where the data lie;
- standard deviations of effects half-normal with the scale of the slope's prior; correlations LKJ(2).

These are those of `provi.models.weak_priors`, which estimators and the command line have, too: rstanarm's and Bambi's,
but for c, the logarithm of the mean rate of counts and survival times. The
target has Gaussian priors with mean zero: with columns $x - \bar x$ and the prior means b, its predictor is
$(x - \bar x)'(b + \delta)$, and b goes into the offset.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from provi.frontends.formula.design import Design
from provi.frontends.formula.groups import Group
from provi.frontends.formula.structured import Structured
from provi.frontends.formula.syntax import nearest
from provi.models.mixed.families import Observed
from provi.models.weak_priors import WIDE as _WIDE
from provi.models.weak_priors import prior_words, read_normal, read_prior, slope_scales
from provi.targets import latent

_FIELDS = {"sigma": "scale"}
"""Names that people see, and those of the likelihood's fields where they differ."""


@dataclasses.dataclass(frozen=True)
class FixedEffects:
    """The fixed effects as the target has them, and back: beta = mean + delta, of columns less `centre`.

    - `names`: as in the formula. - `columns`: which columns of the design are used (no intercept beside cut points).
    """

    names: tuple[str, ...]
    columns: np.ndarray
    centre: np.ndarray
    mean: np.ndarray
    scale: np.ndarray

    @property
    def intercept(self) -> int | None:
        """The place of the intercept."""
        return self.names.index("Intercept") if "Intercept" in self.names else None

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names in the target; the intercept there is that at the covariates' means."""
        shifted = bool(self.centre.any())
        return tuple("Intercept (at means)" if name == "Intercept" and shifted else name for name in self.names)

    def matrix(self, fixed: np.ndarray) -> np.ndarray:
        """The columns that the target takes, of a matrix of the whole design."""
        return fixed[:, self.columns] - self.centre

    def offset(self, fixed: np.ndarray) -> np.ndarray:
        """What the prior means add to the predictor."""
        return self.matrix(fixed) @ self.mean

    def original(self, delta: np.ndarray) -> np.ndarray:
        """Draws (n, p) of the target's coefficients as those of the formula: the intercept at x = 0."""
        beta = delta + self.mean
        if self.intercept is not None:
            beta[:, self.intercept] -= beta @ self.centre
        return beta


@dataclasses.dataclass(frozen=True)
class Priors:
    """All priors of a model: `fixed`; `scales` and `others` by block; `likelihood` by field; `words` to print."""

    fixed: FixedEffects
    scales: dict[str, Any]
    others: dict[str, dict[str, Any]]
    likelihood: dict[str, Any]
    words: dict[str, str]


def choose_priors(design: Design, observed: Observed, given: Mapping[str, Any] | None) -> Priors:
    """The default priors, with those that the user gives by name in their place.

    A name is that of a fixed effect or of its term (a number: the standard deviation, or `latent.Normal`), `sd(g)`,
    `sd(g: x)` or `g` for all of a group (a number: that of a half-normal, or a prior of `provi.targets.latent`),
    `cor(g)`, or a number of the likelihood, `sigma`, `dispersion`, `shape`.
    """
    chosen, words = _Given(dict(given or {})), {}
    fixed = _fixed(design, observed, chosen, words)
    scales, others = {}, {}
    for group in design.groups:
        _group(group, observed, chosen, scales, others, words)
    for term in design.structured:
        _structured(term, observed, chosen, scales, others, words)
    likelihood = _likelihood(observed, chosen, words)
    chosen.check(words)
    return Priors(fixed, scales, others, likelihood, words)


class _Given:
    """The user's priors; those that nobody asked for are an error."""

    def __init__(self, priors: dict[str, Any]):
        self.priors, self.taken = priors, set()

    def get(self, *names: str) -> Any:
        """The prior under the first of the names that has one; None without any."""
        for name in names:
            if name in self.priors:
                self.taken.add(name)
                return self.priors[name]
        return None

    def check(self, known: Mapping[str, str]) -> None:
        """All of them were used."""
        for name in self.priors:
            if name not in self.taken:
                listed = ", ".join(map(repr, known))
                raise ValueError(f"priors names {name!r}; this model has {listed}.{nearest(name, known)}")


def _fixed(design: Design, observed: Observed, given: _Given, words: dict[str, str]) -> FixedEffects:
    names = design.encoding.names
    # Cut points are intercepts.
    columns = np.array([k for k, name in enumerate(names) if observed.family != "ordinal" or name != "Intercept"], int)
    names = tuple(names[k] for k in columns)
    matrix = design.fixed[:, columns]
    centred = "Intercept" in names or observed.family == "ordinal"
    centre = matrix.mean(axis=0) if centred else np.zeros(len(names))
    mean, unit = np.zeros(len(names)), observed.scale
    about_zero = not centred and observed.family == "gaussian"
    if about_zero:
        # Without an intercept coefficients may be means themselves, however far these are from zero.
        unit = float(np.sqrt(np.mean(observed.y**2)))
    scale = slope_scales(matrix, unit, about_zero=about_zero)
    term_of = {label: term for term, labels in design.encoding.terms.items() for label in labels}
    for k, name in enumerate(names):
        if name == "Intercept":
            centre[k], mean[k], scale[k] = 0.0, observed.centre, _WIDE * unit
        chosen = given.get(name, term_of[name])
        if chosen is not None:
            mean[k], scale[k] = read_normal(name, chosen, mean[k])
        at = ", at the covariates' means" if name == "Intercept" and len(names) > 1 else ""
        words[name] = f"Normal({mean[k]:.4g}, {scale[k]:.4g}){at}"
    return FixedEffects(names, columns, centre, mean, scale)


def _hyperprior(name: str, prior: Any) -> Any:
    """A prior of a hyperparameter; a number is the scale of a half-normal."""

    if isinstance(prior, str) and "(" in prior:
        prior = read_prior(name, prior)
    if isinstance(prior, latent.AbstractHyperprior):
        return prior
    if isinstance(prior, int | float) and not isinstance(prior, bool) and 0 < prior < np.inf:
        return latent.HalfNormal(float(prior))
    raise ValueError(
        f"The prior of {name!r} must be a positive number, the scale of a half-normal, or one of provi.targets.latent, "
        f"not {prior!r}."
    )


def _group(
    group: Group,
    observed: Observed,
    given: _Given,
    scales: dict[str, Any],
    others: dict[str, Any],
    words: dict[str, str],
) -> None:

    found, alone = [], group.effects == ("Intercept",)
    for k, effect in enumerate(group.effects):
        name = f"sd({group.name})" if alone else f"sd({group.name}: {effect})"
        column = np.ones(1) if group.covariates is None else group.covariates[:, k]
        spread = 1.0 if effect == "Intercept" else float(np.std(column)) or float(np.abs(column).max())
        usual = latent.HalfNormal(_WIDE * observed.scale / spread)
        chosen = given.get(name, group.name)
        found.append(usual if chosen is None else _hyperprior(name, chosen))
        words[name] = prior_words(found[-1])
    scales[group.name] = tuple(found)
    others[group.name] = {"correlation": None}
    if group.correlated:
        name = f"cor({group.name})"
        chosen = given.get(name)
        prior = latent.LKJ(2.0) if chosen is None else latent.LKJ(chosen) if np.ndim(chosen) == 0 else chosen
        others[group.name], words[name] = {"correlation": prior}, prior_words(prior)


def _structured(
    term: Structured, observed: Observed, given: _Given, scales: dict[str, Any], others: dict[str, Any],
    words: dict[str, str],
) -> None:  # fmt: skip

    extra: dict[str, Any] = {}
    if term.kind == "gp":
        scales[term.name] = None
        usual = {"amplitude": latent.HalfNormal(_WIDE * observed.scale)}
        for key in ("amplitude", "length_scale"):
            chosen = given.get(f"{key}({term.name})")
            if chosen is not None:
                usual[key] = _hyperprior(f"{key}({term.name})", chosen)
            words[f"{key}({term.name})"] = (
                prior_words(usual[key]) if key in usual else "LogNormal, at the inputs' distances"
            )
        extra["priors"] = usual
    else:
        name = f"sd({term.name})"
        chosen = given.get(name, term.name)
        scales[term.name] = latent.HalfNormal(_WIDE * observed.scale) if chosen is None else _hyperprior(name, chosen)
        words[name] = prior_words(scales[term.name])
        named = {"ar1": ("rho", "correlation", "Uniform(-1, 1)"), "bym2": ("mixing", "mixing", "Beta(0.5, 0.5)")}
        if term.kind in named:
            shown, field, usual_words = named[term.kind]
            chosen = given.get(f"{shown}({term.name})")
            if chosen is not None:
                extra[field] = _hyperprior(f"{shown}({term.name})", chosen)
            words[f"{shown}({term.name})"] = usual_words if chosen is None else prior_words(extra[field])
        if term.kind in ("rw2", "seasonal"):
            extra["trend_scale" if term.kind == "rw2" else "pattern_scale"] = _WIDE * observed.scale
    others[term.name] = extra


def _likelihood(observed: Observed, given: _Given, words: dict[str, str]) -> dict[str, Any]:

    usual: dict[str, Any] = {
        "gaussian": {"sigma": latent.HalfNormal(_WIDE * observed.scale)},
        "negative-binomial": {"dispersion": latent.Gamma(2.0, 0.1)},
        "weibull": {"shape": latent.LogNormal(0.0, 0.5)},
        "log-normal": {"sigma": latent.HalfNormal(_WIDE * observed.scale)},
    }.get(observed.family, {})
    found = {}
    for name, prior in usual.items():
        chosen = given.get(name)
        found[_FIELDS.get(name, name)] = prior = prior if chosen is None else _hyperprior(name, chosen)
        words[name] = prior_words(prior)
    return found
