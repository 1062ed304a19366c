"""Which rows a summary has, in which order, what they are called, and what of them is printed."""

import numpy as np
import pytest

import provi
from provi.families import Gaussian
from provi.result import Posterior, Summary
from provi.result.summary import Variable

SPECIES = ["Adelie", "Chinstrap", "Gentoo"]


def table(*variables):
    names = [f"{v.name}[{i}]" if v.size > 1 else v.name for v in variables for i in range(v.size)]
    numbers = np.arange(float(len(names)))
    return Summary(tuple(names), numbers, numbers + 0.5, np.stack([numbers, numbers + 1], 1), 0.9, (), variables)


@pytest.fixture(scope="module")
def long():
    """A deterministic of 333 values comes first, by its name."""
    return table(Variable("mu", 333, True), Variable("sd", 1), Variable("slope", 2), Variable("total", 1, True))


def test_parameters_stand_before_deterministics_and_long_ones_are_a_line(long):
    found = long.select()
    assert found.names[:4] == ("sd", "slope[0]", "slope[1]", "mu[0]") and found.names[-1] == "total"
    assert len(found.to_dict()) == 337, "nothing is left out of the data"
    assert found.to_dict()["sd"]["mean"] == 333.0, "numbers go with their names"
    lines = str(found).splitlines()
    assert [line.split("│")[0].strip() for line in lines[2:]] == [
        "sd", "slope[0]", "slope[1]", "mu: 333 values, see var_names='mu'", "total",
    ]  # fmt: skip


def test_what_is_asked_for_by_name_is_printed_in_full(long):
    found = long.select("mu")
    assert len(found.names) == 333 and "mu[332]" in str(found) and "more" not in str(found)
    assert long.select(["total", "slope"]).names == ("slope[0]", "slope[1]", "total")
    assert long.select("slope[1]").names == ("slope[1]",)
    assert long.select(kind="parameters").names == ("sd", "slope[0]", "slope[1]")
    assert long.select(kind="deterministics").names[-1] == "total"
    assert long.select("mu", kind="parameters").names == ()


def test_a_tilde_leaves_out(long):
    assert long.select("~mu").names == ("sd", "slope[0]", "slope[1]", "total")
    assert long.select(["~mu", "~slope"]).names == ("sd", "total")
    assert long.select(["slope", "~slope[0]"]).names == ("slope[1]",)
    odd = table(Variable("~odd", 1), Variable("odd", 1))
    assert odd.select("~odd").names == ("~odd",), "a name that begins so is a name"


def test_unknown_names_are_told_the_nearest(long):
    with pytest.raises(ValueError, match="'slopes', which is no variable of this fit: did you mean 'slope'?"):
        long.select("slopes")
    with pytest.raises(ValueError, match="'zzz', .*: there are mu, sd, slope, total and 335 more"):
        long.select(["mu", "~zzz"])
    with pytest.raises(ValueError, match="kind must be one of 'all', 'parameters', 'deterministics', not 'both'"):
        long.select(kind="both")


def test_long_vectors_of_parameters_do_not_bury_the_rest():
    several = table(Variable("f", 100), Variable("sd", 1))
    text = str(several)
    assert "f[4]" in text and "f[5]" not in text and "... 95 more of f, see var_names='f'" in text and "sd " in text
    alone = str(table(Variable("f", 100)))
    assert "f[39]" in alone and "f[40]" not in alone and "... 60 more " in alone
    many = str(table(*(Variable(f"x{i}", 1) for i in range(50))))
    assert "x39" in many and "x40" not in many and "... 10 more" in many


def test_without_variables_the_names_say_what_belongs_together():
    bare = Summary(("a[0]", "a[1]", "log(b)"), np.zeros(3), np.ones(3), np.zeros((3, 2)), 0.9)
    assert bare.select("a").names == ("a[0]", "a[1]") and bare.select("~a").names == ("log(b)",)


def posterior(target):
    family = Gaussian(target.dim)
    return Posterior(family, family.point(np.zeros(target.dim), 0.1), target.parameter_names, target)


@pytest.fixture(scope="module")
def numpyro_posterior():
    numpyro = pytest.importorskip("numpyro")
    import jax.numpy as jnp
    import numpyro.distributions as dist

    def model(x, species, y):
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("species", 3):
            a = numpyro.sample("a", dist.Normal(0, 1))
            numpyro.deterministic("A", jnp.exp(a))
        mu = numpyro.deterministic("mu", a[species] + x @ slopes)
        numpyro.sample("y", dist.Normal(mu, sd), obs=y)

    rng = np.random.default_rng(0)
    data = rng.standard_normal((30, 2)), np.arange(30) % 3, rng.standard_normal(30)
    labels = {"species": SPECIES, "slopes": ["bill", "flipper"]}
    with pytest.raises(ValueError, match=r"axis_labels\['species'\] must hold 3 labels, not 2"):
        provi.from_numpyro(model, *data, axis_labels={"species": ["a", "b"]})
    with pytest.raises(ValueError, match="axis_labels has 'plate', no plate or vector of the model: there are"):
        provi.from_numpyro(model, *data, axis_labels={"plate": ["a", "b"]})
    return posterior(provi.from_numpyro(model, *data, axis_labels=labels))


def test_entries_of_a_numpyro_model_by_name(numpyro_posterior):
    found = numpyro_posterior.summary()
    parameters = ("a[Adelie]", "a[Chinstrap]", "a[Gentoo]", "sd", "slopes[bill]", "slopes[flipper]")
    assert found.names[:6] == parameters
    assert [(v.name, v.size, v.deterministic) for v in found.variables] == [
        ("a", 3, False), ("sd", 1, False), ("slopes", 2, False), ("A", 3, True), ("mu", 30, True),
    ]  # fmt: skip
    assert "mu: 30 values" in str(found) and "mu[29]" in found.to_dict()
    assert numpyro_posterior.names[:4] == ("log(sd)", "slopes[bill]", "slopes[flipper]", "a[Adelie]")
    # Free coordinates are exact, and found under their labels.
    assert found.to_dict()["a[Gentoo]"]["sd"] == pytest.approx(0.1, rel=1e-12)
    draws = [note for note in found.notes if note.startswith("From 10,000 draws")]
    assert draws == ["From 10,000 draws: sd, A[Adelie], A[Chinstrap], A[Gentoo] and 30 more. The other rows are exact."]
    exact = numpyro_posterior.summary(0.9, ["a", "slopes"])
    assert not any(note.startswith("From") for note in exact.notes) and exact.probability == 0.9
    assert numpyro_posterior.summary(kind="deterministics").names[0] == "A[Adelie]"
    free = numpyro_posterior.summary(var_names="a", unconstrained=True)
    assert free.names == ("a[Adelie]", "a[Chinstrap]", "a[Gentoo]")


def test_labels_reach_arviz(numpyro_posterior):
    pytest.importorskip("arviz_base")
    target = numpyro_posterior.target
    assert target.axis_labels["a"] == {"species": tuple(SPECIES)} == target.axis_labels["A"]
    assert target.axis_labels["slopes"] == {"slopes_dim_0": ("bill", "flipper")} and "mu" not in target.axis_labels


def test_entries_of_a_pymc_model_by_name():
    pm = pytest.importorskip("pymc")
    with pm.Model(coords={"species": SPECIES, "side": ["left", "right"]}) as model:
        a = pm.Normal("a", dims="species")
        scale = pm.HalfNormal("scale", dims="side")
        b = pm.Normal("b", dims=("species", "side"))
        pm.Deterministic("rate", pm.math.exp(a), dims="species")
        pm.Normal("y", (a[:, None] + b * scale).sum(), 1.0, observed=0.3)
    target = provi.from_pymc(model)
    assert target.parameter_names[:4] == ("a[Adelie]", "a[Chinstrap]", "a[Gentoo]", "log(scale)[left]")
    found = posterior(target).summary()
    assert found.names[3:5] == ("b[Adelie,left]", "b[Adelie,right]") and found.names[-1] == "rate[Gentoo]"
    assert found.select("~b").names == (
        *(f"a[{name}]" for name in SPECIES), "scale[left]", "scale[right]", *(f"rate[{name}]" for name in SPECIES),
    )  # fmt: skip
    assert found.to_dict()["b[Gentoo,right]"]["sd"] == pytest.approx(0.1, rel=1e-12)


def test_rows_of_a_regression_by_name():
    x = np.random.default_rng(0).standard_normal((20, 2))
    target = provi.targets.LogisticRegression(x, x[:, 0] > 0, names=("age", "dose"))
    found = posterior(target).summary(var_names="age")
    assert found.names == ("age",)
    assert posterior(target).summary(var_names=target.variable).names == ("age", "dose")
