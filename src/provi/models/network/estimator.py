"""Bayesian neural networks with the scikit-learn interface: a Gaussian posterior of the weights."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from provi.core.arguments import check_count, check_positive, double_precision
from provi.models.network import predictive as metrics
from provi.models.network.predictive import pack, predict_draws, unpack
from provi.models.network.reading import (
    are_pixels,
    check_outputs,
    check_responses,
    check_shape,
    class_numbers,
    make_network,
    one_axis,
    read_inputs,
    read_response,
    split_seed,
    warn_of_scale,
)
from provi.models.network.training import Trained, train
from provi.targets.bayesian_network import BayesianNetwork as Target


def _may_classify(model: Any) -> bool:
    return model.classes_ is not None if hasattr(model, "target_") else model.likelihood != "gaussian"


class BayesianNetwork(BaseEstimator):
    r"""A neural network with a Gaussian posterior of its weights, $q = N(\mu, \mathrm{diag}\,\sigma^2)$.

    Maximises $E_q\log p(y\mid x, w)-\mathrm{KL}(q\,\|\,N(0, s^2I))$, the ELBO, over blocks of rows. No certificate:
    the posterior of a network is not log-concave, and nothing is proven about the distance from the best q.

    **Arguments:**

    - `network`: None for one hidden layer of 50 units; an Equinox module, called on one row of X; or a function
      `make(key, num_outputs)` that returns one, such as `provi.nets.LeNet5`, or returns a pair `(apply, params)` with
      a function `apply(params, x)` of a batch.
    - `likelihood`: `"categorical"`, `"gaussian"` with standard deviation `noise_sd`, or `"auto"`: categorical if y
      looks like classes (`sklearn.utils.multiclass.type_of_target`; whole numbers do). - `prior_sd`: s.
    - `posterior`: one $\sigma$ a `"weight"`, one a `"tensor"`, or a `"global"` one.
    - `noise`: what the rows of a block share: `"weights"`, `"flipout"`, `"local"` (see `provi.nets.noise`); `"auto"`
      is local where all layers are linear, else weights.
    - `method`: `"paced"` (MISSO at the pace of Adam), `"misso"`, `"sag"`, `"adam"`, `"momentum"`, `"bbb"` (Bayes by
      Backprop), `"adagrad"`, or an algorithm. - `rate`: None for the method's own, which is no more than a start.
    - `epochs`: passes over the data. - `block_size`: rows a step. - `num_draws`: of the weights a step, or a schedule.
    - `kl_weight`: the KL counts so many times in training. Below 1 the posterior is tempered, that of the likelihood to
      the power 1/`kl_weight`; `elbo_` is the plain one always.
    - `start_sd`: $\sigma$ at the start. - `table_dtype`: `"bfloat16"` halves the table of MISSO, SAG and paced MISSO.
    - `predictive_draws`: of the weights behind predictions.
    - `augment(key, x)`: changes the batches of the training.
    - `devices`: over which table and blocks are divided, or how many.
    - `random_state`: an integer gives the same fit again.
    - `progress`: whether to show a bar; None: on a terminal. - `checkpoint`, `resume`: a file from which an interrupted
      fit goes on to the same result, bit for bit.

    **Attributes:** `classes_`, None for a Gaussian likelihood; `elbo_`, in nats for all data, with its Monte-Carlo
    error; `history_`: arrays `epoch`, `negative_elbo` (per row, at the blocks' latest visits), `seconds`; `point_`,
    means and log standard deviations; `target_`; `outcome_` and `message_`, how the training ended; `n_iter_`, epochs;
    `seconds_`; `n_features_in_`.

    X is a table (n, features) or images (n, h, w) or (n, h, w, channels), used as it is but for images of type uint8,
    which are divided by 255: scale columns yourself.
    """

    # scikit-learn's rule: the constructor takes anything and stores it, `fit` checks. Hence no types here.
    def __init__(
        self,
        network: Any = None,
        *,
        likelihood: Any = "auto",
        noise_sd: Any = 1.0,
        prior_sd: Any = 1.0,
        posterior: Any = "weight",
        noise: Any = "auto",
        method: Any = "paced",
        rate: Any = None,
        epochs: Any = 20,
        block_size: Any = 128,
        num_draws: Any = 1,
        kl_weight: Any = 1.0,
        start_sd: Any = 0.05,
        table_dtype: Any = None,
        predictive_draws: Any = 32,
        augment: Any = None,
        devices: Any = None,
        random_state: Any = 0,
        progress: Any = None,
        checkpoint: Any = None,
        resume: Any = False,
    ):
        self.network = network
        self.likelihood = likelihood
        self.noise_sd = noise_sd
        self.prior_sd = prior_sd
        self.posterior = posterior
        self.noise = noise
        self.method = method
        self.rate = rate
        self.epochs = epochs
        self.block_size = block_size
        self.num_draws = num_draws
        self.kl_weight = kl_weight
        self.start_sd = start_sd
        self.table_dtype = table_dtype
        self.predictive_draws = predictive_draws
        self.augment = augment
        self.devices = devices
        self.random_state = random_state
        self.progress = progress
        self.checkpoint = checkpoint
        self.resume = resume

    @double_precision
    def fit(self, X: Any, y: Any) -> "BayesianNetwork":
        """Fit to the rows or images X and their labels, of any type, or responses y, (n,) or (n, outputs)."""
        inputs, y = read_inputs(self, X, y, reset=True)
        response = read_response(self.likelihood, y)
        check_count("predictive_draws", self.predictive_draws)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        row_shape, scale = inputs.shape[1:], (are_pixels(X), float(inputs.max()))
        inputs = self._arranged(inputs)
        network, params = make_network(self.network, split_seed(seed)[0], inputs.shape[1:], response.num_outputs)
        target = Target(
            network,
            inputs,
            response.values,
            params=params,
            likelihood="gaussian" if response.classes is None else "categorical",
            noise_sd=check_positive("noise_sd", self.noise_sd),
            prior_sd=check_positive("prior_sd", self.prior_sd),
        )
        check_outputs(target, response)
        self._store(train(self, target, seed))  # a fit that fails leaves an earlier one whole
        self._seed, self._row_shape, self._scale, self.classes_ = seed, row_shape, scale, response.classes
        self._one_column = np.ndim(y) == 1 or response.num_outputs == 1
        return self

    @double_precision
    def predict_draws(self, X: Any, num_draws: Any = None) -> np.ndarray:
        """(S, n, k): class probabilities, or means of y, under S draws of the weights (`predictive_draws`)."""
        check_is_fitted(self)
        inputs = check_shape(read_inputs(self, X, reset=False)[0], self._row_shape)
        warn_of_scale(self._scale, X, inputs)
        count, key = self.predictive_draws if num_draws is None else num_draws, split_seed(self._seed)[1]
        return predict_draws(self.target_, self.point_.mean, self._sd, self._arranged(inputs), key, count)

    @available_if(_may_classify)
    def predict_proba(self, X: Any) -> np.ndarray:
        """The predictive probabilities of the `classes_`: means over draws of the weights."""
        probabilities = self.predict_draws(X).mean(axis=0, dtype=np.float64)
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class; for a Gaussian likelihood the mean of y."""
        draws = self.predict_draws(X)
        mean = draws.mean(axis=0, dtype=np.float64)
        if self.classes_ is not None:
            return self.classes_[mean.argmax(axis=1)]
        return mean[:, 0] if self._one_column else mean

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy, or R squared for a Gaussian likelihood."""
        predicted = self.predict(X)
        if self.classes_ is None:
            return float(r2_score(y, predicted, sample_weight=sample_weight))
        return float(accuracy_score(one_axis(y), predicted, sample_weight=sample_weight))

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:
        """What is measured on new rows, as means per row, in nats where they are nats.

        For classes `accuracy`, `nll`, `ece`, `brier`, `entropy` and the part of it that is `mutual_information` (see
        `provi.models.network.predictive`); for a Gaussian likelihood `rmse` and `nll`, of the mixture over draws.
        """
        draws = self.predict_draws(X)
        if self.classes_ is None:
            values = check_responses(y, draws.shape[1:])
            noise = float(self.target_.noise_sd)
            terms = ((draws - values) / noise) ** 2 / 2 + np.log(noise) + np.log(2 * np.pi) / 2
            density = logsumexp(-terms.sum(axis=2), axis=0) - np.log(len(draws))
            error = draws.mean(axis=0, dtype=np.float64) - values
            return {"rmse": float(np.sqrt((error**2).mean())), "nll": float(-density.mean())}
        labels, mean = class_numbers(y, self.classes_), draws.mean(axis=0, dtype=np.float64)
        whole, _, information = metrics.entropy_parts(draws)
        return {
            "accuracy": metrics.accuracy(mean, labels),
            "nll": metrics.negative_log_likelihood(mean, labels),
            "ece": metrics.expected_calibration_error(mean, labels),
            "brier": metrics.brier_score(mean, labels),
            "entropy": float(whole.mean()),
            "mutual_information": float(information.mean()),
        }

    def report(self, path: str | Path, X: Any, y: Any, *, title: str = "Report of a Bayesian network") -> Path:
        """One HTML page with the training, and with calibration and uncertainty on the new rows X, y."""
        from provi.models.network.report import write_report

        return write_report(self, path, X, y, title)

    def _arranged(self, inputs: np.ndarray) -> np.ndarray:
        """Images laid out as rows for the network of one hidden layer."""
        return inputs.reshape(len(inputs), -1) if self.network is None else inputs

    def _store(self, found: Trained) -> None:
        self.target_, self.point_, self._sd = found.target, found.point, found.sd
        self.elbo_, self.history_, self.n_iter_ = found.elbo, found.history, found.epochs
        self.seconds_, self.outcome_, self.message_ = found.run.seconds, found.run.outcome, found.run.message

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.target_tags.required = True
        fitted = hasattr(self, "target_")
        if self.likelihood == "categorical" or (fitted and self.classes_ is not None):
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        elif self.likelihood == "gaussian" or fitted:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
            tags.target_tags.multi_output = True
        return tags

    def __getstate__(self):
        state: Any = super().__getstate__()
        return {**state, "target_": pack(self.target_)} if "target_" in state else state

    @double_precision
    def __setstate__(self, state):
        if "target_" in state:
            state = {**state, "target_": unpack(state["target_"])}
        super().__setstate__(state)
