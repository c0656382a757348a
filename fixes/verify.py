"""Verifying: bytes, then import, then probe. Each level includes the one before.

``bytes`` is hashing and RECORD, done here. ``import`` and ``probe`` run in one fresh
interpreter of the target environment (``fixes/child.py``). Whatever the level, the fixed
files are hashed last, when everything that could have changed them has ended.
"""

from __future__ import annotations

import json
import os
import selectors
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixes import overlays
from fixes.catalogue import Catalogue
from fixes.disk import sha256_of
from fixes.errors import ExitCode, FixesError, Problem
from fixes.journal import uninterrupted
from fixes.lock import Fix, Probe
from fixes.look import Look
from fixes.origin import paths_of
from fixes.plan import Plan
from fixes.session import Session
from fixes.state import Level
from fixes.tree import Tree

if TYPE_CHECKING:
    import subprocess

#: Seconds for one probe and for all of them (design: a timeout is a failure).
PROBE_S, PROBES_S = 10.0, 60.0
#: Seconds for the imports and the probes together, before the child is ended.
CHILD_S = 600.0
#: Seconds for the child to end what it started, when it is not waited for any more.
ENDING_S = 2.0
#: Bytes that are kept of what the imports and the probes print: its end.
PRINTED = 65536


@dataclass(frozen=True)
class Verification:
    """What was reached. ``unproven``: fix id -> the declared reason that its probe gave.

    ``earlier``: a run before this one reached it, on the same bytes in the same environment.
    """

    level: Level
    unproven: dict[str, str]
    import_s: float = 0.0
    probes_s: float = 0.0
    probes: int = 0
    earlier: bool = False


def earlier(found: Look, level: Level) -> Verification:
    """What a state says was reached on these very bytes, in this environment."""
    return Verification(level, found.unproven, earlier=level > Level.BYTES)


def run(here: Session, plan: Plan, level: Level, overlay: Path | None = None) -> Verification:
    """Import the touched modules in a fresh interpreter and run the probes of the wanted fixes.

    ``overlay`` is the folder that serves the fixed files; without one the trees hold them.
    Raises FixesError with VERIFICATION_FAILED and every problem that was found.
    """
    reached = Verification(Level.BYTES, {})
    problems: list[Problem] = []
    executable = here.environment.executable
    if level > Level.BYTES and executable is not None and plan.wanted:
        try:
            reached = _live(here, executable, plan, level, overlay)
        except FixesError as error:
            problems += error.problems
    problems += _changed(here, plan, overlay)
    if problems:
        raise FixesError(*problems)
    return reached


def _changed(here: Session, plan: Plan, overlay: Path | None) -> list[Problem]:
    """The files of the plan that are not what it makes of them."""
    problems = []
    for file in plan.files:
        found = here.where(file.path)
        if found is None:
            continue
        place = overlay / overlays.FILES / file.path if overlay and file.wanted else found[1]
        what = "is not what was to be verified: it changed during the run"
        try:
            if (sha256_of(place) or "") == file.post:
                continue
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
        problems.append(Problem(ExitCode.VERIFICATION_FAILED, "bytes", what, str(place)))
    return problems


def _live(
    here: Session, executable: str, plan: Plan, level: Level, overlay: Path | None
) -> Verification:
    """The levels that take an interpreter. Raises FixesError."""
    fixes = [here.lock.fixes[name] for name in plan.wanted]
    probes = [(fix, fix.probe) for fix in fixes if fix.probe and level >= Level.PROBE]
    answer = ask(
        executable,
        {
            "paths": here.ahead,
            "modules": _modules(here.trees, plan, fixes, overlay),
            "probes": [_probe_request(here.catalogue, fix, probe) for fix, probe in probes],
            "probe_s": PROBE_S,
            "probes_s": PROBES_S,
        },
        overlay,
    )
    problems = [
        Problem(ExitCode.VERIFICATION_FAILED, "import", what, module)
        for module, found in answer["modules"].items()
        for what in found
    ]
    if problems:
        hint = "is this the interpreter that runs vLLM? if it cannot be, ask for --verify bytes"
        problems[0] = problems[0]._replace(hint=hint)
    unproven = {}
    for fix, probe in probes if not problems else ():
        given = answer["probes"][fix.id]
        condition, _, _ = given["reason"].partition(":")
        if given["answer"] == 0:
            continue
        if given["answer"] == 77 and condition in probe.cannot_tell and not here.odd_version:
            unproven[fix.id] = given["reason"]
            continue
        verdict = {1: "the fault is present", 77: "it cannot tell"}.get(
            given["answer"], "it gave no answer"
        )
        problems.append(
            Problem(ExitCode.VERIFICATION_FAILED, "probe", f"{verdict}: {given['reason']}", fix.id)
        )
    if problems:
        raise FixesError(*problems)
    return Verification(level, unproven, answer["import_s"], answer["probes_s"], len(probes))


def _probe_request(catalogue: Catalogue, fix: Fix, probe: Probe) -> dict[str, str]:
    source = catalogue.read(probe.source).decode()
    return {"id": fix.id, "source": source, "file": probe.source}


def _modules(
    trees: Sequence[Tree], plan: Plan, fixes: Sequence[Fix], overlay: Path | None
) -> list[dict[str, object]]:
    """Every touched module, with the names in it that must be the post-image's code."""
    names: dict[str, list[str]] = {}
    for fix in fixes:
        for reach in fix.reach:
            names.setdefault(reach.module, []).extend(reach.names)
    files = {_module(file.path): file for file in plan.files if file.wanted and file.post}
    for fix in fixes:
        for path in paths_of(fix):
            names.setdefault(_module(path), [])
    requests: list[dict[str, object]] = []
    served = overlay / overlays.FILES if overlay else None
    sites = {tree.target: served or tree.site for tree in trees}
    for module, wanted in names.items():
        file = files.get(module)
        requests.append(
            {
                "module": module,
                "file": str(sites[file.target] / file.path) if file else "",
                "sha256": file.post if file else "",
                "names": list(dict.fromkeys(wanted)),
            }
        )
    return requests


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def ask(executable: str, request: dict[str, object], overlay: Path | None = None) -> dict[str, Any]:
    """What ``fixes/child.py`` answers in an interpreter. Raises FixesError if it does not.

    The only overlay on its PYTHONPATH is the one that is given.
    """
    import subprocess

    from fixes.catalogue import package_source

    reader, writer = os.pipe()
    try:
        try:
            child = subprocess.Popen(
                [executable, "-c", package_source("child.py").decode(), str(writer)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=_environment(overlay),
                pass_fds=(writer,),
            )
        finally:
            os.close(writer)
        with child:
            try:
                data, printed = _converse(child, reader, json.dumps(request).encode())
            finally:
                _end(child)
        answer: dict[str, Any] = json.loads(data)
    except TimeoutError:
        what = f"imports and probes took longer than {CHILD_S:g} s"
        raise FixesError(Problem(ExitCode.VERIFICATION_FAILED, "import", what)) from None
    except OSError as error:
        what = f"the interpreter cannot be run: {error.strerror}"
        problem = Problem(ExitCode.VERIFICATION_FAILED, "import", what, executable)
        raise FixesError(problem) from None
    except ValueError:
        tail = printed.decode(errors="replace").strip().splitlines()[-1:] or [""]
        what = f"the interpreter ended with {child.returncode}: {tail[0][-2000:]}"
        problem = Problem(ExitCode.VERIFICATION_FAILED, "import", what, executable)
        raise FixesError(problem) from None
    finally:
        os.close(reader)
    return answer


def _converse(child: subprocess.Popen[bytes], reader: int, request: bytes) -> tuple[bytes, bytes]:
    """Give the request, take the answer: one line, without one if there is none.

    Then the end of what was printed meanwhile. Neither is waited for once the child has ended:
    something that it could not end may hold the pipes open. Raises TimeoutError.
    """
    assert child.stdin and child.stdout
    answer = printed = b""
    deadline = time.monotonic() + CHILD_S
    for descriptor in (reader, child.stdin.fileno(), child.stdout.fileno()):
        os.set_blocking(descriptor, False)
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        selector.register(child.stdout, selectors.EVENT_READ)
        selector.register(child.stdin, selectors.EVENT_WRITE)
        ended = False
        while not ended and not answer.endswith(b"\n"):
            if time.monotonic() > deadline:
                raise TimeoutError
            ended = child.poll() is not None  # before the look: then there is nothing to come
            for key, _ in selector.select(0 if ended else 0.5):
                if key.fileobj is child.stdin:
                    request = request[_write(key.fd, request) :]
                    if not request:
                        selector.unregister(child.stdin)
                        child.stdin.close()
                    continue
                piece = os.read(key.fd, PRINTED)
                if not piece:
                    selector.unregister(key.fileobj)
                elif key.fd == reader:
                    answer += piece
                else:
                    printed = (printed + piece)[-PRINTED:]
    return answer, printed


def _write(descriptor: int, data: bytes) -> int:
    """How much of ``data`` is dealt with: all of it where nobody reads any more."""
    try:
        return os.write(descriptor, data)
    except BrokenPipeError:
        return len(data)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let the child end its probe and all that was started; then end it."""
    from subprocess import TimeoutExpired

    with uninterrupted():
        child.terminate()
        try:
            child.wait(ENDING_S)
        except TimeoutExpired:
            child.kill()


def _environment(overlay: Path | None) -> dict[str, str]:
    quiet = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    # No probe loads a model, but with the hub offline vLLM looks for the name of one at once.
    quiet["HF_HUB_OFFLINE"] = "0"
    if overlay or overlays.named(os.environ):
        quiet["PYTHONPATH"] = overlays.pythonpath(os.environ, overlay)
    return quiet
