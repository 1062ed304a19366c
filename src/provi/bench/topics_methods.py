"""The methods of `provi bench topics`, each with the one setting that it is run with."""

from provi.bench.methods import Method

_PEERS = "provi.bench.peers."

OURS = ("full", "diagonal")
"""The methods that are judged."""


def _ours(name: str, program: str, setting: float, quantity: str) -> Method:
    return Method(name, _PEERS + program, (), "", (setting,), quantity, True)


def _scikit(name: str, program: str, passes: float) -> Method:
    return Method(name, _PEERS + program, ("sklearn",), "scikit-learn", (passes,), "passes")


def _tomotopy(name: str, program: str, iterations: float) -> Method:
    return Method(name, _PEERS + program, ("tomotopy", "scipy"), "tomotopy scipy", (iterations,), "iterations")


TOPICS_METHODS: dict[str, Method] = {
    "full": _ours("ProVI CTM", "provi_ctm", 1.0, "full covariance"),
    "diagonal": _ours("ProVI CTM, diagonal", "provi_ctm", 0.0, "full covariance"),
    "provi-lda": _ours("ProVI LDA", "provi_lda", 30.0, "passes at most"),
    "sklearn-batch": _scikit("scikit-learn LDA, batch, 10", "sklearn_lda", 10.0),
    "sklearn-batch-long": _scikit("scikit-learn LDA, batch, 30", "sklearn_lda", 30.0),
    "sklearn-online": _scikit("scikit-learn LDA, online, 10", "sklearn_lda_online", 10.0),
    "sklearn-online-long": _scikit("scikit-learn LDA, online, 30", "sklearn_lda_online", 30.0),
    "tomotopy-lda": _tomotopy("tomotopy LDA, 500", "tomotopy_lda", 500.0),
    "tomotopy-ctm": _tomotopy("tomotopy CTModel, 500", "tomotopy_ctm", 500.0),
    "tomotopy-ctm-long": _tomotopy("tomotopy CTModel, 1500", "tomotopy_ctm", 1500.0),
}

RIVALS = tuple(key for key, method in TOPICS_METHODS.items() if method.requires)
"""The methods of other libraries."""
