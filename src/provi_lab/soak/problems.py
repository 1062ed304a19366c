"""Small problems, one of each structure, and what a fit of one is made of: to compare two bit for bit."""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.exceptions import ConvergenceWarning

import provi
from provi import kernels, targets
from provi.core.files import replacing

FOLDER = "PROVI_SOAK_FOLDER"
"""The environment variable of the folder of tables, which a run and its victims share."""


class Bimodal(eqx.Module):
    """Two modes, at -`place` and `place` in the first coordinate, the second of half the weight."""

    place: Any

    def __call__(self, z: Any) -> Any:
        ends = jnp.stack([-((z[0] + self.place) ** 2), -((z[0] - self.place) ** 2) - 1.4])
        return jax.scipy.special.logsumexp(ends) - 0.5 * z[1] ** 2


class Quartic(eqx.Module):
    """A log-concave density whose numbers are leaves: one program for all of them."""

    scale: Any

    def __call__(self, z: Any) -> Any:
        return -0.5 * jnp.sum(z**2) - 0.1 * jnp.sum((z / self.scale) ** 4) - jnp.logaddexp(0.0, z[0])


def _data(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([71, number])
    return rng.normal(size=(20, 2)), (rng.random(20) < 0.5).astype(float)


def _linear(number: int, **options: Any) -> provi.Fit:
    design, labels = _data(number)
    # The tolerance asks for more steps than the default would: more moments at which a run can be killed.
    return provi.fit(targets.LogisticRegression(design, labels, 3.0), tol=1e-9, seed=number, **options)


def _dual(number: int, **options: Any) -> provi.Fit:
    design, labels = _data(number)
    target = targets.GaussianProcess(design, labels, kernel=kernels.SquaredExponential(0.7, 2.0))
    return provi.fit(target, tol=1e-9, seed=number, **options)


def _black_box(number: int, **options: Any) -> provi.Fit:
    target = targets.LogDensity(Quartic(np.asarray(1.0 + 0.1 * number)), 2, log_concave=True)
    return provi.fit(target, tol=0.02, seed=number, **options)


def _modes(number: int, **options: Any) -> provi.Fit:
    """Two of them: a search, a race, and steps until nothing moves any more."""
    target = targets.LogDensity(Bimodal(np.asarray(1.1 + 0.1 * number)), 2)
    return provi.fit(target, tol=0.05, seed=number, **options)


def _whitened(number: int, **options: Any) -> provi.Fit:
    target = targets.LogDensity(Quartic(np.asarray(1.0 + 0.1 * number)), 2, log_concave=True)
    return provi.fit(target, provi.families.Gaussian(2, "diagonal"), tol=0.05, seed=number, **options)


def _richer(number: int, **options: Any) -> provi.Fit:
    target = targets.LogDensity(Quartic(np.asarray(1.0 + 0.1 * number)), 2, log_concave=True)
    return provi.fit(target, "student", tol=0.05, seed=number, budget=provi.Budget(steps=200), **options)


def _streamed(number: int, **options: Any) -> provi.Fit:
    """A table in a Parquet file that every process reads again."""
    import pyarrow as pa
    from pyarrow import parquet

    path = Path(os.environ.get(FOLDER) or tempfile.gettempdir()) / f"soak-{os.getuid()}-{number}.parquet"
    if not path.exists():
        design, labels = _data(number)
        with replacing(path) as draft:
            parquet.write_table(pa.table({"a": design[:, 0], "b": design[:, 1], "y": labels}), draft)
    target = targets.LogisticRegression.from_parquet(path, target="y", prior_scale=3.0)
    return provi.fit(target, tol=1e-9, seed=number, **options)


class Network(NamedTuple):
    """What there is of a network's fit, under the names of a `provi.Fit`."""

    model: Any

    @property
    def outcome(self) -> Any:
        """How the training ended."""
        return self.model.outcome_


def _network(number: int, **options: Any) -> Any:
    """The model that has checkpoints of its own, with a table that its loop takes over."""
    design, labels = _data(number)
    saving = {name: value for name, value in options.items() if name != "checkpoint_seconds"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ConvergenceWarning)  # few steps
        model = provi.models.BayesianNetwork(None, epochs=60, block_size=5, random_state=number, **saving)
        return Network(model.fit(design, labels.astype(int)))


def _planned(number: int, **options: Any) -> provi.Fit:
    design, labels = _data(number)
    algorithm = provi.algorithms.ProxSGD(0.02, num_draws=2)  # pyright: ignore[reportArgumentType, reportCallIssue]
    steps = provi.Budget(steps=400)
    target, family = targets.LogisticRegression(design, labels), provi.families.Gaussian(2)
    return provi.fit(target, family, algorithm, budget=steps, seed=number, **options)


def _nested(number: int, **options: Any) -> provi.Fit:
    design, _ = _data(number)
    block = targets.latent.Independent(np.arange(20) % 4)
    return provi.fit(targets.LatentGaussian(design[:, 0], "gaussian", fixed=np.ones((20, 1)), blocks=block), **options)


def _mixed(number: int, **options: Any) -> provi.Fit:
    """The estimator, which hands its checkpoint on."""
    design, labels = _data(number)
    table = {"y": design[:, 0].tolist(), "x": labels.tolist(), "g": [f"g{k % 4}" for k in range(20)]}
    return provi.models.MixedModel("y ~ x + (1 | g)", table, random_state=number, **options).fit().fit_


FITS: dict[str, Callable[..., provi.Fit]] = {
    "linear": _linear,
    "dual": _dual,
    "planned": _planned,
    "black_box": _black_box,
    "nested": _nested,
    "mixed": _mixed,
    "modes": _modes,
    "whitened": _whitened,
    "richer": _richer,
    "streamed": _streamed,
    "network": _network,
}
"""By structure: functions of a number, which makes another problem of the same shapes, and of `provi.fit`'s options."""

RESUMABLE = tuple(FITS)


def fitted(structure: str, number: int, **options: Any) -> provi.Fit:
    """The fit of a problem."""
    return FITS[structure](number, progress=False, **options)


def answer(fit: Any) -> str:
    """What a resumed run promises to have in common with an uninterrupted one, in one word with a digest in it."""
    if isinstance(fit, Network):
        model = fit.model
        plain = (float(model.elbo_), model.elbo_.standard_error, fit.outcome.name, model.n_iter_)
        kept = {name: model.history_[name] for name in ("epoch", "negative_elbo")}
        return f"{model.n_iter_}epochs,elbo={plain[0]!r},{_digest((model.point_, kept), plain)[:16]}"
    certificate, counts = fit.certificate, (fit.num_steps, fit.gradient_evaluations)
    if fit.posterior.family.scale == "diagonal":
        # Whitened rounds: each call of a resumed run issues a certificate of its own, at a level of its own.
        plain = (float(fit.elbo), fit.elbo.standard_error, fit.num_steps)
        return f"{fit.num_steps}steps,elbo={plain[0]!r},{_digest(fit.posterior.point, plain)[:16]}"
    plain = (float(fit.elbo), fit.elbo.standard_error, certificate.gap, certificate.status, certificate.bounds)
    digest = _digest(fit.posterior.point, (*plain, fit.outcome.name, *counts))
    return f"{counts[0]}steps,{counts[1]}gradients,elbo={float(fit.elbo)!r},gap={certificate.gap!r},{digest[:16]}"


def content(fit: provi.Fit) -> str:
    """A digest of all that a saved fit says, its target and its clock included."""
    plain = (float(fit.elbo), fit.elbo.standard_error, fit.certificate.to_dict(), fit.outcome.name, fit.message)
    rest = (fit.num_steps, fit.gradient_evaluations, fit.posterior.names, fit.seconds, fit.call)
    return _digest((fit.posterior.point, fit.history.as_array(), fit.target), (*plain, *rest))


def _digest(arrays: Any, plain: tuple[Any, ...]) -> str:
    digest = hashlib.sha256(repr(plain).encode())
    for leaf in jax.tree.leaves(arrays):
        array = np.asarray(leaf) if eqx.is_array_like(leaf) else np.frombuffer(repr(leaf).encode(), np.uint8)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()
