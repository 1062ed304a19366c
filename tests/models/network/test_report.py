"""The HTML report of a Bayesian network: self-contained, accessible, with the numbers of the model."""

import pickle

import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.datasets import load_digits

from provi.models import BayesianNetwork
from provi.models.network.report import describe_call
from provi.nets import LeNet5
from provi.report.style import number
from support.html_page import check_pictures, check_self_contained, check_structure, check_style

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    images = (data.images * 15).astype(np.uint8)
    model = BayesianNetwork(noise="weights", epochs=15, block_size=50, predictive_draws=8)
    return model.fit(images[:500], data.target[:500]), images[500:700], data.target[500:700]


def test_pictures_numbers_and_words(digits, tmp_path):
    model, images, labels = digits
    before = plt.get_fignums()
    path = model.report(tmp_path / "new" / "digits.html", images, labels, title="Digits <b>8 x 8</b>")
    source = path.read_text(encoding="utf-8")
    page = check_self_contained(source)
    check_structure(page)
    check_pictures(page, 3)
    check_style(source)
    assert plt.get_fignums() == before
    found, text = model.evaluate(images, labels), page.text()
    assert "Digits <b>8 x 8</b>" in text and "Nothing is proven" in text
    for name in ("accuracy", "nll", "ece", "brier", "entropy"):
        assert number(found[name]) in text, name
    assert number(model.elbo_.value, 6) in text and "200 rows" in text
    assert number(-model.elbo_.value / 500) in page.text("dd")
    alts = [attributes["aria-label"] for attributes, _ in page.all("svg")]
    assert [alt.split()[0] for alt in alts] == ["Line", "Reliability", "Entropy"]
    assert found["accuracy"] > 0.5  # ten classes


def test_responses_have_no_calibration(tmp_path):
    """Of a model that was read from a file: it has no data any more, so nothing is said per row of them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = BayesianNetwork(method="adam", noise="weights", posterior="global", epochs=100)
    model = pickle.loads(pickle.dumps(model.fit(X, X[:, 0] + 0.1 * rng.normal(size=60))))
    source = model.report(tmp_path / "numbers.html", X, X[:, 0]).read_text(encoding="utf-8")
    page = check_self_contained(source)
    check_structure(page)
    check_pictures(page, 1)
    assert number(model.evaluate(X, X[:, 0])["rmse"]) in page.text()
    assert number(model.elbo_.value, 6) in page.text("dd") and "per row" not in page.text("dt")
    assert "one standard deviation for all weights" in page.text()


def test_the_call_is_python():
    written = describe_call(BayesianNetwork(LeNet5, epochs=3, noise="local"))
    assert "".join(written.split()) == "BayesianNetwork(epochs=3,network=provi.nets.architectures.LeNet5,noise='local')"
