"""Python source as syntax and as bytes: canonical dumps, scopes, positions, changed functions.

Everything here gives the same answer for the same source on Python 3.10 to 3.14.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from bisect import bisect_right
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

#: Fields that say nothing about what the code does, or that the source does not determine.
_UNSAID = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_BLANK = " \t\f"
#: What may follow a statement up to the end of its logical line.
_REST = re.compile(rb"(?:[ \t\f;]|\\(?:\r\n|\r|\n))*(?:#[^\r\n]*)?")


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


def dump(node: ast.AST) -> str:
    """The canonical text of a node, ASCII but for nothing.

    Positions, contexts, type comments, string prefixes and empty fields are left out, so
    that fields which later Pythons add do not show while they are empty. Neighbouring
    literal parts of an f-string are one part. Two nodes have the same dump exactly when
    they are the same syntax.
    """
    return _dump(node, frozenset())


def digest(node: ast.AST) -> str:
    """The sha256 of a node's canonical dump, in hex."""
    import hashlib

    return hashlib.sha256(dump(node).encode("ascii")).hexdigest()


def _dump(root: ast.AST, hidden: frozenset[int]) -> str:
    """``dump`` without the list items in ``hidden``. Iterative: long sums nest deeply."""
    out: list[str] = []
    stack: list[object] = [root]
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


def _level(node: ast.AST) -> Iterator[ast.AST]:
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
    found = (node for node in _level(scope) if isinstance(node, DEFINITIONS))
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
            origin = next(filter(None, (_binding(node, part) for node in _level(here))), "")
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


class Source:
    """A file's bytes, its tree, and the byte offsets of the tree's nodes."""

    def __init__(self, data: bytes) -> None:
        """Raises SyntaxError for anything but Python in UTF-8."""
        self.data = data
        self.tree = parse(data)
        crlf = data.count(b"\r\n")
        self.eol = b"\r\n" if crlf > data.count(b"\n") - crlf else b"\n"
        self._lines = [0]
        for line in data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        if data.startswith(BOM_UTF8):
            self._lines[0] = len(BOM_UTF8)  # no column counts it

    def start(self, node: ast.AST) -> int:
        """Where a statement (from its first decorator) or an expression begins."""
        decorators = getattr(node, "decorator_list", None)
        if not decorators:
            return self._at(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        # The decorator's own position is behind its @, in parentheses even lines below.
        number = decorators[0].lineno
        while not self.line(number).lstrip(b" \t\f").startswith(b"@"):
            number -= 1
        return self._at(number, self.line(number).index(b"@"))

    def end(self, node: ast.AST) -> int:
        """Where a node ends; a trailing comment is behind that."""
        return self._at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _at(self, number: int, column: int) -> int:
        return self._lines[number - 1] + column

    def line(self, number: int) -> bytes:
        """A physical line by its 1-based number, without a byte order mark."""
        return self.data[self._lines[number - 1] : self._lines[number]]

    def number(self, offset: int) -> int:
        """The 1-based number of the line that holds an offset."""
        return max(1, bisect_right(self._lines, offset))

    def line_start(self, number: int) -> int:
        """The offset of a line by its number."""
        return self._lines[number - 1]

    def line_end(self, offset: int) -> int:
        """The end of the line that holds an offset, behind its line ending."""
        return self._lines[min(self.number(offset), len(self._lines) - 1)]

    def indent(self, offset: int) -> bytes:
        """The bytes from the start of the line (or its last form feed) to an offset."""
        return self.data[self._lines[self.number(offset) - 1] : offset].rpartition(b"\f")[2]

    def rest(self, offset: int) -> tuple[int, bool]:
        """The end of a statement's line behind its trailing comment, before the line ending.

        False with it when another statement follows on the same logical line.
        """
        match = _REST.match(self.data, offset)
        stop = match.end() if match else offset
        return stop, self.data[stop : stop + 1] in (b"", b"\n", b"\r")

    def begins_line(self, suite: Suite, index: int) -> bool:
        """Whether a statement is the first of its logical line."""
        if index:
            return self.rest(self.end(suite.body[index - 1]))[1]
        start = self.start(suite.body[0])
        number = self.number(start)
        if isinstance(suite.owner, ast.Module) or number == 1:
            return isinstance(suite.owner, ast.Module)
        before = self.line(number - 1).rstrip(b"\r\n")
        joined = before.endswith(b"\\") and b"#" not in before
        return not self.indent(start).strip(b" \t") and not joined


def reindent(text: str, indent: str, eol: str = "\n", *, expression: bool = False) -> str:
    """Source moved to another indentation, without the line ending behind its last line.

    Lines that begin inside a string stay as they are, blank ones are emptied, and comments
    and continuation lines further left than the first statement come in line with it.
    Raises SyntaxError when the text cannot be read as tokens.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    code = [line for line in lines if line.strip()]
    first = next((line for line in code if line.lstrip()[0] != "#"), code[0] if code else "")
    base = first[: len(first) - len(first.lstrip(_BLANK))]
    inside = _inside_strings(lines, "(" if expression else "if 1:" if base else "")
    out = []
    for number, line in enumerate(lines):
        if number in inside:
            out.append(line)
        elif not line.strip():
            out.append("")
        elif line.startswith(base):
            out.append(indent + line[len(base) :])
        else:
            out.append(indent + line.lstrip(_BLANK))
    return eol.join(out)


def _inside_strings(lines: Sequence[str], opening: str) -> set[int]:
    """The 0-based lines that begin inside a string; ``opening`` is a line to put before."""
    closing = [")"] if opening == "(" else []
    code = ([opening] if opening else []) + list(lines) + closing
    shift = 1 + bool(opening)
    inside: set[int] = set()
    open_at: list[int] = []
    depth = 0
    try:
        for token in tokenize.generate_tokens(iter([f"{line}\n" for line in code]).__next__):
            name = tokenize.tok_name[token.type]
            if name == "OP":
                depth += (token.string in "([{") - (token.string in ")]}")
                if closing and not depth and token.start[0] < len(code):
                    raise SyntaxError("closes more brackets than it opens")
            elif name == "STRING":
                inside.update(range(token.start[0] + 1, token.end[0] + 1))
            elif name.endswith("STRING_START"):  # f-strings are one token before 3.12
                open_at.append(token.start[0])
            elif name.endswith("STRING_END"):
                inside.update(range(open_at.pop() + 1, token.end[0] + 1))
    except tokenize.TokenError as error:
        raise SyntaxError(str(error.args[0])) from None
    return {number - shift for number in inside}


def changed(pre: bytes | None, post: bytes) -> tuple[str, ...]:
    """The qualified names of what is new or differs between two versions of a file.

    Functions and methods count whole, with what is nested in them; a class counts by its
    header and its own statements, and when it has lost a member. Statements of the module
    have no name. Raises SyntaxError.
    """
    before = _outline(parse(pre)) if pre is not None else {}
    after = _outline(parse(post))
    names = [name for name, dumps in after.items() if before.get(name) != dumps]
    for name in before:
        owner = name.rpartition(".")[0]
        if name not in after and owner in after and owner not in names:
            names.append(owner)
    return tuple(names)


def _outline(tree: ast.Module) -> dict[str, list[str]]:
    """The dumps of all definitions by qualified name, each without those listed apart."""
    found: dict[str, list[str]] = {}
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        prefix, scope = stack.pop()
        inner = [node for node in _level(scope) if isinstance(node, DEFINITIONS)]
        if isinstance(scope, ast.ClassDef):
            hidden = frozenset(id(node) for node in inner)
            found.setdefault(prefix, []).append(_dump(scope, hidden))
        elif isinstance(scope, FUNCTIONS):
            found.setdefault(prefix, []).append(dump(scope))
            continue
        stack += [(f"{prefix}.{node.name}".lstrip("."), node) for node in reversed(inner)]
    return found


def shadow(pre: bytes, post: bytes, name: str) -> bytes:
    """``post`` with the definition ``name`` of ``pre`` repeated right behind its own.

    The new code is still there but no longer reached: a mutant that a probe must find out.
    A name with several definitions side by side (a property's) is repeated whole. Raises
    ValueError (ScopeError) when the name is not defined in both, or in several places, and
    SyntaxError.
    """
    old, new = Source(pre), Source(post)
    originals, (*_, last) = _siblings(old.tree, name), _siblings(new.tree, name)
    at = new.rest(new.end(last))[0]
    start = new.start(last)
    indent, eol = new.indent(start).decode(), new.eol.decode()
    mutant = new.data[:at]
    for node in originals:
        begin = old.start(node)
        source = old.data[begin - len(old.indent(begin)) : old.rest(old.end(node))[0]]
        mutant += new.eol + reindent(source.decode(), indent, eol).encode()
    mutant += new.data[at:]
    parse(mutant)
    return mutant


def _siblings(tree: ast.Module, name: str) -> list[Definition]:
    owner, _, leaf = name.rpartition(".")
    scope = find_scope(tree, owner)
    found = definitions(scope, leaf)
    together = any(all(node in suite.body for node in found) for suite in suites(scope))
    if not found or not together:
        find_scope(tree, name)
    return found
