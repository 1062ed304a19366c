"""All small changes of a source file: comparisons, arithmetic, signs, constants, conditions, returned values.

Annotations, decorators, texts and what is raised are left alone: no test should have to notice them. A comparison
becomes its opposite: of real numbers < and <= differ on a null set, and the change would be none.
"""

import ast
import copy
import dataclasses
from collections.abc import Iterator

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
_CALLED = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one expression on `line` to `last`: from `begin` to `end` in the text, `new` for `old`."""

    kind: str
    line: int
    last: int
    begin: int
    end: int
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The changed text; lines keep their numbers where the old expression is on one."""
        assert text[self.begin : self.end] == self.old
        return text[: self.begin] + self.new + text[self.end :]


def mutants(text: str) -> list[Mutant]:
    """Of a module, in the order of its lines."""
    starts, found = _starts(text), []
    for node, kind, new in _changes(ast.parse(text)):
        begin = starts[node.lineno - 1] + _characters(text, starts, node.lineno, node.col_offset)
        assert node.end_lineno is not None and node.end_col_offset is not None  # of a tree that was made by `parse`
        end = starts[node.end_lineno - 1] + _characters(text, starts, node.end_lineno, node.end_col_offset)
        found.append(Mutant(kind, node.lineno, node.end_lineno, begin, end, text[begin:end], f"({ast.unparse(new)})"))
    unique = {(mutant.begin, mutant.end, mutant.new): mutant for mutant in found}
    return sorted(unique.values(), key=lambda mutant: (mutant.begin, mutant.end, mutant.new))


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    for node in _walked(tree):
        match node:
            case ast.Compare():
                new = copy.deepcopy(node)
                if type(node.ops[0]) in _COMPARED:
                    new.ops[0] = _COMPARED[type(node.ops[0])]()
                    yield node, "comparison", new
            case ast.BinOp():
                if type(node.op) in _COMPUTED:
                    yield node, "arithmetic", ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right)
            case ast.UnaryOp(op=ast.USub()):
                yield node, "sign", node.operand
            case ast.UnaryOp(op=ast.Not()):
                yield node, "condition", node.operand
            case ast.BoolOp():
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                yield node, "condition", ast.BoolOp(other, node.values)
            case ast.Constant(value=bool()):
                yield node, "constant", ast.Constant(not node.value)
            case ast.Constant(value=int() | float() as number):
                yield node, "constant", ast.Constant(_other_number(number))
            case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
                yield node, "call", ast.Call(ast.Name(_CALLED[name]), node.args, node.keywords)
            case ast.Call(func=ast.Attribute(attr=name)) if name in _CALLED:
                other_call = ast.Attribute(node.func.value, _CALLED[name])  # pyright: ignore[reportAttributeAccessIssue]
                yield node, "call", ast.Call(other_call, node.args, node.keywords)
            case ast.If() | ast.IfExp() | ast.While():
                if not isinstance(node.test, ast.UnaryOp | ast.Compare):  # these have a change of their own
                    yield node.test, "condition", ast.UnaryOp(ast.Not(), node.test)
            case ast.Return(value=ast.expr() as value):
                if not (isinstance(value, ast.Constant) and value.value is None):
                    yield value, "return", ast.Constant(None)


def _other_number(number: int | float) -> int | float:
    if isinstance(number, int):
        return number + 1
    return 2 * number if number else 1.0


def _walked(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that are left alone. Of texts with fields Python 3.11 does not know the places."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Raise | ast.Assert):
                yield from _walked(child)


def _starts(text: str) -> list[int]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _characters(text: str, starts: list[int], line: int, offset: int) -> int:
    """Python counts columns in bytes of UTF-8."""
    row = text[starts[line - 1] : starts[line]]
    return len(row.encode()[:offset].decode())
