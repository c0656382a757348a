"""``profiles/<target>.pins.json``: what is known of a target that has no published wheel.

It is made from trees of its releases (``vllm-fixes pin``) and stands for them when a lock is
made: the sha256 of each file that fixes touch, and the scopes that their edits rely on. Where
the trees differ in a scope, each of its hashes is pinned. No code of the target is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fixes import editing, functions, scopes
from fixes.authoring.images import module_name
from fixes.digest import sha256
from fixes.edits import Edit, EditError
from fixes.errors import ExitCode, FixesError, Problem
from fixes.fields import Document, Table
from fixes.lock import PARTS, Scope
from fixes.syntax import ScopeError

FORMAT = 1
KIND = "bad-pins"


@dataclass(frozen=True)
class Pins:
    """Everything pinned of one target.

    ``sources`` are the labels of the trees, each with its version or commit. ``files`` maps a
    path to the sha256 of each tree's file and the labels that have it. ``steps`` holds the
    sha256 of every step that the rest was made from; ``scopes`` and ``reach`` are by fix, then
    by path: what its edits rely on, and the names that they change.
    """

    target: str
    sources: dict[str, str]
    steps: dict[str, str]
    files: dict[str, dict[str, tuple[str, ...]]]
    scopes: dict[str, dict[str, tuple[Scope, ...]]]
    reach: dict[str, dict[str, tuple[str, ...]]]


def name(target: str) -> str:
    """The path of a target's pins in the authored root."""
    return f"profiles/{target}.pins.json"


def make(
    target: str,
    sources: Mapping[str, tuple[str, Path]],
    edits: Mapping[str, Sequence[Edit]],
    steps: Mapping[str, str],
) -> Pins:
    """Pin trees, by label: a version or commit, and the folder that holds the package.

    ``edits`` are those of each fix. Raises FixesError where an edit does not fit a tree, alone
    or with those of the other fixes before it.
    """
    problems: list[Problem] = []
    files: dict[str, dict[str, tuple[str, ...]]] = {}
    pinned: dict[str, dict[str, dict[Scope, None]]] = {}
    reach: dict[str, dict[str, dict[str, None]]] = {}
    for label, (_, folder) in sources.items():
        made: dict[str, bytes] = {}

        def read(path: str, folder: Path = folder, made: dict[str, bytes] = made) -> bytes | None:
            file = folder / path
            return made[path] if path in made else file.read_bytes() if file.exists() else None

        for fix, every in edits.items():
            try:
                found = editing.resolve_all(read, every)
                for path, resolution in found.items():
                    pristine = folder / path
                    before = pristine.read_bytes() if pristine.exists() else None
                    if before is not None:
                        labels = files.setdefault(path, {})
                        labels[sha256(before)] = (*labels.get(sha256(before), ()), label)
                        of_path = pinned.setdefault(fix, {}).setdefault(path, {})
                        of_path.update(dict.fromkeys(scopes.pins(before, resolution.edits)))
                    names = functions.changed(read(path), resolution.data)
                    reach.setdefault(fix, {}).setdefault(path, {}).update(dict.fromkeys(names))
                    made[path] = resolution.data
            except EditError as error:
                for one in (error, *error.also):
                    where = f"{fix}: edit[{one.index}] in {label}"
                    problems.append(Problem(ExitCode.MISMATCH, one.kind, one.message, where))
            except (ScopeError, SyntaxError) as error:
                problems.append(Problem(ExitCode.MISMATCH, KIND, str(error), f"{fix} in {label}"))
    if problems:
        raise FixesError(*problems)
    return Pins(
        target,
        {label: version for label, (version, _) in sources.items()},
        dict(steps),
        {
            path: {sha: tuple(dict.fromkeys(names)) for sha, names in known.items()}
            for path, known in files.items()
        },
        {
            fix: {path: tuple(found) for path, found in by_path.items()}
            for fix, by_path in pinned.items()
        },
        {
            fix: {path: tuple(found) for path, found in by_path.items()}
            for fix, by_path in reach.items()
        },
    )


def dump(pins: Pins) -> bytes:
    """Pins as a file; ``load`` gives them back."""
    document = {
        "format": FORMAT,
        "target": pins.target,
        "sources": pins.sources,
        "steps": dict(sorted(pins.steps.items())),
        "files": {path: dict(sorted(known.items())) for path, known in sorted(pins.files.items())},
        "scopes": {
            fix: {path: [scope._asdict() for scope in found] for path, found in by_path.items()}
            for fix, by_path in pins.scopes.items()
        },
        "reach": pins.reach,
    }
    return json.dumps(document, indent=1).encode("ascii") + b"\n"


def load(data: bytes, where: str) -> Pins:
    """Read pins. Raises FixesError, kind ``bad-pins``, with everything that is wrong."""
    document = Document(where, KIND)
    try:
        root = document.table(json.loads(data))
    except ValueError as error:
        raise FixesError(Problem(ExitCode.MISMATCH, KIND, f"is not JSON: {error}", where)) from None
    if root.number("format") != FORMAT:
        root.fail("format", f"is not {FORMAT}")
    pins = Pins(
        target=root.string("target"),
        sources=root.mapping("sources"),
        steps=root.mapping("steps"),
        files={
            path: {sha: table.strings(sha) for sha in table} for path, table in root.named("files")
        },
        scopes={
            fix: {path: tuple(_scopes(by_path.tables(path))) for path in by_path}
            for fix, by_path in root.named("scopes")
        },
        reach={
            fix: {path: by_path.strings(path) for path in by_path}
            for fix, by_path in root.named("reach")
        },
    )
    root.close()
    document.close()
    return pins


def _scopes(tables: Iterable[Table]) -> Iterable[Scope]:
    for table in tables:
        yield Scope(table.string("name"), table.choice("part", PARTS), table.string("sha256"))
        table.close()


def modules(pins: Pins, fix: str) -> dict[str, tuple[str, ...]]:
    """The names that a fix changes, by module."""
    return {module_name(path): found for path, found in pins.reach.get(fix, {}).items()}
