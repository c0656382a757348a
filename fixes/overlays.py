"""Overlays as the environment names them: entries of PYTHONPATH that hold one, or what is left.

Cheap to import: it is on the path of every already-applied run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

MANIFEST = "overlay.json"
FILES = "post-images"
HOOK = "sitecustomize.py"
_MARK = b"vllm_fixes_overlay"  # in every start-up hook of ours


def named(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The overlays that PYTHONPATH names, in its order, damaged ones too."""
    return tuple(entry for entry in _entries(environ) if is_one(entry))


def _entries(environ: Mapping[str, str]) -> list[str]:
    """As Python takes them: an empty entry is the working directory."""
    value = environ.get("PYTHONPATH", "")
    return [entry or "." for entry in value.split(os.pathsep)] if value else []


def is_one(folder: str) -> bool:
    """Whether a folder is an overlay, or was one before something was taken from it."""
    if os.path.isfile(f"{folder}/{MANIFEST}"):
        return True
    try:
        with open(f"{folder}/{HOOK}", "rb") as stream:
            return _MARK in stream.read()
    except OSError:
        return os.path.isdir(f"{folder}/{FILES}")


def unfit(folder: str, environ: Mapping[str, str]) -> str:
    """Why an overlay that PYTHONPATH names is refused for how it is named, or ""."""
    found = {os.path.realpath(entry): entry for entry in named(environ)}
    if len(found) > 1:
        return f"PYTHONPATH names several overlays: {', '.join(found)}"
    real = os.path.realpath(folder)
    given = [entry for entry in _entries(environ) if os.path.realpath(entry) == real]
    if given and not any(os.path.isabs(entry) for entry in given):
        return f"PYTHONPATH names it by a relative path ({given[0]}): give the absolute one"
    return ""


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
