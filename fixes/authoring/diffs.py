r"""Unified diffs, read strictly.

unidiff parses; what it passes in silence is refused before it sees the text: anything that
is no diff, counts that do not add up, lines that belong to no hunk, binary patches, changes
of mode, kind or name, and paths that lead elsewhere. The grammar is git's
(https://git-scm.com/docs/diff-generate-patch), with or without its ``diff --git`` headers. A
line ends with ``\n`` and with nothing else; ``\r``, form feed, NEL and U+2028 are content.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field

from unidiff import errors, patch

from fixes.errors import ExitCode, FixesError, Problem
from fixes.hunks import Hunk

_HUNK = re.compile(r"@@ -([0-9]+)(?:,([0-9]+))? \+([0-9]+)(?:,([0-9]+))? @@(?: .*)?\n")
_MODE = re.compile(r"(?:(?:old|new|new file|deleted file) mode|index [0-9a-f.]+) ([0-7]+)\n")
_NEW_FILE = "new file mode 100644\n"
_MARKER = "\\ No newline at end of file\n"
_NOWHERE = "/dev/null"
_NEUTRAL = ("index ", "similarity index ", "dissimilarity index ")
#: Header lines of git that stand for a change which is not supported, by how they begin.
_UNSUPPORTED = {
    "deleted file mode ": ("deletion", "deletes a file"),
    "rename ": ("rename", "renames a file"),
    "copy ": ("copy", "copies a file"),
    "Binary files ": ("binary", "changes a binary file"),
    "GIT binary patch": ("binary", "changes a binary file"),
    "old mode ": ("mode", "changes a file's mode"),
    "new mode ": ("mode", "changes a file's mode"),
    "new file mode ": ("mode", "adds a file whose mode is not 100644"),
}
_KINDS = {
    "120000": ("symlink", "is about a symbolic link"),
    "160000": ("submodule", "is about a submodule"),
}


@dataclass(frozen=True)
class FileDiff:
    """What a diff does to one file.

    ``path`` is without its ``a/`` or ``b/``. The one hunk of an ``added`` file has no old
    lines, and the file's content as its new ones.
    """

    path: str
    hunks: tuple[Hunk, ...]
    added: bool


def parse(raw: bytes, where: str) -> tuple[FileDiff, ...]:
    """The files of a unified diff, in order. Lines that begin with ``#`` may stand before it.

    ``where`` names the diff in problems, which name its line as well. Raises FixesError with
    everything that is wrong.
    """
    layout = _Layout(raw, where)
    files = [_parsed(section, layout) for section in layout.sections()]
    if layout.problems:
        raise FixesError(*layout.problems)
    return tuple(files)


@dataclass
class _Section:
    """One file of a diff, by the indices of its lines: from ``---`` to the end of its hunks."""

    path: str
    added: bool
    start: int
    end: int = 0
    hunks: list[int] = field(default_factory=list)
    next_line: int = 1  # of the pre-image, behind the last hunk
    complete: bool = False  # a hunk has ended the file without a newline


def _parsed(section: _Section, layout: _Layout) -> FileDiff:
    """What unidiff reads in a section that has passed the guards."""
    text = "".join(layout.lines[section.start : section.end])
    hunks = []
    try:
        (file,) = patch.PatchSet(io.StringIO(text, newline="\n"))
        for start, hunk in zip(section.hunks, file, strict=True):
            old, new = _images(hunk)
            if old == new:
                layout.refuse("no-change", "the hunk changes nothing", start)
            hunks.append(Hunk(hunk.source_start, old, new))
    except (errors.UnidiffParseError, ValueError) as error:
        layout.refuse("unparsable", str(error), section.start)
    return FileDiff(section.path, tuple(hunks), section.added)


def _images(hunk: patch.Hunk) -> tuple[bytes, bytes]:
    old: list[bytes] = []
    new: list[bytes] = []
    images: tuple[list[bytes], ...] = ()
    for line in hunk:
        if line.line_type == "\\":
            for image in images:
                image[-1] = image[-1].removesuffix(b"\n")
            continue
        images = {"-": (old,), "+": (new,)}.get(line.line_type, (old, new))
        for image in images:
            image.append(line.value.encode("utf-8", "surrogateescape"))
    return b"".join(old), b"".join(new)


class _Layout:
    """The guards: walks a diff once, and every line must be a header's or a hunk's."""

    def __init__(self, raw: bytes, where: str) -> None:
        text = raw.decode("utf-8", "surrogateescape")
        self.lines = list(io.StringIO(text, newline="\n"))
        self.where = where
        self.problems: list[Problem] = []
        self._at = 0

    def refuse(self, kind: str, what: str, index: int | None = None) -> None:
        """Note a problem at a line, the present one unless said."""
        where = f"{self.where}:{(self._at if index is None else index) + 1}"
        self.problems.append(Problem(ExitCode.MISMATCH, kind, what, where))

    def sections(self) -> list[_Section]:
        """The files of the diff that nothing is wrong with, so far as their layout goes."""
        while self._line.startswith("#"):
            self._at += 1
        if not "".join(self.lines[self._at :]).strip():
            self.refuse("empty", "there is no diff in it")
            return []
        if not self.lines[-1].endswith("\n"):
            self.refuse("truncated", "the last line has no newline", len(self.lines) - 1)
        if not any(self._begins_file(index) for index in range(self._at, len(self.lines))):
            if any(line.startswith("*** ") for line in self.lines):
                self.refuse("context-diff", "is a context diff; make it with diff -u")
            else:
                self.refuse("not-a-diff", "has no header of a unified diff")
            return []
        if not self._begins_file(self._at):
            self.refuse("stray-text", f"stands before the diff: {self._line.rstrip()!r}")
        while not self._begins_file(self._at):
            self._at += 1
        found: dict[str, _Section] = {}
        while self._line:
            known = len(self.problems)
            start = self._at
            section = self._file()
            if section.path in found:
                self.refuse("duplicate-file", f"{section.path} is in the diff twice", start)
            if len(self.problems) == known:
                found[section.path] = section
        return list(found.values())

    @property
    def _line(self) -> str:
        """The present line, empty behind the last."""
        return self.lines[self._at] if self._at < len(self.lines) else ""

    def _begins_file(self, index: int) -> bool:
        first, *rest = self.lines[index : index + 2] or [""]
        plain = first.startswith("--- ") and "".join(rest).startswith("+++ ")
        return plain or first.startswith("diff --git ")

    def _begins_hunk(self) -> bool:
        return self._line.startswith("@@ -")

    def _stray(self, kind: str = "stray-text", what: str = "belongs to no hunk") -> None:
        """Refuse the present line, and go on at the next file or hunk."""
        here = repr(self._line.rstrip()) if self._line else "the end"
        self.refuse(kind, f"{what}: {here}")
        self._resync()

    def _resync(self) -> None:
        while self._line and not self._begins_file(self._at) and not self._begins_hunk():
            self._at += 1

    def _file(self) -> _Section:
        """One file: its headers and its hunks."""
        start, known = self._at, len(self.problems)
        git = self._line if self._line.startswith("diff --git ") else ""
        new_file = self._extended() if git else None
        section = _Section("", False, self._at)
        if self._line.startswith("--- "):
            self._names(section, git, new_file)
            while self._line and not self._begins_file(self._at):
                if self._begins_hunk():
                    self._hunk(section)
                elif self._line[0] in "+- " and self._line != "-- \n":
                    self._stray("hunk-count", "a line more than the hunk's header says")
                else:
                    self._stray()
        section.end = self._at
        if not section.hunks and len(self.problems) == known:
            self.refuse("no-hunks", "a file without hunks", start)
        return section

    def _extended(self) -> bool:
        """The lines from ``diff --git`` to ``---``. Says whether they add a file."""
        new_file = False
        kinds: set[str] = set()
        self._at += 1
        while self._line and not self._begins_file(self._at):
            mode = _MODE.fullmatch(self._line)
            start = next((start for start in _UNSUPPORTED if self._line.startswith(start)), "")
            kind, what = _UNSUPPORTED.get(start, ("stray-text", "is no header line of git"))
            if mode and mode[1] in _KINDS:
                kind, what = _KINDS[mode[1]]
            elif self._line == _NEW_FILE or self._line.startswith(_NEUTRAL):
                new_file = new_file or self._line == _NEW_FILE
                kind = ""
            if kind and kind not in kinds:
                self.refuse(kind, f"{what}: {self._line.rstrip()!r}")
                kinds.add(kind)
            self._at += 1
            while kind in ("binary", "stray-text") and self._line:
                if self._begins_file(self._at):
                    break
                self._at += 1
        return new_file

    def _names(self, section: _Section, git: str, new_file: bool | None) -> None:
        """The ``---`` and ``+++`` lines, and whether all headers are about the same file."""
        names = [self.lines[self._at + n][4:-1].partition("\t")[0] for n in (0, 1)]
        section.added = names[0] == _NOWHERE
        known = len(self.problems)
        if names[1] == _NOWHERE:
            self.refuse("deletion", "deletes a file", self._at + 1)
        for number, (name, prefix) in enumerate(zip(names, ("a/", "b/"), strict=True)):
            if name != _NOWHERE and (fault := _name_fault(name, prefix)):
                self.refuse(*fault, self._at + number)
        if len(self.problems) == known:
            section.path = path = names[1][2:]
            if not section.added and names[0][2:] != path:
                self.refuse("path-mismatch", f"{names[0]} and {names[1]} are different files")
            elif git and git != f"diff --git a/{path} b/{path}\n":
                self.refuse("path-mismatch", f"is not about the file of {git.rstrip()!r}")
            elif new_file is not None and new_file is not section.added:
                self.refuse("path-mismatch", "the headers disagree on whether the file is new")
        self._at += 2

    def _hunk(self, section: _Section) -> None:
        """One hunk: its header, and the lines that it counts."""
        start = self._at
        match = _HUNK.fullmatch(self._line)
        section.hunks.append(start)
        self._at += 1
        if not match:
            self.refuse("hunk-header", "is no header of a hunk", start)
            self._resync()
            return
        line, old, _, new = (1 if text is None else int(text) for text in match.groups())
        if self._body(section, old, new):
            self._place(section, start, line, old, new)

    def _body(self, section: _Section, old: int, new: int) -> bool:
        """Walk over a hunk's lines. Says whether they are as many as its header says."""
        if section.complete:
            self.refuse("no-newline-marker", "a hunk follows the end of the file", self._at - 1)
        last = ""
        while old or new or self._line.startswith("\\"):
            sign = " " if self._line == "\n" else self._line[:1]
            if sign == "\\":
                ends = {" ": not (old or new), "-": not old, "+": not new}.get(last, False)
                if self._line != _MARKER or not ends:
                    self.refuse("no-newline-marker", "is not behind the last line of a file")
                section.complete = True
            elif sign and sign in " +-":
                old -= sign != "+"
                new -= sign != "-"
                if old < 0 or new < 0:
                    side = "old" if old < 0 else "new"
                    self._stray("hunk-count", f"an {side} line more than the header says")
                    return False
            else:
                self._stray("hunk-count", f"{old} old and {new} new lines are missing here")
                return False
            last = sign
            self._at += 1
        return True

    def _place(self, section: _Section, start: int, line: int, old: int, new: int) -> None:
        """Whether a hunk has a place, behind the one before it."""
        if section.added:
            if line or old or len(section.hunks) > 1:
                self.refuse("hunk-header", "a new file has one hunk, from line 0", start)
        elif not old:
            self.refuse("no-old-lines", "nothing to find the place by; add context", start)
        elif line < section.next_line:
            what = f"line {line} is inside or before the hunk above it"
            self.refuse("hunk-order", what, start)
        if not new:
            self.refuse("no-new-lines", "nothing to find the way back by; add context", start)
        section.next_line = line + old


def _name_fault(name: str, prefix: str) -> tuple[str, str] | None:
    """What is wrong with a file's name: its kind and what, or None."""
    if name.startswith('"') or "\\" in name:
        return "path", f"{name} is quoted"
    if not name.isprintable():
        return "path", f"{name!r} has characters that do not print"
    if name.startswith("/"):
        return "path", f"{name} is absolute"
    if not name.startswith(prefix):
        return "prefix", f"{name} does not begin with {prefix}"
    parts = name[len(prefix) :].split("/")
    if bad := {"", ".", ".."}.intersection(parts):
        return "path", f"{name} has a component {min(bad)!r}"
    return None
