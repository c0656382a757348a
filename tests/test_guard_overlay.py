"""The guard where an overlay serves the fixed modules."""

from __future__ import annotations

import types
from pathlib import Path

import places
import pytest
from places import Place
from release import BUNDLE
from test_guard import build, guard, start, starts, stopped

from fixes.digest import seal, unseal


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The small release as it was published, and the guard."""
    made = places.environment(tmp_path / "env")
    assert build("--install", python=made.python or "").returncode == 0
    return made


@pytest.fixture
def overlay(place: Place, tmp_path: Path) -> Path:
    place.ok("overlay", BUNDLE, "--to", tmp_path / "overlay")
    return tmp_path / "overlay"


class Hook:
    """What an overlay's start-up hook leaves in sys.meta_path."""

    def __init__(self, folder: Path) -> None:
        self.vllm_fixes_overlay = str(folder)


def examined(place: Place, overlay: Path, **modules: str) -> tuple[str, int]:
    """What the guard says in a process whose modules are from these files."""
    found = {"vllm": types.ModuleType("vllm")}
    found["vllm"].__path__ = [str(place.package)]
    files = {"vllm": str(place.package / "__init__.py")}
    for name, file in {**files, **{f"vllm.{k}": v for k, v in modules.items()}}.items():
        found.setdefault(name, types.ModuleType(name)).__file__ = file
    answer: tuple[str, int] = guard.examine(found, [str(overlay)], None, [Hook(overlay)])
    return answer


def test_an_overlay_that_is_in_use(place: Place, overlay: Path) -> None:
    done = start(place, "vllm.core", "vllm.added", PYTHONPATH=str(overlay))
    digest = unseal((overlay / "overlay.json").read_bytes())["digest"]
    starts(done, f"5 files are as recorded, digest sha256:{digest}")
    wanted = start(place, "vllm.core", PYTHONPATH=str(overlay), FIXES_DIGEST=digest)
    starts(wanted)


def test_an_overlay_that_was_left_away(place: Place, overlay: Path) -> None:
    said = f"no fixes are recorded for {place.package}"
    stopped(start(place), said, "or put the overlay that is meant on PYTHONPATH")


def test_an_overlay_whose_hook_did_not_run(place: Place, overlay: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    (first / "sitecustomize.py").write_text("")
    done = start(place, PYTHONPATH=f"{first}:{overlay}")
    stopped(done, f"{overlay} is an overlay on the search path that is not in use", "put it first")


def test_an_overlay_that_changed_since_its_hook_looked(place: Place, overlay: Path) -> None:
    count = examined(place, overlay)[1]
    assert count == 5
    file = overlay / "post-images/vllm/core.py"
    file.write_text("changed")
    with pytest.raises(guard.WrongError, match=f"{file} has changed since"):
        examined(place, overlay)


def test_a_module_that_another_finder_served(place: Place, overlay: Path, tmp_path: Path) -> None:
    served = overlay / "post-images/vllm/core.py"
    examined(place, overlay, core=str(served))
    for other in (place.package / "core.py", tmp_path / "other/core.py"):
        with pytest.raises(guard.WrongError, match=f"imported from {other}, not from {served}"):
            examined(place, overlay, core=str(other))


def test_a_module_that_gives_the_installed_path(place: Place, overlay: Path) -> None:
    manifest = overlay / "overlay.json"
    body = unseal(manifest.read_bytes())
    for file in body["files"]:
        file["located"] = True
    manifest.write_bytes(seal(body))
    examined(place, overlay, core=str(place.package / "core.py"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (b"", "is damaged"),
        (seal({"files": []}), "is not one that vllm-fixes wrote"),
        (seal({"targets": {}, "files": [], "digest": ""}), "is not one that vllm-fixes wrote"),
    ],
)
def test_a_manifest_that_is_none(place: Place, overlay: Path, what: bytes, said: str) -> None:
    (overlay / "overlay.json").write_bytes(what)
    with pytest.raises(guard.WrongError, match=said):
        examined(place, overlay)


def test_an_overlay_that_holds_no_file(place: Place, tmp_path: Path) -> None:
    """All that was asked for is upstream: there was nothing to put into it."""
    folder = tmp_path / "empty"
    place.ok("overlay", "upstream", "unneeded", "--to", folder)
    done = start(place, PYTHONPATH=str(folder))
    stopped(done, f"{folder} is an overlay in use that holds no file", "take the guard out")
