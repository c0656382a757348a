"""Text that others wrote, as it may stand in a report or on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text in one line, with an escape for what is no plain character.

    That is the end of a line, what a terminal takes for a command, half of a character.
    """
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def short(text: str, most: int = 300) -> str:
    """The beginning of a printable text."""
    text = printable(text)
    return text if len(text) <= most else f"{text[:most]}..."
