from provi.certificates.bounds import GapBound as GapBound
from provi.certificates.certificate import Assumption as Assumption
from provi.certificates.certificate import Certificate as Certificate
from provi.certificates.posterior import PosteriorBound as PosteriorBound
