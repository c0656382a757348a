"""The lock: a profile resolved against the pristine published wheels.

``vllm-fixes lock`` makes it; every other verb reads it. It holds each fix's steps as byte
hunks, the accepted pre-images of each file, the post-images of each fix and bundle, and the
sha256 of every authored file it was made from.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from fixes.hunks import Hunk

if TYPE_CHECKING:
    from fixes.edits import Edit

FORMAT = 1

#: What a probe shows: it executes the fault, or it can only look at how the code is built.
EVIDENCE = ("behaviour", "structure")

#: What a probe can say of the pristine release; the empty string: it was not asked.
PRISTINE_PROBE = ("", "present", "absent", "cannot-tell")


class Need(str, Enum):
    """What a release has to do with a fix, by the profile."""

    OFFERED = "offered"
    UPSTREAM = "already-upstream"
    NOT_NEEDED = "not-needed"


#: What of a definition is pinned: all of it; what callers of a function must know; what a
#: class inherits; a class but for the functions and classes in it.
PARTS = ("whole", "signature", "bases", "header")


class Scope(NamedTuple):
    """A part of the definition with a qualified name, by its canonical syntax's sha256."""

    name: str
    part: str
    sha256: str


class FileChange(NamedTuple):
    """What one step does to one file: hunks, or the content of a file that it adds.

    ``edits`` are the source-level edits that the hunks were made from, ``scopes`` what they
    rely on: where both are there, a file of other bytes in which all scopes are the same
    syntax can be accepted, and is edited instead. A target without a published wheel has
    no hunks at all.
    """

    target: str
    path: str
    hunks: tuple[Hunk, ...]
    content: bytes | None = None
    edits: tuple[Edit, ...] = ()
    scopes: tuple[Scope, ...] = ()


class Step(NamedTuple):
    """A unified diff or a source-level edit, resolved. ``took`` names the alternatives used."""

    kind: str
    source: str
    changes: tuple[FileChange, ...]
    took: tuple[str, ...] = ()


class Reach(NamedTuple):
    """Names in a module (``Class.method``) that must be the post-image's code when imported."""

    module: str
    names: tuple[str, ...]


class Probe(NamedTuple):
    """The program that shows the fault or its absence. ``cannot_tell``: condition ids.

    ``finds`` is a regular expression for what it says of the fault, and of nothing else.
    """

    source: str
    evidence: str
    finds: str
    cannot_tell: tuple[str, ...] = ()


class Fix(NamedTuple):
    """One fault removed, as this release needs it.

    ``log`` are signs of the fault in a server's log: groups of substrings that must all occur,
    each of them within one line. ``pristine_probe`` is what the probe said of the fault on the
    pristine reference wheel when the lock was made: one of PRISTINE_PROBE.
    """

    id: str
    title: str
    symptom: str
    cause: str
    affects: str
    workaround: str
    log: tuple[tuple[str, ...], ...]
    threads: tuple[str, ...]
    releases: tuple[str, ...]
    removed_in: str
    targets: tuple[str, ...]
    requires: tuple[str, ...]
    conflicts: tuple[str, ...]
    risk: str
    drop_when: str
    wire: bool
    need: Need
    why: str
    steps: tuple[Step, ...] = ()
    reach: tuple[Reach, ...] = ()
    probe: Probe | None = None
    pristine_probe: str = ""


class Bundle(NamedTuple):
    """A named list of fixes."""

    name: str
    title: str
    members: tuple[str, ...]


class Platform(NamedTuple):
    """A hardware platform whose plugin a bundle must serve where it is installed.

    ``package`` is the plugin's import package; ``packages`` and ``devices`` (glob patterns)
    are signs of the platform; ``fixes`` are the bundle members for it, none if not offered.
    ``refuses`` are releases of the plugin that do not go with this one of vLLM, and why.
    """

    name: str
    package: str
    packages: tuple[str, ...]
    devices: tuple[str, ...]
    fixes: tuple[str, ...]
    why: str
    refuses: dict[str, str]


class PinnedFile(NamedTuple):
    """A file that some fix touches.

    ``pristine`` maps each accepted pre-image's sha256 to the wheels that have it (empty for a
    file that a fix adds). ``post`` maps ``(pre-image sha256, fix ids in order)`` to the
    post-image's sha256; the pre-image of an added file is the empty string. The ids are those
    of the fixes that touch this file, whatever else their set holds: there is an entry for
    each fix alone (with what it requires), each pair, each bundle, and each prefix of these.
    """

    target: str
    path: str
    pristine: dict[str, tuple[str, ...]]
    post: dict[tuple[str, tuple[str, ...]], str]


class _Content(NamedTuple):
    profile: str
    release: str
    authored: dict[str, str]
    wheels: dict[str, str]
    files: dict[str, PinnedFile]
    fixes: dict[str, Fix]
    bundles: dict[str, Bundle]
    platforms: tuple[Platform, ...]
    digest: str = ""


class Lock(_Content):
    """A whole lock. ``fixes`` is in the order of application, ``digest`` the file's sha256.

    Named tuples cost a run that has nothing to do less than dataclasses; a class below one
    can keep what it computed.
    """

    @cached_property
    def changes(self) -> dict[str, dict[str, tuple[FileChange, ...]]]:
        """Path to fix id to what the fix does there; fixes in the order of application."""
        found: dict[str, dict[str, tuple[FileChange, ...]]] = {}
        for fix in self.fixes.values():
            for step in fix.steps:
                for change in step.changes:
                    of_path = found.setdefault(change.path, {})
                    of_path[fix.id] = (*of_path.get(fix.id, ()), change)
        return found

    @cached_property
    def scope_locked(self) -> frozenset[str]:
        """The targets without a published wheel: their files are pinned by scope alone."""
        changes = (
            change
            for by_fix in self.changes.values()
            for all_ in by_fix.values()
            for change in all_
        )
        return frozenset(c.target for c in changes if c.edits and not c.hunks)

    def closure(self, names: Iterable[str]) -> tuple[str, ...]:
        """Fixes with all that they require, in the order of application."""
        wanted = dict.fromkeys(names)
        todo = list(wanted)
        while todo:
            for other in self.fixes[todo.pop()].requires:
                if other not in wanted:
                    wanted[other] = None
                    todo.append(other)
        return tuple(name for name in self.fixes if name in wanted)
