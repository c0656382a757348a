"""The command line itself: words, outputs, documents and exit codes."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from pathlib import Path

import places
import pytest
from places import KEYS, Place
from release import BUNDLE, CHECKOUT, FIXED, PROFILE, launch

from fixes import cli
from fixes.errors import PRECEDENCE, ExitCode
from fixes.verbs import VERBS


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return places.environment(tmp_path / "env")


@pytest.fixture
def tree(tmp_path: Path) -> Place:
    return places.unpacked(tmp_path / "tree")


def test_help_of_everything() -> None:
    overview = launch(sys.executable, "--help")
    assert overview.returncode == 0
    assert launch(sys.executable).returncode == 2
    verbs = re.findall(r"^  (\w+) ", overview.stdout, re.MULTILINE)
    assert {"apply", "status", "verify", "revert", "list", "show", "diff", "lock"} <= set(verbs)
    for verb in verbs:
        done = launch(sys.executable, verb, "--help")
        assert done.returncode == 0 and f"usage: vllm-fixes {verb}" in done.stdout, done.stderr
        assert launch(sys.executable, verb, "-h").stdout == done.stdout


def test_what_a_hint_says_to_run_can_be_run() -> None:
    """A checkout has no command `vllm-fixes`."""
    said = launch(sys.executable, "show", "nothing-like-it").stderr
    command = re.search("`(.*)` shows all", said)
    assert command
    program, launcher, verb = command[1].split()
    assert (program, verb) == ("python3", "list")
    assert launch(sys.executable, verb, launcher=Path(launcher)).returncode == 0


def test_the_version() -> None:
    from fixes import __version__

    assert launch(sys.executable, "--version").stdout == f"vllm-fixes {__version__}\n"


WRONG = {
    "a fix": (("begn",), "no fix or bundle begn", "did you mean begin?"),
    "a bundle": (("pipeline-paralel",), "no fix or bundle", "did you mean pipeline-parallel?"),
    "nothing like a fix": (("qqq",), "no fix or bundle qqq", "list --profile v0.30.0"),
    "a verb": (("stauts",), "no fix or bundle stauts", "did you mean status?"),
    "a verb that is not first": (("begin", "status"), "status is no fix but a verb", "comes first"),
    "an option": (("begin", "--dry-rnu"), "--dry-rnu", "did you mean --dry-run?"),
    "an option with a value": (("begin", "--profle=x"), "--profle", "did you mean --profile?"),
    "an option cut short": (("begin", "--dry"), "--dry", "did you mean --dry-run?"),
    "an option of another verb": (("status", "--all"), "--all", "status --help"),
    "an empty digest": (("begin", "--expect-digest", ""), "must not be empty", "--help"),
    "an empty interpreter": (("begin", "--python", ""), "must not be empty", "--help"),
    "an empty folder": (("begin", "--tree", ""), "must not be empty", "--help"),
    "an empty fix": (("begin", ""), "must not be empty", "--help"),
    "a time that is none": (("begin", "--wait", "soon"), "'soon' is no number of seconds", ""),
    "a time before now": (("begin", "--wait", "-5"), "'-5' is no number of seconds", ""),
    "a time that never comes": (("begin", "--wait", "inf"), "'inf' is no number of seconds", ""),
    "not a number": (("revert", "begin", "--wait", "nan"), "'nan' is no number of seconds", ""),
    "a level": (("begin", "--verify", "probes"), "invalid choice: 'probes'", "--help"),
    "a profile": (("begin", "--profile", "0.30.0"), "no profile '0.30.0'", "v0.30.0"),
    "a profile elsewhere": (("begin", "--profile", "../x"), "no profile '../x'", "v0.30.0"),
    "no fix": ((), "required: FIX", "--help"),
    "nothing to revert": (("revert",), "name the fixes to take out, or give --all", ""),
    "too much to revert": (("revert", "begin", "--all"), "or give --all", ""),
    "no such path": (
        ("begin", "--allow-foreign", "vllm/x.py"),
        "--allow-foreign vllm/x.py: no fix touches this file",
        "",
    ),
    "a level that needs more": (("begin", "--verify", "probe"), "needs an interpreter", "--python"),
    "no such interpreter": (("begin", "--python", "/x/python"), "no such executable file", ""),
}


@pytest.mark.parametrize("case", WRONG)
def test_words_that_are_wrong(tree: Place, case: str) -> None:
    arguments, what, hint = WRONG[case]
    if not arguments:
        arguments = ("--quiet",)
    said = tree.fails(2, *arguments)
    assert what in said and hint in said and "Traceback" not in said
    document = tree.json(*arguments)
    assert document["exit"] == 2 and set(document) == KEYS
    assert tree.is_pristine()


def given(verb: str) -> list[argparse.Action]:
    """What a verb takes a value for."""
    parser = argparse.ArgumentParser()
    module = importlib.import_module(f"fixes.commands.{VERBS[verb].module}")
    module.add_arguments(parser)
    return [action for action in parser._actions if action.nargs != 0]


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_takes_an_empty_value(verb: str) -> None:
    """Each of them, so that a new option cannot be forgotten."""
    assert given(verb)
    for action in given(verb):
        if action.choices is not None:
            assert "" not in action.choices
            continue
        assert callable(action.type), f"{verb}: {action.dest}"
        with pytest.raises((argparse.ArgumentTypeError, ValueError)):
            action.type("")


CHANGING = {"apply", "revert", "overlay", "launch", "wheel", "bundle", "pin", "lock"}


@pytest.mark.parametrize("verb", VERBS)
def test_only_a_verb_that_could_change_something_says_that_it_has_not(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([verb, "--no-such-option"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("usage: ")
    assert ("Nothing was changed." in err) == (verb in CHANGING)


def test_a_report_of_a_verb_that_changes_nothing_does_not_say_so(tree: Place) -> None:
    done = tree.run("verify", "begin", "--profile", PROFILE)
    assert done.returncode == 1 and done.stderr.startswith("pending: ")
    assert "Nothing was changed." not in done.stderr


EMPTY = [
    ("list", "--profile="),
    ("list", "--profiles="),
    ("show", "begin", "--profile="),
    ("show", "begin", "--profiles="),
    ("show", ""),
    ("explain", ""),
    ("lock", "--profile="),
    ("lock", "--cache="),
    ("lock", "--python="),
    ("bundle", "--to", "/nowhere/x", "--profile="),
    ("wheel", "vllm==0.30.0", "", "--to", "/nowhere"),
    ("pin", "", "--source", "a=/nowhere"),
    ("pin", "fixes", "--source", "a="),
]


@pytest.mark.parametrize("words", EMPTY, ids=" ".join)
def test_an_empty_value_is_no_default(words: tuple[str, ...]) -> None:
    done = launch(sys.executable, *words, cwd=CHECKOUT)
    assert (done.returncode, done.stdout) == (2, "")
    assert "must not be empty" in done.stderr or "is no label and a folder" in done.stderr


def test_no_time_at_all_is_a_time(tree: Place) -> None:
    tree.ok("begin", "--wait", "0")


def test_profiles_that_are_none(tmp_path: Path) -> None:
    done = launch(sys.executable, "begin", "--tree", tmp_path, "--profiles", tmp_path)
    assert done.returncode == 2 and "does not hold the folders" in done.stderr


def test_list_and_show_know_the_profile() -> None:
    root = ("--profiles", places.standard().root)
    done = launch(sys.executable, "list", *root)
    assert done.returncode == 0
    assert "v0.30.0 (vLLM 0.30.0)" in done.stdout and "pipeline-parallel: all" in done.stdout
    assert re.search(r"upstream +already-upstream +What upstream is about", done.stdout)
    document = json.loads(launch(sys.executable, "list", "--json", *root).stdout)
    assert [fix["id"] for fix in document["profiles"][0]["fixes"]][:3] == ["begin", "stop", "end"]
    done = launch(sys.executable, "show", "stop", *root)
    for part in ("What stop is about", "it does not work", "behaviour", "edit patches/stop/edit"):
        assert part in done.stdout
    assert "    vllm/added.py" in done.stdout
    document = json.loads(launch(sys.executable, "show", "stop", "--json", *root).stdout)
    assert document["profiles"][0]["files"] == ["vllm/core.py", "vllm/crlf.py", "vllm/added.py"]
    done = launch(sys.executable, "show", "stp", *root)
    assert done.returncode == 2 and "did you mean stop?" in done.stderr
    assert launch(sys.executable, "list", "--profile", "v1", *root).returncode == 2


def test_status_says_what_is_in(place: Place) -> None:
    first = place.json("status")
    assert {line["verdict"] for line in first["fixes"]} == {
        "pending",
        "already-upstream",
        "not-needed",
    }
    assert first["level"] == "none" and first["exit"] == 0
    place.ok("begin")
    document = place.json("status")
    assert {line["id"]: line["verdict"] for line in document["fixes"]} == {
        "begin": "applied",
        "stop": "pending",
        "end": "pending",
        "work": "pending",
        "upstream": "already-upstream",
        "unneeded": "not-needed",
    }
    assert document["level"] == "probe" and document["changed"] == []
    one = place.json("status", "stop")
    assert [(line["id"], line["verdict"]) for line in one["fixes"]] == [("stop", "pending")]
    (place.package / "open.py").write_text("# foreign\n")
    (place.package / "crlf.py").unlink()
    document = place.json("status")
    assert {line["id"]: line["verdict"] for line in document["fixes"]}["end"] == "foreign"
    assert {line["id"]: line["verdict"] for line in document["fixes"]}["stop"] == "missing"
    assert place.json("status", "--expect-digest", document["digest"])["exit"] == document["exit"]


def test_status_of_a_tree_that_does_not_fit(place: Place) -> None:
    place.ok(BUNDLE)
    record = place.info / "RECORD"
    record.write_bytes(
        record.read_bytes().replace(b"vllm/core.py,sha256=", b"vllm/core.py,sha256=x")
    )
    assert [problem["kind"] for problem in place.json("status")["problems"]] == ["record"]
    place.ok(BUNDLE)
    place.state.write_bytes(place.state.read_bytes()[:-9])
    assert [problem["kind"] for problem in place.json("status")["problems"]] == ["damaged-state"]
    place.ok(BUNDLE)
    (place.package / "core.py").write_text("# foreign\n")
    assert "foreign" in {problem["kind"] for problem in place.json("status")["problems"]}


def test_verify_reaches_every_level_anew(place: Place) -> None:
    assert "no fix is in this tree" in place.fails(1, "verify")
    assert "begin is not in" in place.fails(1, "verify", "begin")
    place.ok("begin", "--verify", "bytes")
    assert place.json("status")["level"] == "bytes"
    for level in ("bytes", "import", "probe"):
        document = place.json("verify", "--verify", level)
        assert document["exit"] == 0 and document["level"] == level
    assert "1 of 1 probes passed" in place.ok("verify")
    assert "end is not in" in place.fails(1, "verify", "begin", "end")
    (place.package / "core.py").write_text("# foreign\n")
    assert "foreign" in place.fails(1, "verify")


def test_an_already_applied_run_proves_what_was_not_proven(place: Place) -> None:
    place.ok("begin", "--verify", "bytes")
    assert "modules imported" in place.ok("begin", "--verify", "import")
    assert "1 of 1 probes passed" in place.ok("begin")
    assert "probe was reached before" in place.ok("begin")
    installed = place.site / "other-1.0.dist-info"
    installed.mkdir()
    assert "1 of 1 probes passed" in place.ok("begin")


def test_text_ends_with_the_digest_and_is_plain(tree: Place) -> None:
    first, second = tree.ok(BUNDLE), tree.ok(BUNDLE)
    line = first.splitlines()[-1]
    assert re.fullmatch("digest sha256:[0-9a-f]{64}", line) and second.splitlines()[-1] == line
    assert tree.ok(BUNDLE, "--quiet") == f"level bytes\n{line}\n"
    assert "\x1b" not in first


def test_documents_have_one_shape(place: Place) -> None:
    assert set(place.json(BUNDLE, "--dry-run")) == KEYS
    applied = place.json(BUNDLE)
    again = place.json(BUNDLE)
    for document in (applied, again, place.json("status"), place.json("verify")):
        assert set(document) == KEYS and document["digest"] == applied["digest"]
        assert document["problems"] == []
    assert applied["changed"] == sorted(FIXED) and again["changed"] == []
    assert {line["verdict"] for line in again["fixes"]} == {
        "already-applied",
        "already-upstream",
        "not-needed",
    }
    reverted = place.json("revert", "--all")
    assert set(reverted) == KEYS and reverted["verb"] == "revert"
    for arguments in (("nothing",), ("status", "--profile", "x"), ("--nope",)):
        document = place.json(*arguments)
        assert set(document) == KEYS
        for problem in document["problems"]:
            assert set(problem) == {"code", "kind", "what", "where", "hint"}


def test_a_fault_of_ours_is_reported_as_one(tree: Place) -> None:
    broken = places.behind(
        "import fixes.plan\n"
        "def make(*given, **more): raise RuntimeError('a fault')\n"
        "fixes.plan.make = make"
    )
    said = tree.fails(9, BUNDLE, **broken)
    assert "internal: this is a fault of vllm-fixes" in said and "RuntimeError: a fault" in said
    assert "Traceback" not in said and "arguments: pipeline-parallel" in said
    document = tree.json(BUNDLE, **broken)
    assert document["problems"][0]["kind"] == "internal" and set(document) == KEYS
    assert tree.is_pristine()


def test_a_fault_of_ours_is_reported_without_what_is_secret(monkeypatch, capsys) -> None:
    from fixes.commands import parity

    def fail(options: argparse.Namespace) -> int:
        raise RuntimeError("a fault")

    monkeypatch.setattr(parity, "run", fail)
    words = ["parity", "http://user:hidden@a/", "https://plain:8000", "--", "--api-key", "hidden"]
    assert cli.main(words[:3]) == 9
    said = capsys.readouterr().err
    assert "arguments: parity http://a/ https://plain:8000\n" in said
    assert "hidden" not in cli._without_secrets(words)


def test_a_fault_of_ours_while_writing_is_rolled_back(place: Place) -> None:
    broken = places.behind(
        "import fixes.verify\n"
        "def run(*given): raise RuntimeError('a fault')\n"
        "fixes.verify.run = run"
    )
    place.fails(9, BUNDLE, **broken)
    assert place.is_pristine()


def test_every_exit_code_has_its_place() -> None:
    """Interruptions and faults first, then what design says of several at once."""
    assert set(PRECEDENCE) == set(ExitCode) - {ExitCode.OK}
    order = [code for code in PRECEDENCE if code in (3, 4, 1, 10, 6)]
    assert order == [3, 4, 1, 10, 6]


def test_the_profiles_that_come_with_the_checkout_are_the_default() -> None:
    done = launch(sys.executable, "list", "--json")
    names = [profile["profile"] for profile in json.loads(done.stdout)["profiles"]]
    assert PROFILE in names
