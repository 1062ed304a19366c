r"""Certificates from draws against the truth where draws see little: walls, ridges, relus, separable data.

`python -m provi_lab.bench.walls --trials 1000 --seed 0` draws problems from the seeds 0 .. 999, certifies a q of each
and compares with $f(q) - \min f$ by panels of Gauss and Legendre's rule. Printed for each kind: how many certificates
were issued by status, how many were below the truth, and the worst. `--json` prints one JSON object instead, which adds
up over ranges of seeds: run disjoint ones on as many cores as there are.

- *wall*: z^2/2 + a softplus(k(z - c))/k. - *linear wall*: z^2/2 + a max(z - c, 0). - *ridge*: a (sqrt(1 + z^2) - z)
  with
  a prior of sd 1e8. - *relu*: z^2/2 + a max(z - c, 0)^2 / 2 with mu and M declared. - *separable*: an unscaled logistic
  regression without overlap, as a black box.

q is N(0, 1), or near the best one, or scaled so that its covariance looks right though its mean is far off (ridges).
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from scipy import optimize

from provi.core.arguments import double_precision
from provi.families import LocationScale
from provi.fit import choose
from provi.targets import LogDensity

NODES, WEIGHTS = np.polynomial.legendre.leggauss(48)
KINDS = ("wall", "linear wall", "ridge", "relu", "separable")
STATUSES = ("proven", "statistical", "conditional", "none")
SLACK = 1e-9


def _wall(p: Any, z: Any) -> Any:
    return -(z[0] ** 2 / 2 + p[0] * jax.nn.softplus(p[1] * (z[0] - p[2])) / p[1])


def _linear(p: Any, z: Any) -> Any:
    return -(z[0] ** 2 / 2 + p[0] * jax.nn.relu(z[0] - p[1]))


def _ridge(p: Any, z: Any) -> Any:
    # The two forms avoid the cancellation on either side.
    right = 1 / (jnp.sqrt(1 + z[0] ** 2) + jnp.abs(z[0]))
    return -(p[0] * jnp.where(z[0] > 0, right, right + 2 * jnp.abs(z[0])) + 0.5 * (z[0] / 1e8) ** 2)


def _relu(p: Any, z: Any) -> Any:
    return -(z[0] ** 2 / 2 + 0.5 * p[0] * jax.nn.relu(z[0] - p[1]) ** 2)


def _separable(p: Any, z: Any) -> Any:
    return -(0.5 * z[0] ** 2 / p[0] ** 2 + jnp.sum(jax.nn.softplus(-p[1:] * z[0])))


class Problem:
    """One density, q = N(mean, sd^2), and the gap of q."""

    def __init__(self, kind: str, seed: int) -> None:
        rng = np.random.default_rng((seed, KINDS.index(kind)))
        self.kind, place = kind, float(rng.uniform(2.0, 5.0))
        slope = 10 ** rng.uniform(0.0, 6.0)
        claims: dict[str, Any] = {"log_concave": True} if rng.random() < 0.5 else {"strong_convexity": 1.0}
        self.breaks = np.asarray([place])
        match kind:
            case "wall":
                sharp = 10 ** rng.uniform(0.5, 2.5)
                fn, p = _wall, [slope, sharp, place]
                self.breaks = place + np.asarray([-40, -12, -4, 0, 4, 12, 40]) / sharp
            case "linear wall":
                fn, p = _linear, [slope, place]
            case "ridge":
                # The gap between the walls of q's own making: S = 1 and |g| near 1 / k.
                k = rng.uniform(1.5, 4.0)
                sd = 10 ** rng.uniform(0.5, 2.0)
                fn, p, claims = _ridge, [1 / (2 * np.exp(-0.5 * k**2) / np.sqrt(2 * np.pi) * sd)], {"log_concave": True}
                self.breaks = np.asarray([-10.0, -3, -1, 0, 1, 3, 10, 1e3, 1e5, 1e7])
                self.member = (k * sd, sd)
            case "relu":
                steep = 10 ** rng.uniform(0.0, 2.0)
                fn, p, claims = _relu, [steep, place], {"strong_convexity": 1.0, "smoothness": 1 + steep}
            case _:
                width, rows = 10 ** rng.uniform(0.0, 1.5), rng.integers(1, 6)
                x = 10 ** rng.uniform(0.0, 3.0) * rng.uniform(0.5, 1.5, size=5)
                x[rows:] = 0.0
                fn, p = _separable, [width, *x]
                claims = {"strong_convexity": width**-2.0} if "strong_convexity" in claims else claims
                scale = 1 / x[:rows].max()
                self.breaks = np.concatenate([[-40, -12, -4, 0, 4, 12, 40]] * rows) * np.repeat(scale, 7 * rows)
                self.breaks = np.unique(
                    np.concatenate([self.breaks, *(np.asarray([-40, 0, 40]) / v for v in x[:rows])])
                )
        parameters = np.asarray(p, np.float64)
        self.target = LogDensity(Partial(fn, parameters), 1, **claims)
        self.phi: Callable[[np.ndarray], np.ndarray] = _vectorised(fn, parameters)
        if kind != "ridge":
            best = self.best((0.0, 1.0))
            near = (best[0] + 0.3 * best[1] * rng.normal(), best[1] * np.exp(0.2 * rng.normal()))
            self.member = (0.0, 1.0) if rng.random() < 0.5 else near

    def objective(self, mean: float, sd: float) -> float:
        """f(N(mean, sd^2)) by quadrature between the breaks."""
        ends = np.concatenate([mean + sd * np.linspace(-13, 13, 40), self.breaks])
        ends = np.unique(np.clip(ends, mean - 13 * sd, mean + 13 * sd))
        half = np.diff(ends)[:, None] / 2
        z = ((ends[:-1] + ends[1:])[:, None] / 2 + half * NODES[None, :]).ravel()
        density = np.exp(-0.5 * ((z - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi))
        return float(np.sum((half * WEIGHTS[None, :]).ravel() * density * self.phi(z)) - np.log(sd))

    def best(self, *starts: tuple[float, float]) -> tuple[float, float]:
        """A member near the best one; any would do for a truth that is not too large."""
        found = []
        for mean, sd in starts:

            def value(x: np.ndarray, mean: float = mean, sd: float = sd) -> float:
                with np.errstate(over="ignore"):
                    result = self.objective(mean + sd * float(x[0]), sd * float(np.exp(np.clip(x[1], -40, 40))))
                return result if np.isfinite(result) else 1e300

            options = {"maxiter": 4000, "xatol": 1e-9, "fatol": 1e-12}
            best = optimize.minimize(value, np.zeros(2), method="Nelder-Mead", options=options)
            best = optimize.minimize(value, best.x, method="Nelder-Mead", options=options)
            found.append((best.fun, mean + sd * float(best.x[0]), sd * float(np.exp(best.x[1]))))
        return min(found)[1:]

    def gap(self) -> float:
        """How much better a member there is, at least."""
        mean, sd = self.member
        starts = [self.member, (0.0, 1.0)]
        if self.kind == "ridge":
            starts = [(1e8, 1e8), (1e4, 1e4)]
        return self.objective(mean, sd) - min(self.objective(*self.best(start)) for start in starts)


def _vectorised(fn: Any, parameters: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """phi at many points, in NumPy: the same formulas, computed apart."""

    def softplus(x: np.ndarray) -> np.ndarray:
        return np.logaddexp(0.0, x)

    p = parameters
    if fn is _wall:
        return lambda z: z**2 / 2 + p[0] * softplus(p[1] * (z - p[2])) / p[1]
    if fn is _linear:
        return lambda z: z**2 / 2 + p[0] * np.maximum(z - p[1], 0)
    if fn is _relu:
        return lambda z: z**2 / 2 + 0.5 * p[0] * np.maximum(z - p[1], 0) ** 2
    if fn is _ridge:

        def ridge(z: np.ndarray) -> np.ndarray:
            right = 1 / (np.sqrt(1 + z**2) + np.abs(z))
            return p[0] * np.where(z > 0, right, right + 2 * np.abs(z)) + 0.5 * (z / 1e8) ** 2

        return ridge
    return lambda z: 0.5 * z**2 / p[0] ** 2 + softplus(-p[1:, None] * z[None, :]).sum(axis=0)


@double_precision
def trial(kind: str, seed: int, confidence: float, max_gradients: int, wanted: float | None) -> dict[str, Any]:
    """One problem, its truth and its certificate: every bound that was issued, by status."""
    problem, family = Problem(kind, seed), LocationScale(1)
    mean, sd = problem.member
    point = family.point(np.asarray([mean]), np.asarray([[sd]]))
    found = choose(problem.target, family).certificate(
        point, confidence=confidence, seed=seed, max_gradients=max_gradients, wanted=wanted
    )
    bounds = {status: [b.value for b in found.bounds if b.status == status] for status in STATUSES[:3]}
    values = {status: float(min(rows)) for status, rows in bounds.items() if rows and np.isfinite(min(rows))}
    return {"kind": kind, "seed": seed, "gap": problem.gap(), "status": found.status, "values": values}


def count(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each kind: trials, headline statuses, bounds below the truth and the worst of them, by status."""
    table: dict[str, Any] = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        own = [row for row in rows if row["kind"] == kind]
        entry: dict[str, Any] = {"trials": len(own)}
        for status in STATUSES:
            entry[f"headline {status}"] = sum(row["status"] == status for row in own)
        for status in STATUSES[:3]:
            known = [row for row in own if status in row["values"]]
            low = [row for row in known if row["values"][status] < row["gap"] - SLACK * (1 + abs(row["gap"]))]
            entry[status] = {"issued": len(known), "below": len(low)}
            if low:
                worst = max(low, key=lambda row: row["gap"] - row["values"][status])  # noqa: B023
                entry[status]["worst"] = {"seed": worst["seed"], "gap": worst["gap"], "bound": worst["values"][status]}
            ratios = [row["values"][status] / row["gap"] for row in known if row["gap"] > 1e-6]
            entry[status]["median ratio"] = float(np.median(ratios)) if ratios else None
        table[kind] = entry
    return table


def main() -> None:
    """Run the trials of a range of seeds and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=100, help="problems of each kind")
    parser.add_argument("--seed", type=int, default=0, help="the first of as many seeds as trials")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--max-gradients", type=int, default=100_000)
    parser.add_argument("--wanted", type=float, default=0.01, help="nats that are enough; 0 spends all gradients")
    parser.add_argument("--json", action="store_true", help="one JSON object with the rows, to be added up")
    options = parser.parse_args()
    wanted = options.wanted or None
    rows = [
        trial(kind, seed, options.confidence, options.max_gradients, wanted)
        for kind in options.kinds
        for seed in range(options.seed, options.seed + options.trials)
    ]
    if options.json:
        print(json.dumps({"count": count(rows), "rows": rows}))
        return
    for kind, entry in count(rows).items():
        heads = ", ".join(f"{entry[f'headline {status}']} {status}" for status in STATUSES)
        print(f"{kind}: {entry['trials']} trials; headlines: {heads}")
        for status in STATUSES[:3]:
            print(f"  {status:12} {entry[status]}")


if __name__ == "__main__":
    main()
