"""The problem that the methods of `provi bench topics` get: count matrices in one file. Needs NumPy and SciPy alone."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

_SHARES_OF_A_RUN = (0.1, 0.2, 0.5, 1.0)


@dataclasses.dataclass(frozen=True, eq=False)
class TopicsProblem:
    """Find `num_topics` topics in the documents `train`, of which every word of the vocabulary has one at least.

    An answer is handed back as `mean`, the topics p(word | topic), (topics, words), and `covariance`, the method's own
    mean shares of the topics in the documents `observed`, NaN where it is not asked. The other words of these documents
    are `held_out`: they are not in the file, so that no method sees them. `name` is the same for all `seed`s.
    """

    name: str
    num_topics: int
    train: Any
    observed: Any
    held_out: Any = None
    seed: int = 0

    @property
    def num_tokens(self) -> int:
        """The words to be learnt from, repetitions included."""
        return int(self.train.sum())

    def save(self, path: Path) -> None:
        """Write all but the held-out words to an npz file."""
        parts = {}
        for name in ("train", "observed"):
            matrix = scipy.sparse.csr_matrix(getattr(self, name))
            for field in ("data", "indices", "indptr", "shape"):
                parts[f"{name}_{field}"] = np.asarray(getattr(matrix, field))
        np.savez(path, name=self.name, num_topics=self.num_topics, seed=self.seed, **parts)

    @staticmethod
    def load(path: Path) -> "TopicsProblem":
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:

            def matrix(name: str) -> Any:
                arrays = tuple(file[f"{name}_{field}"] for field in ("data", "indices", "indptr"))
                return scipy.sparse.csr_matrix(arrays, shape=tuple(file[f"{name}_shape"]))

            parts = matrix("train"), matrix("observed")
            return TopicsProblem(str(file["name"]), int(file["num_topics"]), *parts, seed=int(file["seed"]))

    def no_shares(self) -> np.ndarray:
        """What stands for the shares in a snapshot that is not the last."""
        return np.full((self.observed.shape[0], self.num_topics), np.nan)


def snapshot_steps(total: int) -> list[int]:
    """The steps after which a run of `total` is looked at: a tenth, a fifth, half, and all of them."""
    return sorted({max(1, round(share * total)) for share in _SHARES_OF_A_RUN})
