"""The outcome: a session and a plan as the lines of a report."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fixes.origin import paths_of
from fixes.plan import FilePlan, Plan
from fixes.report import FileLine, FixLine, Report, TreeLine
from fixes.session import Session
from fixes.state import Level
from fixes.verify import Verification


def start(verb: str, here: Session) -> Report:
    """A report that says what the run works on."""
    trees = [
        TreeLine(
            t.target, t.version or "of unknown version", t.distribution, str(t.site), t.layout
        )
        for t in here.trees
    ]
    return Report(verb, here.lock.profile, trees)


def add_plan(report: Report, here: Session, plan: Plan, *, done: bool) -> Report:
    """Add fixes, files, digest and acceptances. ``done``: the plan has been carried out."""
    written = {file.path for file in plan.writes}
    for name in plan.wanted:
        paths = paths_of(here.lock.fixes[name])
        verdict = "already-applied"
        if name not in plan.present or written & set(paths):
            verdict = "applied" if done else "pending"
            if name in plan.present and not done:
                verdict = "outdated"
        report.fixes.append(FixLine(name, verdict, files=paths))
    for name in plan.present:
        if name not in plan.wanted:
            verdict = "reverted" if done else "pending"
            report.fixes.append(FixLine(name, verdict, files=paths_of(here.lock.fixes[name])))
    report.files += [
        FileLine(file.path, file.verdict.value, file.now, file.post, file.offsets)
        for file in plan.files
    ]
    report.changed = sorted(written)
    report.digest = plan.digest(here.releases)
    report.accepted += [
        f"foreign pre-image of {file.path}, sha256 {file.pre}"
        for file in plan.files
        if file.accepted and file.wanted
    ]
    core = here.trees[0]
    if core.release != here.lock.release:
        report.accepted.append(f"version {core.version} for profile {here.lock.profile}")
    return report


def add_verification(report: Report, plan: Plan, found: Verification) -> None:
    """Add the level that this run reached, and the probes that could not tell."""
    report.level = found.level.word
    report.verification = f"{len(fixed(plan))} files hashed, RECORD agrees"
    if found.earlier:
        report.verification += f"; {found.level.word} was reached before, in this environment"
    elif found.level >= Level.IMPORT:
        report.verification += f"; modules imported in {found.import_s:.1f} s"
    if found.probes:
        passed = found.probes - len(found.unproven)
        report.verification += (
            f"; {passed} of {found.probes} probes passed in {found.probes_s:.1f} s"
        )
    mark_unproven(report, found.unproven)


def mark_unproven(report: Report, unproven: Collection[str]) -> None:
    """Say of which fixes the probe could not tell here, under a condition they declare."""
    reasons = unproven if isinstance(unproven, dict) else dict.fromkeys(unproven, "")
    report.fixes = [
        replace(line, detail=f"unproven here: {reasons[line.id]}".rstrip(": "))
        if line.id in reasons
        else line
        for line in report.fixes
    ]


def fixed(plan: Plan) -> list[FilePlan]:
    """The files that hold fixes once the plan is carried out."""
    return [file for file in plan.files if file.wanted]
