"""The Gaussian-process problems that the peers get: data, kernel and jitter in one file. Needs nothing but NumPy."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

LAST_STEP = 150
"""Where a peer stops: at the smallest step in use, 0.25, what is left shrinks to 0.75^150 = 2e-19."""


@dataclasses.dataclass(frozen=True, eq=False)
class GPProblem:
    r"""Labels 0 or 1 with a Bernoulli-logit likelihood on $f \sim N(0, K)$ at the rows of `inputs`,

    $K_{ij} = \sigma^2\exp(-|x_i - x_j|^2/(2l^2)) + \mathrm{jitter}\,[i = j]$. The jitter belongs to the model: equal
    rows have correlated and not equal values. Two problems are equal only when they are the same object, so that a
    program can be remembered for its problem.
    """

    name: str
    inputs: np.ndarray
    response: np.ndarray
    length_scale: float
    amplitude: float
    jitter: float

    def covariance(self) -> np.ndarray:
        """The prior covariance K, with its jitter."""
        gram = squared_exponential(self.inputs, self.inputs, self.length_scale, self.amplitude)
        return gram + self.jitter * np.eye(len(gram))

    def save(self, path: Path) -> None:
        """Write the fields to an npz file."""
        _save(self, path)

    @staticmethod
    def load(path: Path) -> "GPProblem":
        """Read what `save` wrote."""
        return GPProblem(**_read(path))


@dataclasses.dataclass(frozen=True, eq=False)
class SparseGPProblem:
    r"""The same likelihood with inducing values $u = f(Z)$, $u \sim N(0, K_{zz} + \mathrm{jitter}\,I)$.

    Every answer is a Gaussian on the whitened $w = L^{-1}u$, $LL' = K_{zz} + \mathrm{jitter}\,I$, with prior N(0, I):
    $f_n = \phi_n'w + e_n$, $\phi_n = L^{-1}k_z(x_n)$, $\mathrm{var}\,e_n = \sigma^2 - |\phi_n|^2$.
    """

    name: str
    inputs: np.ndarray
    response: np.ndarray
    test_inputs: np.ndarray
    test_response: np.ndarray
    inducing: np.ndarray
    length_scale: float
    amplitude: float
    jitter: float
    batch: int

    def features(self, inputs: np.ndarray) -> np.ndarray:
        r"""The columns $\phi_n = L^{-1}k_z(x_n)$, one for each row of `inputs`."""
        gram = squared_exponential(self.inducing, self.inducing, self.length_scale, self.amplitude)
        factor = np.linalg.cholesky(gram + self.jitter * np.eye(len(gram)))
        return np.linalg.solve(factor, squared_exponential(self.inducing, inputs, self.length_scale, self.amplitude))

    def schedule(self) -> Iterator[tuple[np.ndarray, float, bool]]:
        """Mini-batches without end, the same for every library: rows, passes when they are done, and a snapshot's turn.

        A snapshot is due after the first step, where the compilation is over, and after each pass. A batch is never
        cut short: the rows left over in one pass are in the others.
        """
        a_pass = len(self.inputs) // self.batch
        for step in itertools.count():
            if step % a_pass == 0:
                order = np.random.default_rng([0, step]).permutation(len(self.inputs))
            first = step % a_pass * self.batch
            yield order[first : first + self.batch], (step + 1) / a_pass, step == 0 or (step + 1) % a_pass == 0

    def save(self, path: Path) -> None:
        """Write the fields to an npz file."""
        _save(self, path)

    @staticmethod
    def load(path: Path) -> "SparseGPProblem":
        """Read what `save` wrote."""
        return SparseGPProblem(**_read(path))


def squared_exponential(X: np.ndarray, Z: np.ndarray, length_scale: float, amplitude: float) -> np.ndarray:
    r"""$\sigma^2\exp(-|x - z|^2/(2l^2))$ for each pair of rows."""
    square = (X**2).sum(axis=1)[:, None] + (Z**2).sum(axis=1) - 2 * X @ Z.T
    return amplitude**2 * np.exp(-0.5 * np.maximum(square, 0.0) / length_scale**2)


def snapshot_due(step: int) -> bool:
    """Every step up to 20, then whenever the steps have grown by about a tenth: a natural gradient is done by then."""
    return step <= 20 or step % (step // 10) == 0


def _save(problem: Any, path: Path) -> None:
    np.savez(path, **{field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)})


def _read(path: Path) -> dict[str, Any]:
    """The arrays, and what was saved as a number or a word as itself."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] if file[name].ndim else file[name].item() for name in file.files}
