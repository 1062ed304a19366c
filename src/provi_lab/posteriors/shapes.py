"""Shapes that a Gaussian is not: mixtures, several modes, heavy tails, curved ridges, simplices."""

# NumPyro says of a site only that it is an array or a number.
# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalSubscript=false, reportOptionalOperand=false, reportCallIssue=false

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from provi_lab.posteriors.posterior import Moments, Posterior, generator

_ORDERED = dist.transforms.OrderedTransform()


def _mixture_of(means: Any, scales: Any, weights: Any) -> tuple[Any, Any]:
    """The density of a mixture of Gaussians, and its moments."""
    means, scales, weights = np.asarray(means, float), np.asarray(scales, float), np.asarray(weights, float)

    def model() -> None:
        parts = dist.Normal(means, scales[:, None]).to_event(1)
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(probs=jnp.asarray(weights)), parts))

    def moments() -> Moments:
        mean = weights @ means
        second = weights @ (means**2 + scales[:, None] ** 2)
        return {"x": (mean, np.sqrt(second - mean**2))}

    return model, moments


_two_modes, _two_modes_moments = _mixture_of([[0.0] * 3, [8.0] * 3], [1.0, 1.0], [0.3, 0.7])
_far_mode, _far_mode_moments = _mixture_of([[0.0] * 2, [20.0] * 2], [1.0, 1.0], [0.01, 0.99])
_four_modes, _four_modes_moments = _mixture_of(
    [[-4, -4], [-4, 4], [4, -4], [4, 5]], [0.5, 0.8, 1.0, 0.6], [0.1, 0.2, 0.3, 0.4]
)
_shoulder, _shoulder_moments = _mixture_of([[0.0] * 4, [2.5] * 4], [1.0, 1.5], [0.6, 0.4])


def banana() -> None:
    a = numpyro.sample("a", dist.Normal(0, 1))
    numpyro.sample("b", dist.Normal(a**2 - 1, 0.5))


def _banana_moments() -> Moments:
    """Var b = Var a^2 + 1/4."""
    return {"a": (np.zeros(()), np.ones(())), "b": (np.zeros(()), np.array(1.5))}


def student() -> None:
    numpyro.sample("x", dist.MultivariateStudentT(5.0, jnp.zeros(4), jnp.linalg.cholesky(0.5 * jnp.eye(4) + 0.5)))


def _student_moments() -> Moments:
    return {"x": (np.zeros(4), np.full(4, np.sqrt(5 / 3)))}


def independent_tails() -> None:
    """Coordinates with tails of their own; the variance of the heaviest is three times its squared scale."""
    numpyro.sample("x", dist.StudentT(jnp.array([6.0, 8.0, 12.0, 5.0]), 0.0, 1.0).to_event(1))


def _independent_tails_moments() -> Moments:
    df = np.array([6.0, 8.0, 12.0, 5.0])
    return {"x": (np.zeros(4), np.sqrt(df / (df - 2)))}


def cauchy_data(y: Any) -> None:
    """Location and scale of Cauchy data: few rows, heavy tails."""
    centre, width = numpyro.sample("centre", dist.Normal(0, 10)), numpyro.sample("width", dist.HalfNormal(5))
    numpyro.sample("y", dist.Cauchy(centre, width), obs=y)


def _cauchy_data() -> tuple[Any, ...]:
    return (1 + generator(51).standard_cauchy(8),)


_SHAPE = np.array([1.0, 2.0, 4.0])


def skewed() -> None:
    """Logarithms of gamma variables: every coordinate skewed."""
    log = dist.transforms.ExpTransform().inv
    numpyro.sample("x", dist.TransformedDistribution(dist.Gamma(jnp.asarray(_SHAPE), 1.0).to_event(1), log))


def _skewed_moments() -> Moments:
    """Digamma and trigamma."""
    from scipy.special import polygamma

    return {"x": (polygamma(0, _SHAPE), np.sqrt(polygamma(1, _SHAPE)))}


def mixture_ordered(y: Any) -> None:
    means = numpyro.sample("means", dist.TransformedDistribution(dist.Normal(0, 2).expand([2]).to_event(1), _ORDERED))
    scales = numpyro.sample("scales", dist.HalfNormal(1.5).expand([2]).to_event(1))
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    parts = dist.Normal(means, scales)
    weights = dist.Categorical(probs=jnp.stack([share, 1 - share]))
    numpyro.sample("y", dist.MixtureSameFamily(weights, parts), obs=y)


def _mixture_data() -> tuple[Any, ...]:
    rng = generator(52)
    return (np.where(rng.random(60) < 0.35, -1.5 + 0.7 * rng.normal(size=60), 1.5 + rng.normal(size=60)),)


def _labels(means: Any, y: Any) -> None:
    parts = dist.Normal(means, 1.0)
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=jnp.array([0.5, 0.5])), parts), obs=y)


def switching_labels(y: Any) -> None:
    """A mixture whose labels may be exchanged: two modes of equal weight."""
    _labels(numpyro.sample("means", dist.Normal(0, 3).expand([2]).to_event(1)), y)


def _one_labelling(y: Any) -> None:
    """The same density on the half where the first mean is the smaller."""
    means = numpyro.sample("means", dist.ImproperUniform(dist.constraints.ordered_vector, (), (2,)))
    numpyro.factor("prior", jnp.sum(dist.Normal(0, 3).log_prob(means)))
    _labels(means, y)


def _both_labellings(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    means = draws["means"]
    return {"means": np.where(_coins(means), means, means[..., ::-1])}


def _coins(draws: np.ndarray) -> np.ndarray:
    """Which of two symmetric halves a draw is put in, at random: the halves hold the same mass."""
    return generator(0).random(draws.shape[:2])[..., None] < 0.5


def _labels_data() -> tuple[Any, ...]:
    rng = generator(53)
    return (np.r_[-2 + rng.normal(size=12), 2 + rng.normal(size=12)],)


def three_parts(y: Any) -> None:
    base = dist.Normal(0, 2).expand([3]).to_event(1)
    means = numpyro.sample("means", dist.TransformedDistribution(base, _ORDERED))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(3, 3.0)))
    noise = numpyro.sample("noise", dist.LogNormal(-0.5, 0.4))
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Normal(means, noise)), obs=y)


def _three_parts_data() -> tuple[Any, ...]:
    rng = generator(54)
    return (np.array([-3.0, 0.0, 3.0])[rng.choice(3, 80, p=[0.3, 0.3, 0.4])] + 0.7 * rng.normal(size=80),)


_COUNTS = np.array([3, 7, 1, 12, 0])


def simplex() -> None:
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(5)))
    numpyro.sample("n", dist.Multinomial(int(_COUNTS.sum()), p), obs=_COUNTS)


def _simplex_moments() -> Moments:
    a = _COUNTS + 1.0
    mean = a / a.sum()
    return {"p": (mean, np.sqrt(mean * (1 - mean) / (a.sum() + 1)))}


def sum_of_two(y: Any) -> None:
    """Only the product of two positive numbers is seen: a ridge along a hyperbola."""
    a, b = numpyro.sample("a", dist.LogNormal(0, 1)), numpyro.sample("b", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(a * b, 0.5), obs=y)


def _sum_of_two_data() -> tuple[Any, ...]:
    return (np.array([2.0, 2.4, 1.7]),)


_LOADINGS = np.array([1.0, 0.8, -0.6, 0.5])


def sign_of_factor(y: Any) -> None:
    """One factor behind four columns: its sign is not determined."""
    loadings = numpyro.sample("loadings", dist.Normal(0, 1).expand([4]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1).expand([4]).to_event(1))
    _factor(loadings, noise, y)


def _factor(loadings: Any, noise: Any, y: Any) -> None:
    covariance = loadings[:, None] * loadings + jnp.diag(noise**2)
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(4), covariance), obs=y)


def _both_signs(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Chains stay at one sign or the other: the same distribution but for it, which is then drawn."""
    loadings = draws["loadings"]
    loadings = loadings * np.where(loadings @ _LOADINGS > 0, 1, -1)[..., None]
    return {"loadings": np.where(_coins(loadings), loadings, -loadings), "noise": draws["noise"]}


def _factor_data() -> tuple[Any, ...]:
    rng = generator(55)
    return (rng.normal(size=(40, 1)) * _LOADINGS + 0.6 * rng.normal(size=(40, 4)),)


SHAPES = [
    Posterior("two_modes", "multimodal", _two_modes, exact=_two_modes_moments),
    Posterior("far_mode", "multimodal", _far_mode, exact=_far_mode_moments),
    Posterior("four_modes", "multimodal", _four_modes, exact=_four_modes_moments),
    Posterior("shoulder", "multimodal", _shoulder, exact=_shoulder_moments),
    Posterior(
        "switching_labels",
        "multimodal",
        switching_labels,
        _labels_data,
        reference=_one_labelling,
        complete=_both_labellings,
    ),
    Posterior("sign_of_factor", "multimodal", sign_of_factor, _factor_data, complete=_both_signs),
    Posterior("banana", "curved", banana, exact=_banana_moments),
    Posterior("product", "curved", sum_of_two, _sum_of_two_data),
    Posterior("student", "heavy tails", student, exact=_student_moments),
    Posterior("independent_tails", "heavy tails", independent_tails, exact=_independent_tails_moments),
    Posterior("cauchy_data", "heavy tails", cauchy_data, _cauchy_data),
    Posterior("skewed", "skewed", skewed, exact=_skewed_moments),
    Posterior("mixture_ordered", "mixture", mixture_ordered, _mixture_data),
    Posterior("three_parts", "mixture", three_parts, _three_parts_data),
    Posterior("simplex", "simplex", simplex, exact=_simplex_moments),
]
