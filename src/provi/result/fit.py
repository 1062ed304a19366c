"""What `provi.fit` returns."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

from provi.algorithms.natural.modes import Modes, not_searched
from provi.certificates.bounds import at_most
from provi.certificates.certificate import Certificate, evidence_bracket
from provi.certificates.distance.bound import Deferred, EvidenceBracket
from provi.core.arguments import available_bytes, check_count
from provi.core.limits import check_memory
from provi.core.notebook import as_html
from provi.diagnostics.importance import ImportanceDiagnostics
from provi.diagnostics.loo import LeaveOneOut, leave_one_out, log_densities
from provi.result.description import ModelDescription, describe
from provi.result.posterior import Posterior
from provi.runtime.record import History, Outcome
from provi.targets.parameters import element_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from provi.data.encoding import TableEncoding
    from provi.diagnostics.check import ModelCheck
    from provi.result.exact import ExactDraws
    from provi.result.prediction import Prediction

_AT_ONCE, _ROWS = 1000, 20
_ASK = (
    "The distance to the posterior takes a while: it is computed when fit.certificate.kl or fit.evidence is asked for."
)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A Monte-Carlo estimate: `float(estimate)` is its value."""

    value: float
    standard_error: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.6g} +- {self.standard_error:.2g}"


@dataclasses.dataclass(frozen=True, repr=False)
class Fit:
    """The result of `provi.fit`; `target`, `guarantee` and `call` are None where they are not known.

    `encoding`: how a table's columns became those of the target, for fits of `provi fit TABLE`; else None.
    `description`: what was fitted, where somebody knows more than the target says itself; see `describe`.
    """

    posterior: Posterior
    elbo: Estimate
    certificate: Certificate
    outcome: Outcome
    message: str
    history: History
    num_steps: int
    gradient_evaluations: int
    seconds: float
    target: Any = dataclasses.field(default=None, compare=False)
    guarantee: Any = dataclasses.field(default=None, compare=False)
    call: str | None = None
    encoding: "TableEncoding | None" = None
    description: ModelDescription | None = None
    _checked: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        dim = self.posterior.family.dim
        if self.target is not None and self.target.dim != dim:
            raise ValueError(f"target has {self.target.dim} parameters, but the approximation has {dim}.")
        # One target for both, also after dataclasses.replace(fit, target=target).
        if self.target is not None and self.posterior.target is not self.target:
            object.__setattr__(self, "posterior", dataclasses.replace(self.posterior, target=self.target))
        certificate, elbo = self.certificate, (self.elbo.value, self.elbo.standard_error)
        if certificate.elbo != elbo and np.isfinite(elbo).all():
            object.__setattr__(self, "certificate", dataclasses.replace(certificate, elbo=elbo))
        if self.posterior.distance is not certificate.distance:
            object.__setattr__(self, "posterior", dataclasses.replace(self.posterior, distance=certificate.distance))

    def plot(self, kind: str = "overview", *, reference: Any = None) -> "Figure":
        """A matplotlib figure: "overview" (run and marginals), "trace", "bound", "marginals" or "noise".

        `reference`: draws of the posterior from elsewhere, one a row, to show beside the "marginals".
        """
        from provi.report.plots.run import plot

        return plot(self, kind, reference)

    def report(
        self,
        path: str | Path,
        *,
        title: str | None = None,
        reference: Any = None,
        num_draws: int = 2000,
        check: bool = True,
    ) -> Path:
        """Write one self-contained HTML page: what was fitted, verdict, does the model fit, pictures, ledger, timing.

        The arguments are those of `provi.report.html.page.write_report`.
        """
        from provi.report.html.page import write_report

        return write_report(self, path, title=title, reference=reference, num_draws=num_draws, check=check)

    @property
    def modes(self) -> Modes:
        """The modes of the target that were found, with how much of the evidence each holds, by estimates.

        Where the target is log-concave, or the method has a start of its own, none are searched for: no `found`, and
        a `reason`. `provi.fit(..., starts=, seed=)` changes the search.
        """
        found = self.posterior.modes
        return not_searched("the method of this fit makes no search") if found is None else found

    @property
    def evidence(self) -> EvidenceBracket:
        """The bracket of the log evidence: [ELBO, ELBO + bound on KL(q || posterior)].

        `provi.compare` puts those of several models beside each other.
        """
        return evidence_bracket(self.certificate, self.elbo.value, self.elbo.standard_error)

    def tight_evidence(self, num_draws: int = 16_384, confidence: float = 0.99, seed: int = 0) -> EvidenceBracket:
        """A tighter bracket of the log evidence than `evidence`, statistical, for linear models and Gaussian processes.

        The width comes from three to about two times KL(q || posterior) as `num_draws` grows; see
        docs/theory/posterior.md.
        """
        from provi.certificates.distance.tight import tight_posterior_bound

        target, group = self._known_target("tight_evidence"), max(check_count("num_draws", num_draws) // 32, 1)
        family, point = self.posterior.family, self.posterior.point
        bound = tight_posterior_bound(target, family, point, confidence=confidence, seed=seed, group=group)
        if bound is None:
            raise ValueError("tight_evidence needs what fit.evidence needs for its upper end: see fit.certificate.")
        lower, margin = self.evidence.lower, self.elbo.standard_error
        return EvidenceBracket(lower, self.elbo.value + margin + bound.kl, confidence, "statistical")

    def marginal_distances(self, confidence: float = 0.99, seed: int = 0) -> np.ndarray:
        """How far each marginal is from the posterior's, at most: Wasserstein-1 in standard deviations of q.

        No mean is off by more, nor any expectation of a 1-Lipschitz function of one parameter. Statistical, each at
        the level `confidence`; for linear models and Gaussian processes.
        """
        from provi.certificates.distance.marginals import marginal_distances

        target, kl = self._known_target("marginal_distances"), self.certificate.kl
        if kl is None:
            raise ValueError("marginal_distances needs a bound on the KL: see fit.certificate.")
        family, point = self.posterior.family, self.posterior.point
        return marginal_distances(target, family, point, kl=kl, confidence=confidence, seed=seed)

    def describe(self) -> ModelDescription | None:
        """What was fitted, in words: formula, likelihood, priors, data; None of a fit that has lost its target."""
        return describe(self)

    def diagnose(self, num_draws: int = 10_000, seed: int = 0) -> ImportanceDiagnostics:
        """How far q is from the posterior itself, by importance sampling: k-hat, and what to do where it is bad.

        The certificate compares q with the best member of its family; this estimates what the family leaves out.
        Computed once for each `num_draws` and `seed`. Costs `num_draws` gradients of the log density.
        """
        return self.posterior.diagnose(num_draws, seed)

    def sample_exact(
        self,
        num_draws: int = 1000,
        chains: int = 4,
        seed: int = 0,
        *,
        num_warmup: int = 500,
        target_accept: float = 0.9,
    ) -> "ExactDraws":
        """Draws of the posterior itself, by NUTS in the coordinates in which q is round, started by draws of q.

        For when `diagnose()` says that q misses part of the posterior, or to see how far it is. Needs NumPyro, the
        extra `provi[numpyro]`, whatever the target is written in.

        **Arguments:**

        - `num_draws`: of each chain, after `num_warmup` that only tune the sampler. - `chains`: side by side.
        - `target_accept`: nearer to 1 for smaller steps, where there are divergent transitions.

        **Returns:** an `ExactDraws`: draws, moments, summary, ArviZ and predictions as of q, with effective sample
        sizes, R-hat, and how far q is: `shift` and `ratio`.
        """
        from provi.result.exact import sample_exact

        self._known_target("sample_exact")
        options: Any = {"num_warmup": num_warmup, "target_accept": target_accept}
        return sample_exact(self.posterior, num_draws, chains, seed, **options)

    def to_arviz(self, num_draws: int = 1000, seed: int = 0, *, predictive: bool = True) -> Any:
        """Draws, densities, data, log-likelihoods and predictions as ArviZ's `InferenceData`, or `DataTree` from 1.0.

        The arguments are those of `provi.report.arviz.to_arviz`.
        """
        from provi.report.arviz import to_arviz

        return to_arviz(self, num_draws, seed, predictive=predictive)

    def predict(
        self,
        X_new: Any,
        interval: float = 0.9,
        *,
        kind: str = "mean",
        groups: Any = None,
        offset: Any = None,
        exposure: Any = None,
        num_draws: int = 4000,
        seed: int = 0,
    ) -> "Prediction":
        r"""Predictions for new rows, of linear models, Gaussian processes and hierarchical ones.

        By default of the expected response: `mean` is $E_q[E[y|\eta]]$, and the interval holds $E[y|\eta]$, which is
        uncertain because the parameters are, with the probability `interval` under q. With `kind="response"` the
        interval is that of a new response y, noise included; with `kind="latent"` all is of $\eta$, which `linear` has
        in any case. In closed form; intervals of new responses that are neither Gaussian nor 0 and 1, and models
        with unknown numbers in their likelihood, take `num_draws` draws.

        **Arguments:**

        - `X_new`: an array with the columns of X, or a data frame, whose columns are matched by name where the target
          has names; others in it do not count. For a fit of `provi fit TABLE --save`: a frame like the table.
        - `interval`: the probability of the central interval.
        - `groups`: of a hierarchical model, the group of each row; one that the fit has not seen is drawn around
          the common coefficients.
        - `offset`, `exposure`: of each new row, offset = log(exposure), for models that were fitted with one.

        **Returns:** a `Prediction` with `mean`, `sd`, `lower`, `upper` and `linear`; it prints as a table.
        """
        from provi.result.prediction import predict

        self._known_target("predict")
        return predict(self, X_new, interval, kind, num_draws, seed, groups, offset, exposure)

    def posterior_predictive(
        self,
        *new: Any,
        num_draws: int = 1000,
        seed: int = 0,
        groups: Any = None,
        offset: Any = None,
        exposure: Any = None,
    ) -> dict[str, np.ndarray]:
        """Responses y ~ p(y | z) at `num_draws` draws z of q, a dictionary by name with the draws in front.

        Replicates of the data, `posterior_predictive()`; or, with arguments, responses at new data:

        - linear models, Gaussian processes: `posterior_predictive(X_new)`, with what `predict` takes;
        - NumPyro: the model's new arguments, `posterior_predictive(X_new, None)`, a tuple of them, or a dictionary of
          those by name; deterministic sites come along;
        - PyMC: a dictionary of new values of its `pm.Data`; - Stan: one of new data, for programs with `_rep`.

        Numbers alone, `posterior_predictive(1000, 0)`, are `num_draws` and `seed`.
        """
        target = self._known_target("posterior_predictive")
        numbers = [int(x) for x in new if isinstance(x, int | np.integer) and not isinstance(x, bool)]
        counts = 0 < len(new) == len(numbers) <= 2
        if counts:
            num_draws, seed, *_ = (*numbers, seed)
        if counts or not new:
            data = sum(np.size(value) for value in target.observed_data.values())
            check_memory(f"num_draws={num_draws} for {data} data", 16.0 * num_draws * data, "take fewer")
            found = target.predict(self.posterior.sample(num_draws, seed), seed)
        elif target.takes_new_data:
            found = target.predict_new(self.posterior.sample(num_draws, seed), seed, *new)
        else:
            from provi.result.prediction import draw_new

            X_new, *more = new
            if more:
                raise ValueError(f"posterior_predictive takes one table of new rows, X_new, not {len(new)} arguments.")
            return {"y": draw_new(self, X_new, num_draws, seed, groups=groups, offset=offset, exposure=exposure)}
        if not found:
            raise ValueError(
                f"posterior_predictive: {type(target).__name__} does not say how its data are drawn. Take a model with "
                f"a likelihood, or draw them yourself at fit.posterior.draws(n, seed)."
            )
        return found

    def loo(self, num_draws: int = 4000, seed: int = 0) -> LeaveOneOut:
        """Leave-one-out cross-validation by Pareto-smoothed importance sampling, corrected for q not being exact.

        **Arguments:**

        - `num_draws`: draws of q; time and memory grow with their number times that of the data.

        **Returns:** a `LeaveOneOut`, which prints itself and names the data whose terms cannot be trusted.
        """
        return cross_validate(self._known_target("loo"), self.posterior, num_draws, seed)

    def check(self, num_draws: int | None = None, seed: int = 0) -> "ModelCheck":
        """Does the model fit its data? Observed responses beside responses simulated at a draw of the posterior.

        **Arguments:**

        - `num_draws`: simulated sets; 1000, and down to 200 where there are more than 4000 responses.

        **Returns:** a `ModelCheck`, which prints itself; `ok` is false with a probability of 1% at most where the model
        is right and q is the posterior. Computed once for each `num_draws` and `seed`.
        """
        from provi.diagnostics.check import check_model

        target = self._known_target("check")
        if (num_draws, seed) not in self._checked:
            names = () if self.description is None else tuple(name for name, _, _ in self.description.inputs)
            self._checked[num_draws, seed] = check_model(target, self.posterior, num_draws, seed, names)
        return self._checked[num_draws, seed]

    def _known_target(self, method: str) -> Any:
        if self.target is None:
            raise ValueError(f"{method} needs the target: provi.load(path, target=target).")
        return self.target

    def save(self, path: str | Path, *, target: bool | None = None) -> None:
        """Write the fit to one safetensors file, which `provi.load(path)` reads back.

        **Arguments:**

        - `target`: whether the file holds the target, with its data, so that a loaded fit predicts and summarises
          without it. If not given, up to 256 MiB; False writes no data. Targets with functions of yours in them
          (`LogDensity`, `UserLikelihood`) and models of other packages cannot be held: `provi.load(path, target)`.
        """
        from provi.result.storage import save

        save(self, path, target)

    def __str__(self) -> str:
        certificate = self.certificate
        gap = "no bound on the gap" if certificate.gap is None else f"gap at most {at_most(certificate.gap)} nats"
        level = "" if certificate.confidence is None else f", confidence {certificate.confidence:g}"
        lines = [f"Fit of {len(self.posterior.names)} parameters: {self.message or self.outcome.value}."]
        if not certificate.opening:
            lines.append(f"ELBO {self.elbo} nats; {gap} ({certificate.status}{level}).")
        found = self.posterior.latest_diagnosis
        waits = isinstance(certificate.distance, Deferred) and certificate.distance.slow
        lines += [_ASK] if waits else certificate.lines[1:]
        if len(self.modes) > 1:
            lines.append(str(self.modes))
        return "\n".join(lines if found is None else [*lines, found.advice])

    def _repr_html_(self) -> str:
        summary = self.posterior.summary()
        return as_html(*str(self).splitlines(), summary.table(_ROWS), *summary.notes)

    def __repr__(self) -> str:
        return f"<provi.Fit: {self.outcome.name}, gap {self.certificate.gap}, ELBO {self.elbo}>"


def cross_validate(target: Any, posterior: Posterior, num_draws: int, seed: int) -> LeaveOneOut:
    """PSIS-LOO from `num_draws` draws of q; all observed sites of a model count, in the order of their names."""
    num_draws = check_count("num_draws", num_draws)
    size = sum(np.size(value) for value in target.observed_data.values())
    needed = 24 * num_draws * size  # the table of log-likelihoods, and what is made of it
    if needed > available_bytes():
        raise ValueError(
            f"num_draws={num_draws} for {size} data takes {needed / 2**30:.1f} GiB, more than is free: take fewer."
        )
    z = posterior.sample(num_draws, seed)
    parts = [target.log_likelihood(z[i : i + _AT_ONCE]) for i in range(0, num_draws, _AT_ONCE)]
    if not parts[0]:
        raise ValueError(
            f"loo: {type(target).__name__} does not know the log-likelihood of each datum. Take a model with a "
            f"likelihood, or call provi.diagnostics.leave_one_out with your own."
        )
    tables = [np.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(part)], axis=1) for part in parts]
    names = element_names({name: values[0] for name, values in parts[0].items()})
    log_p, log_q = log_densities(target, posterior.family, posterior.point, z)
    return leave_one_out(np.concatenate(tables), log_p - log_q, names)


def describe_call(target: Any, family: Any, algorithm: Any = None, **options: Any) -> str:
    """The call of `provi.fit` as text, an algorithm with the numbers of its settings. Cheap: no data are read.

    **Arguments:**

    - `options`: keyword arguments of `provi.fit`, as they were given or filled in; None is left out.
    """
    lines = [f"target,  # {type(target).__name__}, {target.dim} parameters"]
    lines.append(f"family,  # {type(family).__name__}: base {family.base.name}, scale {family.scale}")
    if algorithm is not None:
        lines.append(f"{_settings(algorithm)},")
    lines += [f"{name}={value!r}," for name, value in options.items() if value is not None]
    return "provi.fit(\n" + "".join(f"    {line}\n" for line in lines) + ")"


def _settings(algorithm: Any) -> str:
    """The algorithm as code that is near to what makes it; a theorem's plan is named, not printed."""
    settings = []
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if field.name != "guarantee" and value is not None:
            text = eqx.tree_pformat(jax.tree.map(_scalar, value), short_arrays=False, width=10_000)
            settings.append(f"{field.name}={' '.join(text.split())}")
    plan = algorithm.guarantee
    planned = "" if plan is None else f"  # from_theorem: {plan.theorem}, {plan.num_steps} steps"
    return f"{type(algorithm).__name__}({', '.join(settings)}){planned}"


def _scalar(leaf: Any) -> Any:
    """A number instead of an array without axes, which prints more plainly."""
    is_scalar = isinstance(leaf, jax.Array | np.ndarray | np.generic) and np.ndim(leaf) == 0
    return np.asarray(leaf).item() if is_scalar else leaf
