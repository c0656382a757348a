"""Making an overlay: a new folder beside the named one, verified, then renamed into place."""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fixes import __version__, flock, outcome, overlaid, overlays, report, standing, verify
from fixes.catalogue import package_source
from fixes.commit import Order
from fixes.digest import sha256
from fixes.disk import naming, read_file, rewrite, sync_folder
from fixes.errors import ExitCode, FixesError, Problem
from fixes.journal import uninterrupted
from fixes.look import Look
from fixes.outcome import Report
from fixes.overlay import Overlay, Served, Target
from fixes.overlays import FILES, HOOK, MANIFEST
from fixes.plan import FilePlan, Plan, make
from fixes.session import Session
from fixes.state import SAME_SYNTAX, Level, Verified

_FORCE = ("__init__.py", "_version.py")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # <fcntl.h>, <linux/fs.h>


def carry_out(here: Session, found: Look, plan: Plan, folder: Path, order: Order) -> Report:
    """Make the overlay that serves a plan, verify, put it in place, and report.

    Raises FixesError: USAGE (``not-an-overlay``), CANNOT_WRITE, LOCKED, VERIFICATION_FAILED.
    Then nothing has been changed.
    """
    _possible(folder)
    done = outcome.start(order.verb, here)
    outcome.add_plan(done, here, plan, done=True)
    done.changed.clear()
    done.fixes += order.lines

    def waiting() -> None:
        report.emit("waiting for another run on this folder\n", error=True)

    with naming(folder.parent):
        for parent in reversed(folder.parents):
            if not parent.exists():
                _folder(parent)
    with flock.held([folder.parent], order.wait, waiting):
        known = _known(here, found, plan, folder, order.level)
        if known is not None:
            outcome.add_verification(done, here, plan, known, records=False)
            done.notes.append(f"overlay {folder} is there already")
            return done
        with _aside(folder) as aside:
            made = _write(here, found, plan, aside)
            reached = verify.run(here, plan, order.level, aside)
            outcome.add_verification(done, here, plan, reached, records=False)
            seen = replace(found, records=dict.fromkeys(found.records))
            mark = standing.fingerprint(here, seen, done.digest)
            python = here.environment.version
            proven = Verified(reached.level.word, mark, python, dict(reached.unproven))
            with naming(aside):
                _file(aside / MANIFEST, replace(made, verified=proven).dump())
                sync_folder(aside)
            with naming(folder):
                _place(aside, folder)
    done.notes.append(f"overlay {folder}: start engines with PYTHONPATH={folder}")
    return done


def _possible(folder: Path) -> None:
    """Raises FixesError, USAGE, for a folder that must not or cannot be replaced."""
    if os.pathsep in str(folder):
        what = f"holds {os.pathsep!r}, which separates folders in PYTHONPATH"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, str(folder)))
    if not os.path.lexists(folder):
        return
    hint = f"name a folder that is not there yet, such as {folder / 'overlay'}"
    what = "exists and is no overlay"
    if os.path.ismount(folder):
        what = "is a mount point, which cannot be replaced by a folder"
    elif os.path.islink(folder):
        what = f"is a symbolic link to {os.path.realpath(folder)}, and is not replaced by a folder"
        hint = "name the folder itself, or one that is not there yet"
    elif os.path.isdir(folder) and not os.path.islink(folder):
        try:
            if (folder / MANIFEST).is_file() or not os.listdir(folder):
                return
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
    raise FixesError(Problem(ExitCode.USAGE, "not-an-overlay", what, str(folder), hint))


def _known(
    here: Session, found: Look, plan: Plan, folder: Path, level: Level
) -> verify.Verification | None:
    """What was reached before, if the overlay that is there is the one that would be made."""
    try:
        through = overlaid.take(here, found, folder)
    except FixesError:
        return None
    wrong = [problem for problem in through.problems if problem.kind != "overlay-idle"]
    made = through.overlay
    digest = plan.digest(here.releases)
    if wrong or made.tool != __version__ or (made.fixes, made.digest) != (plan.wanted, digest):
        return None
    now = make(here.lock, (), through.found.seen, through.found.state)
    if now.problems or now.digest(here.releases) != digest or not _current(here, made, folder):
        return None
    if standing.reached(here, through.found, digest) < level:
        return None
    return verify.earlier(through.found, level)


def _current(here: Session, made: Overlay, folder: Path) -> bool:
    """Whether it has the bytecode of this interpreter."""
    tag = here.environment.cache_tag
    try:
        return all(
            file.bytecode == sha256(read_file(_cached(folder / FILES / file.path, tag)))
            for file in made.files
        )
    except OSError:
        return False


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A new folder beside the one it shall be; gone afterwards, also that of a killed run.

    The parent is locked: nobody else is at it.
    """
    prefix = f".{folder.name}.vllm-fixes-"
    with naming(folder.parent):
        for left in folder.parent.glob(f"{glob.escape(prefix)}*"):
            if _ours(left):
                shutil.rmtree(left)
        aside = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
        aside.chmod(0o755)
    try:
        yield aside
    finally:
        with uninterrupted():
            for left in (aside, _old(aside)):
                shutil.rmtree(left, ignore_errors=True)


def _ours(left: Path) -> bool:
    """Whether a folder holds what a run writes, and nothing else."""
    if left.is_symlink() or not left.is_dir():
        return False
    inside = set(os.listdir(left))
    return HOOK in inside <= {HOOK, FILES, MANIFEST, "__pycache__"} and overlays.is_one(str(left))


def _old(aside: Path) -> Path:
    return aside.with_name(f"{aside.name}-old")


def _write(here: Session, found: Look, plan: Plan, folder: Path) -> Overlay:
    """Files, bytecode, hook and manifest. Raises FixesError."""
    hook = package_source("hook.py")
    with naming(folder):
        _file(folder / HOOK, hook)
        _folder(folder / FILES)
        sources = [folder / HOOK]
        for item in here.trees:
            _folder(folder / FILES / item.target)
        for file in outcome.fixed(plan):
            place = folder / FILES / file.path
            for parent in reversed(place.relative_to(folder).parents):
                if not (folder / parent).is_dir():
                    _folder(folder / parent)
            _file(place, _content(found, file))
            sources.append(place)
        _compile(here, sources)
        made = Overlay(
            tool=__version__,
            profile=here.lock.profile,
            lock=here.lock.digest,
            release=here.lock.release,
            fixes=plan.wanted,
            digest=plan.digest(here.releases),
            accepted=tuple(
                f"{SAME_SYNTAX if file.by_edits else ''}{file.path}"
                for file in outcome.fixed(plan)
                if file.accepted
            ),
            targets={
                item.target: Target(
                    item.version,
                    item.release,
                    item.distribution,
                    item.dist_info.name if item.record and item.dist_info else "",
                )
                for item in here.trees
            },
            files=tuple(_served(here, found, file, folder) for file in outcome.fixed(plan)),
            relied=_relied(here, plan),
            hook=sha256(hook),
            python=here.environment.version,
        )
        _file(folder / MANIFEST, made.dump())
    return made


def _content(found: Look, file: FilePlan) -> bytes:
    content = file.content if file.content is not None else found.seen.get(file.path)
    if content is None:
        raise ValueError(f"{file.path} has no post-image")
    return content


def _served(here: Session, found: Look, file: FilePlan, folder: Path) -> Served:
    content = _content(found, file)
    cached = _cached(folder / FILES / file.path, here.environment.cache_tag)
    return Served(
        target=file.target,
        path=file.path,
        module=module(file.path),
        pre=file.pre,
        post=file.post,
        underneath=tuple(dict.fromkeys((file.pre, file.post, file.now))),
        located=b"__file__" in content or file.path.endswith("/__init__.py"),
        bytecode=sha256(read_file(cached)) if cached.is_file() else "",
        fixes=file.wanted,
    )


def module(path: str) -> str:
    """The name that a file is imported by."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _relied(here: Session, plan: Plan) -> dict[str, str]:
    """The installed files that fixed modules and their probes go by, as they are now."""
    names = {f"{item.target}/{name}": item for item in here.trees for name in _FORCE}
    for fix in plan.wanted:
        for reach in here.lock.fixes[fix].reach:
            stem = reach.module.replace(".", "/")
            for item in here.trees:
                if stem.startswith(item.target + "/"):
                    names |= {f"{stem}.py": item, f"{stem}/__init__.py": item}
    served = {file.path for file in outcome.fixed(plan)}
    return {
        path: sha256(read_file(item.site / path))
        for path, item in sorted(names.items())
        if path not in served and (item.site / path).is_file()
    }


#: Run by the interpreter that shall import them. What it cannot compile it will say when asked to
#: import it; bytecode is no more than time saved.
_COMPILE = """
import py_compile, sys, warnings
warnings.simplefilter("ignore")
mode = py_compile.PycInvalidationMode.CHECKED_HASH
cut = len(sys.argv[1])
hook, *files = sys.argv[2:]
# The interpreter itself loads the hook, and would write what is not there.
for path, level in [(hook, 1), (hook, 2), *((path, 0) for path in (hook, *files))]:
    folder, _, name = path.rpartition("/")
    tag = sys.implementation.cache_tag + (f".opt-{level}" if level else "")
    cached = f"{folder}/__pycache__/{name[:-3]}.{tag}.pyc"
    py_compile.compile(path, cached, path[cut:], quiet=2, invalidation_mode=mode, optimize=level)
"""


def _compile(here: Session, sources: list[Path]) -> None:
    """Bytecode beside each source, matched by hash: a copy has other times. Raises OSError."""
    import subprocess
    import sys

    folder = sources[0].parent
    executable = here.environment.executable or sys.executable
    command = [executable, "-I", "-c", _COMPILE, f"{folder}/", *map(str, sources)]
    subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, check=False)
    for cache in folder.rglob("__pycache__"):
        cache.chmod(0o755)
        for path in cache.iterdir():
            path.chmod(0o644)
            sync_folder(cache)


def _cached(source: Path, tag: str) -> Path:
    return source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc"


def _folder(folder: Path) -> None:
    """A folder that any user may enter, whatever the umask."""
    folder.mkdir()
    folder.chmod(0o755)


def _file(path: Path, content: bytes) -> None:
    """A file that any user may read, whatever the umask."""
    rewrite(path, content)
    path.chmod(0o644)


def _place(aside: Path, folder: Path) -> None:
    """Rename the new folder into place. What was there is left aside, to be removed.

    At no time there is no overlay: a process that started then would run unfixed. Where the file
    system cannot exchange two names there is such a moment. Raises OSError.
    """
    if not os.path.lexists(folder) or not os.listdir(folder):
        aside.rename(folder)
    elif not _exchanged(aside, folder):
        folder.rename(_old(aside))
        aside.rename(folder)
    sync_folder(folder.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether two names were exchanged (renameat2(2), of Linux and glibc 2.28 or musl)."""
    exchange = getattr(ctypes.CDLL(None), "renameat2", None)
    if exchange is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    failed = exchange(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    return not failed
