"""What sets of fixes make of each file, checked when the lock is made.

For each fix alone (with what it requires), each pair of fixes that touch the same file, each
bundle, and each prefix of these: the set applies to every accepted pre-image in the order of
application, the post-image is Python, and taking any one fix back that the others do not
require gives exactly the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from itertools import combinations

from fixes.authoring.authored import Authored
from fixes.authoring.images import Composer, Pristine, StepError, shifts, touched
from fixes.digest import sha256
from fixes.errors import ExitCode, Problem
from fixes.lock import PinnedFile, Step


class Combinations:
    """All files that the offered fixes touch, and the problems found in them."""

    def __init__(
        self, authored: Authored, pristine: Pristine, steps: dict[str, tuple[Step, ...]]
    ) -> None:
        self._authored = authored
        self._pristine = pristine
        self._steps = steps
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        paths = {fix: touched(steps[fix]) for fix in steps}
        every = sorted({path for found in paths.values() for path in found})
        self.files = {
            path: self._file(path, [fix for fix in steps if path in paths[fix]]) for path in every
        }

    def _file(self, path: str, fixes: Sequence[str]) -> PinnedFile:
        target = path.partition("/")[0]
        if (pins := self._authored.pins.get(target)) and path in pins.files:
            return PinnedFile(target, path, dict.fromkeys(sorted(pins.files[path]), ()), {})
        sets = self._sets(fixes)
        images = self._pristine.images(path)
        post: dict[tuple[str, tuple[str, ...]], str] = {}
        found: list[tuple[str, bytes | None, str]] = [
            (pre, data, ", ".join(wheels)) for pre, (data, wheels) in images.items()
        ]
        for pre, data, wheels in found or [("", None, "a tree without it")]:
            composer = Composer(path, data, self._steps)
            for made, sha in self._posts(composer, sets, wheels).items():
                post[pre, made] = sha
        pristine = {pre: tuple(sorted(wheels)) for pre, (_, wheels) in sorted(images.items())}
        return PinnedFile(target, path, pristine, post)

    def _sets(self, fixes: Sequence[str]) -> list[tuple[str, ...]]:
        """The sets to look at, of those fixes alone that touch the file, small ones first."""
        authored = self._authored
        closures = {fix: authored.closure(fix) for fix in fixes}
        wanted: list[Iterable[str]] = list(closures.values())
        for one, other in combinations(fixes, 2):
            both = {*closures[one], *closures[other]}
            if not any(authored.conflict(*pair) for pair in combinations(both, 2)):
                wanted.append(both)
        wanted += [bundle.members for bundle in authored.profile.bundles.values()]
        sets = [tuple(fix for fix in fixes if fix in members) for members in wanted]
        prefixes = {found[:length] for found in sets for length in range(1, len(found) + 1)}
        return sorted(prefixes, key=lambda found: (len(found), found))

    def _posts(
        self, composer: Composer, sets: Sequence[tuple[str, ...]], wheels: str
    ) -> dict[tuple[str, ...], str]:
        """The sha256 of each set's post-image. A set that holds a failed one is left out."""
        posts: dict[tuple[str, ...], str] = {}
        failed: list[set[str]] = []
        for fixes in sets:
            if any(bad <= set(fixes) for bad in failed):
                continue
            problems = self._problems(composer, fixes, wheels)
            if problems:
                failed.append(set(fixes))
                self.problems += problems
                continue
            posts[fixes] = sha256(composer.compose(fixes) or b"")
            alone = set(fixes) <= set(self._authored.closure(fixes[-1]))
            if alone and (away := shifts(composer.offsets(fixes))):
                self.notes.append(f"{fixes[-1]}: {composer.path} of {wheels}: {away}")
        return posts

    def _problems(self, composer: Composer, fixes: tuple[str, ...], wheels: str) -> list[Problem]:
        """What is wrong with one set on one pre-image."""
        names = " and ".join(fixes)

        def problem(kind: str, what: str, hint: str = "") -> Problem:
            return Problem(ExitCode.MISMATCH, kind, what, composer.path, hint)

        try:
            data = composer.compose(fixes)
        except StepError as error:
            hint = "make one require the other, or declare the conflict"
            return [
                problem(kind, f"{names} does not apply to {wheels}: {what}")
                if len(fixes) == 1
                else problem("conflict", f"{names} do not go together: {what}", hint)
                for kind, what in error.faults
            ]
        if data is not None and (fault := _syntax_fault(composer.path, data)):
            return [problem("bad-syntax", f"with {names} it is not Python: {fault}")]
        return [
            problem(
                "not-reversible",
                f"taking {fix} back from {names} does not give what it was: {fault}",
                "give the diff more context",
            )
            for fix in fixes
            if (fault := self._reverse_fault(composer, fixes, fix))
        ]

    def _reverse_fault(self, composer: Composer, fixes: tuple[str, ...], fix: str) -> str:
        """Why one fix cannot be taken back from a set exactly, or nothing."""
        rest = tuple(other for other in fixes if other != fix)
        if any(fix in self._authored.fixes[other].requires for other in rest):
            return ""
        try:
            same = composer.without(fixes, fix) == composer.compose(rest)
        except StepError as error:
            return str(error)
        return "" if same else "the bytes differ"


def _syntax_fault(path: str, data: bytes) -> str:
    """Why a post-image does not compile under the running Python, or nothing."""
    if not path.endswith(".py"):
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return str(error)
    return ""
