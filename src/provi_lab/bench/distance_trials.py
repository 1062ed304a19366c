"""Many trials of the bounds on KL(q || posterior): of the confidence statement, and of hostile small problems."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from provi_lab.bench.distance_oracle import LinearPosterior, graded_rule, line_log_evidence, log_sum
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
    """The confidence statement itself: how often a bound falls below the exact value of what it bounds.

    What is bounded depends on the pilot's covariance, which is held fixed, so that its exact value can be known: by
    quadrature up to two dimensions, by `_EXACT_PAIRS` pairs beyond. Each problem with as many draws as the library
    takes, and with as few as it may.
    """
    share = -(-repetitions // _PIECES)
    work = [(name, piece, share) for name in COVERAGE for piece in range(_PIECES)]
    return [row for rows in spread(_coverage, work) for row in rows]


def _coverage(task: tuple[str, int, int]) -> list[Row]:
    import provi
    from provi.certificates.distance import dual_bound as module
    from provi.certificates.distance.problems import linear_problem
    from provi_lab.bench.distance_oracle import truth
    from provi_lab.bench.distance_problems import linear

    name, piece, repetitions = task
    link, terms, dim, sd, options = COVERAGE[name]
    target, posterior = linear(link, terms, dim, sd, **options)
    fit = provi.fit(target, progress=False, seed=1)
    found = linear_problem(target.linear_model(), fit.posterior.family, fit.posterior.point)  # pyright: ignore
    assert found is not None
    problem, energy = found
    assert energy.value is not None
    pilot = module._pilot(module._Frame(problem), np.random.default_rng(100 + piece % 2), energy.value - 0.5 * dim)
    assert pilot is not None
    frame = pilot[0]
    value, error = _exact(frame, dim)
    value += energy.value - 0.5 * dim + frame.log_det[0]
    exact = truth(posterior, np.asarray(fit.posterior.mean), np.asarray(fit.posterior.covariance))
    row = {"problem": name, "value": value, "error": error, "trials": repetitions, "pilot": piece % 2, "kl": exact.kl}
    rounding = energy.error + frame.log_det[1]
    with mock.patch.object(module, "_pilot", lambda *given: pilot):
        return [
            {**row, "few": few, **_repeated(module, problem, energy, rounding, row, piece, few)}
            for few in (False, True)
        ]


def _exact(frame: Any, dim: int) -> tuple[float, float]:
    """-log E exp(-Y), and its standard error."""
    if dim <= 2:
        v, weights = graded_rule(np.linspace(-10, 10, 41 if dim == 2 else 401)[None])
        grid = np.stack([x.ravel() for x in np.meshgrid(*[v[0]] * dim, indexing="ij")], axis=1)
        shares = weights[0] if dim == 1 else np.multiply.outer(weights[0], weights[0]).ravel()
        shares = shares * np.exp(-0.5 * np.sum(grid**2, axis=1)) / (2 * math.pi) ** (dim / 2)
        found = frame.values(grid, 1e-7)
        return -log_sum(-found[0], shares), 0.0
    rng, values = np.random.default_rng(7), []
    for _ in range(0, _EXACT_PAIRS, 20_000):
        values.append(frame.values(rng.standard_normal((20_000, dim)), 1e-6)[0])
    weights = np.exp(-np.concatenate(values))
    return -math.log(weights.mean()), float(weights.std() / weights.mean() / math.sqrt(len(weights)))


def _repeated(module: Any, problem: Any, energy: Any, rounding: float, row: Row, piece: int, few: bool) -> Row:
    bounds = []
    for repetition in range(row["trials"]):
        seed, budget = 10**6 + piece * 10**4 + repetition, 2 if few else 40_000
        bound = module.dual_bound(problem, energy, delta=1 - LEVEL, seed=seed, most_evaluations=budget)
        assert bound is not None and bound.proven
        # What is added for rounding is no part of the confidence statement.
        bounds.append((bound.kl - rounding, bound.estimate, bound.num_pairs))
    found = np.asarray(bounds)
    counts = {"below": int(np.sum(found[:, 0] < row["value"])), "below_kl": int(np.sum(found[:, 0] < row["kl"]))}
    # The mean alone, without a margin: about a half of these must be below, or nothing is tested.
    counts["estimate_below"] = int(np.sum(found[:, 1] < row["value"]))
    return {**counts, "ratio": float(np.median(found[:, 0])) / row["value"], "pairs": float(np.median(found[:, 2]))}


def coverage_lines(rows: Sequence[Row]) -> list[str]:
    """A line for each problem, and whether misses are within what chance allows."""
    lines = [f"Proven bounds at confidence {LEVEL:g} below the exact value of what they bound, and below the true KL:"]
    for name in COVERAGE:
        for few in (False, True):
            own = [row for row in rows if row["problem"] == name and row["few"] == few]
            if not own:
                continue
            trials = sum(row["trials"] for row in own)
            below, kl, plain = (sum(row[key] for row in own) for key in ("below", "below_kl", "estimate_below"))
            ratio, pairs = (np.median([row[key] for row in own]) for key in ("ratio", "pairs"))
            allowed = int(stats.binom.ppf(0.999, trials, 1 - LEVEL))
            word = "within" if below <= allowed else "MORE THAN"
            lines.append(
                f"  {name}, {pairs:.0f} pairs: {below} of {trials} ({100 * below / trials:.1f}%, {word} chance at 10%, "
                f"{allowed}), {kl} below the KL; estimates without a margin: {100 * plain / trials:.0f}%; "
                f"bound / exact {ratio:.3g}"
            )
    return lines


def hard(trials: int, spread: Spread) -> list[Row]:
    """Hostile problems of one and two dimensions; every proven bound against quadrature."""
    piece = 25
    rows: list[Row] = []
    for part in spread(_hard, range(-(-trials // piece))):
        rows += part
        if len(rows) % 500 == 0:
            print(f"{len(rows)} trials, {sum(_proven_below(row) for row in rows)} proven below", flush=True)
    return rows[:trials]


def _proven_below(row: Row) -> bool:
    return bool(row.get("below")) and row["status"] == "proven"


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
    row |= {"status": bound.status, "kl": kl, "bound": bound.kl, "accuracy": accuracy}
    row["below"] = bool(bound.kl < kl - accuracy)
    if row["below"]:
        row |= {"design": posterior.design.tolist(), "response": posterior.response.tolist()}
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
    z, weights = graded_rule(ends)
    return log_sum(posterior.log_joint(z[:, None]), weights)


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
        ratio = np.median([row["bound"] / row["kl"] for row in some if row["kl"] > 1e-6] or [math.nan])
        parts = []
        for status in ("proven", "statistical"):
            of_status = [row for row in some if row["status"] == status]
            parts.append(f"{sum(row['below'] for row in of_status)} of {len(of_status)} {status}")
        lines.append(
            f"  {kind}: {len(own)} trials, {len(some)} with a bound, median ratio {ratio:.3g}; below: "
            f"{', '.join(parts)}"
        )
    notes = sorted({row["note"] for row in rows if "note" in row})
    lines += [f"  {sum(row.get('note') == note for row in rows)} times: {note}" for note in notes[:10]]
    below = [row for row in rows if _proven_below(row)]
    return [*lines, f"Proven bounds below the truth, in all: {len(below)}.", *(f"  {row}" for row in below[:10])]
