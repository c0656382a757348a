"""Source-level edits: found by scope and syntax, spliced as bytes, proven on the new tree.

Every edit of a file is located on its original bytes, so that none depends on another. All
bytes outside the replaced ranges stay, and the result is parsed and compared with the
original tree in which the same nodes were replaced. A trailing comment belongs to the
statement before it, comments on their own lines belong to nobody.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fixes.errors import ExitCode, FixesError, Problem
from fixes.syntax import (
    FUNCTIONS,
    ScopeError,
    Source,
    Suite,
    definitions,
    dump,
    find_scope,
    parse,
    reindent,
    suites,
)

_ANCHORED = ("insert-before", "insert-after", "replace", "replace-expression", "delete")
#: What each operation needs besides ``file``, and what it may have.
_NEEDS = {
    **{op: {"anchor", "new"} for op in _ANCHORED[:-1]},
    "delete": {"anchor"},
    "replace-body": {"scope", "new"},
    "add-import": {"new"},
    "add-method": {"scope", "new"},
    "add-file": {"new"},
}
_MAY = {op: {"scope", "count"} for op in _ANCHORED} | {"add-method": {"after"}}


_KEYS = {
    **dict.fromkeys(("file", "op", "scope", "anchor", "new", "after", "name", "source"), str),
    "count": int,
}


@dataclass(frozen=True)
class Edit:
    """One ``[[edit]]`` of an edit.toml, or one of its alternatives.

    ``scope`` is a qualified name, empty for the module. An expression as ``anchor`` matches
    where it is assigned to as well. An edit with ``alternatives`` holds
    nothing else of use: each of them is whole.
    """

    file: str
    op: str
    scope: str = ""
    anchor: str = ""
    new: str = ""
    count: int = 1
    after: str = ""
    name: str = ""
    alternatives: tuple[Edit, ...] = ()


class EditError(Exception):
    """An edit does not fit. ``kind`` is drifted, ambiguous, alias or invalid.

    ``index`` is the edit's place in the sequence given; ``also`` holds the further errors.
    """

    def __init__(
        self, kind: str, message: str, index: int = 0, also: tuple[EditError, ...] = ()
    ) -> None:
        super().__init__(f"edit[{index}]: {kind}: {message}")
        self.kind = kind
        self.message = message
        self.index = index
        self.also = also


@dataclass(frozen=True)
class Resolution:
    """What edits make of one file.

    ``replacements`` are (start, end, new bytes) on the original bytes, sorted and disjoint;
    ``took`` names the alternatives that were taken, in the order of the edits.
    """

    data: bytes
    replacements: tuple[tuple[int, int, bytes], ...]
    took: tuple[str, ...] = ()


def files(edit: Edit) -> tuple[str, ...]:
    """The paths an edit may touch, each once, in the order in which they are tried."""
    return tuple(dict.fromkeys(one.file for one in edit.alternatives or (edit,)))


def resolve(data: bytes | None, edits: Sequence[Edit]) -> Resolution:
    """The outcome of edits that all concern one file; ``data`` is None when it is absent.

    Raises EditError.
    """
    found = list(resolve_all(lambda path: data, edits).values())
    if len(found) != 1:
        raise EditError("invalid", f"the edits concern {len(found)} files, not one")
    return found[0]


def resolve_all(
    read: Callable[[str], bytes | None], edits: Sequence[Edit]
) -> dict[str, Resolution]:
    """The outcome for each file that edits touch; ``read`` gives None for an absent one.

    The first alternative that fits alone is taken. Raises EditError for the first edit that
    does not fit, with the other errors in its ``also``.
    """
    chosen: dict[str, list[tuple[int, Edit]]] = {}
    errors: list[EditError] = []
    for index, edit in enumerate(edits):
        try:
            one = _choose(read, index, edit)
        except EditError as error:
            errors.append(error)
        else:
            chosen.setdefault(one.file, []).append((index, one))
    found = {}
    for path, group in chosen.items():
        try:
            found[path] = _apply(read(path), group)
        except EditError as error:
            errors += (error, *error.also)
    if errors:
        first, *rest = sorted(errors, key=lambda error: error.index)
        raise EditError(first.kind, first.message, first.index, tuple(rest))
    return found


def _choose(read: Callable[[str], bytes | None], index: int, edit: Edit) -> Edit:
    if not edit.alternatives:
        return edit
    reasons = []
    for one in edit.alternatives:
        try:
            _apply(read(one.file), [(index, one)])
        except EditError as error:
            reasons.append((error.kind, f"{one.name} ({one.file}): {error.kind}: {error.message}"))
        else:
            return one
    # Where an alternative found its place but does not fit, that says more than drift.
    kinds = [kind for kind, _ in reasons]
    kind = next((kind for kind in kinds if kind != "drifted"), "drifted")
    raise EditError(kind, "no alternative fits: " + "; ".join(text for _, text in reasons), index)


def _apply(data: bytes | None, group: Sequence[tuple[int, Edit]]) -> Resolution:
    took = tuple(edit.name for _, edit in group if edit.name)
    index, first = group[0]
    if first.op == "add-file":
        if data is not None:
            raise EditError("drifted", f"{first.file} is there already", index)
        if len(group) > 1:
            raise EditError("invalid", f"{first.file} is added and edited", group[1][0])
        content = first.new.encode()
        return Resolution(content, ((0, 0, content),), took)
    if data is None:
        raise EditError("drifted", f"{first.file} is not there", index)
    try:
        plan = _Plan(data)
    except SyntaxError as error:
        raise EditError("invalid", f"{first.file} is not Python: {error}", index) from None
    errors = []
    for index, edit in group:
        try:
            plan.add(index, edit)
        except ScopeError as error:
            kind = "drifted" if error.kind == "missing" else error.kind
            errors.append(EditError(kind, error.message, index))
        except SyntaxError as error:
            errors.append(EditError("invalid", f"is not Python: {error}", index))
        except EditError as error:
            errors.append(error)
    if errors:
        raise EditError(errors[0].kind, errors[0].message, errors[0].index, tuple(errors[1:]))
    return replace(plan.finish(), took=took)


def _block(text: str) -> list[ast.stmt]:
    """The statements of a source at any indentation. Raises SyntaxError."""
    return parse(reindent(text, "").encode()).body


def _expression(text: str) -> ast.expr:
    """The one expression of a source. Raises SyntaxError."""
    tree = parse(f"(\n{reindent(text.strip(), '', expression=True)}\n)\n".encode())
    statement = tree.body[0]
    if len(tree.body) != 1 or not isinstance(statement, ast.Expr):
        raise SyntaxError("not one expression")
    value = statement.value
    if isinstance(value, ast.Tuple) and not value.elts and value.lineno == 1:
        raise SyntaxError("no expression")  # but for the parentheses put around it
    return value


@dataclass(frozen=True)
class _Splice:
    """Bytes for a range of the original, and the form to try first."""

    index: int
    start: int
    end: int
    new: bytes
    bare: bytes | None = None


class _Plan:
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
        if edit.op not in _NEEDS or edit.op == "add-file":
            raise EditError("invalid", f"{edit.op} cannot be done to this file", index)
        scope = find_scope(self.source.tree, edit.scope)
        if edit.op == "replace-expression":
            self._replace_expressions(scope, edit)
        elif edit.op == "delete":
            self.deleted += [(index, *place) for place in self._statements(scope, edit)]
        elif not _block(edit.new):
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
        wanted = _block(edit.anchor)
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
        wanted, new = _expression(edit.anchor), _expression(edit.new)
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
        self.changes.append((suite, start, end, side, _block(new)))

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
        compound = any(hasattr(node, "body") for node in _block(new))
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
        first = int(_has_docstring(scope.body) and not _has_docstring(_block(new)))
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
        there = {name for node in tree.body for name in _imported(node)}
        missing = [node for node in added.tree.body if not there.issuperset(_imported(node))]
        if not missing:
            return
        if len(missing) < len(added.tree.body):
            spans = ((added.start(node), added.rest(added.end(node))[0]) for node in missing)
            new = "\n".join(added.data[start:end].decode() for start, end in spans)
        future = any(_is_future(node) for node in missing)
        lead = int(_has_docstring(tree.body))
        at = lead
        while at < len(tree.body) and (
            _is_future(tree.body[at]) if future else _imported(tree.body[at])
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
        for node in _block(edit.new):
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


def _has_docstring(body: Sequence[ast.stmt]) -> bool:
    first = body[0] if body else None
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )


def _imported(node: ast.stmt) -> list[tuple[str, str, str, int]]:
    """What an import statement imports; empty for any other statement."""
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return []
    module, level = getattr(node, "module", "") or "", getattr(node, "level", 0)
    prefix = f"from {module}" if isinstance(node, ast.ImportFrom) else "import"
    return [(prefix, alias.name, alias.asname or "", level) for alias in node.names]


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def parse_edits(
    table: Mapping[str, object], source: Callable[[str], bytes] | None = None
) -> tuple[Edit, ...]:
    """The edits of a loaded edit.toml.

    ``source`` reads a file beside it for ``source = "helper.py"``; OSError means it is not
    there. Raises FixesError (``invalid-edit``) that names the key path of everything wrong.
    """
    reader = _Reader(source)
    for key in table.keys() - {"edit"}:
        reader.wrong(key, "unknown key")
    edits = []
    for where, row in reader.rows(table, "edit", ""):
        if "alternatives" not in row:
            edits.append(reader.edit(row, None, where))
            continue
        shared = {key: value for key, value in row.items() if key != "alternatives"}
        reader.check_types(shared, where)
        ways, names = [], []
        for place, way in reader.rows(row, "alternatives", f"{where}."):
            ways.append(reader.edit(way, shared, place))
            if not way.get("name"):
                reader.wrong(f"{place}.name", "an alternative needs a name")
            elif way["name"] in names:
                reader.wrong(f"{place}.name", "another alternative has this name")
            names.append(way.get("name"))
        if ways:
            edits.append(replace(ways[0], name="", alternatives=tuple(ways)))
    if reader.problems:
        raise FixesError(*reader.problems)
    return tuple(edits)


class _Reader:
    """Turns tables into edits and collects what is wrong with them."""

    def __init__(self, source: Callable[[str], bytes] | None) -> None:
        self.source = source
        self.problems: list[Problem] = []

    def wrong(self, where: str, what: str) -> None:
        self.problems.append(Problem(ExitCode.MISMATCH, "invalid-edit", what, where))

    def rows(
        self, table: Mapping[str, object], key: str, prefix: str
    ) -> list[tuple[str, dict[str, object]]]:
        rows = table.get(key)
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            return [(f"{prefix}{key}[{at}]", row) for at, row in enumerate(rows)]
        self.wrong(f"{prefix}{key}", "must be one table or more")
        return []

    def check_types(self, row: Mapping[str, object], where: str) -> None:
        for key, value in row.items():
            if key not in _KEYS:
                self.wrong(f"{where}.{key}", "unknown key")
            elif type(value) is not _KEYS[key]:
                self.wrong(f"{where}.{key}", f"must be of type {_KEYS[key].__name__}")

    def edit(self, row: dict[str, object], shared: dict[str, object] | None, where: str) -> Edit:
        """One edit, or an alternative with what it inherits; ``problems`` says what is wrong."""
        before = len(self.problems)
        self.check_types(row, where)
        inherited = shared or {}
        op = row.get("op", inherited.get("op", ""))
        if op not in _NEEDS:
            self.wrong(f"{where}.op", f"must be one of {', '.join(sorted(_NEEDS))}")
        if len(self.problems) > before:
            return Edit("", "")
        needs = _NEEDS[str(op)] | {"file"}
        known = needs | _MAY.get(str(op), set()) | {"op"}
        known |= {"source"} if op == "add-file" else set()
        known |= {"name"} if shared is not None else set()
        for key in row.keys() - known:
            self.wrong(f"{where}.{key}", f"{op} takes no such key")
        values = {key: value for key, value in {**inherited, **row}.items() if key in known}
        if "source" in values:
            values["new"] = self._read(values, where)
            del values["source"]
        for key in sorted(needs):
            if not values.get(key):
                self.wrong(f"{where}.{key}", f"{op} needs it")
        if len(self.problems) > before:
            return Edit("", "")
        edit = Edit(**values)  # type: ignore[arg-type]
        self._check_values(edit, where)
        return edit

    def _read(self, values: Mapping[str, object], where: str) -> str:
        if "new" in values:
            self.wrong(f"{where}.source", "new is given as well")
        try:
            if self.source is not None:
                return self.source(str(values["source"])).decode()
            self.wrong(f"{where}.source", "there is no folder to read from")
        except (OSError, UnicodeDecodeError) as error:
            self.wrong(f"{where}.source", f"cannot be read: {error}")
        return "?"

    def _check_values(self, edit: Edit, where: str) -> None:
        parts = edit.file.split("/")
        if "\\" in edit.file or "\0" in edit.file or {"", ".", ".."} & set(parts):
            self.wrong(f"{where}.file", "must be a plain path relative to site-packages")
        elif not edit.file.endswith(".py"):
            self.wrong(f"{where}.file", "must be a Python file")
        if edit.count < 1:
            self.wrong(f"{where}.count", "must be 1 or more")
        read = _expression if edit.op == "replace-expression" else _block
        for key, text in (("anchor", edit.anchor), ("new", edit.new)):
            try:
                if text and edit.op == "add-file":
                    parse(text.encode())
                elif text and not read(text):
                    self.wrong(f"{where}.{key}", "holds no statement")
            except (SyntaxError, UnicodeEncodeError) as error:
                self.wrong(f"{where}.{key}", f"is not Python: {error}")
