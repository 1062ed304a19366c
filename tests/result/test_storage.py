"""Targets in the files of fits: the same density and the same words, read back without the target."""

import dataclasses
import json

import equinox as eqx
import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import provi
from laws.contracts import assert_equal_bits
from laws.members import TARGETS
from provi.families import Gaussian
from provi.result import Posterior
from provi.targets import LatentGaussian, latent
from provi.targets.likelihoods import UserLikelihood

RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(20, 2)), RNG.normal(size=20)


@pytest.fixture(scope="module")
def any_fit():
    return provi.fit(provi.targets.LinearRegression(X, Y))


@pytest.fixture
def saved(any_fit, tmp_path):
    """A fit of the target, written and read."""

    def save(target, keep=None):
        family = Gaussian(target.dim, "diagonal")
        posterior = Posterior(family, family.point(np.zeros(target.dim)), target.parameter_names, target)
        fit = dataclasses.replace(any_fit, target=target, posterior=posterior)
        fit.save(tmp_path / "fit", target=keep)
        return provi.load(tmp_path / "fit")

    return save


def latent_gaussian():
    index = np.arange(20) % 5
    blocks = [
        latent.Independent(index, name="g", covariates=np.column_stack([np.ones(20), X[:, 0]])),
        latent.RandomWalk(np.arange(20), name="walk"),
        latent.GaussianProcess(X[:, :1], provi.kernels.Matern32(), name="f"),
    ]
    return LatentGaussian(Y, "gaussian", fixed=X, fixed_names=["a", "b"], blocks=blocks, weights=np.ones(20))


STORED = {
    "linear", "logistic", "poisson", "probit", "generalised", "hierarchical", "gaussian", "gaussian process",
    "sparse gaussian process",
}  # fmt: skip


@pytest.mark.parametrize("name", [*sorted(STORED), "latent gaussian"])
def test_targets_are_read_back(saved, name):
    target = latent_gaussian() if name == "latent gaussian" else TARGETS[name](np.float64, 1.1)
    again = saved(target).target
    assert type(again) is type(target) and again.parameter_names == target.parameter_names
    if name == "sparse gaussian process":  # its features are computed again
        assert again.design is None
        target = eqx.tree_at(lambda t: (t.design, t.offset), target, (None, None))
    assert jax.tree.structure(again) == jax.tree.structure(target)
    assert_equal_bits(again, target)


def test_a_loaded_fit_does_what_the_fit_did(tmp_path):
    """Predictions, draws, summary, LOO, of a linear model in frames and of a process in dual form."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b"])
    linear = provi.targets.LogisticRegression(frame, Y > 0, intercept=True)
    process = provi.targets.GaussianProcess(frame, Y > 0, provi.kernels.Matern32() + 0.5)
    for target in (linear, process):
        fit = provi.fit(target)
        fit.save(tmp_path / "fit")
        again = provi.load(tmp_path / "fit")
        new = frame[["b", "a"]].head(4) + 0.1
        assert again.predict(new).to_dict() == fit.predict(new).to_dict()
        assert again.posterior.summary().to_dict() == fit.posterior.summary().to_dict()
        np.testing.assert_array_equal(
            again.posterior_predictive(new, num_draws=9)["y"], fit.posterior_predictive(new, num_draws=9)["y"]
        )
    assert again.loo(500).elpd == fit.loo(500).elpd
    with safe_open(tmp_path / "fit", framework="numpy") as file:
        names, found = set(file.keys()), json.loads(file.metadata()["fit"])
    # The kernel matrix is the family's, too, and stands in the file once.
    assert found["target"]["fields"]["gram"]["array"].startswith("family/")
    assert sum(name.startswith("target/") for name in names) < 10


def test_what_cannot_be_stored_is_left_out_or_said(saved, any_fit, tmp_path):
    density = provi.targets.LogDensity(lambda z: -0.5 * (z @ z), 2, strong_convexity=1.0)
    user = UserLikelihood(lambda y, eta: -0.5 * (y - eta) ** 2, log_concave=True)
    for target in (density, provi.targets.GeneralisedLinearModel(X, Y, user)):
        assert saved(target).target is None
        with pytest.raises(ValueError, match=r"target=True: .* cannot be stored, since it holds a"):
            saved(target, True)
    assert saved(any_fit.target, False).target is None
    assert saved(any_fit.target, True).target is not None


def test_files_that_were_changed_are_refused(any_fit, tmp_path):
    """No other class is imported, and no other numbers are taken, than were written."""
    path = tmp_path / "fit"
    any_fit.save(path)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    name = next(name for name in tensors if name.startswith("target/"))
    save_file(tensors | {name: tensors[name] + 1}, path, metadata=metadata)
    with pytest.raises(ValueError, match="is damaged: the digest"):
        provi.load(path)
    for other in ("subprocess:Popen", "provi.fit:fit", "provi.targets.data:read_real", "provi.targets.nothing:Model"):
        changed = metadata["fit"].replace("provi.targets.regressions:LinearRegression", other)
        save_file(tensors, path, metadata=metadata | {"fit": changed})
        with pytest.raises(ValueError, match=r"target of another version.*provi\.load\(path, target=target\)"):
            provi.load(path)
    assert provi.load(path, any_fit.target).target is any_fit.target


def test_files_of_before_are_read(any_fit, tmp_path):
    """Without encoding, target and digest."""
    path = tmp_path / "fit"
    any_fit.save(path, target=False)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    content = json.loads(metadata["fit"])
    del content["encoding"]
    assert "target" not in content and "digest" not in content
    save_file(load_file(path), path, metadata=metadata | {"fit": json.dumps(content)})
    again = provi.load(path)
    assert again.target is None and again.encoding is None
    np.testing.assert_array_equal(again.posterior.mean, any_fit.posterior.mean)
