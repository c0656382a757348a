"""Verifying to level ``probe``, against one bare import of the same modules.

The first start of a container whose image was not rebuilt pays this on top of the bytes.
"""

from __future__ import annotations

import json
import shutil

import timing

BUDGET = 1.15


def main() -> None:
    """Apply once, then measure verifying anew."""
    environment = timing.environment()
    try:
        python = str(environment / "bin" / "python")
        asked = ("--profile", timing.PROFILE, timing.BUNDLE)
        timing.run([python, timing.APPLY_ALL, *asked])
        verify = [python, timing.APPLY_ALL, "verify", "--json", *asked]
        found = json.loads(timing.run(verify).output)
        paths = {path for fix in found["fixes"] for path in fix["files"]}
        modules = sorted(path.removesuffix(".py").replace("/", ".") for path in paths)
        bare = [python, "-c", f"import {', '.join(modules)}"]
        quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        ours, theirs = timing.pairs(
            lambda: timing.run(verify).cpu, lambda: timing.run(bare, **quiet).cpu, rounds=5
        )
        timing.compare(
            f"Verifying to level probe: {found['verification']}",
            ("verify", ours),
            (f"one import of the same {len(modules)} modules", theirs),
            BUDGET,
        )
    finally:
        shutil.rmtree(environment)


if __name__ == "__main__":
    main()
