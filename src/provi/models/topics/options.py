"""The arguments of `CorrelatedTopicModel`, checked before any work."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from provi.core.checks import check_count, check_positive
from provi.models.topics.e_step import INFERENCES, LocalSettings
from provi.models.topics.global_steps import GlobalSettings
from provi.models.topics.training import Passes

_CHOICES = {
    "covariance": ("full", "diagonal"),
    "inference": INFERENCES,
    "learning_rate": ("automatic", "decay"),
}

_OWN_COVARIANCE = {"laplace": "full", "delta": "full", "mean-field": "diagonal"}


class Options(NamedTuple):
    """The arguments with their final types. `visit` is for documents that `fit` goes back to, `converge` for others."""

    num_topics: int
    visit: LocalSettings
    converge: LocalSettings
    word_prior: float
    shrinkage: float
    passes: Passes
    total: float | None


def read_options(model: Any) -> Options:
    """The arguments of an estimator, or a `ValueError` that names the wrong one."""
    for name, choices in _CHOICES.items():
        if getattr(model, name) not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {getattr(model, name)!r}.")
    for name in ("tol", "local_tol", "learning_offset"):
        if not getattr(model, name) >= 0:
            raise ValueError(f"{name} must not be negative, but is {getattr(model, name)}.")
    if not 0 < model.learning_decay <= 1:
        raise ValueError(f"learning_decay must be in (0, 1], not {model.learning_decay}; 0.5 < decay <= 1 converges.")
    if not 0 < model.covariance_shrinkage <= 1:
        raise ValueError(f"covariance_shrinkage must be in (0, 1], not {model.covariance_shrinkage}.")
    num_topics = check_count("n_components", model.n_components)
    draws = 2 * num_topics if model.num_draws is None else check_count("num_draws", model.num_draws)
    limit = check_count("max_local_iter", model.max_local_iter)
    form = str(_OWN_COVARIANCE.get(model.inference, model.covariance))
    converge = LocalSettings(model.inference, form, draws, float(model.local_tol), limit)
    visit = converge._replace(max_steps=min(limit, check_count("steps_per_visit", model.steps_per_visit)))
    forgetting = (float(model.learning_offset), float(model.learning_decay))
    passes = Passes(
        check_count("max_iter", model.max_iter),
        check_count("batch_size", model.batch_size),
        forgetting,
        model.learning_rate == "automatic",
        float(model.tol),
        bool(model.progress),
    )
    word_prior = check_positive("topic_word_prior", model.topic_word_prior)
    total = None if model.total_samples is None else check_positive("total_samples", model.total_samples)
    return Options(num_topics, visit, converge, word_prior, float(model.covariance_shrinkage), passes, total)


def global_settings(options: Options, total: float | int, dtype: Any) -> GlobalSettings:
    """The numbers of the M-step as arrays."""
    numbers = (options.word_prior, options.shrinkage, total)
    return GlobalSettings(*(jnp.asarray(np.asarray(number, dtype)) for number in numbers))


def given_topics(components: Any, shape: tuple[int, int]) -> np.ndarray:
    """`components_init` (topics, vocabulary), positive numbers, as p(word | topic), (vocabulary, topics)."""
    given = np.asarray(components, np.float64)
    if given.shape != shape or not (given > 0).all() or not np.isfinite(given).all():
        raise ValueError(f"components_init must be positive numbers of shape {shape}, not of shape {given.shape}.")
    return (given / given.sum(axis=1, keepdims=True)).T
