"""Plans of a run: step sizes, batch growth, sampling of data terms, averaging."""

from provi.schedules.averaging import AbstractAveraging, GeometricAverage, LastIterate, NoiseWeightedAverage
from provi.schedules.batch_sizes import (
    AbstractBatchSize,
    ConstantBatch,
    FunctionBatch,
    OffsetPolynomialBatch,
    PolynomialBatch,
)
from provi.schedules.noise_batch import NoiseBatch
from provi.schedules.sampling import AbstractSampling, ReshuffledSampling, UniformSampling
from provi.schedules.step_sizes import AbstractStepSize, ConstantStep, PolynomialStep, StronglyConvexStep

__all__ = [
    "AbstractAveraging",
    "AbstractBatchSize",
    "AbstractSampling",
    "AbstractStepSize",
    "ConstantBatch",
    "ConstantStep",
    "FunctionBatch",
    "GeometricAverage",
    "LastIterate",
    "NoiseBatch",
    "NoiseWeightedAverage",
    "OffsetPolynomialBatch",
    "PolynomialBatch",
    "PolynomialStep",
    "ReshuffledSampling",
    "StronglyConvexStep",
    "UniformSampling",
]
