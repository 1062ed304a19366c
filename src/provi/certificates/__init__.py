"""What a fit can say about itself: bounds with their grounds, assumptions with their status."""

from provi.certificates.bounds import GapBound
from provi.certificates.issue import issue
from provi.certificates.ledger import Assumption, Certificate
from provi.certificates.posterior import PosteriorBound

__all__ = ["Assumption", "Certificate", "GapBound", "PosteriorBound", "issue"]
