"""A session: the profile, the interpreter and the trees of one run, and a look at the disk."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path

from fixes import catalogue, distribution, environment, tree
from fixes.catalogue import Catalogue
from fixes.environment import Environment
from fixes.errors import ExitCode, FixesError, Problem, worst
from fixes.lock import Lock
from fixes.tree import Tree

#: The name of the empty profile that a state is taken out by where its own cannot be used.
NO_PROFILE = "(none)"


@dataclass(frozen=True)
class Session:
    """What a run works on. ``trees`` has vllm's first, then those of installed plugins.

    ``problems`` are what the release gate says; a run goes on far enough to report the rest.
    """

    catalogue: Catalogue
    lock: Lock
    environment: Environment
    trees: tuple[Tree, ...]
    named_tree: bool
    problems: tuple[Problem, ...] = ()

    @property
    def releases(self) -> dict[str, str]:
        """Each target's public release, for the digest."""
        return {found.target: found.release for found in self.trees}

    @property
    def platform_fixes(self) -> tuple[str, ...]:
        """What every bundle has besides its members: fixes for the plugins that are installed."""
        served = (each for each in self.lock.platforms if each.package in self.releases)
        return tuple(fix for platform in served for fix in platform.fixes)

    @property
    def odd_version(self) -> bool:
        """Whether a build between releases was accepted by name: all probes must then pass."""
        return self.trees[0].release != self.lock.release

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the engine's packages lie: the environment's path, the tree's folder first."""
        return tuple(dict.fromkeys((str(self.trees[0].site), *self.environment.paths)))

    @property
    def ahead(self) -> tuple[str, ...]:
        """Folders that a verifying interpreter has to search first."""
        return tuple(str(found.site) for found in self.trees) if self.named_tree else ()

    def scope_locked(self, options: argparse.Namespace) -> tuple[str, ...]:
        """The targets in which syntax is compared where bytes differ."""
        targets = (found.target for found in self.trees)
        return tuple(t for t in targets if options.scope_lock or t in self.lock.scope_locked)

    def where(self, path: str) -> tuple[Tree, Path] | None:
        """The tree and absolute place of a fixed file; None if its target is not installed."""
        for found in self.trees:
            if path.startswith(found.target + "/"):
                return found, tree.resolve(found, path)
        return None


def open_session(options: argparse.Namespace, *, without_profile: bool = False) -> Session:
    """Find profile, interpreter and trees, and hold the release gate.

    ``without_profile``: where the profile cannot be used, go on with none; what a state
    records can then still be taken out.

    Raises FixesError: NOT_FOUND (no tree, two trees, a copy that shadows it), WRONG_VERSION,
    MISMATCH (a lock that is bad or stale), USAGE (an unknown profile).
    """
    source = catalogue.find(options.profiles)
    env = _environment(options)
    found = tree.find("vllm", env, options.tree)
    shadows = () if options.tree else _shadows(found)
    try:
        lock = source.lock(_profile(source, options.profile, found))
        gate = _gate(lock, found, options)
    except FixesError as error:
        lock, gate = None, list(error.problems)
    if gate and without_profile and found.state.is_file() and worst(gate) is not ExitCode.USAGE:
        lock, gate = Lock(NO_PROFILE, found.release, {}, {}, {}, {}, {}, ()), []
    if lock is None:
        raise FixesError(*shadows, *gate)
    trees = (found, *_plugins(lock, env, found, bool(options.tree)))
    return Session(source, lock, env, trees, bool(options.tree), (*shadows, *gate))


def _shadows(found: Tree) -> tuple[Problem, ...]:
    working = environment.working_directory()
    return tree.shadowing(found, working, os.environ.get("PYTHONPATH", ""))


def _environment(options: argparse.Namespace) -> Environment:
    if options.python:
        return environment.of(options.python)
    return environment.bare() if options.tree else environment.current()


def _plugins(lock: Lock, env: Environment, core: Tree, named: bool) -> tuple[Tree, ...]:
    """The trees of plugins that fixes of the profile touch, where they are installed.

    A folder that is named goes before the environment, as it does when it is imported from.
    A plugin that the profile does not touch counts where a state says that fixes are in it.
    """
    touched = {file.target for file in lock.files.values()}
    paths = (str(core.site), *env.paths)
    others = {*(one.package for one in lock.platforms), *distribution.plugins(paths)}
    beside = named or not env.paths
    found = []
    for target in sorted((touched | others) - {core.target}):
        if beside and tree.installed(target, (str(core.site),)):
            folder = core.site
        elif tree.installed(target, env.paths):
            folder = None
        else:
            continue
        try:
            one = tree.find(target, env, folder)
        except FixesError:
            if target in touched:
                raise
            continue  # whatever it is, no fix is in it
        if target in touched or one.state.exists():
            found.append(one)
    return tuple(found)


def _profile(source: Catalogue, name: str, found: Tree) -> str:
    if name != "auto":
        return name
    name = f"v{found.release}"
    if name in source.profiles():
        return name
    what = f"no profile for vLLM {found.version or 'of unknown version'}"
    hint = f"profiles: {', '.join(source.profiles())}"
    raise FixesError(Problem(ExitCode.WRONG_VERSION, "wrong-version", what, str(found.site), hint))


def _gate(lock: Lock, found: Tree, options: argparse.Namespace) -> list[Problem]:
    """The installed release must be the profile's, or the one odd version that was named."""
    accepted = options.accept_version
    if found.release == lock.release:
        return []
    version = found.version or "of unknown version"
    what = f"vLLM {version} is installed, profile {lock.profile} is for {lock.release}"
    hint = "choose the profile of this release (`vllm-fixes list` shows them)"
    if accepted is not None and accepted != found.version:
        hint = f"--accept-version {accepted} does not name it exactly"
    elif accepted is not None and re.fullmatch(r"[0-9.]+(\+.*)?", accepted):
        hint = f"--accept-version is for builds between releases, and {accepted} is a release"
    elif accepted is not None and options.allow_foreign:
        hint = "--accept-version takes pristine files only, so --allow-foreign cannot go with it"
    elif accepted is not None:
        return []
    return [Problem(ExitCode.WRONG_VERSION, "wrong-version", what, str(found.site), hint)]
