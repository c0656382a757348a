"""``edit.toml``: tables to edits, with every error and its key path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fixes.edits import MAY, NEEDS, Edit
from fixes.errors import ExitCode, FixesError, Problem
from fixes.source import block, expression
from fixes.syntax import parse

_KEYS = {
    **dict.fromkeys(("file", "op", "scope", "anchor", "new", "after", "name", "source"), str),
    "count": int,
    "relies": list,
}


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
        if op not in NEEDS:
            self.wrong(f"{where}.op", f"must be one of {', '.join(sorted(NEEDS))}")
        if len(self.problems) > before:
            return Edit("", "")
        needs = NEEDS[str(op)] | {"file"}
        known = needs | MAY.get(str(op), set()) | {"op"}
        known |= {"relies"} if op != "add-file" else set()
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
        relies = values.pop("relies", [])
        if not isinstance(relies, list) or not all(map(_is_name, relies)):
            self.wrong(f"{where}.relies", "must be a list of qualified names")
            return Edit("", "")
        edit = Edit(**values, relies=tuple(relies))  # type: ignore[arg-type]
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
        read = expression if edit.op == "replace-expression" else block
        for key, text in (("anchor", edit.anchor), ("new", edit.new)):
            try:
                if text and edit.op == "add-file":
                    parse(text.encode())
                elif text and not read(text):
                    self.wrong(f"{where}.{key}", "holds no statement")
            except (SyntaxError, UnicodeEncodeError) as error:
                self.wrong(f"{where}.{key}", f"is not Python: {error}")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))
