"""``explain``: which fixes a log's lines call for."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path

import pytest
from release import FIXES, Release, launch

from fixes import catalogue, lock, signs
from fixes.lock import Need

LOGS = {
    "begin": [["Worker_PP1", "AssertionError: not ready"], "Engine.start gave up"],
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
    assert "begin: What begin is about" in said
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


ANOTHER = "this release has the change already, so this is another fault"


def test_what_is_not_offered_says_why_and_is_no_success(release: Release) -> None:
    log = "an old, well known line\nthere is no such file\n"
    code, said = explain(release, log)
    assert code == 1
    assert f"already-upstream in v0.30.0: since 0.29.0; {ANOTHER}" in said
    assert "not-needed in v0.30.0: this release has no such file" in said
    assert "Nothing that matches is offered for v0.30.0." in said
    assert " offered in" not in said and "we do not know" not in said
    code, said = explain(release, log + "KeyError: 'cmpl-7'\n")
    assert code == 0 and "offered in v0.30.0" in said and "Nothing" not in said


def of_profiles(need: Need | None) -> tuple[str, lock.Fix, list[str]]:
    """A release, a fix of which its profile says this (or nothing), and who offers that fix."""
    locks = [catalogue.find().lock(name) for name in catalogue.find().profiles()]
    every = {fix.id: fix for one in locks for fix in one.fixes.values() if fix.log}
    for one in locks:
        for fix in every.values():
            here = one.fixes[fix.id].need if fix.id in one.fixes else None
            offering = [
                other.profile
                for other in locks
                if fix.id in other.fixes and other.fixes[fix.id].need is Need.OFFERED
            ]
            if here is need and offering:
                return one.release, fix, offering
    raise AssertionError(f"no profile says {need} of a fix that has a log")


@pytest.mark.parametrize("need", [*Need, None])
@pytest.mark.parametrize("by", ["log", "option"])
def test_only_what_the_release_is_offered_is_a_success(need: Need | None, by: str) -> None:
    named, fix, offering = of_profiles(need)
    log = "\n".join(fix.log[0])
    words: tuple[str, ...] = ("--profile", f"v{named}")
    if by == "log":
        log, words = f"vLLM server version {named}, serving model m\n{log}", ()
    done = launch(sys.executable, "explain", "-", *words, input=log.encode())
    assert done.returncode == (0 if need is Need.OFFERED else 1), done.stdout
    said = done.stdout
    assert f"\n{fix.id}: {fix.title}\n" in said
    assert (f"already-upstream in v{named}: " in said) == (need is Need.UPSTREAM)
    assert (ANOTHER in said) == (need is Need.UPSTREAM)
    assert (f"not-needed in v{named}: " in said) == (need is Need.NOT_NEEDED)
    assert (f"  not in v{named}\n" in said) == (need is None)
    if need is Need.OFFERED:
        assert f"  offered in v{named}" in said
    else:
        assert f"  offered in {', '.join(offering)} alone\n" in said
        assert f"Nothing that matches is offered for v{named}." in said
    done = launch(sys.executable, "explain", "-", *words, "--json", input=log.encode())
    told = {one["id"]: one for one in json.loads(done.stdout)["fixes"]}[fix.id]
    assert told["title"] == fix.title and told["offered_in"] == offering
    assert list(told["profiles"]) == ([f"v{named}"] if need else [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_byte_order_mark_says_how_a_log_is_written(release: Release, encoding: str) -> None:
    text = "größer ✓\r\n" * 9 + "vLLM server version 0.30.0, x\r\nKeyError: 'cmpl-1'\r\n"
    mark = "\ufeff" if encoding in ("utf-16-le", "utf-16-be") else ""
    code, said = explain(release, (mark + text).encode(encoding))
    assert code == 0 and "11 lines of vLLM 0.30.0" in said and "  -:11: KeyError: 'cmpl-1'" in said


@pytest.mark.parametrize("size", [1, 2, 3, 1 << 16])
def test_any_bytes_give_lines(size: int) -> None:
    class Slow(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            return super().read(min(size, count or size))

    for text in ("", "a", "a\n", "\n", "a\r\nb\n\n", "é\n\u2028x\n", "x" * (1 << 17) + "\ny"):
        wanted = [line.rstrip("\n") for line in io.StringIO(text, newline="\n")]
        assert list(signs.lines(Slow(text.encode()))) == wanted
        if size > 2:  # else the mark comes in parts
            assert list(signs.lines(Slow(text.encode("utf-16")))) == wanted
    for data in (b"\xff", b"\xff\xfe", b"\xfe\xff\xd8", b"\xef\xbb", b"a\xf0\x9f\nb\0\n"):
        assert len(list(signs.lines(Slow(data)))) <= 2


def test_standard_input_that_is_closed_is_named(release: Release) -> None:
    words = ("explain", "-", "/nowhere/x.log", "--profiles", release.root)
    closed = ("sh", "-c", 'exec "$@" <&-', "sh")
    done = launch(sys.executable, *words, before=closed)
    assert done.returncode == 2
    assert "unreadable: -: standard input is closed" in done.stderr
    assert "unreadable: /nowhere/x.log: cannot be read" in done.stderr
    assert "NoneType" not in done.stderr


def test_a_terminal_s_colours_and_broken_bytes_hide_nothing(release: Release) -> None:
    coloured = b"\xff\xff \x1b[0;36m(EngineCore)\x1b[0;0m \x1b[31mKeyError: \x1b[1m'cmpl-1'\x1b[0m"
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
    assert fix["id"] == "begin" and fix["profiles"]["v0.30.0"]["need"] == "offered"
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
