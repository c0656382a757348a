"""Writes what the documents take from the code: ``python3 docs/refresh.py``.

That is ``docs/fixes.md``, from the locks and from what the matrix has found
(``docs/matrix.json``, which ``vllm-fixes matrix --write`` writes), and the transcript in the
README, which is the output of the commands in it on the published wheel.
``tests/test_docs.py`` fails where they differ.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixes import catalogue
from fixes.authoring import results
from fixes.lock import Fix, Lock, Need

CHECKOUT = Path(__file__).resolve().parents[1]
README = CHECKOUT / "README.md"
FIXES = CHECKOUT / "docs" / "fixes.md"
MATRIX = CHECKOUT / "docs" / "matrix.json"
#: The transcript: what stands between its first prompt and the end of the block.
TRANSCRIPT = re.compile(r"(?<=```console\n)\$ .*?(?=```)", re.DOTALL)
#: Where the README's first command puts the wheel's files.
TREE = ".cache/tree"


def fixes() -> str:
    """The table of fixes, for every profile."""
    source = catalogue.find()
    locks = [source.lock(name) for name in source.profiles()]
    ids = list(dict.fromkeys(name for lock in locks for name in lock.fixes))
    lines = [
        "# Fixes",
        "",
        "Written by `python3 docs/refresh.py` from the locks. `vllm-fixes show FIX` says more.",
        "",
        f"| fix | {' | '.join(lock.profile for lock in locks)} | every node | evidence |",
        f"|---|{'---|' * len(locks)}---|---|",
    ]
    for name in ids:
        having = [lock.fixes.get(name) for lock in locks]
        fix = next(fix for fix in having if fix)
        wire = "yes" if fix.wire else "no"
        evidence = fix.probe.evidence if fix.probe else ""
        cells = [f"[{name}](#{name})", *map(_need, having), wire, evidence]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"| **all {len(ids)}** | {' | '.join(map(_steps, locks))} | | |")
    lines += ["", "Bundles ([why each member is in it](bundles.md)):", ""]
    bundles = {bundle: None for lock in locks for bundle in lock.bundles.values()}
    for bundle in bundles:
        lines.append(f"- `{bundle.name}`: {bundle.title}: {', '.join(bundle.members)}")
    lines += ["", "## The matrix", "", *matrix()]
    for name in ids:
        lines += ["", f"## {name}", "", *_about(name, locks)]
    return "\n".join(lines) + "\n"


def matrix() -> list[str]:
    """What was tried on each published wheel, and how often it was as it must be."""
    document = json.loads(MATRIX.read_text("utf-8"))
    environments = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in release["environment"].items())
        for release in document.values()
    )
    untried = [name for name in catalogue.find().profiles() if name not in document]
    missing = (
        ["", f"Not tried with the locks as they are: {', '.join(untried)}."] if untried else []
    )
    return [
        "What `vllm-fixes matrix` has found on the Python files of each published wheel, without",
        f"their compiled code, in an environment with {'; '.join(environments)}.",
        "[The matrix](authoring.md#the-matrix) says what is tried in each column. A figure is the",
        "number of times that it came out as it must; whatever did not is named below the tables.",
        *missing,
        "",
        *results.tables(document),
    ]


def _steps(lock: Lock) -> str:
    """How many fixes a profile offers, and how many of them are edits alone."""
    offered = [fix for fix in lock.fixes.values() if fix.need is Need.OFFERED]
    edits = sum(all(step.kind == "edit" for step in fix.steps) for fix in offered)
    return f"{len(offered)} offered: {edits} edits, {len(offered) - edits} with a diff"


def _need(fix: Fix | None) -> str:
    if fix is None:
        return ""
    if fix.need is Need.OFFERED:
        return ", ".join(dict.fromkeys(step.kind for step in fix.steps))
    return f"upstream {fix.why}" if fix.need is Need.UPSTREAM else "not needed"


def _about(name: str, locks: Sequence[Lock]) -> list[str]:
    having = [lock for lock in locks if name in lock.fixes]
    fix = having[0].fixes[name]
    lines = [f"**{fix.title}.** {fix.symptom.strip()}", "", f"*Drop when:* {fix.drop_when.strip()}"]
    if fix.threads:
        lines += ["", f"*Upstream:* {', '.join(fix.threads)}"]
    for lock in having:
        if lock.fixes[name].need is Need.NOT_NEEDED:
            lines += ["", f"*Not needed in {lock.profile}:* {lock.fixes[name].why}"]
    return lines


def transcript(readme: str, tree: Path) -> str:
    """The README's transcript, made anew: its commands, run on ``tree``."""
    text = []
    for command in re.findall(r"(?m)^\$ (.*)$", TRANSCRIPT.findall(readme)[0]):
        words = [sys.executable if word == "python3" else word for word in command.split()]
        done = subprocess.run(
            [str(tree) if word == TREE else word for word in words],
            cwd=CHECKOUT,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        output = done.stdout.replace(str(tree.resolve()), f"/home/you/vllm-fixes/{TREE}")
        text.append(f"$ {command}\n{output}")
    return "\n".join(text)


def main() -> None:
    """Write both."""
    sys.path.insert(0, str(CHECKOUT / "tests"))
    cache = importlib.import_module("cache")
    FIXES.write_text(fixes(), "utf-8")
    readme = README.read_text("utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        subprocess.run(["cp", "-a", cache.tree("vllm", "0.30.0"), tree], check=True)
        made = transcript(readme, tree)
    README.write_text(TRANSCRIPT.sub(lambda _: made, readme, count=1), "utf-8")


if __name__ == "__main__":
    main()
