"""Reading a lock, which is JSON.

The runner trusts nothing in the file: shapes, key names, paths, hunk order and every name
that refers to another are checked again on each load. Bytes are written as text, decoded
as UTF-8 with ``surrogateescape``.
"""

from __future__ import annotations

import hashlib
import json
import re

from fixes import paths
from fixes.edits import NEEDS, Edit
from fixes.errors import FixesError
from fixes.fields import Document, Table
from fixes.hunks import Hunk
from fixes.lock import (
    EVIDENCE,
    FORMAT,
    PARTS,
    PRISTINE_PROBE,
    Bundle,
    FileChange,
    Fix,
    Lock,
    Need,
    PinnedFile,
    Platform,
    Probe,
    Reach,
    Scope,
    Step,
)

NAME = re.compile(r"[a-z0-9]+(?:[.-][a-z0-9]+)*")
SHA256 = re.compile(r"[0-9a-f]{64}")


def load(data: bytes, where: str) -> Lock:
    """Read a lock; ``where`` names the file in messages.

    Raises FixesError, kind ``bad-lock``, with everything that is wrong.
    """
    document = Document(where, "bad-lock")
    root = document.table(_json(data, document))
    if root.number("format") != FORMAT:
        what = f"is not {FORMAT}, the only one that this version of vllm-fixes reads"
        document.fail("format", what, "use the version that the lock came with")
        raise FixesError(document.problems[-1])
    return _Reader(document, root, hashlib.sha256(data).hexdigest()).lock


def _json(data: bytes, document: Document) -> object:
    """The JSON value; a key that occurs twice is refused, as readers disagree on its value."""

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(items)
        if len(table) != len(items):
            names = [name for name, _ in items]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"key {twice[0]!r} occurs twice in one table")
        return table

    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        document.fail("", f"is not JSON: {error}", "run: vllm-fixes lock")
        raise FixesError(*document.problems) from None


class _Reader:
    """One lock being read: every part is checked against the names of the others."""

    def __init__(self, document: Document, root: Table, digest: str) -> None:
        self.authored = _hashes(root.table("authored"))
        self.wheels = _hashes(root.table("wheels"))
        self.order = {name: at for at, name in enumerate(root.table("fixes"))}
        self.files = {name: self._file(name, table) for name, table in root.named("files")}
        fixes = {name: self._fix(name, table) for name, table in root.named("fixes")}
        bundles = {name: self._bundle(name, table) for name, table in root.named("bundles")}
        platforms = tuple(self._platform(*item) for item in root.named("platforms"))
        self.lock = Lock(
            profile=root.string("profile"),
            release=root.text("release"),
            authored=self.authored,
            wheels=self.wheels,
            files=self.files,
            fixes=fixes,
            bundles=bundles,
            platforms=platforms,
            digest=digest,
        )
        self._is_authored(root, "profile", f"profiles/{self.lock.profile}.toml")
        root.close()
        document.close()

    def _is_authored(self, table: Table, key: str, path: str) -> None:
        if path not in self.authored:
            table.fail(key, f"'authored' does not list {path}")

    def _source(self, table: Table, fix: str) -> str:
        """An authored file in the fix's folder."""
        source = table.string("source")
        if not source.startswith(f"patches/{fix}/"):
            table.fail("source", f"is not under patches/{fix}/")
        self._is_authored(table, "source", source)
        return source

    def _fix_ids(self, table: Table, key: str) -> tuple[str, ...]:
        """Names of fixes, all of them in the lock."""
        names = table.strings(key)
        for at, name in enumerate(names):
            if name not in self.order:
                table.fail(f"{key}[{at}]", f"{name!r} is no fix of this lock")
        return names

    def _file(self, path: str, table: Table) -> PinnedFile:
        target = table.string("target")
        if fault := paths.fault(path):
            table.fail("", fault)
        elif not (target.isidentifier() and path.startswith(f"{target}/")):
            table.fail("", f"is not under {target}/, its target's package")
        pristine = table.table("pristine")
        pinned = PinnedFile(
            target=target,
            path=path,
            pristine={name: pristine.strings(name) for name in pristine},
            post={
                (pre, fixes): post
                for pre, fixes, post in (self._post(item) for item in table.tables("post"))
            },
        )
        for sha256, wheels in pinned.pristine.items():
            if not SHA256.fullmatch(sha256):
                pristine.fail(sha256, "is no sha256 in lower case")
            for wheel in wheels:
                if wheel not in self.wheels:
                    pristine.fail(sha256, f"'wheels' does not list {wheel}")
        for pre, _ in pinned.post:
            if pre not in (pinned.pristine or ("",)):
                table.fail("post", f"{pre!r} is no pre-image of this file")
        table.close()
        return pinned

    def _post(self, table: Table) -> tuple[str, tuple[str, ...], str]:
        fixes = self._fix_ids(table, "fixes")
        places = [self.order.get(name, 0) for name in fixes]
        if not fixes or places != sorted(places):
            table.fail("fixes", "must name fixes, in the order of application")
        pre, post = table.string("pre"), _hash(table, "post")
        table.close()
        return pre, fixes, post

    def _fix(self, name: str, table: Table) -> Fix:
        if not NAME.fullmatch(name):
            table.fail("", "is no plain name")
        self._is_authored(table, "", f"patches/{name}/fix.toml")
        fix = Fix(
            id=name,
            title=table.text("title"),
            symptom=table.text("symptom"),
            cause=table.text("cause"),
            affects=table.text("affects"),
            workaround=table.text("workaround"),
            log=table.groups("log"),
            threads=table.strings("threads"),
            releases=table.strings("releases"),
            removed_in=table.string("removed_in"),
            targets=table.strings("targets"),
            requires=self._fix_ids(table, "requires"),
            conflicts=self._fix_ids(table, "conflicts"),
            risk=table.text("risk"),
            drop_when=table.text("drop_when"),
            wire=table.flag("wire"),
            need=Need(table.choice("need", [need.value for need in Need]) or Need.OFFERED),
            why=table.string("why"),
            steps=tuple(self._step(name, step) for step in table.tables("steps")),
            reach=tuple(self._reach(reach) for reach in table.tables("reach")),
            probe=self._probe(name, table.table("probe")),
            pristine_probe=table.choice("pristine_probe", PRISTINE_PROBE),
        )
        if (fix.need is Need.OFFERED) != bool(fix.steps):
            table.fail("steps", f"do not go with need {fix.need.value!r}")
        if fix.need is Need.UPSTREAM and fix.pristine_probe != "absent":
            table.fail("pristine_probe", "must be 'absent' for a fix that upstream has")
        if fix.need is Need.OFFERED and fix.pristine_probe == "absent":
            table.fail("pristine_probe", "is 'absent', so there is nothing to fix")
        for other in fix.requires:
            if self.order.get(other, -1) >= self.order[name]:
                table.fail("requires", f"{other!r} comes later in the order of application")
        for target in {change.target for step in fix.steps for change in step.changes}:
            if target not in fix.targets:
                table.fail("targets", f"lack {target!r}, which the steps touch")
        table.close()
        return fix

    def _step(self, fix: str, table: Table) -> Step:
        step = Step(
            kind=table.choice("kind", ("diff", "edit")),
            source=self._source(table, fix),
            changes=tuple(self._change(change) for change in table.tables("changes")),
            took=tuple(table.strings("took")),
        )
        if not step.changes:
            table.fail("changes", "is empty")
        elif len({change.path for change in step.changes}) < len(step.changes):
            table.fail("changes", "hold a path twice")
        table.close()
        return step

    def _change(self, table: Table) -> FileChange:
        path, target = table.string("path"), table.string("target")
        pinned = self.files.get(path)
        if not pinned or pinned.target != target:
            table.fail("path", f"'files' does not list it for target {target!r}")
        if "content" in table:
            if pinned and pinned.pristine:
                table.fail("content", "would replace a file of the release")
            change = FileChange(target, path, (), table.data("content"))
        else:
            edits = tuple(self._edit(path, edit) for edit in table.tables("edits"))
            scopes = tuple(self._scope(scope) for scope in table.tables("scopes"))
            change = FileChange(target, path, self._hunks(table), None, edits, scopes)
            if not change.hunks and not edits:
                table.fail("hunks", "is empty")
        table.close()
        return change

    @staticmethod
    def _edit(path: str, table: Table) -> Edit:
        edit = Edit(
            file=path,
            op=table.choice("op", NEEDS),
            scope=table.string("scope"),
            anchor=table.string("anchor"),
            new=table.string("new"),
            count=table.number("count"),
            after=table.string("after"),
            name=table.string("name"),
            relies=table.strings("relies"),
        )
        for key in sorted(NEEDS.get(edit.op, set()) - {"file"}):
            if not getattr(edit, key):
                table.fail(key, f"is empty, and {edit.op} needs it")
        table.close()
        return edit

    @staticmethod
    def _scope(table: Table) -> Scope:
        scope = Scope(table.string("name"), table.choice("part", PARTS), _hash(table, "sha256"))
        table.close()
        return scope

    @staticmethod
    def _hunks(table: Table) -> tuple[Hunk, ...]:
        hunks = []
        line, whole = 1, True
        for item in table.tables("hunks"):
            known = len(item.document.problems)
            hunk = Hunk(item.number("line"), item.data("old"), item.data("new"))
            if len(item.document.problems) > known:
                continue
            if not hunk.old:
                item.fail("old", "is empty")
            if hunk.line < line:
                item.fail("line", "is inside or before the hunk above it")
            if not whole:
                item.fail("", "follows a hunk that ends the file")
            line = hunk.line + hunk.old.count(b"\n")
            whole = all(text[-1:] in (b"", b"\n") for text in (hunk.old, hunk.new))
            item.close()
            hunks.append(hunk)
        return tuple(hunks)

    @staticmethod
    def _reach(table: Table) -> Reach:
        reach = Reach(table.text("module"), table.strings("names"))
        table.close()
        return reach

    def _probe(self, fix: str, table: Table) -> Probe:
        probe = Probe(
            source=self._source(table, fix),
            evidence=table.choice("evidence", EVIDENCE),
            finds=table.pattern("finds"),
            cannot_tell=table.strings("cannot_tell"),
        )
        table.close()
        return probe

    def _bundle(self, name: str, table: Table) -> Bundle:
        if not NAME.fullmatch(name) or name in self.order:
            table.fail("", "is no plain name, or the name of a fix")
        bundle = Bundle(name, table.text("title"), self._fix_ids(table, "members"))
        table.close()
        return bundle

    def _platform(self, name: str, table: Table) -> Platform:
        platform = Platform(
            name=name,
            package=table.text("package"),
            packages=table.strings("packages"),
            devices=table.strings("devices"),
            fixes=self._fix_ids(table, "fixes"),
            why=table.string("why"),
            refuses=table.mapping("refuses"),
        )
        table.close()
        return platform


def _hash(table: Table, key: str) -> str:
    value = table.string(key)
    if value and not SHA256.fullmatch(value):
        table.fail(key, "expected a sha256 in lower case")
    return value


def _hashes(table: Table) -> dict[str, str]:
    """A table of file names and their sha256."""
    for name in table:
        if fault := paths.fault(name):
            table.fail(name, fault)
    return {name: _hash(table, name) for name in table}
