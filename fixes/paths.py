"""Paths as a lock and a profile write them: POSIX, relative and plain."""

from __future__ import annotations


def fault(path: str) -> str:
    """Why a path must not be used, or nothing: it has to be relative, plain and POSIX."""
    if not path or "\0" in path or "\\" in path:
        return "is no POSIX path"
    if path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
        return "must be relative, without '.' and '..'"
    return ""
