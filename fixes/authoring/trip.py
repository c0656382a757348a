"""The command line on a private copy of a tree: apply, verify, apply again, revert.

As an operator runs it: ``fixes/apply_all.py`` as a process, with ``--tree`` and ``--python``.
What it says is compared with the lock, and all files with those of before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fixes
from fixes import plan
from fixes.authoring.results import OF_SETS, Cell
from fixes.errors import FixesError
from fixes.lock import Lock, Need
from fixes.state import Level

#: A file or folder: its mode, and its sha256 or where its link leads.
_Content = dict[str, tuple[int, str]]
#: What a run writes beside the fixed files: RECORD, and the state (docs/concepts.md).
_BOOKS = (".dist-info/RECORD", ".dist-info/fixes-applied.json")

_IMPORTS = """
import importlib, json, os, sys
sys.path.insert(0, sys.argv[1])
missing = []
for module in sys.argv[2:]:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing.append(error.name or "")
    except BaseException:
        pass
print("\\n" + json.dumps(missing), flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Trip:
    """A set of fixes on its way into a tree and out of it. ``names`` go on the command line.

    ``tree`` is a pristine site-packages, which is copied; ``profiles`` the authored root.
    ``level`` is how far its files are verified each time: an import takes long.
    """

    name: str
    names: tuple[str, ...]
    lock: Lock
    tree: Path
    python: str
    profiles: Path
    level: Level = Level.PROBE

    def take(self, copy: Path) -> tuple[Level, list[Cell]]:
        """The level that ``apply`` reached, and a cell for each column that the level has.

        ``copy`` is a folder to make. Behind the first cell that fails nothing is tried.
        """
        shutil.copytree(self.tree, copy, symlinks=True)
        run = _Run(self, copy, _content(copy))
        cells: list[Cell] = []
        for column, step in zip(OF_SETS, run.steps(), strict=True):
            if step is None:
                continue
            fault = "" if not cells or not cells[-1].fault else "not reached"
            began = time.monotonic()
            fault = fault or step()
            cells.append(Cell(self.name, column, "", fault, time.monotonic() - began))
        return run.level, cells

    @property
    def fixes(self) -> tuple[str, ...]:
        """The fixes that the names stand for."""
        bundles = self.lock.bundles
        return tuple(
            fix
            for name in self.names
            for fix in (bundles[name].members if name in bundles else (name,))
        )


class _Run:
    """The steps of a trip; each gives what is wrong, or nothing."""

    def __init__(self, trip: Trip, copy: Path, pristine: _Content) -> None:
        self._trip, self._copy, self._pristine = trip, copy, pristine
        self._applied: dict[str, Any] = {}
        self._verify = ("--verify", trip.level.word)
        self.level = Level.NONE

    def steps(self) -> tuple[Callable[[], str] | None, ...]:
        """One for each column of a set, in that order; None for a level that is not asked."""
        return (
            self._apply,
            self._bytes,
            self._reaching(Level.IMPORT),
            self._reaching(Level.PROBE),
            self._again,
            self._revert,
        )

    def _apply(self) -> str:
        self._applied = self._say("apply", *self._trip.names, *self._verify)
        if fault := _refused(self._applied):
            left = _difference(self._pristine, _content(self._copy), "refused")
            return "; ".join(filter(None, (fault, left)))
        return self._verdicts("applied")

    def _verdicts(self, offered: str) -> str:
        told = {line["id"]: line["verdict"] for line in self._applied["fixes"]}
        for name in self._trip.fixes:
            need = self._trip.lock.fixes[name].need
            wanted = offered if need is Need.OFFERED else need.value
            if told.get(name) != wanted:
                return f"{name} is {told.get(name)}, must be {wanted}"
        return ""

    def _bytes(self) -> str:
        found = _content(self._copy)
        wanted = {**self._pristine, **self._images(found)}
        books = [path for path in found if path.endswith(_BOOKS)]
        for path in books:
            wanted[path] = found[path]
        fault = _difference(wanted, found, "applied")
        return fault or _refused(self._say("verify", *self._trip.names, "--verify", "bytes"))

    def _images(self, found: _Content) -> _Content:
        """What the lock makes of the files, computed here; of new ones any mode is right."""
        lock = self._trip.lock
        before = {
            path: (self._trip.tree / path).read_bytes() if path in self._pristine else None
            for path in lock.files
        }
        offered = [fix for fix in self._trip.fixes if lock.fixes[fix].need is Need.OFFERED]
        made = plan.make(lock, lock.closure(offered), before, None)
        if made.problems:
            raise FixesError(*made.problems)
        images = {}
        for file in made.writes:
            mode, _ = self._pristine.get(file.path, found.get(file.path, (0, "")))
            images[file.path] = (mode, hashlib.sha256(file.content or b"").hexdigest())
        return images

    def _reaching(self, level: Level) -> Callable[[], str] | None:
        return (lambda: self._reached(level)) if level <= self._trip.level else None

    def _reached(self, level: Level) -> str:
        self.level = Level[self._applied["level"].upper()]
        return "" if self.level >= level else f"apply reached the level {self.level.word}"

    def _again(self) -> str:
        digest, before = self._applied["digest"], _status(self._copy)
        self._applied = self._say("apply", *self._trip.names, *self._verify)
        if fault := _refused(self._applied) or self._verdicts("already-applied"):
            return fault
        if self._applied["changed"] or _status(self._copy) != before:
            return "a file was written"
        return "" if self._applied["digest"] == digest else "the digest is another one"

    def _revert(self) -> str:
        fault = _refused(self._say("revert", "--all"))
        return fault or _difference(self._pristine, _content(self._copy), "reverted")

    def _say(self, verb: str, *words: str) -> dict[str, Any]:
        """The document of one command line; with a problem of its own where there is none."""
        launcher = Path(fixes.__file__).with_name("apply_all.py")
        where = ("--profile", self._trip.lock.profile, "--profiles", str(self._trip.profiles))
        tree = ("--tree", str(self._copy), "--python", self._trip.python, "--json")
        done = subprocess.run(
            [sys.executable, str(launcher), verb, *words, *where, *tree],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env=_environ(),
            check=False,
        )
        try:
            document: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            what = f"ended with {done.returncode} and gave no document: {''.join(said)}"
            problem = {"code": done.returncode, "kind": "internal", "what": what, "where": verb}
            document = {"exit": done.returncode, "problems": [problem], "fixes": []}
        return document


def compile_modules(tree: Path, python: str, modules: Sequence[str]) -> tuple[str, ...]:
    """Import modules once, so that a tree has their bytecode, as an installed one does.

    It saves the time of compiling in each run, and tells the modules that were not found; what
    else cannot be imported shows there.
    """
    done = subprocess.run(
        [python, "-c", _IMPORTS, str(tree), *modules],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd="/",
        env=_environ(),
        check=False,
    )
    try:
        return tuple(dict.fromkeys(json.loads(done.stdout.splitlines()[-1])))
    except (ValueError, IndexError):  # a module has ended the process
        return ()


def together(lock: Lock, names: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Fixes in as few sets as may be, none of which holds two that exclude each other."""
    left = [name for name in lock.fixes if name in names]
    while left:
        taken: list[str] = []
        for name in left:
            whole = lock.closure([*taken, name])
            if not taken or not any(set(lock.fixes[each].conflicts) & set(whole) for each in whole):
                taken.append(name)
        yield tuple(taken)
        left = [name for name in left if name not in taken]


def _environ() -> dict[str, str]:
    """A plain environment: nobody's settings of Python."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**kept, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def _refused(document: Mapping[str, Any]) -> str:
    """The problems of a command line that did not end with 0."""
    problems = "; ".join(_said(problem) for problem in document["problems"])
    return "" if document["exit"] == 0 else f"exit {document['exit']}: {problems}"


def _said(problem: Mapping[str, Any]) -> str:
    return f"{problem['kind']}: {problem['where']}: {problem['what']}"


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    for entry in os.scandir(folder):
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _content(folder: Path) -> _Content:
    """Every name below a folder, but for bytecode."""
    found: _Content = {}
    for entry in _walk(folder):
        if "__pycache__" not in entry.path:
            what = ""
            if entry.is_symlink():
                what = os.readlink(entry.path)
            elif entry.is_file():
                what = hashlib.sha256(Path(entry.path).read_bytes()).hexdigest()
            mode = entry.stat(follow_symlinks=False).st_mode
            found[os.path.relpath(entry.path, folder)] = (mode, what)
    return found


def _status(folder: Path) -> dict[str, tuple[int, ...]]:
    """What changes if anything below a folder is written, bytecode too."""
    found: dict[str, tuple[int, ...]] = {}
    for entry in _walk(folder):
        status = entry.stat(follow_symlinks=False)
        times = (status.st_mtime_ns, status.st_ctime_ns)
        found[entry.path] = (status.st_ino, status.st_mode, status.st_size, *times)
    return found


def _difference(wanted: _Content, found: _Content, when: str) -> str:
    paths = [path for path in {**wanted, **found} if wanted.get(path) != found.get(path)]
    if not paths:
        return ""
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return f"not as they must be once {when}: {', '.join(sorted(paths)[:3])}{more}"
