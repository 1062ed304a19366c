"""A number with its Monte-Carlo error."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A Monte-Carlo estimate: `float(estimate)` is its value."""

    value: float
    standard_error: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.6g} +- {self.standard_error:.2g}"
