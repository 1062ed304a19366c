"""The environment of each peer: what `provi bench environments` installs with pip, as the records were made with."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Environment:
    """A peer's own packages.

    - `packages`: for pip, with versions; what they need besides is pip's choice.
    - `benches`: the commands of `provi bench` that run it.
    - `note`: why it cannot stand beside ProVI, or what else is to be known.
    """

    packages: tuple[str, ...]
    benches: tuple[str, ...]
    note: str = ""


_JAX = "jax==0.10.2"
_GP = ("gp", "gp-sparse")

ENVIRONMENTS: dict[str, Environment] = {
    "blackjax": Environment(("blackjax==1.7.1", _JAX), ("blackbox",)),
    "gpflow": Environment(
        ("gpflow==2.11.2", "tensorflow-cpu==2.21.0", "tf_keras"), _GP, "may need an older NumPy than JAX does"
    ),
    "gpjax": Environment(("gpjax==1.0.0", _JAX), ("gp",)),
    "gpytorch": Environment(("gpytorch==1.15.2", "torch==2.13.0"), _GP, "torch is a large download"),
    "gsmvi": Environment(("gsmvi==0.1", _JAX), ("blackbox",)),
    "misaem": Environment(("misaem==1.0.0",), ("missing",)),
    "numpyro": Environment(("numpyro==0.22.0", _JAX), ("blackbox",)),
    "pymc": Environment(("pymc==5.28.5",), ("blackbox",), "compiles with g++, which pip does not install"),
    "sklearn": Environment(("scikit-learn==1.9.1",), ("missing", "topics")),
    "tomotopy": Environment(("tomotopy==0.14.0", "scipy"), ("topics",)),
    "viabel": Environment(("viabel==0.5.1",), ("blackbox",)),
}
"""By the name of the module here that runs the library."""
