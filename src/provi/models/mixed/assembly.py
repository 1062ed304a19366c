"""A mixed model put together: formula, table, family and priors as a `provi.targets.LatentGaussian`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from provi.frontends.formula.design import Design, read_design
from provi.models.mixed.families import Observed, family_name, read_observed
from provi.models.mixed.priors import Priors, choose_priors
from provi.result.description import ModelDescription

_LISTED = 8


@dataclasses.dataclass(frozen=True)
class Assembly:
    """All that is known before the fit; it prints as what is modelled."""

    design: Design
    observed: Observed
    priors: Priors

    def target(self) -> Any:
        """The latent Gaussian model."""
        from provi.targets import LatentGaussian

        fixed, design, observed = self.priors.fixed, self.design, self.observed
        return LatentGaussian(
            observed.y,
            observed.family,
            fixed=fixed.matrix(design.fixed) if fixed.names else None,
            fixed_names=fixed.target_names if fixed.names else None,
            fixed_scale=fixed.scale if fixed.names else 1.0,
            blocks=list(self.blocks().values()),
            offset=design.offset + fixed.offset(design.fixed),
            weights=observed.weights,
            trials=observed.trials,
            likelihood_priors=self.priors.likelihood,
        )

    def blocks(self) -> dict[str, Any]:
        """The blocks of effects by name."""
        from provi.targets import latent

        found: dict[str, Any] = {}
        for group in self.design.groups:
            found[group.name] = latent.Independent(
                group.index,
                covariates=group.covariates,
                size=len(group.factor.levels),
                scale=self.priors.scales[group.name],
                name=group.name,
                levels=group.factor.labels,
                labels=group.effects,
                **self.priors.others[group.name],
            )
        for term in self.design.structured:
            found[term.name] = term.block(self.priors.scales[term.name], **self.priors.others[term.name])
        return found

    def description(self) -> ModelDescription:
        """What is modelled, for reports and files."""
        design, observed = self.design, self.observed
        facts = [
            ("response", f"{design.response.name}: {observed.words}"),
            ("likelihood", f"{observed.family}, link {observed.link}"),
            ("data", design.rows.words),
            *(("group", group.words) for group in design.groups),
            *(("term", term.words) for term in design.structured),
        ]
        references = design.encoding.references
        if references:
            facts.append(("reference levels", ", ".join(f"{name} = {level}" for name, level in references.items())))
        facts += [(f"prior of {name}", words) for name, words in self.priors.words.items()]
        return ModelDescription(f"Mixed model of {design.response.name}.", design.parsed.text, tuple(facts))

    def lines(self) -> list[str]:
        """What is modelled, for people: formula, family, rows, groups, reference levels, priors."""
        design, observed = self.design, self.observed
        said = [
            f"Formula: {design.parsed.text}",
            f"Family: {observed.family}, link {observed.link}",
            f"Response {design.response.name!r}: {observed.words}",
            f"Data: {design.rows.words}",
        ]
        said += [f"Group {group.words}" for group in design.groups]
        said += [term.words for term in design.structured]
        references = design.encoding.references
        if references:
            said.append(f"Reference levels: {', '.join(f'{name} = {level}' for name, level in references.items())}")
        width = max(map(len, self.priors.words), default=0)
        return [*said, "Priors:", *(f"  {name:<{width}}  {words}" for name, words in self.priors.words.items())]


def assemble(
    formula: str,
    data: Any,
    family: Any,
    *,
    priors: Mapping[str, Any] | None = None,
    weights: Any = None,
    graphs: Mapping[str, Any] | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> Assembly:
    """Read formula and table, check the responses, choose the priors. Cheap: nothing is fitted or compiled."""
    name = family_name(family)
    design = _distinct(read_design(formula, data, weights=weights, graphs=graphs, namespace=namespace))
    observed = read_observed(name, design.response, design.offset)
    chosen = choose_priors(design, observed, priors)
    if not chosen.fixed.names and not design.groups and not design.structured:
        raise ValueError(f"The formula has no effects: {formula}")
    return Assembly(design, observed, chosen)


def _distinct(design: Design) -> Design:
    """A group that is called as a fixed effect, as in 'y ~ year + (1 | year)', gets a name of its own."""
    groups = tuple(
        dataclasses.replace(group, name=f"group {group.name}") if group.name in design.encoding.names else group
        for group in design.groups
    )
    return dataclasses.replace(design, groups=groups)


def row_labels(data: Any, kept: np.ndarray | None = None) -> Any:
    """The index of a pandas frame, for what is said about its rows; else 0, 1, ..."""
    index = data.index if hasattr(data, "index") and hasattr(data, "iloc") else None
    if index is None:
        return None if kept is None else np.flatnonzero(kept)
    return index if kept is None else index[kept]
