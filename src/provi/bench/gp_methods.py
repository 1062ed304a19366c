"""The methods of `provi bench gp` and `provi bench gp-sparse`: natural gradients, each at a few constant steps."""

from provi.bench.methods import Method

GP_THRESHOLDS = (0.01, 1e-3)
"""True gaps, in nats, that are timed."""

SPARSE_TOLERANCE = 1.0
"""Nats: 1e-5 a datum, far less than the log loss can tell."""

_PEERS = "provi.bench.peers."
_STEPS = (0.25, 0.375, 0.5, 0.67)
"""About the best constant steps for the three data sets, and a smaller one; at 1 they all fall into a cycle."""
_SPARSE_STEPS = (0.03, 0.1, 0.3)


def _method(name: str, program: str, package: str, settings: tuple[float, ...]) -> Method:
    return Method(name, _PEERS + program, (package,), package, settings, "step")


GP_METHODS: dict[str, Method] = {
    "provi": Method("ProVI, with its proof", _PEERS + "provi_gp", (), "", GP_THRESHOLDS, "tol", True),
    "numpy": _method("NumPy natural gradient", "numpy_natural_gradient", "numpy", _STEPS),
    "gpflow": _method("GPflow VGP", "gpflow_vgp", "gpflow", _STEPS),
    "gpytorch": _method("GPyTorch NGD", "gpytorch_ngd", "gpytorch", _STEPS),
    "gpjax": _method("GPJax dual", "gpjax_natural", "gpjax", _STEPS),
}

SPARSE_METHODS: dict[str, Method] = {
    "provi": Method("ProVI, with its proof", _PEERS + "provi_svgp", (), "", (SPARSE_TOLERANCE,), "tol", True),
    "gpflow": _method("GPflow SVGP", "gpflow_svgp", "gpflow", _SPARSE_STEPS),
    "gpytorch": _method("GPyTorch SVGP", "gpytorch_svgp", "gpytorch", _SPARSE_STEPS),
}
