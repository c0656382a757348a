"""Hunks: exact replacements of whole lines, on bytes.

A hunk matches completely and in exactly one place of a file, or it does not apply. There
is no fuzz; an offset (the lines a place is away from the one that was recorded) is allowed
and reported. Line endings and a missing final newline are part of the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hunk:
    """Lines ``old`` at 1-based ``line`` of the pre-image become ``new``.

    Both are whole lines as bytes, line endings included. Only the last line may lack its
    newline, and then it matches nowhere but at the end of the file. ``old`` is never empty.
    """

    line: int
    old: bytes
    new: bytes
