"""``list``: the fixes and bundles of a profile, or the profiles."""

from __future__ import annotations

import argparse
import json

from fixes import catalogue, cli, report
from fixes.lock import Lock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    add = parser.add_argument
    add("--profile", type=cli.filled, help="a profile; without it all are listed")
    add("--profiles", type=cli.folder, metavar="DIR", help="another folder of profiles")
    add("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """List without looking at any tree."""
    source = catalogue.find(options.profiles)
    names = [options.profile] if options.profile else source.profiles()
    locks = [source.lock(name) for name in names]
    if options.json:
        report.emit(json.dumps({"profiles": [_document(lock) for lock in locks]}, indent=2) + "\n")
    else:
        report.emit("\n".join(_text(lock) for lock in locks))
    return 0


def _document(lock: Lock) -> dict[str, object]:
    return {
        "profile": lock.profile,
        "release": lock.release,
        "bundles": {name: list(bundle.members) for name, bundle in lock.bundles.items()},
        "fixes": [
            {"id": fix.id, "title": fix.title, "need": fix.need.value, "why": fix.why}
            for fix in lock.fixes.values()
        ],
    }


def _text(lock: Lock) -> str:
    lines = [f"{lock.profile} (vLLM {lock.release})"]
    width = max(map(len, lock.fixes), default=0)
    for fix in lock.fixes.values():
        lines.append(f"  {fix.id:<{width}}  {fix.need.value:<16}  {fix.title}")
    for bundle in lock.bundles.values():
        lines.append(f"  {bundle.name}: {bundle.title}")
        lines.append(f"    {', '.join(bundle.members)}")
    return "\n".join(lines) + "\n"
