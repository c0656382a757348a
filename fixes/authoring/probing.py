"""What probes say of the pristine release: the proof of ``already-upstream`` and ``offered``.

With an interpreter that has vLLM's requirements, each probe runs on the Python files of the
reference wheels. Without one, the answer that the existing lock records is kept as long as
nothing it depends on has changed: probe.py and the wheels. A fix that is upstream
needs an answer, one that is offered may go without.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fixes.authoring.authored import Authored
from fixes.authoring.images import module_name
from fixes.authoring.wheels import Wheel
from fixes.catalogue import package_source
from fixes.digest import sha256
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Lock, Need

#: An import of vLLM takes a quarter of a minute, and a probe may need one of its own.
_PROBE_S = 180.0
_ALL_S = 3600.0
_ANSWERS = {0: "absent", 1: "present", 77: "cannot-tell"}


def ask(
    authored: Authored,
    targets: Mapping[str, Sequence[Wheel]],
    touched: Iterable[str],
    python: str,
    known: Mapping[str, str],
) -> dict[str, str]:
    """Run the probe of each fix that is offered or upstream on the reference wheels' files.

    Fixes whose answer is ``known`` are not asked again, and their answers are in the result.

    The ``touched`` files are imported once, before all probes, where they can be imported
    together; otherwise each probe imports what it needs. Raises FixesError, kind
    ``no-answer``, for probes that broke or took too long.
    """
    fixes = [fix for fix in _probed(authored) if fix not in known]
    if not fixes:
        return dict(known)
    targets = {target: wheels for target, wheels in targets.items() if wheels}
    references = [wheels[0] for wheels in targets.values()]
    packages = [f"{target}/__init__.py" for target in targets]
    with TemporaryDirectory(prefix="vllm-fixes-") as scratch:
        for target, wheel in zip(targets, references, strict=True):
            wheel.unpack(target, Path(scratch))
        for paths in ([*packages, *touched], packages):
            files = [(path, wheel) for path in paths for wheel in references]
            request = {
                "paths": [scratch],
                "modules": [
                    {
                        "module": module_name(path),
                        "file": f"{scratch}/{path}",
                        "sha256": sha256(wheel.read(path)),
                        "names": [],
                    }
                    for path, wheel in files
                    if path in wheel.names and path.endswith(".py")
                ],
                "probes": [_request(authored, fix) for fix in fixes],
                "probe_s": _PROBE_S,
                "probes_s": _ALL_S,
            }
            answer = _run(python, request)
            if not any(answer["modules"].values()):
                break
    return {**known, **_results(answer, python)}


def _request(authored: Authored, fix: str) -> dict[str, str]:
    path = f"patches/{fix}/probe.py"
    return {"id": fix, "file": path, "source": authored.read(path).decode()}


def _results(answer: dict[str, dict[str, Any]], python: str) -> dict[str, str]:
    problems = [
        Problem(ExitCode.MISMATCH, "no-answer", f"{module} {fault}", python)
        for module, faults in answer["modules"].items()
        for fault in faults
    ]
    problems += [
        Problem(ExitCode.MISMATCH, "no-answer", given["reason"], f"patches/{fix}/probe.py")
        for fix, given in answer["probes"].items()
        if given["answer"] not in _ANSWERS
    ]
    if problems:
        raise FixesError(*problems)
    return {fix: _ANSWERS[given["answer"]] for fix, given in answer["probes"].items()}


def _probed(authored: Authored) -> tuple[str, ...]:
    """The fixes that can be asked about; there is no pristine tree of a target without wheels."""
    return tuple(
        entry.id
        for entry in authored.profile.entries.values()
        if entry.need is not Need.NOT_NEEDED
        and all(authored.profile.targets.get(t) for t in authored.fixes[entry.id].targets)
    )


def _run(python: str, request: dict[str, object]) -> dict[str, dict[str, Any]]:
    environ = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    try:
        done = subprocess.run(
            [python, "-c", package_source("child.py").decode()],
            input=json.dumps(request).encode(),
            capture_output=True,
            cwd="/",
            env=environ,
            check=False,
        )
        answer: dict[str, dict[str, Any]] = json.loads(done.stdout)
    except (OSError, ValueError) as error:
        raise FixesError(Problem(ExitCode.MISMATCH, "no-answer", str(error), python)) from None
    return answer


def recorded(
    authored: Authored, wheels: Mapping[str, str], previous: Lock | None
) -> dict[str, str]:
    """The answers of an earlier lock that still hold."""
    if previous is None or previous.wheels != wheels:
        return {}
    kept = {}
    for fix in _probed(authored):
        old = previous.fixes.get(fix)
        source = f"patches/{fix}/probe.py"
        authored.read(source)
        same = previous.authored.get(source) == authored.sha256[source]
        if old and old.pristine_probe and same:
            kept[fix] = old.pristine_probe
    return kept


def contradictions(authored: Authored, answers: Mapping[str, str]) -> list[Problem]:
    """Where the answers do not bear out what the profile says of its release."""
    problems = []
    release = authored.profile.release
    for fix in _probed(authored):
        entry, answer = authored.profile.entries[fix], answers.get(fix, "")
        what = hint = ""
        if entry.need is Need.OFFERED and answer == "absent":
            what = f"is offered, but its probe finds no fault in the pristine {release}"
        elif entry.need is Need.UPSTREAM and not answer:
            what = f"is said to be in {release}, which no probe has shown"
            hint = "name an interpreter that has vLLM's requirements with --python"
        elif entry.need is Need.UPSTREAM and answer != "absent":
            what = f"is said to be in {release}, but its probe says of the fault: {answer}"
        if what:
            where = f"{authored.where}: fixes.{fix}"
            problems.append(Problem(ExitCode.MISMATCH, "contradicted", what, where, hint))
    return problems
