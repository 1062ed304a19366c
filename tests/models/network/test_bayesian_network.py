"""The Bayesian network against exact linear regression; seeds, resuming, pickling, images and refusals."""

import pickle

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score

from provi.models import BayesianNetwork
from provi.models.network import predictive as metrics
from provi.nets import Perceptron
from provi.runtime.record import Outcome
from provi.schedules import ConstantBatch

pytestmark = pytest.mark.usefixtures("quick_compilation")

MOONS, LABELS = make_moons(300, noise=0.2, random_state=0)
NEW, NEW_LABELS = make_moons(300, noise=0.2, random_state=1)
NAMES = np.array(["left", "right"])


def small(key, num_outputs):
    return Perceptron(key, 2, [20], num_outputs)


def mirror(key, x):
    """An augmentation that turns the answer round."""
    return -x


def check_same(one, two):
    for a, b in zip(jax.tree.leaves(one.point_), jax.tree.leaves(two.point_), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture(scope="module")
def moons():
    return BayesianNetwork(small, epochs=60, block_size=30, rate=0.03, predictive_draws=16).fit(MOONS, NAMES[LABELS])


def test_two_moons(moons):
    straight = LogisticRegression().fit(MOONS, LABELS).score(NEW, NEW_LABELS)
    assert moons.score(NEW, NAMES[NEW_LABELS]) > 0.93 > straight
    assert moons.outcome_ is Outcome.COMPLETED and moons.n_iter_ == 60 and moons.classes_.tolist() == ["left", "right"]
    assert is_classifier(moons) and not is_regressor(moons) and moons.n_features_in_ == 2
    probabilities, draws = moons.predict_proba(NEW), moons.predict_draws(NEW)
    np.testing.assert_allclose(probabilities, draws.mean(axis=0), atol=1e-6)
    np.testing.assert_array_equal(moons.predict(NEW), NAMES[probabilities.argmax(axis=1)])
    found = moons.evaluate(NEW, NAMES[NEW_LABELS])
    assert found["accuracy"] == moons.score(NEW, NAMES[NEW_LABELS])
    assert found["nll"] == pytest.approx(metrics.negative_log_likelihood(probabilities, NEW_LABELS), rel=1e-6)
    assert 0 < found["mutual_information"] < found["entropy"] < np.log(2) and found["ece"] < 0.1
    history = moons.history_
    assert history["epoch"][-1] == 60 and (np.diff(history["seconds"]) >= 0).all()
    assert history["negative_elbo"][-1] < 0.7 * history["negative_elbo"][0]


def test_the_elbo_is_below_the_evidence_and_far_above_the_start(moons):
    """exp(ELBO) <= p(y), and p(y) <= 1 for labels; with the error at the end, 5 standard errors."""
    assert moons.elbo_.value < 5 * moons.elbo_.standard_error
    assert moons.elbo_.value > -300 * moons.history_["negative_elbo"][0]
    # The records are of the walk, at older points: they are near, not equal.
    assert moons.elbo_.value == pytest.approx(-300 * moons.history_["negative_elbo"][-1], rel=0.15)


def test_the_same_seed_gives_the_same_fit_and_pickles(moons):
    again = clone(moons).fit(MOONS, NAMES[LABELS])
    check_same(moons, again)
    np.testing.assert_array_equal(moons.predict_proba(NEW), again.predict_proba(NEW))
    back = pickle.loads(pickle.dumps(moons))
    np.testing.assert_array_equal(moons.predict_proba(NEW), back.predict_proba(NEW))
    assert back.elbo_ == moons.elbo_ and back.target_.num_terms == 1  # the data are not in the file
    other = clone(moons).set_params(random_state=1, epochs=10).fit(MOONS, NAMES[LABELS])
    assert np.abs(np.asarray(other.point_.mean) - np.asarray(moons.point_.mean)).max() > 0.1


def test_a_resumed_fit_is_the_uninterrupted_one_bit_for_bit(moons, tmp_path):
    path = tmp_path / "fit.safetensors"
    part = clone(moons).set_params(epochs=35, checkpoint=path).fit(MOONS, NAMES[LABELS])
    whole = clone(part).set_params(epochs=60, resume=True).fit(MOONS, NAMES[LABELS])
    assert np.abs(np.asarray(part.point_.mean) - np.asarray(moons.point_.mean)).max() > 1e-3
    check_same(whole, moons)
    assert whole.elbo_ == moons.elbo_
    with pytest.warns(ConvergenceWarning, match="the longer fit is returned"):
        longer = clone(whole).set_params(epochs=50).fit(MOONS, NAMES[LABELS])
    check_same(longer, moons)
    with pytest.raises(ValueError, match="belongs to another run"):
        clone(whole).fit(MOONS[::-1], NAMES[LABELS])


def test_a_linear_network_is_bayesian_linear_regression():
    """Mean field with one sd a weight: the exact means, variances 1 / P_jj of the precision P, ELBO in closed form."""
    rng = np.random.default_rng(0)
    X, noise, prior = rng.normal(size=(200, 3)) @ np.array([[1, 0.4, 0], [0, 1, 0.4], [0, 0, 1]]), 0.5, 2.0
    y = X @ [1.0, -0.5, 0.2] + noise * rng.normal(size=200)
    precision = X.T @ X / noise**2 + np.eye(3) / prior**2
    mean, sd = np.linalg.solve(precision, X.T @ y / noise**2), 1 / np.sqrt(np.diag(precision))
    evidence = stats.multivariate_normal(np.zeros(200), noise**2 * np.eye(200) + prior**2 * X @ X.T).logpdf(y)
    elbo = evidence - (np.log(np.diag(precision)).sum() - np.linalg.slogdet(precision)[1]) / 2
    network = eqx.nn.Linear(3, 1, use_bias=False, dtype=np.float32, key=jax.random.key(0))
    model = BayesianNetwork(
        network,
        noise_sd=noise,
        prior_sd=prior,
        rate=0.003,
        epochs=250,
        block_size=10,
        num_draws=4,
        start_sd=0.1,
    ).fit(X, y)
    assert model.classes_ is None and is_regressor(model)
    found_sd = np.exp(np.asarray(model.point_.log_sd))
    np.testing.assert_allclose(np.asarray(model.point_.mean), mean, atol=0.25 * sd.min())
    np.testing.assert_allclose(found_sd, sd, rtol=0.1)
    # No more than the optimum but for 5 standard errors (one false alarm in 2e6), and not far below it.
    assert elbo - 0.3 < model.elbo_.value < elbo + 5 * model.elbo_.standard_error
    np.testing.assert_allclose(model.predict(X), X @ np.asarray(model.point_.mean), atol=0.1)
    assert model.evaluate(X, y)["rmse"] == pytest.approx(np.std(y - X @ mean), rel=0.05)
    assert model.score(X, y) == pytest.approx(r2_score(y, X @ mean), abs=0.01) and not hasattr(model, "predict_proba")


def test_images_functions_and_columns():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(40, 3, 3), dtype=np.uint8)
    labels = (images[:, 1, 1] > 127).astype(int)
    model = BayesianNetwork(epochs=200, block_size=20, rate=0.03).fit(images, labels)
    assert model.score(images, labels) > 0.8 and model.target_.dim == 10 * 50 + 51 * 2
    scaled = images / np.float32(255)
    np.testing.assert_array_equal(model.predict_proba(images), model.predict_proba(scaled))
    with pytest.raises(ValueError, match=r"rows of shape \(3, 4\), but .* \(3, 3\)"):
        model.predict(np.zeros((2, 3, 4)))

    def apply(params, x):
        return x @ params["weights"]

    columns = BayesianNetwork(
        lambda key, outputs: (apply, {"weights": np.zeros((3, outputs), np.float32)}),
        posterior="global",
        epochs=120,
        num_draws=ConstantBatch(2),
        rate=0.03,
    )
    X = rng.normal(size=(50, 3))
    truth = rng.normal(size=(3, 2))
    columns.fit(X, X @ truth)
    assert columns.predict(X).shape == (50, 2) and columns.point_.log_sd.shape == (1,)
    # One sd for all: the optimum's mean is the ridge estimate with penalty 1.
    ridge = np.linalg.solve(X.T @ X + np.eye(3), X.T @ X @ truth)
    np.testing.assert_allclose(np.asarray(columns.point_.mean).reshape(3, 2), ridge, atol=0.1)
    mirrored = clone(columns).set_params(augment=mirror).fit(X, X @ truth)
    np.testing.assert_allclose(np.asarray(mirrored.point_.mean).reshape(3, 2), -ridge, atol=0.1)


def test_a_training_that_breaks_keeps_the_last_good_state():
    with pytest.warns(ConvergenceWarning, match="ended early.*smaller rate"):
        model = BayesianNetwork(small, rate=1e30, epochs=50, block_size=30).fit(MOONS, LABELS)
    assert model.outcome_ is Outcome.NONFINITE
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model.point_))


def test_few_steps_are_pointed_out():
    with pytest.warns(ConvergenceWarning, match="2 epochs of 10 blocks of data are 20 steps.*set epochs=200"):
        BayesianNetwork(small, epochs=2, block_size=30).fit(MOONS, LABELS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "sgd"}, "method must be one of 'paced'"),
        ({"posterior": "full"}, "posterior must be one of"),
        ({"noise": "dropout"}, "noise must be one of"),
        ({"likelihood": "poisson"}, "likelihood must be one of"),
        ({"rate": -1.0}, "rate must be a positive number"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"num_draws": 0}, "num_draws must be at least 1"),
        ({"predictive_draws": 0.5}, "predictive_draws must be a whole number"),
        ({"start_sd": 0}, "start_sd must be a positive number"),
        ({"prior_sd": 0}, "prior_sd must be a positive number"),
        ({"resume": True}, "resume=True needs checkpoint="),
        ({"network": lambda key, outputs: Perceptron(key, 7, [], outputs)}, "network cannot be called on the rows"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        BayesianNetwork(**{"network": small, "epochs": 100, **options}).fit(MOONS, LABELS)


def test_a_weight_of_the_kl_tempers_the_posterior():
    """A linear model with Gaussian noise: the best sd of its weight is (1/s^2 + sum x^2/(c noise^2))^(-1/2)."""
    rows = np.random.default_rng(5).normal(size=(40, 1)) * 1.5
    y = 2 * rows[:, 0]

    def line(key, num_outputs):
        return eqx.nn.Linear(1, num_outputs, use_bias=False, key=key)

    options = {"likelihood": "gaussian", "method": "adam", "epochs": 400, "block_size": 40, "rate": 0.03}
    for weight in (1.0, 0.04):
        model = BayesianNetwork(line, kl_weight=weight, start_sd=0.05, progress=False, **options).fit(rows, y)
        expected = (1 + np.sum(rows**2) / weight) ** -0.5
        assert float(model._sd[0]) == pytest.approx(expected, rel=0.15)
        plain = (1 + np.sum(rows**2)) ** -0.5  # 5 times as wide as with the weight 0.04
        assert (abs(float(model._sd[0]) / plain - 1) < 0.15) == (weight == 1)
    with pytest.raises(ValueError, match="kl_weight"):
        BayesianNetwork(line, kl_weight=-1.0, **options).fit(rows, y)
