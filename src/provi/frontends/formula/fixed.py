"""The matrix of the fixed effects, and of the effects that vary by group, encoded by the package formulae."""

import contextlib
import dataclasses
import io
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from provi.data.kinds import is_date, percent_numbers
from provi.frontends.formula.syntax import FormulaError, nearest
from provi.frontends.formula.tables import pandas_module

_FUNCTIONS = ("log", "log2", "log10", "log1p", "exp", "expm1", "sqrt", "abs", "sin", "cos", "tan", "tanh", "floor",
              "ceil", "sign", "square", "minimum", "maximum", "where", "arcsinh")  # fmt: skip
_LISTED, _FEW_LEVELS = 8, 10
"""A text column with more levels than this, and than half of its rows, is taken for names."""


@dataclasses.dataclass(frozen=True)
class Encoding:
    """A one-sided formula whose encoding is known: reference levels, knots, means of `scale(x)`.

    - `formula`: "1 + x + f". - `matrices`: what formulae made of it, None where it has no columns.
    - `names`: of the columns. - `terms`: the columns of each term, by its name.
    - `references`: the reference level of each category that has one.
    """

    formula: str
    matrices: Any
    names: tuple[str, ...]
    terms: dict[str, tuple[str, ...]]
    references: dict[str, str]

    def encode(self, frame: Any) -> np.ndarray:
        """The matrix for a new table with the encoding of the old one; levels that are new to it are an error."""
        if self.matrices is None:
            return np.zeros((len(frame), 0))
        self._check_known(frame)
        with _plain_errors(self.formula):
            new = self.matrices.evaluate_new_data(frame)
        return _finite(self.formula, np.asarray(new.design_matrix, np.float64).reshape(len(frame), -1), self.names)

    def _check_known(self, frame: Any) -> None:
        components = [part for term in self.matrices.terms.values() for part in getattr(term, "components", ())]
        for part in components:
            if part.name not in frame or not part.levels:
                continue
            new = [level for level in frame[part.name].unique() if level not in part.levels]
            if new:
                listed = ", ".join(map(repr, part.levels[:_LISTED])) + (", ..." if len(part.levels) > _LISTED else "")
                raise ValueError(
                    f"Column {part.name!r} has the level {new[0]!r}, which the data of the fit have not; they have "
                    f"{listed}."
                )


def make_encoding(formula: str, frame: Any, namespace: Mapping[str, Any]) -> tuple[np.ndarray, Encoding]:
    """The matrix of a one-sided formula, and its encoding for new tables.

    **Arguments:**

    - `namespace`: the caller's own functions and variables, such as knots.
    """
    found = _evaluate(formula, frame, namespace)
    if found is None:
        return np.zeros((len(frame), 0)), Encoding(formula, None, (), {}, {})
    names, terms, references = [], {}, {}
    for name, term in found.terms.items():
        labels = [str(label) for label in term.labels]
        if not labels and term.kind != "intercept":
            raise ValueError(f"{name!r} has one level only, and cannot be told from the intercept: leave it out.")
        names += labels
        terms[name] = tuple(labels)
        references.update(_references(term))
    for name in frame:
        _check_levels(name, frame[name], terms)
    matrix = np.asarray(found.design_matrix, np.float64).reshape(len(frame), -1)
    _forget_rows(found)
    return _finite(formula, matrix, names), Encoding(formula, found, tuple(names), terms, references)


def evaluate(expression: str, frame: Any, namespace: Mapping[str, Any], what: str) -> np.ndarray:
    """The number of each row that an expression of columns has, such as log(exposure)."""
    found = _evaluate(f"0 + I({expression})", frame, namespace)
    matrix = np.asarray(found.design_matrix, np.float64).reshape(len(frame), -1)
    if matrix.shape[1] != 1:
        raise ValueError(f"{what} must be one number a row; {expression} gives {matrix.shape[1]} columns.")
    return _finite(what, matrix, (expression,))[:, 0]


def known_functions(namespace: Mapping[str, Any]) -> set[str]:
    """Names that a formula may call."""
    _formulae()
    from formulae.categorical import ENCODINGS
    from formulae.transforms import TRANSFORMS

    return {*TRANSFORMS, *ENCODINGS, *_FUNCTIONS, *namespace}


def _formulae() -> Any:
    pandas_module()
    try:
        import formulae
    except ImportError:
        raise ImportError("A formula needs the package formulae: pip install 'provi[formula]'.") from None
    return formulae


def _evaluate(formula: str, frame: Any, namespace: Mapping[str, Any]) -> Any:
    formulae = _formulae()
    from formulae.environment import Environment

    functions = {name: getattr(np, name) for name in _FUNCTIONS}
    # Not the module: what is remembered for predictions must be picklable.
    numpy = types.SimpleNamespace(**functions)
    environment = Environment([dict(namespace), {**functions, "np": numpy, "numpy": numpy}])
    with _plain_errors(formula):
        return formulae.design_matrices(formula, frame, na_action="error", env=environment).common


@contextlib.contextmanager
def _plain_errors(formula: str) -> Any:
    """Errors of formulae in one line; what it prints on standard output is left out."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
            yield
    except FormulaError:
        raise
    except KeyError as error:
        name = str(error.args[0]) if error.args else ""
        near = nearest(name, known_functions({}))
        raise FormulaError(f"The formula calls {name!r}, which is no function it knows.{near}") from None
    except Exception as error:  # whatever the user's functions raise
        words = " ".join(str(error).split()) or type(error).__name__
        raise FormulaError(f"The terms {formula!r} cannot be encoded: {words}") from None


def _forget_rows(found: Any) -> None:
    """Leave out the data, of which formulae keeps a copy in each place: only the encoding is needed from now on."""
    found.data = found.design_matrix = None
    for term in found.terms.values():
        term.data = None
        for component in getattr(term, "components", ()):
            component._intermediate_data, component.value = None, component.value[:1]


def _references(term: Any) -> dict[str, str]:
    found = {}
    for component in getattr(term, "components", ()):
        if getattr(component, "levels", None) and component.spans_intercept is False:
            coded = [str(label) for label in component.contrast_matrix.labels]
            left = [str(level) for level in component.levels if str(level) not in coded]
            if len(left) == 1:
                found[component.name] = left[0]
    return found


def _check_levels(name: str, column: Any, terms: Mapping[str, Any]) -> None:
    if name not in terms or column.dtype == float:
        return
    texts = np.array([None if value is None or value != value else str(value) for value in column], object)
    if is_date(texts):
        raise ValueError(
            f"Column {name!r} holds dates or times ({texts[0]!r}): make a number of them, such as days since the "
            f"first; for an effect of each date write (1 | {name})."
        )
    if percent_numbers(texts) is not None:
        raise ValueError(f"Column {name!r} holds percentages as texts ({texts[0]!r}): write bare numbers.")
    count = column.nunique()
    if count > _FEW_LEVELS and count > len(column) / 2:
        raise ValueError(
            f"Column {name!r} has {count} different texts in {len(column)} rows: if they are groups write "
            f"(1 | {name}); if they are numbers with units write bare numbers."
        )


def _finite(what: str, matrix: np.ndarray, names: Any) -> np.ndarray:
    """The matrix; a column that is not finite (log(0)) is named."""
    wrong = np.flatnonzero(~np.isfinite(matrix).all(axis=0))
    if wrong.size:
        row = int(np.flatnonzero(~np.isfinite(matrix[:, wrong[0]]))[0])
        raise ValueError(f"{names[wrong[0]]} is not finite in row {row + 1} of those that are used, in {what!r}.")
    return matrix
