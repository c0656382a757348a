"""What the matrix found, as cells; their document (JSON), and the tables made of it.

The document maps each profile to the digest of the lock that was tried, the interpreter, and
each tree: the level that ``apply`` reached there, the number of cells of each fix and of each
set of fixes by column, and every cell that failed. Fixes that cannot be tried on wheels are in
``elsewhere``, with what proves them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fixes.errors import ExitCode, Problem

#: What is asked of each fix (a probe on the pristine tree, on fixed ones, and on mutants), and
#: of each set of fixes, by the command line.
OF_FIXES = ("pristine", "probes", "mutants")
OF_SETS = ("apply", "bytes", "import", "probes", "second run", "revert")
COLUMNS = ("pristine", "apply", "bytes", "import", "probes", "mutants", "second run", "revert")

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One thing that was tried. ``subject`` is a fix, or the name of a set of fixes.

    ``case`` tells cells of one column apart: the bundle, or the function that is not reached.
    ``fault`` is why it is not as it must be; empty if it is.
    """

    subject: str
    column: str
    case: str = ""
    fault: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Tree:
    """The cells of one tree. ``level`` is the least that ``apply`` reached."""

    label: str
    level: str
    fixes: tuple[Cell, ...]
    sets: tuple[Cell, ...]

    @property
    def failed(self) -> list[Cell]:
        """The cells that are not as they must be."""
        return [cell for cell in (*self.fixes, *self.sets) if cell.fault]

    def document(self) -> dict[str, Any]:
        """The part of the document. Times are left out: they are not of the result."""
        cells = [asdict(cell) for cell in self.failed]
        for cell in cells:
            del cell["seconds"]
        return {
            "level": self.level,
            "sets": _counted(self.sets),
            "fixes": _counted(self.fixes),
            "failed": cells,
        }


def _counted(cells: Iterable[Cell]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for cell in cells:
        columns = found.setdefault(cell.subject, {})
        columns[cell.column] = columns.get(cell.column, 0) + 1
    return found


@dataclass(frozen=True)
class Release:
    """What was found for one profile. ``lock`` is the digest of its lock.

    ``elsewhere`` are the fixes that were not tried: why, and what proves them.
    """

    profile: str
    lock: str
    environment: Mapping[str, str]
    trees: tuple[Tree, ...]
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The part of the document."""
        untried = {"elsewhere": dict(self.elsewhere)} if self.elsewhere else {}
        return {
            "lock": self.lock,
            "environment": dict(self.environment),
            "trees": {tree.label: tree.document() for tree in self.trees},
            **untried,
        }

    def problems(self) -> list[Problem]:
        """A problem, kind ``not-proved``, for each cell that failed."""
        return [
            Problem(
                ExitCode.MISMATCH,
                "not-proved",
                f"{_named(asdict(cell))}: {cell.fault}",
                f"{self.profile} {tree.label}",
            )
            for tree in self.trees
            for cell in tree.failed
        ]


def _named(cell: Mapping[str, str]) -> str:
    return ", ".join(filter(None, (cell["subject"], cell["column"], cell["case"])))


def merged(old: Document, releases: Iterable[Release], order: Sequence[str]) -> dict[str, Any]:
    """A document with the given releases in it, in the place of what it had of them."""
    found = {**old, **{release.profile: release.document() for release in releases}}
    return {profile: found[profile] for profile in order if profile in found}


def dump(document: Document) -> str:
    """The document as JSON, in lines that can be compared: one for each fix and each set."""
    return _dumped(document, 0) + "\n"


def _dumped(value: Any, depth: int) -> str:
    if not isinstance(value, Mapping) or not any(isinstance(v, Mapping) for v in value.values()):
        return json.dumps(value)
    inner = [
        f"{' ' * (depth + 1)}{json.dumps(key)}: {_dumped(each, depth + 1)}"
        for key, each in value.items()
    ]
    return "{\n" + ",\n".join(inner) + "\n" + " " * depth + "}"


def tables(document: Document) -> list[str]:
    """Markdown: a row for each tree, a row for each fix, and a line for each failed cell."""
    lines = [f"| tree | level | {' | '.join(COLUMNS)} |", "|---|---|" + "---|" * len(COLUMNS)]
    for profile, release in document.items():
        for label, tree in release["trees"].items():
            cells = [_of_tree(tree, column) for column in COLUMNS]
            lines.append(f"| {profile}, {label} | {tree['level']} | {' | '.join(cells)} |")
    ids = dict.fromkeys(
        fix for of in document.values() for tree in of["trees"].values() for fix in tree["fixes"]
    )
    ids |= dict.fromkeys(fix for of in document.values() for fix in of.get("elsewhere", ()))
    lines += ["", f"| fix | {' | '.join(document)} |", "|---|" + "---|" * len(document)]
    for fix in ids:
        cells = [_of_fix(release, fix) for release in document.values()]
        lines.append(f"| {fix} | {' | '.join(cells)} |")
    elsewhere = [
        f"- {profile}, {fix}: {why}"
        for profile, release in document.items()
        for fix, why in release.get("elsewhere", {}).items()
    ]
    if elsewhere:
        lines += ["", "Proved elsewhere, not on wheels:", "", *elsewhere]
    failed = [
        f"- {profile}, {label}: {_named(cell)}: {cell['fault']}"
        for profile, release in document.items()
        for label, tree in release["trees"].items()
        for cell in tree["failed"]
    ]
    return [*lines, *(["", "Failed:", "", *failed] if failed else [])]


def _of_tree(tree: Mapping[str, Any], column: str) -> str:
    groups = (*tree["fixes"].values(), *tree["sets"].values())
    failed = sum(cell["column"] == column for cell in tree["failed"])
    return _share(sum(columns.get(column, 0) for columns in groups), failed)


def _of_fix(release: Mapping[str, Any], fix: str) -> str:
    if fix in release.get("elsewhere", ()):
        return "elsewhere"
    count = failed = 0
    for tree in release["trees"].values():
        count += sum(tree["fixes"].get(fix, {}).values())
        failed += sum(cell["subject"] == fix for cell in tree["failed"])
    return _share(count, failed)


def _share(count: int, failed: int) -> str:
    """How many are as they must be; of how many, where some are not."""
    if not count:
        return ""
    return f"**{count - failed} of {count}**" if failed else str(count)
