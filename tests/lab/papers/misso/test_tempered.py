"""The setting under which the network of Figure 2(b) learns: moved images, both runs, and what the page says."""

import dataclasses
import json

import equinox as eqx
import jax
import numpy as np
import pytest

from provi_lab.common.page import read_lines
from provi_lab.papers.misso import figure2b, tempered
from provi_lab.papers.misso.about import FIGURE2B
from provi_lab.papers.misso.measuring import measure
from provi_lab.papers.misso.networks import ADAM, small_problem
from provi_lab.papers.misso.tempered_page import claims, read

pytestmark = pytest.mark.usefixtures("quick_compilation")


def with_channel(problem):
    target = problem.target
    target = eqx.tree_at(lambda t: t.inputs, target, target.inputs[..., None])
    return dataclasses.replace(problem, target=target, test_images=problem.test_images[..., None])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tempered")
    return folder, tempered.measure(folder, 3, with_channel(small_problem(0)))


def test_an_augmented_image_is_itself_flipped_perhaps_and_moved():
    images = np.random.default_rng(0).normal(size=(40, 8, 8, 2)).astype(np.float32)
    found = np.asarray(tempered.augment(jax.random.key(1), images))
    seen = []
    for image, new in zip(images, found, strict=True):
        wide = {flip: np.pad(image[:, ::-1] if flip else image, ((4, 4), (4, 4), (0, 0))) for flip in (False, True)}
        seen += [
            (flip, row, column)
            for flip in wide
            for row in range(9)
            for column in range(9)
            if np.array_equal(wide[flip][row : row + 8, column : column + 8], new)
        ]
    assert len(seen) == len(images)  # each is one of its 162
    assert {flip for flip, *_ in seen} == {False, True} and len({(row, column) for _, row, column in seen}) > 20


def test_both_runs(measured):
    folder, found = measured
    own, twin = found
    assert json.loads((folder / "tempered.json").read_text()) == json.loads(json.dumps(found))
    assert [each["name"] for each in found] == ["tempered", "point estimate"]
    # The twin does not draw; the other does, and has moved its deviations.
    assert twin["median_sd"] == pytest.approx(1e-6, rel=0.1) and own["median_sd"] > 1e-3
    for each in found:
        ends = np.array(each["values"])
        assert ends.shape == (3, 3) and ends[-1, 1] < ends[0, 1]  # it learns
        np.testing.assert_allclose(ends[:, 0], ends[:, 1] + ends[:, 2], rtol=1e-5)
    # The KL that is told is the whole one, of the prior N(0, 0.1^2): deviations of 1e-6 cost log(1e5) a weight.
    weights = twin["weights"]
    assert twin["values"][-1][2] * twin["images"] > weights * (np.log(1e5) - 0.5) > 2 * own["values"][-1][2] * 640


def test_the_weight_of_the_kl_is_that_of_the_training(measured, tmp_path, monkeypatch):
    """With the whole KL, the prior pulls: the KL at the end is smaller and the misfit larger."""
    monkeypatch.setattr(tempered, "KL_WEIGHT", 300.0)
    own, _ = tempered.measure(tmp_path, 3, with_channel(small_problem(0)))
    before = measured[1][0]
    assert own["values"][-1][2] < before["values"][-1][2] and own["values"][-1][1] > before["values"][-1][1]


def test_the_page_has_it_where_it_was_run(measured, tmp_path):
    folder, (own, _) = measured
    measure(tmp_path, 500.0, 1, 2, (ADAM,), small_problem(0))
    without, page = (figure2b.page(tmp_path / name, [tmp_path, *more]) for name, more in (("a", []), ("b", [folder])))
    assert len(page.claims) == len(without.claims) + 1 and len(page.rows) == len(without.rows) + 2
    row = page.rows[-2]
    assert row["method"] == "Adam, tempered" and row["accuracy"] == own["accuracy"] and row["of it KL"] > 0
    assert page.claims[-1].verdict == ("holds" if own["accuracy"] > 0.85 else "does not hold")
    assert f"ECE {own['calibration_error']:.4f}" in page.claims[-1].evidence and "200 test images" in str(
        page.claims[-1]
    )
    assert page.seconds == pytest.approx(without.seconds + sum(each["seconds"] for each in read([folder])))
    lines = read_lines(tmp_path / "b" / "misso-figure2b.csv")
    missing = [" ".join(FIGURE2B.left_out(lines, each.setting)) for each in (without, page)]
    assert "under which the network learns" in missing[0] and "under which the network learns" not in missing[1]
    assert FIGURE2B.tables(tmp_path / "b")["claims"] in (tmp_path / "b" / "misso-figure2b.md").read_text()
    assert "Adam, tempered" in FIGURE2B.tables(tmp_path / "b")["numbers"]


def test_the_claim_is_about_the_accuracy(measured):
    rows = read([measured[0]])
    for accuracy, verdict in ((0.86, "holds"), (0.85, "does not hold")):
        (claim,) = claims([{**rows[0], "accuracy": accuracy}, {**rows[1], "accuracy": 1.0}])
        assert claim.verdict == verdict and f"tempered: accuracy {accuracy:.2%}" in claim.evidence
    assert claims([]) == [] and claims(rows[1:]) == []
