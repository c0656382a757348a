"""Python source as syntax: parsing, canonical dumps, scopes by qualified name.

Everything here gives the same answer for the same source on Python 3.10 to 3.14.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

#: Fields that say nothing about what the code does, or that the source does not determine.
_UNSAID = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


class ScopeError(ValueError):
    """A name that is not one definition: ``kind`` is missing, ambiguous or alias."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class Suite(NamedTuple):
    """A list of statements and the node that holds it."""

    owner: ast.AST
    body: list[ast.stmt]


def parse(data: bytes) -> ast.Module:
    """The syntax tree of a file. Raises SyntaxError for anything but Python in UTF-8."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    if encoding not in ("utf-8", "utf-8-sig"):
        # Columns count bytes of UTF-8, so that they would point elsewhere.
        raise SyntaxError(f"declares the encoding {encoding}, not UTF-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # doubtful escapes and comparisons of the file
        try:
            return ast.parse(data)
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or "nested too deeply") from None


def dump(node: ast.AST, hidden: frozenset[int] = frozenset()) -> str:
    """The canonical text of a node, ASCII but for nothing.

    Positions, contexts, type comments, string prefixes and empty fields are left out, so
    that fields which later Pythons add do not show while they are empty. Neighbouring
    literal parts of an f-string are one part. Two nodes have the same dump exactly when
    they are the same syntax. List items whose ``id`` is in ``hidden`` are left out.
    """
    # Iterative: long sums nest deeply.
    out: list[str] = []
    stack: list[object] = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            out.append(item)
        elif isinstance(item, list):
            stack.append("]")
            for element in reversed(item):
                if id(element) not in hidden:
                    stack += (_atom(element), " ")
            stack.append("[")
        elif isinstance(item, ast.Constant):
            out.append(f"(Constant {type(item.value).__name__}:{_literal(item.value)})")
        elif isinstance(item, ast.AST):
            stack.append(")")
            for field in reversed(item._fields):
                value = getattr(item, field, None)
                if field in _UNSAID or value is None or value == []:
                    continue
                if isinstance(item, ast.JoinedStr):
                    value = _merged(item)
                stack += (_atom(value), f" {field}=")
            stack.append(f"({type(item).__name__}")
    return "".join(out)


def digest(node: ast.AST, hidden: frozenset[int] = frozenset()) -> str:
    """The sha256 of a node's canonical dump, in hex."""
    import hashlib

    return hashlib.sha256(dump(node, hidden).encode("ascii")).hexdigest()


def _atom(value: object) -> object:
    return value if isinstance(value, (ast.AST, list)) else ascii(value)


def _literal(value: object) -> str:
    # The decimal text of a long int is refused by default, and what repr() shows of a
    # string depends on the Unicode version.
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, complex):
        return f"{value.real.hex()},{value.imag.hex()}"
    if isinstance(value, int) and not isinstance(value, bool):
        return hex(value)
    return ascii(value)


def _merged(node: ast.JoinedStr) -> list[ast.expr]:
    parts: list[ast.expr] = []
    for part in node.values:
        for piece in _merged(part) if isinstance(part, ast.JoinedStr) else [part]:
            last = parts[-1] if parts else None
            if not isinstance(piece, ast.Constant):
                parts.append(piece)
            elif isinstance(last, ast.Constant):
                parts[-1] = ast.Constant(str(last.value) + str(piece.value))
            elif piece.value:
                parts.append(piece)
    return parts


def suites(node: ast.AST) -> Iterator[Suite]:
    """Every list of statements below a node, at any depth."""
    for owner in ast.walk(node):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(owner, field, None)
            if isinstance(body, list) and body:
                yield Suite(owner, body)


def level(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope in source order, down to its definitions but not into them."""
    stack: list[ast.AST] = [node]
    while stack:
        here = stack.pop()
        if here is not node:
            yield here
            if isinstance(here, DEFINITIONS):
                continue
        stack.extend(reversed(list(ast.iter_child_nodes(here))))


def definitions(scope: ast.AST, name: str) -> list[Definition]:
    """The functions and classes called ``name`` right in a scope, conditional ones too."""
    found = (node for node in level(scope) if isinstance(node, DEFINITIONS))
    return [node for node in found if node.name == name]


def find_scope(tree: ast.AST, name: str) -> ast.AST:
    """The one function or class with a qualified name (``Class.method``); the tree for "".

    Raises ScopeError: ``missing``, ``ambiguous`` when it is defined more than once, and
    ``alias`` when the name is only imported or assigned there, so that the code is elsewhere.
    """
    here = tree
    for part in (part for part in name.split(".") if part not in ("", "<locals>")):
        found = definitions(here, part)
        if len(found) > 1:
            lines = ", ".join(str(node.lineno) for node in found)
            raise ScopeError("ambiguous", f"{name}: {part} is defined at lines {lines}")
        if not found:
            origin = next(filter(None, (_binding(node, part) for node in level(here))), "")
            if origin:
                raise ScopeError("alias", f"{name}: {part} is {origin}, not defined here")
            raise ScopeError("missing", f"{name}: there is no {part}")
        here = found[0]
    return here


def _binding(node: ast.AST, name: str) -> str:
    """How a node binds a name without defining it; "" when it does not."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            if (alias.asname or alias.name.partition(".")[0]) == name:
                module = getattr(node, "module", None) or ""
                return f"imported (line {node.lineno}: {module or alias.name})"
    elif isinstance(node, ast.Name):
        if node.id == name and isinstance(node.ctx, ast.Store):
            return f"assigned (line {node.lineno})"
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name == name:
        return f"bound (line {node.lineno})"
    return ""


def has_docstring(body: Sequence[ast.stmt]) -> bool:
    """Whether a body begins with a docstring."""
    first = body[0] if body else None
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )


def imported(node: ast.stmt) -> list[tuple[str, str, str, int]]:
    """What an import statement imports; empty for any other statement."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return []
    module, level = getattr(node, "module", "") or "", getattr(node, "level", 0)
    prefix = f"from {module}" if isinstance(node, ast.ImportFrom) else "import"
    return [(prefix, alias.name, alias.asname or "", level) for alias in node.names]


def is_future(node: ast.stmt) -> bool:
    """Whether a statement is an import from ``__future__``."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
