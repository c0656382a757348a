"""``pin``: pin a target that has no published wheel, from trees of its releases."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fixes import catalogue
from fixes.catalogue import Catalogue
from fixes.edits import Edit
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Need


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    from fixes.cli import filled, folder

    add = parser.add_argument
    add("target", type=filled, metavar="TARGET", help="an import package, such as vllm_gaudi")
    add(
        "--source",
        action="append",
        type=filled,
        required=True,
        metavar="LABEL=DIR",
        help="the label of a release, and the folder that holds its package",
    )
    add("--profiles", type=folder, metavar="DIR", help="another folder of profiles and patches")


def run(options: argparse.Namespace) -> int:
    """Write the pins. Raises FixesError where an edit does not fit one of the trees."""
    try:
        from fixes.authoring import pins
    except ImportError as error:
        what, hint = f"needs the package {error.name}", "from a checkout: pip install '.[maintain]'"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, "pin", hint)) from None
    root = catalogue.find(options.profiles)
    sources = dict(_source(text, options.target) for text in options.source)
    edits: dict[str, tuple[Edit, ...]] = {}
    steps: dict[str, str] = {}
    for fix, source in dict.fromkeys(_steps(root, options.target)):
        edits[fix] = (*edits.get(fix, ()), *_edits(root, fix, source))
        steps[source] = root.sha256(source)
    if not steps:
        what = f"no profile offers edits of {options.target} without wheels"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, "pin"))
    made = pins.make(options.target, sources, edits, steps)
    path = Path(root.place(pins.name(options.target)))
    path.write_bytes(pins.dump(made))
    sys.stdout.write(f"{path}: {len(made.files)} files of {len(sources)} trees\n")
    return ExitCode.OK


def _source(text: str, target: str) -> tuple[str, tuple[str, Path]]:
    """A label, the commit that is checked out (if it is a checkout), and the folder."""
    label, _, name = text.partition("=")
    folder = Path(name)
    if not label or not name or not (folder / target).is_dir():
        what = f"{text}: is no label and a folder that holds {target}/"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, "--source"))
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return label, (done.stdout.strip() or "no checkout", folder)


def _steps(root: Catalogue, target: str) -> Iterator[tuple[str, str]]:
    """The fixes of a target in all profiles that have pins of it, and their edit files."""
    from fixes.authoring import fixfile, profile

    for name in root.profiles():
        where = f"profiles/{name}.toml"
        found = profile.parse(root.read(where), where, name)
        if found.targets.get(target) != ():
            continue
        for entry in found.entries.values():
            about = f"patches/{entry.id}/fix.toml"
            if entry.need is Need.OFFERED:
                fix = fixfile.parse(root.read(about), about, entry.id)
                if target in fix.targets:
                    yield from ((entry.id, f"patches/{entry.id}/{step}") for step in entry.steps)


def _edits(root: Catalogue, fix: str, source: str) -> tuple[Edit, ...]:
    from fixes.authoring.resolve import parse_steps

    found = parse_steps(source, root.read(source), partial(_beside, root, fix))
    if any(edit.alternatives for edit in found):
        what = "alternatives are for targets with wheels: a scope has one syntax"
        raise FixesError(Problem(ExitCode.MISMATCH, "invalid-edit", what, source))
    return found


def _beside(root: Catalogue, fix: str, name: str) -> bytes:
    return root.read(f"patches/{fix}/{name}")
