"""What a fit can say about itself: assumptions with their grounds, constants, bounds."""

from provi.certificates.ledger import Assumption, Certificate, assumption_ledger

__all__ = ["Assumption", "Certificate", "assumption_ledger"]
