"""A look at a tree in which something else is in the place of a file: named, nothing waited for."""

from __future__ import annotations

import shutil
from pathlib import Path

import places
import pytest
from release import BUNDLE
from unreadable import UNREADABLE, clear, spoil

#: A run that waits for a pipe or reads terabytes ends by this many seconds.
SOON = 30


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_is_no_file_is_named(tmp_path: Path, what: str) -> None:
    place = places.unpacked(tmp_path / "site")
    place.ok(BUNDLE)
    kept = tmp_path / "kept"
    shutil.copytree(place.site, kept)
    record = place.info / "RECORD"
    spoilt = {
        place.package / "core.py": (1, "foreign"),
        place.package / "added.py": (1, "foreign"),
        place.state: (1, "damaged-state"),
        record: (6, "unreadable"),
    }
    for path, (code, kind) in spoilt.items():
        spoil(path, what)
        for command in (("status",), ("verify",), (BUNDLE,), ("revert", "--all")):
            document = place.json(*command, timeout=SOON)
            (problem,) = document["problems"]
            told = document["exit"], problem["kind"], problem["where"]
            assert told == (code, kind, str(path)), command
        clear(path)
        shutil.copy(kept / path.relative_to(place.site), path)
    assert places.snapshot(place.site) == places.snapshot(kept)
    place.ok("status")


def test_several_are_reported_at_once(tmp_path: Path) -> None:
    place = places.unpacked(tmp_path / "site")
    place.ok(BUNDLE)
    spoilt = [place.package / "core.py", place.package / "open.py", place.state]
    for path in spoilt:
        spoil(path, "folder")
    told = {problem["where"] for problem in place.json("status")["problems"]}
    assert told == set(map(str, spoilt))
