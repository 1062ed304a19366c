from provi.certificates.bounds import GapBound as GapBound
from provi.certificates.certificate import Assumption as Assumption
from provi.certificates.certificate import Certificate as Certificate
from provi.certificates.distance.bound import PosteriorBound as PosteriorBound
