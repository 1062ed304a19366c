"""Rows that are read in blocks: the same fits and certificates as in memory, whatever is read and however."""

import dataclasses
import gc
import threading

import jax
import numpy as np
import pytest

import provi
from provi.certificates.linear.bounds import linear_model_bounds
from provi.data import blocks, encoded_rows
from provi.data.blocks import StreamError, read_ahead
from provi.runtime.checkpoint import identity_of
from provi.structures.linear import streamed_batches
from provi.targets.likelihoods import NegativeBinomial
from provi.targets.linear_model import BatchFeed

pyarrow = pytest.importorskip("pyarrow")
ROWS, WIDTH = 900, 4


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles of a small table, the last of them not full."""
    monkeypatch.setattr(encoded_rows, "_TILE_NUMBERS", 512)
    monkeypatch.setattr(encoded_rows, "_FEWEST_TILE_ROWS", 16)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, WIDTH))
    eta = X @ np.array([0.6, -0.4, 0.2, 0.0]) + 0.3
    return {
        "X": X,
        "binary": (rng.random(ROWS) < 1 / (1 + np.exp(-eta))).astype(float),
        "counts": rng.poisson(np.exp(eta)).astype(float),
        "real": eta + rng.standard_normal(ROWS),
    }


def write(path, columns):
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=128)
    return path


def same(one, other):
    np.testing.assert_allclose(one.posterior.mean, other.posterior.mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(one.posterior.covariance, other.posterior.covariance, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(one.elbo.value, other.elbo.value, rtol=1e-11)
    assert one.certificate.status == other.certificate.status == "proven"
    assert other.certificate.gap <= 0.01


@pytest.mark.parametrize(
    ("name", "response", "model"),
    [
        ("LogisticRegression", "binary", {}),
        ("ProbitRegression", "binary", {}),
        ("PoissonRegression", "counts", {}),
        ("LinearRegression", "real", {"noise_scale": 1.2}),
        ("GeneralisedLinearModel", "counts", {"likelihood": NegativeBinomial(2.0)}),
    ],
)
def test_every_regression_equals_the_one_in_memory(table, name, response, model):
    kind, X, y = getattr(provi.targets, name), table["X"], table[response]
    plain, streamed = kind(X, y, intercept=True, **model), kind.from_blocks(X, y, intercept=True, **model)
    assert streamed.stream.num_tiles > 3 and ROWS % streamed.stream.tile_rows
    if name in ("LogisticRegression", "PoissonRegression"):  # counts have a start of their own
        return same(provi.fit(plain), provi.fit(streamed))
    with jax.enable_x64(True):
        family = provi.families.Gaussian(WIDTH + 1)
        point = family.point(np.linspace(-0.1, 0.3, WIDTH + 1), 0.04, np.float64)
        # (a) needs the whole pass; of the others a long pass takes less.
        one, other = (linear_model_bounds(t, family, point)[0].value for t in (plain, streamed))
        np.testing.assert_allclose(one, other, rtol=1e-8)
        assert np.isfinite(one)
        z = jax.numpy.linspace(-0.3, 0.3, WIDTH + 1)
        for one, other in zip(*(jax.value_and_grad(t.potential)(z) for t in (plain, streamed)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


@pytest.fixture(scope="module")
def numbers():
    """Offsets, exposures and weights, one of them zero."""
    rng = np.random.default_rng(3)
    found = {"offset": 0.5 * rng.standard_normal(ROWS), "exposure": rng.uniform(0.5, 2, ROWS)}
    return found | {"weights": rng.integers(0, 4, ROWS) / 2}


@pytest.mark.parametrize(
    ("name", "response", "given", "fitted"),
    [
        ("LogisticRegression", "binary", ("offset", "weights"), True),
        ("LogisticRegression", "shares", ("weights",), False),
        ("ProbitRegression", "binary", ("weights",), False),
        ("PoissonRegression", "counts", ("offset", "exposure", "weights"), True),
        ("LinearRegression", "real", ("offset",), False),
    ],
)
def test_offsets_exposures_and_weights_are_those_of_the_class(table, numbers, tmp_path, name, response, given, fitted):
    kind, X, extras = getattr(provi.targets, name), table["X"], {part: numbers[part] for part in given}
    y = np.where(table["binary"] == 1, 0.7, 0.0) if response == "shares" else table[response]
    plain = kind(X, y, intercept=True, **extras)
    path = write(tmp_path / "t.parquet", {f"x{i}": X[:, i] for i in range(WIDTH)} | {"y": y} | extras)
    streamed = [
        kind.from_parquet(path, "y", intercept=True, **{part: part for part in given}),
        kind.from_blocks(X, y, intercept=True, **extras),
        kind.from_blocks(
            lambda: ((X[k : k + 77], y[k : k + 77], {part: extras[part][k : k + 77] for part in given})
                     for k in range(0, ROWS, 77)),
            intercept=True,
        ),
    ]  # fmt: skip
    tiles = [[part.tobytes() for tile in target.stream.rows.tiles() for part in tile] for target in streamed]
    assert tiles[0] == tiles[1] == tiles[2] and streamed[0].dim == WIDTH + 1
    with jax.enable_x64(True):
        family = provi.families.Gaussian(WIDTH + 1)
        point = family.point(np.linspace(-0.1, 0.3, WIDTH + 1), 0.04, np.float64)
        # (a) needs the whole pass; of the others a long pass takes less.
        bounds = [linear_model_bounds(target, family, point)[0].value for target in (plain, streamed[0])]
        np.testing.assert_allclose(*bounds, rtol=1e-8)
        assert np.isfinite(bounds[1])
        z = jax.numpy.linspace(-0.3, 0.3, WIDTH + 1)
        values, slopes = zip(*(jax.value_and_grad(t.potential)(z) for t in (plain, streamed[0])), strict=True)
        np.testing.assert_allclose(*values, rtol=1e-9)
        np.testing.assert_allclose(*slopes, rtol=1e-9, atol=1e-10)
    if fitted:
        same(provi.fit(plain), provi.fit(streamed[0]))


def test_a_sample_and_a_prediction_have_their_offsets(table, numbers, tmp_path, monkeypatch):
    from provi.structures import linear

    monkeypatch.setattr(linear, "SMALLEST_WORK", 1.0)
    X, y = table["X"], table["counts"]
    columns = {f"x{i}": X[:, i] for i in range(WIDTH)} | {"y": y, "t": numbers["exposure"]}
    path = write(tmp_path / "t.parquet", columns)
    fit = provi.fit(provi.targets.PoissonRegression.from_parquet(path, "y", exposure="t", memory=2**20), tol=1e-6)
    known = provi.fit(provi.targets.PoissonRegression(X, y, exposure=numbers["exposure"]), tol=1e-6)
    same(known, fit)
    new = {name: values[:4] for name, values in columns.items()}
    expected = known.predict(X[:4], exposure=numbers["exposure"][:4]).mean
    np.testing.assert_allclose(fit.predict(new).mean, expected, rtol=1e-6)
    fit.save(tmp_path / "fit.safetensors")
    np.testing.assert_allclose(provi.load(tmp_path / "fit.safetensors").predict(new).mean, expected, rtol=1e-6)


def test_files_mapped_arrays_and_iterators_are_the_same_rows_bit_for_bit(table, tmp_path):
    X, y = table["X"].astype(np.float32), table["binary"].astype(np.float32)
    for part, (a, b) in enumerate([(0, 250), (250, 700), (700, ROWS)]):
        write(tmp_path / f"part-{part}.parquet", {**{f"x{i}": X[a:b, i] for i in range(WIDTH)}, "y": y[a:b]})
    arrow = pyarrow.table({**{f"x{i}": X[:, i] for i in range(WIDTH)}, "y": y})
    with pyarrow.ipc.new_file(tmp_path / "whole.arrow", arrow.schema) as file:
        file.write_table(arrow, max_chunksize=333)
    for name, values in (("X", X), ("y", y)):
        np.save(tmp_path / f"{name}.npy", values)

    def blocks():
        yield from ((X[k : k + 77], y[k : k + 77]) for k in range(0, ROWS, 77))

    kind = provi.targets.LogisticRegression
    files = [tmp_path / f"part-{k}.parquet" for k in range(3)]
    made = [
        kind.from_parquet(files, "y"),
        kind.from_parquet(str(tmp_path / "part-*.parquet"), "y", prefetch=False),
        kind.from_parquet(tmp_path / "whole.arrow", "y", memory=2**20),
        kind.from_blocks(tmp_path / "X.npy", tmp_path / "y.npy", prefetch=False),
        kind.from_blocks(blocks, memory=2**20),
    ]
    assert isinstance(made[3].stream.rows.source.X, np.memmap)
    tiles = [[part.tobytes() for tile in target.stream.rows.tiles() for part in tile] for target in made]
    assert all(tile == tiles[0] for tile in tiles)
    fit = provi.fit(made[0])
    assert made[0].dtype == np.float32 and fit.certificate.status == "proven"
    assert provi.certify(made[1], fit, compare=False).gap <= 0.01


def test_categories_scales_labels_predictions_and_files(table, tmp_path):
    rng = np.random.default_rng(1)
    a, group = 5 + 3 * table["X"][:, 0], rng.choice(["u", "v", "w"], ROWS)
    code, label = rng.integers(1, 4, ROWS), np.where(table["binary"] == 1, "yes", "no")
    columns = {"a": a, "group": group, "code": code, "y": label}
    path = write(tmp_path / "t.parquet", columns)
    arguments = {"categorical": ["code"], "standardise": True, "intercept": True, "prior_scale": 2.0}
    target = provi.targets.LogisticRegression.from_parquet(path, "y", **arguments)
    indicators = [group == "v", group == "w", code == 2, code == 3]
    X = np.column_stack([(a - a.mean()) / a.std(), *indicators]).astype(float)
    plain = provi.targets.LogisticRegression(X, label == "yes", 2.0, intercept=True, names=target.names[1:])
    assert target.names == ("intercept", "a", "group=v", "group=w", "code=2", "code=3")
    fit, known = provi.fit(target, checkpoint=tmp_path / "run.ckpt"), provi.fit(plain)
    same(known, fit)
    assert "KL(q || posterior) at most" in fit.certificate.distance_line and "intercept" in str(fit.posterior.summary())
    new = {name: values[:5] for name, values in columns.items()}
    expected = known.predict(X[:5]).mean
    np.testing.assert_allclose(fit.predict(new).mean, expected, rtol=1e-8)
    fit.save(tmp_path / "fit.safetensors")
    loaded = provi.load(tmp_path / "fit.safetensors")
    np.testing.assert_allclose(loaded.predict(new).mean, expected, rtol=1e-8)
    assert loaded.target.stream.identity == target.stream.identity
    with pytest.raises(ValueError, match="loaded without its data"):
        provi.certify(loaded.target, loaded, compare=False)
    assert provi.load(tmp_path / "fit.safetensors", target).certificate.gap == fit.certificate.gap
    again = provi.targets.LogisticRegression.from_parquet(path, "y", **arguments)
    resumed = provi.fit(again, checkpoint=tmp_path / "run.ckpt", resume=True)
    assert np.array_equal(resumed.posterior.mean, fit.posterior.mean)
    other = provi.targets.LogisticRegression.from_parquet(path, "y", **{**arguments, "standardise": False})
    with pytest.raises(ValueError, match="belongs to another run"):
        provi.fit(other, checkpoint=tmp_path / "run.ckpt", resume=True)


def test_a_long_fit_starts_from_a_sample_that_fits_into_memory(table, monkeypatch):
    from provi.structures import linear

    monkeypatch.setattr(linear, "SMALLEST_WORK", 1.0)
    target = provi.targets.LogisticRegression.from_blocks(table["X"], table["binary"], memory=2**20)
    chosen, before = [], type(target.stream.rows).sample

    def sample(rows, places):
        found = before(rows, places)
        chosen.append((places, found))
        return found

    monkeypatch.setattr(type(target.stream.rows), "sample", sample)
    same(
        provi.fit(provi.targets.LogisticRegression(table["X"], table["binary"]), tol=1e-6), provi.fit(target, tol=1e-6)
    )
    places, (design, response) = chosen[0]
    np.testing.assert_array_equal(design, table["X"][places])
    np.testing.assert_array_equal(response[0], table["binary"][places])
    rows = target.stream.rows
    assert rows.least_stride * rows.memory >= 2 * ROWS * WIDTH * 8 or rows.least_stride == 1


def test_bytes_that_are_held_stay_within_the_memory():
    count, width, memory = 40_000, 8, 2**20
    X = np.zeros((count, width), np.float32)

    def blocks():
        yield from ((X[k : k + 1000], X[k : k + 1000, 0]) for k in range(0, count, 1000))

    rows = provi.targets.LinearRegression.from_blocks(blocks, memory=memory).stream.rows
    held = []
    for tile, _ in rows.tiles():
        gc.collect() if not held else None
        held.append(tile.base.nbytes * (encoded_rows.BLOCKS_HELD - 1))
    assert len(held) == rows.num_tiles > 16 and max(held) <= memory / 2
    assert X.nbytes > memory


def test_what_is_wrong_is_named_with_column_file_and_row(table, tmp_path):
    kind, X = provi.targets.LogisticRegression, table["X"].copy()
    X[317, 2] = np.nan
    columns = {f"x{i}": X[:, i] for i in range(WIDTH)} | {"y": table["binary"]}
    bad, good = write(tmp_path / "bad.parquet", columns), write(tmp_path / "good.parquet", {**columns, "x2": X[:, 0]})
    with pytest.raises(ValueError, match=r"bad\.parquet, row 318: column 'x2' is nan"):
        kind.from_parquet([good, bad], "y")
    with pytest.raises(ValueError, match=r"good\.parquet, row 1 to 900, column 'x0': y must hold 0 and 1"):
        kind.from_parquet(good, "x0")
    with pytest.raises(ValueError, match="no column 'z'"):
        kind.from_parquet(good, "z")
    with pytest.raises(FileNotFoundError, match="no file"):
        kind.from_parquet(tmp_path / "none-*.parquet", "y")
    counts = provi.targets.PoissonRegression
    with pytest.raises(ValueError, match="weights must be the name of a column"):
        kind.from_parquet(good, "y", weights=np.ones(ROWS))
    with pytest.raises(ValueError, match=r"good\.parquet, row \d+, column 'x1': weights must not be negative"):
        kind.from_parquet(good, "y", weights="x1")
    with pytest.raises(ValueError, match="weights must not be negative, nor all zero"):
        kind.from_blocks(table["X"], table["binary"], weights=0.0)
    with pytest.raises(ValueError, match=r"column 'x3': exposure must be positive; its smallest entry is -"):
        counts.from_parquet(good, "y", exposure="x3")
    with pytest.raises(ValueError, match="exposure is for counts with the log link"):
        kind.from_parquet(good, "y", exposure="x3")
    with pytest.raises(ValueError, match="offset has length 3, but must have length 900"):
        kind.from_blocks(table["X"], table["binary"], offset=np.ones(3))
    with pytest.raises(ValueError, match="weights must not be given where X is a function"):
        kind.from_blocks(lambda: iter([(table["X"], table["binary"])]), weights=np.ones(ROWS))
    with pytest.raises(ValueError, match="the third item must be a dictionary"):
        kind.from_blocks(lambda: iter([(table["X"], table["binary"], {"w": 1})]))
    with pytest.raises(ValueError, match="memory must be at least"):
        kind.from_blocks(table["X"], table["binary"], memory=10)
    streamed, algorithms = kind.from_parquet(good, "y"), provi.algorithms
    for algorithm, message in (
        (algorithms.SiteTable(), "and this asks for single rows or for all of them"),
        (algorithms.PGSVI(rho=0.1, sampling="uniform"), "sampling must be 'reshuffled'"),
        (algorithms.PGSVI(rho=0.1, halve_on_stall=True), "halve_on_stall must be left out"),
        (algorithms.PGSVI(rho=0.1, batch_size=ROWS + 1), "batch_size is 901, but there are 900 data"),
        (algorithms.ProxSGD(0.1, data_sampling=provi.schedules.UniformSampling(8)), "use data_sampling=.*Reshuffled"),
    ):
        with pytest.raises(ValueError, match=message):
            provi.fit(streamed, algorithm=algorithm, budget=provi.Budget(steps=2), progress=False)
    with pytest.raises(ValueError, match="memory=1000 bytes do not hold the rows that are shuffled together"):
        encoded_rows.ShuffledRows(dataclasses.replace(streamed.stream.rows, memory=1000), 0)


def rows_of(shuffled, places):
    """The numbers of the rows at these places of a table whose first column counts them."""
    return np.concatenate([shuffled.take(start, stop - start)[0][:, 0] for start, stop in places]).astype(int)


def test_shuffled_passes_have_every_row_once_in_an_order_of_their_seed(monkeypatch, tmp_path):
    monkeypatch.setattr(encoded_rows, "BUFFER_TILES", 2)
    X = np.concatenate([np.arange(ROWS)[:, None], np.ones((ROWS, 7))], axis=1)
    path = write(tmp_path / "t.parquet", {f"x{k}": X[:, k] for k in range(8)} | {"y": np.arange(ROWS) % 2})
    kind = provi.targets.LogisticRegression
    arrays = kind.from_blocks(X, X[:, 0] % 2).stream.rows
    assert 3 * arrays.buffer_rows < ROWS and ROWS % arrays.buffer_rows
    made = {
        "files": kind.from_parquet(path, "y").stream.rows,
        "arrays": arrays,
        "blocks": kind.from_blocks(
            lambda: ((X[k : k + 77], X[k : k + 77, 0] % 2) for k in range(0, ROWS, 77))
        ).stream.rows,
    }
    batches = [(k, k + 70) for k in range(0, 3 * ROWS - 70, 70)]
    for name, rows in made.items():
        found = rows_of(encoded_rows.ShuffledRows(rows, 5), batches)
        passes = found[:ROWS], found[ROWS : 2 * ROWS]
        for order in passes:
            np.testing.assert_array_equal(np.sort(order), np.arange(ROWS))
        assert not np.array_equal(*passes)
        # Neighbours in the table are none in a batch; blocks of a function keep their order, and mix within the buffer.
        far = np.abs(np.diff(passes[0]))
        assert np.median(far) > (100 if name != "blocks" else rows.buffer_rows / 8)
        # Neither reading ahead, memory nor where reading begins changes the order; the seed does.
        for other in (dataclasses.replace(rows, ahead=False), dataclasses.replace(rows, memory=2**22)):
            np.testing.assert_array_equal(rows_of(encoded_rows.ShuffledRows(other, 5), batches), found)
        np.testing.assert_array_equal(rows_of(encoded_rows.ShuffledRows(rows, 5), batches[15:]), found[15 * 70 :])
        again = encoded_rows.ShuffledRows(rows, 5)
        again.take(1000, 3)
        np.testing.assert_array_equal(rows_of(again, [(950, 960)]), found[950:960])
        assert not np.array_equal(rows_of(encoded_rows.ShuffledRows(rows, 6), batches), found)
    taken = encoded_rows.ShuffledRows(arrays, 0).take(10, 60)
    np.testing.assert_array_equal(taken[1][0], taken[0][:, 0] % 2)
    held = [design.nbytes for design, _, _ in arrays.shuffled(0, 0)]
    assert max(held) * encoded_rows.BLOCKS_HELD <= arrays.memory and max(held) < X.nbytes / 3
    short = dataclasses.replace(arrays, num_rows=ROWS + 1)
    with pytest.raises(ValueError, match="a pass gave 900 rows or more, the first one 901"):
        rows_of(encoded_rows.ShuffledRows(short, 0), batches)


SAMPLING = provi.schedules.ReshuffledSampling(ROWS)


@pytest.mark.parametrize(
    "algorithm",
    [
        provi.algorithms.PGSVI(rho=0.3, batch_size=ROWS),
        provi.algorithms.PGSVI(rho=0.3, batch_size=ROWS, num_samples=3, estimator="price"),
        provi.algorithms.ProxSGD(1e-4, data_sampling=SAMPLING),
    ],
    ids=["PGSVI", "PGSVI with draws", "ProxSGD"],
)
def test_batches_of_all_rows_are_steps_in_memory(table, numbers, algorithm):
    kind, given = provi.targets.LogisticRegression, {name: numbers[name] for name in ("offset", "weights")}
    X, y = table["X"], table["binary"]
    if getattr(algorithm, "num_samples", None):  # draws belong to places of the batch: here all its rows are the same
        X, y, given = np.tile(X[:1], (ROWS, 1)), np.ones(ROWS), {"weights": np.full(ROWS, 0.5)}
    family = provi.families.Gaussian(WIDTH, "symmetric")
    options = {"algorithm": algorithm, "budget": provi.Budget(steps=3), "progress": False}
    one, other = (provi.fit(t, family, **options) for t in (kind(X, y, **given), kind.from_blocks(X, y, **given)))
    np.testing.assert_allclose(one.posterior.mean, other.posterior.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(one.posterior.covariance, other.posterior.covariance, rtol=1e-9, atol=1e-12)
    exact = -linear_exact(kind(X, y, **given), family, other)
    assert other.elbo.standard_error == 0 and other.elbo.value == pytest.approx(exact, rel=1e-12)
    assert other.certificate.status == "proven" and other.guarantee is None and len(other.history) == 2


def test_the_batches_of_a_pass_average_to_the_potential(table, numbers):
    kind, X, y = provi.targets.PoissonRegression, table["X"], table["counts"]
    z = jax.numpy.linspace(-0.3, 0.3, WIDTH)
    for given in ({}, {name: numbers[name] for name in ("exposure", "weights")}):
        with jax.enable_x64(True):
            target = kind.from_blocks(X, y, **given)
            feed = BatchFeed(target, 90, 0, lambda step: 90 * step)
            values = [float(feed(target, step).potential(z)) for step in range(10, 20)]  # the second pass
            assert np.mean(values) == pytest.approx(float(kind(X, y, **given).potential(z)), rel=1e-12)
            assert np.std(values) > 1
    algorithm, size, place = streamed_batches(provi.algorithms.PGSVI(rho=0.6, batch_size=400), ROWS)
    assert (float(algorithm.step_size), size) == (pytest.approx(0.6 * 400 / ROWS), 400)
    assert [place(step) for step in range(5)] == [0, 400, 900, 1300, 1800]  # the rest of a pass is left out


def linear_exact(target, family, fit):
    from provi.algorithms.natural.natural_gradient import exact_negative_elbo

    with jax.enable_x64(True):
        return float(exact_negative_elbo(target, family, fit.posterior.point))


def test_batches_converge_resume_bit_for_bit_and_stop_reading(table, tmp_path):
    X, y = table["X"], table["binary"]
    target, whole = (
        make(X, y) for make in (provi.targets.LogisticRegression.from_blocks, provi.targets.LogisticRegression)
    )
    algorithm, options = provi.algorithms.PGSVI(rho=0.3, batch_size=64), {"progress": False, "seed": 3}
    run = {"algorithm": algorithm, **options}
    fit = provi.fit(target, budget=provi.Budget(steps=90), **run)
    assert not [thread for thread in threading.enumerate() if thread.name == "provi-read-ahead"]
    best = provi.fit(whole, progress=False)
    gaps = best.elbo.value - fit.history["elbo"]
    assert gaps[-1] < 0.05 * gaps[0] and gaps[-1] > 0
    assert fit.certificate.gap >= best.elbo.value - fit.elbo.value - best.certificate.gap
    path = tmp_path / "run.ckpt"
    provi.fit(target, budget=provi.Budget(steps=40), checkpoint=path, **run)
    anew = provi.targets.LogisticRegression.from_blocks(X, y, prefetch=False)
    resumed = provi.fit(anew, budget=provi.Budget(steps=90), checkpoint=path, resume=True, **run)
    np.testing.assert_array_equal(resumed.posterior.mean, fit.posterior.mean)
    np.testing.assert_array_equal(resumed.posterior.covariance, fit.posterior.covariance)
    sampling = provi.schedules.ReshuffledSampling
    marks = [
        identity_of((streamed_batches(provi.algorithms.ProxSGD(0.1, data_sampling=sampling(size)), ROWS)[0],), 0, 0)
        for size in (8, 8, 9)
    ]
    assert marks[0] == marks[1] != marks[2]  # a checkpoint knows the size of the batches


@pytest.mark.parametrize("name", ["LogisticRegression", "PoissonRegression"])
def test_potentials_of_many_points_come_from_one_pass(table, numbers, name, monkeypatch):
    from provi.certificates.distance import problems
    from provi.certificates.distance.conjugate import in_floating_type

    monkeypatch.setattr(problems, "_NUMBERS_AT_ONCE", 512)  # points in several parts
    kind, y = getattr(provi.targets, name), table["binary" if name == "LogisticRegression" else "counts"]
    given, rng = {part: numbers[part] for part in ("offset", "weights")}, np.random.default_rng(0)
    streamed, plain = (make(table["X"], y, intercept=True, **given) for make in (kind.from_blocks, kind))
    with jax.enable_x64(True):
        family = provi.families.Gaussian(WIDTH + 1)
        point = family.point(np.linspace(-0.1, 0.3, WIDTH + 1), 0.04, np.float64)
        problem, energy = problems.streamed_problem(streamed, family, point, 16)
        w, asked = rng.standard_normal((16, WIDTH + 1)), []
        before = type(streamed.stream.rows).tiles
        monkeypatch.setattr(type(streamed.stream.rows), "tiles", lambda rows: asked.append(1) or before(rows))
        value, gradient, value_error, gradient_error = (np.asarray(x) for x in problem.evaluate(jax.numpy.asarray(w)))
        assert len(asked) == 1
        root = 0.04 * np.eye(WIDTH + 1)
        at = jax.vmap(jax.value_and_grad(plain.potential))(jax.numpy.asarray(np.asarray(point.loc) + w @ root.T))
        expected, slopes = np.asarray(at[0]) - float(plain.potential(point.loc)), np.asarray(at[1]) @ root
        assert (np.abs(value - expected) <= value_error).all() and value_error.max() < 1e-8
        assert (np.linalg.norm(gradient - slopes, axis=1) <= gradient_error).all() and gradient_error.max() < 1e-8
        np.testing.assert_allclose(problem.slopes(jax.numpy.asarray(w)), gradient, rtol=1e-12, atol=1e-12)
        stored, its = problems.linear_problem(plain, family, point)
        assert energy.value == pytest.approx(its.value, rel=1e-10)
        # Sums in tiles round less; in one tile as those in memory of the rows x_n'R, which tiles are made of.
        double = in_floating_type(stored, np.float64)
        known = [np.asarray(x) for x in double.evaluate(jax.numpy.asarray(w))]
        assert (value_error < known[2]).all() and (gradient_error < known[3]).all()
        turned = dataclasses.replace(double, design=None, root=double.design @ double.root)
        known = [np.asarray(x) for x in turned.evaluate(jax.numpy.asarray(w))]
        monkeypatch.setattr(encoded_rows, "_TILE_NUMBERS", 2**19)
        alone, _ = problems.streamed_problem(
            kind.from_blocks(table["X"], y, intercept=True, **given), family, point, 16
        )
        for one, other in zip(alone.evaluate(jax.numpy.asarray(w))[2:], known[2:], strict=True):
            np.testing.assert_allclose(one, other, rtol=2 / ROWS)


def test_the_distance_to_the_posterior_is_above_quadrature(table, monkeypatch):
    from provi.structures import linear

    X, y = table["X"][:40, :2], table["binary"][:40]  # few, so that q is no posterior
    target = provi.targets.LogisticRegression.from_blocks(X, y, prior_scale=3.0)
    fit = provi.fit(target, progress=False)
    u = np.linspace(-9, 9, 361)
    root = np.linalg.cholesky(fit.posterior.covariance)
    places = fit.posterior.mean + np.stack(np.meshgrid(u, u), axis=-1).reshape(-1, 2) @ root.T
    eta = places @ X.T
    logs = (eta * y - np.logaddexp(0, eta)).sum(axis=1) - 0.5 * (places**2).sum(axis=1) / 9 - np.log(18 * np.pi)
    evidence = np.logaddexp.reduce(logs) + np.log(np.linalg.det(root) * (u[1] - u[0]) ** 2)
    truth = evidence - fit.elbo.value
    assert 1e-3 < truth < fit.certificate.kl < 10 * truth and fit.certificate.posterior.status == "proven"
    assert fit.certificate.evidence.lower <= evidence <= fit.certificate.evidence.upper
    monkeypatch.setattr(linear, "STREAMED_DISTANCE", 1.0)
    long = provi.fit(target, progress=False)
    assert long.certificate.kl is None and "provi.certify(target, fit).kl" in long.certificate.distance_line
    assert truth < provi.certify(target, long, compare=False).kl < 10 * truth


def test_a_pass_that_fails_or_differs_is_an_error_of_its_own(table, tmp_path, capfd):
    passes = []

    def blocks():
        passes.append(1)
        for k in range(0, ROWS, 100):
            if len(passes) > 3 and k == 500:
                raise OSError("the disk is gone")
            yield table["X"][k : k + 100] + (len(passes) > 2), table["binary"][k : k + 100]

    target = provi.targets.LogisticRegression.from_blocks(blocks)  # two: the first looks at the width
    list(target.stream.rows.tiles())
    with pytest.raises(OSError, match="the disk is gone"):
        provi.fit(target)
    assert "Traceback" not in capfd.readouterr().err
    passes[:] = [1, 1]
    list(target.stream.rows.tiles())
    passes[:] = [1]
    with pytest.raises(ValueError, match="other rows than the one before"):
        list(target.stream.rows.tiles())
    path = write(tmp_path / "t.parquet", {"x": table["X"][:, 0], "y": table["binary"]})
    target = provi.targets.LogisticRegression.from_parquet(path, "y")
    write(path, {"x": table["X"][:, 1], "y": table["binary"]})
    with pytest.raises(ValueError, match="has changed since the first pass"):
        provi.fit(target)


def test_a_thread_that_reads_ahead_ends_with_its_reader():
    def numbers():
        yield from range(10)

    ahead = read_ahead(numbers())
    assert next(ahead) == 0
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "provi-read-ahead"]


def test_a_run_of_rows_is_read_from_the_units_that_hold_it(table, tmp_path, monkeypatch):
    """What each of several processes keeps of files that they share."""
    columns = {"a": table["X"][:, 0], "c": np.array(list("uvw"))[np.arange(ROWS) % 3], "y": table["counts"]}
    columns["days"] = 1 + np.arange(ROWS) % 5
    for part, rows in enumerate((slice(0, 300), slice(300, ROWS))):
        write(tmp_path / f"t-{part}.parquet", {name: column[rows] for name, column in columns.items()})
    rows = provi.targets.PoissonRegression.from_parquet(
        tmp_path / "t-*.parquet", "y", exposure="days", standardise=True, intercept=True
    ).stream.rows
    read, real = [], blocks.record_batches
    # Row groups end at 128, 256, 300 | 428, 556, 684, 812, 900.
    for start, stop, units in ((0, ROWS, 8), (290, 310, 2), (128, 256, 1), (557, 899, 3)):
        read.clear()
        with monkeypatch.context() as counted:
            counted.setattr(blocks, "record_batches", lambda *given: read.append(given) or real(*given))
            own = rows.run_of(start, stop)
        assert len(read) == units
        for mine, theirs in zip(own, rows.sample(np.arange(start, stop)), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    with pytest.raises(StreamError, match="a pass gave 900 rows or more"):
        rows.run_of(890, ROWS + 1)
