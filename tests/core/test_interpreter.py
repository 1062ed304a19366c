"""Small programs on NumPy: every primitive, and whole fits, as compiled."""

import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.linalg import cho_solve, solve_triangular
from threadpoolctl import threadpool_info, threadpool_limits

import provi
from provi.core import host_loops, host_program, interpreter
from provi.core.arguments import double_precision
from provi.core.randomness import folded, key_of, split_key, split_keys
from provi.structures.linear import Linear
from provi.targets.likelihoods import Poisson
from provi.targets.row_sums import weighted_sums

_TABLE = np.random.default_rng(0).normal(size=(7, 4))
_SQUARE = _TABLE.T @ _TABLE
_KEY = np.asarray([5, 7], np.uint32)


def _drawn(words, draw):
    return draw(jax.random.wrap_key_data(words))


PROGRAMS = {
    "arithmetic": lambda x: (x + 1, x - x, x * x, x / 3, -x, x**2, x**3, x**4, x**-1, x**-2, x**7, jnp.abs(x) ** 0.3),
    "elementary": lambda x: (jnp.exp(x), jnp.log(jnp.abs(x)), jnp.log1p(x**2), jnp.expm1(x), jnp.sqrt(jnp.abs(x))),
    "trigonometry": lambda x: (jnp.sin(x), jnp.cos(x), jnp.tan(x), jnp.tanh(x), jnp.sinh(x), jnp.arctan2(x, x + 1)),
    "special": lambda x: tuple(
        f(jnp.abs(x) + 0.1)
        for f in (jax.scipy.special.erf, jax.scipy.special.erfc, jax.scipy.special.gammaln, jax.scipy.special.digamma)
    ),
    "derivatives of gamma": lambda x: (
        *(jax.scipy.special.polygamma(n, jnp.abs(x) + 0.1) for n in (0, 1, 2, 3)),
        jax.scipy.special.zeta(jnp.abs(x) + 1.5, jnp.abs(x) + 0.1),
    ),
    "quantiles of the normal law": lambda x: jax.scipy.special.ndtri(jax.nn.sigmoid(x)),
    "sigmoids": lambda x: (jax.nn.sigmoid(200 * x), jax.nn.softplus(200 * x), jax.nn.logsumexp(x, axis=1)),
    "rounding": lambda x: (jnp.floor(x), jnp.ceil(x), jnp.round(3 * x), jnp.sign(x), x // 0.3, x % 0.3),
    "integers": lambda x: (jnp.arange(-7, 8) // 3, jnp.arange(-7, 8) % 3, jnp.arange(8) << 2, jnp.arange(-8, 8) >> 1),
    "integer division by lax": lambda x: (jax.lax.div(jnp.arange(-7, 8), 3), jax.lax.rem(jnp.arange(-7, 8), 3)),
    "comparisons": lambda x: (x > 0, x == x, x != 0, jnp.isfinite(1 / x), (x > 0) & (x < 1) | ~(x > 1), x <= 0),
    "selection": lambda x: (jnp.where(x > 0, x, 0), jnp.where(x > 9, x, 1), jnp.clip(x, -1, 1), jnp.maximum(x, 0)),
    "not a number": lambda x: (jnp.maximum(x / 0 * 0, 1), jnp.max(x / 0 * 0, axis=0), jnp.where(x / 0 * 0 > 0, 1, 2)),
    "types": lambda x: (x.astype(jnp.float32), (3 * x).astype(int), (x > 0).astype(float), (x * 0).astype(bool)),
    "bits": lambda x: (
        words := jax.lax.bitcast_convert_type(x.T, jnp.uint32),
        jax.lax.bitcast_convert_type(words, jnp.float64),
        jax.lax.bitcast_convert_type(x, jnp.int64),
        jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint16),
    ),
    "functions of the host": lambda x: jax.pure_callback(
        lambda a, b: (np.asarray(a) + 1, {"sum": np.float64(np.asarray(b).sum())}),
        (jax.ShapeDtypeStruct(x.shape, x.dtype), {"sum": jax.ShapeDtypeStruct((), x.dtype)}),
        x,
        x.T,
    ),
    "derivatives by whole numbers": lambda x: jax.jvp(lambda a, n: a * n, (x, 3), (x, np.zeros((), jax.dtypes.float0))),
    "sums": lambda x: (x.sum(), x.sum(axis=0), x.max(axis=1), x.min(), jnp.prod(x, axis=0), (x > 0).all(), x.mean()),
    "cumulative": lambda x: (jnp.cumsum(x, axis=0), jnp.cumprod(x, axis=1), jax.lax.cumsum(x, reverse=True)),
    "order": lambda x: (jnp.sort(x, axis=0), jnp.argsort(x, axis=1), jnp.argmax(x, axis=0), jnp.quantile(x, 0.3)),
    "shapes": lambda x: (x.T, x[::-1], x[1:5:2, ::3], x.reshape(4, 7), x[None], jnp.stack([x, x], axis=1)),
    "parts": lambda x: (jnp.pad(x, ((1, 2), (0, 1))), jnp.concatenate([x, x]), jnp.split(x, 7), jnp.eye(3), x[:, 0]),
    "negative padding": lambda x: jax.lax.pad(x, 1.5, ((-1, 2, 1), (1, -2, 0))),
    "gather": lambda x: (x[jnp.array([1, 3, -1])], x[:, jnp.array([[1, 0], [2, 2]])], x[jnp.array([0, 2]), 1]),
    "gather outside": lambda x: (
        jnp.take(x, jnp.array([1, 30]), axis=0),
        x[jnp.array([30])],
        x.at[40].get(mode="fill"),
    ),
    "scatter": lambda x: (x.at[2].set(0), x.at[jnp.array([1, 1, 2])].add(1.0)),
    "dynamic slices": lambda x: (
        jax.lax.dynamic_slice(x, (5, 1), (4, 2)),
        jax.lax.dynamic_update_slice(x, jnp.ones((2, 2)), (6, 1)),
    ),
    "products": lambda x: (x @ x.T, x.T @ x[:, 0], x[0] @ x[1], jnp.einsum("ij,kj->ik", x, x), jnp.outer(x[0], x[1])),
    "batched products": lambda x: jnp.einsum("bij,bjk->bik", x.reshape(2, 7, 2), x.reshape(2, 2, 7)),
    "scan": lambda x: jax.lax.scan(lambda c, r: (c + r, c * r), x[0], x, reverse=True),
    "map": lambda x: jax.lax.map(lambda row: (2 * row).sum(), x, batch_size=3),
    "while": lambda x: jax.lax.while_loop(lambda c: c.sum() < 100, lambda c: 1.5 * c, jnp.abs(x)),
    "branches": lambda x: (
        jax.lax.cond(x[0, 0] > 0, lambda: x, lambda: -x),
        jax.lax.switch(jnp.asarray(7), [lambda: x, lambda: 2 * x]),
    ),
    "derivatives": lambda x: (
        jax.grad(lambda z: jnp.sum(jax.nn.logsumexp(z * x, axis=1)))(x),
        jax.hessian(lambda z: jnp.sum(jnp.tanh(z) ** 3))(x[0]),
    ),
}

MATRICES = {
    "cholesky": jnp.linalg.cholesky,
    "no cholesky": lambda a: jnp.linalg.cholesky(-a),
    "batched cholesky": lambda a: jnp.linalg.cholesky(jnp.stack([a, -a, 2 * a])),
    "triangular": lambda a: (
        solve_triangular(jnp.tril(a), a, lower=True),
        solve_triangular(jnp.triu(a), a[0]),
        solve_triangular(jnp.tril(a), a, lower=True, trans=1, unit_diagonal=True),
        jax.vmap(lambda b: solve_triangular(jnp.tril(a), b, lower=True))(jnp.stack([a, a + 1])),
    ),
    "cho_solve": lambda a: cho_solve((jnp.linalg.cholesky(a), True), a[:, :2]),
    "solve": lambda a: jnp.linalg.solve(a, a[:, :2]),
    "eigenvalues": lambda a: jnp.linalg.eigvalsh(a),
    "eigenvectors": lambda a: jnp.abs(jnp.linalg.eigh(a)[1]),
    "one of a batch has no eigenvalues": lambda a: jnp.linalg.eigvalsh(jnp.stack([a, a / 0 * 0, 2 * a])),
    "left to jax": lambda a: (jnp.linalg.svd(a, compute_uv=False), jnp.linalg.slogdet(a)),
}

DRAWS = {
    "bits": lambda key: (jax.random.bits(key, (3, 5)), jax.random.bits(key, (3,), "uint64")),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 123456789)),
    "normal": lambda key: jax.random.normal(key, (50,)),
    "many keys": lambda key: jax.vmap(lambda own: jax.random.uniform(own, (2, 3)))(jax.random.split(key, 4)),
    "integers": lambda key: jax.random.randint(key, (9,), 0, 100),
    "permutation": lambda key: jax.random.permutation(key, 9),
}


@double_precision
def _check(function, *args):
    found, compiled = interpreter.instant_jit(function)(*args), eqx.filter_jit(function)(*args)
    assert jax.tree.structure(found) == jax.tree.structure(compiled)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(compiled), strict=True):
        assert isinstance(ours, jax.Array)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if np.issubdtype(ours.dtype, np.floating):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12 if ours.dtype == np.float64 else 1e-5, atol=1e-13)
        else:
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_what_the_compiled_one_gives(name):
    _check(PROGRAMS[name], _TABLE)


@pytest.mark.parametrize("name", MATRICES)
def test_so_does_linear_algebra(name):
    _check(MATRICES[name], _SQUARE)


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_the_same(name):
    _check(lambda words: _drawn(words, DRAWS[name]), _KEY)


@pytest.mark.parametrize("name", [*PROGRAMS, *MATRICES])
@double_precision
def test_arrays_that_are_used_again_are_nobody_elses(name, monkeypatch):
    """With all arrays taken for large: as without, call after call, and neither arguments nor results change."""
    function, table = (PROGRAMS | MATRICES)[name], _TABLE if name in PROGRAMS else _SQUARE
    calls = [table, 0.5 * table + 0.1, table]
    expected = [interpreter.instant_jit(function, on_host=True)(x) for x in calls]
    monkeypatch.setattr(host_program, "_LARGE", 1)
    monkeypatch.setattr(host_program, "_LIGHT", 0)
    frugal, given = interpreter.instant_jit(function, on_host=True), [np.array(x) for x in calls]
    found = [frugal(x) for x in given]
    for ours, theirs in ((found, expected), (given, calls)):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_in_single_precision():
    for name in ("elementary", "sums", "products", "sigmoids"):
        _check(PROGRAMS[name], _TABLE.astype(np.float32))


@double_precision
def test_keys_made_on_the_host_are_those_of_jax():
    for seed in (0, 1, 2**31 + 5, 2**40 + 3):
        key = jax.random.key(seed)
        assert key_of(seed) == key
        assert folded(key_of(seed), 2**31 - 2) == jax.random.fold_in(key, 2**31 - 2)
        assert all(a == b for a, b in zip(split_key(key_of(seed)), jax.random.split(key), strict=True))
        assert (split_keys(key_of(seed), 5) == jax.random.split(key, 5)).all()


def test_programs_return_keys_and_take_them():
    split = interpreter.instant_jit(lambda key: jax.random.split(key))
    with interpreter.compiled_only():
        compiled = split(jax.random.key(3))
    assert (split(jax.random.key(3)) == compiled).all()


def test_large_work_is_compiled_and_small_is_not(monkeypatch):
    monkeypatch.setattr(interpreter, "SMALL_WORK", 1e6)
    calls = []

    def compiler(function):
        def compiled(*args):
            calls.append(args)
            return function(*args)

        return compiled

    square = interpreter.instant_jit(lambda x: x @ x.T, compiler)
    square(np.ones((10, 10)))
    assert not calls
    square(np.ones((500, 100)))
    assert len(calls) == 1
    jax.jit(square)(np.ones((10, 10)))  # inside another program
    assert len(calls) == 2
    # What is mostly products of rows is not compiled however large: NumPy takes half the time of XLA.
    rows, weights = np.ones((3000, 40)), np.ones(3000)
    slope, gram = interpreter.instant_jit(weighted_sums, compiler)(rows, weights, weights)
    np.testing.assert_array_equal(gram, np.full((40, 40), 3000.0))
    assert len(calls) == 2
    other = interpreter.instant_jit(lambda x, w: weighted_sums(jnp.exp(jnp.sin(jnp.exp(x))), w, w), compiler)
    other(np.ones((30_000, 5)), np.ones(30_000))
    assert len(calls) == 3


def test_turns_of_a_sum_are_shared_among_threads_and_give_the_same_bits(monkeypatch):
    def independent(x):
        def add(sums, k):
            block = jax.lax.dynamic_slice_in_dim(x, 2 * k, 2)
            return (sums[0] + jnp.sum(jnp.exp(block), axis=0), jnp.maximum(sums[1], jnp.max(block))), None

        return jax.lax.scan(add, (jnp.zeros(4), jnp.zeros(())), jnp.arange(3))[0]

    def chained(x):
        return jax.lax.scan(lambda total, row: (total + total @ row * row, None), jnp.ones(4), x)[0]

    def crossed(x):
        return jax.lax.scan(lambda c, row: ((total := c[0] + c[1], total), None), (x[0], x[1]), x)[0]

    def swapped(x):
        return jax.lax.scan(lambda c, row: ((c[1] + row, c[0] + row), None), (x[0], x[1]), x)[0]

    def foreign(x):  # what is left to JAX, whose precision is a thread's own
        def add(total, row):
            return total + jax.lax.reduce(row, 1.0, lambda a, b: a * jnp.cos(b), (0,)), None

        return jax.lax.scan(add, jnp.zeros(()), x)[0]

    pools, pool = [], host_loops.ThreadPoolExecutor
    monkeypatch.setattr(host_loops, "ThreadPoolExecutor", lambda count: pools.append(count) or pool(count))
    monkeypatch.setattr(host_loops, "_LARGE_BLOCK", 1)
    for program, shared in ((independent, [3]), (chained, []), (crossed, []), (swapped, []), (foreign, [])):
        found = []
        for cores in (1, 3):
            monkeypatch.setattr(host_loops, "available_cores", lambda cores=cores: cores)
            found.append(interpreter.instant_jit(program)(_TABLE))
        jax.tree.map(np.testing.assert_array_equal, *found)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), found[0], jax.jit(program)(_TABLE))
        assert pools == shared
        pools.clear()


def test_what_nobody_reads_is_not_computed():
    def function(x):
        jnp.linalg.svd(x)  # would be left to JAX, and compiled
        return x + 1

    closed = jax.make_jaxpr(function)(_SQUARE)
    program = host_program.interpreted(closed)
    assert len(program.args[2]) == 1


def test_small_work_has_one_blas_thread_and_what_was_set_comes_back():
    def threads():
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, "blas"):
        assert threads() == {2}
        with interpreter.one_blas_thread(600), interpreter.one_blas_thread(30, 10**6):
            assert threads() == {2}  # large: as it was
        long = provi.targets.LogisticRegression(np.ones((200_000, 30)), np.arange(200_000) % 2)
        with Linear(long, provi.families.Gaussian(30)).threads():
            assert threads() == {1}  # what a fit of a linear model does itself is of the order of its columns
        began, end = threading.Event(), threading.Event()

        def other_fit():
            with interpreter.one_blas_thread(5):
                began.set()
                end.wait(10)

        other = threading.Thread(target=other_fit)
        with interpreter.one_blas_thread(30), interpreter.one_blas_thread(30):
            other.start()
            assert began.wait(10) and threads() == {1}
        assert threads() == {2}  # though the other, which began before this one ended, goes on
        end.set()
        other.join()
        assert threads() == {2}
        another = threading.Thread(target=other_fit)
        another.start()
        another.join()
        assert threads() == {2}


def _targets():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3))
    return {
        "logistic": provi.targets.LogisticRegression(x, rng.random(60) < 0.5),
        "poisson": provi.targets.PoissonRegression(x, rng.poisson(2.0, 60)),
        "wide": provi.targets.LogisticRegression(rng.normal(size=(12, 30)), rng.random(12) < 0.5),
        "process": provi.targets.GaussianProcess(x[:40], rng.poisson(2.0, 40), likelihood=Poisson()),
    }


@pytest.mark.parametrize("name", ["logistic", "poisson", "wide", "process"])
def test_fits_certificates_and_summaries_are_equal_to_rounding(name):
    """The whole way, also through diagnostics and draws."""
    target = _targets()[name]

    def answers():
        fit = provi.fit(target, tol=1e-3)
        found = fit.diagnose(200)
        numbers = (fit.elbo.value, fit.certificate.gap, fit.certificate.kl, found.elbo, found.total_variation)
        return numbers, fit.posterior.mean, fit.posterior.standard_deviation, fit.posterior.sample(5, 0), fit.num_steps

    ours = answers()
    with interpreter.compiled_only():
        theirs = answers()
    for a, b in zip(ours, theirs, strict=True):
        # The gap is a difference of numbers of the size of the ELBO.
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-8)


def test_a_small_fit_compiles_nothing():
    """No compiler on the way from a table to a printed certificate, k-hat included."""
    count = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: count.append(name) if name.endswith("backend_compile_duration") else None
    )
    for size, dim in ((23, 2), (37, 5)):
        rng = np.random.default_rng(size)
        target = provi.targets.LogisticRegression(rng.normal(size=(size, dim)), rng.random(size) < 0.5)
        fit = provi.fit(target)
        str(fit.posterior.summary()), str(fit.certificate), fit.diagnose(), fit.posterior_predictive(50), fit.loo(100)
    assert not count


@pytest.mark.parametrize(
    ("rows", "calls", "engine", "level"),
    [(300, 1, "_Interpreted", []), (3, 50_000, "_Compiled", [0]), (300, 2000, "_Compiled", [1])],
)
def test_work_decides_how_a_program_is_carried_out_and_not_what_it_says(rows, calls, engine, level, monkeypatch):
    def program(x, power):
        key = jax.random.key(3)
        return {"sum": jnp.sum(jnp.exp(-(x**power)), axis=0), "key": jax.random.fold_in(key, 1), "power": power}

    made, levels = [], []
    for name in ("_Interpreted", "_Compiled"):
        kind = getattr(interpreter, name)
        monkeypatch.setattr(interpreter, name, lambda *a, kind=kind, name=name: made.append(name) or kind(*a))
    less_work = interpreter.less_work
    monkeypatch.setattr(interpreter, "less_work", lambda level: levels.append(level) or less_work(level))
    table = np.random.default_rng(1).normal(size=(rows, 50))
    weighed, expected = interpreter.weighed_jit(program, calls=calls), eqx.filter_jit(program)(table, 2)
    for _ in range(2):
        found = weighed(jnp.asarray(table), 2)
        np.testing.assert_allclose(found["sum"], expected["sum"], rtol=1e-13)
        assert found["key"] == expected["key"] and found["power"] == 2
    assert made == [engine]  # once, for two calls
    assert levels == level
    assert jax.jit(lambda x: weighed(x, 2)["sum"])(table).shape == (50,) and made == [engine]


def test_the_compiler_is_not_waited_for_longer_than_it_saves(monkeypatch):
    """The same work in few equations and in many, which are long to compile; and of the first calls of many."""
    made, traced = [], []
    for name in ("_Interpreted", "_Compiled"):
        kind = getattr(interpreter, name)
        monkeypatch.setattr(interpreter, name, lambda *a, kind=kind, name=name: made.append(name) or kind(*a))
    table = jnp.asarray(np.random.default_rng(1).normal(size=(3000, 50)))

    def program(x, parts):
        traced.append(parts)
        rows = x.reshape(parts, -1)
        return jnp.stack([jnp.exp(-(rows[k] ** 2)).sum() for k in range(parts)]).sum()

    few, many = (float(interpreter.weighed_jit(program, calls=100)(table, parts)) for parts in (1, 60))
    assert few == pytest.approx(many)
    # How often a loop of the user's goes round is not known.
    looped = interpreter.weighed_jit(
        lambda x: jax.lax.while_loop(lambda s: s[0] > 0, lambda s: (s[0] - 1, program(x, 60)), (1, 0.0))[1], calls=5
    )
    assert float(looped(table)) == pytest.approx(many) and made.pop() == "_Compiled"
    assert made == ["_Compiled", "_Interpreted"]
    late = interpreter.weighed_jit(program, calls=1000)
    early = interpreter.weighed_jit(program, calls=10, later=late)
    both = [float(engine(table, 1)) for engine in (early, late, early, late)]
    assert both[0] == both[2] == pytest.approx(both[1], rel=1e-13) and both[1] == both[3]
    # Traced once for the two; what is too much for the first calls is left to the later ones, and compiled once.
    assert made[2:] == ["_Interpreted", "_Compiled"] and traced.count(1) == 2
    heavy = interpreter.weighed_jit(program, calls=1000, later=late)
    assert heavy(table, 1) == both[1] and len(made) == 4
    monkeypatch.setattr(interpreter, "_on_first_processor", lambda values: False)
    assert heavy(table, 1) == late(table, 1) and traced.count(1) == 4  # one program, on any device
