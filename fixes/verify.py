"""Verifying: bytes, then import, then probe. Each level includes the one before.

``bytes`` is hashing and RECORD, done here. ``import`` and ``probe`` run in one fresh
interpreter of the target environment (``fixes/child.py``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fixes.catalogue import Catalogue
from fixes.errors import ExitCode, FixesError, Problem
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


def run(here: Session, plan: Plan, level: Level) -> Verification:
    """Import the touched modules in a fresh interpreter and run the probes of the wanted fixes.

    Raises FixesError with VERIFICATION_FAILED and every problem that was found.
    """
    environment, lock = here.environment, here.lock
    if level <= Level.BYTES or environment.executable is None or not plan.wanted:
        return Verification(Level.BYTES, {})
    fixes = [lock.fixes[name] for name in plan.wanted]
    probes = [(fix, fix.probe) for fix in fixes if fix.probe and level >= Level.PROBE]
    answer = _child(
        environment.executable,
        {
            "paths": here.ahead,
            "modules": _modules(here.trees, plan, fixes),
            "probes": [_probe_request(here.catalogue, fix, probe) for fix, probe in probes],
            "probe_s": PROBE_S,
            "probes_s": PROBES_S,
        },
    )
    problems = [
        Problem(ExitCode.VERIFICATION_FAILED, "import", what, module)
        for module, found in answer["modules"].items()
        for what in found
    ]
    unproven = {}
    for fix, probe in probes if not problems else ():
        given = answer["probes"][fix.id]
        condition, _, _ = given["reason"].partition(":")
        if given["answer"] == 0:
            continue
        if given["answer"] == 77 and condition in probe.cannot_tell:
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


def _modules(trees: Sequence[Tree], plan: Plan, fixes: Sequence[Fix]) -> list[dict[str, object]]:
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
    sites = {tree.target: tree.site for tree in trees}
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


def _child(executable: str, request: dict[str, object]) -> dict[str, Any]:
    import subprocess

    from fixes.catalogue import package_source

    try:
        with subprocess.Popen(
            [executable, "-c", package_source("child.py").decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=_quiet_environment(),
        ) as child:
            try:
                out, err = child.communicate(json.dumps(request).encode(), CHILD_S)
            except BaseException:
                _end(child)
                raise
    except OSError as error:
        what = f"the interpreter cannot be run: {error.strerror}"
        problem = Problem(ExitCode.VERIFICATION_FAILED, "import", what, executable)
        raise FixesError(problem) from None
    except subprocess.TimeoutExpired:
        what = f"imports and probes took longer than {CHILD_S:.0f} s"
        raise FixesError(Problem(ExitCode.VERIFICATION_FAILED, "import", what)) from None
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        tail = err.decode(errors="replace").strip().splitlines()[-1:] or [""]
        what = f"the interpreter ended with {child.returncode}: {tail[0]}"
        raise FixesError(
            Problem(ExitCode.VERIFICATION_FAILED, "import", what, executable)
        ) from None
    return answer


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let the child end its probe and all that the probe started; then end it."""
    from subprocess import TimeoutExpired

    try:
        child.terminate()
        child.wait(ENDING_S)
    except TimeoutExpired:
        return
    finally:
        child.kill()


def _quiet_environment() -> dict[str, str]:
    return {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
