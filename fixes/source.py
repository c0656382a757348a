"""Python source as bytes: where its nodes begin and end, and text at another indentation."""

from __future__ import annotations

import ast
import re
import tokenize
from bisect import bisect_right
from codecs import BOM_UTF8
from collections.abc import Sequence

from fixes.syntax import Suite, parse

_BLANK = " \t\f"
#: What may follow a statement up to the end of its logical line.
_REST = re.compile(rb"(?:[ \t\f;]|\\(?:\r\n|\r|\n))*(?:#[^\r\n]*)?")


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


def block(text: str) -> list[ast.stmt]:
    """The statements of a source at any indentation. Raises SyntaxError."""
    return parse(reindent(text, "").encode()).body


def expression(text: str) -> ast.expr:
    """The one expression of a source. Raises SyntaxError."""
    tree = parse(f"(\n{reindent(text.strip(), '', expression=True)}\n)\n".encode())
    statement = tree.body[0]
    if len(tree.body) != 1 or not isinstance(statement, ast.Expr):
        raise SyntaxError("not one expression")
    value = statement.value
    if isinstance(value, ast.Tuple) and not value.elts and value.lineno == 1:
        raise SyntaxError("no expression")  # but for the parentheses put around it
    return value
