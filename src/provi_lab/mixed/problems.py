"""Eight mixed and latent Gaussian models, each twice: as a NumPyro program and as arguments of `LatentGaussian`.

Both have the same priors and the same names: a site of the program, sampled or deterministic, is called as the library
calls that effect or hyperparameter, so that draws of the one are compared with marginals of the other by name. The
programs are non-centred, for NUTS. Sites that end in `*` are their standard normal coordinates.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from provi_lab.mixed import tables

FIXED_SCALE = 2.5
"""Prior standard deviation of the fixed effects, the library's default."""

JITTER = 1e-6
"""Relative to the amplitude squared, on the diagonal of the Gaussian process."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One model with its data.

    - `source`: where the data come from. - `table`: the data, by name. - `model`: a NumPyro program without arguments.
    - `target`: makes the library's `LatentGaussian`. - `fixed`, `hyperparameters`: names of scalar sites.
    - `blocks`: names of vectors of effects, each with the entries that are reported one by one.
    - `formula`, `family`: of lme4 and its kin, where it can say the same.
    """

    name: str
    source: str
    table: Mapping[str, np.ndarray]
    model: Callable[[], None]
    target: Callable[[], Any]
    fixed: tuple[str, ...]
    hyperparameters: tuple[str, ...]
    blocks: Mapping[str, Sequence[tuple[int, ...]]]
    formula: str | None = None
    family: str | None = None


def _fixed(names: Sequence[str], columns: np.ndarray, scale: float = FIXED_SCALE) -> Any:
    """In a NumPyro program: the fixed effects, one site each, and their part of the predictor."""
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    return columns @ jnp.stack([numpyro.sample(name, dist.Normal(0, scale)) for name in names])  # pyright: ignore


def _effects(name: str, size: int, prior: Any, root: np.ndarray | None = None) -> Any:
    """In a NumPyro program: sd(name) times standard normal effects, or times `root` of such; as the site `name`."""
    import numpyro
    from numpyro import distributions as dist

    sd = numpyro.sample(f"sd({name})", prior)
    white = numpyro.sample(f"{name}*", dist.Normal(0, 1).expand([size if root is None else root.shape[1]]))
    return numpyro.deterministic(name, sd * (white if root is None else root @ white))


def _half_normal(scale: float) -> Any:
    from numpyro import distributions as dist

    return dist.HalfNormal(scale)


def graph_root(edges: np.ndarray, size: int) -> np.ndarray:
    """L with LL' the generalised inverse of a connected graph's Laplacian: sum-to-zero effects from size - 1 normals.

    Scaled so that the geometric mean of the variances is one (Sorbye and Rue 2014), as the library's blocks are.
    """
    laplacian = np.zeros((size, size))
    for i, j in edges:
        laplacian[[i, j], [i, j]] += 1
        laplacian[i, j] -= 1
        laplacian[j, i] -= 1
    values, vectors = np.linalg.eigh(laplacian)
    if values[1] < 1e-9:
        raise ValueError("the graph is not connected: its effects need one sum to zero for each part.")
    root = vectors[:, 1:] / np.sqrt(values[1:])
    return root / np.exp(0.5 * np.log((root**2).sum(axis=1)).mean())


def eight_schools() -> Problem:
    """Known noise: rows divided by their standard errors have unit noise. A half-Cauchy prior, as in the textbooks."""
    y, error = np.asarray(tables.SCHOOLS["effect"]), np.asarray(tables.SCHOOLS["error"])
    index = np.arange(8)

    def model() -> None:
        import numpyro
        from numpyro import distributions as dist

        predictor = _fixed(["Intercept"], np.ones((8, 1)), 5.0) + _effects("school", 8, dist.HalfCauchy(5.0))
        numpyro.sample("y", dist.Normal(predictor, error), obs=y)  # pyright: ignore

    def target() -> Any:
        from provi.targets import LatentGaussian, latent, likelihoods

        row = (1 / error)[:, None]
        block = latent.Independent(index, covariates=row, size=8, scale=latent.HalfT(5.0, 1.0), name="school")
        noise = likelihoods.GaussianNoise(1.0)
        return LatentGaussian(y / error, noise, fixed=row, fixed_names=("Intercept",), fixed_scale=5.0, blocks=[block])

    table = {"y": y, "error": error, "school": index}
    blocks = {"school": [(0,), (2,), (6,)]}
    return Problem("eight schools", "Rubin (1981)", table, model, target, ("Intercept",), ("sd(school)",), blocks)


def radon(rows: int = 919, counties: int = 85, seed: int = 7) -> Problem:
    """Correlated intercepts and slopes with unknown noise; made up with the estimates of Gelman and Hill (2007)."""
    rng = np.random.default_rng(seed)
    share = rng.gamma(0.6, size=counties) + 0.02
    county = np.sort(
        np.concatenate([np.arange(counties), rng.choice(counties, rows - counties, p=share / share.sum())])
    )
    floor = (rng.random(rows) < 0.17).astype(float)
    covariance = np.asarray([[0.35**2, -0.3 * 0.35 * 0.35], [-0.3 * 0.35 * 0.35, 0.35**2]])
    effects = rng.multivariate_normal([1.46, -0.68], covariance, counties)
    y = effects[county, 0] + effects[county, 1] * floor + 0.75 * rng.normal(size=rows)
    design, names = np.column_stack([np.ones(rows), floor]), ("Intercept", "floor")

    def model() -> None:
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions as dist

        predictor = _fixed(names, design)
        sds = [numpyro.sample(f"sd(county: {name})", dist.HalfNormal(1.0)) for name in names]
        # LKJ(2) of one correlation: (1 + rho) / 2 ~ Beta(2, 2).
        half = numpyro.sample("correlation*", dist.Beta(2.0, 2.0))
        rho = numpyro.deterministic("cor(county: Intercept, floor)", 2 * half - 1)  # pyright: ignore
        white = numpyro.sample("county*", dist.Normal(0, 1).expand([counties, 2]))
        slope = rho * white[:, 0] + jnp.sqrt(1 - rho**2) * white[:, 1]  # pyright: ignore
        u = numpyro.deterministic("county", jnp.stack([sds[0] * white[:, 0], sds[1] * slope], axis=1))  # pyright: ignore
        noise = numpyro.sample("sigma", dist.HalfNormal(2.0))
        numpyro.sample("y", dist.Normal(predictor + jnp.sum(u[county] * design, axis=1), noise), obs=y)  # pyright: ignore

    def target() -> Any:
        from provi.targets import LatentGaussian, latent

        block = latent.Independent(
            county,
            covariates=design,
            size=counties,
            scale=latent.HalfNormal(1.0),
            correlation=latent.LKJ(2.0),
            name="county",
            labels=names,
        )
        return LatentGaussian(
            y,
            "gaussian",
            fixed=design,
            fixed_names=names,
            fixed_scale=FIXED_SCALE,
            blocks=[block],
            likelihood_priors={"scale": latent.HalfNormal(2.0)},
        )

    table = {"y": y, "floor": floor, "county": county}
    hyper = ("sd(county: Intercept)", "sd(county: floor)", "cor(county: Intercept, floor)", "sigma")
    spots = {"county": [(0, 0), (0, 1), (42, 0), (42, 1), (84, 0)]}
    formula = "y ~ floor + (1 + floor | county)"
    return Problem("radon", "made up", table, model, target, names, hyper, spots, formula, "gaussian")


def grouped_logistic(rows: int = 120, groups: int = 12, seed: int = 3) -> Problem:
    """Random intercepts and one slope; 10^5 rows in 10^4 groups are the same law."""
    rng = np.random.default_rng(seed)
    group, x = np.arange(rows) % groups, rng.normal(size=rows)
    predictor = -0.2 + 0.8 * x + rng.normal(0, 0.7, groups)[group]
    y = (rng.random(rows) < 1 / (1 + np.exp(-predictor))).astype(float)
    design, names = np.column_stack([np.ones(rows), x]), ("Intercept", "x")

    def model() -> None:
        import numpyro
        from numpyro import distributions as dist

        u = _effects("group", groups, _half_normal(2.5))
        numpyro.sample("y", dist.Bernoulli(logits=_fixed(names, design) + u[group]), obs=y)  # pyright: ignore

    def target() -> Any:
        from provi.targets import LatentGaussian, latent

        block = latent.Independent(group, size=groups, scale=latent.HalfNormal(2.5), name="group")
        return LatentGaussian(y, "bernoulli", fixed=design, fixed_names=names, fixed_scale=FIXED_SCALE, blocks=[block])

    table, spots = {"y": y, "x": x, "group": group}, {"group": [(0,), (groups // 2,), (groups - 1,)]}
    name = "logistic" if rows == 120 else f"logistic, {rows} rows in {groups} groups"
    formula = "y ~ x + (1 | group)"
    return Problem(name, "made up", table, model, target, names, ("sd(group)",), spots, formula, "binomial")


def disease_map() -> Problem:
    """Lip cancer in Scotland with Besag's scaled effects beside independent ones (BYM), which share what is left."""
    y, expected = np.asarray(tables.LIPS["observed"], float), np.asarray(tables.LIPS["expected"])
    edges, index, size = tables.lip_edges(), np.arange(56), 56
    design, names = (
        np.column_stack([np.ones(size), np.asarray(tables.LIPS["outdoors"]) / 10]),
        ("Intercept", "outdoors"),
    )
    root = graph_root(edges, size)

    def model() -> None:
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions as dist

        u = _effects("space", size, _half_normal(1.0), root) + _effects("district", size, _half_normal(1.0))
        numpyro.sample("y", dist.Poisson(expected * jnp.exp(_fixed(names, design) + u)), obs=y)

    def target() -> Any:
        from provi.targets import LatentGaussian, latent

        half = latent.HalfNormal(1.0)
        blocks = [
            latent.Besag(index, edges, size=size, scale=half, name="space"),
            latent.Independent(index, size=size, scale=half, name="district"),
        ]
        return LatentGaussian(
            y,
            "poisson",
            fixed=design,
            fixed_names=names,
            fixed_scale=FIXED_SCALE,
            blocks=blocks,
            offset=np.log(expected),
        )

    table = {"y": y, "expected": expected, "outdoors": design[:, 1], "edges": edges}
    spots = {"space": [(0,), (28,), (55,)], "district": [(0,), (28,), (48,)]}
    hyper = ("sd(space)", "sd(district)")
    return Problem("disease map", "Clayton and Kaldor (1987)", table, model, target, names, hyper, spots)


def random_walk() -> Problem:
    """Coal-mining disasters a year: Poisson counts whose logarithm walks; sd(walk) is the walk's, not a step's."""
    y = np.asarray(tables.COAL, float)
    size, index = len(y), np.arange(len(y))
    root = graph_root(np.column_stack([index[:-1], index[1:]]), size)

    def model() -> None:
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions as dist

        predictor = _fixed(["Intercept"], np.ones((size, 1))) + _effects("walk", size, _half_normal(1.0), root)
        numpyro.sample("y", dist.Poisson(jnp.exp(predictor)), obs=y)  # pyright: ignore

    def target() -> Any:
        from provi.targets import LatentGaussian, latent

        block = latent.RandomWalk(index, 1, size=size, scale=latent.HalfNormal(1.0), name="walk")
        ones = np.ones((size, 1))
        return LatentGaussian(
            y, "poisson", fixed=ones, fixed_names=("Intercept",), fixed_scale=FIXED_SCALE, blocks=[block]
        )

    spots = {"walk": [(0,), (40,), (size - 1,)]}
    return Problem("random walk", "Jarrett (1979)", {"y": y}, model, target, ("Intercept",), ("sd(walk)",), spots)


def gaussian_process(rows: int = 60, seed: int = 5) -> Problem:
    """Classification in the plane by a squared-exponential kernel of unknown length scale and amplitude."""
    rng = np.random.default_rng(seed)
    # The library has the effects of a process in the order of its sorted inputs.
    points = np.unique(rng.uniform(-2, 2, size=(rows, 2)), axis=0)
    predictor = 2 * np.sin(1.5 * points[:, 0]) + points[:, 1] * (points[:, 0] > 0)
    y = (rng.random(rows) < 1 / (1 + np.exp(-predictor))).astype(float)
    squares = ((points[:, None] - points[None]) ** 2).sum(axis=2)

    def model() -> None:
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions as dist

        intercept = _fixed(["Intercept"], np.ones((rows, 1)))
        length: Any = numpyro.sample("length_scale(process)", dist.LogNormal(0.0, 0.7))
        amplitude: Any = numpyro.sample("amplitude(process)", dist.HalfNormal(2.5))
        factor = jnp.linalg.cholesky(jnp.exp(-0.5 * squares / length**2) + JITTER * np.eye(rows))
        white = numpyro.sample("process*", dist.Normal(0, 1).expand([rows]))
        u = numpyro.deterministic("process", amplitude * (factor @ white))
        numpyro.sample("y", dist.Bernoulli(logits=intercept + u), obs=y)  # pyright: ignore

    def target() -> Any:
        from provi import kernels
        from provi.targets import LatentGaussian, latent

        priors = {"length_scale": latent.LogNormal(0.0, 0.7), "amplitude": latent.HalfNormal(2.5)}
        kernel = kernels.SquaredExponential(1.0, 1.0)
        block = latent.GaussianProcess(points, kernel, priors=priors, jitter=JITTER, name="process")
        ones = np.ones((rows, 1))
        return LatentGaussian(
            y, "bernoulli", fixed=ones, fixed_names=("Intercept",), fixed_scale=FIXED_SCALE, blocks=[block]
        )

    table, spots = {"y": y, "x": points}, {"process": [(0,), (rows // 2,), (rows - 1,)]}
    hyper = ("length_scale(process)", "amplitude(process)")
    return Problem("gaussian process", "made up", table, model, target, ("Intercept",), hyper, spots)


def survival() -> Problem:
    """Times to infection with a frailty for each patient: hazard shape t^(shape - 1) exp(predictor), t in 100 days."""
    time, event = np.asarray(tables.KIDNEY["days"]) / 100, np.asarray(tables.KIDNEY["infected"])
    age = (np.asarray(tables.KIDNEY["age"]) - 43) / 15
    patient, names = np.repeat(np.arange(38), 2), ("Intercept", "female", "age")
    design = np.column_stack([np.ones(76), np.asarray(tables.KIDNEY["female"]), age])

    def model() -> None:
        import jax.numpy as jnp
        import numpyro
        from numpyro import distributions as dist

        predictor = _fixed(names, design) + _effects("patient", 38, _half_normal(1.0))[patient]
        shape: Any = numpyro.sample("shape", dist.LogNormal(0.0, 0.5))
        hazard = predictor + jnp.log(shape) + (shape - 1) * np.log(time)
        numpyro.factor("y", jnp.sum(event * hazard - time**shape * jnp.exp(predictor)))

    def target() -> Any:
        from provi.targets import LatentGaussian, latent

        block = latent.Independent(patient, size=38, scale=latent.HalfNormal(1.0), name="patient")
        return LatentGaussian(
            np.where(event == 1, time, -time),
            "weibull",
            fixed=design,
            fixed_names=names,
            fixed_scale=FIXED_SCALE,
            blocks=[block],
            likelihood_priors={"shape": latent.LogNormal(0.0, 0.5)},
        )

    table = {"time": time, "event": event, "female": design[:, 1], "age": age, "patient": patient}
    spots = {"patient": [(0,), (20,), (37,)]}
    source, hyper = "McGilchrist and Aisbett (1991)", ("sd(patient)", "shape")
    return Problem("survival", source, table, model, target, names, hyper, spots)


def crossed(subjects: int = 30, items: int = 20, seed: int = 11) -> Problem:
    """Every subject answers every item: effects of both, neither nested in the other."""
    rng = np.random.default_rng(seed)
    subject, item = (part.ravel() for part in np.meshgrid(np.arange(subjects), np.arange(items), indexing="ij"))
    treated = (rng.random(subjects * items) < 0.5).astype(float)
    predictor = 0.3 + 0.6 * treated + rng.normal(0, 0.9, subjects)[subject] + rng.normal(0, 0.6, items)[item]
    y = (rng.random(len(subject)) < 1 / (1 + np.exp(-predictor))).astype(float)
    design, names = np.column_stack([np.ones(len(y)), treated]), ("Intercept", "treated")

    def model() -> None:
        import numpyro
        from numpyro import distributions as dist

        predictor = _fixed(names, design) + _effects("subject", subjects, _half_normal(2.5))[subject]
        predictor += _effects("item", items, _half_normal(2.5))[item]
        numpyro.sample("y", dist.Bernoulli(logits=predictor), obs=y)

    def target() -> Any:
        from provi.targets import LatentGaussian, latent

        half = latent.HalfNormal(2.5)
        blocks = [
            latent.Independent(subject, size=subjects, scale=half, name="subject"),
            latent.Independent(item, size=items, scale=half, name="item"),
        ]
        return LatentGaussian(y, "bernoulli", fixed=design, fixed_names=names, fixed_scale=FIXED_SCALE, blocks=blocks)

    table = {"y": y, "treated": treated, "subject": subject, "item": item}
    spots, hyper = {"subject": [(0,), (29,)], "item": [(0,), (19,)]}, ("sd(subject)", "sd(item)")
    formula = "y ~ treated + (1 | subject) + (1 | item)"
    return Problem("crossed", "made up", table, model, target, names, hyper, spots, formula, "binomial")


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "eight schools": eight_schools,
    "radon": radon,
    "logistic": grouped_logistic,
    "disease map": disease_map,
    "random walk": random_walk,
    "gaussian process": gaussian_process,
    "survival": survival,
    "crossed": crossed,
}
