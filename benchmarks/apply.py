"""Applying a whole bundle to level ``bytes``, against git apply and compileall.

Both sides begin with the published wheel's files and bytecode of the files to be changed, and
end with the changed files and their bytecode. Ours parses no diff (the lock has the hunks),
but hashes before and after, compiles in memory first, journals, fsyncs, and keeps RECORD.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import timing

BUDGET = 2.0


class Tree:
    """An unpacked wheel that can be made pristine again, with bytecode of the files at stake."""

    def __init__(self, folder: Path) -> None:
        self.root = timing.unpacked(folder)
        (self._info,) = self.root.glob("*.dist-info")
        self._saved = folder / "saved"
        asked = ("--tree", str(self.root), "--profile", timing.PROFILE, timing.BUNDLE)
        self.apply = [sys.executable, timing.APPLY_ALL, *asked]
        self.diff = folder / "bundle.diff"
        self.diff.write_text(timing.run([sys.executable, timing.APPLY_ALL, "diff", *asked]).output)
        lines = self.diff.read_text().splitlines()
        self.paths = [line[len("+++ b/") :] for line in lines if line.startswith("+++ b/")]
        self.compile = [
            sys.executable,
            "-m",
            "compileall",
            "-q",
            *map(str, map(self.root.joinpath, self.paths)),
        ]
        timing.run(self.compile)
        shutil.copytree(self._info, self._saved / "info")
        for path in self.paths:
            (self._saved / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.root / path, self._saved / path)

    def restore(self) -> None:
        """Make the tree as it was published, with fresh bytecode."""
        shutil.rmtree(self._info)
        shutil.copytree(self._saved / "info", self._info)
        for path in self.paths:
            shutil.copy2(self._saved / path, self.root / path)
        timing.run([*self.compile, "-f"])


def main() -> None:
    """Alternate between the two on one tree."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Tree(Path(scratch))

        def ours() -> float:
            tree.restore()
            return timing.run(tree.apply).cpu

        def theirs() -> float:
            tree.restore()
            patched = timing.run(["git", "-C", str(tree.root), "apply", str(tree.diff)]).cpu
            return patched + timing.run(tree.compile).cpu

        mine, git = timing.pairs(ours, theirs, rounds=20)
        timing.compare(
            f"The bundle's {len(tree.paths)} files of an unpacked wheel, to level bytes",
            ("apply_all.py --tree", mine),
            ("git apply, then python -m compileall", git),
            BUDGET,
        )


if __name__ == "__main__":
    main()
