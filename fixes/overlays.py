"""Overlays as the environment names them: entries of PYTHONPATH that hold a manifest.

Cheap to import: it is on the path of every already-applied run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

MANIFEST = "overlay.json"
FILES = "post-images"
HOOK = "sitecustomize.py"


def named(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The overlays that PYTHONPATH names, in its order."""
    entries = (entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry)
    return tuple(entry for entry in entries if os.path.isfile(f"{entry}/{MANIFEST}"))


def pythonpath(environ: Mapping[str, str], overlay: os.PathLike[str] | None) -> str:
    """PYTHONPATH with this overlay in front, or none, and no other one."""
    known = set(named(environ))
    entries = environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in entries if entry and entry not in known]
    return os.pathsep.join([os.fspath(overlay), *rest] if overlay else rest)


def idle(folder: str, environ: Mapping[str, str]) -> str:
    """Why an overlay that PYTHONPATH names does not act in this interpreter, or ""."""
    active = {getattr(finder, "vllm_fixes_overlay", "") for finder in sys.meta_path}
    if os.path.realpath(folder) in {os.path.realpath(one) for one in active if one}:
        return ""
    flags = {"-I": sys.flags.isolated, "-E": sys.flags.ignore_environment, "-S": sys.flags.no_site}
    given = [name for name, is_set in flags.items() if is_set]
    if given:
        return f"this interpreter was started with {given[0]}, which leaves PYTHONPATH's hooks out"
    for entry in environ.get("PYTHONPATH", "").split(os.pathsep):
        if os.path.realpath(entry or ".") == os.path.realpath(folder):
            break
        if os.path.isfile(f"{entry or '.'}/{HOOK}"):
            return f"{entry or '.'}/{HOOK} comes before it on PYTHONPATH and does not call it"
    return "its start-up hook has not run in this interpreter"
