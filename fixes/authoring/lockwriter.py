"""Writing a lock as JSON: what ``fixes.lockfile`` reads."""

from __future__ import annotations

import json
from typing import NamedTuple

from fixes.lock import FORMAT, FileChange, Fix, Lock, PinnedFile


def dump(lock: Lock) -> bytes:
    """Write a lock: ``load`` gives it back, but for the digest.

    What has no order is sorted; fixes stay in the order of application.
    """
    document = {
        "format": FORMAT,
        "profile": lock.profile,
        "release": lock.release,
        "authored": dict(sorted(lock.authored.items())),
        "wheels": dict(sorted(lock.wheels.items())),
        "fixes": {name: _dump_fix(fix) for name, fix in lock.fixes.items()},
        "bundles": {name: _without(b, "name") for name, b in sorted(lock.bundles.items())},
        "platforms": {item.name: _without(item, "name") for item in lock.platforms},
        "files": {path: _dump_file(pinned) for path, pinned in sorted(lock.files.items())},
    }
    return json.dumps(document, indent=1).encode("ascii") + b"\n"


def _without(item: NamedTuple, *names: str) -> dict[str, object]:
    return {name: value for name, value in item._asdict().items() if name not in names}


def _dump_file(pinned: PinnedFile) -> dict[str, object]:
    posts = [
        {"pre": pre, "fixes": fixes, "post": post}
        for (pre, fixes), post in sorted(pinned.post.items())
    ]
    pristine = dict(sorted(pinned.pristine.items()))
    return {"target": pinned.target, "pristine": pristine, "post": posts}


def _dump_fix(fix: Fix) -> dict[str, object]:
    table = _without(fix, "id", "steps", "reach", "probe")
    table["probe"] = _without(fix.probe) if fix.probe else None
    table["reach"] = [_without(reach) for reach in fix.reach]
    table["steps"] = [
        {**_without(step), "changes": [_dump_change(change) for change in step.changes]}
        for step in fix.steps
    ]
    return table


def _dump_change(change: FileChange) -> dict[str, object]:
    table: dict[str, object] = {"target": change.target, "path": change.path}
    if change.content is not None:
        return {**table, "content": _text(change.content)}
    table["hunks"] = [
        {"line": h.line, "old": _text(h.old), "new": _text(h.new)} for h in change.hunks
    ]
    unsaid = ("file", "alternatives")  # the change's path; and each is whole
    table["edits"] = [
        {key: value for key, value in vars(edit).items() if key not in unsaid}
        for edit in change.edits
    ]
    table["scopes"] = [_without(scope) for scope in change.scopes]
    return table


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
