"""The text of a formula taken apart: response, fixed effects, group terms, structured terms and offsets.

    [response ~] term + term + ...
    term:  fixed effects, as the package formulae reads them: x, a:b, a*b, bs(x, df=5), poly(x, 2), C(code), 0
           (effects | factor), (effects || factor): varying by group; a factor is g, a:b, or nested a/b
           rw1(t), rw2(t), ar1(t), seasonal(t, period=12), besag(region), bym2(region), gp(x): structured
           offset(expression)

formulae, the parser of Bambi, encodes the fixed effects. The rest is read here since formulae leaves out what stands
behind a complete formula ("y ~ x z" is "y ~ x" to it), says not where an error is, prints on standard output, and makes
a dense matrix of indicators, rows x levels, of each grouping factor.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any

STRUCTURED = ("rw1", "rw2", "ar1", "seasonal", "besag", "bym2", "gp")
"""Functions that stand for a latent Gaussian vector with a structure of its own."""

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|(?P<name>[^\W\d][\w.]*)|(?P<quoted>`[^`]*`)"
    r"|(?P<text>\"[^\"]*\"|'[^']*')|(?P<operator>\*\*|\|\||==|!=|<=|>=|[-+*/:|~()\[\]{},=<>])"
)
_LITERALS = ("True", "False", "None")
_OPEN, _CLOSED = {"(": ")", "[": "]", "{": "}"}, (")", "]", "}")
_BETWEEN = ("+", "-", "*", "/", ":", "**")
_ONLY_IN_CALLS = ("==", "!=", "<=", ">=", "<", ">", ",", "=")


class FormulaError(ValueError):
    """A formula that cannot be read: one line that shows where."""


@dataclasses.dataclass(frozen=True)
class Token:
    """A word of a formula: its kind, "number", "name", "quoted", "text" or "operator", and where it begins."""

    kind: str
    text: str
    start: int

    @property
    def column(self) -> str:
        """The name that is meant, without backquotes."""
        return self.text.strip("`")


Tokens = Sequence[Token]


@dataclasses.dataclass(frozen=True)
class CallTerm:
    """`name(arguments, key=value)`; every argument is its tokens."""

    name: str
    arguments: tuple[tuple[Token, ...], ...]
    options: dict[str, tuple[Token, ...]]
    text: str


@dataclasses.dataclass(frozen=True)
class GroupTerm:
    """`(effects | factor)`: the effects as a one-sided formula, and the columns that are crossed into the factor."""

    effects: str
    columns: tuple[str, ...]
    correlated: bool
    text: str


@dataclasses.dataclass(frozen=True)
class ParsedFormula:
    """A formula in parts; `fixed` is the one-sided formula of the fixed effects, as text.

    - `columns`: names on the right side that must be columns. - `arguments`: names inside of calls there, columns or
      the caller's variables. - `response_names`: all names on the left side.
    """

    text: str
    response: tuple[Token, ...]
    fixed: str
    groups: tuple[GroupTerm, ...]
    structured: tuple[CallTerm, ...]
    offsets: tuple[str, ...]
    columns: tuple[str, ...]
    arguments: tuple[str, ...]
    response_names: tuple[str, ...]


def parse_formula(text: Any) -> ParsedFormula:
    """Take a formula apart; a `FormulaError` says in one line what is wrong, and where."""
    if not isinstance(text, str):
        raise TypeError(f"formula must be a text such as 'y ~ x + (1 | g)', not {type(text).__name__}.")
    tokens = _tokens(text)
    tildes = [place for place, token in enumerate(tokens) if token.text == "~"]
    if len(tildes) > 1:
        raise _error(text, tokens[tildes[1]], "there is a second ~")
    if not tildes:
        raise FormulaError(f"The formula has no ~ between response and terms, as in 'y ~ x + (1 | g)': {text!r}.")
    response, right = tokens[: tildes[0]], tokens[tildes[0] + 1 :]
    if not response:
        raise _error(text, tokens[0], "there is no response before ~")
    if not right:
        raise _error(text, tokens[-1], "there are no terms after ~; an intercept alone is 'y ~ 1'")
    _check_brackets(text, tokens)
    fixed, groups, structured, offsets = [], [], [], []
    for sign, term in _signed_terms(text, right):
        special = _special(text, term)
        if special is not None and sign == "-":
            raise _error(text, term[0], "a term like this cannot be taken away with -; leave it out")
        if isinstance(special, CallTerm):
            (offsets if special.name == "offset" else structured).append(special)
        elif special is not None:
            groups += special
        else:
            _check_fixed(text, term)
            fixed += [sign, written(term)]
    columns, arguments = names_in(right)
    inside = names_in(response)
    return ParsedFormula(
        text, tuple(response), " ".join(fixed).lstrip("+ ") or "1", tuple(groups), tuple(structured),
        tuple(_offset(text, call) for call in offsets), columns, arguments, inside[0] + inside[1],
    )  # fmt: skip


def written(tokens: Iterable[Token]) -> str:
    """Tokens as text for formulae; names that it cannot read, such as _x, in backquotes."""
    words = [f"`{token.text}`" if token.kind == "name" and token.text[0] == "_" else token.text for token in tokens]
    return " ".join(words).replace(" ( ", "(").replace("( ", "(").replace(" )", ")").replace(" ,", ",")


def call_of(text: str, tokens: Tokens) -> CallTerm | None:
    """The call that the tokens are, and nothing beside it; else None."""
    if len(tokens) < 3 or tokens[0].kind != "name" or tokens[1].text != "(" or _closing(tokens, 1) != len(tokens) - 1:
        return None
    arguments, options = [], {}
    for part in split_tokens(tokens[2:-1], ","):
        if not part:
            raise _error(text, tokens[0], f"an argument of {tokens[0].text}(...) is empty")
        if len(part) > 1 and part[1].text == "=" and part[0].kind == "name":
            options[part[0].text] = tuple(part[2:])
        elif options:
            raise _error(text, part[0], "an argument without a name stands behind one with a name")
        else:
            arguments.append(tuple(part))
    return CallTerm(tokens[0].text, tuple(arguments), options, written(tokens))


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?', or nothing where no known name is near."""
    folded = {str(word).casefold(): str(word) for word in known}
    near = difflib.get_close_matches(name.casefold(), folded, 1)
    return f" Did you mean {folded[near[0]]!r}?" if near else ""


def marked(text: str, start: int, end: int) -> str:
    """The formula with the place marked, for one line."""
    return f"{text[:start]}>>{text[start:end]}<<{text[end:]}"


def _error(text: str, token: Token, words: str) -> FormulaError:
    where = marked(text, token.start, token.start + len(token.text))
    return FormulaError(f"The formula cannot be read at character {token.start + 1}: {words}: {where}")


def _tokens(text: str) -> list[Token]:
    found, place = [], 0
    if not text.strip():
        raise FormulaError("The formula is empty: write one such as 'y ~ x + (1 | g)'.")
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            letter = text[place]
            words = {"^": "a power is **", "`": "a backquote is not closed", "%": "%in% and its like are not known"}
            unclosed = "a quotation mark is not closed" if letter in "\"'" else f"{letter!r} has no meaning here"
            raise _error(text, Token("", letter, place), words.get(letter, unclosed))
        if match.lastgroup != "space":
            found.append(Token(str(match.lastgroup), match.group(), place))
        place = match.end()
    return found


def _check_brackets(text: str, tokens: Tokens) -> None:
    stack: list[Token] = []
    for token in tokens:
        if token.text in _OPEN and token.kind == "operator":
            stack.append(token)
        elif token.text in _CLOSED and token.kind == "operator":
            if not stack or _OPEN[stack[-1].text] != token.text:
                raise _error(text, token, f"{token.text} closes nothing")
            stack.pop()
        elif token.text == "~" and stack:
            raise _error(text, stack[-1], f"{stack[-1].text} is not closed")
    if stack:
        raise _error(text, stack[-1], f"{stack[-1].text} is not closed")


def _closing(tokens: Tokens, opening: int) -> int:
    """The place of the bracket that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(tokens)):
        depth += (tokens[place].text in _OPEN) - (tokens[place].text in _CLOSED)
        if depth == 0:
            return place
    return len(tokens)


def split_tokens(tokens: Tokens, *separators: str) -> list[list[Token]]:
    """Parts between separators outside of all brackets."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.text in _OPEN) - (token.text in _CLOSED)
        if depth == 0 and token.kind == "operator" and token.text in separators:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _signed_terms(text: str, tokens: Tokens) -> list[tuple[str, list[Token]]]:
    """Terms between + and - outside of all brackets, each with its sign."""
    terms: list[tuple[str, list[Token]]] = []
    sign, part, depth = "+", [], 0
    for place, token in enumerate(tokens):
        depth += (token.text in _OPEN) - (token.text in _CLOSED)
        if depth == 0 and token.kind == "operator" and token.text in "+-":
            if not part and place:
                raise _error(text, token, f"{token.text} stands where a term was expected")
            if part:
                terms.append((sign, part))
            sign, part = token.text, []
        else:
            part.append(token)
    if not part:
        raise _error(text, tokens[-1], "a term is missing behind it")
    return [*terms, (sign, part)]


def _special(text: str, term: Tokens) -> CallTerm | list[GroupTerm] | None:
    """A group term (several, where it is nested), a structured term or an offset; None for fixed effects."""
    call = call_of(text, term)
    if call is not None and (call.name in STRUCTURED or call.name == "offset"):
        return call
    bars = [place for place, token in enumerate(term) if token.text in ("|", "||")]
    if bars:
        whole = term[0].text == "(" and _closing(term, 0) == len(term) - 1
        parts = split_tokens(term[1:-1], "|", "||")
        if not whole or len(parts) != 2:
            raise _error(text, term[bars[0]], "write a term that varies by group in parentheses of its own, (1 | g)")
        return _groups(text, term, term[bars[0]])
    for place, token in enumerate(term[:-1]):
        if token.text in (*STRUCTURED, "offset") and token.kind == "name" and term[place + 1].text == "(":
            raise _error(text, token, f"{token.text}(...) must be a term of its own")
    return None


def _groups(text: str, term: Tokens, bar: Token) -> list[GroupTerm]:
    place = term.index(bar)
    effects, factor = term[1:place], term[place + 1 : -1]
    if not effects or not factor:
        raise _error(text, bar, f"nothing stands {'before' if not effects else 'behind'} it; write (1 | g)")
    for sign, part in _signed_terms(text, effects):
        _check_fixed(text, part)
        if sign == "-" and part[0].text != "1":
            raise _error(text, part[0], "only the intercept can be taken away")
    return [GroupTerm(written(effects), columns, bar.text == "|", written(term)) for columns in _factors(text, factor)]


def _factors(text: str, tokens: Tokens) -> list[tuple[str, ...]]:
    """The columns of each factor: g; a:b, crossed; a/b, which is a and a:b; g + h, one after the other."""
    found: list[tuple[str, ...]] = []
    for part in split_tokens(tokens, "+"):
        outer: tuple[str, ...] = ()
        for nested in split_tokens(part, "/"):
            for names in split_tokens(nested, ":"):
                if len(names) != 1 or names[0].kind not in ("name", "quoted"):
                    at = names[0] if names else (nested or part or tokens)[-1]
                    raise _error(text, at, "a grouping factor is a column: g, a:b (crossed) or a/b (b nested in a)")
                outer = (*outer, names[0].column)
            found.append(outer)
    return found


def _offset(text: str, call: CallTerm) -> str:
    if len(call.arguments) != 1 or call.options:
        raise FormulaError(f"{call.text} must have one argument, such as offset(log(exposure)): {text}")
    return written(call.arguments[0])


def _check_fixed(text: str, term: Tokens) -> None:
    """Operands and operators in turn; formulae itself would leave out what it does not understand."""
    operand, depth, before = False, 0, None
    for place, token in enumerate(term):
        following = term[place + 1].text if place + 1 < len(term) else ""
        if token.kind in ("name", "quoted", "number", "text"):
            if operand:
                raise _error(
                    text, token, f"{token.text!r} follows {before.text if before else ''!r} without an operator"
                )
            power = before is not None and before.text == "**"
            if depth == 0 and token.kind == "number" and token.text not in ("0", "1") and not power:
                raise _error(text, token, "a number that is a term is 0 or 1; for 2x write I(2 * x)")
            if depth == 0 and token.kind == "text":
                raise _error(text, token, "a quoted text is no column; a name with spaces goes in backquotes")
            operand = True
        elif token.text in _OPEN:
            is_call = before is not None and before.kind == "name" and operand and token.text in "(["
            if operand and not is_call:
                raise _error(text, token, f"{token.text} follows {before.text if before else ''!r} without an operator")
            depth += is_call or token.text == "{" or depth > 0
            operand = following in _CLOSED
        elif token.text in _CLOSED:
            if not operand:
                raise _error(text, token, f"{token.text} stands where a column was expected")
            depth = max(depth - 1, 0)
        elif token.text in _BETWEEN or (token.text in _ONLY_IN_CALLS and depth > 0):
            if not operand and not (token.text in "+-" and (before is None or before.text in "(,=[{" or depth > 0)):
                raise _error(text, token, f"{token.text} stands where a column was expected")
            operand = False
        else:
            raise _error(text, token, f"{token.text} has no meaning here")
        before = token
    if not operand:
        raise _error(text, term[-1], "a column is missing behind it")


def names_in(tokens: Tokens) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names that are columns, and names inside of calls; neither functions nor the keys of their arguments."""
    columns, arguments, stack = [], [], []
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else None
        following = tokens[place + 1].text if place + 1 < len(tokens) else ""
        if token.text in _OPEN and token.kind == "operator":
            stack.append(token.text == "{" or (before is not None and before.kind == "name"))
        elif token.text in _CLOSED and token.kind == "operator":
            stack.pop()
        elif token.kind == "quoted" or (token.kind == "name" and token.text not in _LITERALS):
            level = before is not None and before.text == "["
            if following == "(" or level or (following == "=" and any(stack)):
                continue
            (arguments if any(stack) else columns).append(token.column)
    return tuple(dict.fromkeys(columns)), tuple(dict.fromkeys(arguments))
