"""What a run has shown, kept in a JSON file that later runs add to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def keep(release: str, kind: str, name: str, value: object) -> None:
    """Note a result of a release in the file that E2E_RESULTS names, if it does.

    The file holds, for each release, `seconds` of what was measured, and `scenarios` with
    what each came to.
    """
    print(f"{release}: {name}: {value}")
    if file := os.environ.get("E2E_RESULTS"):
        path = Path(file)
        known: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        known.setdefault(release, {}).setdefault(kind, {})[name] = value
        path.write_text(json.dumps(known, indent=2) + "\n", "utf-8")
