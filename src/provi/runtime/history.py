"""The record of a run at chosen steps, kept on the host."""

import dataclasses
from typing import Any

import numpy as np

FIELDS = (
    "step",
    "gradient_evaluations",
    "seconds",
    "elbo",
    "elbo_standard_error",
    "step_size",
    "num_draws",
    "gradient_norm",
    "rejected_steps",
)


@dataclasses.dataclass
class History:
    """Arrays per recorded step: `history["elbo"]`, `history["step"]`, ... (see `FIELDS`)."""

    rows: list[tuple[float, ...]] = dataclasses.field(default_factory=list)

    def append(self, **values: Any) -> None:
        """Add one recorded step; every field of `FIELDS` is required."""
        self.rows.append(tuple(float(values[name]) for name in FIELDS))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in FIELDS:
            raise KeyError(f"history has no field {name!r}; it has {', '.join(FIELDS)}.")
        return self.as_array()[:, FIELDS.index(name)]

    def last(self, name: str) -> float:
        """`self[name][-1]`, at a cost that does not grow with the length: asked after every step."""
        return self.rows[-1][FIELDS.index(name)]

    def __len__(self) -> int:
        return len(self.rows)

    def as_array(self) -> np.ndarray:
        """All rows, one column per field, float64."""
        return np.asarray(self.rows, dtype=np.float64).reshape(-1, len(FIELDS))

    @staticmethod
    def from_array(array: np.ndarray) -> "History":
        """The inverse of `as_array`."""
        return History([tuple(row) for row in np.asarray(array).tolist()])


def recorded_steps(num_steps: int, num_records: int) -> list[int]:
    """Step numbers to record, half evenly and half geometrically spaced, the last always among them."""
    even = np.linspace(1, num_steps, max(2, num_records // 2))
    geometric = np.geomspace(1, num_steps, max(2, num_records // 2))
    return sorted({int(round(step)) for step in (*even, *geometric)})
