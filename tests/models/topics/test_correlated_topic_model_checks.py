"""The correlated topic model as an estimator of scikit-learn: checks, names, copies, streams that go on later."""

import copy
import pickle
import textwrap

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from provi.models import CorrelatedTopicModel
from provi.models.topics import plots as pictures

NAMES = "cell gene protein virus galaxy orbit planet star crop field seed soil".split()
COUNTS = sp.csr_matrix(np.random.default_rng(0).poisson(0.9, (60, len(NAMES))).astype(float))
# As in the example of the docstring: all tests use the same compiled programs.
OPTIONS = dict(n_components=3, max_iter=2, random_state=0)


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """What is compiled here is used a few times: most optimisations are left out."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def fitted():
    return CorrelatedTopicModel(**OPTIONS).fit(COUNTS)


@pytest.fixture
def skewed(fitted):
    """The same with a prior that is far from symmetric in the topics."""
    model = copy.deepcopy(fitted)
    model.topic_mean_ = np.asarray([1.0, 0.0, -2.0])
    model.topic_covariance_ = np.asarray([[4.0, 0.9, -0.3], [0.9, 1.0, 0.2], [-0.3, 0.2, 0.5]])
    return model


def assert_same_state(model, other):
    for name in ("components_", "topic_mean_", "topic_covariance_", "seen_words_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(other, name), err_msg=name)
    assert (model.n_batch_iter_, model.n_samples_seen_) == (other.n_batch_iter_, other.n_samples_seen_)


@pytest.mark.slow
def test_scikit_learns_checks_of_estimators():
    results = check_estimator(CorrelatedTopicModel(2, max_iter=2), on_skip=None)
    assert {result["check_name"] for result in results if result["status"] != "passed"} <= {"check_array_api_input"}


def test_the_example_of_the_docstring_is_right():
    code = textwrap.dedent((CorrelatedTopicModel.__doc__ or "").partition("**Example:**")[2])
    names: dict = {}
    exec(code, names)
    model, words = names["model"], names["words"]
    assert sorted(sorted(topic) for topic in model.top_words(4, words)) == sorted([words[:4], words[4:8], words[8:]])
    shares = model.transform(names["counts"])
    assert shares.shape == (60, 3) and shares.max(axis=1).min() > 0.8


def test_names_of_columns_and_of_topics(fitted):
    """What scikit-learn notes of a data frame is put there by hand: no package for them is needed here."""
    named = copy.deepcopy(fitted)
    named.feature_names_in_ = np.asarray(NAMES, object)
    assert named.top_words(3) == fitted.top_words(3, NAMES) == fitted.top_words(3, {w: i for i, w in enumerate(NAMES)})
    shuffled = {name: NAMES.index(name) for name in sorted(NAMES, reverse=True)}
    assert fitted.top_words(3, shuffled) == named.top_words(3)
    assert all(type(word) is str for words in named.top_words(3) for word in words)
    assert fitted.top_words(3) == [[NAMES.index(word) for word in words] for words in named.top_words(3)]
    assert list(fitted.get_feature_names_out()) == [f"correlatedtopicmodel{k}" for k in range(3)]
    with pytest.raises(ValueError, match="vocabulary has 11 words"):
        fitted.plot_topics(3, NAMES[1:])


def test_copies_and_pickles_answer_the_same_and_clones_are_not_fitted(fitted):
    shares = fitted.transform(COUNTS)
    for other in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        assert_same_state(other, fitted)
        np.testing.assert_array_equal(other.transform(COUNTS), shares)
        np.testing.assert_array_equal(other.topic_correlation_, fitted.topic_correlation_)
    fresh = clone(fitted)
    assert not hasattr(fresh, "components_") and not hasattr(fresh, "topic_correlation_")
    assert_same_state(fresh.fit(COUNTS), fitted)


def test_a_document_has_the_same_shares_whatever_stands_beside_it(fitted):
    """Other documents change the width that rows are padded to, and with it the order of sums."""
    shares, order = fitted.transform(COUNTS), np.random.default_rng(0).permutation(60)
    np.testing.assert_allclose(fitted.transform(COUNTS[order]), shares[order], rtol=1e-10)
    np.testing.assert_allclose(fitted.transform(COUNTS[[7]]), shares[[7]], rtol=1e-10)


@pytest.mark.parametrize("make_state", [lambda: 0, lambda: np.random.RandomState(0)])
def test_a_seed_gives_one_fit_and_one_stream_also_through_a_pickle(make_state):
    options = OPTIONS | {"random_state": make_state()}
    model = CorrelatedTopicModel(**options)
    broken = CorrelatedTopicModel(**(options | {"random_state": make_state()}))
    for start in (0, 20, 40):
        model.partial_fit(COUNTS[start : start + 20])
        broken = pickle.loads(pickle.dumps(broken)).partial_fit(COUNTS[start : start + 20])
        assert_same_state(model, broken)
    assert model.n_batch_iter_ == 3 and model.n_samples_seen_ == 60
    first, second = (
        CorrelatedTopicModel(**(OPTIONS | {"random_state": make_state(), "batch_size": 20})).fit(COUNTS)
        for _ in range(2)
    )
    assert_same_state(first, second)
    np.testing.assert_array_equal(first.elbo_, second.elbo_)


def test_other_seeds_differ_and_generators_are_refused_as_by_scikit_learn(fitted):
    for other in (1, None):
        model = CorrelatedTopicModel(**(OPTIONS | {"random_state": other})).fit(COUNTS)
        assert np.abs(model.components_ - fitted.components_).max() > 0
    with pytest.raises(ValueError, match="cannot be used to seed"):
        CorrelatedTopicModel(**(OPTIONS | {"random_state": np.random.default_rng(0)})).fit(COUNTS)


def test_correlations_are_those_of_contrasts(skewed):
    """Against draws of z less its mean: the error of a correlation from 1e6 draws is below 1e-3; 5.2 of them.

    A shift of all z_k, in every document another, changes nothing.
    """
    z = np.random.default_rng(0).multivariate_normal(skewed.topic_mean_, skewed.topic_covariance_, 10**6)
    drawn = np.corrcoef(z - z.mean(axis=1, keepdims=True), rowvar=False)
    np.testing.assert_allclose(skewed.topic_correlation_, drawn, atol=5.2e-3)
    shifted = copy.deepcopy(skewed)
    shifted.topic_covariance_ = skewed.topic_covariance_ + 7.0
    np.testing.assert_allclose(shifted.topic_correlation_, skewed.topic_correlation_, rtol=1e-9)
    shifted.topic_covariance_ = np.ones((1, 1))
    assert shifted.topic_correlation_ == 1


def test_pictures_are_given_words_probabilities_correlations_and_shares(skewed, monkeypatch):
    """Shares by 2048 draws of the prior: their standard error is below 0.5 / sqrt(2048); 5.2 of them."""
    given = {}
    monkeypatch.setattr(pictures, "plot_topics", lambda *args, **more: given.update(topics=(args, more)))
    monkeypatch.setattr(pictures, "plot_correlations", lambda *args, **more: given.update(correlations=(args, more)))
    skewed.plot_topics(4, NAMES)
    (words, weights), more = given["topics"]
    assert words == skewed.top_words(4, NAMES)
    np.testing.assert_array_equal(weights, -np.sort(-skewed.components_, axis=1)[:, :4])
    z = np.random.default_rng(0).multivariate_normal(skewed.topic_mean_, skewed.topic_covariance_, 10**5)
    mean = (np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(more["shares"], mean, atol=5.2 * 0.5 / np.sqrt(2048))
    skewed.plot_correlations(NAMES)
    (correlation, labels), more = given["correlations"]
    np.testing.assert_array_equal(correlation, skewed.topic_correlation_)
    assert labels == [", ".join(words) for words in skewed.top_words(3, NAMES)]
    skewed.plot_correlations()
    assert given["correlations"][0][1] is None


def test_pictures_are_drawn(fitted):
    import matplotlib.pyplot as plt

    for figure in (fitted.plot_topics(3), fitted.plot_correlations(NAMES)):
        assert len(figure.axes) >= 3
        plt.close(figure)
