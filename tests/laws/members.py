"""Every member of every kind, one row each, on a tiny problem: what the laws of this folder run over.

A new algorithm, target, family, likelihood, kernel, schedule or estimator is one row here; `test_lists.py` fails until
it has one. What a row makes depends on a `number`: another number is another problem of the same shapes, with other
data, step sizes, scales, ..., which must share the compiled program of the first.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from provi import estimators, families, kernels, schedules, targets
from provi.algorithms import (
    MISO,
    MISSO,
    MPSGD,
    PGSVI,
    SAG,
    DualNaturalGradient,
    KLToPrior,
    NaturalGradient,
    Optax,
    PacedMISSO,
    Projected,
    ProjectedSGD,
    ProjSGD,
    ProximalGradient,
    ProxSGD,
    QuadraticSurrogate,
    SiteTable,
    Split,
    StochasticNaturalGradient,
    adagrad,
    adam,
    bayes_by_backprop,
    momentum,
)
from provi.algorithms.mirror.conjugate_svi import (
    AbstractConjugateModel,
    ConjugateSplit,
    LocalAnswer,
    StochasticMirrorDescent,
    Visits,
)
from provi.algorithms.natural.iterative_natural_gradient import IterativeNaturalGradient
from provi.families import exponential
from provi.families.base import AnyParameters
from provi.families.richer import Frame
from provi.geometry import BlockPreconditioner
from provi.geometry.divergences import KL
from provi.targets import likelihoods
from support.blocks import START, least_squares, noisy_least_squares
from support.blocks import X as ROWS
from support.blocks import Y as RESPONSES
from support.members import DIM, RANK, family_of, point_of
from support.members import FAMILIES as LOCATION_SCALE

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(8, 3)), np.array([0, 1, 1, 0, 1, 0, 1, 1])
COUNTS, REAL, GROUPS = np.array([0, 3, 1, 0, 12, 2, 5, 1]), RNG.normal(size=8), np.array(list("bacabcca"))
MEAN = np.array([0.3, -0.2, 0.1])
COVARIANCE = np.array([[1.3, 0.4, -0.3], [0.4, 0.9, 0.1], [-0.3, 0.1, 0.6]])
FACTOR = np.array([[2.0, 0.0, 0.0], [0.3, 0.5, 0.0], [-0.7, 0.2, 1.5]])


# Kernels: a function of a number and of the number of columns.


def ard(number: float, columns: int) -> np.ndarray:
    return number * np.linspace(0.6, 2.2, columns)


class Kernel(NamedTuple):
    make: Callable[[float, int], Any]
    differentiable: bool = True
    """In the points, where two of them coincide."""


KERNELS = {
    "squared exponential": Kernel(lambda s, d: kernels.SquaredExponential(0.7 * s, 1.4)),
    "squared exponential, ARD": Kernel(lambda s, d: kernels.SquaredExponential(ard(s, d), 1.4)),
    "matern 1/2": Kernel(lambda s, d: kernels.Matern12(0.7 * s, 1.4), differentiable=False),
    "matern 1/2, ARD": Kernel(lambda s, d: kernels.Matern12(ard(s, d), 1.4), differentiable=False),
    "matern 3/2": Kernel(lambda s, d: kernels.Matern32(0.7 * s, 1.4)),
    "matern 5/2, ARD": Kernel(lambda s, d: kernels.Matern52(ard(s, d), 1.4)),
    "periodic": Kernel(lambda s, d: kernels.Periodic(0.7 * s, 1.2, 1.4)),
    "periodic, ARD": Kernel(lambda s, d: kernels.Periodic(ard(s, d), ard(s, d) + 0.5, 1.4)),
    "linear": Kernel(lambda s, d: kernels.Linear(0.8 * s, 0.5)),
    "constant": Kernel(lambda s, d: kernels.Constant(0.8 * s)),
    "white": Kernel(lambda s, d: kernels.White(0.8 * s)),
    "sum": Kernel(lambda s, d: kernels.Matern32(0.9 * s) + kernels.White(0.4) + 0.3),
    "product": Kernel(
        lambda s, d: kernels.SquaredExponential(0.7 * s, columns=(0, 2)) * kernels.Linear(ard(s, d), 0.6)
    ),
    "mixture": Kernel(
        lambda s, d: kernels.SquaredExponential(0.7) * kernels.Linear(0.8, 0.5) + s * kernels.Matern12(2.0), False
    ),
}


# Likelihoods: a function of a number, and responses that it takes.


class Likelihood(NamedTuple):
    make: Callable[[float], Any]
    responses: tuple[float, float]


def logistic_noise(y, eta):
    """log density of y - eta with a logistic law: smooth and concave in eta."""
    z = y - eta
    return -z - 2 * jax.nn.softplus(-z)


def same(y):
    return y


LIKELIHOODS = {
    "logit": Likelihood(lambda s: likelihoods.BernoulliLogit(), (0.0, 1.0)),
    "probit": Likelihood(lambda s: likelihoods.BernoulliProbit(), (0.0, 1.0)),
    "poisson": Likelihood(lambda s: likelihoods.Poisson(), (0.0, 3.0)),
    "gaussian": Likelihood(lambda s: likelihoods.GaussianNoise(0.7 * s), (-1.5, 2.0)),
    "t": Likelihood(lambda s: likelihoods.StudentT(4.0 * s, 0.5 * s), (-1.5, 2.0)),
    "cauchy": Likelihood(lambda s: likelihoods.StudentT(1.0 * s, 0.1 * s), (-1.5, 2.0)),
    "binomial": Likelihood(lambda s: likelihoods.NegativeBinomial(0.3 * s), (0.0, 5.0)),
    "wide binomial": Likelihood(lambda s: likelihoods.NegativeBinomial(20.0 * s), (0.0, 40.0)),
    "ordinal": Likelihood(lambda s: likelihoods.OrdinalLogit(s * np.array([-1.0, 0.5, 3.0])), (0.0, 2.0)),
    "wide ordinal": Likelihood(lambda s: likelihoods.OrdinalLogit(s * np.array([-4.0, 4.0])), (1.0, 2.0)),
    "weibull": Likelihood(lambda s: likelihoods.Weibull(1.5 * s), (0.7, -2.0)),
    "log-normal": Likelihood(lambda s: likelihoods.LogNormalSurvival(0.8 * s), (0.7, -2.0)),
    "share": Likelihood(lambda s: likelihoods.BernoulliLogit(fractional=True), (0.25, 0.9)),
    "probit share": Likelihood(lambda s: likelihoods.BernoulliProbit(fractional=True), (0.25, 0.9)),
    "user": Likelihood(
        lambda s: likelihoods.UserLikelihood(logistic_noise, log_concave=True, centre=same, width=s), (-1.5, 2.0)
    ),
}


# Targets: a function of a floating type and of a number.


class Plain(eqx.Module):
    """A log density whose numbers are leaves."""

    scales: jax.Array

    def __call__(self, z):
        return -0.5 * jnp.sum((z / self.scales) ** 2)


class Constrained(eqx.Module):
    """Of parameters in the sets of `CONSTRAINTS`."""

    rate: jax.Array

    def __call__(self, z):
        total = -self.rate * z["scale"] + 2 * jnp.log(z["scale"]) - jnp.sum(z["share"] ** 2)
        return total - jnp.sum(z["place"] ** 2) - 0.5 * jnp.sum((z["loc"] - z["cuts"]) ** 2)


CONSTRAINTS = {"scale": "positive", "share": targets.interval(0.0, 1.0), "place": "simplex", "cuts": "ordered"}


def constrained(dtype: Any, number: float) -> Any:
    values = {"scale": 1.0, "share": [0.3, 0.6], "place": [0.2, 0.5, 0.3], "loc": [0.1, -0.4], "cuts": [-1.0, 0.5]}
    example = {name: np.asarray(value, dtype) for name, value in values.items()}
    return targets.LogDensity(Constrained(np.asarray(number, dtype)), example, constraints=CONSTRAINTS)


def regression(kind: Any, response: Any, **options: Any) -> Callable[[Any, float], Any]:
    """With a full prior covariance and a mean, scaled by the number, as are the data."""

    def make(dtype, number):
        prior = {"prior_covariance": number * COVARIANCE, "prior_mean": number * MEAN}
        return kind(number * X.astype(dtype), response, **prior, **options)

    return make


def hierarchical(prior: float, group: float) -> Callable[[Any, float], Any]:
    def make(dtype, number):
        rows = number * X[:, :2].astype(dtype)
        return targets.HierarchicalLogisticRegression(rows, LABELS, GROUPS, number * prior, group)

    return make


def hierarchical_matrices(dtype, number):
    within, between = np.array([[0.3, -0.2], [-0.2, 0.9]]), number * np.array([[2.0, 0.9], [0.9, 0.5]])
    return targets.HierarchicalLogisticRegression(
        X[:, :2].astype(dtype), LABELS, GROUPS, prior_covariance=between, group_covariance=within
    )


NET = eqx.nn.MLP(3, 2, 4, 1, activation=jnp.tanh, key=jax.random.key(0))


def network(dtype: Any, number: float) -> Any:
    return targets.BayesianNetwork(NET, number * X, LABELS, prior_sd=number, dtype=dtype)


def whitened(kind: Any) -> Callable[[Any, float], Any]:
    logistic = regression(targets.LogisticRegression, LABELS)
    return lambda dtype, number: kind(logistic(dtype, number), number * MEAN, number * FACTOR)


def kernel(number: float) -> Any:
    return kernels.SquaredExponential(0.8, 1.5 * number)


TARGETS: dict[str, Callable[[Any, float], Any]] = {
    "linear": lambda dtype, s: regression(targets.LinearRegression, REAL, noise_scale=0.7 * s)(dtype, s),
    "logistic": regression(targets.LogisticRegression, LABELS),
    "poisson": regression(targets.PoissonRegression, COUNTS),
    "probit": regression(targets.ProbitRegression, LABELS),
    "generalised": lambda dtype, s: regression(
        targets.GeneralisedLinearModel, COUNTS, likelihood=likelihoods.NegativeBinomial(1.7 * s)
    )(dtype, s),
    "multinomial": regression(targets.MultinomialLogistic, np.minimum(COUNTS, 2), weights=1.0 + LABELS),
    "student t": regression(targets.StudentTRegression, REAL, offset=0.1 * COUNTS, weights=1.0 + LABELS),
    "hierarchical": hierarchical(1.5, 0.6),
    "hierarchical, free groups": hierarchical(0.2, 3.0),
    "hierarchical, tied groups": hierarchical(100.0, 0.01),
    "hierarchical, matrices": hierarchical_matrices,
    "gaussian": lambda dtype, s: targets.Gaussian(s * MEAN.astype(dtype), s * COVARIANCE),
    "log density": lambda dtype, s: targets.LogDensity(
        Plain(np.asarray(s * np.array([0.5, 1.0, 2.0]), dtype)), 3, 0.25 / s**2, 4.0 / s**2, dtype=dtype
    ),
    "log density with constraints": constrained,
    "gaussian process": lambda dtype, s: targets.GaussianProcess(X.astype(dtype), LABELS, kernel(s), jitter=0.1),
    "sparse gaussian process": lambda dtype, s: targets.SparseGaussianProcess(
        X.astype(dtype), LABELS, X[:4], kernel(s), relative_jitter=1e-3
    ),
    "network": network,
    "whitened": whitened(targets.Whitened),
    "whitened sum": whitened(targets.WhitenedFiniteSum),
}


# Families: a function of a floating type and of a number, which gives a family and a point of it.


def location_scale(base: str, scale: str) -> Callable[[Any, float], Any]:
    def make(dtype, number):
        family = family_of(base, scale)
        if base == "student_t":
            family = families.LocationScale(DIM, families.StudentT(12.0 * number), scale, rank=RANK)
        return family, jax.tree.map(lambda leaf: leaf * np.asarray(number, dtype), point_of(family, dtype))

    return make


def dual(target: Callable[[Any, float], Any]) -> Callable[[Any, float], Any]:
    def make(dtype, number):
        family = families.dual_gaussian(target(dtype, number))
        values = number * np.linspace(-0.4, 0.6, family.num_sites)
        return family, families.DualPoint(*(jnp.asarray(x, dtype) for x in (values, values**2)))

    return make


def richer(family: Any) -> Callable[[Any, float], Any]:
    """A member whose every parameter differs from that of the first point."""

    def make(dtype, number):
        frame = Frame(jnp.asarray(MEAN, dtype), jnp.asarray(FACTOR, dtype))
        point = family.first_point((frame,), np.ones(1))
        return family, jax.tree.map(lambda leaf: leaf + jnp.asarray(0.05 * number, leaf.dtype), point)

    return make


FAMILIES: dict[str, Callable[[Any, float], Any]] = {
    "student": richer(families.Student(DIM)),
    "flow": richer(families.Flow(DIM, 2, 4)),
    "mixture": richer(families.GaussianMixture(DIM, 2)),
    **{f"{base}, {scale}": location_scale(base, scale) for base, scale in LOCATION_SCALE},
    "dual, process": dual(TARGETS["gaussian process"]),
    "dual, negative sites": dual(
        lambda dtype, s: targets.GaussianProcess(X.astype(dtype), REAL, kernel(s), likelihoods.StudentT(3.0, 0.5 * s))
    ),
    "dual, linear model": dual(TARGETS["logistic"]),
}

EXPONENTIAL = {
    "bernoulli": exponential.Bernoulli(3),
    "categorical": exponential.Categorical(4),
    "gamma": exponential.Gamma(),
    "dirichlet": exponential.Dirichlet(3),
    "gaussian": exponential.DiagonalGaussian(1),
    "diagonal": exponential.DiagonalGaussian(2),
    "full": exponential.FullGaussian(2),
    "unit": exponential.UnitGaussian(2),
}


# Algorithms: a function of a number, and the problem it is run on.


class Problem(NamedTuple):
    target: Any
    family: Any
    start: Any


class Algorithm(NamedTuple):
    make: Callable[[float], Any]
    problem: Callable[[Any, float], Problem]
    stochastic: bool = True
    """Another seed gives another answer."""
    vmap: bool = False
    """`init`, `step` and `output` may be batched over keys."""
    locates: bool = True
    """A step that is not finite is counted, located and after some more ends the run. The natural-gradient methods that
    judge their own trials take such a step for a rejected trial: the point stays, and nobody is told."""
    records: bool = True
    """Has values of what it minimises; one that has none leaves the history empty."""


def logistic(scale: str = "triangular", base: Any = None) -> Callable[[Any, float], Problem]:
    family = families.LocationScale(DIM, base or families.Normal(), scale, rank=RANK)

    def problem(dtype, number):
        start = jax.tree.map(lambda leaf: leaf * np.asarray(number, dtype), point_of(family, dtype))
        return Problem(TARGETS["logistic"](dtype, number), family, start)

    return problem


def process(dtype: Any, number: float) -> Problem:
    target = TARGETS["gaussian process"](dtype, number)
    family = families.dual_gaussian(target)
    return Problem(target, family, family.prior_point())


def noise(key, row):
    """Of the data's own type: what a loss returns is kept as it is."""
    return jax.random.normal(key, row[0].shape, row[0].dtype)


def terms(loss: Any = noisy_least_squares, **options: Any) -> Callable[[Any, float], Problem]:
    draws = {"sample": noise} if loss is noisy_least_squares else {}

    def problem(dtype, number):
        data = tuple(number * array.astype(dtype) for array in (ROWS, RESPONSES))
        surrogate = QuadraticSurrogate(loss, data, 2.0 * number, **draws, **options)
        return Problem(surrogate, AnyParameters(), jnp.asarray(number * START, dtype))

    return problem


GROWING = schedules.PolynomialBatch(1, 0.7)
ADAM, MOMENTUM, PLAIN = optax.adam(0.05), optax.sgd(0.01, 0.9), optax.scale_by_adam()

PROXIMAL = {
    "prox": Algorithm(lambda s: ProxSGD(0.05 * s, round(3 * s)), logistic(), vmap=True),
    "prox, symmetric": Algorithm(lambda s: ProxSGD(0.05 * s, 3), logistic("symmetric"), vmap=True),
    "prox, anchored average": Algorithm(
        lambda s: ProxSGD(0.05, averaging=schedules.GeometricAverage(0.9 / s, of="after"), anchored=True),
        logistic(),
        vmap=True,
    ),
    "prox, score": Algorithm(
        lambda s: ProxSGD(
            0.01 * s, 4, estimator=estimators.ScoreFunction(), data_sampling=schedules.UniformSampling(5)
        ),
        logistic(),
        vmap=True,
    ),
    "proj": Algorithm(
        lambda s: ProjSGD(schedules.StronglyConvexStep(0.1 * s, 1.0 * s), GROWING), logistic("symmetric"), vmap=True
    ),
    "proj, low rank": Algorithm(lambda s: ProjSGD(0.1 * s, GROWING), logistic("low_rank"), vmap=True),
    "proj, STL": Algorithm(
        lambda s: ProjSGD(
            0.05 * s,
            estimator=estimators.StickingTheLanding(),
            data_sampling=schedules.ReshuffledSampling(4),
            smallest_scale=0.01 * s,
        ),
        logistic("symmetric"),
        vmap=True,
    ),
    "mpsgd": Algorithm(
        lambda s: MPSGD(
            schedules.PolynomialStep(0.05 * s, 0.5 * s),
            schedules.PolynomialBatch(round(2 * s), 0.5 * s, round(10 * s)),
            BlockPreconditioner(1.0 * s, 0.5 * s),
            averaging=schedules.NoiseWeightedAverage(5.0 * s),
            smallest_scale=0.02 * s,
        ),
        logistic("symmetric"),
        vmap=True,
    ),
    "mpsgd, diagonal": Algorithm(lambda s: MPSGD(0.05 * s, GROWING), logistic("diagonal"), vmap=True),
    "optax": Algorithm(lambda s: Optax(ADAM, round(2 * s), smallest_scale=1e-8 * s), logistic(), vmap=True),
    "optax, low rank": Algorithm(lambda s: Optax(ADAM, round(2 * s)), logistic("low_rank"), vmap=True),
    "optax, heavy tails": Algorithm(
        lambda s: Optax(MOMENTUM, 2, estimators.Entropy(), schedules.GeometricAverage(0.5 / s)),
        # The degrees of freedom are a leaf of the family.
        lambda dtype, s: logistic("diagonal", families.StudentT(9.0 * s))(dtype, s),
        vmap=True,
    ),
}

NATURAL = {
    "natural gradient": Algorithm(
        lambda s: NaturalGradient(step_size=1.5 * s), logistic(), stochastic=False, locates=False
    ),
    "natural gradient, diagonal": Algorithm(
        lambda s: NaturalGradient(from_curvature=s > 1), logistic("diagonal"), stochastic=False, locates=False
    ),
    "stochastic natural gradient": Algorithm(
        lambda s: StochasticNaturalGradient(round(128 * s), largest_step=0.5 / s), logistic("symmetric"), vmap=True
    ),
    # One block of rows: the order of the blocks, its only randomness, is no matter.
    "site table": Algorithm(lambda s: SiteTable(), logistic(), stochastic=False),
    "dual natural gradient": Algorithm(
        lambda s: DualNaturalGradient(0.5 * s), process, stochastic=False, locates=False
    ),
    "iterative natural gradient": Algorithm(
        lambda s: IterativeNaturalGradient(0.5 * s, 1e-6 * s), process, stochastic=False, locates=False
    ),
    "pgsvi": Algorithm(
        lambda s: PGSVI(rho=0.5 / s, batch_size=4, num_samples=8, halve_on_stall=True, sampling="uniform"), process
    ),
    "pgsvi, columns": Algorithm(
        lambda s: PGSVI(rho=0.2 * s, batch_size=schedules.NoiseBatch(6, 0.5 / s, 3)), logistic()
    ),
}

INCREMENTAL = {
    # With exact expectations and blocks of two in a random order.
    "miso": Algorithm(lambda s: MISO(2), terms(least_squares)),
    "misso": Algorithm(lambda s: MISSO(2, round(3 * s)), terms()),
    "misso of a target": Algorithm(lambda s: MISSO(1, round(3 * s)), logistic()),
    "paced misso, half precision": Algorithm(
        lambda s: PacedMISSO(PLAIN, 0.1 * s, 2, round(2 * s)), terms(table_dtype="bfloat16")
    ),
    "paced misso, no table": Algorithm(lambda s: PacedMISSO(PLAIN, 0.1 * s, 4, table=False), terms()),
    "sag": Algorithm(lambda s: SAG(0.05 * s, 2, round(3 * s)), terms()),
    "adam": Algorithm(lambda s: adam(0.05 * s, sampling=2, num_draws=GROWING), terms()),
    "adagrad": Algorithm(lambda s: adagrad(0.05 * s, sampling=2), terms()),
    "momentum": Algorithm(lambda s: momentum(0.05 * s, 0.8, sampling=2), terms()),
    "bayes by backprop": Algorithm(lambda s: bayes_by_backprop(0.05 * s, sampling=2, num_draws=round(2 * s)), terms()),
}


class Bowl(eqx.Module):
    """(m - centre)^2 + v."""

    centre: jax.Array

    def __call__(self, w):
        return (w[0] - self.centre) ** 2 + w[1]


def split(dtype: Any, number: float) -> Problem:
    prior = jnp.asarray(np.array([0.0, -0.5 * number]), dtype)
    target = Split(Bowl(jnp.asarray(number, dtype)), penalty=KLToPrior(prior))
    coordinates = exponential.Coordinates(exponential.DiagonalGaussian(1), "moments")
    return Problem(target, coordinates, jnp.asarray(number * np.array([2.0, 3.0]), dtype))


class Categories(AbstractConjugateModel):
    """Counts with a Dirichlet prior and no local factors."""

    prior: jax.Array

    def local_step(self, natural, rows):
        expected = exponential.Dirichlet(3).mean_from_natural(natural)
        return LocalAnswer(jnp.sum(rows, axis=0), jnp.sum(rows @ expected))

    def divergence(self, natural):
        return exponential.Dirichlet(3).kl(natural, self.prior)


def conjugate(dtype: Any, number: float) -> Problem:
    def array(values):
        return jnp.asarray(number * np.asarray(values), dtype)

    rows = array(np.eye(3)[[0, 0, 1, 2, 2, 2, 1, 0]])
    batches = jnp.asarray(np.arange(8, dtype=np.int32).reshape(2, 4))
    visits = Visits((batches,), (jnp.asarray(2.0, dtype),), jnp.asarray([0.3, 0.2], dtype))
    target = ConjugateSplit(Categories(array([0.5, 1.0, 2.0])), (rows,), visits)
    return Problem(target, AnyParameters(), array([3.0, 1.5, 0.7]))


class NoisyBowl(eqx.Module):
    """One draw of the gradient of |theta - centre|^2/2."""

    centre: jax.Array

    def __call__(self, key, theta):
        return theta - self.centre + 0.3 * jax.random.normal(key, theta.shape, theta.dtype)


class UnitBox(eqx.Module):
    """The projection on [0, 1]^n."""

    def __call__(self, theta):
        return jnp.clip(theta, 0, 1)


def projected(dtype: Any, number: float) -> Problem:
    target = Projected(NoisyBowl(jnp.asarray(number * np.array([0.5, 2.0]), dtype)), UnitBox())
    return Problem(target, AnyParameters(), jnp.asarray(number * np.array([0.2, 0.3]), dtype))


PROXIMAL["projected sgd"] = Algorithm(lambda s: ProjectedSGD(0.3 * s, GROWING, 0.2 * s, 1.0), projected, records=False)

MIRROR = {
    "proximal gradient": Algorithm(lambda s: ProximalGradient(KL(), 0.3 * s), split, stochastic=False),
    # Its batches are drawn by the host, and part of the target.
    "stochastic mirror descent": Algorithm(
        lambda s: StochasticMirrorDescent(tolerance=jnp.asarray(1e-3 * s), automatic=jnp.asarray(True)),
        conjugate,
        stochastic=False,
    ),
}

ALGORITHMS = PROXIMAL | NATURAL | INCREMENTAL | MIRROR


# The parts of algorithms: a function of a number.

STEP_SIZES: dict[str, Callable[[float], Any]] = {
    "constant": lambda s: schedules.ConstantStep(0.1 * s),
    "polynomial": lambda s: schedules.PolynomialStep(0.1 * s, 0.3 * s),
    "strongly convex": lambda s: schedules.StronglyConvexStep(0.1 * s, 2.0 * s),
}
BATCH_SIZES: dict[str, Callable[[float], Any]] = {
    "constant": lambda s: schedules.ConstantBatch(round(3 * s)),
    "polynomial": lambda s: schedules.PolynomialBatch(round(2 * s), 0.7 * s, round(40 * s)),
    "offset": lambda s: schedules.OffsetPolynomialBatch(round(10 * s), 0.7 * s, 0.5 * s, round(40 * s)),
    "function": lambda s: schedules.FunctionBatch(same, round(4 * s)),
}
SAMPLINGS: dict[str, Callable[[float], Any]] = {
    # The size of a batch is a shape.
    "uniform": lambda s: schedules.UniformSampling(3),
    "reshuffled": lambda s: schedules.ReshuffledSampling(3),
}
AVERAGINGS: dict[str, Callable[[float], Any]] = {
    "last": lambda s: schedules.LastIterate(),
    "geometric": lambda s: schedules.GeometricAverage(0.9 / s, of="after"),
    "noise weighted": lambda s: schedules.NoiseWeightedAverage(5.0 * s),
}
ESTIMATORS = {
    "energy": estimators.Energy(),
    "entropy": estimators.Entropy(),
    "sticking the landing": estimators.StickingTheLanding(),
    "score function": estimators.ScoreFunction(),
}
