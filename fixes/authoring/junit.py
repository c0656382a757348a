"""The matrix as a JUnit report: a suite for each tree, a case for each cell.

What is proved elsewhere is a skipped case, in a suite of the release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, tostring

from fixes.authoring.results import Release
from fixes.errors import Problem

#: What XML 1.0 (section 2.2) has no character for.
_NO_CHARACTER = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def dump(releases: Iterable[Release], problems: Iterable[Problem]) -> bytes:
    """The report. ``problems`` are those that kept a release from being tried; they are errors."""
    root = Element("testsuites")
    for release in releases:
        for tree in release.trees:
            cells = (*tree.sets, *tree.fixes)
            name = f"{release.profile} {tree.label}"
            suite = _suite(root, name, len(cells), failures=len(tree.failed))
            for cell in cells:
                named = ", ".join(filter(None, (cell.column, cell.case)))
                case = SubElement(suite, "testcase", classname=f"{name} {cell.subject}", name=named)
                case.set("time", f"{cell.seconds:.3f}")
                if cell.fault:
                    SubElement(case, "failure", message=_clean(cell.fault))
        if release.elsewhere:
            suite = _suite(root, release.profile, len(release.elsewhere))
            suite.set("skipped", str(len(release.elsewhere)))
            for fix, why in release.elsewhere.items():
                case = SubElement(suite, "testcase", classname=f"{release.profile} {fix}")
                case.set("name", "elsewhere")
                SubElement(case, "skipped", message=_clean(why))
    for problem in problems:
        suite = _suite(root, problem.where, 1, errors=1)
        case = SubElement(suite, "testcase", classname=problem.where, name=problem.kind)
        SubElement(case, "error", message=_clean(problem.what))
    report: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return report + b"\n"


def _suite(root: Element, name: str, tests: int, *, failures: int = 0, errors: int = 0) -> Element:
    counts = {"tests": str(tests), "failures": str(failures), "errors": str(errors)}
    return SubElement(root, "testsuite", {"name": name or "matrix", **counts})


def _clean(text: str) -> str:
    return _NO_CHARACTER.sub("\ufffd", text)
