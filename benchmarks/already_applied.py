"""The run that finds everything in place, against starting an interpreter with some modules.

It is on the path of every container start. The environment is a real one, verified to level
``probe``; both sides use its interpreter and cached bytecode.
"""

from __future__ import annotations

import shutil

import timing

BUDGET = 2.0
MODULES = "import argparse, json, hashlib, ast"


def main() -> None:
    """Apply once, then measure the runs that have nothing to do."""
    environment = timing.environment()
    try:
        python = str(environment / "bin" / "python")
        apply = [python, timing.APPLY_ALL, "--profile", timing.PROFILE, timing.BUNDLE]
        timing.run(apply)
        again = timing.run(apply).output
        if "nothing to change" not in again or "verified to probe" not in again:
            raise SystemExit(f"this is no already-applied run:\n{again}")
        ours, theirs = timing.pairs(
            lambda: timing.run(apply).cpu,
            lambda: timing.run([python, "-c", MODULES]).cpu,
            rounds=40,
        )
        timing.compare(
            "Already applied, verified before to level probe",
            ("apply_all.py, nothing to do", ours),
            (f'python -c "{MODULES}"', theirs),
            BUDGET,
        )
    finally:
        shutil.rmtree(environment)


if __name__ == "__main__":
    main()
