"""`provi.fit`: choose, plan, run, report."""

import dataclasses
import importlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from provi.algorithms.base import AbstractAlgorithm, check_planned
from provi.certificates.build import with_guarantee, withdrawn
from provi.certificates.certificate import Certificate, check_declared
from provi.core.arguments import check_confidence, check_count, check_positive, double_precision
from provi.core.devices import chosen_mesh, local
from provi.core.lazy import is_instance
from provi.core.limits import NO_LIMIT, Clock
from provi.core.randomness import folded, key_of
from provi.families.base import AbstractFamily
from provi.result.fit import Estimate, Fit, describe_call
from provi.runtime.distributed import losses_named
from provi.runtime.record import Outcome
from provi.runtime.run import CHECKPOINT_SECONDS, RECORD_DRAWS, Budget, Run, as_budget, check_checkpoint, run
from provi.structures.base import AbstractStructure, Request, certificate_seed
from provi.targets.base import AbstractTarget

STRUCTURES = {
    "linear": "Linear",
    "dual": "Dual",
    "nested": "Nested",
    "black_box": "BlackBox",
    "richer": "Richer",
    "whitened": "WhitenedRounds",
}
"""Modules of `provi.structures` and their classes, in the order in which they are asked; the last takes every
location-scale family."""

_DEFAULT_STEPS = 2000
_ELBO_DRAWS, _ELBO_NUMBERS = 4096, 2**25  # fewer draws in many dimensions: 2^25 numbers are 256 MiB
_RAY_GRADIENTS = 500  # at most, but for densities that do not fall
_CERTIFICATE_GRADIENTS = (10_000, 200_000)  # after a run that the user planned: as many again, within these


@double_precision
@losses_named()
def fit(
    target: AbstractTarget,
    family: AbstractFamily | str | None = None,
    algorithm: AbstractAlgorithm | None = None,
    *,
    tol: float = 0.01,
    confidence: float = 0.99,
    budget: Budget | int | None = None,
    seed: int = 0,
    start: Any = None,
    starts: int | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float | int = CHECKPOINT_SECONDS,
    mesh: Any = None,
) -> Fit:
    """Fit the best member of `family` to `target`: minimise KL(q || posterior), i.e. maximise the ELBO.

    **Arguments:**

    - `target`: what to approximate, `provi.targets.LogisticRegression(X, y)`, `provi.targets.LogDensity(fn, dim)`, ...
    - `family`: default the Gaussian with full covariance (diagonal above 500 dimensions, 1000 for a linear model;
      a linear model with more columns than rows and a Gaussian process keep the full one, in dual form). Richer ones by
      name: "student" (heavy tails), "skewed" (skew and tails of each coordinate), "mixture" (over the modes), "flow"
      (couplings by small networks); "auto" takes the cheapest of all that is good enough by the weights of its draws,
      and `fit.message` says what was tried.
    - `algorithm`: e.g. `provi.algorithms.ProxSGD.from_theorem(target, family, budget=100_000)`. The default is the
      fastest method for the target's structure (`provi.fit.choose`), stopped by its certificate.
    - `tol`: nats. The default stops when the gap to the best member of the family is certified to be at most this.
    - `confidence`: of the certificate, where it is not deterministic.
    - `budget`: gradient evaluations, or a `provi.Budget` with steps, gradients or seconds. For a linear model
      an evaluation is a pass over the data.
      The certificate of an `algorithm` that you chose comes on top, but not of seconds, which are those of the whole
      fit: `provi.Budget` says what may overrun.
    - `start`: where to begin; a theorem's algorithm brings its own.
    - `starts`: from how many points to look for modes where the target is not proven to be log-concave: 16 (4 above
      1000 dimensions) if not given, 1 on a budget, which is no search. Also where log-concavity is declared: a second
      mode refutes it. `fit.modes` has what was found; `seed` changes the points.
    - `progress`: None shows a bar on a terminal.
    - `checkpoint`, `resume`: a file to go on from; saved after the first step, then every `checkpoint_seconds`, and at
      the end. The one before is kept, as `.previous`. Ctrl-C and SIGTERM end a fit with `Outcome.INTERRUPTED`.
    - `mesh`: devices to divide the rows of the data among, or else the draws: a `jax.sharding.Mesh`, or a number of
      devices. None or "auto" takes those that the arrays lie on already, or all local ones where the data are large;
      1 takes one. The answer is the same up to the order of sums.

    **Returns:** a `Fit`. Stopping early is no exception: see `fit.outcome` and `fit.message`. What was declared of the
    target and is refuted is one, with the place: `provi.certificates.RefutedDeclarationError`.
    """
    began = time.monotonic()
    if isinstance(family, str):
        named = {"tol": tol, "confidence": confidence, "budget": budget, "seed": seed, "starts": starts}
        named |= {"progress": progress, "checkpoint": checkpoint, "resume": resume}
        named |= {"checkpoint_seconds": checkpoint_seconds, "mesh": mesh}
        return _fit_named(target, family, algorithm, start, named)
    _check_arguments(target, family, algorithm)
    seed, tol = check_count("seed", seed, minimum=0), check_positive("tol", tol)
    check_confidence(confidence)
    limits = as_budget(budget)
    if limits.seconds is not None and jax.process_count() > 1:
        raise ValueError("budget.seconds is not for several processes, whose clocks differ: give steps or gradients.")
    starts = _check_starts(starts, start, algorithm)
    structure = choose(target, family)
    check_checkpoint(checkpoint, checkpoint_seconds, resume)
    options: dict[str, Any] = {"progress": progress, "checkpoint": checkpoint, "resume": resume}
    options["checkpoint_seconds"] = checkpoint_seconds
    asked = {"tol": tol, "confidence": confidence, "budget": budget, "seed": seed, "start": start, "starts": starts}
    call = describe_call(target, structure.family, algorithm, **asked)
    devices = chosen_mesh(mesh, structure.target)
    shown, structure = structure, structure if devices is None else structure.on(devices)
    clock = NO_LIMIT if limits.seconds is None else structure.measured(Clock(began + limits.seconds))
    request = Request(float(tol), float(confidence), limits, seed, options, clock, starts)
    if algorithm is None:
        with structure.threads():
            answer = structure.run(start, request)
        return _as_fit(structure, shown, answer.run, answer.certificate, request, None, call, answer.modes)
    result = _run_given(structure, algorithm, start, {"seed": seed, "budget": request.run_budget(), **options})
    certificate = structure.certificate(
        result.point,
        confidence=confidence,
        seed=certificate_seed(seed, 0),
        wanted=tol,
        max_gradients=int(np.clip(result.gradient_evaluations, *_CERTIFICATE_GRADIENTS)),
        clock=clock,
    )
    rejected = int(result.history["rejected_steps"][-1]) if len(result.history) else 0
    certificate = with_guarantee(certificate, structure.family, algorithm.guarantee, result.num_steps, rejected)
    return _as_fit(structure, shown, result, certificate, request, algorithm.guarantee, call)


def _fit_named(target: AbstractTarget, name: str, algorithm: Any, start: Any, options: dict[str, Any]) -> Fit:
    """The fit with a family of this name, or with the one that `family="auto"` finds."""
    from provi.structures.automatic import fit_automatically, named_family  # few need it

    _check_arguments(target, None, algorithm)
    if name != "auto":
        return fit(target, named_family(name, target.dim), algorithm, start=start, **options)
    for word, given in (("algorithm", algorithm), ("start", start), ("checkpoint", options["checkpoint"])):
        if given is not None:
            raise ValueError(f"{word}= is for one family: with family='auto' leave it out.")

    def fit_one(family: Any, begin: Any) -> Fit:
        starts = options["starts"] if begin is None else None
        return fit(target, family, start=begin, **{**options, "starts": starts})

    return fit_automatically(fit_one, target)


def structures(target: AbstractTarget, family: Any) -> Iterator[type[AbstractStructure]]:
    """The classes of `STRUCTURES`, each imported when it is asked: a linear model does without the others.

    Nor are those asked that are plainly of other targets and families: importing them takes a tenth of a second.
    """
    for module, name in STRUCTURES.items():
        if module == "dual" and not _has_dual_form(target, family):
            continue
        if module == "nested" and target.latent_gaussian() is None:
            continue
        yield getattr(importlib.import_module(f"provi.structures.{module}"), name)


def _has_dual_form(target: AbstractTarget, family: Any) -> bool:
    return (
        is_instance(target, "provi.targets.linear_model", "AbstractLinearModel")
        or is_instance(target, "provi.targets.gaussian_process", "GaussianProcess")
        or is_instance(family, "provi.families.dual_gaussian", "DualGaussian")
    )


def choose(target: AbstractTarget, family: AbstractFamily | None = None) -> AbstractStructure:
    """The structure of `target` with `family`, or with the family that it would choose itself. Nobody asks again.

    | target and family | structure | method |
    | --- | --- | --- |
    | latent Gaussian model | `Nested` | hyperparameters on nodes, natural gradients of the effects at each |
    | Gaussian process; linear model with more columns than rows (dual family) | `Dual` | natural gradient in N-space |
    | linear model | `Linear` | natural gradient with exact expectations, up to 2000 dimensions |
    | any other, Gaussian with full covariance | `BlackBox` | Laplace start, stochastic natural gradient |
    | a richer family (`Student`, `Skewed`, `Flow`, `GaussianMixture`) | `Richer` | Gaussian fit, path gradients |
    | any other | `WhitenedRounds` | Laplace whitening, projected gradients with growing batches (MPSGD) |
    """
    member: Any = family
    if member is None:
        member = next(found for kind in structures(target, None) if (found := kind.default_family(target)) is not None)
    for kind in structures(target, member):
        if kind.fits(target, member):
            return kind(target, member)
    raise TypeError(f"family must be e.g. provi.families.Gaussian({target.dim}), not {type(member).__name__}.")


def _check_arguments(target: Any, family: Any, algorithm: Any) -> None:
    if not isinstance(target, AbstractTarget):
        raise TypeError(
            f"target must be a provi target, not {type(target).__name__}. "
            f"Wrap a log density: provi.targets.LogDensity(fn, dim)."
        )
    if family is not None and not isinstance(family, AbstractFamily):
        raise TypeError(f"family must be e.g. provi.families.Gaussian({target.dim}), not {family!r}.")
    if family is not None and family.dim != target.dim:
        raise ValueError(f"family has dimension {family.dim}, but the target has {target.dim}.")
    if algorithm is not None and not isinstance(algorithm, AbstractAlgorithm):
        raise TypeError(f"algorithm must be an instance such as provi.algorithms.ProxSGD(0.01), not {algorithm!r}.")


def _check_starts(starts: Any, start: Any, algorithm: Any) -> int | None:
    """The number of searches; None where it was not given. A `ValueError` where there is nothing to search for."""
    if starts is None:
        return None
    if start is not None:
        raise ValueError("starts= looks for a place to begin, and start= is one: give only one of them.")
    if algorithm is not None:
        raise ValueError("starts= is of the default method: an algorithm of your choice begins at start=.")
    return check_count("starts", starts)


def _run_given(structure: AbstractStructure, algorithm: AbstractAlgorithm, start: Any, options: dict[str, Any]) -> Run:
    """The run of an algorithm that the user chose, from the start and for the steps of its plan if it has one."""
    target, family, guarantee = structure.target, structure.family, algorithm.guarantee
    if guarantee is not None:
        check_planned(algorithm, target, family)
    if guarantee is not None and start is not None:
        raise ValueError("The theorem's bound starts from its own point: pass start= to from_theorem, not to fit.")
    point = guarantee.start if guarantee is not None else start or structure.first_point()
    structure.check_start(point)
    algorithm, fed = structure.fed(algorithm, options["seed"])
    algorithm = algorithm.resolve(target, family)
    num_steps = guarantee.num_steps if guarantee is not None else _planned_steps(options["budget"])
    return run(algorithm, target, family, point, num_steps=num_steps, **options, **fed)


def _planned_steps(budget: Budget) -> int:
    """Without a plan the budget decides; without either, a fixed number of steps."""
    if budget.steps is not None:
        return budget.steps
    return _DEFAULT_STEPS if budget.gradients is None and budget.seconds is None else 2**31


def _as_fit(
    structure: AbstractStructure,
    shown: AbstractStructure,
    result: Run,
    certificate: Certificate,
    request: Request,
    guarantee: Any,
    call: str,
    modes: Any = None,
) -> Fit:
    """The answer; `shown` is the structure of the user's own target and family, on whatever devices it was fitted."""
    target, family, elbo, clock = structure.target, structure.family, result.elbo, request.clock
    key = folded(key_of(request.seed), 2**31 - 1)  # a stream that no step uses
    draws = int(np.clip(_ELBO_NUMBERS // target.dim, 128, _ELBO_DRAWS))
    if clock.limited and (clock.gradient == 0 or not clock.pays_for(draws, programs=2)):
        draws = RECORD_DRAWS  # of which there is a compiled program
    if elbo is None:
        elbo = structure.elbo(key, result.point, draws)
    estimate, where = Estimate(float(elbo[0]), float(elbo[1])), None
    if not (math.isfinite(estimate.value) and math.isfinite(estimate.standard_error)):
        from provi.diagnostics.integrability import describe_nonfinite  # for those who need it

        where = describe_nonfinite(target, family, key, result.point, draws)
    improper = None
    # A gap that is known to be finite, which takes a log-concave density, says that there is a posterior.
    grounded = certificate.gap is not None and certificate.status != "conditional" and result.outcome.ok
    if not grounded and clock.pays_for(_RAY_GRADIENTS, programs=2):
        improper = structure.improper_direction(result.point, seed=request.seed)
    result, certificate = _examined(result, certificate, estimate, where, improper)
    point = result.point if shown is structure else local(result.point)
    found = Fit(
        posterior=dataclasses.replace(shown.posterior(point), modes=modes),
        elbo=estimate,
        certificate=certificate,
        outcome=result.outcome,
        message=result.message,
        history=result.history,
        num_steps=result.num_steps,
        gradient_evaluations=result.gradient_evaluations,
        seconds=result.seconds,
        target=shown.target,
        guarantee=guarantee,
        call=call,
        encoding=getattr(getattr(target, "stream", None), "encoding", None),
    )
    if certificate.counterexample is not None:
        check_declared(structure.constants(), certificate, found)
    return found


def _examined(
    result: Run, certificate: Certificate, elbo: Estimate, where: str | None, improper: str | None
) -> tuple[Run, Certificate]:
    """The run and its certificate as they may be reported: a density that is none has neither.

    `where`: why the ELBO is not finite; `improper`: where the density does not fall. None where all is well.
    """
    if improper is not None:
        statement, outcome = "the density is integrable", Outcome.IMPROPER
        reason = f"the density does not seem to be integrable: {improper}"
        remedy = "Give every parameter a proper prior, or say where it lives with constraints=."
    elif where is not None:
        statement, outcome = "the ELBO is finite", Outcome.NONFINITE
        reason = f"the ELBO of q is {elbo.value} (standard error {elbo.standard_error}): {where}"
        remedy = (
            "If the density is defined on a part of the space only, say so with constraints= (e.g. 'positive'); "
            "if numbers overflow, rescale the data or the parameters."
        )
    else:
        return result, certificate
    if result.outcome.ok or improper is not None:
        result = dataclasses.replace(result, outcome=outcome, message=f"{reason}. {remedy}")
    else:
        result = dataclasses.replace(result, message=f"{result.message}; {reason}. {remedy}")
    return result, withdrawn(certificate, statement, f"{reason}. {remedy}".rstrip("."))
