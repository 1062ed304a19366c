"""What `provi.fit` returns: the approximation, its ELBO, the ledger, the history, and why it stopped."""

from provi.result.estimate import Estimate
from provi.result.fit import Fit
from provi.result.posterior import Posterior
from provi.result.storage import load
from provi.result.summary import Summary

__all__ = ["Estimate", "Fit", "Posterior", "Summary", "load"]
