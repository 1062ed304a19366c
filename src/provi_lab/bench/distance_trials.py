"""Many trials of the bounds on KL(q || posterior): of the confidence statement, and of hostile small problems."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from provi_lab.bench.distance_oracle import LinearPosterior, line_log_evidence
from provi_lab.common.tables import Row

Spread = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
LEVEL = 0.9
_PIECES, _EXACT_PAIRS = 8, 400_000

COVERAGE = {
    "logistic 20 x 1, sd 1": ("logit", 20, 1, 1.0, {}),
    "logistic 40 x 2, sd 10": ("logit", 40, 2, 10.0, {}),
    "logistic 8 x 2, sd 100, few data": ("logit", 8, 2, 100.0, {"signal": 4.0}),
    "Poisson 60 x 3, sd 1": ("poisson", 60, 3, 1.0, {"signal": 1.0}),
    "logistic 100 x 10, sd 1": ("logit", 100, 10, 1.0, {}),
}


def coverage(repetitions: int, spread: Spread) -> list[Row]:
    """The confidence statement itself: how often a bound falls below the exact mean of what it bounds.

    What is bounded depends on the pilot's covariance; it is held fixed, so that its mean can be known: `_EXACT_PAIRS`
    pairs. Each problem with as many draws as the library takes, and with as few as it may.
    """
    share = -(-repetitions // _PIECES)
    # The dearest first.
    work = [(name, piece, share) for name in reversed(COVERAGE) for piece in range(_PIECES)]
    return [row for rows in spread(_coverage, work) for row in rows]


def _coverage(task: tuple[str, int, int]) -> list[Row]:
    import provi
    from provi.certificates.distance import dual_bound as module
    from provi.certificates.distance.problems import linear_problem
    from provi_lab.bench.distance_problems import linear

    name, piece, repetitions = task
    link, terms, dim, sd, options = COVERAGE[name]
    target, _ = linear(link, terms, dim, sd, **options)
    fit = provi.fit(target, progress=False, seed=1)
    found = linear_problem(target.linear_model(), fit.posterior.family, fit.posterior.point)
    assert found is not None
    problem, energy = found
    # Two pilots in turn: one piece in two has the same.
    pilot = module._pilot(module._Draws(problem, energy), np.random.default_rng(100 + piece % 2))
    assert pilot is not None
    draws, rng, values = pilot[0], np.random.default_rng([7, piece % 2]), []
    for _ in range(0, _EXACT_PAIRS, 20_000):
        exact = draws.values(rng.standard_normal((20_000, problem.dim)), 1e-6)
        assert exact is not None
        values.append(exact[0])
    mean, error = float(np.mean(values)), float(np.std(values)) / math.sqrt(_EXACT_PAIRS)
    row = {"problem": name, "mean": mean, "error": error, "trials": repetitions, "pilot": piece % 2}
    with mock.patch.object(module, "_pilot", lambda start, rng: pilot):
        return [
            {**row, "few": few, **_repeated(module, problem, energy, draws.constant_error, row, piece, few)}
            for few in (False, True)
        ]


def _repeated(module: Any, problem: Any, energy: Any, error: float, row: Row, piece: int, few: bool) -> Row:
    proven = statistical = 0
    bounds = []
    for repetition in range(row["trials"]):
        seed = 10**6 + piece * 10**4 + repetition
        budget = 2 if few else 40_000
        bound = module.dual_bound(problem, energy, delta=1 - LEVEL, seed=seed, most_evaluations=budget)
        assert bound is not None
        # What is added for rounding is no part of the confidence statement.
        proven += bound.proven - error < row["mean"]
        statistical += bound.statistical - error < row["mean"]
        bounds.append((bound.statistical / row["mean"], bound.proven / row["mean"], bound.num_pairs))
    medians = [float(x) for x in np.median(np.asarray(bounds), axis=0)]
    found = {"proven_below": int(proven), "statistical_below": int(statistical), "statistical_ratio": medians[0]}
    return {**found, "proven_ratio": medians[1], "pairs": medians[2]}


def coverage_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each problem, and whether misses are within what chance allows."""
    lines = [f"Bounds at confidence {LEVEL:g} below the exact mean of what they bound:"]
    for name in COVERAGE:
        for few in (False, True):
            own = [row for row in rows if row["problem"] == name and row["few"] == few]
            if not own:
                continue
            trials = sum(row["trials"] for row in own)
            counts = [sum(row[key] for row in own) for key in ("statistical_below", "proven_below")]
            ratios = [np.median([row[key] for row in own]) for key in ("statistical_ratio", "proven_ratio", "pairs")]
            allowed = int(stats.binom.ppf(0.999, trials, 1 - LEVEL))
            word = "within" if counts[0] <= allowed else "MORE THAN"
            lines.append(
                f"  {name}, {ratios[2]:.0f} pairs: statistical {counts[0]} of {trials} "
                f"({100 * counts[0] / trials:.1f}%, {word} chance, {allowed}), proven {counts[1]}; "
                f"bound / mean {ratios[0]:.3g} and {ratios[1]:.3g}"
            )
    return lines


def hard(trials: int, spread: Spread) -> list[Row]:
    """Hostile problems of one and two dimensions; every proven bound against quadrature."""
    piece = 25
    rows: list[Row] = []
    for part in spread(_hard, range(-(-trials // piece))):
        rows += part
        if len(rows) % 500 == 0:
            print(f"{len(rows)} trials, {sum(bool(row.get('below')) for row in rows)} below", flush=True)
    return rows[:trials]


def _hard(piece: int) -> list[Row]:
    return [_hard_trial(np.random.default_rng([2026, piece, trial])) for trial in range(25)]


def _hard_trial(rng: np.random.Generator) -> Row:
    import provi

    kind = str(rng.choice(["issue", "logit", "logit", "poisson", "process", "wall", "plane"]))
    maker = {"issue": _issue, "process": _gp, "wall": _wall, "plane": _plane}.get(kind)
    target, posterior, mean, covariance, member, exact = _line(rng, kind) if maker is None else maker(rng)
    row = {"kind": kind, "member": member, "status": "none", "kl": None}
    try:
        if member == "fit":
            fit = provi.fit(target, progress=False, seed=int(rng.integers(10**6)), budget=provi.Budget(seconds=10))
            bound = fit.certificate.posterior
            mean, covariance = (np.asarray(x, float) for x in (fit.posterior.mean, fit.posterior.covariance))
        else:
            seed = int(rng.integers(10**6))
            bound = provi.certify(target, (mean, covariance), CONFIDENCE, seed=seed, compare=False).posterior
    except (ArithmeticError, ValueError) as error:
        return {**row, "note": f"{type(error).__name__}: {error}"[:200]}
    if bound is None:
        return row
    with np.errstate(all="ignore"):
        kl = exact - posterior.elbo(mean, covariance)
    if not math.isfinite(kl):
        return {**row, "note": "the ELBO is not finite"}
    accuracy = 1e-9 + 1e-11 * (abs(exact) + abs(kl))
    row |= {"status": bound.status, "kl": kl, "bound": bound.kl, "proven": bound.proven, "accuracy": accuracy}
    row |= {"statistical": bound.statistical, "below": bound.proven < kl - accuracy}
    row["statistical_below"] = bound.statistical < kl - accuracy
    if row["below"] or (bound.status == "proven" and bound.kl < kl - accuracy):
        row |= {"below": True, "design": posterior.design.tolist(), "response": posterior.response.tolist()}
        row |= {"prior_mean": posterior.prior_mean.tolist(), "prior_covariance": posterior.prior_covariance.tolist()}
        row |= {"mean": np.asarray(mean).tolist(), "covariance": np.asarray(covariance).tolist()}
    return row


CONFIDENCE = 0.99


def _member(rng: np.random.Generator, posterior: LinearPosterior) -> tuple[Any, Any, str]:
    """The prior, the fit, or something near the Laplace approximation."""
    word = str(rng.choice(["prior", "fit", "fit", "near"]))
    if word == "prior":
        return posterior.prior_mean, posterior.prior_covariance, word
    mean, covariance = posterior.mode()
    if word == "near":
        root = np.linalg.cholesky(covariance)
        mean = mean + root @ rng.normal(size=len(mean)) * 10 ** rng.uniform(-2, 0.3)
        covariance = covariance * 10 ** rng.uniform(-0.5, 0.5)
    return mean, covariance, word


def _line(rng: np.random.Generator, link: str) -> Any:
    from provi_lab.bench.distance_problems import model

    terms = int(rng.choice([1, 3, 8]))
    x = 10 ** rng.uniform(-1, 5 if link == "logit" else 0.3) * rng.normal(size=(terms, 1))
    sd, mean = 10 ** rng.uniform(-1, 4 if link == "logit" else 1), rng.uniform(-5, 5)
    if link == "logit":
        y = (rng.random(terms) < rng.choice([0.1, 0.5, 1.0])).astype(float)
    else:
        y = np.floor(10 ** rng.uniform(0, 6, terms))
    target, posterior = model(link, x, y, sd, mean=mean)
    at, covariance, member = _member(rng, posterior)
    return target, posterior, at, covariance, member, line_log_evidence(posterior)


def _issue(rng: np.random.Generator) -> Any:
    """One steep term out of reach of the draws of the prior."""
    from provi_lab.bench.distance_problems import model

    steep, mean = 10 ** rng.uniform(3, 6), rng.uniform(2.5, 6)
    target, posterior = model("logit", np.asarray([[-steep]]), np.asarray([0.0]), 1.0, mean=mean)
    if rng.random() < 0.5:
        target, posterior = model("logit", np.asarray([[steep]]), np.asarray([1.0]), 1.0, mean=mean)
    at, covariance, member = _member(rng, posterior)
    return target, posterior, at, covariance, member, line_log_evidence(posterior)


def _gp(rng: np.random.Generator) -> Any:
    """One point, or two that know nothing of each other, under an amplitude of up to 1000; at its prior half the time.

    Two points far apart: the evidence is a product.
    """
    from provi import kernels
    from provi.targets import GaussianProcess
    from provi.targets.likelihoods import BernoulliLogit

    terms, amplitude, offset = int(rng.integers(1, 3)), 10 ** rng.uniform(0, 3), rng.uniform(-5, 5)
    inputs, y = 1e4 * np.arange(terms, dtype=float)[:, None], rng.integers(0, 2, terms).astype(float)
    target = GaussianProcess(
        inputs, y, kernels.SquaredExponential(1.0, amplitude), BernoulliLogit(), jitter=1e-6, mean=offset
    )
    variance = np.asarray([[amplitude**2 + 1e-6]])
    parts = [LinearPosterior(np.eye(1), y[i : i + 1], "logit", np.full(1, offset), variance) for i in range(terms)]
    posterior = LinearPosterior(np.eye(terms), y, "logit", np.full(terms, offset), variance[0, 0] * np.eye(terms))
    member = str(rng.choice(["prior", "fit"]))
    exact = sum(map(line_log_evidence, parts))
    return target, posterior, posterior.prior_mean, posterior.prior_covariance, member, exact


def _wall_density(steep: Any, place: Any, height: Any, z: Any) -> Any:
    return -0.5 * z[0] ** 2 - height * jax.nn.softplus(steep * (z[0] - place)) / steep


class _Wall(LinearPosterior):
    """z^2 / 2 + height softplus(steep (z - place)) / steep: a logistic term counted many times."""

    @property
    def count(self) -> float:
        """How many times."""
        return self.parameter

    def terms(self, eta: np.ndarray) -> np.ndarray:
        """The centre is moved to the place of the wall."""
        return self.count * np.logaddexp(0.0, eta - self.response)

    def elbo(self, mean: np.ndarray, covariance: np.ndarray) -> float:
        """By the same panels as the logistic term's mean."""
        from provi_lab.bench.distance_oracle import mean_potential

        steep, sd = float(self.design[0, 0]), math.sqrt(float(covariance[0, 0]))
        centre = np.asarray([steep * float(mean[0])]) - self.response
        energy = self.count * mean_potential("logit", centre, np.asarray([steep * sd]), np.zeros(1), 1.0)[0]
        prior = 0.5 * (float(covariance[0, 0]) + float(mean[0]) ** 2)
        return math.log(sd) + 0.5 - prior - float(energy)


def _wall(rng: np.random.Generator) -> Any:
    """A black box with declared constants."""
    from provi.targets import LogDensity

    steep, place, height = 10 ** rng.uniform(0, 3), rng.uniform(0, 6), 10 ** rng.uniform(0, 4)
    density = jax.tree_util.Partial(_wall_density, jnp.asarray(steep), jnp.asarray(place), jnp.asarray(height))
    target = LogDensity(density, 1, strong_convexity=1.0, smoothness=1 + height * steep / 4)
    one = np.ones(1)
    posterior = _Wall(steep * np.eye(1), steep * place * one, "logit", 0 * one, np.eye(1), height / steep)
    ends = [np.linspace(-40, 40, 161)]
    grades = np.concatenate([[0.0], np.geomspace(0.01, 64, 30)])
    ends.append(place + np.concatenate([-grades, grades]) / steep)
    # Beyond the wall the density falls like e^(-height z).
    ends.append(place + np.concatenate([-grades, grades]) / height)
    exact = _line_integral(posterior, np.unique(np.clip(np.concatenate(ends), -40, 40)))
    member = str(rng.choice(["prior", "shifted"]))
    mean, covariance = np.zeros(1), np.eye(1)
    if member == "shifted":
        mean, covariance = mean - rng.uniform(0, 1), covariance * rng.uniform(0.5, 1.2)
    return target, posterior, mean, covariance, member, exact


def _line_integral(posterior: LinearPosterior, ends: np.ndarray) -> float:
    from scipy import special

    from provi_lab.bench.distance_oracle import _panels

    z, weights = _panels(ends)
    return float(special.logsumexp(posterior.log_joint(z[:, None]), b=weights))


def _plane(rng: np.random.Generator) -> Any:
    """Two problems on lines, turned by an angle: a plane whose evidence is a product."""
    from provi_lab.bench.distance_problems import model

    x, angle, sd = 10 ** rng.uniform(-1, 4, 2), rng.uniform(0, math.pi), 10 ** rng.uniform(-0.5, 2)
    turn = np.asarray([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    y = rng.integers(0, 2, 2).astype(float)
    target, posterior = model("logit", np.diag(x) @ turn.T, y, sd)
    prior = posterior.prior_covariance[:1, :1]
    parts = [LinearPosterior(x[i].reshape(1, 1), y[i : i + 1], "logit", np.zeros(1), prior) for i in range(2)]
    at, covariance, member = _member(rng, posterior)
    return target, posterior, at, covariance, member, sum(map(line_log_evidence, parts))


def hard_lines(rows: Sequence[Row]) -> list[str]:
    """Counts of bounds below the truth, by kind."""
    lines = [f"{len(rows)} hostile problems; bounds below the truth by quadrature:"]
    for kind in sorted({row["kind"] for row in rows}):
        own = [row for row in rows if row["kind"] == kind]
        some = [row for row in own if row["kl"] is not None]
        proven = [row for row in some if math.isfinite(row["proven"])]
        called = sum(row["status"] == "proven" for row in some)
        ratio = np.median([row["bound"] / row["kl"] for row in some if row["kl"] > 1e-6] or [math.nan])
        lines.append(
            f"  {kind}: {len(own)} trials, {len(some)} with a bound ({called} called proven), median ratio "
            f"{ratio:.3g}; below: {sum(row['below'] for row in some)} of {len(proven)} proven, "
            f"{sum(row['statistical_below'] for row in some)} of {len(some)} statistical"
        )
    notes = sorted({row["note"] for row in rows if "note" in row})
    lines += [f"  {sum(row.get('note') == note for row in rows)} times: {note}" for note in notes[:10]]
    below = [row for row in rows if row.get("below")]
    return [*lines, f"Proven bounds below the truth, in all: {len(below)}.", *(f"  {row}" for row in below[:10])]
