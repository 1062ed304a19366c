"""`monte_carlo/bounds.py`: which checks follow one another, and what is reported of them, with their parts given."""

import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from provi.certificates.bounds import GapBound
from provi.certificates.certificate import Counterexample
from provi.certificates.monte_carlo import bounds as monte
from provi.certificates.monte_carlo.batch_sums import Frame
from provi.certificates.monte_carlo.bounds import NAMES
from provi.certificates.monte_carlo.check_values import CheckValues
from provi.certificates.monte_carlo.finite_sample import NAME, FiniteSample, Slopes
from provi.certificates.monte_carlo.whitened_frame import Grounds, Growth
from provi.families import Gaussian, Laplace, LocationScale
from provi.targets import LogDensity

TARGET = LogDensity(lambda z: -0.5 * jnp.sum(z**2) - 0.1 * jnp.sum(z**4), 2)
FAMILY = Gaussian(2)
POINT = FAMILY.point_from_covariance(np.zeros(2), np.eye(2))
PROVEN = Grounds("proven", "some curvature")


def frame(whitener=True, dtype=jnp.float64, dim=2):
    return Frame(
        jnp.ones(dim, dtype),
        jnp.eye(dim, dtype=dtype),
        jnp.eye(dim, dtype=dtype) if whitener else None,
        jnp.zeros((), dtype),
    )


def repeated(monkeypatch, values, *, passes=3, least=0.0, whitener=True, basis=PROVEN, most=10**6, wanted=None,
             hidden=None, cone=None, chunk=8, confidence=0.9, family=FAMILY, dtype=jnp.float64):  # fmt: skip
    """`_repeat`: what each check was asked, and its result."""
    asked = []

    def evaluator(key, target, family, frame, centre, chunks, chunk):
        asked.append(dict(centre=centre, chunks=chunks))
        return lambda shifts, fisher: None

    def minimise(evaluate, whitener, preconditioner, allowed, epsilon, distance):
        first = SimpleNamespace(value=np.array([1.0, 5.0, 2.0]), fisher=np.arange(32.0))
        asked[-1].update(allowed=allowed, preconditioner=preconditioner, epsilon=epsilon, distance=distance(first))
        return SimpleNamespace(passes=passes, least=least, least_at=np.ones((32, 2)), first=first)

    def check(found, whitener, has_score, centre, delta, epsilon, unseen):
        asked[-1].update(delta=delta, unseen=unseen, has_score=has_score)
        value = values[len(asked) - 1]
        return (
            value
            if isinstance(value, CheckValues)
            else CheckValues(constants_free=float(value), decrease=9.0, least_decrease=1.0)
        )

    monkeypatch.setattr(monte, "_evaluator", evaluator)
    monkeypatch.setattr(monte, "minimise_batches", minimise)
    monkeypatch.setattr(monte, "check_values", check)
    monkeypatch.setattr(monte, "next_guesses", lambda found, centre: (centre + 1, np.full(2, 7.0)))
    monkeypatch.setattr(monte, "growth", lambda *_: (cone, 12))
    held = frame(whitener, dtype)
    found = monte._repeat(TARGET, family, held, basis, chunk, confidence, 0, most, wanted, hidden)
    return found, asked


def test_checks_follow_with_twice_the_draws(monkeypatch):
    values = [9.0, 5.0, 4.0, 3.7, 3.4, 3.3, 3.2]
    found, asked = repeated(monkeypatch, values, hidden=lambda draws: (draws / 1e6, 0.5))
    sizes = [len(each["chunks"]) for each in asked]
    assert sizes == [1, 8, 16, 32, 64]  # 512 draws a chunk of all batches; from the second on 4096 at least
    assert [each["chunks"].start for each in asked] == [2**30, 2**30 + 1, 2**30 + 9, 2**30 + 25, 2**30 + 57]
    assert [each["delta"] for each in asked] == pytest.approx([0.1 / 2 ** (k + 1) for k in range(5)])
    assert [each["allowed"] for each in asked] == [40, 40, 40, 40, (10**6 - 1536 * 57) // 2**15]
    assert found.num_gradients == 512 * 3 * sum(sizes)
    assert all(np.array_equal(each["centre"], np.full((2, 2), float(k))) for k, each in enumerate(asked))
    assert np.array_equal(asked[0]["preconditioner"], np.eye(2)) and np.array_equal(asked[1]["preconditioner"], [7, 7])
    assert asked[2]["unseen"].num_draws == 8192 and asked[2]["unseen"].location == 8192 / 1e6
    assert asked[0]["unseen"].moved == 2.0**-52 and asked[0]["epsilon"] == 2.0**-52 and asked[0]["has_score"]
    assert found.bounds[0].value == 3.4 and "; 32768 draws in the last check" in found.bounds[0].detail
    assert found.fisher == 15.5 and found.fisher_error == pytest.approx(np.std(np.arange(32.0), ddof=1) / math.sqrt(32))
    # Ends after two checks in a row that lowered it by less than a tenth each.
    for values, number in (([9, 8.9, 8.8, 1], 3), ([9, 8.2, 7.4, 1], 3), ([9, 8.0, 7.4, 6.8, 1], 4),
                           ([9, 8.2, 7.3, 6.7, 6.1], 5), ([math.inf, 8.9, 8.8, 8.7, 1], 4)):  # fmt: skip
        assert len(repeated(monkeypatch, values)[1]) == number
    assert repeated(monkeypatch, [9.0], hidden=None, most=1536)[1][0]["unseen"].location == 0.0


def test_it_ends_where_it_was_enough(monkeypatch):
    assert len(repeated(monkeypatch, [0.1, 0.1, 0.1], wanted=0.1)[1]) == 2  # the first has too few draws
    assert len(repeated(monkeypatch, [9, 0.101, 0.05, 0.01], wanted=0.1)[1]) == 3
    assert len(repeated(monkeypatch, [0.1, 0.1], wanted=0.1, chunk=64)[1]) == 1
    # The first check's own budget, and what is left after it.
    found, asked = repeated(monkeypatch, [9.0, 1.0], most=512 * 3 * 2 - 1)
    assert len(asked) == 1 and asked[0]["allowed"] == 5 and found.num_gradients == 1536
    found, asked = repeated(monkeypatch, [9.0, 1.0, 0.1], most=512 * 3 * (1 + 5))
    assert [len(each["chunks"]) for each in asked] == [1, 5]
    assert [len(e["chunks"]) for e in repeated(monkeypatch, [9.0, 1.0, 0.1], most=512 * 3 * 2)[1]] == [1]
    assert [len(e["chunks"]) for e in repeated(monkeypatch, [9.0, 1.0, 0.1], most=512 * 3 * 3)[1]] == [1, 2]
    assert len(repeated(monkeypatch, [9.0] * 2, most=512 * 5, passes=5)[1]) == 1


def test_how_far_the_best_mean_may_be(monkeypatch):
    cone = Growth(2.0, -3.0, 2, 0.8)
    unknown = Grounds("proven", None)
    found, asked = repeated(monkeypatch, [9.0], whitener=False, basis=unknown, cone=cone, most=1536 + 12)
    reach = cone.reach(5.0)
    assert asked[0]["distance"] == reach and found.num_gradients == 1536 + 12
    assert found.bounds[0].status == "statistical"
    assert f"lies within {reach:.3g} standard deviations of q, as the potential grows" in found.bounds[0].detail
    assert [row.name for row in found.bounds] == [NAMES[0], NAMES[2]]
    found, asked = repeated(monkeypatch, [9.0], whitener=False, basis=unknown, most=1548)
    assert (
        asked[0]["distance"] == 1e6
        and found.bounds[0].status == "conditional"
        and "not verified" in found.bounds[0].detail
    )
    found, _ = repeated(monkeypatch, [9.0], whitener=False, cone=cone, most=1548)
    assert "grows" not in found.bounds[0].detail and repeated(monkeypatch, [9.0], most=1536)[0].num_gradients == 1536
    large = LocationScale(2, Laplace())
    assert repeated(monkeypatch, [9.0], family=large, most=1536)[1][0]["has_score"] == large.base.has_score
    monkeypatch.setattr(monte, "LARGEST_DENSE", 1)
    assert np.array_equal(repeated(monkeypatch, [9.0], most=1536)[1][0]["preconditioner"], np.ones(2))


def test_refusals(monkeypatch):
    segment = Counterexample(np.zeros(2), np.ones(2), -1.0, 0.0)
    monkeypatch.setattr(monte, "refuting_segment", lambda *given: segment)
    found, asked = repeated(monkeypatch, [9.0], least=-1e-9)
    assert found.counterexample is segment and found.num_gradients == 1536
    assert [(row.name, row.value, row.status) for row in found.bounds] == [
        (name, math.inf, "conditional") for name in NAMES
    ]
    assert found.bounds[0].detail.startswith("refused: the potential is not convex: curvature -1") and found.kl is None
    assert math.isnan(found.fisher) and math.isnan(found.fisher_error) and found.confidence == 0.9
    checks = [CheckValues(1.0, decrease=d, least_decrease=at_least) for d, at_least in ((0.5, 0.1), (0.9, 0.51))]
    found, asked = repeated(monkeypatch, checks)
    assert "contradict each other" in found.bounds[0].detail and found.num_gradients == 1536 * 9
    checks = [CheckValues(1.0, decrease=d, least_decrease=at_least) for d, at_least in ((0.5, 0.1), (0.9, 0.5))]
    assert repeated(monkeypatch, checks, most=1536 * 9)[0].bounds[0].value == 1.0


BEST, FISHER = CheckValues(1.0, 2.0, 3.0, 4.0), np.arange(32.0)


def certificate(basis, best=BEST, fisher=FISHER):
    return monte._certificate(best, basis, "; notes", fisher, 77, 0.95)


def test_what_is_reported():
    found = certificate(PROVEN)
    assert [(row.name, row.value, row.status) for row in found.bounds] == [
        (NAMES[0], 1.0, "statistical"), (NAMES[1], 2.0, "statistical"), (NAMES[2], 3.0, "conditional"),
    ]  # fmt: skip
    assert all((row.confidence, row.num_samples) == (0.95, 77) for row in found.bounds) and found.kl == 4.0
    assert found.bounds[0].detail == "convexity of the potential (proven); some curvature; notes"
    assert "averaged over the members" in found.bounds[2].detail and found.num_gradients == 77
    unknown = certificate(Grounds("unknown", "some curvature"))
    assert [row.status for row in unknown.bounds] == ["conditional"] * 3 and unknown.kl is None
    near = certificate(Grounds("declared", None, "it is near"))
    assert [(row.name, row.status) for row in near.bounds] == [(NAMES[0], "statistical"), (NAMES[2], "conditional")]
    assert "; it is near" in near.bounds[0].detail
    assert certificate(Grounds("declared", None)).bounds[0].status == "conditional"
    nothing = certificate(PROVEN, CheckValues(1.0))
    assert nothing.kl is None and not nothing.bounds[0].detail.endswith(monte.INFINITE)
    assert all(row.detail.endswith(monte.INFINITE) for row in nothing.bounds[1:])
    assert math.isnan(certificate(PROVEN, fisher=np.full(32, np.inf)).fisher_error)


def run(monkeypatch, *, slopes=True, basis=PROVEN, found=None, **more):
    """`monte_carlo_bounds` with its two parts given."""
    seen = SimpleNamespace(finite=None, repeat=None)
    rest = found or monte.MonteCarloCertificate(
        (GapBound("rest", 2.0, "statistical", 0.5),), 3.0, 50, None, 0.1, 0.2, 0.5
    )

    def finite(key, target, family, frame, slopes, chunk, **options):
        seen.finite = options
        return FiniteSample(1.5, 10_000, "a detail")

    def repeat(target, family, frame, basis, chunk, level, seed, left, wanted, hidden):
        seen.repeat = (chunk, level, seed, left, wanted)
        return rest

    known = Slopes(np.eye(2), np.eye(2), np.eye(2), 0.1, "") if slopes else None
    monkeypatch.setattr(monte, "whitened_frame", lambda target, point: (frame(), basis))
    monkeypatch.setattr(monte, "known_slopes", lambda *_: known)
    monkeypatch.setattr(monte, "finite_sample_bound", finite)
    monkeypatch.setattr(monte, "_repeat", repeat)
    options = {"confidence": 0.9, "seed": 4, "max_gradients": 100_000, **more}
    return monte.monte_carlo_bounds(TARGET, FAMILY, POINT, **options), seen


def test_halves_of_gradients_and_of_the_error_are_for_each_part(monkeypatch):
    found, seen = run(monkeypatch, wanted=0.25)
    assert seen.finite == {"delta": pytest.approx(0.05), "max_gradients": 50_000, "wanted": 0.25}
    assert seen.repeat == (8, pytest.approx(0.95), 4, 90_000, 0.25)
    assert [row.name for row in found.bounds] == [NAME, "rest"] and found.num_gradients == 10_050
    assert found.bounds[0] == GapBound(
        NAME, 1.5, "proven", 0.9, 10_000, "convexity of the potential (proven); some curvature; a detail"
    )
    assert found.bounds[1].confidence == 0.9 == found.confidence and found.kl == 3.0
    for basis in (PROVEN, Grounds("unknown", "some")):
        found, seen = run(monkeypatch, slopes=basis is not PROVEN, basis=basis)
        assert seen.finite is None and seen.repeat[1:4] == (pytest.approx(0.9), 4, 100_000)
        assert len(found.bounds) == 1 and found.num_gradients == 50
    found, seen = run(monkeypatch, only_proven=True)
    assert seen.repeat is None and (found.kl, found.num_gradients, len(found.bounds)) == (None, 10_000, 1)
    assert math.isnan(found.fisher) and math.isnan(found.fisher_error) and found.confidence == 0.9
    for most, both in ((10_000 + 1024, True), (10_000 + 1023, False)):
        assert (run(monkeypatch, max_gradients=most)[1].repeat is not None) == both
    refuted = monte.MonteCarloCertificate(
        (), None, 50, Counterexample(np.zeros(2), np.ones(2), -1.0, 0.0), 0.1, 0.2, 0.5
    )
    assert run(monkeypatch, found=refuted)[0].bounds == ()


def test_arguments(monkeypatch):
    for options, words in ((dict(confidence=0.0), "between 0 and 1"), (dict(confidence=1.0), "between 0 and 1"),
                           (dict(wanted=0.0), "wanted"), (dict(max_gradients=1023), "max_gradients")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            run(monkeypatch, **options)
    run(monkeypatch, max_gradients=1024)
    with pytest.raises(ValueError, match="dimension 3"):
        monte.monte_carlo_bounds(TARGET, Gaussian(3), POINT)
    violated, seen = run(monkeypatch, basis=Grounds("violated", None))
    assert "known not to be" in violated.bounds[0].detail and seen.finite is None and violated.num_gradients == 0
    monkeypatch.setattr(monte, "LARGEST_DENSE", 1)
    dense, _ = run(monkeypatch)
    assert "use scale='diagonal'" in dense.bounds[0].detail and dense.num_gradients == 0
    diagonal = Gaussian(2, "diagonal")
    monte.monte_carlo_bounds(TARGET, diagonal, diagonal.point_from_covariance(np.zeros(2), np.eye(2)))
    monkeypatch.setattr(monte, "LARGEST_DENSE", 2)
    assert "refused" not in run(monkeypatch)[0].bounds[0].detail


def test_pairs_in_a_chunk_and_notes():
    for dim, pairs in ((1, 8), (64, 8), (65, 16), (128, 16), (129, 32), (512, 64), (10_000, 64)):
        assert monte._pairs_in_a_chunk(dim) == pairs and monte.fewest_gradients(dim) == 4 * 32 * pairs
    assert monte._notes(frame(), FAMILY) == "" and "float32" in monte._notes(frame(dtype=jnp.float32), FAMILY)
    assert "low-rank" in monte._notes(frame(), Gaussian(2, "low_rank", rank=1))
    assert (monte.MOST_PASSES, monte.FEWEST_DRAWS, monte.FINITE_SHARE, monte.FIRST_CHUNK) == (40, 4096, 0.5, 2**30)
