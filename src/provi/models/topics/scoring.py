"""One scorer for the topics of any model: what they are worth, whoever found them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from provi.core.arguments import as_array, device_array, double_precision
from provi.models.topics.corpus import bucket_documents, coarse_width, with_words, word_totals
from provi.models.topics.correlated_topic_model import CorrelatedTopicModel
from provi.models.topics.model import TopicPrior
from provi.models.topics.options import global_settings, read_options
from provi.models.topics.training import stochastic_em

_FLOOR = 1e-12


@double_precision
def completion_score(
    components: Any, train: Any, observed: Any, held_out: Any, seed: int = 0, passes: int = 10
) -> float:
    r"""The mean log probability of the words of `held_out` given those of `observed`, for the topics `components`.

    The topics stay as they are. $N(\mu,\Sigma)$ is learned on the documents `train` by stochastic EM from N(0, I), with
    full covariances; then the documents are completed (`CorrelatedTopicModel.log_predictive`). Words that `train` does
    not have are left out.

    **Arguments:** `components`, p(word | topic), (topics, vocabulary), normalised here; the others count matrices.
    """
    topics = as_array("components", components).astype(np.float64)
    if topics.ndim != 2 or (topics < 0).any() or not (topics.sum(axis=1) > 0).all():
        raise ValueError("components must be (topics, words), not negative, with a positive entry in each row.")
    topics = np.maximum(topics / topics.sum(axis=1, keepdims=True), _FLOOR)
    topics = topics / topics.sum(axis=1, keepdims=True)
    train = with_words(scipy.sparse.csr_matrix(train, dtype=np.float64))
    model = CorrelatedTopicModel(len(topics), max_iter=passes, tol=1e-5, random_state=seed)
    options = read_options(model)
    size = min(options.passes.batch_size, train.shape[0])
    corpus = bucket_documents(train, max(1, train.shape[0] // size), coarse_width)
    rules = options.passes._replace(
        batch_size=size, tolerance=options.passes.tolerance * float(train.data.sum()), fixed_topics=True
    )
    prior = TopicPrior(device_array(np.zeros(len(topics))), device_array(np.eye(len(topics))))
    settings = global_settings(options, train.shape[0], np.float64)
    generator = np.random.default_rng(seed)
    fitted = stochastic_em(corpus, jnp.asarray(topics.T), prior, options.visit, settings, rules, generator)
    vars(model).update(components_=topics, n_features_in_=topics.shape[1])
    model.topic_mean_, model.topic_covariance_ = np.asarray(fitted.prior.mean), np.asarray(fitted.prior.covariance)
    model.seen_words_ = word_totals(train) > 0
    return model.log_predictive(observed, held_out, seen_only=True)
