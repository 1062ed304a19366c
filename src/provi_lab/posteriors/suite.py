"""The list of all posteriors of the suite."""

from provi_lab.posteriors.held_out import HELD_OUT
from provi_lab.posteriors.hierarchical import HIERARCHICAL
from provi_lab.posteriors.posterior import Posterior
from provi_lab.posteriors.regressions import REGRESSIONS
from provi_lab.posteriors.responses import RESPONSES
from provi_lab.posteriors.series import SERIES
from provi_lab.posteriors.shapes import SHAPES

SUITE: dict[str, Posterior] = {p.name: p for p in (*REGRESSIONS, *HIERARCHICAL, *SERIES, *SHAPES, *RESPONSES)}

EVERY: dict[str, Posterior] = {**SUITE, **HELD_OUT}
"""With those that are held out."""
