"""The proof of a profile's fixes on real trees: what each probe must say of which tree.

A probe must find the fault in the pristine release and in every mutant of the fixed one, and
must not find it where the fix is in, alone (with what it requires) or with its bundle. Of a
fix that is upstream it must find nothing from the start. Where it finds the fault, it has to say
so in the words that fix.toml has for it: another fault is no proof.

The trees of published wheels do not hold a target that has none: its fixes are proved where they
do, in a test on trees of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from fixes import plan
from fixes.authoring import trials
from fixes.authoring.images import module_name
from fixes.authoring.mutants import mutants
from fixes.catalogue import Catalogue
from fixes.child import ABSENT, CANNOT_TELL, PRESENT
from fixes.errors import FixesError
from fixes.lock import Fix, Lock, Need
from fixes.origin import paths_of

_SAID = {None: "no answer", ABSENT: "absent", PRESENT: "present", CANNOT_TELL: "cannot tell"}

#: The bytes of some files of a tree by path; None for no file.
Images = Mapping[str, bytes | None]


class Kind(str, Enum):
    """What is in a tree: nothing, a bundle, one fix, or one fix that is not reached."""

    PRISTINE = "pristine"
    BUNDLE = "bundle"
    ALONE = "alone"
    MUTANT = "mutant"


@dataclass(frozen=True)
class Case:
    """One probe on one tree. ``name`` is the bundle, or the function that is not reached.

    ``finds`` is a regular expression for what the probe says of the fault.
    """

    tree: str
    fix: str
    kind: Kind
    name: str
    expected: int
    finds: str = ""

    @property
    def id(self) -> str:
        """A name for reports."""
        return "-".join(filter(None, (self.tree, self.fix, self.kind.value, self.name)))


@dataclass(frozen=True)
class Result:
    """What a probe said, and whether that is as it must be.

    ``first`` is what came of a first try that brought no answer.
    """

    case: Case
    answer: trials.Answer
    first: trials.Answer | None = None

    @property
    def fault(self) -> str:
        """What is wrong with the answer; empty if the probe said what it must say."""
        code, reason = self.answer.code, self.answer.reason
        if code != self.case.expected:
            return f"{_SAID[code]}, must say {_SAID[self.case.expected]}: {reason}"
        if code == PRESENT and not re.search(self.case.finds, reason):
            return f"finds something else than {self.case.finds!r}: {reason}"
        return ""

    @property
    def proved(self) -> bool:
        """Whether the probe said what it must say."""
        return not self.fault


@dataclass(frozen=True)
class _Variant:
    """A tree to make: the files that differ from the pristine one, and what to ask there."""

    label: str
    images: Images
    modules: tuple[str, ...]
    cases: tuple[Case, ...]


def without_wheels(lock: Lock) -> dict[str, str]:
    """The fixes that no published wheel can prove, each with its target that has none."""
    return {
        fix.id: target
        for fix in lock.fixes.values()
        for target in fix.targets
        if target in lock.scope_locked
    }


def prove(
    lock: Lock,
    trees: Mapping[str, Path],
    python: str,
    catalogue: Catalogue,
    *,
    fixes: Collection[str] = (),
    jobs: int | None = None,
) -> tuple[Result, ...]:
    """Ask every probe of a profile (or of ``fixes``) about every tree that it must tell apart.

    ``trees`` are pristine site-packages by a label, with the Python files of each target;
    they are read and linked to. Where a tree does not hold a target without wheels, nothing is
    asked of its fixes (``without_wheels``). A mutant whose files are those of one in an earlier
    tree is not made again. ``python`` is an interpreter with what they import. Probes with time
    limits run ``jobs`` trees at a time; one that brings no answer then is asked once more when
    nothing else runs.

    Raises FixesError where a fix does not apply to a tree, and with kind ``no-answer`` where
    the interpreter gives none; ScopeError for a function that no mutant can be made of.
    """
    known: set[tuple[object, ...]] = set()
    variants = [
        variant
        for label, folder in trees.items()
        for variant in _variants(lock, label, folder, fixes, known)
    ]
    probes = {fix.id: catalogue.read(fix.probe.source) for fix in lock.fixes.values() if fix.probe}
    targets = tuple(dict.fromkeys(file.target for file in lock.files.values()))
    with TemporaryDirectory(prefix="vllm-fixes-") as scratch:
        tried = []
        for number, variant in enumerate(variants):
            folder = Path(scratch, str(number))
            overlay(trees[variant.label], folder, variant.images)
            asked = tuple(case.fix for case in variant.cases)
            tried.append(trials.Trial(str(folder), variant.label, variant.modules, asked))
        answers = trials.run(python, tried, probes, targets, jobs=jobs)
        cases = [(case, at) for at, variant in enumerate(variants) for case in variant.cases]
        results = [Result(case, answers[at][case.fix]) for case, at in cases]
        late = [index for index, result in enumerate(results) if result.answer.code is None]
        alone = [replace(tried[cases[i][1]], probes=(results[i].case.fix,)) for i in late]
        again = trials.run(python, alone, probes, targets, jobs=1) if late else []
        for index, answer in zip(late, again, strict=True):
            first = results[index]
            results[index] = Result(first.case, answer[first.case.fix], first.answer)
    return tuple(results)


def overlay(base: Path, folder: Path, images: Images) -> None:
    """Make a tree that is ``base`` but for some files; all else is links into ``base``.

    Bytecode of folders that differ is left out.
    """
    base = base.resolve()
    own = {parent for path in images for parent in PurePosixPath(path).parents}
    for part in sorted(own | {PurePosixPath()}):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(base / part) if (base / part).is_dir() else ():
            here = part / entry.name
            if here not in own and str(here) not in images and entry.name != "__pycache__":
                (folder / here).symlink_to(entry.path)
    for path, data in images.items():
        if data is not None:
            (folder / path).write_bytes(data)


def _variants(
    lock: Lock, label: str, folder: Path, chosen: Collection[str], known: set[tuple[object, ...]]
) -> Iterator[_Variant]:
    """The trees to make of one, the pristine one first. ``known``: files that earlier trees had."""
    files = {path: folder / path for path in lock.files}
    pristine = {path: file.read_bytes() if file.exists() else None for path, file in files.items()}
    lacking = {fix for fix, of in without_wheels(lock).items() if not (folder / of).is_dir()}
    probed = {
        fix.id: fix
        for fix in lock.fixes.values()
        if fix.probe and fix.need is not Need.NOT_NEEDED and (not chosen or fix.id in chosen)
        if fix.id not in lacking
    }

    def variant(images: Images, kind: Kind, name: str, among: Collection[str]) -> _Variant:
        asked = [fix for fix in probed.values() if fix.id in among]
        broken = kind in (Kind.PRISTINE, Kind.MUTANT)
        cases = (
            Case(
                label,
                fix.id,
                kind,
                name,
                PRESENT if broken and fix.need is Need.OFFERED else ABSENT,
                fix.probe.finds,
            )
            for fix in asked
            if fix.probe
        )
        return _Variant(label, images, _modules(asked), tuple(cases))

    yield variant({}, Kind.PRISTINE, "", probed)
    for bundle in lock.bundles.values():
        if not probed.keys().isdisjoint(bundle.members):
            members = [fix for fix in bundle.members if fix not in lacking]
            images = _applied(lock, pristine, members)
            yield variant(images, Kind.BUNDLE, bundle.name, members)
    for fix in probed.values():
        if fix.need is not Need.OFFERED:
            continue
        before = {**pristine, **_applied(lock, pristine, fix.requires)}
        images = _applied(lock, pristine, [fix.id])
        if (key := (fix.id, *sorted(images.items()))) not in known:
            known.add(key)
            yield variant(images, Kind.ALONE, "", [fix.id])
        for path, data in images.items():
            if path.endswith(".py") and data is not None:
                for name, mutant in mutants(before[path], data).items():
                    made = {**images, path: mutant}
                    if (key := (fix.id, *sorted(made.items()))) not in known:
                        known.add(key)
                        yield variant(made, Kind.MUTANT, name, [fix.id])


def _modules(fixes: Collection[Fix]) -> tuple[str, ...]:
    paths = dict.fromkeys(path for fix in fixes for path in paths_of(fix))
    return tuple(module_name(path) for path in paths if path.endswith(".py"))


def _applied(lock: Lock, pristine: Images, fixes: Collection[str]) -> dict[str, bytes | None]:
    """The files that some fixes, with all that they require, change. Raises FixesError."""
    made = plan.make(lock, lock.closure(fixes), pristine, None)
    if made.problems:
        raise FixesError(*made.problems)
    return {file.path: file.content for file in made.writes}
