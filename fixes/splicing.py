"""Source-level edits: found by scope and syntax, spliced as bytes, proven on the new tree.

Every edit of a file is located on its original bytes, so that none depends on another. All
bytes outside the replaced ranges stay, and the result is parsed and compared with the
original tree in which the same nodes were replaced. A trailing comment belongs to the
statement before it, comments on their own lines belong to nobody.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fixes.edits import NEEDS, Edit, EditError, Resolution
from fixes.source import Source, block, expression, reindent
from fixes.syntax import (
    FUNCTIONS,
    Suite,
    definitions,
    dump,
    find_scope,
    has_docstring,
    imported,
    is_future,
    parse,
    suites,
)


@dataclass(frozen=True)
class _Splice:
    """Bytes for a range of the original, and the form to try first."""

    index: int
    start: int
    end: int
    new: bytes
    bare: bytes | None = None


class Splicer:
    """The replacements in one file, as bytes and as nodes of its tree."""

    def __init__(self, data: bytes) -> None:
        self.source = Source(data)
        self.index = 0
        self.splices: list[_Splice] = []
        self.openings: dict[int, _Splice] = {}
        self.nodes: list[tuple[ast.AST, str, int | None, ast.expr]] = []
        self.changes: list[tuple[Suite, int, int, int, list[ast.stmt]]] = []
        self.deleted: list[tuple[int, Suite, int, int]] = []

    def add(self, index: int, edit: Edit) -> None:
        """Locate one edit. Raises EditError, ScopeError and SyntaxError (of its sources)."""
        self.index = index
        if edit.op not in NEEDS or edit.op == "add-file":
            raise EditError("invalid", f"{edit.op} cannot be done to this file", index)
        scope = find_scope(self.source.tree, edit.scope)
        if edit.op == "replace-expression":
            self._replace_expressions(scope, edit)
        elif edit.op == "delete":
            self.deleted += [(index, *place) for place in self._statements(scope, edit)]
        elif not block(edit.new):
            raise EditError("invalid", "new holds no statement", index)
        elif edit.op == "add-import":
            self._add_import(edit.new)
        elif edit.op == "add-method":
            self._add_method(scope, edit)
        elif edit.op == "replace-body":
            self._replace_body(scope, edit.new)
        else:
            for suite, first, last in self._statements(scope, edit):
                if edit.op == "insert-before":
                    self._before(suite, first, edit.new)
                elif edit.op == "insert-after":
                    self._after(suite, last, edit.new)
                else:
                    self._replace(suite, first, last, edit.new)

    # Finding

    def _statements(self, scope: ast.AST, edit: Edit) -> list[tuple[Suite, int, int]]:
        wanted = block(edit.anchor)
        if not wanted:
            raise EditError("invalid", "the anchor holds no statement", self.index)
        dumps = [dump(node) for node in wanted]
        found = []
        for suite in suites(scope):
            if self._is_elif(suite):
                continue
            for first in range(len(suite.body) - len(wanted) + 1):
                run = suite.body[first : first + len(wanted)]
                if all(type(a) is type(b) for a, b in zip(run, wanted, strict=True)) and all(
                    dump(a) == b for a, b in zip(run, dumps, strict=True)
                ):
                    found.append((suite, first, first + len(wanted) - 1))
        found.sort(key=lambda place: self.source.start(place[0].body[place[1]]))
        self._count(edit, [place[0].body[place[1]].lineno for place in found])
        return found

    def _is_elif(self, suite: Suite) -> bool:
        start = self.source.start(suite.body[0])
        return isinstance(suite.body[0], ast.If) and self.source.data.startswith(b"elif", start)

    def _count(self, edit: Edit, lines: list[int]) -> None:
        if len(lines) != edit.count:
            where = f" (lines {', '.join(map(str, lines))})" if lines else ""
            text = f"the anchor matches {len(lines)} places{where}, expected {edit.count}"
            kind = "drifted" if len(lines) < edit.count else "ambiguous"
            raise EditError(kind, f"{edit.scope or edit.file}: {text}", self.index)

    def _replace_expressions(self, scope: ast.AST, edit: Edit) -> None:
        wanted, new = expression(edit.anchor), expression(edit.new)
        text = dump(wanted)
        found: list[tuple[ast.expr, ast.AST, str, int | None]] = []
        stack: list[ast.AST] = [scope]
        inside: set[int] = set()
        while stack:
            parent = stack.pop()
            for field, value in ast.iter_fields(parent):
                for at, child in enumerate(value if isinstance(value, list) else [value]):
                    if not isinstance(child, ast.AST):
                        continue
                    stack.append(child)
                    if isinstance(parent, ast.JoinedStr) or id(parent) in inside:
                        inside.add(id(child))
                    if type(child) is type(wanted) and dump(child) == text:
                        assert isinstance(child, ast.expr)
                        position = at if isinstance(value, list) else None
                        found.append((child, parent, field, position))
        found.sort(key=lambda place: (place[0].lineno, place[0].col_offset))
        self._count(edit, [place[0].lineno for place in found])
        for child, parent, field, position in found:
            if id(child) in inside:
                # Its quotes restrict the code, and Pythons before 3.12 do not say where it is.
                raise EditError("invalid", "the anchor is inside an f-string", self.index)
            start, end = self.source.start(child), self.source.end(child)
            line = self.source.line(self.source.number(start))
            indent = line[: len(line) - len(line.lstrip(b" \t\f"))].decode()
            eol = self.source.eol.decode()
            bare = reindent(edit.new.strip(), indent, eol, expression=True).lstrip()
            close = f"{eol}{indent})" if "#" in bare.rpartition(eol)[2] else ")"
            wrapped = f"({bare}{close}".encode()
            self.splices.append(_Splice(self.index, start, end, wrapped, bare.encode()))
            self.nodes.append((parent, field, position, new))

    # Placing statements

    def _splice(self, start: int, end: int, new: bytes) -> None:
        self.splices.append(_Splice(self.index, start, end, new))

    def _change(self, suite: Suite, start: int, end: int, side: int, new: str) -> None:
        self.changes.append((suite, start, end, side, block(new)))

    def _colon(self, suite: Suite) -> int | None:
        """The end of the header on whose line a suite begins; None for an indented one."""
        if self.source.begins_line(suite, 0):
            return None
        return self.source.data.rindex(b":", 0, self.source.start(suite.body[0])) + 1

    def _indent(self, suite: Suite) -> bytes:
        if self._colon(suite) is None:
            return self.source.indent(self.source.start(suite.body[0]))
        owner = suite.owner.pattern if isinstance(suite.owner, ast.match_case) else suite.owner
        line = self.source.line(owner.lineno)  # type: ignore[attr-defined]
        outer = line[: len(line) - len(line.lstrip(b" \t\f"))].rpartition(b"\f")[2]
        return outer + (b"\t" if outer.endswith(b"\t") else b"    ")

    def _text(self, suite: Suite, new: str) -> bytes:
        return reindent(new, self._indent(suite).decode(), self.source.eol.decode()).encode()

    def _head(self, suite: Suite, at: int) -> tuple[int, bool]:
        """Where a statement's own line begins, or the gap before it on a shared line."""
        start = self.source.start(suite.body[at])
        if self.source.begins_line(suite, at):
            return start - len(self.source.indent(start)), False
        if at:
            self._open(suite)
            return self.source.end(suite.body[at - 1]), True
        return self._colon(suite) or 0, True

    def _tail(self, suite: Suite, at: int) -> tuple[int, bool]:
        """Where a statement's line ends, or the next statement on a shared line begins."""
        stop, alone = self.source.rest(self.source.end(suite.body[at]))
        return (stop, False) if alone else (self.source.start(suite.body[at + 1]), True)

    def _open(self, suite: Suite) -> None:
        """Give a suite that begins on its header's line a line of its own."""
        colon = self._colon(suite)
        if colon is not None:
            start = self.source.start(suite.body[0])
            opening = self.source.eol + self._indent(suite)
            self.openings[colon] = _Splice(self.index, colon, start, opening)

    def _before(self, suite: Suite, at: int, new: str) -> None:
        eol, text = self.source.eol, self._text(suite, new)
        place, shared = self._head(suite, at)
        if shared:
            start = self.source.start(suite.body[at])
            self._splice(place, start, eol + text + eol + self._indent(suite))
        else:
            self._splice(place, place, text + eol)
        self._change(suite, at, at, 1, new)

    def _after(self, suite: Suite, at: int, new: str, gap: bytes = b"") -> None:
        text = self.source.eol + gap + self._text(suite, new)
        self._open(suite)
        place, shared = self._tail(suite, at)
        if shared:
            text += self.source.eol + self._indent(suite)
        self._splice(self.source.end(suite.body[at]) if shared else place, place, text)
        self._change(suite, at + 1, at + 1, 0, new)

    def _replace(
        self, suite: Suite, first: int, last: int, new: str, begin: int | None = None
    ) -> None:
        """Replace statements, from an earlier ``begin`` on when comments go with them."""
        self._change(suite, first, last + 1, 2, new)
        line = reindent(new, "").strip()
        stop, shared = self._tail(suite, last)
        compound = any(hasattr(node, "body") for node in block(new))
        if begin is None and not compound and "\n" not in line and "#" not in line:
            end = self.source.end(suite.body[last]) if shared else stop
            self._splice(self.source.start(suite.body[first]), end, line.encode())
            return
        text = self._text(suite, new)
        if shared:
            text += self.source.eol + self._indent(suite)
        place, joined = self._head(suite, first)
        if joined:
            text = self.source.eol + text
        self._splice(place if begin is None else begin, stop, text)

    def _delete(self, suite: Suite, first: int, last: int) -> None:
        self.changes.append((suite, first, last + 1, 2, []))
        stop, shared = self._tail(suite, last)
        if shared:
            self._splice(self.source.start(suite.body[first]), stop, b"")
        elif self.source.begins_line(suite, first):
            start = self.source.start(suite.body[first])
            end = self.source.line_end(stop)
            self._splice(start - len(self.source.indent(start)), end, b"")
        else:
            self._splice(self.source.end(suite.body[first - 1]), stop, b"")

    # Operations of their own

    def _replace_body(self, scope: ast.AST, new: str) -> None:
        """The body but for its docstring, unless the new one brings its own."""
        if not isinstance(scope, FUNCTIONS):
            raise EditError("invalid", "replace-body needs the scope of a function", self.index)
        suite = Suite(scope, scope.body)
        first = int(has_docstring(scope.body) and not has_docstring(block(new)))
        if first == len(scope.body):
            self._after(suite, 0, new)
            return
        begin = None
        if self.source.begins_line(suite, first):
            start = self.source.start(scope.body[first])
            begin = start - len(self.source.indent(start))
            number = self.source.number(start) - 1
            above = scope.body[0].end_lineno or 0 if first else scope.lineno
            while number > above and (line := self.source.line(number).strip())[:1] in b"#":
                begin = self.source.line_start(number) if line else begin
                number -= 1
        self._replace(suite, first, len(scope.body) - 1, new, begin)

    def _add_import(self, new: str) -> None:
        """Behind the imports that a module begins with, without what is imported already."""
        added = Source(reindent(new, "").encode())
        tree = self.source.tree
        if not all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in added.tree.body):
            raise EditError("invalid", "new holds more than imports", self.index)
        there = {name for node in tree.body for name in imported(node)}
        missing = [node for node in added.tree.body if not there.issuperset(imported(node))]
        if not missing:
            return
        if len(missing) < len(added.tree.body):
            spans = ((added.start(node), added.rest(added.end(node))[0]) for node in missing)
            new = "\n".join(added.data[start:end].decode() for start, end in spans)
        future = any(is_future(node) for node in missing)
        lead = int(has_docstring(tree.body))
        at = lead
        while at < len(tree.body) and (
            is_future(tree.body[at]) if future else imported(tree.body[at])
        ):
            at += 1
        suite = Suite(tree, tree.body)
        if at:
            self._after(suite, at - 1, new, self.source.eol if at == lead else b"")
        elif tree.body:
            self._before(suite, 0, new)
        else:
            data, eol = self.source.data, self.source.eol
            text = reindent(new, "", eol.decode()).encode() + eol
            self._splice(len(data), len(data), text if data[-1:] in b"\r\n" else eol + text)
            self._change(suite, 0, 0, 0, new)

    def _add_method(self, scope: ast.AST, edit: Edit) -> None:
        if not isinstance(scope, ast.ClassDef):
            raise EditError("invalid", "add-method needs the scope of a class", self.index)
        for node in block(edit.new):
            if not isinstance(node, FUNCTIONS):
                raise EditError("invalid", "new holds more than methods", self.index)
            if definitions(scope, node.name):
                raise EditError("drifted", f"{edit.scope}.{node.name} is there already", self.index)
        last = find_scope(scope, edit.after) if edit.after else scope.body[-1]
        for suite in suites(scope):
            if last in suite.body:
                at = suite.body.index(last)
                self._after(suite, at, edit.new.lstrip("\r\n"), self.source.eol)

    # The outcome

    def finish(self) -> Resolution:
        """Splice, parse, compare. Raises EditError."""
        self._place_deletions()
        splices = sorted(
            [*self.splices, *self.openings.values()], key=lambda one: (one.start, one.end)
        )
        for one, other in pairwise(splices):
            if other.start < one.end:
                text = f"overlaps with edit[{one.index}]"
                raise EditError("invalid", text, other.index)
        if not splices:
            return Resolution(self.source.data, ())
        wanted = dump(self._expected())
        error = "it would say something else than what was asked for"
        # An expression goes in as it is where that says the same, else in parentheses.
        for bare in (True, False):
            parts = tuple(
                (one.start, one.end, one.bare if bare and one.bare is not None else one.new)
                for one in splices
            )
            data = _spliced(self.source.data, parts)
            try:
                tree = parse(data)
                if dump(tree) == wanted:
                    _compile(tree)
                    return Resolution(data, parts)
            except SyntaxError as reason:
                error = f"the outcome would not be Python: {reason}"
        raise EditError("invalid", error, min(one.index for one in splices))

    def _place_deletions(self) -> None:
        gone: dict[int, int] = {}
        for _, suite, first, last in self.deleted:
            gone[id(suite.body)] = gone.get(id(suite.body), 0) + last - first + 1
        for index, suite, first, last in self.deleted:
            self.index = index
            emptied = gone[id(suite.body)] >= len(suite.body)
            if emptied and first == 0 and not isinstance(suite.owner, ast.Module):
                self._replace(suite, first, last, "pass")
            else:
                self._delete(suite, first, last)

    def _expected(self) -> ast.Module:
        for parent, field, position, node in self.nodes:
            if position is None:
                setattr(parent, field, node)
            else:
                getattr(parent, field)[position] = node
        bodies: dict[int, list[tuple[Suite, int, int, int, list[ast.stmt]]]] = {}
        for change in self.changes:
            bodies.setdefault(id(change[0].body), []).append(change)
        for changes in bodies.values():
            body, done = changes[0][0].body, 0
            outcome: list[ast.stmt] = []
            for _, start, end, _, new in sorted(changes, key=lambda one: (one[1], one[3])):
                outcome += body[done:start] + new
                done = end
            body[:] = outcome + body[done:]
        return self.source.tree


def _spliced(data: bytes, parts: Sequence[tuple[int, int, bytes]]) -> bytes:
    out, done = [], 0
    for start, end, new in parts:
        out += [data[done:start], new]
        done = end
    return b"".join((*out, data[done:]))


def _compile(tree: ast.Module) -> None:
    # Finds what the grammar allows: a return outside a function, a late future import.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(tree, "<edited>", "exec", dont_inherit=True)
