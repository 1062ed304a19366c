"""MISO and MISSO on the negative ELBO of a logistic regression: how the curvature decides, in nats above the optimum.

`python benchmarks/misso_elbo.py` prints the table of docs/theory/misso.md.
"""

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import provi  # noqa: E402
from provi.algorithms import MISO, MISSO  # noqa: E402
from provi.algorithms.incremental.elbo_surrogate import block_curvatures  # noqa: E402
from provi.data.loaders import breast_cancer  # noqa: E402
from provi.diagnostics.exact import exact_negative_elbo  # noqa: E402
from provi.diagnostics.optimum import linear_model_optimum  # noqa: E402
from provi.runtime.run import run  # noqa: E402
from provi.schedules import PolynomialBatch  # noqa: E402

BLOCKS, PASSES, DIVISORS = 28, (25, 100), (1, 4, 16, 64)


def main() -> None:
    """Each method at each curvature, seed 0."""
    table = breast_cancer()
    target = provi.targets.LogisticRegression(table.features, table.response, intercept=True)
    family = provi.families.Gaussian(target.dim, "diagonal")
    best, start = linear_model_optimum(target, family), family.point(np.zeros(target.dim), 0.3)
    proven = block_curvatures(target, BLOCKS)
    print(f"curvatures: mean {proven.mean():.0f}, largest {proven.max():.0f}")
    for divisor in DIVISORS:
        for name, algorithm in (
            ("exact energies", MISO(1, curvature=proven / divisor)),
            ("M_k = k + 1", MISSO(1, PolynomialBatch(1, 1.0), curvature=proven / divisor)),
        ):
            options = {"seed": 0, "num_records": 1, "progress": False}
            ends = [run(algorithm, target, family, start, num_steps=p * BLOCKS, **options).point for p in PASSES]
            gaps = [float(exact_negative_elbo(target, family, end)) - best.negative_elbo for end in ends]
            print(f"proven / {divisor:<3} {name:15}", "  ".join(f"{gap:10.3g}" for gap in gaps), flush=True)


if __name__ == "__main__":
    main()
