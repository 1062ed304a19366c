"""The text of a formula taken apart, and what is said of one that cannot be read."""

import pytest

from provi.frontends.formula.syntax import FormulaError, parse_formula


def test_the_parts_of_a_formula():
    parsed = parse_formula("y ~ x1 + x2:f + (1 + x1 | g) + rw1(year, until=2030) + offset(log(e)) - 1")
    assert parsed.fixed == "x1 + x2 : f - 1"
    assert [(term.effects, term.columns, term.correlated) for term in parsed.groups] == [("1 + x1", ("g",), True)]
    assert [(term.name, term.text) for term in parsed.structured] == [("rw1", "rw1(year, until = 2030)")]
    assert parsed.offsets == ("log(e)",)
    assert parsed.columns == ("x1", "x2", "f", "g") and parsed.arguments == ("year", "e")
    assert parsed.response_names == ("y",)


def test_nested_crossed_and_independent_groups():
    parsed = parse_formula("y ~ (1 | a/b) + (0 + x || c) + (1 | u:v) + (1 | p + q)")
    found = [(term.effects, term.columns, term.correlated) for term in parsed.groups]
    assert found == [
        ("1", ("a",), True), ("1", ("a", "b"), True), ("0 + x", ("c",), False), ("1", ("u", "v"), True),
        ("1", ("p",), True), ("1", ("q",), True),
    ]  # fmt: skip
    assert parsed.fixed == "1"


def test_names_are_columns_and_not_functions_or_keys():
    parsed = parse_formula("surv(time, event) ~ bs(x, df=5, knots=k) + `my col` + np.log(z) + C(f, levels=l) + _u")
    assert parsed.columns == ("my col", "_u") and parsed.arguments == ("x", "k", "z", "f", "l")
    assert parsed.response_names == ("time", "event")
    assert "`_u`" in parsed.fixed, "formulae reads no name that begins with an underscore"


@pytest.mark.parametrize(
    ("formula", "words", "place"),
    [
        ("y ~ x1 x2", "follows 'x1' without an operator", ">>x2<<"),
        ("y ~ x + (1 | g", "( is not closed", ">>(<<1 | g"),
        ("y ~ x + 1 | g)", ") closes nothing", ">>)<<"),
        ("y ~ x + 1|g", "in parentheses of its own, (1 | g)", ">>|<<"),
        ("y ~ x + (1 | g) z", "in parentheses of its own", ">>|<<"),
        ("y ~ x +", "a term is missing", ">>+<<"),
        ("y ~ x + + z", "stands where a term was expected", ">>+<< z"),
        ("y ~ x ^ 2", "a power is **", ">>^<<"),
        ("y ~ x * ", "a column is missing behind it", ">>*<<"),
        ("y ~ 2 + x", "0 or 1", ">>2<<"),
        ("y ~ x ~ z", "a second ~", ">>~<< z"),
        ("y ~ x:rw1(t)", "must be a term of its own", ">>rw1<<"),
        ("y ~ x - (1 | g)", "cannot be taken away", ">>(<<1 | g"),
        ("y ~ (1 | )", "nothing stands behind it", ">>|<<"),
        ("y ~ (1 | log(g))", "a grouping factor is a column", ">>log<<"),
        ("y ~ `x", "a backquote is not closed", ">>`<<"),
        ("y ~ C('a)", "a quotation mark is not closed", ">>'<<"),
        ("y ~ x $ z", "'$' has no meaning here", ">>$<<"),
        ("y ~ 'x'", "a quoted text is no column", ">>'x'<<"),
        ("y ~ f(x, , z)", "is empty", ">>f<<"),
        (" ~ x", "no response before ~", ">>~<<"),
        ("y ~ ", "no terms after ~", ">>~<<"),
    ],
)
def test_an_error_shows_the_place_in_one_line(formula, words, place):
    with pytest.raises(FormulaError) as caught:
        parse_formula(formula)
    message = str(caught.value)
    assert words in message and place in message and "\n" not in message
    assert f"character {formula.index(place.split('<<')[0][2:], _start(formula, place)) + 1}" in message


def _start(formula: str, place: str) -> int:
    """Where the marked word begins: by the text behind it, if that is given."""
    word, behind = place[2:].split("<<")
    return formula.rindex(word + behind) if behind else formula.rindex(word)


def test_what_is_no_formula():
    with pytest.raises(FormulaError, match="has no ~"):
        parse_formula("y x")
    with pytest.raises(FormulaError, match="is empty"):
        parse_formula("  ")
    with pytest.raises(TypeError, match="must be a text"):
        parse_formula(3)  # pyright: ignore[reportArgumentType]
