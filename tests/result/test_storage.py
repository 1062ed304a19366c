"""Targets in the files of fits: the same density and the same words, read back without the target."""

import dataclasses
import errno
import json
import os
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import provi
from laws.contracts import assert_equal_bits
from laws.members import TARGETS
from provi.core.files import write_tensors
from provi.families import Gaussian
from provi.result import Posterior, storage
from provi.result.evidence import saved_evidence
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


def content_of(path):
    with safe_open(path, framework="numpy") as file:
        return load_file(path), file.metadata()


@pytest.fixture(scope="module")
def file_of_fit(any_fit, tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "fit"
    any_fit.save(path)
    return path


def test_damaged_files_are_refused(file_of_fit, tmp_path):
    """In numbers, certificate and target; before, all flips in the numbers were believed, with the same certificate."""
    content, path = bytearray(file_of_fit.read_bytes()), tmp_path / "damaged"
    rng, header = np.random.default_rng(0), int.from_bytes(content[:8], "little") + 8
    for place in (*rng.integers(0, header, 25), *rng.integers(header, len(content), 25)):
        content[place] ^= 1 << int(place) % 8
        path.write_bytes(content)
        content[place] ^= 1 << int(place) % 8
        for read in (provi.load, storage.load_model, saved_evidence):
            with pytest.raises(ValueError, match=str(path)):
                read(path)
    for length in (0, 5, 100, header, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=f"{path} is not a fit saved by ProVI, or damaged"):
            provi.load(path)


def test_forged_files_are_refused(file_of_fit, tmp_path):
    """With a digest that is right: no other class is imported, nothing is made in a size that a header claims."""
    path = tmp_path / "forged"
    tensors, metadata = content_of(file_of_fit)
    data = json.loads(metadata["fit"])

    def refused(words, text):
        write_tensors(path, tensors, {"format": metadata["format"], "fit": text})
        with pytest.raises(ValueError, match=f"{path}.*{words}"):
            provi.load(path)

    for other in ("subprocess:Popen", "provi.fit:fit", "provi.targets.data:read_real", "provi.targets.nothing:Model"):
        changed = metadata["fit"].replace("provi.targets.regressions:LinearRegression", other)
        refused(r"target of another version.*provi\.load\(path, target=target\)", changed)
    large = data["family"] | {"dim": 60_000, "scale": "triangular"}  # for which it asked for 26.8 GiB
    refused("a triangular scale in 60000 dimensions", json.dumps(data | {"family": large}))
    refused("KeyError: 'family'", json.dumps({name: x for name, x in data.items() if name != "family"}))
    deep = json.dumps(data | {"target": 7}).replace('"target": 7', '"target": ' + '{"list": [' * 5000 + "]}" * 5000)
    refused("RecursionError", deep)
    refused("RecursionError", "[" * 10**5)
    with pytest.raises(ValueError, match=f"{path}.*RecursionError"):
        saved_evidence(path)


def test_another_target_is_refused(any_fit, tmp_path):
    path = tmp_path / "fit"
    any_fit.save(path, target=False)
    same = provi.targets.LinearRegression(X.copy(), Y.copy())
    assert provi.load(path, same).target is same
    other = Y.copy()
    other[3] += 1e-3
    for target in (provi.targets.LinearRegression(X, other), provi.targets.LinearRegression(X, Y, prior_scale=1.01)):
        with pytest.raises(ValueError, match=r"fit is the fit of another target: at three draws.*Give the target"):
            provi.load(path, target)
    with pytest.raises(ValueError, match="another target: it has 2 parameters, target= has 1"):
        provi.load(path, provi.targets.LinearRegression(X[:, :1], Y))
    with pytest.raises(TypeError, match="target must be the provi target of the fit, not ndarray"):
        provi.load(path, X)
    # A function by what it says, not by its name.
    densities = [provi.targets.LogDensity(lambda z, a=a: -0.5 * a * (z @ z), 2) for a in (1.0, 1.0, 1.1)]
    family = Gaussian(2, "diagonal")
    posterior = Posterior(family, family.point(np.zeros(2)), ("a", "b"), densities[0])
    dataclasses.replace(any_fit, target=densities[0], posterior=posterior).save(path)
    provi.load(path, densities[1])
    with pytest.raises(ValueError, match="another target"):
        provi.load(path, densities[2])
    dataclasses.replace(any_fit, target=None).save(path)
    with pytest.warns(UserWarning, match="fit does not say what it is the fit of"):
        provi.load(path, same)


def test_a_full_disk_leaves_the_old_fit(any_fit, tmp_path, monkeypatch):
    path = tmp_path / "fit"
    any_fit.save(path)
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="cannot be written .*No space left.*fit'"):
        dataclasses.replace(any_fit, message="other").save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["fit"]


FORMAT_1 = Path(__file__).parent / "files" / "format-1.safetensors"


def test_files_of_format_1_are_read():
    """Written by the version before digests: a logistic regression of 12 rows, with its target."""
    with pytest.warns(UserWarning, match=r"format-1\.safetensors was written by an earlier.*is not verified"):
        fit = provi.load(FORMAT_1)
    np.testing.assert_array_equal(np.round(fit.posterior.mean, 8), [-1.14051388, -0.37981773])
    assert fit.certificate.gap == 9.500407675407406e-05 and fit.certificate.status == "proven"
    assert fit.target.num_terms == 12 and fit.predict([[0.5, -1.0]]).mean.shape == (1,)
    with pytest.warns(UserWarning, match="not verified"):
        assert saved_evidence(FORMAT_1).evidence.lower == pytest.approx(fit.evidence.lower)
    with pytest.warns(UserWarning, match="not verified"), pytest.warns(UserWarning, match="does not say"):
        assert provi.load(FORMAT_1, fit.target).target is fit.target


def test_the_file_of_2026_11_19_is_read_and_verified(recwarn):
    """Format 2 as it was on that day: a change that cannot read it needs a new format."""
    fit = provi.load(FORMAT_1.with_name("format-2.safetensors"))
    np.testing.assert_array_equal(np.round(fit.posterior.mean, 8), [0.49446752, -0.13001908])
    assert fit.certificate.gap == 0.00020477801875760693 and fit.certificate.status == "proven"
    assert fit.certificate.kl == 0.02213250170388538 and fit.evidence.lower == -9.1037779143878
    assert list(fit.posterior.names) == ["dose", "age"] and fit.target.num_terms == 12
    assert provi.certify(fit.target, fit).gap == pytest.approx(fit.certificate.gap, rel=1e-6)
    assert not recwarn.list


def test_damaged_targets_of_format_1_are_refused(tmp_path):
    tensors, metadata = content_of(FORMAT_1)
    name = next(name for name in tensors if name.startswith("target/"))
    path = tmp_path / "fit"
    save_file(tensors | {name: tensors[name] + 1}, path, metadata=metadata)
    with pytest.warns(UserWarning, match="not verified"), pytest.raises(ValueError, match="is damaged: the digest"):
        provi.load(path)
    save_file(tensors, path, metadata=metadata | {"digest": "0"})
    with pytest.raises(ValueError, match="is damaged: its format"):
        provi.load(path)
    save_file(tensors, path, metadata=metadata | {"format": "provi-fit-3"})
    with pytest.raises(ValueError, match="fit is of a later version of ProVI"):
        provi.load(path)


def test_files_of_before_tables_are_read(tmp_path):
    """Without encoding and target."""
    tensors, metadata = content_of(FORMAT_1)
    content = {name: x for name, x in json.loads(metadata["fit"]).items() if name not in ("encoding", "target")}
    save_file(tensors, tmp_path / "fit", metadata=metadata | {"fit": json.dumps(content)})
    with pytest.warns(UserWarning, match="not verified"):
        again = provi.load(tmp_path / "fit")
    assert again.target is None and again.encoding is None
    np.testing.assert_array_equal(again.posterior.mean, tensors["point/0"])
