"""Small faults of one module: slips in an expression or a branch.

Pure: text in, `Fault`s out. A fault's name comes from its function and change, not its line or
file, so that moving code keeps names and the draw. Only function bodies are changed; no error
messages, and no `strict` of a zip, which guards what holds in every correct run.
"""

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
"""The operator as written, and its replacement."""

ARITHMETIC: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    module: Path
    function: str
    kind: str
    line: int
    before: str
    after: str
    ordinal: int
    """Among equal changes of the same function."""
    start: int
    end: int

    @property
    def name(self) -> str:
        """Eight hex digits, stable when the module moves or lines come before."""
        parts = (self.module.stem, self.function, self.kind, self.before, self.after)
        words = "\0".join((*parts, str(self.ordinal)))
        return hashlib.sha256(words.encode()).hexdigest()[:8]

    def applied(self, text: str) -> str:
        raw = text.encode()
        return (raw[: self.start] + self.after.encode() + raw[self.end :]).decode()


def faults_of(module: Path, text: str) -> list[Fault]:
    """Every possible fault in `text`, the code of `module`, by line."""
    places = _Places(text)
    found: list[Fault] = []
    seen: dict[tuple[str, str, str, str], int] = {}
    for function, node in _changeable(ast.parse(text)):
        for kind, target, after in _changes(node, places):
            start, end = places.span(target)
            before = places.text(target)
            key = (function, kind, before, after)
            ordinal = seen[key] = seen.get(key, -1) + 1
            found.append(
                Fault(
                    module=module,
                    function=function,
                    kind=kind,
                    line=target.lineno,
                    before=before,
                    after=after,
                    ordinal=ordinal,
                    start=start,
                    end=end,
                )
            )
    return sorted(found, key=lambda fault: (fault.start, fault.end, fault.kind))


class _Places:
    """The places of a text's nodes in its bytes."""

    def __init__(self, text: str) -> None:
        self._raw = text.encode()
        self._starts = [0]
        for line in self._raw.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr) -> tuple[int, int]:
        """The first byte and the one after the last; asserts a parsed node's end."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self._raw[start:end].decode()

    def with_operator(
        self, node: ast.expr, left: ast.expr, right: ast.expr, change: tuple[str, str]
    ) -> str:
        """The node with the operator between its sides changed, brackets kept."""
        (start, end), (_, gap_start), (gap_end, _) = map(self.span, (node, left, right))
        gap = self._raw[gap_start:gap_end].decode().replace(*change, 1)
        return f"{self._raw[start:gap_start].decode()}{gap}{self._raw[gap_end:end].decode()}"


def _changeable(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every node of a function's body, with the function's qualified name."""

    def walk(node: ast.AST, name: str, inside: bool) -> Iterator[tuple[str, ast.AST]]:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.AnnAssign) and inside:
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                yield from walk(node.value, name, inside)
            return
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return
        if inside:
            yield name, node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{name}.{node.name}".lstrip(".")
            inside = not isinstance(node, ast.ClassDef)
            children: list[ast.AST] = list(node.body)
        else:
            children = list(ast.iter_child_nodes(node))
        for child in children:
            yield from walk(child, name, inside)

    yield from walk(tree, "", inside=False)


def _changes(node: ast.AST, places: _Places) -> Iterator[tuple[str, ast.expr, str]]:
    """Kind, the replaced expression, and its replacement."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield (
                "comparison",
                node,
                places.with_operator(node, left, right, COMPARISONS[type(operator)]),
            )
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
            yield (
                "arithmetic",
                node,
                places.with_operator(node, left, right, ARITHMETIC[type(operator)]),
            )
        case ast.Constant(value=bool() as value):
            yield "constant", node, str(not value)
        case ast.Constant(value=int() as value):
            yield "off by one", node, str(value + 1)
        case ast.Constant(value=float() as value):
            yield "constant", node, repr(value * 2 if value else 1.0)
        case ast.Call(func=ast.Name(id="min" | "max" as name) as called):
            yield "minimum", called, "max" if name == "min" else "min"
        case ast.Call(args=[first, second], keywords=[]) if not _starred(first, second):
            called_as = places.text(node.func)
            yield (
                "swapped arguments",
                node,
                f"{called_as}({places.text(second)}, {places.text(first)})",
            )
        case ast.BoolOp(op=operator, values=values):
            word = " or " if isinstance(operator, ast.And) else " and "
            yield "and or", node, "(" + word.join(f"({places.text(each)})" for each in values) + ")"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "dropped branch", test, "False"
        case _:
            return


def _starred(*arguments: ast.expr) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in arguments)
