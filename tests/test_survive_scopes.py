"""--scope-lock through the real command line: other bytes are edited where the syntax is pinned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import places
import pytest
from places import Place
from release import CORE, FIXED

#: A build from source: a comment more, another layout in the very function, one more class.
BUILT = (
    "# Built here.\n"
    + CORE.replace(
        "        self.ready = False\n        return 1",
        "        self.ready=False # no\n\n        return (1)",
    )
    + "\n\nclass Other:\n    def stop(self):\n        return 1\n"
)
WANTED = BUILT.replace("        return (1)", "        self.stopped = True\n        return (1)")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = places.environment(tmp_path / "env")
    write(made, BUILT)
    return made


def write(place: Place, text: str) -> None:
    core = place.package / "core.py"
    core.write_text(text)
    place.pristine["vllm/core.py"] = text.encode()


def test_other_bytes_of_the_same_syntax_are_edited_and_said_so(place: Place) -> None:
    before = places.identities(place.site)
    assert place.json("stop")["problems"][0]["kind"] == "foreign"
    assert places.identities(place.site) == before
    document = place.json("stop", "--scope-lock")
    assert document["exit"] == 0 and document["level"] == "probe"
    assert document["accepted"][0].startswith("same syntax in vllm/core.py, sha256 ")
    assert (place.package / "core.py").read_text() == WANTED
    assert (place.package / "crlf.py").read_bytes() == FIXED["vllm/crlf.py"]
    # The state knows it: later runs need not ask for it, and say so again.
    again = place.json("stop")
    assert again["exit"] == 0 and again["accepted"] == document["accepted"]
    assert again["changed"] == [] and again["digest"] == document["digest"]
    assert place.json("verify", "stop")["exit"] == 0
    assert place.json("status")["exit"] == 0
    place.ok("end")
    place.ok("revert", "--all")
    assert place.is_pristine()


def test_other_syntax_is_drifted_and_nothing_is_written(place: Place) -> None:
    for old, new in (
        ("        return (1)", "        return (2)"),
        ("class Engine:", "class Engine(dict):"),
        (
            "    def stop(self):\n        self.ready=False",
            "    def halt(self):\n        self.ready=False",
        ),
    ):
        write(place, BUILT.replace(old, new, 1))
        before = places.identities(place.site)
        document = place.json("stop", "--scope-lock")
        kinds = [problem["kind"] for problem in document["problems"]]
        assert document["exit"] == 1 and "drifted" in kinds, (old, document["problems"])
        assert places.identities(place.site) == before


def test_a_diff_has_no_scopes(place: Place) -> None:
    document = place.json("begin", "--scope-lock")
    assert document["exit"] == 1
    assert document["problems"][0]["kind"] == "foreign"


def test_a_fixed_file_without_its_state_is_never_edited_twice(place: Place) -> None:
    place.ok("stop", "--scope-lock")
    place.state.unlink()
    fixed = (place.package / "core.py").read_bytes()
    document = place.json("stop", "--scope-lock")
    assert document["exit"] == 1
    assert (place.package / "core.py").read_bytes() == fixed


def test_on_pristine_files_it_changes_nothing(tmp_path: Path) -> None:
    plain = places.environment(tmp_path / "plain")
    scoped = places.environment(tmp_path / "scoped")
    one = plain.json("stop")
    other = scoped.json("stop", "--scope-lock")
    assert one["digest"] == other["digest"] and other["accepted"] == []


def test_every_mismatch_is_told_in_one_run(place: Place) -> None:
    write(place, BUILT.replace("return (1)", "return (2)"))
    (place.package / "crlf.py").write_bytes(b'def other():\r\n    return "c"\r\n')
    kinds = [
        (problem["where"], problem["kind"])
        for problem in place.json("stop", "--scope-lock")["problems"]
    ]
    assert ("vllm/core.py", "drifted") in kinds and ("vllm/crlf.py", "drifted") in kinds


def test_what_was_accepted_once_is_held_against_the_lock_of_today(
    place: Place, tmp_path: Path
) -> None:
    """A later lock pins other syntax: its edits must not be done on what was accepted before."""
    place.ok("stop", "--scope-lock")
    root = tmp_path / "root"
    shutil.copytree(place.release.root, root)
    lock = root / "profiles/v0.30.0.lock.json"
    document = json.loads(lock.read_text())
    for step in document["fixes"]["stop"]["steps"]:
        for change in step["changes"]:
            for scope in change.get("scopes", []):
                scope["sha256"] = "0" * 64
    lock.write_text(json.dumps(document))
    before = places.identities(place.site)
    for arguments in (("stop",), ("end",), ("stop", "--scope-lock"), ("verify", "stop")):
        place.release = elsewhere(root)
        found = place.json(*arguments)
        kinds = [problem["kind"] for problem in found["problems"]]
        assert found["exit"] == 1 and "drifted" in kinds, (arguments, found["problems"])
    assert places.identities(place.site) == before


def elsewhere(root: Path) -> Any:
    """A release whose authored files lie elsewhere."""
    return SimpleNamespace(root=root)


def test_how_a_file_was_accepted_is_remembered(tmp_path: Path) -> None:
    """By its name: other code too, and every later run; as the same syntax: no diff."""
    named = places.environment(tmp_path / "named")
    write(named, CORE.replace("class Engine:", "class Engine(dict):") + "\n\nMORE = 2\n")
    assert named.json("stop", "--scope-lock")["exit"] == 1
    named.ok("stop", "--allow-foreign", "vllm/core.py")
    for arguments in (("stop",), ("verify", "stop"), ("status",), ("end",), ("revert", "end")):
        document = named.json(*arguments)
        assert document["exit"] == 0, (arguments, document["problems"])
    named.ok("revert", "--all")
    assert named.is_pristine()

    scoped = places.environment(tmp_path / "scoped")
    write(scoped, BUILT)
    scoped.ok("stop", "--scope-lock")
    before = places.identities(scoped.site)
    document = scoped.json("begin")  # a diff in the same file
    assert document["exit"] == 1
    assert [problem["kind"] for problem in document["problems"]] == ["foreign"]
    assert places.identities(scoped.site) == before


def test_what_nothing_knows_cannot_be_reverted(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    open_ = place.package / "open.py"
    open_.write_text("# Ours.\n" + open_.read_text())
    place.ok("end", "--allow-foreign", "vllm/open.py")
    place.state.unlink()
    before = places.identities(place.site)
    for arguments in (("revert", "end"), ("revert", "--all")):
        document = place.json(*arguments)
        assert document["exit"] == 1, arguments
        (problem,) = document["problems"]
        assert problem["what"] == "nothing says whether it holds end"
    assert places.identities(place.site) == before
    # The file of another fix says nothing about this one.
    assert place.json("revert", "begin")["exit"] == 0
