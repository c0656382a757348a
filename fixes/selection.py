"""The selection: which fixes the names on a command line stand for, on this tree."""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fixes import distribution, tree
from fixes.catalogue import Catalogue
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Lock, Need, Platform
from fixes.outcome import FixLine
from fixes.session import Session

#: The release segment and the pre-release of a version (PEP 440), less what is built from it.
_VERSION = re.compile(r"v?([0-9]+(?:\.[0-9]+)*)[._-]?((?:a|b|rc)[0-9]+)?")


@dataclass(frozen=True)
class Selection:
    """Fixes to have in, and the lines for names that need nothing in this release or here."""

    fixes: tuple[str, ...]
    lines: tuple[FixLine, ...]
    problems: tuple[Problem, ...]


def select(names: Sequence[str], here: Session) -> Selection:
    """Expand bundles and requirements; say what is not needed or not offered.

    Raises FixesError with USAGE for a name that no profile knows, with the nearest one.
    """
    lock = here.lock
    targets = [item.target for item in here.trees]
    problems: list[Problem] = []
    unknown: list[Problem] = []
    lines: list[FixLine] = []
    fixes: list[str] = []
    plugins = distribution.plugins(here.paths)
    for name in dict.fromkeys(names):
        if name in lock.bundles:
            fixes += lock.bundles[name].members
            for platform in lock.platforms:
                found = _platform(name, platform, here, plugins)
                if isinstance(found, Problem):
                    problems.append(found)
                elif isinstance(found, FixLine):
                    lines += [found] if found not in lines else []
                else:
                    fixes += platform.fixes
            problems += _strangers(name, lock, plugins)
        elif name in lock.fixes:
            fixes.append(name)
        elif _authored(here.catalogue, name):
            what = f"{name} is not offered by profile {lock.profile}"
            problems.append(Problem(ExitCode.MISMATCH, "not-offered", what))
        else:
            unknown.append(_unknown(name, lock))
    if unknown:
        raise FixesError(*unknown)
    wanted = list(lock.closure(fixes))
    problems += _refused(wanted, here)
    for name in list(wanted):
        fix = lock.fixes[name]
        if fix.need is not Need.OFFERED:
            lines.append(FixLine(name, fix.need.value, fix.why))
            wanted.remove(name)
            continue
        lacking = [target for target in fix.targets if target not in targets]
        for target in lacking:
            what = f"{name} needs {target}, which is not installed"
            problems.append(Problem(ExitCode.NOT_FOUND, "target-not-found", what))
        if lacking:
            wanted.remove(name)
    return Selection(tuple(wanted), tuple(lines), tuple(problems))


def expand(names: Sequence[str], here: Session, also: Collection[str] = ()) -> set[str]:
    """The fixes that names stand for; ``also`` are names known from elsewhere (a state).

    Raises FixesError with USAGE for an unknown name, with the nearest one.
    """
    fixes: set[str] = set()
    unknown = []
    for name in names:
        if name in here.lock.bundles:
            fixes.update(here.lock.bundles[name].members)
        elif name in here.lock.fixes or name in also:
            fixes.add(name)
        else:
            unknown.append(_unknown(name, here.lock))
    if unknown:
        raise FixesError(*unknown)
    return fixes


def _authored(source: Catalogue, name: str) -> bool:
    try:
        return bool(source.read(f"patches/{name}/fix.toml"))
    except (OSError, ValueError):
        return False


def _platform(
    bundle: str, platform: Platform, here: Session, plugins: Mapping[str, str]
) -> Problem | FixLine | None:
    """None: the plugin is installed and served. A line: no sign of the platform."""
    where = tree.installed(platform.package, here.paths) or plugins.get(platform.package)
    if where is not None and platform.fixes:
        return None
    if where is not None:
        what = f"{bundle} has no fixes for {platform.package} yet: {platform.why}"
        return Problem(ExitCode.MISMATCH, "not-offered", what, str(where))
    if signs := _signs(platform, here):
        what = f"{', '.join(signs)} shows {platform.name}, but {platform.package} is not installed"
        return Problem(ExitCode.NOT_FOUND, "target-not-found", what)
    return FixLine(platform.name, Need.NOT_NEEDED.value, f"no sign of {platform.name} here")


def _signs(platform: Platform, here: Session) -> list[str]:
    signs = [name for name in platform.packages if tree.installed(name, here.paths)]
    if here.environment.executable is not None:
        signs += [match for pattern in platform.devices for match in glob.glob(pattern)]
    return signs


def without_target(name: str, here: Session) -> FixLine | None:
    """The line of a fix whose target is not installed; None where it is."""
    lacking = [target for target in here.lock.fixes[name].targets if target not in here.releases]
    if not lacking:
        return None
    what = f"{', '.join(lacking)} is not installed"
    for platform in here.lock.platforms:
        if platform.package in lacking and (signs := _signs(platform, here)):
            return FixLine(name, "missing", f"{what}, but {', '.join(signs)} is there")
    return FixLine(name, Need.NOT_NEEDED.value, what)


def _refused(wanted: Collection[str], here: Session) -> list[Problem]:
    """Plugins to fix whose release cannot run on this one of vLLM, whatever is fixed."""
    return [
        Problem(
            ExitCode.WRONG_VERSION,
            "wrong-version",
            f"{platform.package} {found.version} does not go with vLLM {here.lock.release}: {why}",
            str(found.site),
        )
        for platform in here.lock.platforms
        for found in here.trees
        for refused, why in platform.refuses.items()
        if found.target == platform.package and _builds(found.release, refused)
        if not set(wanted).isdisjoint(platform.fixes)
    ]


def _builds(version: str, release: str) -> bool:
    """Whether a version is a release, however it is spelled, or was built after or towards it."""
    known = [_VERSION.match(each.strip().lower()) for each in (version, release)]
    if None in known:
        return version == release
    one, other = (found.groups(default="") for found in known if found)
    return (re.sub(r"(\.0)+$", "", one[0]), one[1]) == (re.sub(r"(\.0)+$", "", other[0]), other[1])


def _strangers(bundle: str, lock: Lock, plugins: Mapping[str, str]) -> list[Problem]:
    """Platform plugins that the profile has never heard of run their own workers."""
    known = {platform.package for platform in lock.platforms}
    return [
        Problem(
            ExitCode.MISMATCH,
            "not-offered",
            f"{bundle} has no fixes for the platform plugin {package} of {owner}",
            hint="name the fixes you want one by one to leave the plugin as it is",
        )
        for package, owner in plugins.items()
        if package not in known
    ]


def _unknown(name: str, lock: Lock) -> Problem:
    from difflib import get_close_matches

    from fixes.verbs import VERBS

    if name in VERBS:
        hint = f"a verb comes first: apply_all.py {name} ..."
        return Problem(ExitCode.USAGE, "usage", f"{name} is no fix but a verb", hint=hint)
    near = get_close_matches(name, [*lock.fixes, *lock.bundles, *VERBS], 1)
    hint = f"did you mean {near[0]}?" if near else f"`vllm-fixes list --profile {lock.profile}`"
    return Problem(ExitCode.USAGE, "unknown-fix", f"no fix or bundle {name}", hint=hint)
