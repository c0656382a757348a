"""The interpreter whose engine would import a target: this one, another one, or none."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from fixes.errors import ExitCode, FixesError, Problem

OLDEST = (3, 10)
TIMEOUT = 60.0

#: Runs on any Python, so that an old one can be named. The mark tells its line from what a
#: sitecustomize prints. Lone surrogates of odd paths survive as JSON escapes.
_MARK = "vllm-fixes-environment:"
_QUESTION = f"""
import json, sys
print({_MARK!r} + json.dumps([
    sys.path,
    list(sys.version_info[:3]),
    getattr(getattr(sys, "implementation", None), "cache_tag", None) or "",
    getattr(sys, "pycache_prefix", None),
]))
"""


class Environment(NamedTuple):
    """The interpreter whose engine would import the target.

    ``executable`` is None when a bare tree is given without an interpreter. ``paths`` is the
    search path as from a neutral working directory. ``version`` is like ``3.11.7``.
    """

    executable: str | None
    version: str
    cache_tag: str
    pycache_prefix: str | None
    paths: tuple[str, ...]


def bare() -> Environment:
    """No interpreter to import in: a tree that was named by its folder alone."""
    return _running(None, ())


def current() -> Environment:
    """The running interpreter, less what working directory and script put on the path."""
    return _running(sys.executable, neutral(sys.path, os.environ.get("PYTHONPATH", "")))


def of(executable: str) -> Environment:
    """Another interpreter, asked once from the root folder.

    Raises FixesError: usage when there is no such executable file, else NOT_FOUND with kind
    ``python-failed`` (it crashes, hangs or is no Python) or ``python-too-old``.
    """
    import json
    import shutil
    import subprocess

    path = shutil.which(executable)
    if path is None:
        raise _failure("usage", executable, "no such executable file", ExitCode.USAGE)
    path = os.path.abspath(path)  # not resolved: a venv is known by its link
    try:
        done = subprocess.run(
            [path, "-c", _QUESTION],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except OSError as error:
        raise _failure("python-failed", path, f"cannot be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _failure("python-failed", path, f"no answer in {TIMEOUT:.0f} s") from error
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    # Behind whatever a start-up file printed without ending its line.
    answers = [line.partition(_MARK)[2] for line in lines if _MARK in line]
    if done.returncode or not answers:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        what = f"ended with {done.returncode} and said nothing of a Python's search path"
        raise _failure("python-failed", path, ": ".join([what, *last]))
    paths, version, cache_tag, prefix = json.loads(answers[-1])
    dotted = ".".join(map(str, version))
    if tuple(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise _failure("python-too-old", path, f"is Python {dotted}, not {oldest} or later")
    # "/" is what an empty or relative entry of PYTHONPATH became
    paths = tuple(entry for entry in paths if entry not in ("", "/"))
    return Environment(path, dotted, cache_tag, prefix, paths)


def interpreter(executable: str) -> str:
    """Where another interpreter is, whatever the working directory. Raises as ``of`` does."""
    return of(executable).executable or executable


def neutral(paths: list[str], pythonpath: str) -> tuple[str, ...]:
    """A running interpreter's search path as it would be elsewhere.

    Dropped are the entry that Python puts first (the working directory, or the folder of the
    script, or the zipapp) and those that stem from empty or relative parts of PYTHONPATH,
    which follow the working directory too.
    """
    here = working_directory() or ""
    first = {here}
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    if os.path.isabs(script):
        first |= {os.path.dirname(script), os.path.dirname(os.path.realpath(script))}
    parts = pythonpath.split(os.pathsep) if pythonpath else []
    fixed = {os.path.normpath(part) for part in parts if os.path.isabs(part)}
    moving = {os.path.normpath(os.path.join(here, p)) for p in parts if not os.path.isabs(p)}
    kept = [
        entry
        for position, entry in enumerate(paths)
        if entry
        and not (position == 0 and entry in first - fixed)
        and not (position <= len(parts) and entry in moving - fixed)
    ]
    return tuple(dict.fromkeys(kept))


def working_directory() -> str | None:
    """The working directory, or None where it has been deleted or may not be read."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _running(executable: str | None, paths: tuple[str, ...]) -> Environment:
    version = ".".join(map(str, sys.version_info[:3]))
    tag = sys.implementation.cache_tag or ""
    return Environment(executable, version, tag, sys.pycache_prefix, paths)


def _failure(
    kind: str, executable: str, what: str, code: ExitCode = ExitCode.NOT_FOUND
) -> FixesError:
    hint = "--python takes the interpreter that starts the engine"
    return FixesError(Problem(code, kind, what, executable, hint))
