r"""A Gaussian process with unknown hyperparameters as a latent Gaussian model: priors by name, and the nested fit.

$$y_n \sim p(y_n|f(x_n), \theta), \qquad f \sim GP(0, k_\theta), \qquad \theta \sim p(\theta),$$

theta the kernel's numbers and those of the likelihood. `provi.fit` integrates theta on a rule of nodes, with the best
Gaussian of f at each (structures/nested).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import double_precision
from provi.fit import fit
from provi.kernels import AbstractKernel, White, parameter_names
from provi.models.gp.mixture import MixturePredictor, mixture_predictor
from provi.result import Fit
from provi.result.marginal import Marginal
from provi.targets import LatentGaussian, latent
from provi.targets.latent.priors import AbstractHyperprior
from provi.targets.likelihoods import AbstractLikelihood, GaussianNoise, NegativeBinomial

LARGEST_INTEGRATED = 1000
"""Different inputs up to which hyperparameters are integrated: some hundred factorisations of a matrix of that size."""

_LIKELIHOOD_NUMBERS = {GaussianNoise: ("scale", "noise_scale"), NegativeBinomial: ("dispersion", "dispersion")}
"""The field of the likelihood, and the name that the estimators have for it."""

_WIDE = 2.5


@dataclasses.dataclass(frozen=True)
class Integrated:
    """What was found: the fit, what predicts, and the marginal of each hyperparameter by its name."""

    target: LatentGaussian
    found: Fit
    predictor: MixturePredictor
    hyperparameters: dict[str, Marginal]

    @property
    def kernel(self) -> AbstractKernel:
        """At the posterior means."""
        return self.predictor.block.kernel_at(self._means())

    @property
    def likelihood(self) -> AbstractLikelihood:
        """At the posterior means."""
        return self.predictor.likelihood_at(self._means())

    def _means(self) -> Any:
        return jnp.asarray([marginal.mean for marginal in self.hyperparameters.values()])


@double_precision
def integrate_hyperparameters(
    X: np.ndarray,
    y: np.ndarray,
    kernel: AbstractKernel,
    likelihood: AbstractLikelihood,
    *,
    priors: Any = None,
    jitter: float = 1e-6,
    tol: float = 0.01,
    seed: int = 0,
    progress: bool = False,
) -> Integrated:
    """Fit with unknown hyperparameters; `priors` by name, see `GPClassifier`. The given numbers do not matter."""
    values = np.asarray(X, np.float64)
    _check(values, kernel, likelihood)
    kernel_priors, likelihood_priors = _read_priors(y, kernel, likelihood, priors)
    block = latent.GaussianProcess(values, kernel, priors=kernel_priors, jitter=jitter)
    target = LatentGaussian(y, likelihood, blocks=block, likelihood_priors=likelihood_priors)
    found = fit(target, tol=tol, seed=seed, progress=progress)
    posterior: Any = found.posterior
    names = hyperparameter_names(kernel, likelihood)
    marginals = zip(names, posterior.hyperparameters.values(), strict=True)
    named = {name: dataclasses.replace(marginal, name=name) for name, marginal in marginals}
    return Integrated(target, found, mixture_predictor(posterior), named)


def hyperparameter_names(kernel: AbstractKernel, likelihood: AbstractLikelihood) -> tuple[str, ...]:
    """Those of the kernel, as `provi.kernels.parameter_names` has them, and the likelihood's."""
    return (*parameter_names(kernel), *(shown for _, shown in _numbers(likelihood)))


def _numbers(likelihood: AbstractLikelihood) -> list[tuple[str, str]]:
    return [names for kind, names in _LIKELIHOOD_NUMBERS.items() if isinstance(likelihood, kind)]


def _check(X: np.ndarray, kernel: AbstractKernel, likelihood: AbstractLikelihood) -> None:
    if not likelihood.log_concave:
        raise ValueError(
            f"hyperparameters='integrate' needs a log-concave likelihood, and the {likelihood.name} likelihood is not: "
            f"take hyperparameters='optimise'."
        )
    if not parameter_names(kernel):
        raise ValueError("The kernel has no hyperparameters to integrate: take hyperparameters='fixed'.")
    different = len(np.unique(X, axis=0))
    if different > LARGEST_INTEGRATED:
        gib = 10 * 8 * different**2 / 2**30
        raise ValueError(
            f"hyperparameters='integrate' factorises dense matrices some hundred times: it is for "
            f"{LARGEST_INTEGRATED} different rows of X at most, and there are {different} ({gib:.1f} GiB). Take "
            f"hyperparameters='optimise', with num_inducing=500 for a sparse process."
        )
    parts = jax.tree.leaves(kernel, is_leaf=lambda part: isinstance(part, White))
    if different < len(X) and any(isinstance(part, White) for part in parts):
        raise ValueError(
            "X has equal rows, which share their function value where hyperparameters are integrated: the White kernel "
            "would be shared, too. Take Gaussian noise in its place."
        )


def _read_priors(
    y: np.ndarray, kernel: AbstractKernel, likelihood: AbstractLikelihood, priors: Any
) -> tuple[dict[str, AbstractHyperprior], dict[str, AbstractHyperprior]]:
    """Of the kernel by its names, and of the likelihood by its fields; defaults that know the scale of y."""
    names, given = hyperparameter_names(kernel, likelihood), dict(priors or {})
    for name, prior in given.items():
        if name not in names:
            raise ValueError(f"hyperparameter_priors names {name!r}; the hyperparameters are {', '.join(names)}.")
        if not isinstance(prior, AbstractHyperprior) or prior.support[0] < 0:
            raise ValueError(
                f"hyperparameter_priors[{name!r}] must be a prior of positive numbers, such as "
                f"provi.targets.latent.LogNormal(0.0, 1.0), not {prior!r}."
            )
    own = {name: prior for name, prior in given.items() if name in parameter_names(kernel)}
    # The prior mean of f is zero, so that amplitudes are as large as y itself and not only as its deviation.
    noisy = isinstance(likelihood, GaussianNoise)
    height = float(np.sqrt(np.mean(np.square(y)))) if noisy else 1.0
    amplitudes = [name for name in parameter_names(kernel) if name.endswith("amplitude")]
    usual: dict[str, AbstractHyperprior] = {name: latent.HalfNormal(_WIDE * (height or 1.0)) for name in amplitudes}
    if noisy:
        default: AbstractHyperprior = latent.HalfNormal(_WIDE * (float(np.std(y)) or 1.0))
    else:
        default = latent.Gamma(2.0, 0.1)
    return usual | own, {field: given.get(shown, default) for field, shown in _numbers(likelihood)}
