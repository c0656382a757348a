"""A source-level edit, as data: where, what operation, and the new source."""

from __future__ import annotations

from dataclasses import dataclass

_ANCHORED = ("insert-before", "insert-after", "replace", "replace-expression", "delete")
#: What each operation needs besides ``file``, and what it may have.
NEEDS = {
    **{op: {"anchor", "new"} for op in _ANCHORED[:-1]},
    "delete": {"anchor"},
    "replace-body": {"scope", "new"},
    "add-import": {"new"},
    "add-method": {"scope", "new"},
    "add-file": {"new"},
}
#: What it may have besides.
MAY = {op: {"scope", "count"} for op in _ANCHORED} | {"add-method": {"after"}}


@dataclass(frozen=True)
class Edit:
    """One ``[[edit]]`` of an edit.toml, or one of its alternatives.

    ``scope`` is a qualified name, empty for the module. ``relies`` are names of functions and
    classes in the file that the new source calls or inherits from. An expression as ``anchor``
    matches where it is assigned to as well. An edit with ``alternatives`` holds nothing else of
    use: each of them is whole.
    """

    file: str
    op: str
    scope: str = ""
    anchor: str = ""
    new: str = ""
    count: int = 1
    after: str = ""
    relies: tuple[str, ...] = ()
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
    ``took`` names the alternatives that were taken, in the order of the edits; ``edits`` are
    the edits themselves, without those not taken.
    """

    data: bytes
    replacements: tuple[tuple[int, int, bytes], ...]
    took: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
