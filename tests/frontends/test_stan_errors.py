"""`provi.from_stan` where something is missing: a finite density, data, a program that compiles, a compiler."""

import asyncio
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import provi
from support.stan_programs import CODE, stan_data


def test_where_stan_raises_the_density_is_zero():
    target = provi.from_stan(CODE, stan_data(0, limit=1.0), engine="pystan")
    points = jnp.asarray([[2.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(target.potential)))(points)
    assert values[0] == np.inf and np.isnan(gradients[0]).all()
    assert np.isfinite(values[1]) and np.isfinite(gradients[1]).all()


def test_the_first_point_is_searched_for_or_asked_for():
    found = provi.from_stan(CODE, stan_data(0, limit=-1.0), engine="pystan")
    assert found.default_location[0] < -1
    start = {"beta": [-9.0, 1.0], "tau": 2.0}
    given = provi.from_stan(CODE, stan_data(0, limit=-8.0), start=start, engine="pystan")
    np.testing.assert_allclose(given.default_location, [-9.0, 1.0, math.log(2.0)])
    with pytest.raises(ValueError, match="(?s)not finite at zero and at 100.*beyond the limit -8.*Pass start="):
        provi.from_stan(CODE, stan_data(0, limit=-8.0), engine="pystan")
    with pytest.raises(ValueError, match="not finite at start.*beyond the limit -8"):
        provi.from_stan(CODE, stan_data(0, limit=-8.0), start={"beta": [0.0, 0.0], "tau": 1.0}, engine="pystan")


def test_the_compiled_program_is_kept_and_a_running_event_loop_does_not_matter(monkeypatch, tmp_path):
    monkeypatch.setattr("provi.frontends.stan.build._compile", None)  # a second build would fail
    path = tmp_path / "program.stan"
    path.write_text(CODE)

    async def build():
        return provi.from_stan(path, stan_data(0), engine="pystan")

    assert asyncio.run(build()).dim == 3


def test_a_model_of_pystan_brings_its_data():
    import httpstan.models
    import stan.model

    data = {name: np.asarray(value).tolist() for name, value in stan_data(0).items()}
    built = stan.model.Model(httpstan.models.calculate_model_name(CODE), CODE, data, (), (), ((),), None)
    target = provi.from_stan(built, engine="pystan")
    assert target.dim == 3 and np.array_equal(target.observed_data["X"], stan_data(0)["X"])
    with pytest.raises(ValueError, match="data must be left out"):
        provi.from_stan(built, data, engine="pystan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": None}, "data lacks the variable 'X'"),
        ({"N": None}, "data lacks the variable 'N'"),
        ({"y": np.zeros(3, int)}, r"variable name=y; position=0; dims declared=\(40\); dims found=\(3\)"),
        ({"y": np.full(40, 0.5)}, "non-int values.*variable name=y"),
        ({"y": np.full(40, 2)}, r"fit the Stan program: y\[1\] is 2, but must be less than or equal to 1"),
        ({"y": ["a"] * 40}, r"data\['y'\] must hold numbers"),
        ({"X": [[1.0], [1.0, 2.0]]}, r"data\['X'\] must be a number or an array; its rows have different lengths"),
    ],
)
def test_data_that_do_not_fit_are_named(change, message):
    data = {name: value for name, value in {**stan_data(0), **change}.items() if value is not None}
    with pytest.raises(ValueError, match=message) as caught:
        provi.from_stan(CODE, data, engine="pystan")
    assert "\n" not in str(caught.value)


def test_programs_that_do_not_compile(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="(?s)does not compile.*line 2.*expected"):
        provi.from_stan("parameters {\n  real x }\nmodel {}", engine="pystan")
    with pytest.raises(ValueError, match="Stan code with its blocks, or the path"):
        provi.from_stan("eight schools", engine="pystan")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        provi.from_stan(tmp_path / "missing.stan", engine="pystan")
    with pytest.raises(ValueError, match="engine must be"):
        provi.from_stan(CODE, engine="cmdstan")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="needs a C.. compiler"):
        provi.from_stan("parameters { real x; } model { x ~ normal(0, 1); }", engine="pystan")
