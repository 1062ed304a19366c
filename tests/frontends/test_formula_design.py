"""A formula and a table as arrays, against arrays written by hand; the same encoding of new tables."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.interpolate import BSpline

from provi.frontends.formula.design import read_design

TABLE = {
    "y": [1.0, 2, 3, 4, 5, 6], "x": [1.0, 2, 4, 7, 11, 16], "z": [0.5, -1, 0, 2, 1, -2],
    "f": ["b", "a", "c", "a", "b", "c"], "h": ["u", "u", "v", "v", "u", "v"], "g": [3, 1, 2, 1, 3, 2],
    "year": [2001, 2002, 2004, 2001, 2004, 2002], "n": [4, 5, 6, 7, 8, 9], "s": [0, 1, 2, 3, 4, 5],
}  # fmt: skip
FRAME = pd.DataFrame(TABLE)
X, Z = FRAME["x"].to_numpy(), FRAME["z"].to_numpy()
B, C, V = (FRAME["f"] == "b").to_numpy() * 1.0, (FRAME["f"] == "c").to_numpy() * 1.0, (FRAME["h"] == "v") * 1.0
ONE = np.ones(6)


@pytest.mark.parametrize(
    ("terms", "names", "columns"),
    [
        ("x", ["Intercept", "x"], [ONE, X]),
        ("1 + f", ["Intercept", "f[b]", "f[c]"], [ONE, B, C]),
        ("0 + f", ["f[a]", "f[b]", "f[c]"], [1 - B - C, B, C]),
        ("x - 1", ["x"], [X]),
        ("x*z", ["Intercept", "x", "z", "x:z"], [ONE, X, Z, X * Z]),
        ("x:f", ["Intercept", "x:f[a]", "x:f[b]", "x:f[c]"], [ONE, X * (1 - B - C), X * B, X * C]),
        ("f*h", ["Intercept", "f[b]", "f[c]", "h[v]", "f[b]:h[v]", "f[c]:h[v]"], [ONE, B, C, V, B * V, C * V]),
        ("log(x) + np.sqrt(x) + I(x**2) + {x * z}", ["Intercept", "log(x)", "np.sqrt(x)", "I(x ** 2)", "I(x * z)"],
         [ONE, np.log(X), np.sqrt(X), X**2, X * Z]),
        ("C(g)", ["Intercept", "C(g)[2.0]", "C(g)[3.0]"], [ONE, [0, 0, 1, 0, 0, 1], [1, 0, 0, 0, 1, 0]]),
        ("scale(x)", ["Intercept", "scale(x)"], [ONE, (X - X.mean()) / X.std()]),
    ],
)  # fmt: skip
def test_fixed_effects_by_hand(terms, names, columns):
    found = read_design(f"y ~ {terms}", FRAME)
    assert list(found.encoding.names) == names
    np.testing.assert_allclose(found.fixed, np.column_stack(columns), atol=1e-12)


def test_a_spline_by_scipy_with_remembered_knots():
    knots = np.array([X.min()] * 4 + [np.median(X)] + [X.max()] * 4)
    whole, centred = read_design("y ~ bs(x, df=5, center=False)", FRAME), read_design("y ~ bs(x, df=4)", FRAME)
    np.testing.assert_allclose(whole.fixed[:, 1:], BSpline(knots, np.eye(5), 3)(X), atol=1e-12)
    np.testing.assert_allclose(centred.fixed[:, 1:].sum(axis=0), 0, atol=1e-12)
    new = np.array([1.5, 9.0])
    basis = BSpline(knots, np.eye(5), 3)(new)
    np.testing.assert_allclose(whole.encode({"x": new}).fixed[:, 1:], basis, atol=1e-12)
    # The same map takes the whole basis to the centred one, at old and at new values.
    matrix = np.linalg.lstsq(whole.fixed[:, 1:], centred.fixed[:, 1:])[0]
    np.testing.assert_allclose(centred.encode({"x": new}).fixed[:, 1:], basis @ matrix, atol=1e-10)


def test_a_polynomial_is_orthonormal_and_remembered():
    found = read_design("y ~ poly(x, 2)", FRAME)
    gram = np.column_stack([ONE / np.sqrt(6), found.fixed[:, 1:]])
    np.testing.assert_allclose(gram.T @ gram, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(found.encode(FRAME.iloc[2:4]).fixed, found.fixed[2:4], atol=1e-12)


def test_the_order_of_a_categorical_chooses_the_reference():
    frame = FRAME.assign(f=pd.Categorical(FRAME["f"], categories=["c", "b", "a", "unused"]))
    found = read_design("y ~ f", frame)
    assert found.encoding.names == ("Intercept", "f[b]", "f[a]") and found.encoding.references == {"f": "c"}
    np.testing.assert_array_equal(found.encode(frame.iloc[[3]]).fixed, [[1, 0, 1]])


def test_groups_with_slopes_by_hand():
    (group,) = read_design("y ~ (1 + x | g)", FRAME).groups
    assert group.name == "g" and group.factor.labels == ("1", "2", "3") and group.effects == ("Intercept", "x")
    np.testing.assert_array_equal(group.index, [2, 0, 1, 0, 2, 1])
    np.testing.assert_array_equal(group.covariates, np.column_stack([ONE, X]))
    assert group.correlated


def test_nested_groups_are_those_that_occur():
    outer, inner = read_design("y ~ (1 | h/f)", FRAME).groups
    assert (outer.name, inner.name) == ("h", "h:f")
    assert inner.factor.labels == ("u:a", "u:b", "v:a", "v:c")
    np.testing.assert_array_equal(inner.index, [1, 0, 3, 2, 1, 3])
    assert inner.covariates is None and inner.effects == ("Intercept",)


@pytest.mark.parametrize("terms", ["(1 | g) + (0 + x | g)", "(1 + x || g)", "(x || g)"])
def test_independent_effects_of_one_factor_are_one_term(terms):
    (group,) = read_design(f"y ~ {terms}", FRAME).groups
    assert group.effects == ("Intercept", "x") and not group.correlated
    np.testing.assert_array_equal(group.covariates, np.column_stack([ONE, X]))


def test_effects_of_categories_that_vary():
    (group,) = read_design("y ~ (0 + f | h)", FRAME).groups
    assert group.effects == ("f[a]", "f[b]", "f[c]")
    second = read_design("y ~ (1 + x | g) + (0 + z | g)", FRAME).groups
    assert [group.name for group in second] == ["g", "g.1"] and second[1].effects == ("z",)


def test_new_levels_are_flagged_and_told_apart():
    found = read_design("y ~ x + (1 | g) + (1 | h:f)", FRAME)
    new = pd.DataFrame({"x": [0.0] * 4, "g": [9, 2, 7, 9], "h": ["u", "u", "w", "v"], "f": ["a", "c", "a", "c"]})
    encoded = found.encode(new)
    np.testing.assert_array_equal(encoded.groups[0][0], [-1, 1, -2, -1])
    np.testing.assert_array_equal(encoded.groups[1][0], [0, -1, -2, 3])
    assert encoded.unseen == {"g": ("9", "7"), "h:f": ("u:c", "w:a")}
    assert encoded.unseen_words == "g: '9', '7'; h:f: 'u:c', 'w:a'"


def test_a_walk_has_a_level_for_every_step():
    (term,) = read_design("y ~ rw1(year, until=2006)", FRAME).structured
    np.testing.assert_array_equal(term.levels, np.arange(2001, 2007))
    np.testing.assert_array_equal(term.index, [0, 1, 3, 0, 3, 1])
    np.testing.assert_array_equal(term.encode(pd.DataFrame({"year": [2006.0, 2000, 2003.5]})), [5, -1, -1])


def test_a_graph_has_a_level_for_every_vertex():
    edges = [("a", "b"), ("b", "c"), ("c", "d")]
    neighbours = {"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": []}
    matrix = pd.DataFrame(np.eye(4, k=1) + np.eye(4, k=-1), index=list("abcd"), columns=list("abcd"))
    for graph in (edges, neighbours, matrix):
        (term,) = read_design("y ~ besag(f)", FRAME, graphs={"f": graph}).structured
        assert term.labels == ("a", "b", "c", "d")
        np.testing.assert_array_equal(term.edges, [[0, 1], [1, 2], [2, 3]])
        np.testing.assert_array_equal(term.index, [1, 0, 2, 0, 1, 2])


def test_inputs_of_a_process():
    (term,) = read_design("y ~ gp(x, z, kernel='Matern32')", FRAME).structured
    np.testing.assert_array_equal(np.asarray(term.levels)[term.index], np.column_stack([X, Z]))
    assert term.options == {"kernel": "Matern32"}


def test_offset_weights_and_responses():
    found = read_design("s | trials(n) + weights(x) ~ z + offset(log(n)) + offset(z)", FRAME)
    np.testing.assert_allclose(found.offset, np.log(FRAME["n"]) + Z)
    np.testing.assert_array_equal(found.response.trials, FRAME["n"])
    np.testing.assert_array_equal(found.response.weights, X)
    np.testing.assert_array_equal(read_design("prop(s, 20) ~ z", FRAME).response.trials, [20.0] * 6)
    np.testing.assert_array_equal(read_design("cbind(s, n) ~ z", FRAME).response.trials, FRAME["s"] + FRAME["n"])
    np.testing.assert_allclose(read_design("log(y + 1) ~ z", FRAME).response.values, np.log(FRAME["y"] + 1))
    status = FRAME.assign(c=["none", "right"] * 3, e=[1, 0] * 3)
    for left in ("censored(x, c)", "surv(x, e)", "x | cens(c)"):
        np.testing.assert_array_equal(read_design(f"{left} ~ z", status).response.event, [True, False] * 3)
    np.testing.assert_array_equal(read_design("y ~ z", FRAME, weights="n").response.weights, FRAME["n"])
    assert read_design("f[c] ~ z", FRAME).response.positive == "c"


def test_encoders_can_be_pickled():
    found = read_design("y ~ bs(x, df=4) + f*z + log(x) + (1 + z | g) + rw1(year)", FRAME)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.encode(FRAME).fixed, found.fixed)


def test_variables_of_the_caller():
    found = read_design("y ~ double(x) + bs(x, knots=inner)", FRAME, namespace={"double": np.square, "inner": [3.0]})
    np.testing.assert_array_equal(found.fixed[:, 1], X**2)
    assert found.fixed.shape == (6, 6)


MESSAGES = [
    ("y ~ xx", "The formula names 'xx', but the columns are .*Did you mean 'x'"),
    ("y ~ log(Yeer)", "Did you mean 'year'"),
    ("y ~ lg(x)", "calls 'lg', which is no function it knows. Did you mean 'log'"),
    ("y ~ log(z)", r"log\(z\) is not finite in row 2"),
    ("y ~ x + k", "'k' is constant, 7 in all 6 rows"),
    ("y ~ k1", "'k1' has one level only"),
    ("y ~ (1 | k1)", "grouping factor 'k1' has one level only, 'q'"),
    ("y ~ (k | g)", r"In \(k \| g\), 'k' is constant"),
    ("y ~ (0 | g)", "has no effect"),
    ("y ~ (1 | g) + (1 | g)", "Intercept varies by g twice"),
    ("y ~ (1 | g:g)", "names a column twice"),
    ("y ~ rw1(f)", r"rw1\(f\): column 'f' must hold numbers"),
    ("y ~ rw1(x, bins=1)", "bins must be at least 2"),
    ("y ~ rw1(odd)", "on no even grid"),
    ("y ~ rw1(year, knots=3)", "has no option 'knots'; its options are bins, until"),
    ("y ~ rw1(h)", "must hold numbers"),
    ("y ~ rw1(year) + rw1(year)", r"has rw1\(year\) twice"),
    ("y ~ seasonal(year)", "needs a period"),
    ("y ~ besag(f)", r"needs its graph: MixedModel\(..., graphs={'f': edges}\)"),
    ("y ~ gp(x, kernel='Matern3')", "Did you mean 'Matern32'"),
    ("y ~ bs(x, df=2)", "cannot be encoded: .*df"),
    ("censored(x, n) ~ z", "With numbers write surv"),
    ("surv(x, n) ~ z", r"the event must be 1 \(it happened\) or 0 \(censored\), not 4"),
    ("surv(x) ~ z", "must have two arguments"),
    ("y | trails(n) ~ z", "Behind | of the response stand trials"),
    ("y ~ when", "'when' holds dates"),
    ("y ~ mixed", "'mixed' mixes"),
    ("y ~ endless", "'endless' has infinite entries"),
    ("y ~ offset(f)", "cannot be encoded|must be"),
]


@pytest.mark.parametrize(("formula", "message"), MESSAGES)
def test_messages_name_what_is_wrong_in_one_line(formula, message, capsys):
    frame = FRAME.assign(
        k=7.0, k1="q", odd=[0, 0.1, np.pi, 4, 5, 6], when=pd.date_range("2020-01-01", periods=6),
        mixed=np.array([1, "a", 2, 3, 4, 5], object), endless=[np.inf, 1, 2, 3, 4, 5],
    )  # fmt: skip
    with pytest.raises(ValueError, match=message) as caught:
        read_design(formula, frame)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == "", "formulae prints on standard output"


def test_a_text_column_of_names_is_taken_for_groups():
    frame = pd.DataFrame({"y": np.arange(24.0), "who": [f"p{k}" for k in range(24)]})
    with pytest.raises(ValueError, match=r"24 different texts in 24 rows: if they are groups write \(1 \| who\)"):
        read_design("y ~ who", frame)
    assert len(read_design("y ~ (1 | who)", frame).groups[0].factor.levels) == 24, "one row a group is fine"


def test_new_tables_with_something_amiss():
    found = read_design("y ~ x + f + (1 | g)", FRAME)
    new = {"x": [1.0], "f": ["a"], "g": [1]}
    with pytest.raises(ValueError, match="The model needs the column 'x'"):
        found.encode({"f": ["a"], "g": [1]})
    with pytest.raises(ValueError, match="Column 'f' has the level 'zz', which the data of the fit have not"):
        found.encode({**new, "f": ["zz"]})
    with pytest.raises(ValueError, match=r"missing in the new data \('x' 1\)"):
        found.encode({**new, "x": [np.nan]})
    assert found.encode({**new, "g": ["1"]}).unseen == {"g": ("1",)}, "a text is not the number"
