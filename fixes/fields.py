"""Typed reading of tables (JSON objects, TOML tables) that people or programs wrote.

A ``Table`` hands out values by key, checked for their type. What is wrong is collected with
its key path in the ``Document``, so that all of a file's errors are reported at once; after an
error a getter returns an empty value and reading goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

from fixes.errors import ExitCode, FixesError, Problem

T = TypeVar("T")


class Document:
    """One file that is read, and the problems found in it.

    ``where`` names the file in messages; every problem has the same ``code`` and ``kind``.
    """

    def __init__(self, where: str, kind: str, code: ExitCode = ExitCode.MISMATCH) -> None:
        self.where = where
        self.kind = kind
        self.code = code
        self.problems: list[Problem] = []

    def fail(self, path: str, what: str, hint: str = "") -> None:
        """Add a problem at a key path; the empty path is the file itself."""
        where = f"{self.where}: {path}" if path else self.where
        self.problems.append(Problem(self.code, self.kind, what, where, hint))

    def table(self, data: object) -> Table:
        """The document's root as a table."""
        return Table(self, None, "", data)

    def close(self) -> None:
        """Raise FixesError with all problems, if there are any."""
        if self.problems:
            raise FixesError(*self.problems)


class Table:
    """A table inside a document. ``close`` refuses the keys that nobody asked for."""

    __slots__ = ("_asked", "_data", "_key", "_parent", "_sound", "document")

    def __init__(self, document: Document, parent: Table | None, key: str, data: object) -> None:
        self.document = document
        self._parent = parent
        self._key = key
        self._asked: list[str] = []
        self._sound = type(data) is dict
        self._data: dict[str, object] = data if isinstance(data, dict) else {}
        if not self._sound:
            self.fail("", "expected a table")

    def path(self, key: str = "") -> str:
        """The key path of this table, or of one of its keys."""
        own = self._parent.path(self._key) if self._parent else ""
        if not key:
            return own
        name = key if re.fullmatch(r"[\w-]+(\[\d+\])*", key) else f'"{key}"'
        return f"{own}.{name}" if own else name

    def fail(self, key: str, what: str, hint: str = "") -> None:
        """Add a problem with one of the keys, or with the table itself (empty key)."""
        self.document.fail(self.path(key), what, hint)

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[str]:
        """The keys that are there, in order."""
        return iter(self._data)

    def take(self, key: str, kind: type[T], name: str, default: T | None, empty: T) -> T:
        """The value of a key if its type is ``kind``; without a default it must be there."""
        self._asked.append(key)
        value = self._data.get(key)
        if type(value) is kind:
            return value
        if key in self._data:
            self.fail(key, f"expected {name}")
        elif default is not None:
            return default
        elif self._sound:
            self.fail(key, "missing")
        return empty

    def string(self, key: str, default: str | None = None) -> str:
        """A string."""
        return self.take(key, str, "a string", default, "")

    def text(self, key: str, default: str | None = None) -> str:
        """A string that says something: not empty, not only white space."""
        value = self.string(key, default)
        if key in self._data and type(self._data[key]) is str and not value.strip():
            self.fail(key, "is empty")
        return value

    def data(self, key: str) -> bytes:
        """Bytes, written as text in UTF-8 with ``surrogateescape``."""
        value = self.string(key)
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            self.fail(key, "holds characters that stand for no bytes")
            return b""

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        return self.take(key, int, "a whole number", default, 0)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        return self.take(key, bool, "true or false", default, False)

    def choice(self, key: str, options: Iterable[str], default: str | None = None) -> str:
        """One of some strings."""
        value = self.string(key, default)
        if type(self._data.get(key)) is str and value not in (allowed := tuple(options)):
            self.fail(key, f"is {value!r}, not one of {', '.join(map(repr, allowed))}")
            return ""
        return value

    def strings(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of different strings, none of them empty."""
        values = self.array(key, None if default is None else list(default))
        good: list[str] = []
        seen: set[str] = set()
        for index, value in enumerate(values):
            if type(value) is not str or not value:
                self.fail(f"{key}[{index}]", "expected a string, not empty")
            elif value in seen:
                self.fail(f"{key}[{index}]", f"names {value!r} twice")
            else:
                seen.add(value)
                good.append(value)
        return tuple(good)

    def groups(self, key: str) -> tuple[tuple[str, ...], ...]:
        """A list of groups of strings; a string stands for a group of one."""
        found: list[tuple[str, ...]] = []
        for index, value in enumerate(self.array(key)):
            place = f"{key}[{index}]"
            group = {place: value}
            if type(value) is list and value:
                group = {f"{place}[{at}]": text for at, text in enumerate(value)}
            for name, text in group.items():
                if type(text) is not str or not text.strip():
                    self.fail(name, "expected a string, not empty")
            found.append(tuple(str(text) for text in group.values()))
        return tuple(found)

    def pattern(self, key: str) -> str:
        """A regular expression, not empty."""
        value = self.text(key)
        try:
            re.compile(value)
        except re.error as error:
            self.fail(key, f"is no regular expression: {error}")
        return value

    def array(self, key: str, default: list[object] | None = None) -> list[object]:
        """A list of anything."""
        return self.take(key, list, "a list", default, [])

    def table(self, key: str, default: dict[str, object] | None = None) -> Table:
        """A table under a key. A missing one is reported once, not for each of its keys."""
        value = self.take(key, dict, "a table", default, {})
        child = Table(self.document, self, key, value)
        child._sound = type(self._data.get(key)) is dict or default is not None
        return child

    def tables(self, key: str, default: list[object] | None = None) -> Iterator[Table]:
        """A list of tables."""
        for index, value in enumerate(self.array(key, default)):
            yield Table(self.document, self, f"{key}[{index}]", value)

    def named(
        self, key: str, default: dict[str, object] | None = None
    ) -> Iterator[tuple[str, Table]]:
        """A table of tables: their names and themselves, in order."""
        parent = self.table(key, default)
        for name, value in parent._data.items():
            yield name, Table(self.document, parent, name, value)

    def mapping(self, key: str, default: dict[str, object] | None = None) -> dict[str, str]:
        """A table of strings."""
        table = self.table(key, default)
        return {name: table.string(name) for name in table._data}

    def close(self) -> None:
        """Refuse the keys that were not asked for, and suggest the nearest that exists."""
        unknown = self._data.keys() - self._asked
        if unknown:
            from difflib import get_close_matches

            for key in sorted(unknown):
                near = get_close_matches(key, self._asked, 1)
                self.fail(key, "unknown key", f"did you mean {near[0]!r}?" if near else "")
