"""The problems that the methods get, each with its arrays in one file. Needs nothing but NumPy, and SciPy for words."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

LAST_STEP = 150
"""Where a natural gradient stops: at the smallest step in use, 0.25, what is left shrinks to 0.75^150 = 2e-19."""

_SHARES_OF_A_RUN = (0.1, 0.2, 0.5, 1.0)
_SPARSE = ("data", "indices", "indptr", "shape")


def _withheld() -> Any:
    """A field that is not written to the file, so that no method sees it."""
    return dataclasses.field(default=None, metadata={"withheld": True})


@dataclasses.dataclass(frozen=True, eq=False)
class AbstractProblem:
    """A problem that can be written to a file: `name`, the same for data sets that differ in their seed alone.

    Two problems are equal only when they are the same object, so that a program can be remembered for its problem.
    """

    name: str

    def save(self, path: Path) -> None:
        """Write the fields to an npz file, for `load_problem`; whole numbers in arrays (labels) as floats."""
        arrays: dict[str, Any] = {"kind": type(self).__name__}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("withheld"):
                continue
            if hasattr(value, "tocsr"):
                matrix = value.tocsr()
                arrays |= {f"{field.name}.{part}": np.asarray(getattr(matrix, part)) for part in _SPARSE}
            else:
                arrays[field.name] = np.asarray(value, float) if np.ndim(value) else value
        np.savez(path, **arrays)


def load_problem(path: Path) -> Any:
    """Read what a problem's `save` wrote: numbers and words as themselves, sparse matrices in rows."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] if file[name].ndim else file[name].item() for name in file.files}
    kind = next(kind for kind in KINDS if kind.__name__ == arrays["kind"])
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in arrays:
            values[field.name] = arrays[field.name]
        elif f"{field.name}.indptr" in arrays:
            import scipy.sparse

            *parts, shape = (arrays[f"{field.name}.{part}"] for part in _SPARSE)
            values[field.name] = scipy.sparse.csr_matrix(tuple(parts), shape=tuple(shape))
    return kind(**values)


@dataclasses.dataclass(frozen=True, eq=False)
class LogisticProblem(AbstractProblem):
    """Logistic regression of the labels `response` on the columns of `design`, prior N(0, prior_scale^2 I)."""

    design: np.ndarray
    response: np.ndarray
    prior_scale: float = 1.0

    @property
    def dim(self) -> int:
        """The number of coefficients."""
        return self.design.shape[1]


@dataclasses.dataclass(frozen=True, eq=False)
class GPProblem(AbstractProblem):
    r"""Labels 0 or 1 with a Bernoulli-logit likelihood on $f \sim N(0, K)$ at the rows of `inputs`,

    $K_{ij} = \sigma^2\exp(-|x_i - x_j|^2/(2l^2)) + \mathrm{jitter}\,[i = j]$. The jitter belongs to the model: equal
    rows have correlated and not equal values.
    """

    inputs: np.ndarray
    response: np.ndarray
    length_scale: float
    amplitude: float
    jitter: float

    def covariance(self) -> np.ndarray:
        """The prior covariance K, with its jitter."""
        gram = squared_exponential(self.inputs, self.inputs, self.length_scale, self.amplitude)
        return gram + self.jitter * np.eye(len(gram))


@dataclasses.dataclass(frozen=True, eq=False)
class SparseGPProblem(AbstractProblem):
    r"""The same likelihood with inducing values $u = f(Z)$, $u \sim N(0, K_{zz} + \mathrm{jitter}\,I)$.

    Every answer is a Gaussian on the whitened $w = L^{-1}u$, $LL' = K_{zz} + \mathrm{jitter}\,I$, with prior N(0, I):
    $f_n = \phi_n'w + e_n$, $\phi_n = L^{-1}k_z(x_n)$, $\mathrm{var}\,e_n = \sigma^2 - |\phi_n|^2$.
    """

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


@dataclasses.dataclass(frozen=True, eq=False)
class MissingProblem(AbstractProblem):
    """Logistic regression of `response`, 0 or 1, on Gaussian `features`, NaN where missing.

    An answer is handed back as `mean`, the coefficients (intercept first) and then the covariates' means, and
    `covariance`, that of the covariates.
    """

    features: np.ndarray
    response: np.ndarray
    seed: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class TopicsProblem(AbstractProblem):
    """Find `num_topics` topics in the documents `train`, of which every word of the vocabulary has one at least.

    An answer is handed back as `mean`, the topics p(word | topic), (topics, words), and `covariance`, the method's own
    mean shares of the topics in the documents `observed`, NaN where it is not asked. The other words of these documents
    are `held_out`: they are not in the file.
    """

    num_topics: int
    train: Any
    observed: Any
    held_out: Any = _withheld()
    seed: int = 0

    @property
    def num_tokens(self) -> int:
        """The words to be learnt from, repetitions included."""
        return int(self.train.sum())

    def no_shares(self) -> np.ndarray:
        """What stands for the shares in a snapshot that is not the last."""
        return np.full((self.observed.shape[0], self.num_topics), np.nan)


KINDS = (LogisticProblem, GPProblem, SparseGPProblem, MissingProblem, TopicsProblem)


def squared_exponential(X: np.ndarray, Z: np.ndarray, length_scale: float, amplitude: float) -> np.ndarray:
    r"""$\sigma^2\exp(-|x - z|^2/(2l^2))$ for each pair of rows."""
    square = (X**2).sum(axis=1)[:, None] + (Z**2).sum(axis=1) - 2 * X @ Z.T
    return amplitude**2 * np.exp(-0.5 * np.maximum(square, 0.0) / length_scale**2)


def snapshot_due(step: int) -> bool:
    """Every step up to 20, then whenever the steps have grown by about a tenth: a natural gradient is done by then."""
    return step <= 20 or step % (step // 10) == 0


def snapshot_steps(total: int) -> list[int]:
    """The steps after which a run of `total` is looked at: a tenth, a fifth, half, and all of them."""
    return sorted({max(1, round(share * total)) for share in _SHARES_OF_A_RUN})
