"""Build the guard's wheel, or unpack it, with nothing but Python: no pip, no network.

``python3 guard/build_guard.py DIR`` writes the wheel into a folder, to the byte the same
everywhere; ``python3 guard/build_guard.py --install`` unpacks it where the interpreter that runs
it keeps its packages. It is a build backend as well (PEP 517), so that ``pip install ./guard``
needs nothing else either.
"""

from __future__ import annotations

import argparse
import base64
import errno
import hashlib
import io
import os
import re
import sys
import sysconfig
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
MODULE = "vllm_fixes_guard.py"
_METADATA = """\
Metadata-Version: 2.1
Name: vllm-fixes-guard
Version: {version}
Summary: Stops a vLLM whose files are not those that vllm-fixes put there
License: Apache-2.0
Requires-Python: >=3.10
"""
_WHEEL = """\
Wheel-Version: 1.0
Generator: vllm-fixes
Root-Is-Purelib: true
Tag: py3-none-any
"""
_ENTRY_POINTS = """\
[vllm.general_plugins]
vllm_fixes_guard = vllm_fixes_guard:check
"""


def version() -> str:
    """The version that the module gives itself."""
    found = re.search(r'^__version__ = "(.+)"$', _module().decode(), re.MULTILINE)
    assert found, f"{MODULE} has no __version__"
    return found[1]


def content() -> dict[str, bytes]:
    """The files of the wheel, RECORD last."""
    info = f"vllm_fixes_guard-{version()}.dist-info"
    files = {
        MODULE: _module(),
        f"{info}/METADATA": _METADATA.format(version=version()).encode(),
        f"{info}/WHEEL": _WHEEL.encode(),
        f"{info}/entry_points.txt": _ENTRY_POINTS.encode(),
    }
    lines = [f"{name},{_hash(data)},{len(data)}\n" for name, data in files.items()]
    return {**files, f"{info}/RECORD": "".join([*lines, f"{info}/RECORD,,\n"]).encode()}


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, object] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Write the wheel into a folder; its name (PEP 517). Raises OSError."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:  # stored: zlibs differ in what they make
        for name, data in content().items():
            entry = zipfile.ZipInfo(name)  # of 1980, whenever it is built
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    name = f"vllm_fixes_guard-{version()}-py3-none-any.whl"
    _write({os.path.join(wheel_directory, name): stream.getvalue()}, False)
    return name


def install(folder: str) -> None:
    """Unpack the wheel into a folder of packages: every file is written before one gets its name.

    Raises OSError, and leaves then no file that was not there; FileExistsError where another
    version is installed.
    """
    files = content()
    info = os.path.dirname(list(files)[-1])
    there = os.listdir(folder) if os.path.isdir(folder) else []
    for name in there:
        if name.startswith("vllm_fixes_guard-") and name != info:
            what = "is another version: uninstall it first"
            raise FileExistsError(errno.EEXIST, what, os.path.join(folder, name))
    made = not os.path.lexists(os.path.join(folder, info))
    _write({os.path.join(folder, name): data for name, data in files.items()}, made)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", help="a folder for the wheel")
    parser.add_argument(
        "--install",
        action="store_true",
        help="unpack it into the folder (default: the site-packages of this interpreter)",
    )
    options = parser.parse_args()
    if options.folder == "":  # as of an unset variable
        parser.error("the folder's name is empty")
    if not options.install and options.folder is None:
        parser.error("name a folder for the wheel, or --install")
    folder = sysconfig.get_path("purelib") if options.folder is None else options.folder
    try:
        if options.install:
            install(folder)
            print(f"vllm-fixes-guard {version()} is installed in {folder}")
        else:
            print(os.path.join(folder, build_wheel(folder)))
    except OSError as error:
        print(f"cannot-write: {error.filename}: {error.strerror}", file=sys.stderr)
        return 6
    return 0


def _module() -> bytes:
    with open(os.path.join(HERE, MODULE), "rb") as stream:
        return stream.read()


def _hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def _write(files: dict[str, bytes], fresh: bool) -> None:
    """Write files aside, then give each its name. ``fresh``: the last one's folder is new.

    Raises OSError that names the file, and leaves then nothing of what it made.
    """
    aside = {path: f"{path}.{os.getpid()}" for path in files}
    named: list[str] = []
    at = ""
    try:
        for at, data in files.items():
            os.makedirs(os.path.dirname(at), exist_ok=True)
            with open(aside[at], "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())  # what has no room says so by now
        for at in files:
            new = not os.path.lexists(at)
            os.replace(aside[at], at)
            named += [at] if new else []
    except OSError as error:
        for path in (*aside.values(), *named):
            if os.path.lexists(path):
                os.unlink(path)
        if fresh and os.path.isdir(os.path.dirname(list(files)[-1])):
            os.rmdir(os.path.dirname(list(files)[-1]))
        place = at if error.filename in (None, aside.get(at)) else error.filename
        raise OSError(error.errno, error.strerror, place) from error


if __name__ == "__main__":
    sys.exit(main())
