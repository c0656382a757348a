"""The outcome: what a run found and did, from its session and plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from fixes import __version__
from fixes.errors import ExitCode, Problem, worst
from fixes.origin import FileVerdict, paths_of
from fixes.plan import FilePlan, Plan
from fixes.report import problem_document
from fixes.session import Session
from fixes.state import Level
from fixes.verify import Verification

_ON_EVERY_NODE = "needed on every node of a replica, or on none"


@dataclass(frozen=True)
class FixLine:
    """One fix (or platform) and its verdict."""

    id: str
    verdict: str
    detail: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class TreeLine:
    """One target as it was found."""

    target: str
    version: str
    distribution: str
    path: str
    layout: str


@dataclass(frozen=True)
class FileLine:
    """One file that fixes touch; hashes are sha256, empty where there is no file."""

    path: str
    verdict: str
    now: str
    wanted: str
    offsets: tuple[int, ...] = ()


@dataclass
class Report:
    """What a run found and did. Keys of the JSON form are stable."""

    verb: str
    profile: str = ""
    trees: list[TreeLine] = field(default_factory=list)
    fixes: list[FixLine] = field(default_factory=list)
    files: list[FileLine] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    dry_run: bool = False
    level: str = "none"
    verification: str = ""
    accepted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    digest: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that the problems give."""
        return worst(self.problems)

    def document(self) -> dict[str, object]:
        """The report as fixes.report prints it."""
        body = asdict(self)
        body["problems"] = [problem_document(problem) for problem in self.problems]
        body["tool"] = __version__
        body["exit"] = int(self.exit_code)
        return body


def start(verb: str, here: Session) -> Report:
    """A report that says what the run works on."""
    trees = [
        TreeLine(t.target, t.version or "of unknown version", t.distribution, str(t.site), t.layout)
        for t in here.trees
    ]
    return Report(verb, here.lock.profile, trees)


def add_plan(report: Report, here: Session, plan: Plan, *, done: bool) -> Report:
    """Add fixes, files, digest and acceptances. ``done``: the plan has been carried out."""
    written = {file.path for file in plan.writes}
    stale = {file.path for file in plan.files if file.verdict is FileVerdict.OUTDATED}
    for name in plan.wanted:
        paths = paths_of(here.lock.fixes[name])
        plans = report.verb in ("apply", "overlay")
        verdict = "already-applied" if report.verb == "apply" else "applied"
        if name not in plan.present or stale & set(paths):
            verdict = "applied" if done else "pending"
            # Wanted, not in, and not asked for either: recorded, as other versions had it.
            if not done and (name in plan.present or not plans):
                verdict = "outdated"
        report.fixes.append(FixLine(name, verdict, files=paths))
    gone = "reverted" if done else "pending"
    for name in plan.present:
        if name not in plan.wanted:
            report.fixes.append(FixLine(name, gone, files=paths_of(here.lock.fixes[name])))
    report.fixes += [FixLine(name, gone) for name in plan.retired]
    report.files += [
        # Pinned bytes cannot drift: an offset there is another fix's doing, and no news.
        FileLine(
            file.path,
            file.verdict.value,
            file.now,
            file.post,
            file.offsets if file.accepted else (),
        )
        for file in plan.files
        if file.target in here.releases or file.wanted
    ]
    report.changed = sorted(written)
    wire = [name for name in plan.wanted if here.lock.fixes[name].wire]
    if wire:
        report.notes.append(f"{_ON_EVERY_NODE}: {', '.join(wire)}")
    report.notes += _broken(here, plan)
    report.digest = plan.digest(here.releases)
    report.accepted += [
        f"{'same syntax in' if file.by_edits else 'foreign pre-image of'} {file.path}, "
        f"sha256 {file.pre}"
        for file in plan.files
        if file.accepted and file.wanted
    ]
    if here.odd_version and not here.problems:
        report.accepted.append(f"version {here.trees[0].version} for profile {here.lock.profile}")
    return report


def _broken(here: Session, plan: Plan) -> list[str]:
    """The bundles that were whole and lose a part; another bundle may have shared it."""
    notes = []
    for bundle in here.lock.bundles.values():
        whole = (*bundle.members, *here.platform_fixes)
        members = [name for name in whole if here.lock.fixes[name].steps]
        gone = [name for name in members if name not in plan.wanted]
        if set(members) <= set(plan.present) and 0 < len(gone) < len(members):
            notes.append(f"{bundle.name} is not whole without {', '.join(gone)}")
    return notes


def refused(
    verb: str,
    here: Session,
    plan: Plan,
    problems: Iterable[Problem],
    lines: Iterable[FixLine] = (),
) -> Report:
    """The report of a plan that was not carried out: each fix with what stands against it."""
    report = add_plan(start(verb, here), here, plan, done=False)
    report.problems += problems
    kinds = {problem.where: problem.kind for problem in reversed(report.problems)}
    for place, line in enumerate(report.fixes):
        against = [kinds[name] for name in (line.id, *line.files) if name in kinds]
        if against:
            report.fixes[place] = replace(line, verdict=against[0])
    report.fixes += lines
    report.changed.clear()
    report.notes.clear()
    report.digest = plan.digest_now(here.releases)
    return report


def add_verification(
    report: Report, here: Session, plan: Plan, found: Verification, *, records: bool = True
) -> None:
    """Add the level that this run reached, and the probes that could not tell.

    ``records``: the files are those that the trees' RECORDs list.
    """
    report.level = found.level.word
    count = len(fixed(plan))
    report.verification = f"{count} files hashed" if count else "no file is fixed"
    if count and records and any(item.state_record for item in here.trees):
        report.verification += ", RECORD agrees"
    if found.earlier:
        report.verification += _earlier(found.level)
    if found.level >= Level.IMPORT and not found.earlier:
        report.verification += f"; modules imported in {found.import_s:.1f} s"
    if found.probes:
        passed = found.probes - len(found.unproven)
        report.verification += (
            f"; {passed} of {found.probes} probes passed in {found.probes_s:.1f} s"
        )
    mark_unproven(report, found.unproven)


def again(report: Report) -> dict[str, object]:
    """What a run that is asked the same will say while nothing changes."""
    fixes = [
        replace(line, verdict="already-applied") if line.verdict == "applied" else line
        for line in report.fixes
    ]
    fixed_paths = {path for line in fixes for path in line.files}
    files = [
        replace(file, verdict="applied", now=file.wanted) if file.path in fixed_paths else file
        for file in report.files
    ]
    hashed, _, _ = report.verification.partition(";")
    return replace(
        report,
        fixes=fixes,
        files=files,
        changed=[],
        notes=[note for note in report.notes if note.startswith(_ON_EVERY_NODE)],
        verification=hashed + _earlier(Level[report.level.upper()]),
    ).document()


def _earlier(level: Level) -> str:
    return f"; {level.word} was reached before, in this environment" if level > Level.BYTES else ""


def mark_unproven(report: Report, unproven: Mapping[str, str]) -> None:
    """Say of which fixes the probe could not tell here, under a condition they declare."""
    report.fixes = [
        replace(line, detail=f"unproven here: {unproven[line.id]}") if line.id in unproven else line
        for line in report.fixes
    ]


def fixed(plan: Plan) -> list[FilePlan]:
    """The files that hold fixes once the plan is carried out."""
    return [file for file in plan.files if file.wanted]
