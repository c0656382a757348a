"""``show FIX``: everything known about one fix, in every profile or in one."""

from __future__ import annotations

import argparse
import json

from fixes import catalogue, cli, report
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Fix, Lock
from fixes.origin import paths_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    add = parser.add_argument
    add("name", type=cli.filled, metavar="FIX")
    add("--profile", type=cli.filled, help="a profile; without it all that have the fix")
    add("--profiles", type=cli.folder, metavar="DIR", help="another folder of profiles")
    add("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Show without looking at any tree. USAGE for a fix that no profile knows."""
    source = catalogue.find(options.profiles)
    names = [options.profile] if options.profile else source.profiles()
    locks = [source.lock(name) for name in names]
    having = [lock for lock in locks if options.name in lock.fixes]
    if not having:
        from difflib import get_close_matches

        known = {fix for lock in locks for fix in lock.fixes}
        near = get_close_matches(options.name, sorted(known), 1)
        hint = f"did you mean {near[0]}?" if near else "`vllm-fixes list` shows all"
        if any(options.name in lock.bundles for lock in locks):
            hint = "it is a bundle; `vllm-fixes list` shows its members"
        what = f"no fix {options.name}"
        raise FixesError(Problem(ExitCode.USAGE, "unknown-fix", what, hint=hint))
    if options.json:
        entries = [_document(lock, lock.fixes[options.name]) for lock in having]
        report.emit(json.dumps({"id": options.name, "profiles": entries}, indent=2) + "\n")
    else:
        report.emit(_text(having, options.name))
    return 0


def _document(lock: Lock, fix: Fix) -> dict[str, object]:
    return {
        "profile": lock.profile,
        "need": fix.need.value,
        "why": fix.why,
        "title": fix.title,
        "symptom": fix.symptom,
        "cause": fix.cause,
        "affects": fix.affects,
        "workaround": fix.workaround,
        "log": [list(signs) for signs in fix.log],
        "threads": list(fix.threads),
        "releases": list(fix.releases),
        "removed_in": fix.removed_in,
        "requires": list(fix.requires),
        "conflicts": list(fix.conflicts),
        "both_nodes": fix.wire,
        "risk": fix.risk,
        "drop_when": fix.drop_when,
        "targets": list(fix.targets),
        "evidence": fix.probe.evidence if fix.probe else "",
        "cannot_tell": list(fix.probe.cannot_tell) if fix.probe else [],
        "on_pristine": fix.pristine_probe,
        "steps": [
            {"kind": step.kind, "source": step.source, "took": list(step.took)}
            for step in fix.steps
        ],
        "files": list(paths_of(fix)),
    }


def _wrapped(text: str) -> list[str]:
    """Paragraphs as indented lines that fit a terminal."""
    import textwrap

    lines: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        lines += textwrap.wrap(
            paragraph,
            96,
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _text(having: list[Lock], name: str) -> str:
    fix = having[0].fixes[name]
    lines = [f"{fix.id}: {fix.title}", ""]
    told = {
        "Symptom": fix.symptom,
        "Cause": fix.cause,
        "Who is hit": fix.affects,
        "Without the fix": fix.workaround,
        "Risk": fix.risk,
        "Drop when": fix.drop_when,
    }
    for label, text in told.items():
        lines += [f"{label}:", *_wrapped(text), ""]
    if fix.log:
        lines += ["In a log:", *(f"  {' ... '.join(signs)}" for signs in fix.log), ""]
    facts = {
        "Threads": ", ".join(fix.threads) or "none found",
        "Releases with the fault": ", ".join(fix.releases),
        "Removed upstream in": fix.removed_in or "not yet",
        "Requires": ", ".join(fix.requires),
        "Conflicts": ", ".join(fix.conflicts),
        "Both nodes or none": "yes" if fix.wire else "no",
        "Targets": ", ".join(fix.targets),
        "Evidence": fix.probe.evidence if fix.probe else "",
        "The probe cannot tell": ", ".join(fix.probe.cannot_tell) if fix.probe else "",
    }
    lines += [f"{label}: {text}" for label, text in facts.items() if text]
    for lock in having:
        here = lock.fixes[name]
        lines.append("")
        lines.append(
            f"In {lock.profile}: {here.need.value}" + (f" ({here.why})" if here.why else "")
        )
        if here.pristine_probe:
            lines.append(
                f"  on the pristine release its probe finds the fault {here.pristine_probe}"
            )
        for step in here.steps:
            taken = f", alternatives {', '.join(step.took)}" if step.took else ""
            lines.append(f"  {step.kind} {step.source}{taken}")
        lines += [f"    {path}" for path in paths_of(here)]
    return "\n".join(lines) + "\n"
