"""Reading labels, responses, images and networks: what is taken, what is refused and in which words."""

import jax
import numpy as np
import pytest

from provi.models import BayesianNetwork
from provi.models.network.reading import class_numbers, make_network, read_inputs, read_response
from provi.nets import Perceptron


def test_labels_of_any_type_become_numbers():
    found = read_response("auto", np.array(["b", "a", "c", "a"]))
    assert found.values.tolist() == [1, 0, 2, 0] and found.classes.tolist() == ["a", "b", "c"]
    assert found.num_outputs == 3
    assert class_numbers(["c", "a"], found.classes).tolist() == [2, 0]
    with pytest.raises(ValueError, match="labels among classes_"):
        class_numbers(["c", "d"], found.classes)


@pytest.mark.parametrize(
    ("likelihood", "y", "outputs"),
    [("auto", [0.5, 1.5, 2.25], 1), ("gaussian", [0, 1, 1], 1), ("auto", [[0.5, 1.0], [1.5, 2.0]], 2)],
)
def test_numbers_stay_numbers(likelihood, y, outputs):
    found = read_response(likelihood, np.array(y))
    assert found.classes is None and found.num_outputs == outputs and found.values.dtype == np.float32
    np.testing.assert_array_equal(found.values, np.reshape(y, (-1, outputs)))


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        ("auto", [1, 1, 1], "one class only"),
        ("categorical", [0.5, 1.5, 2.5], "Unknown label type"),
        ("gaussian", ["a", "b"], "must hold numbers"),
        ("gaussian", [1e300, 0.0], "too large for float32"),
        ("poisson", [0, 1], "likelihood must be one of"),
    ],
)
def test_bad_responses_are_refused(likelihood, y, message):
    with pytest.raises(ValueError, match=message):
        read_response(likelihood, np.array(y))


def test_only_images_of_bytes_are_scaled():
    model, pixels = BayesianNetwork(), np.array([0, 51, 255], np.uint8)
    images = np.broadcast_to(pixels[:, None, None], (3, 2, 2))
    np.testing.assert_allclose(read_inputs(model, images, reset=True)[0][:, 0, 0], [0, 0.2, 1])
    np.testing.assert_array_equal(read_inputs(model, images.astype(float), reset=True)[0][:, 0, 0], [0, 51, 255])
    np.testing.assert_array_equal(read_inputs(model, pixels[:, None], reset=True)[0][:, 0], [0, 51, 255])


def test_networks_of_all_kinds():
    key = jax.random.key(0)
    default, none = make_network(None, key, (3,), 2)
    assert [layer.weight.shape for layer in default.layers] == [(50, 3), (2, 50)] and none is None
    assert make_network(default, key, (3,), 2)[0] is default
    made, _ = make_network(lambda key, outputs: Perceptron(key, 3, [4], outputs), key, (3,), 6)
    assert made.layers[-1].weight.shape == (6, 4)

    def apply(params, x):
        return x @ params

    assert make_network(lambda key, outputs: (apply, np.ones((3, outputs))), key, (3,), 6)[0] is apply
    with pytest.raises(ValueError, match="network must be None, an Equinox module"):
        make_network("LeNet5", key, (3,), 2)
    with pytest.raises(ValueError, match="must return an Equinox module or a pair"):
        make_network(lambda key, outputs: 3, key, (3,), 2)
