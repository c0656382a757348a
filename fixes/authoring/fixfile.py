"""``patches/<id>/fix.toml``: what is known about one fault and its fix, for all releases."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from fixes.authoring import toml
from fixes.fields import Document, Table
from fixes.lock import EVIDENCE, Reach
from fixes.lockfile import NAME

KIND = "bad-fix"
#: A shorter part of a log line is found in too many of them.
SIGN = 8
_THREAD = re.compile(r"[\w.-]+/[\w.-]+#\d+")


@dataclass(frozen=True)
class FixFile:
    """The content of a fix.toml.

    ``releases`` carry the fault, as far as known; ``removed_in`` is the upstream release that
    no longer has it, or empty. ``log`` and ``finds`` are as in the lock. ``cannot_tell`` maps a
    condition's id to what it means.
    ``reach`` are names that callers use, beyond those that the steps change.
    """

    id: str
    title: str
    symptom: str
    cause: str
    affects: str
    workaround: str
    log: tuple[tuple[str, ...], ...]
    releases: tuple[str, ...]
    removed_in: str
    threads: tuple[str, ...]
    targets: tuple[str, ...]
    requires: tuple[str, ...]
    conflicts: tuple[str, ...]
    risk: str
    drop_when: str
    wire: bool
    evidence: str
    finds: str
    cannot_tell: dict[str, str]
    reach: tuple[Reach, ...]


def parse(data: bytes, where: str, folder: str) -> FixFile:
    """Read a fix.toml that lies in ``patches/<folder>``.

    Raises FixesError, kind ``bad-fix``, with every error and its key path.
    """
    document = Document(where, KIND)
    root = document.table(toml.parse(data, where, KIND))
    probe = root.table("probe")
    fix = FixFile(
        id=root.string("id"),
        title=root.text("title"),
        symptom=root.text("symptom"),
        cause=root.text("cause"),
        affects=root.text("affects"),
        workaround=root.text("workaround"),
        log=_log(root),
        releases=versions(root, "releases"),
        removed_in=version(root, "removed_in", ""),
        threads=root.strings("threads"),
        targets=root.strings("targets"),
        requires=root.strings("requires", ()),
        conflicts=root.strings("conflicts", ()),
        risk=root.text("risk"),
        drop_when=root.text("drop_when"),
        wire=root.flag("wire", False),
        evidence=probe.choice("evidence", EVIDENCE),
        finds=probe.pattern("finds"),
        cannot_tell=probe.mapping("cannot_tell", {}),
        reach=tuple(_reach(table) for table in root.tables("reach", [])),
    )
    if fix.id and fix.id != folder:
        root.fail("id", f"is {fix.id!r}, but the folder is {folder!r}")
    if fix.id and not NAME.fullmatch(fix.id):
        root.fail("id", "is no plain name (lower case, digits, single hyphens)")
    if "targets" in root and not fix.targets:
        root.fail("targets", "is empty")
    for thread in fix.threads:
        if not _THREAD.fullmatch(thread):
            root.fail("threads", f"{thread!r} is not of the form owner/name#number")
    for key, others in (("requires", fix.requires), ("conflicts", fix.conflicts)):
        if fix.id in others:
            root.fail(key, "names the fix itself")
    if fix.removed_in in fix.releases:
        root.fail("removed_in", "is one of the releases that carry the fault")
    for condition, meaning in fix.cannot_tell.items():
        if not NAME.fullmatch(condition) or not meaning.strip():
            probe.fail("cannot_tell", f"{condition!r} is no plain name, or has no meaning")
    probe.close()
    root.close()
    document.close()
    return fix


def _log(root: Table) -> tuple[tuple[str, ...], ...]:
    """Signs of the fault; one that is a single substring may stand without brackets."""
    groups = root.groups("log")
    for index, group in enumerate(groups):
        for sign in group:
            if sign != sign.strip() or "\n" in sign:
                root.fail(f"log[{index}]", f"{sign!r} is not a part of one line")
            elif len(sign) < SIGN:
                root.fail(f"log[{index}]", f"{sign!r} is too short to be a sign of anything")
    return groups


def _reach(table: Table) -> Reach:
    module, name = table.text("module"), table.text("name")
    for key, value in (("module", module), ("name", name)):
        if value and not all(part.isidentifier() for part in value.split(".")):
            table.fail(key, f"{value!r} is no dotted name")
    table.close()
    return Reach(module, (name,))


def version(table: Table, key: str, default: str | None = None) -> str:
    """A release's version, or the default."""
    value = table.string(key, default)
    if value:
        _check_version(table, key, value)
    return value


def versions(table: Table, key: str) -> tuple[str, ...]:
    """A list of versions."""
    values = table.strings(key)
    for index, value in enumerate(values):
        _check_version(table, f"{key}[{index}]", value)
    return values


def _check_version(table: Table, key: str, value: str) -> None:
    try:
        Version(value)
    except InvalidVersion:
        table.fail(key, f"{value!r} is no version")
