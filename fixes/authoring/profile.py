"""``profiles/<name>.toml``: what is known and offered for one release of vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from fixes.authoring import toml
from fixes.authoring.fixfile import version
from fixes.fields import Document, Table
from fixes.lock import Bundle, Need, Platform
from fixes.lockfile import NAME

KIND = "bad-profile"


@dataclass(frozen=True)
class Entry:
    """A fix as the profile has it. ``steps`` are file names in the fix's folder, in order."""

    id: str
    need: Need
    why: str
    upstream: str = ""
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """A whole profile. ``targets`` maps each import package to its published wheels
    (``vllm==0.30.0``), the reference first; one without any has pins (``fixes.authoring.pins``),
    and in ``proofs`` the test that its fixes are proved by, where the profile names one.
    ``entries`` is in the order of application.
    """

    name: str
    release: str
    targets: dict[str, tuple[str, ...]]
    platforms: tuple[Platform, ...]
    entries: dict[str, Entry]
    bundles: dict[str, Bundle]
    proofs: dict[str, str]


def parse(data: bytes, where: str, name: str) -> Profile:
    """Read the profile called ``name``.

    Raises FixesError, kind ``bad-profile``, with every error and its key path.
    """
    document = Document(where, KIND)
    root = document.table(toml.parse(data, where, KIND))
    if not NAME.fullmatch(name):
        document.fail("", f"{name!r} is no plain name")
    release = version(root, "release")
    entries = {key: _entry(key, table, release) for key, table in root.named("fixes", {})}
    targets = {key: _target(key, table) for key, table in root.named("targets")}
    profile = Profile(
        name=name,
        release=release,
        targets={key: wheels for key, (wheels, _) in targets.items()},
        platforms=tuple(
            _platform(key, table, entries) for key, table in root.named("platforms", {})
        ),
        entries=entries,
        bundles={key: _bundle(key, table, entries) for key, table in root.named("bundles", {})},
        proofs={key: proof for key, (_, proof) in targets.items() if proof},
    )
    if "targets" in root and not profile.targets:
        root.fail("targets", "is empty")
    root.close()
    document.close()
    return profile


def _target(target: str, table: Table) -> tuple[tuple[str, ...], str]:
    """The wheels of a target; for one that has pins instead, what proves its fixes."""
    pinned = table.flag("pins", False)
    proof = table.string("proof", "").strip()
    wheels = table.strings("wheels", () if pinned else None)
    if pinned and wheels:
        table.fail("pins", "is for a target without wheels")
    if proof and not pinned:
        table.fail("proof", "is for a target without wheels, which the matrix cannot try")
    if not target.isidentifier():
        table.fail("", "is no import package")
    if "wheels" in table and not wheels:
        table.fail("wheels", "is empty")
    for index, wheel in enumerate(wheels):
        if not _is_pinned(wheel):
            table.fail(f"wheels[{index}]", f"{wheel!r} is not of the form name==version")
    table.close()
    return wheels, proof


def _is_pinned(text: str) -> bool:
    """Whether a requirement is ``name==version`` and no more."""
    try:
        name = Requirement(text).name
        Version(text.removeprefix(f"{name}=="))
    except (InvalidRequirement, InvalidVersion):
        return False
    return text.startswith(f"{name}==")


def _entry(fix: str, table: Table, release: str) -> Entry:
    """One of three: steps, or upstream since a release, or not needed for a reason."""
    if not NAME.fullmatch(fix):
        table.fail("", "is no plain name (lower case, digits, single hyphens)")
    upstream = version(table, "upstream", "")
    not_needed = table.string("not_needed", "").strip()
    steps = table.strings("steps", ())
    for index, step in enumerate(steps):
        if "/" in step or not step.endswith((".patch", ".toml")) or step == "fix.toml":
            table.fail(f"steps[{index}]", f"{step!r} is no .patch or .toml file of the fix")
    given = [key for key in ("steps", "upstream", "not_needed") if key in table]
    if len(given) != 1:
        table.fail("", "must have exactly one of 'steps', 'upstream' and 'not_needed'")
    elif not (steps or upstream or not_needed):
        table.fail(given[0], "is empty")
    if upstream and _later(upstream, release):
        table.fail("upstream", f"is later than the profile's release, {release}")
    table.close()
    if upstream:
        return Entry(fix, Need.UPSTREAM, f"since {upstream}", upstream)
    if not_needed:
        return Entry(fix, Need.NOT_NEEDED, not_needed)
    return Entry(fix, Need.OFFERED, "", "", steps)


def _later(one: str, other: str) -> bool:
    try:
        return Version(one) > Version(other)
    except InvalidVersion:
        return False


def _known(table: Table, key: str, entries: dict[str, Entry]) -> tuple[str, ...]:
    names = table.strings(key)
    for index, name in enumerate(names):
        if name not in entries:
            table.fail(f"{key}[{index}]", f"{name!r} is no fix of this profile")
    return names


def _bundle(name: str, table: Table, entries: dict[str, Entry]) -> Bundle:
    if not NAME.fullmatch(name):
        table.fail("", "is no plain name (lower case, digits, single hyphens)")
    if name in entries:
        table.fail("", "is the name of a fix too")
    bundle = Bundle(name, table.text("title"), _known(table, "members", entries))
    table.close()
    return bundle


def _platform(name: str, table: Table, entries: dict[str, Entry]) -> Platform:
    signs = table.table("signs", {})
    platform = Platform(
        name=name,
        package=table.text("package"),
        packages=signs.strings("packages", ()),
        devices=signs.strings("devices", ()),
        fixes=_known(table, "fixes", entries),
        why=table.text("why", ""),
        refuses=table.mapping("refuses", {}),
    )
    if "fixes" in table and not platform.fixes and not platform.why:
        table.fail("why", "missing, and no fix is offered")
    signs.close()
    table.close()
    return platform
