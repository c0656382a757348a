"""A tree: one target as found on disk, with the distribution that owns it.

A target is found as the interpreter would find it, without importing or running anything of
it: packages and modules on the search path, and editable installs (PEP 660 finders of
setuptools, ``.pth`` files, ``.egg-link``).
"""

from __future__ import annotations

import ast
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fixes import checkout, distribution
from fixes.distribution import Distribution, public
from fixes.environment import Environment, working_directory
from fixes.errors import ExitCode, FixesError, Problem

STATE = "fixes-applied.json"
#: Where no dist-info can hold it: a name that is importable beside the modules, and no module.
BARE_STATE = "_fixes_applied.json"
#: What is larger is no list of folders: PyTorch's checkpoints have the same ending.
_PATH_FILE_LIMIT = 1 << 20
_FINDER = r"__editable__\w+_finder"
#: What a transaction puts beside the state while it is under way (fixes/journal.py) starts so.
LEFTOVER = ".fixes-"


class Tree(NamedTuple):
    """One target on disk.

    ``site`` is the folder that holds the package, as the interpreter reaches it; ``record`` the
    owning RECORD or None. ``home`` is the folder that holds our state, journal and lock: the
    owning dist-info, so that an uninstall removes the state with the files, else the package
    itself. It goes with the files: a checkout has the same one whether it is reached through
    an editable install, through several, or by its folder, and an uninstall leaves both.
    ``release`` is ``version`` without its local label; both are empty for a checkout that does
    not say. ``layout`` is ``wheel``, ``unpacked`` (no installer put it there), ``editable``,
    ``checkout`` or ``egg``. ``root`` is the package's real folder.
    """

    target: str
    site: Path
    distribution: str
    version: str
    release: str
    layout: str
    dist_info: Path | None
    record: Path | None
    home: Path
    state: Path
    root: str

    @property
    def package(self) -> Path:
        """The package's folder as the interpreter reaches it: bytecode is named after it."""
        return self.site / self.target

    @property
    def state_record(self) -> Path | None:
        """The RECORD that must list the state: the owner's, None where the state has no owner."""
        return self.record


class _Copy(NamedTuple):
    """A package or module, and the file that puts it on the search path (editable installs)."""

    path: str
    via: str | None = None


def find(target: str, environment: Environment, directory: Path | None = None) -> Tree:
    """The one copy of a target in an environment, or in a directory that is named.

    The directory is a site-packages, an unpacked wheel or a source checkout. Raises FixesError
    with code NOT_FOUND and kind ``not-found``, ``found-twice`` (two copies, or two
    distributions that own the one) or ``contradiction`` (versions that do not agree); with code
    CANNOT_WRITE and kind ``unreadable`` where metadata that may be the owner's cannot be read.
    """
    entries = environment.paths
    if directory is not None:  # not abspath: the working directory may be gone
        entries = (os.path.normpath(os.path.join(working_directory() or "/", directory)),)
    copies = _distinct(_copies(target, entries))
    packages = [copy for copy in copies if os.path.isdir(copy.path)]
    if not packages:
        raise FixesError(_not_found(target, environment, directory and entries[0], copies))
    if len(copies) > 1:
        what = f"{len(copies)} copies of {target}: " + ", ".join(copy.path for copy in copies)
        hint = "remove all but one, or name the folder of the one that is imported: --tree"
        raise FixesError(Problem(ExitCode.NOT_FOUND, "found-twice", what, target, hint))
    copy = packages[0]
    folders = dict.fromkeys((os.path.dirname(copy.path), *environment.paths))
    tree = _describe(target, copy, tuple(folders))
    problems = list(_contradictions(tree, tuple(folders) if directory is None else ()))
    if problems:
        raise FixesError(*problems)
    return tree


def shadowing(tree: Tree, cwd: str | None, pythonpath: str) -> tuple[Problem, ...]:
    """Other copies that an engine started in ``cwd`` with ``pythonpath`` would import instead.

    ``python -m`` looks in the working directory first, every start in PYTHONPATH before
    site-packages. ``cwd`` is None where it has been deleted.
    """
    parts = pythonpath.split(os.pathsep) if pythonpath else []
    if cwd is None:
        parts = [part for part in parts if os.path.isabs(part)]
    along = [os.path.join(cwd or "", part) for part in parts]
    problems = []
    for where, entries in (("working directory", [cwd] if cwd else []), ("PYTHONPATH", along)):
        hit = next(filter(None, (_importable(tree.target, entry) for entry in entries)), None)
        if hit is None or _identity(hit) == _identity(str(tree.package)):
            continue
        what = f"an engine started here would import {hit} ({where}), not {tree.package}"
        hint = "start elsewhere or unset it, or name the folder of the one that is meant: --tree"
        problems.append(Problem(ExitCode.NOT_FOUND, "found-twice", what, tree.target, hint))
    return tuple(problems)


def resolve(tree: Tree, path: str) -> Path:
    """Where a fixed file (``vllm/v1/engine/core.py``) lies, inside the package's real folder.

    The file itself may be a symlink or missing. Raises FixesError with code MISMATCH and kind
    ``unsafe-path`` for a path that is absolute, is not the target's, holds ``..``, ``.``, NUL
    or an empty part, or whose folders leave the package by a symlink.
    """
    first, *parts = path.split("/")
    if first != tree.target or not parts or "\0" in path or {"", ".", ".."} & set(parts):
        raise _unsafe(path, f"is no plain path below {tree.target}/")
    folder = tree.root
    for part in parts[:-1]:
        folder = f"{folder}/{part}"
        try:
            linked = stat.S_ISLNK(os.lstat(folder).st_mode)
        except OSError:
            continue  # a folder that a fix adds
        if linked:
            folder = os.path.realpath(folder)
            if not folder.startswith(tree.root + os.sep):
                raise _unsafe(path, f"leaves the package by a link to {folder}")
    return Path(folder, parts[-1])


def installed(package: str, paths: Iterable[str]) -> Path | None:
    """Where an import package lies on a search path, namespace packages included."""
    entries = tuple(dict.fromkeys(paths))
    for copy in _copies(package, entries):
        return Path(copy.path)
    for entry in entries:
        folder = f"{entry}/{package}"
        if set(distribution.listing(folder, "")) - {"__pycache__"}:
            return Path(folder)
    return None


def siblings(tree: Tree, environment: Environment) -> tuple[str, ...]:
    """Names and versions of the distributions that an import of the tree may see."""
    return distribution.siblings((str(tree.site), *environment.paths))


def _copies(target: str, entries: Iterable[str]) -> Iterator[_Copy]:
    for entry in entries:
        hit = _importable(target, entry)
        if hit:
            yield _Copy(hit)
        yield from _linked(target, entry)


def _importable(target: str, entry: str) -> str | None:
    """What ``import target`` takes in one folder; a folder without __init__.py is nothing."""
    if os.path.isfile(f"{entry}/{target}/__init__.py"):
        return f"{entry}/{target}"
    module = f"{entry}/{target}.py"
    return module if os.path.isfile(module) else None


def _linked(target: str, entry: str) -> Iterator[_Copy]:
    """Copies elsewhere that the files of a site-packages lead to."""
    for name in distribution.listing(entry, ".pth", ".egg-link"):
        via = f"{entry}/{name}"
        # As Python's site module does: what cannot be read leads nowhere.
        data = distribution.peek(via, _PATH_FILE_LIMIT) or b""
        text = os.fsdecode(data.removeprefix(b"\xef\xbb\xbf"))
        for line in map(str.strip, text.splitlines()):
            hit = None
            if line.startswith(("import ", "import\t")):
                if "__editable__" in line and (finder := re.search(_FINDER, line)):
                    hit = _mapped(target, f"{entry}/{finder[0]}.py")
            elif line and not line.startswith("#"):
                hit = _importable(target, os.path.normpath(os.path.join(entry, line)))
            if hit:
                yield _Copy(hit, via)


def _mapped(target: str, finder: str) -> str | None:
    """A package's folder by the MAPPING of a finder that setuptools wrote (PEP 660)."""
    data = distribution.read(finder)
    if data is None or os.fsencode(target) not in data:
        return None
    try:
        for statement in ast.parse(data).body:
            if isinstance(statement, ast.AnnAssign):
                names: list[ast.expr] = [statement.target]
            elif isinstance(statement, ast.Assign):
                names = statement.targets
            else:
                continue
            if statement.value and any(
                isinstance(name, ast.Name) and name.id == "MAPPING" for name in names
            ):
                folder = ast.literal_eval(statement.value).get(target)
                return folder and _importable(target, os.path.dirname(folder))
    except (SyntaxError, ValueError, AttributeError, TypeError):
        pass  # not what setuptools writes: it leads nowhere that we know
    return None


def _distinct(copies: Iterable[_Copy]) -> list[_Copy]:
    """Copies without those reached twice; how an editable install reaches one is kept."""
    found: dict[tuple[int, int], _Copy] = {}
    for copy in copies:
        key = _identity(copy.path)
        if key not in found:
            found[key] = copy
        elif copy.via and not found[key].via:
            found[key] = _Copy(found[key].path, copy.via)
    return list(found.values())


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _describe(target: str, copy: _Copy, folders: tuple[str, ...]) -> Tree:
    site = os.path.dirname(copy.path)
    marker = f"{target}/__init__.py"
    owner = _only(target, distribution.owners(site, marker))
    version = owner.version if owner else ""
    record = owner.record if owner else None
    if owner:
        layout = "wheel" if os.path.isfile(owner.info / "INSTALLER") else "unpacked"
    elif owner := _only(target, _editable(copy, folders)):
        version, layout = owner.version, "editable"
    else:
        owner = _only(target, distribution.eggs(site, marker))
        sources = checkout.is_checkout(site)
        if sources:
            version = checkout.version(site, target, os.environ)
            layout = "editable" if copy.via else "checkout"
        else:
            layout = "egg" if owner else "unpacked"
            owner = owner or next(iter(distribution.claims(site, target)), None)
        version = version or (owner.version if owner else checkout.written(copy.path))
    info = owner.info if owner else None
    kept = info if record else None
    return Tree(
        target=target,
        site=Path(site),
        distribution=owner.name if owner else target,
        version=version,
        release=version.partition("+")[0],
        layout=layout,
        dist_info=info,
        record=record,
        home=kept or Path(copy.path),
        state=kept / STATE if kept else Path(copy.path, BARE_STATE),
        root=os.path.realpath(copy.path),
    )


def _editable(copy: _Copy, folders: tuple[str, ...]) -> list[Distribution]:
    if copy.via:
        by_file = distribution.owners(os.path.dirname(copy.via), os.path.basename(copy.via))
        if by_file:
            return by_file
    return distribution.editables(folders, os.path.dirname(copy.path))


def _only(target: str, owners: list[Distribution]) -> Distribution | None:
    if len(owners) > 1:
        names = ", ".join(str(owner.info) for owner in owners)
        what = f"{len(owners)} distributions own {target}/__init__.py: {names}"
        hint = "uninstall all, then install the one that is meant"
        raise FixesError(Problem(ExitCode.NOT_FOUND, "found-twice", what, target, hint))
    return owners[0] if owners else None


def _contradictions(tree: Tree, folders: tuple[str, ...]) -> Iterator[Problem]:
    """Versions that other places give: which release the files are of is then open."""
    told: dict[str, str] = {}
    if tree.layout in ("wheel", "unpacked"):
        told[str(tree.package / "_version.py")] = checkout.written(str(tree.package))
    if tree.layout != "checkout":
        for folder in dict.fromkeys((str(tree.site), *folders)):
            for claim in distribution.claims(folder, tree.target):
                told[str(claim.info)] = claim.version
    for place, version in told.items():
        if version and public(version) != public(tree.version):
            what = f"says version {version}, but {tree.dist_info or tree.package} {tree.version}"
            hint = "reinstall, so that metadata and files are of one release"
            yield Problem(ExitCode.NOT_FOUND, "contradiction", what, place, hint)


def _not_found(
    target: str, environment: Environment, directory: str | Path | None, modules: list[_Copy]
) -> Problem:
    hint = "--tree DIR names the folder that holds it, --python EXE its interpreter"
    if modules:
        what = f"{modules[0].path} is imported as {target}, and it is no package"
        hint = "rename that file"
    elif directory is None:
        where = environment.executable or "no interpreter"
        what = f"{where} imports no {target} ({len(environment.paths)} folders searched)"
    else:
        what = f"no {target}/__init__.py in {directory}"
        real = Path(directory)
        inner = sorted(real.glob(f"lib*/python3*/*-packages/{target}/__init__.py"))
        if not os.path.isdir(real):
            what = f"{directory} is no folder"
        elif real.name == target and os.path.isfile(real / "__init__.py"):
            hint = f"give the folder that holds the package: --tree {real.parent}"
        elif inner:
            hint = f"give the folder that holds the package: --tree {inner[0].parents[1]}"
    return Problem(ExitCode.NOT_FOUND, "not-found", what, target, hint)


def _unsafe(path: str, what: str) -> FixesError:
    return FixesError(Problem(ExitCode.MISMATCH, "unsafe-path", what, path))
