from provi.result.evidence import Comparison as Comparison
from provi.result.evidence import EvidenceBracket as EvidenceBracket
from provi.result.evidence import compare as compare
from provi.result.fit import Estimate as Estimate
from provi.result.fit import Fit as Fit
from provi.result.posterior import Posterior as Posterior
from provi.result.storage import load as load
from provi.result.summary import Summary as Summary
