"""`MixedModel`: a formula and a table in, the posterior of a mixed model with its certificate out."""

import dataclasses
import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from provi.core.arguments import check_count, double_precision
from provi.fit import fit
from provi.frontends.formula.syntax import parse_formula
from provi.frontends.formula.tables import column_names, pandas_module
from provi.models.mixed import tables
from provi.models.mixed.assembly import Assembly, assemble, row_labels
from provi.models.mixed.families import draw_response, mean_response
from provi.models.mixed.prediction import Draws, predictor_blocks, training_rows
from provi.result import storage
from provi.result.evidence import Comparison, compare
from provi.runtime.record import Outcome

_KINDS = ("mean", "latent", "response", "draws")
_NEW_LEVELS = ("population", "sample", "error")
_DRAWS, _EFFECTS_AT_ONCE = 2000, 2**26
_LARGEST_DRAWS = 2**28
"""Numbers that `predict(kind="draws")` may return: 2 GiB."""


class MixedModel(BaseEstimator):
    r"""A generalised linear mixed model, or any latent Gaussian model, written as a formula.

        model = provi.models.MixedModel("y ~ x + (1 + x | group)", data, family="bernoulli").fit()
        print(model); model.summary(); model.ranef(); model.predict(new_data)

    $E[y] = g^{-1}(\eta)$, $\eta = x'\beta + \sum_k z_k'u_k + $ offset, with Gaussian effects u given a few scales and
    correlations. These are integrated numerically, and the Gaussian of $\beta$ and u at each of their values has its
    evidence bracketed by a proof: see `provi.targets.LatentGaussian`.

    Learned: `fit_` (the `provi.Fit`), `certificate_`, `assembly_` (formula, data and priors), `num_dropped_` (rows
    with missing entries).
    """

    # scikit-learn's rule: the constructor takes anything and stores it, `fit` checks. Hence no types here.
    def __init__(
        self,
        formula: Any,
        data: Any = None,
        *,
        family: Any = "gaussian",
        priors: Any = None,
        weights: Any = None,
        graphs: Any = None,
        namespace: Any = None,
        tol: Any = 0.01,
        confidence: Any = 0.99,
        budget: Any = None,
        progress: Any = False,
        random_state: Any = 0,
        checkpoint: Any = None,
        checkpoint_seconds: Any = 30.0,
        resume: Any = False,
    ):
        """**Arguments:**

        - `formula`: "y ~ x1 + f + (1 + x1 | group)", see `provi.frontends.formula.syntax` for the language.
        - `data`: a pandas or polars frame, or a dictionary of columns; may be given to `fit` instead.
        - `family`: "gaussian", "bernoulli", "probit", "binomial", "poisson", "negative-binomial", "ordinal", "weibull",
          "exponential" or "log-normal".
        - `priors`: by name, in place of the defaults that `print(model)` shows: `{"x1": 1.0, "sd(group)": 0.5}`.
        - `weights`: the name of a column, or one number a row: how often a row counts.
        - `graphs`: edges of `besag(region)` and `bym2(region)`, `{"region": pairs}`.
        - `namespace`: functions and variables of yours that the formula uses, `{"knots": [1, 2]}`.
        - `tol`, `confidence`, `budget`, `checkpoint`, `checkpoint_seconds`, `resume`: those of `provi.fit`.
        """
        self.formula = formula
        self.data = data
        self.family = family
        self.priors = priors
        self.weights = weights
        self.graphs = graphs
        self.namespace = namespace
        self.tol = tol
        self.confidence = confidence
        self.budget = budget
        self.progress = progress
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.checkpoint_seconds = checkpoint_seconds
        self.resume = resume

    def fit(self, data: Any = None, y: Any = None) -> "MixedModel":
        """Fit to `data`, or to that of the constructor; `y`: the response, where the table is without it."""
        table = self.data if data is None else data
        if y is not None:
            table = _with_response(table, self.formula, y)
        self.assembly_ = self._assemble(table)
        rows = self.assembly_.design.rows
        self.num_dropped_, self._labels = rows.num_dropped, row_labels(table, rows.kept)
        if rows.num_dropped:
            warnings.warn(f"{rows.words}.", UserWarning, stacklevel=2)
        target = self.assembly_.target()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.fit_ = fit(
            target, tol=self.tol, confidence=self.confidence, budget=self.budget, seed=seed, progress=self.progress,
            checkpoint=self.checkpoint, checkpoint_seconds=self.checkpoint_seconds, resume=self.resume,
        )  # fmt: skip
        self.fit_ = dataclasses.replace(self.fit_, description=self.assembly_.description())
        if not np.isfinite(float(self.fit_.elbo)):
            raise ValueError(f"The fit failed ({self.fit_.message}): scale the covariates, or take narrower priors.")
        self.certificate_ = self.fit_.certificate
        if self.fit_.outcome not in (Outcome.TOLERANCE, Outcome.CONDITIONAL):
            warnings.warn(
                f"The fit did not reach tol={self.tol} nats ({self.fit_.message}); certificate_ says what is proven.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _assemble(self, table: Any) -> Assembly:
        return assemble(
            self.formula, table, self.family, priors=self.priors, weights=self.weights, graphs=self.graphs,
            namespace=self.namespace,
        )  # fmt: skip

    @property
    def posterior(self) -> Any:
        """The posterior of the fit, by names of the target: its intercept is that at the covariates' means."""
        check_is_fitted(self)
        return self.fit_.posterior

    def draws(self, num_draws: int = _DRAWS, seed: int = 0) -> dict[str, np.ndarray]:
        """Draws of all parameters by name, the fixed effects as in the formula, the intercept at x = 0."""
        found = self._draws(num_draws, seed)
        fixed = self.assembly_.priors.fixed
        beta = fixed.original(found.delta)
        rest = {name: values for name, values in found.values.items() if name not in fixed.target_names}
        return {**{name: beta[:, k] for k, name in enumerate(fixed.names)}, **self._numbers(found, rest)}

    def _draws(self, num_draws: int, seed: int) -> Draws:
        check_is_fitted(self)
        values = self.posterior.draws(check_count("num_draws", num_draws), check_count("seed", seed, minimum=0))
        return Draws(values, self.assembly_.priors.fixed, num_draws)

    def _numbers(self, draws: Draws, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Cut points at x = 0, where the target has them at the covariates' means."""
        shift = (draws.delta + draws.fixed.mean) @ draws.fixed.centre
        moved = self.assembly_.observed.family == "ordinal"
        return {
            name: value + shift if moved and name.startswith("cutpoint[") else value for name, value in values.items()
        }

    def summary(
        self, probability: float = 0.94, var_names: str | Sequence[str] | None = None, *, ratios: bool = False
    ) -> Any:
        """Mean, standard deviation and central interval of fixed effects, scales and correlations; prints itself.

        - `var_names`: the rows of these names, or `"~x"` for all but x.
        - `ratios`: also exp(effect) with its interval: odds, rate, hazard or time ratios.
        """
        check_is_fitted(self)
        found = tables.summarise(self.posterior, self.assembly_, probability).select(var_names)
        return tables.with_ratios(found, self.assembly_) if ratios else found

    def ranef(self, probability: float = 0.94) -> Any:
        """The effects that vary: a frame with a row for each level and effect."""
        check_is_fitted(self)
        return tables.effects_frame(self.posterior, self.assembly_, probability)

    @property
    def random_effects(self) -> Any:
        """`ranef()`."""
        return self.ranef()

    def predict(
        self,
        new_data: Any = None,
        *,
        kind: str = "mean",
        interval: float = 0.9,
        new_levels: str | None = None,
        num_draws: int | None = None,
        seed: int = 0,
    ) -> Any:
        """Predictions for the rows of a table, or for those of the fit, from draws of the posterior.

        **Arguments:**

        - `kind`: "mean", the expected response (of binomial ones the probability, of ordinal ones that of each
          category); "latent", the predictor; "response", new responses; "draws", the expected responses of each draw.
        - `interval`: the probability of the central interval.
        - `new_levels`: of groups that the fit has not seen: "population", no effect; "sample", an effect drawn from
          its law; "error". If not given, "population" with a warning.
        - `num_draws`: of the posterior; 2000, and fewer where there are more than 30,000 effects.

        **Returns:** a pandas frame with `mean`, `sd`, `lower` and `upper`; for "draws" an array (draws, rows).
        """
        check_is_fitted(self)
        if kind not in _KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, _KINDS))}, not {kind!r}.")
        if not 0 < interval < 1:
            raise ValueError(f"interval must lie between 0 and 1, not {interval}.")
        design = self.assembly_.design
        rows = training_rows(design) if new_data is None else design.encode(new_data)
        self._check_new_levels(rows, new_levels)
        labels = self._labels if new_data is None else row_labels(new_data)
        count = self._usual_draws() if num_draws is None else check_count("num_draws", num_draws)
        if kind == "draws" and count * len(rows.offset) > _LARGEST_DRAWS:
            raise ValueError(f"{count} draws of {len(rows.offset)} rows take over 2 GiB: fewer rows, or num_draws=.")
        draws = self._draws(count, seed)
        kernels = self._kernel_blocks()
        blocks = predictor_blocks(design, draws, rows, kernels, new_levels == "sample", seed)
        return self._predictions(blocks, draws, rows, kind, interval, labels, seed)

    def _usual_draws(self) -> int:
        """So many that all effects of all draws take 512 MiB at most."""
        return int(np.clip(_EFFECTS_AT_ONCE // max(self.fit_.target.num_effects, 1), 200, _DRAWS))

    def _kernel_blocks(self) -> dict[str, Any]:
        """The blocks of Gaussian processes, whose kernels predict at new inputs."""
        if not any(term.kind == "gp" for term in self.assembly_.design.structured):
            return {}
        return self.assembly_.blocks()

    def _check_new_levels(self, rows: Any, new_levels: str | None) -> None:
        if new_levels is not None and new_levels not in _NEW_LEVELS:
            raise ValueError(f"new_levels must be one of {', '.join(map(repr, _NEW_LEVELS))}, not {new_levels!r}.")
        structured = {term.name: term for term in self.assembly_.design.structured}
        for name in rows.unseen:
            if name in structured:
                until = ": name it when fitting, until=" if structured[name].kind not in ("besag", "bym2") else ""
                raise ValueError(f"{name} has no level {rows.unseen[name][0]!r}{until}.")
        if rows.unseen and new_levels == "error":
            raise ValueError(
                f"The fit has not seen the levels {rows.unseen_words}; new_levels='population' or 'sample'."
            )
        if rows.unseen and new_levels is None:
            warnings.warn(
                f"The fit has not seen the levels {rows.unseen_words}: predicted without an effect of theirs "
                f"(new_levels='population'); 'sample' draws one.",
                UserWarning,
                stacklevel=3,
            )

    def _predictions(
        self, blocks: Any, draws: Draws, rows: Any, kind: str, interval: float, labels: Any, seed: int
    ) -> Any:
        family, rng, parts = self.assembly_.observed.family, np.random.default_rng([seed, 1]), []
        for some, eta in blocks:
            trials = None if rows.trials is None else rows.trials[some]
            if kind == "response":
                values = draw_response(family, eta, draws.values, trials, rng)
            else:
                values = eta if kind == "latent" else mean_response(family, eta, draws.values)
            parts.append(values if kind == "draws" else tables.moments(values, interval))
        if kind == "draws":
            return np.concatenate(parts, axis=1)
        found = np.concatenate(parts, axis=0)
        return tables.prediction_frame(found, labels, self.assembly_.observed.classes)

    def predict_proba(self, new_data: Any = None, **options: Any) -> np.ndarray:
        """Predictive probabilities, a column for each class; of families with classes."""
        classes = self.classes_
        found = self.predict(new_data, kind="mean", **options)
        if len(classes) > 2 or self.assembly_.observed.family == "ordinal":
            return found.pivot(columns="category", values="mean")[[str(name) for name in classes]].to_numpy()
        one = found["mean"].to_numpy()
        return np.stack([1 - one, one], axis=1)

    @property
    def classes_(self) -> np.ndarray:
        """The labels of the classes, of families that have some."""
        check_is_fitted(self)
        classes = self.assembly_.observed.classes
        if classes is None:
            raise AttributeError(f"A model of the family {self.assembly_.observed.family!r} has no classes.")
        return np.asarray(classes)

    def compare(self, *others: "MixedModel", names: Any = None) -> Comparison:
        """Which model has the larger evidence, and by how much at least: `provi.compare` of the fits."""
        models = (self, *others)
        for model in models:
            check_is_fitted(model)
        titles = [model.formula for model in models] if names is None else list(names)
        if len(set(titles)) < len(titles):
            titles = [f"{title} ({model.family})" for title, model in zip(titles, models, strict=True)]
        if len(set(titles)) < len(titles):
            titles = None
        return compare(*(model.fit_ for model in models), names=titles)

    def plot_effects(self, *, probability: float = 0.94, most: int = 40) -> Any:
        """A matplotlib figure: fixed effects and, for each group, the effects of its levels in order."""
        from provi.models.mixed.plots import plot_effects

        check_is_fitted(self)
        return plot_effects(self.summary(probability), self.ranef(probability), self.assembly_, most)

    def to_arviz(self, num_draws: int = 1000, seed: int = 0) -> Any:
        """Draws by name with labelled axes, the data, and new responses, as ArviZ's container."""
        from provi.models.mixed.prediction import to_arviz

        check_is_fitted(self)
        return to_arviz(self, num_draws, seed)

    def report(self, path: str | Path, **options: Any) -> Path:
        """Write one HTML page about the fit; see `provi.Fit.report`."""
        check_is_fitted(self)
        from provi.report.html.page import write_report

        options.setdefault("title", f"{self.formula} ({self.assembly_.observed.family})")
        return write_report(self.fit_, path, summarise=self.summary, **options)

    def save(self, path: str | Path) -> None:
        """Write the model to one safetensors file, with the columns that it uses, for `MixedModel.load`.

        No code is stored: a model with a `namespace` of functions cannot be.
        """
        check_is_fitted(self)
        rows = self.assembly_.design.rows
        weights = self.weights if self.weights is None or isinstance(self.weights, str) else np.asarray(self.weights)
        given = {name: getattr(self, name) for name in ("formula", "family", "priors", "graphs", "namespace")}
        given["weights"] = weights[rows.kept] if isinstance(weights, np.ndarray) else weights
        given |= {name: getattr(self, name) for name in ("tol", "confidence", "random_state")}
        columns = {str(name): tables.packed_column(rows.frame[name]) for name in rows.frame}
        storage.save(self.fit_, path, None, {"mixed model": given, "columns": columns, "dropped": rows.num_dropped})

    @classmethod
    def load(cls, path: str | Path) -> "MixedModel":
        """Read a model written by `save`: it predicts and summarises as before, of the rows that it used."""
        found = storage.load_model(path)
        if not isinstance(found, dict) or "mixed model" not in found:
            raise ValueError(f"{path} is no mixed model: provi.load reads other fits.")
        pandas = pandas_module()
        try:
            columns = {name: tables.unpacked_column(column) for name, column in found["columns"].items()}
            frame = pandas.DataFrame(columns)
            model: Any = cls(data=frame, **found["mixed model"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} holds a mixed model of another version of ProVI ({error}).") from None
        model.assembly_ = model._assemble(frame)
        model.fit_ = storage.load(path)
        model.certificate_, model.num_dropped_ = model.fit_.certificate, found["dropped"]
        model._labels = row_labels(frame, model.assembly_.design.rows.kept)
        return model

    def __getstate__(self) -> Any:
        state: Any = super().__getstate__()
        if "fit_" in state:
            # What computes a certificate again cannot be pickled.
            certificate = dataclasses.replace(self.certificate_, recompute=None)
            state = {**state, "fit_": dataclasses.replace(self.fit_, certificate=certificate)}
            state["certificate_"] = certificate
        return {"pickled": pickle.dumps(state)}

    @double_precision
    def __setstate__(self, state: Any) -> None:
        # In double precision: JAX unpickles arrays as float32 for a user who has not enabled 64 bits.
        super().__setstate__(pickle.loads(state["pickled"]))

    def __str__(self) -> str:
        if hasattr(self, "fit_"):
            certificate = self.fit_.certificate
            fitted = [f"Fitted in {self.fit_.seconds:.1f} s: {self.fit_.message or self.fit_.outcome.value}."]
            return "\n".join([*self.assembly_.lines(), *fitted, *certificate.lines, "", str(self.summary())])
        if self.data is None:
            return f"Formula: {self.formula}\nFamily: {self.family}\nNot fitted; no data yet: fit(data)."
        return "\n".join([*self._assemble(self.data).lines(), "Not fitted yet: fit()."])

    def __repr__(self) -> str:
        return f"MixedModel({self.formula!r}, family={self.family!r})"


def _with_response(table: Any, formula: str, y: Any) -> dict[str, Any]:
    """The table with y as the response, for callers in scikit-learn's way: fit(X, y)."""
    parsed = parse_formula(formula)
    if len(parsed.response) != 1:
        raise ValueError("fit(data, y) is for a response that is one column; put it into the data instead.")
    pandas_module()
    columns = {name: table[name] for name in column_names(table)}
    return {**columns, parsed.response[0].column: y}
