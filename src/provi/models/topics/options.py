"""The arguments of `CorrelatedTopicModel`, checked before any work."""

import numbers
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from provi.core.arguments import as_array, available_bytes, check_count, check_positive, device_array
from provi.models.topics.e_step import INFERENCES, LocalSettings
from provi.models.topics.global_steps import GlobalSettings
from provi.models.topics.training import Passes

_CHOICES = {
    "covariance": ("full", "diagonal"),
    "inference": INFERENCES,
    "learning_rate": ("automatic", "decay"),
}

_NUMBERS = (
    "n_components max_iter batch_size tol learning_offset learning_decay num_draws local_tol max_local_iter "
    "steps_per_visit topic_word_prior covariance_shrinkage total_samples"
).split()
_NONE_ALLOWED = ("num_draws", "tol", "total_samples")

_OWN_COVARIANCE = {"laplace": "full", "delta": "full", "mean-field": "diagonal"}


_PADDING, _TOPIC_ARRAYS = 1.5, 8


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
    for name in _NUMBERS:
        value = getattr(model, name)
        if not (isinstance(value, numbers.Real) or (value is None and name in _NONE_ALLOWED)):
            raise ValueError(f"{name} must be a number, not {value!r}.")
    if model.callback is not None and not callable(model.callback):
        raise ValueError(f"callback must be None or a function of the model, not {model.callback!r}.")
    for name in ("tol", "local_tol", "learning_offset"):
        value = getattr(model, name)
        if value is not None and not value >= 0:
            raise ValueError(f"{name} must not be negative, but is {value}.")
    if not 0 < model.learning_decay <= 1:
        raise ValueError(f"learning_decay must be in (0, 1], not {model.learning_decay}; 0.5 < decay <= 1 converges.")
    if not 0 < model.covariance_shrinkage <= 1:
        raise ValueError(f"covariance_shrinkage must be in (0, 1], not {model.covariance_shrinkage}.")
    num_topics = check_count("n_components", model.n_components)
    draws = 2 * num_topics if model.num_draws is None else check_count("num_draws", model.num_draws)
    limit = check_count("max_local_iter", model.max_local_iter)
    form = str(_OWN_COVARIANCE.get(model.inference, model.covariance))
    converge = LocalSettings(model.inference, form, draws, float(model.local_tol), limit)
    steps = check_count("steps_per_visit", model.steps_per_visit)
    visit = converge._replace(max_steps=min(limit, steps)) if model.warm_starts else converge
    forgetting = (float(model.learning_offset), float(model.learning_decay))
    passes = Passes(
        check_count("max_iter", model.max_iter),
        check_count("batch_size", model.batch_size),
        forgetting,
        model.learning_rate == "automatic",
        -np.inf if model.tol is None else float(model.tol),
        bool(model.progress),
        bool(model.warm_starts),
    )
    word_prior = check_positive("topic_word_prior", model.topic_word_prior)
    total = None if model.total_samples is None else check_positive("total_samples", model.total_samples)
    return Options(num_topics, visit, converge, word_prior, float(model.covariance_shrinkage), passes, total)


def global_settings(options: Options, total: float | int, dtype: Any) -> GlobalSettings:
    """The numbers of the M-step as arrays."""
    numbers = (options.word_prior, options.shrinkage, total)
    return GlobalSettings(*(device_array(np.asarray(number, dtype)) for number in numbers))


def given_topics(components: Any, shape: tuple[int, int]) -> np.ndarray:
    """`components_init` (topics, vocabulary), positive numbers, as p(word | topic), (vocabulary, topics)."""
    given = as_array("components_init", components).astype(np.float64)
    if given.shape != shape:
        raise ValueError(f"components_init must have the shape {shape}, (topics, words), not {given.shape}.")
    if not (given > 0).all():
        raise ValueError(f"components_init must be positive, but its least entry is {given.min():.3g}; add a little.")
    return (given / given.sum(axis=1, keepdims=True)).T


def check_memory(options: Options, X: Any, batch_size: int, warm: bool) -> None:
    """A `MemoryError`, before any work, if the state of the fit is larger than the memory that there is.

    Counted are the posteriors that are kept (with `warm`), one mean and one covariance a document; the expected counts
    of the words of a batch by topic; and what has the size of the topics, at its peak some eight arrays.
    """
    (documents, words), size, itemsize = X.shape, options.num_topics, X.dtype.itemsize
    entries = X.nnz if scipy.sparse.issparse(X) else np.count_nonzero(X)
    full = options.visit.covariance == "full"
    kept = itemsize * documents * (size**2 + size if full else 2 * size) if warm else 0
    batch = int(itemsize * size * _PADDING * entries * batch_size / documents)
    topics = itemsize * _TOPIC_ARRAYS * words * size
    needed, there = kept + batch + topics, available_bytes()
    if needed <= there:
        return
    fixes = [
        ("warm_starts=False", warm),
        ("covariance='diagonal'", warm and full and options.visit.inference == "pgsvi"),
        (f"a batch_size below {batch_size}", batch > needed / 4),
        ("partial_fit with parts of the documents", kept + batch > needed / 4),
        ("fewer words or topics", topics > needed / 4),
    ]
    sizes = ", ".join(
        f"{part / 2**30:.2g} GiB for {what}"
        for part, what in (
            (kept, f"the posteriors of {documents} documents"),
            (batch, f"a batch of {batch_size}"),
            (topics, f"{words} words in {size} topics"),
        )
        if part
    )
    raise MemoryError(
        f"This fit needs {needed / 2**30:.2g} GiB ({sizes}), but {there / 2**30:.2g} GiB are free. "
        f"Take {', or '.join(fix for fix, helps in fixes if helps)}."
    )
