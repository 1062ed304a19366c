"""Training methods by name, and algorithms as they are."""

import pytest

from provi.algorithms import MISSO, PacedMISSO
from provi.algorithms.incremental.block_descent import BlockRule, adam
from provi.algorithms.incremental.sag import SAG
from provi.models.network.training import METHODS, make_algorithm


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("paced", PacedMISSO),
        ("misso", MISSO),
        ("sag", SAG),
        ("adam", BlockRule),
        ("momentum", BlockRule),
        ("bbb", BlockRule),
        ("adagrad", BlockRule),
    ],
)
def test_names(method, kind):
    algorithm, rate = make_algorithm(method, None, 3, num_blocks=8)
    assert type(algorithm) is kind and algorithm.sampling.batch == 1 and int(algorithm.num_draws(0)) == 3
    assert rate == METHODS[method].rate * (8 if method == "misso" else 1)
    other, given = make_algorithm(method, 0.25, 3, num_blocks=8)
    assert given == 0.25
    if method != "misso":
        assert float(getattr(other.rate, "value", other.rate)) == 0.25
    if kind in (BlockRule, PacedMISSO):
        assert other.rule is algorithm.rule  # so that another rate does not compile anew


def test_an_algorithm_is_used_as_it_is():
    mine = adam(0.5)
    assert make_algorithm(mine, None, 1, num_blocks=8)[0] is mine
    assert make_algorithm(MISSO(sampling=1), 0.5, 1, num_blocks=8)[1] == 0.5
    with pytest.raises(ValueError, match="rate=0.1 has no effect beside an algorithm"):
        make_algorithm(mine, 0.1, 1, num_blocks=8)
    with pytest.raises(ValueError, match="method must be one of 'paced'"):
        make_algorithm("lbfgs", None, 1, num_blocks=8)
