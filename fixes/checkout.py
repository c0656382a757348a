"""The version of a source checkout before its build, read without git or running anything."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping

from fixes.distribution import describe, listing, peek, read


def is_checkout(folder: str) -> bool:
    """Whether a folder is the root of a project's sources."""
    return any(os.path.isfile(f"{folder}/{name}") for name in ("pyproject.toml", "setup.py"))


def version(folder: str, target: str, environ: Mapping[str, str]) -> str:
    """The version that a build of a checkout would get, or "" where nothing says it.

    In this order: what an earlier build wrote (``_version.py``), a source distribution's
    PKG-INFO, the variables that vLLM's setup.py and setuptools-scm take, and the release tag
    of the commit that is checked out.
    """
    return (
        written(f"{folder}/{target}")
        or (os.path.isfile(f"{folder}/PKG-INFO") and describe(f"{folder}/PKG-INFO").version)
        or _told(target, environ)
        or tag(folder).removeprefix("v")
    )


def written(package: str) -> str:
    """The version in a package's generated ``_version.py``, or ""."""
    import ast

    data = read(f"{package}/_version.py")
    if data is None:
        return ""
    try:
        body = ast.parse(data).body
    except (SyntaxError, ValueError):
        return ""
    for statement in body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
            and any(
                isinstance(name, ast.Name) and name.id in ("__version__", "version")
                for name in statement.targets
            )
        ):
            return statement.value.value
    return ""


def tag(folder: str) -> str:
    """The tag ``v*`` of the commit that is checked out, or "".

    Reads the files that git documents in gitrepository-layout(5): loose and packed refs,
    worktrees, and annotated tags (peeled in packed-refs, else as loose objects).
    """
    git = _repository(folder)
    if not git:
        return ""
    common = os.path.normpath(os.path.join(git, _text(f"{git}/commondir")))
    packed = _packed(common)
    head = _text(f"{git}/HEAD")
    if head.startswith("ref: "):
        name = head[len("ref: ") :]
        head = _text(f"{git}/{name}") or _text(f"{common}/{name}") or packed.get(name, "")
    if not head:
        return ""
    tags = {
        name.removeprefix("refs/tags/"): commit
        for name, commit in packed.items()
        if name.startswith("refs/tags/v")
    }
    for name in listing(f"{common}/refs/tags", ""):
        if name.startswith("v"):
            tags[name] = _peeled(common, _text(f"{common}/refs/tags/{name}"))
    here = [name for name, commit in tags.items() if commit == head]
    return max(here, key=_order, default="")


def _told(target: str, environ: Mapping[str, str]) -> str:
    """The version that a build is told by the environment: what vLLM's setup.py reads.

    SETUPTOOLS_SCM_PRETEND_VERSION_FOR_VLLM is not among them: it does not reach that build.
    """
    names = ["VLLM_VERSION_OVERRIDE"] if target == "vllm" else []
    names.append("SETUPTOOLS_SCM_PRETEND_VERSION")
    return next((environ[name] for name in names if environ.get(name)), "")


def _repository(folder: str) -> str:
    git = f"{folder}/.git"
    if os.path.isdir(git):
        return git
    kind, _, place = _text(git).partition(": ")
    return os.path.join(folder, place) if kind == "gitdir" else ""


def _packed(common: str) -> dict[str, str]:
    """Packed refs, annotated tags by the commit that they peel to."""
    refs: dict[str, str] = {}
    last = ""
    for line in _text(f"{common}/packed-refs").splitlines():
        if line.startswith("^"):
            refs[last] = line[1:]
        elif not line.startswith("#"):
            commit, _, last = line.partition(" ")
            refs[last] = commit
    return refs


def _peeled(common: str, name: str) -> str:
    """The commit of a loose tag; an annotated tag whose object is packed stays as it is."""
    for _ in range(8):  # a tag may name a tag
        data = peek(f"{common}/objects/{name[:2]}/{name[2:]}")
        try:
            text = zlib.decompress(data) if data else b""
        except zlib.error:
            break
        pointed = re.match(rb"tag \d+\0object ([0-9a-f]+)\n", text)
        if not pointed:
            break
        name = pointed[1].decode()
    return name


def _text(path: str) -> str:
    return os.fsdecode(peek(path) or b"").strip()


def _order(name: str) -> tuple[bool, list[int]]:
    """Releases before candidates, later ones first: for several tags on one commit."""
    return bool(re.fullmatch(r"v[\d.]+", name)), [int(n) for n in re.findall(r"\d+", name)]
