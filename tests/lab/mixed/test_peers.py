"""What R's programs print is read back under our names."""

import shutil

import pytest

from provi_lab.mixed.peers import PEERS, _read, fit
from provi_lab.mixed.problems import grouped_logistic, survival

_PRINTED = """some warning

@seconds 0.2 0.1
@cpu 0.15 0.05
@(Intercept) -0.5
@x 1.25
@sd(group: Intercept) 0.75
@version 1.1.31 R version 4.2.2 (2022-10-31)
"""


def test_output_is_read_under_our_names():
    answer = _read(_PRINTED)
    assert answer.seconds == [0.2, 0.1] and answer.cpu == [0.15, 0.05]
    assert answer.estimates == {"Intercept": -0.5, "x": 1.25, "sd(group)": 0.75}
    assert answer.versions == "1.1.31 R version 4.2.2 (2022-10-31)"


def test_several_coefficients_keep_their_labels():
    text = "@sd(g: Intercept) 1.0\n@sd(g: x) 2.0\n@cor(g: Intercept, x) 0.5\n@sigma 3.0\n"
    assert _read(text).estimates == {
        "sd(g: Intercept)": 1.0,
        "sd(g: x)": 2.0,
        "cor(g: Intercept, x)": 0.5,
        "sigma": 3.0,
    }


def test_a_model_without_a_formula_is_refused():
    with pytest.raises(ValueError, match="no formula"):
        fit(PEERS["lme4"], survival())


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R")
def test_lme4_fits_the_logistic_model():
    try:
        answer = fit(PEERS["lme4"], grouped_logistic(), repeats=1)
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    assert set(answer.estimates) == {"Intercept", "x", "sd(group)"}
    # Below the posterior mean of 1.01, as maximum likelihood is.
    assert answer.estimates["sd(group)"] == pytest.approx(0.803, abs=0.01)
