"""What a killed run left without a journal, and edits by others, seen from the command line."""

from __future__ import annotations

from pathlib import Path

import places
import pytest
from release import BUNDLE

STEM = ".fixes-0badcafe-3"


@pytest.mark.parametrize("applied", [False, True], ids=["pristine", "applied"])
def test_leftovers_that_no_journal_knows_of_are_removed(tmp_path: Path, applied: bool) -> None:
    place = places.unpacked(tmp_path / "site")
    if applied:
        place.ok(BUNDLE)
    for name in (f"{STEM}.old", f"{STEM}.new", ".fixes-theirs"):
        (place.package / name).write_bytes(b"left")
        (place.info / name).write_bytes(b"left")
    verb = ("revert", "--all") if applied else (BUNDLE,)
    notes = place.json(*verb)["notes"]
    assert any("leftovers" in note for note in notes)
    assert not list(place.site.rglob(f"{STEM}*"))
    assert len(list(place.site.rglob(".fixes-theirs"))) == 2
