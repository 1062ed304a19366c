from provi.certificates.bounds import GapBound as GapBound
from provi.certificates.certificate import Assumption as Assumption
from provi.certificates.certificate import Certificate as Certificate
from provi.certificates.certificate import Counterexample as Counterexample
from provi.certificates.certificate import RefutedDeclarationError as RefutedDeclarationError
from provi.certificates.distance.bound import PosteriorBound as PosteriorBound
