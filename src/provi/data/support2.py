"""SUPPORT2 as a table for logistic regression with missing covariates."""

import numpy as np

from provi.data.loaders import Table, load

SKEWED = ("wblc", "alb", "bili", "crea", "glucose", "bun")
"""Right-skewed columns (skewness of 1.9 to 4.9) that are nearly symmetric in logarithms, or at least nearer.

Not `urine`: its skewness is 1.0, and -3.3 after a logarithm because of its zeros.
"""


def support2() -> Table:
    """9105 patients and 16 columns, 17 % of the entries missing; the response is death in hospital.

    The columns of `SKEWED` are logarithms, of 1 + x in those with zeros, named `log NAME` and `log(1 + NAME)`.
    Raises `FileNotFoundError`, with what to do about it, where the data are not here.
    """
    table = load("support2").table()
    features, names = np.array(table.features, float), list(table.names)
    for name in SKEWED:
        column = names.index(name)
        zeros = bool((features[:, column] == 0).any())
        features[:, column] = np.log1p(features[:, column]) if zeros else np.log(features[:, column])
        names[column] = f"log(1 + {name})" if zeros else f"log {name}"
    return Table(features, np.asarray(table.response, float), tuple(names))
