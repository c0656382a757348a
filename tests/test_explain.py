"""``explain``: which fixes a log's lines call for."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from release import FIXES, Release, launch

from fixes import signs

LOGS = {
    "ready": [["Worker_PP1", "AssertionError: not ready"], "Engine.start gave up"],
    "stop": ["KeyError: 'cmpl-"],
    "upstream": ["an old, well known line"],
    "unneeded": ["there is no such file"],
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    fixes = {
        name: dataclasses.replace(fix, about={**fix.about, "log": LOGS.get(name, [])})
        for name, fix in FIXES.items()
    }
    return Release(tmp_path_factory.mktemp("release"), fixes)


def explain(release: Release, log: str | bytes, *arguments: str) -> tuple[int, str]:
    done = launch(
        sys.executable,
        *("explain", "-", *arguments, "--profiles", release.root),
        input=log.encode() if isinstance(log, str) else log,
    )
    return done.returncode, done.stdout + done.stderr


WORKER = "(Worker_PP1 pid=7) Traceback (most recent call last):\n"
FAILED = "(EngineCore pid=5) ERROR AssertionError: not ready\n"


def test_a_group_of_signs_may_stand_on_several_lines_in_any_order(release: Release) -> None:
    code, said = explain(release, FAILED + "...\n" + WORKER)
    assert code == 0
    assert "ready: What ready is about" in said
    assert "  -:1: (EngineCore pid=5) ERROR AssertionError: not ready" in said
    assert "  -:3: (Worker_PP1 pid=7)" in said
    assert "offered in v0.30.0" in said and "stop" not in said


@pytest.mark.parametrize("log", [WORKER, FAILED, "assertionerror: NOT READY Worker_PP1\n", ""])
def test_a_part_of_a_group_is_no_sign(release: Release, log: str) -> None:
    code, said = explain(release, log)
    assert code == 1 and "we do not know this fault" in said


def test_every_fault_is_told_once_with_its_first_line(release: Release) -> None:
    code, said = explain(release, ("x\nKeyError: 'cmpl-7'\n" * 3) + "Engine.start gave up\n")
    assert code == 0 and said.count("  -:") == 2 and "-:2: KeyError" in said


def test_what_is_not_offered_says_why(release: Release) -> None:
    code, said = explain(release, "an old, well known line\nthere is no such file\n")
    assert code == 0
    assert "already-upstream in v0.30.0: since 0.29.0" in said
    assert "not-needed in v0.30.0: this release has no such file" in said
    assert "offered in" not in said


def test_a_terminal_s_colours_and_broken_bytes_hide_nothing(release: Release) -> None:
    coloured = b"\xff\xfe \x1b[0;36m(EngineCore)\x1b[0;0m \x1b[31mKeyError: \x1b[1m'cmpl-1'\x1b[0m"
    code, said = explain(release, coloured)
    assert code == 0 and "stop:" in said


def test_several_files_are_one_log(release: Release, tmp_path: Path) -> None:
    names = []
    for name, text in (("leader.log", FAILED), ("worker.log", WORKER)):
        (tmp_path / name).write_text(text)
        names.append(str(tmp_path / name))
    done = launch(sys.executable, "explain", *names, "--json", "--profiles", release.root)
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["lines"] == 2
    (fix,) = document["fixes"]
    assert fix["id"] == "ready" and fix["profiles"]["v0.30.0"]["need"] == "offered"
    assert {(Path(one["log"]).name, one["line"]) for one in fix["lines"]} == {
        ("leader.log", 1),
        ("worker.log", 1),
    }


def test_a_file_that_is_not_there_is_named(release: Release) -> None:
    for name in ("/nowhere/x.log", str(release.root)):
        done = launch(sys.executable, "explain", name, "--profiles", release.root)
        assert done.returncode == 2 and f"{name}: cannot be read" in done.stderr
        assert "Traceback" not in done.stderr


def test_every_file_that_cannot_be_read_is_named(release: Release) -> None:
    names = ("/nowhere/x.log", str(release.root), "/nowhere/y.log")
    done = launch(sys.executable, "explain", *names, "--profiles", release.root)
    assert done.returncode == 2
    assert [name for name in names if f"{name}: cannot be read" in done.stderr] == list(names)


def test_a_release_without_a_profile_is_named(release: Release) -> None:
    code, said = explain(release, "vLLM server version 0.25.1+cpu, serving\nKeyError: 'cmpl-7'\n")
    assert code == 0 and "there is no profile for 0.25.1; what follows is of v0.30.0" in said


def test_of_a_long_line_the_part_around_the_sign_is_told() -> None:
    sign = "KeyError: 'cmpl-"
    for before, behind in ((0, 500), (500, 0), (500, 500), (10, 10), (150, 0)):
        found = signs.search({"log": ["a" * before + sign + "b" * behind]}, {"fix": [(sign,)]})
        ((log, line, text),) = found.faults["fix"]
        assert (log, line) == ("log", 1) and sign in text and len(text) <= 168
        assert text.startswith("...") == (before > 140) and text.endswith("...") == (behind > 100)


def test_the_release_is_read_from_the_log() -> None:
    lines = [
        "Initializing a V1 LLM engine (v0.30.0) with config: model='m'",
        "Launching vLLM (v0.30.0+cpu) headless multiproc executor, with head node address",
        "vLLM server version 0.30.0, serving model m",
    ]
    assert signs.search({"log": lines}, {}).releases == ("0.30.0", "0.30.0+cpu")


#: Logs of real servers, 0.30.0 on a CPU, one fault in each: what is known of them, as published.
REAL = {
    "pp-intermediate-buffers.leader pp-intermediate-buffers.worker": {
        "pp-intermediate-buffers",
        "pp-stage-errors",
    },
    "pp-intermediate-buffers.leader": {"pp-stage-errors"},
    "pp-intermediate-buffers.worker": {"pp-intermediate-buffers"},
    "pp-spec-drafter": {"pp-spec-drafter"},
    "headless-module-entry.worker": {"headless-module-entry"},
    "headless-module-entry.leader": set(),
    "cpu-ngram": {"cpu-ngram"},
    "ernie45-tied-pp": {"ernie45-tied-pp"},
    "granite-hybrid-pp-load": {"granite-hybrid-pp-load"},
}


@pytest.mark.parametrize("names", REAL)
def test_the_logs_of_real_servers(names: str) -> None:
    files = [str(Path(__file__).with_name("logs") / f"{name}.log") for name in names.split()]
    done = launch(sys.executable, "explain", *files, "--json")
    document = json.loads(done.stdout)
    assert {fix["id"] for fix in document["fixes"]} == REAL[names]
    assert document["releases"] == ["0.30.0"]
    assert done.returncode == (0 if REAL[names] else 1)
    for fix in document["fixes"]:
        assert fix["profiles"] == {"v0.30.0": {"need": "offered", "why": ""}}
