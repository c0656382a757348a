"""Probes asked about trees, all of them in one interpreter (``zygote``)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fixes
from fixes.errors import ExitCode, FixesError, Problem
from fixes.verify import PROBE_S

#: Seconds for the imports of one tree; the first one compiles every module.
IMPORT_S = 180
_PROGRAM = "import sys; sys.path.insert(0, {!r}); from fixes.authoring import zygote; zygote.main()"


@dataclass(frozen=True)
class Trial:
    """A tree to ask probes about. ``modules`` are imported once, before its probes.

    Trees of a ``group`` differ in few files: what their modules need from elsewhere, and
    which of them cannot be imported here at all, is learnt from the first one.
    """

    path: str
    group: str
    modules: tuple[str, ...]
    probes: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What a probe said: its exit code, None if it gave none; why, and how long it took."""

    code: int | None
    reason: str
    seconds: float


def run(
    python: str,
    trials: Sequence[Trial],
    probes: Mapping[str, bytes],
    targets: Sequence[str],
    *,
    probe_s: float = PROBE_S,
    import_s: int = IMPORT_S,
    jobs: int | None = None,
) -> list[dict[str, Answer]]:
    """The answers of each trial by probe.

    ``probes`` are the sources by id, ``targets`` the packages that the trees hold. ``jobs``
    trees are tried at a time: one more than there are processors, since probes mostly wait.

    Raises FixesError, kind ``no-answer``, if the interpreter ``python`` comes to no end.
    """
    root = str(Path(fixes.__file__).resolve().parent.parent)
    with TemporaryDirectory(prefix="vllm-fixes-") as scratch:
        request = {
            "paths": [root],
            "scratch": scratch,
            "targets": list(targets),
            "probes": {
                name: {"source": source.decode(), "file": f"patches/{name}/probe.py"}
                for name, source in probes.items()
            },
            "trees": [asdict(trial) for trial in trials],
            "jobs": jobs or (os.cpu_count() or 1) + 1,
            "import_s": import_s,
            "probe_s": probe_s,
        }
        given = _answers(python, _PROGRAM.format(root), request, Path(scratch))
    return [_told(trial, each) for trial, each in zip(trials, given, strict=True)]


def _told(trial: Trial, given: dict[str, Any]) -> dict[str, Answer]:
    if "fault" in given:
        return {probe: Answer(None, given["fault"], 0.0) for probe in trial.probes}
    return {
        probe: Answer(each["answer"], each["reason"], each["seconds"])
        for probe, each in given["probes"].items()
    }


def _answers(
    python: str, program: str, request: dict[str, object], scratch: Path
) -> list[dict[str, Any]]:
    environ = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    # Files, not pipes: a process that a probe leaves behind would keep a pipe open.
    with (scratch / "errors").open("w+b") as errors:
        try:
            subprocess.run(
                [python, "-c", program],
                input=json.dumps(request).encode(),
                stdout=errors,
                stderr=errors,
                cwd="/",
                env=environ,
                check=True,
            )
            answers: list[dict[str, Any]] = json.loads((scratch / "answers").read_bytes())
        except (OSError, subprocess.CalledProcessError) as error:
            errors.seek(0)
            tail = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            # Not its own words, which hold the whole program.
            code = getattr(error, "returncode", None)
            what = ": ".join([str(error) if code is None else f"ended with {code}", *tail])
            raise FixesError(Problem(ExitCode.MISMATCH, "no-answer", what, python)) from None
    return answers
