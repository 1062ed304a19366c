"""What was fitted, in words: a description that goes with a fit, into its report and its file."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_LISTED = 8
_KINDS = {
    "NumPyroTarget": "NumPyro model",
    "NumPyroFiniteSum": "NumPyro model",
    "PyMCTarget": "PyMC model",
    "StanTarget": "Stan model",
    "StudentTRegression": "Student-t regression",
}


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """What was fitted, as plain data: it can be printed, and written as JSON.

    - `words`: a sentence. - `formula`: the model as a formula, where there is one.
    - `facts`: pairs (what, in words): likelihood, priors, rows left out and why, hyperparameters, ...
    - `columns`: pairs (column, how it entered). - `inputs`: of each feature, in the model's order, its name, centre and
      scale, and `response` likewise: what people know is centre + scale * the model's number.
    """

    words: str
    formula: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, float, float], ...] = ()
    response: tuple[str, float, float] | None = None

    def __str__(self) -> str:
        lines = [self.words, *([] if self.formula is None else [self.formula])]
        lines += [f"{name}: {words}" for name, words in self.facts]
        return "\n".join([*lines, *(f"  {name}: {words}" for name, words in self.columns)])

    def to_dict(self) -> dict[str, Any]:
        """Texts, lists and None."""
        pairs = {name: [list(pair) for pair in getattr(self, name)] for name in ("facts", "columns")}
        return {
            "words": self.words,
            "formula": self.formula,
            **pairs,
            "inputs": [list(feature) for feature in self.inputs],
            "response": None if self.response is None else list(self.response),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "ModelDescription":
        """The inverse of `to_dict`."""
        facts, columns = (tuple((str(a), str(b)) for a, b in data.get(name, ())) for name in ("facts", "columns"))
        inputs = tuple((str(name), float(centre), float(scale)) for name, centre, scale in data.get("inputs", ()))
        found = data.get("response")
        response = None if found is None else (str(found[0]), float(found[1]), float(found[2]))
        return ModelDescription(data["words"], data.get("formula"), facts, columns, inputs, response)


def describe(fit: Any) -> ModelDescription | None:
    """What the fit carries, else what its target says of itself; None without either."""
    if fit.description is not None:
        return fit.description
    return None if fit.target is None else describe_target(fit.target)


def describe_target(target: Any) -> ModelDescription:
    """What a target says of itself: its kind, its formula, likelihood and priors."""
    likelihood, latent = getattr(target, "likelihood", None), hasattr(target, "hyperpriors")
    kind = _KINDS.get(type(target).__name__, _spaced(type(target).__name__))
    facts: list[tuple[str, str]] = []
    if likelihood is not None:
        facts.append(("response", likelihood.name if latent else likelihood_words(likelihood.plain)))
        own = [word for word in ("offset", "weights") if getattr(target, word, None) is not None]
        if own and not hasattr(target, "fixed_scale"):
            facts.append(("of each row", f"{' and '.join(own)} of its own"))
    if getattr(target, "kernel", None) is not None:
        facts += _process_facts(target)
        words = f"{kind}: a function of {target.inputs.shape[1]} inputs, {target.num_terms} data."
        return ModelDescription(words, "y ~ f(x), f ~ GP(mean, kernel)", tuple(facts))
    if latent and hasattr(target, "fixed_scale"):
        return _latent(target, facts)
    prior, design = getattr(target, "prior", getattr(target, "class_prior", None)), getattr(target, "design", None)
    if prior is not None and design is not None:
        # Of several classes each but the first has such coefficients.
        names = getattr(target, "column_names", target.parameter_names)
        each = f", for each of {', '.join(target.classes[1:])}" if hasattr(target, "classes") else ""
        facts.append(("priors", prior_words(prior, names) + each))
        numbers = target.hyperpriors if latent else {}
        facts += [(f"prior of {name}", _prior_text(own)) for name, own in numbers.items()]
        facts.append(("data", f"{target.num_terms} rows"))
        return ModelDescription(f"{kind}, {len(names)} coefficients.", _linear_formula(names), tuple(facts))
    facts += [(f"data {name!r}", f"{np.size(part)} numbers") for name, part in target.observed_data.items()]
    words = f"{kind}, {target.dim} free parameters: {_listed(_variables(target.parameter_names))}."
    if not facts:
        facts.append(("prior and data", "inside the log density, which ProVI does not read"))
    return ModelDescription(words, None, tuple(facts))


def likelihood_words(likelihood: Any) -> str:
    """The likelihood by name, with its numbers."""
    numbers = []
    for field in dataclasses.fields(likelihood):
        value = np.asarray(getattr(likelihood, field.name)) if field.name != "function" else np.zeros(0)
        if value.dtype.kind == "f" and value.ndim == 0:
            numbers.append(f"{field.name} {float(value):.4g}")
    return likelihood.name + (f"; {', '.join(numbers)}" if numbers else "")


def prior_words(prior: Any, names: Sequence[str]) -> str:
    """A Gaussian prior in words, coefficients with the same one together."""
    mean, factor = np.asarray(prior.mean, np.float64), np.asarray(prior.factor, np.float64)
    deviation = np.sqrt((factor**2).sum(axis=1)) if factor.ndim == 2 else np.broadcast_to(factor, mean.shape)
    groups: dict[tuple[str, str], list[str]] = {}
    for name, centre, spread in zip(names, mean, deviation, strict=True):
        groups.setdefault((f"{centre:.4g}", f"{spread:.4g}"), []).append(name)
    said = [
        f"N({centre}, {spread}²) on {'every coefficient' if len(groups) == 1 else _listed(held)}"
        for (centre, spread), held in groups.items()
    ]
    more = f"; and {len(said) - _LISTED} more kinds" if len(said) > _LISTED else ""
    correlated = factor.ndim == 2 and np.count_nonzero(factor) > np.count_nonzero(np.diagonal(factor))
    return "; ".join(said[:_LISTED]) + more + ("; correlated by a given covariance matrix" if correlated else "")


def _process_facts(target: Any) -> list[tuple[str, str]]:
    found = [("kernel", kernel_words(target.kernel))]
    if getattr(target, "mean", None) is not None and np.ndim(target.mean) == 0:
        found.append(("prior mean of the function", f"{float(target.mean):.4g}"))
    if getattr(target, "inducing", None) is not None:
        found.append(("inducing points", str(len(target.inducing))))
    return found


def kernel_words(kernel: Any) -> str:
    """The kernel with its numbers."""
    terms = getattr(kernel, "terms", getattr(kernel, "factors", None))
    if terms is not None:
        sign = " + " if type(kernel).__name__ == "Sum" else " x "
        return sign.join(kernel_words(term) for term in terms)
    numbers = []
    for field in dataclasses.fields(kernel):
        value = getattr(kernel, field.name)
        if hasattr(value, "dtype") and np.asarray(value).dtype.kind == "f":
            shown = [f"{x:.4g}" for x in np.ravel(np.asarray(value))]
            name = field.name.replace("_", " ")
            numbers.append(f"{name} {_listed(shown) if len(shown) < 2 else '[' + _listed(shown) + ']'}")
    return f"{_spaced(type(kernel).__name__).lower()} ({', '.join(numbers)})"


def _latent(target: Any, facts: list[tuple[str, str]]) -> ModelDescription:
    fixed = [
        f"N(0, {scale:.4g}²) on {name}" for name, scale in zip(target.fixed_names, target.fixed_scale, strict=True)
    ]
    blocks = [f"{block.name} ({_spaced(type(block).__name__).lower()}, {block.size})" for block in target.blocks]
    if fixed:
        facts.append(
            ("priors of fixed effects", "; ".join(fixed[:_LISTED]) + ("; ..." if len(fixed) > _LISTED else ""))
        )
    if blocks:
        facts.append(("effects that vary", _listed(blocks)))
    facts += [(f"prior of {name}", _prior_text(prior)) for name, prior in target.hyperpriors.items()]
    facts.append(("data", f"{target.num_rows} rows"))
    formula = "y ~ " + " + ".join([*target.fixed_names, *(block.name for block in target.blocks)])
    words = (
        f"Latent Gaussian model, {len(target.fixed_names)} fixed effects, {len(target.hyperpriors)} hyperparameters."
    )
    return ModelDescription(words, formula, tuple(facts))


def _prior_text(prior: Any) -> str:
    numbers = [
        f"{float(np.asarray(getattr(prior, field.name))):.4g}"
        for field in dataclasses.fields(prior)
        if np.asarray(getattr(prior, field.name)).dtype.kind == "f" and np.ndim(getattr(prior, field.name)) == 0
    ]
    return f"{_spaced(type(prior).__name__)}({', '.join(numbers)})"


def _linear_formula(names: Sequence[str]) -> str:
    terms = ["1" if name == "intercept" else name for name in names]
    shown = terms[:40] + (["..."] if len(terms) > 40 else [])
    return f"y ~ {' + '.join(shown)}" + ("" if "1" in terms else " - 1")


def _variables(names: Sequence[str]) -> list[str]:
    """The names without their indices, each once."""
    return list(dict.fromkeys(name.partition("[")[0] for name in names))


def _spaced(name: str) -> str:
    """'LogisticRegression' as 'Logistic regression'; short names in capitals stay."""
    words = "".join(
        f" {c.lower()}" if c.isupper() and k and not name[k - 1].isupper() else c for k, c in enumerate(name)
    )
    return words.replace("gaussian", "Gaussian").replace("poisson", "Poisson")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
