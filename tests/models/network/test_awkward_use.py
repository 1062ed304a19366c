"""Columns of labels, wrong numbers of outputs, fits that fail, copies, pixels of two types, wrong options."""

import copy

import jax
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from provi.models import BayesianNetwork
from provi.models.network.reading import read_response, warn_of_scale
from provi.nets import Perceptron

X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(int)


@pytest.fixture(scope="module")
def model():
    with pytest.warns(ConvergenceWarning):
        return BayesianNetwork(lambda key, outputs: Perceptron(key, 2, [3], outputs), epochs=4).fit(X, LABELS)


def test_a_column_of_labels_is_scored_as_a_vector(model):
    assert model.score(X, LABELS[:, None]) == model.score(X, LABELS) == np.mean(model.predict(X) == LABELS)
    assert model.evaluate(X, LABELS[:, None]) == model.evaluate(X, LABELS)


def test_a_copy_predicts_the_same_though_its_network_is_a_local_function(model):
    np.testing.assert_array_equal(copy.deepcopy(model).predict_proba(X), model.predict_proba(X))


def test_a_fit_that_fails_leaves_the_earlier_one(model):
    again, before = copy.deepcopy(model), model.predict(X)
    with pytest.raises(ValueError, match="rate must be a positive number"):
        again.set_params(rate=-1.0).fit(X, np.array(["a", "b"])[LABELS])
    np.testing.assert_array_equal(again.predict(X), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network": Perceptron(jax.random.key(0), 2, [3], 5)}, "network has 5 outputs, but y has 2 classes"),
        ({"table_dtype": "int8"}, "table_dtype must be None"),
        ({"devices": 99}, "devices must be from 1 to"),
        ({"augment": lambda key, x: x[:3]}, "augment.* must keep the shape"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        BayesianNetwork(**{"epochs": 100, **options}).fit(X, LABELS)


def test_one_hot_columns_are_refused_unless_they_are_numbers():
    with pytest.raises(ValueError, match="one-hot"):
        read_response("auto", np.eye(3))
    assert read_response("gaussian", np.eye(3)).num_outputs == 3


@pytest.mark.parametrize(
    ("fitted", "dtype", "warned"), [(True, float, True), (False, np.uint8, True), (True, np.uint8, False)]
)
def test_pixels_of_two_types_are_pointed_out(fitted, dtype, warned, recwarn):
    images = np.full((2, 3, 3), 200, dtype)
    warn_of_scale((fitted, 1.0 if fitted else 255.0), images, images / (255 if dtype is np.uint8 else 1))
    assert len(recwarn) == warned
