"""The fixed wheel of a small release: what is in it, who takes it, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import installs
import places
import pytest
from installer.sources import WheelFile
from places import KEYS, STATE
from release import BUNDLE, FILES, FIXED, launch

from fixes import fixedwheel

PYTHONS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[0-9]*/bin/python"))
ROOT = ("--profiles", places.standard().root)
STOCK = places.standard().wheel
INFO = "vllm-0.30.0.dist-info"


def run(wheel: Path | str, to: Path, *arguments: str | Path, **options: Any) -> dict[str, Any]:
    """The document of one command line."""
    names = () if {BUNDLE, "begin", "stop", "end", "work"} & set(arguments) else (BUNDLE,)
    python = options.pop("python", sys.executable)
    done = launch(
        python, "wheel", wheel, *names, *arguments, "--to", to, "--json", *ROOT, **options
    )
    assert "Traceback" not in done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["exit"] == done.returncode
    return document


def made(wheel: Path | str, to: Path, *arguments: str | Path, **options: Any) -> Path:
    """The wheel that a command line makes."""
    document = run(wheel, to, *arguments, **options)
    assert document["exit"] == 0, document["problems"]
    assert set(document) == KEYS | {"wheel"} and document["verb"] == "wheel"
    path = Path(document["wheel"]["file"])
    data = path.read_bytes()
    assert document["wheel"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert document["wheel"]["bytes"] == len(data)
    return path


@pytest.fixture(scope="module")
def digest() -> str:
    """What the digest is wherever the bundle is in."""
    there = ("--tree", places.unpacked(places.shop() / "for-its-digest").site)
    done = launch(sys.executable, BUNDLE, "--dry-run", "--json", *there, *ROOT)
    found: str = json.loads(done.stdout)["digest"]
    return found


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(STOCK, tmp_path_factory.mktemp("fixed"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def checked(wheel: Path) -> None:
    """RECORD lists every file with its true hash, as `installer` looks at it."""
    with WheelFile.open(wheel) as source:
        source.validate_record(validate_contents=True)


def test_it_holds_the_fixes_and_else_what_it_held(fixed: Path, digest: str) -> None:
    label = f"0.30.0+fixes.d{digest[:12]}"
    assert fixed.name == f"vllm-{label}-py3-none-any.whl"
    now = contents(fixed)
    info = f"vllm-{label}.dist-info"
    assert {name: now[name] for name in FIXED} == FIXED
    before = contents(STOCK)
    own = {"METADATA", "RECORD", STATE}
    assert (
        now.keys() - {f"{info}/{name}" for name in own} - FIXED.keys()
        == {name.replace(INFO, info) for name in before if name.rpartition("/")[2] not in own}
        - FIXED.keys()
    )
    for name, data in before.items():
        if name not in FIXED and name.rpartition("/")[2] not in own:
            assert now[name.replace(INFO, info)] == data, name
    metadata = before[f"{INFO}/METADATA"].replace(b"Version: 0.30.0", b"Version: " + label.encode())
    assert now[f"{info}/METADATA"] == metadata
    checked(fixed)
    state = json.loads(now[f"{info}/{STATE}"])
    assert (state["digest"], state["release"]) == (digest, label)
    assert state["verified"] is state["answer"] is None
    for file in state["files"]:
        pristine = before.get(file["path"])
        packed = base64.b64decode(file["packed"])
        assert (zlib.decompress(packed) if packed else None) == pristine


def test_what_is_not_touched_is_not_packed_again(fixed: Path) -> None:
    packed, raw = [], []
    for path in (STOCK, fixed):
        with zipfile.ZipFile(path) as archive:
            packed.append({item.filename: item for item in archive.infolist()})
        raw.append(path.read_bytes())
    for name in packed[0].keys() - FIXED.keys() - {f"{INFO}/METADATA", f"{INFO}/RECORD"}:
        one, other = packed[0][name], packed[1].get(name)
        if other is None:
            continue  # its folder is called after the version
        for key in ("date_time", "compress_type", "compress_size", "external_attr", "flag_bits"):
            assert getattr(one, key) == getattr(other, key), name
        span = len(name) + 30 + one.compress_size
        assert raw[0][one.header_offset :][:span] == raw[1][other.header_offset :][:span], name


# Installed


def by_pip(python: Path, wheel: Path) -> None:
    installs.pip_install(python, str(wheel))


def by_uv(python: Path, wheel: Path) -> None:
    installs.uv_install(python, str(wheel))


def by_installer(python: Path, wheel: Path) -> None:
    """Without bytecode: what it compiles for -O no uninstall takes out again."""
    command = [sys.executable, "-m", "installer", "--validate-record", "all"]
    command += ["--no-compile-bytecode"]
    prefix = python.parent.parent
    done = subprocess.run(
        [*command, "--prefix", prefix, wheel], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("install", [by_pip, by_uv, by_installer])
@pytest.mark.parametrize("keep", [False, True], ids=["labelled", "kept"])
def test_installed_it_is_known_proven_and_taken_out(
    fixed: Path,
    digest: str,
    tmp_path: Path,
    install: Callable[[Path, Path], None],
    keep: bool,
) -> None:
    wheel = made(STOCK, tmp_path / "kept", "--keep-version") if keep else fixed
    assert not keep or wheel.name == STOCK.name
    python = installs.venv(tmp_path / "env", "pip")
    site = installs.site(python)
    empty = {path.name for path in site.iterdir()}
    install(python, wheel)
    (info,) = site.glob("vllm-*.dist-info")

    def verb(*arguments: str) -> dict[str, Any]:
        done = launch(python, *arguments, "--json", *ROOT)
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["exit"] == 0 == done.returncode, found["problems"]
        return found

    version = "0.30.0" if keep else f"0.30.0+fixes.d{digest[:12]}"
    status = verb("status")
    assert (status["digest"], status["level"]) == (digest, "bytes")
    assert status["trees"][0]["version"] == version
    assert verb("verify", BUNDLE)["level"] == "probe"
    done = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    first = verb(BUNDLE, "--expect-digest", digest)
    assert (first["changed"], first["level"]) == ([], "probe")
    assert {fix["verdict"] for fix in first["fixes"]} <= {
        "already-applied",
        "already-upstream",
        "not-needed",
    }
    assert "was reached before" in verb(BUNDLE)["verification"]
    assert "already-applied" in launch(python, BUNDLE, *ROOT).stdout
    verb("revert", "end")
    verb("end")
    assert verb("revert", "--all")["fixes"]
    for path, text in FILES.items():
        assert (site / path).read_bytes() == text.encode()
    assert not (site / "vllm/added.py").exists() and not (info / STATE).exists()
    verb(BUNDLE)
    if install is by_pip or install is by_uv:
        installs.uv("pip", "uninstall", "--quiet", "--python", str(python), "vllm")
    else:
        command = [python, "-m", "pip", "uninstall", "--quiet", "--yes", "vllm"]
        assert subprocess.run(command).returncode == 0
    assert {path.name for path in site.iterdir()} == empty


def test_a_requirement_of_the_release_is_met(fixed: Path, tmp_path: Path) -> None:
    python = installs.venv(tmp_path / "env", "pip")
    found = ["--no-index", "--find-links", str(fixed.parent)]
    installs.pip_install(python, *found, "vllm==0.30.0")
    installs.pip_install(python, *found, "vllm>=0.29,<0.31")


# The same to the byte


def test_any_python_anywhere_makes_the_same(fixed: Path, tmp_path: Path) -> None:
    assert len(PYTHONS) > 1, "made by one Python alone"
    for number, python in enumerate((PYTHONS[0], PYTHONS[-1])):
        again = made(
            STOCK,
            tmp_path / str(number),
            python=python,
            cwd=tmp_path,
            env={"TZ": ("Asia/Kolkata", "UTC")[number], "TMPDIR": str(tmp_path)},
            before=["sh", "-c", f'umask 0{number}7; exec "$@"', "sh"],
        )
        assert again.name == fixed.name and again.read_bytes() == fixed.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


def test_the_way_does_not_matter(fixed: Path, tmp_path: Path) -> None:
    """One fix at a time, in any order, with and without a label."""
    first = made(STOCK, tmp_path / "a", "end")
    second = made(first, tmp_path / "b", "stop", "--keep-version")
    third = made(second, tmp_path / "c", BUNDLE)
    assert (third.name, third.read_bytes()) == (fixed.name, fixed.read_bytes())
    kept = made(third, tmp_path / "d", BUNDLE, "--keep-version")
    assert kept.read_bytes() == made(STOCK, tmp_path / "e", "--keep-version").read_bytes()


def test_a_wheel_that_is_fixed_already(fixed: Path, tmp_path: Path, digest: str) -> None:
    document = run(fixed, tmp_path)
    assert document["exit"] == 0 and document["changed"] == [] and document["digest"] == digest
    assert "already-applied" in {fix["verdict"] for fix in document["fixes"]}
    assert (tmp_path / fixed.name).read_bytes() == fixed.read_bytes()
    before = fixed.stat()
    document = run(fixed, fixed.parent)
    assert document["exit"] == 0 and document["wheel"] is None
    assert f"{fixed} is fixed already" in document["notes"]
    assert fixed.stat() == before


def test_nothing_to_fix_is_no_new_version(tmp_path: Path) -> None:
    done = launch(sys.executable, "wheel", STOCK, "upstream", "unneeded", "--to", tmp_path, *ROOT)
    assert done.returncode == 0 and "nothing to fix" in done.stdout, done.stderr
    assert contents(tmp_path / STOCK.name) == contents(STOCK)


# Names and versions


@pytest.mark.parametrize(
    ("said", "then"),
    [
        ("0.30.0", "0.30.0+fixes.d0123456789ab"),
        ("0.30.0+cpu", "0.30.0+cpu.fixes.d0123456789ab"),
        ("0.30.0+cu129.g1a2", "0.30.0+cu129.g1a2.fixes.d0123456789ab"),
        ("0.30.0+fixes.dffffffffffff", "0.30.0+fixes.d0123456789ab"),
        ("0.30.0+cpu.fixes.dffffffffffff", "0.30.0+cpu.fixes.d0123456789ab"),
        ("0.30.0+prefixes.dffffffffffff", "0.30.0+prefixes.dffffffffffff.fixes.d0123456789ab"),
    ],
)
def test_the_label_joins_a_label(said: str, then: str) -> None:
    from packaging.version import Version

    assert fixedwheel.version(said, "0123456789ab" + "c" * 52) == then
    assert str(Version(then)) == then
    assert fixedwheel.version(then, "") == fixedwheel.version(said, "")


def wheel(folder: Path, version: str = "0.30.0", **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return installs.wheel(folder, version=version, files={**FILES, **more.pop("files", {})}, **more)


def repacked(
    path: Path,
    change: Callable[[dict[str, bytes]], Mapping[str, bytes]],
    name: str = "",
    record: bool = True,
) -> Path:
    """A wheel with other members, RECORD kept true unless told otherwise."""
    files = dict(change(contents(path)))
    info = next(name.partition("/")[0] for name in files if name.endswith("/WHEEL"))
    if record:
        lines = []
        for each, data in files.items():
            if each == f"{info}/RECORD" or each.endswith(("/", "RECORD.jws")):
                continue
            told = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{each},sha256={told},{len(data)}\n")
        files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    target = path.with_name(name or path.name)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for each, data in files.items():
            archive.writestr(each, data)
    return target


def test_labels_build_tags_data_folders_and_folders(tmp_path: Path, digest: str) -> None:
    stock = wheel(tmp_path, "0.30.0+cpu")
    data = "vllm-0.30.0+cpu.data/scripts/hello"
    stock = repacked(
        stock,
        lambda files: {"vllm/": b"", **files, data: b"#!python\nprint('hello')\n"},
        "vllm-0.30.0+cpu-1local-py3-none-any.whl",
    )
    path = made(stock, tmp_path / "out")
    label = f"0.30.0+cpu.fixes.d{digest[:12]}"
    assert path.name == f"vllm-{label}-1local-py3-none-any.whl"
    assert f"vllm-{label}.data/scripts/hello" in contents(path)
    checked(path)
    python = installs.venv(tmp_path / "env")
    installs.uv_install(python, str(path))
    assert (python.parent / "hello").exists()
    status = json.loads(launch(python, "status", "--json", *ROOT).stdout)
    assert (status["exit"], status["digest"]) == (0, digest)


def test_a_data_folder_may_hold_files_that_no_fix_touches(tmp_path: Path) -> None:
    more = ("purelib/vllm/extra.py", "data/share/vllm/core.py", "headers/vllm/core.py")
    files = {f"vllm-0.30.0.data/{name}": b"# more" for name in more}
    path = made(repacked(wheel(tmp_path), lambda found: {**found, **files}), tmp_path / "out")
    checked(path)
    assert len([name for name in contents(path) if ".data/" in name]) == 3


def test_another_spelling_and_line_ends_stay(tmp_path: Path) -> None:
    def dos(files: dict[str, bytes]) -> dict[str, bytes]:
        metadata = files.pop(f"{INFO}/METADATA").replace(b"\n", b"\r\n")
        metadata = metadata.replace(b"Version:", b"version: ", 1) + b"\r\nVersion: of the text\r\n"
        return {
            **files,
            f"{INFO}/METADATA": metadata.replace(b"Metadata-version: ", b"Metadata-Version:"),
        }

    stock = repacked(wheel(tmp_path), dos)
    path = made(stock, tmp_path / "out")
    (text,) = [data for name, data in contents(path).items() if name.endswith("/METADATA")]
    assert text.count(b"\r\n") == text.count(b"\n") and b"\r\nVersion: of the text\r\n" in text
    checked(path)


def test_descriptors_zip64_and_attributes_are_kept(tmp_path: Path) -> None:
    stock = wheel(tmp_path / "stock", files={"vllm/_C.abi3.so": "\x7fELF" * 5000})

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise io.UnsupportedOperation

    stream = Pipe()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents(stock).items():
            info = zipfile.ZipInfo(name, (2025, 5, 6, 7, 8, 10))
            info.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w", force_zip64=True) as member:
                member.write(data)
        archive.comment = b"kept"
    stock.write_bytes(stream.getvalue())
    path = made(stock, tmp_path / "out")
    checked(path)
    with zipfile.ZipFile(path) as archive:
        item = archive.getinfo("vllm/_C.abi3.so")
        assert item.flag_bits & 8 and item.external_attr >> 16 == 0o100755
        assert item.date_time == (2025, 5, 6, 7, 8, 10) and archive.comment == b"kept"
        assert archive.getinfo("vllm/core.py").date_time == item.date_time
    for install in (by_pip, by_uv):
        python = installs.venv(tmp_path / install.__name__, "pip")
        install(python, path)
        assert os.access(installs.site(python) / "vllm/_C.abi3.so", os.X_OK)


def test_a_signature_of_the_old_record_is_left_out(tmp_path: Path) -> None:
    signed = f"{INFO}/RECORD.jws"
    stock = repacked(wheel(tmp_path), lambda files: {**files, signed: b"{}"})
    document = run(stock, tmp_path / "out")
    assert f"left out, being of the old RECORD: {signed}" in document["notes"]
    assert not [n for n in contents(Path(document["wheel"]["file"])) if n.endswith(".jws")]


# What is refused


def spoilt(data: bytes) -> bytes:
    """A byte of a member's content is another one."""
    place = data.index(b"vllm/core.py") + 40
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def with_member(name: str, text: bytes = b"x = 1\n") -> Callable[[Path], Path]:
    return lambda path: repacked(path, lambda files: {**files, name: text})


def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(change(path.read_bytes()))
        return path

    return write


def without(name: str) -> Callable[[Path], Path]:
    def change(files: dict[str, bytes]) -> dict[str, bytes]:
        return {each: data for each, data in files.items() if each != name}

    return lambda path: repacked(path, change, record=False)


def called(name: str) -> Callable[[Path], Path]:
    return lambda path: path.rename(path.with_name(name))


BAD: dict[str, tuple[Callable[[Path], Path], int, str, str]] = {
    "a name that is none": (called("vllm.whl"), 1, "bad-wheel", "has no name of a wheel"),
    "a name of another version": (
        called("vllm-0.31.0-py3-none-any.whl"),
        1,
        "bad-wheel",
        "METADATA says version 0.30.0, its file name says vllm 0.31.0",
    ),
    "no zip file": (damaged(lambda _: b"text"), 1, "bad-wheel", "cannot be read as a zip file"),
    "a part of a file": (damaged(lambda d: d[:900]), 1, "bad-wheel", "cannot be read as a zip"),
    "nothing": (damaged(lambda _: b""), 1, "bad-wheel", "cannot be read as a zip file"),
    "another byte in a fixed file": (damaged(spoilt), 1, "bad-wheel", "vllm/core.py"),
    "another byte in another file": (
        damaged(lambda d: d.replace(b"/v1/__init__.py", b"/v1/__init__.pY", 1)),
        1,
        "bad-wheel",
        "vllm/v1/__init__.p",
    ),
    "no RECORD": (without(f"{INFO}/RECORD"), 1, "bad-wheel", f"has no {INFO}/RECORD"),
    "no METADATA": (without(f"{INFO}/METADATA"), 1, "bad-wheel", "has no "),
    "no dist-info": (
        damaged(lambda _: _no_info()),
        1,
        "bad-wheel",
        "has 0 dist-info folders",
    ),
    "a file that RECORD lacks": (
        lambda path: repacked(path, lambda f: {**f, "vllm/more.py": b""}, record=False),
        1,
        "bad-wheel",
        "vllm/more.py is not listed in its RECORD",
    ),
    "a file that is not there": (
        without("vllm/v1/__init__.py"),
        1,
        "bad-wheel",
        "vllm/v1/__init__.py is listed in its RECORD and is not there",
    ),
    "a file of other bytes": (
        lambda path: repacked(path, lambda f: {**f, "vllm/v1/__init__.py": b"#"}, record=False),
        1,
        "bad-wheel",
        "vllm/v1/__init__.py is not what its RECORD says",
    ),
    "a fixed file that is installed twice": (
        with_member("vllm-0.30.0.data/purelib/vllm/core.py"),
        1,
        "bad-wheel",
        "would install vllm/core.py twice",
    ),
    "another file that is installed twice": (
        with_member("vllm-0.30.0.data/platlib/vllm/v1/__init__.py"),
        1,
        "bad-wheel",
        "would install vllm/v1/__init__.py twice",
    ),
    "a file of our own that is installed twice": (
        with_member("vllm-0.30.0.data/purelib/vllm/added.py"),
        1,
        "bad-wheel",
        "would install vllm-0.30.0.data/purelib/vllm/added.py over vllm/added.py",
    ),
    "a folder that is called otherwise": (
        with_member("other.data/purelib/vllm/added.py"),
        1,
        "bad-wheel",
        "would install other.data/purelib/vllm/added.py over vllm/added.py",
    ),
    "a file by way of the prefix": (
        with_member("vllm-0.30.0.data/data/lib/python3.12/site-packages/vllm/core.py"),
        1,
        "bad-wheel",
        "would install vllm/core.py twice",
    ),
    "a way out": (with_member("../x.py"), 1, "bad-wheel", "../x.py must be relative"),
    "another package": (
        lambda path: installs.wheel(path.parent, "other", files={"other/__init__.py": ""}),
        3,
        "not-found",
        "is no wheel of vLLM",
    ),
    "another release": (
        lambda path: wheel(path.parent, "0.29.0", files=installs.package("0.29.0")),
        4,
        "wrong-version",
        "0.29.0",
    ),
    "a foreign file": (
        lambda path: repacked(path, lambda f: {**f, "vllm/open.py": b"# mine\n"}),
        1,
        "foreign",
        "is neither the 0.30.0 release's",
    ),
}


def _no_info() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
    return stream.getvalue()


@pytest.mark.parametrize("case", BAD)
def test_a_wheel_that_is_refused(tmp_path: Path, case: str) -> None:
    spoil, code, kind, what = BAD[case]
    path = spoil(wheel(tmp_path / "in"))
    document = run(path, tmp_path / "out")
    problems = document["problems"]
    assert document["exit"] == code, problems
    assert kind in {problem["kind"] for problem in problems}
    assert [p for p in problems if what in f"{p['where']} {p['what']}"], problems
    assert "vllm-fixes-" not in json.dumps(document), "a temporary folder is named"
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


WORDS = {
    "no such file": (("/nowhere.whl", BUNDLE), 2, "/nowhere.whl: is no file"),
    "a folder": (("/", BUNDLE), 2, "is no file"),
    "no such fix": ((STOCK, "begn"), 2, "did you mean begin?"),
    "no fix": ((STOCK,), 2, "required: FIX"),
    "no such profile": ((STOCK, BUNDLE, "--profile", "v1"), 2, "no profile 'v1'"),
    "another digest": ((STOCK, BUNDLE, "--expect-digest", "0" * 64), 10, "the digest is"),
    "no fix touches it": ((STOCK, BUNDLE, "--allow-foreign", "x"), 2, "no fix touches this"),
}


@pytest.mark.parametrize("case", WORDS)
def test_words_that_are_wrong(tmp_path: Path, case: str) -> None:
    arguments, code, what = WORDS[case]
    done = launch(sys.executable, "wheel", *arguments, "--to", tmp_path / "out", *ROOT)
    assert done.returncode == code, done.stderr
    assert what in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_dry_run_makes_nothing(tmp_path: Path, digest: str) -> None:
    document = run(STOCK, tmp_path / "out", "--dry-run")
    assert (document["exit"], document["digest"], document["wheel"]) == (0, digest, None)
    assert document["changed"] == sorted(FIXED)
    assert not list(tmp_path.iterdir())


def test_the_wheel_itself_is_not_replaced(tmp_path: Path) -> None:
    stock = wheel(tmp_path)
    before = stock.read_bytes()
    document = run(stock, tmp_path, "--keep-version")
    assert document["exit"] == 2 and "would be replaced" in document["problems"][0]["what"]
    assert stock.read_bytes() == before and list(tmp_path.iterdir()) == [stock]


def test_no_place_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert run(STOCK, tmp_path / "file")["exit"] == 6
    assert run(STOCK, tmp_path / "file/below")["exit"] == 6


def test_no_space_leaves_nothing(tmp_path: Path) -> None:
    large = {"vllm/large.so": os.urandom(200000).hex()}
    stock = wheel(tmp_path / "in", files=large)
    limit = ["bash", "-c", 'ulimit -f 100; trap "" XFSZ; exec "$@"', "bash"]
    document = run(stock, tmp_path / "out", before=limit)
    assert document["exit"] == 6, document["problems"]
    assert not list((tmp_path / "out").iterdir())


def test_a_name_and_version_is_taken_from_the_cache(tmp_path: Path, fixed: Path) -> None:
    cache = places.standard().cache
    assert made("vllm==0.30.0", tmp_path, "--cache", cache).read_bytes() == fixed.read_bytes()
    document = run("vllm==0.0.1", tmp_path, "--cache", tmp_path, env={"PIP_NO_INDEX": "1"})
    assert document["exit"] == 1 and document["problems"][0]["kind"] == "no-wheel"


def test_the_text_says_what_was_made(tmp_path: Path, digest: str) -> None:
    done = launch(sys.executable, "wheel", STOCK, BUNDLE, "--to", tmp_path, *ROOT)
    assert done.returncode == 0 and done.stderr == ""
    assert re.search(rf"^made {tmp_path}/vllm-\S+, version 0.30.0\+fixes\.d", done.stdout, re.M)
    assert f"vllm 0.30.0 (vllm, packed) in {STOCK}\n" in done.stdout
    assert done.stdout.splitlines()[-1] == f"digest sha256:{digest}"
