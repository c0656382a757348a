"""Recall: a run before this one reached what is asked, on these very bytes, in this place.

The already-applied run is on the path of every container start, and it has nothing to plan:
where the state's answer to the same question still stands, the answer is given again. What it
rests on is checked anew: every fixed file's bytes against the lock, RECORD, the lock itself and
all that it was made from, the interpreter, the distributions beside the tree, the signs of a
platform. Where one thing differs there is no answer here; the whole run follows, and says what
differs. Nothing of the planning half is imported, which is what makes it fast.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
from pathlib import Path
from typing import Any

from fixes import __version__, catalogue, distribution, environment, tree
from fixes.digest import of_fixes, of_surroundings, sha256, unseal
from fixes.disk import read_file
from fixes.environment import Environment
from fixes.errors import FixesError
from fixes.record import matches
from fixes.tree import LEFTOVER, Tree

LEVELS = ("none", "bytes", "import", "probe")


def answer(options: argparse.Namespace) -> dict[str, Any] | None:
    """The report of the run that reached this; None where it does not stand any more."""
    if options.python or options.tree or options.dry_run:
        return None
    if options.allow_foreign or options.accept_version or options.scope_lock:
        return None
    try:
        env = environment.current()
        found = tree.find("vllm", env)
        pythonpath = os.environ.get("PYTHONPATH", "")
        if tree.shadowing(found, environment.working_directory(), pythonpath):
            return None
        state = unseal(read_file(found.state))
        told: dict[str, Any] = state["answer"]
        level = state["verified"]["level"]
        asked = options.verify or LEVELS[-1]
        if told["names"] != options.names or LEVELS.index(level) < LEVELS.index(asked):
            return None
        report: dict[str, Any] = told["report"]
        expected = options.expect_digest or report["digest"]
        if not expected.removeprefix("sha256:") == report["digest"] == state["digest"]:
            return None
        lock = _lock(options, found, state)
        if lock is None or _platform(lock, found, env) or not _same(found, env, state, lock):
            return None
        if not _covers(state, lock, options.names):
            return None
        # The tree may have been copied, or be mounted, elsewhere.
        return {**report, "trees": [{**report["trees"][0], "path": str(found.site)}]}
    except (
        FixesError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ):
        return None


def _lock(options: argparse.Namespace, found: Tree, state: dict[str, Any]) -> dict[str, Any] | None:
    """The lock, if the state was made by it and what it was made from is unchanged."""
    name = f"v{found.release}" if options.profile == "auto" else options.profile
    source = catalogue.find(options.profiles)
    data = source.read(catalogue.lock_name(name))
    lock: dict[str, Any] = json.loads(data)
    same = (
        state["tool"] == __version__
        and state["profile"] == name
        and state["lock"] == sha256(data)
        and state["release"] == found.version
        and lock["release"] == found.release
        and set(state["fixes"]) <= set(lock["fixes"])
        and all(source.sha256(path) == known for path, known in lock["authored"].items())
    )
    return lock if same else None


def _platform(lock: dict[str, Any], found: Tree, env: Environment) -> bool:
    """Whether there is another target, or any sign of a platform: the whole run looks at it."""
    paths = (str(found.site), *env.paths)
    names = {file["target"] for file in lock["files"].values()} - {found.target}
    for platform in lock["platforms"].values():
        names |= {platform["package"], *platform["packages"]}
        if any(glob.glob(pattern) for pattern in platform["devices"]):
            return True
    if any(tree.installed(name, paths) for name in names):
        return True
    return bool(distribution.plugins(paths))


def _same(found: Tree, env: Environment, state: dict[str, Any], lock: dict[str, Any]) -> bool:
    """Every fixed file holds a post-image of the lock, every other file that a fix touches its
    pre-image, RECORD says so, nothing around changed.
    """
    if found.state_record is None or any(
        name.startswith(LEFTOVER) for name in os.listdir(found.home)
    ):
        return False
    record = read_file(found.state_record, distribution.RECORD_LIMIT)
    fixed = []
    for entry in state["files"]:
        path = entry["path"]
        pinned = lock["files"][path]
        data = read_file(tree.resolve(found, path))
        post = sha256(data)
        known = {"pre": entry["pre"], "fixes": entry["fixes"], "post": post}
        if entry["post"] != post or known not in pinned["post"]:
            return False
        if not matches(record, path, post, len(data)):
            return False
        fixed.append((pinned["target"], path, post))
    unfixed = lock["files"].keys() - {path for _, path, _ in fixed}
    for path in unfixed:
        pinned = lock["files"][path]
        if pinned["target"] != found.target:
            continue  # no such target is installed (_platform)
        if not _pristine(tree.resolve(found, path), pinned["pristine"]):
            return False
    digest = of_fixes(fixed, {found.target: found.release})
    beside = tree.siblings(found, env)
    mark = of_surroundings(state["lock"], digest, env.version, [record], beside)
    return bool(digest == state["digest"] and mark == state["verified"]["fingerprint"])


def _covers(state: dict[str, Any], lock: dict[str, Any], names: list[str]) -> bool:
    """Whether the files of the state hold every fix that the names stand for."""
    todo = [
        name for one in names for name in lock["bundles"].get(one, {"members": [one]})["members"]
    ]
    files = {entry["path"]: entry["fixes"] for entry in state["files"]}
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        fix = lock["fixes"][name]
        todo += fix["requires"]
        changes = [change for step in fix["steps"] for change in step["changes"]]
        if any(name not in files[change["path"]] for change in changes):
            return False
    return True


def _pristine(path: Path, known: dict[str, Any]) -> bool:
    """Whether a file holds a pre-image; one that a fix would add has none and is not there."""
    return sha256(read_file(path)) in known if known else not os.path.lexists(path)
