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
from fixes.authoring.images import Composer, Pristine, StepError, touched
from fixes.errors import ExitCode, Problem
from fixes.lock import PinnedFile, Step
from fixes.state import sha256


class Combinations:
    """All files that the offered fixes touch, and the problems found in them."""

    def __init__(
        self, authored: Authored, pristine: Pristine, steps: dict[str, tuple[Step, ...]]
    ) -> None:
        self._authored = authored
        self._pristine = pristine
        self._steps = steps
        self.problems: list[Problem] = []
        paths = {fix: touched(steps[fix]) for fix in steps}
        every = sorted({path for found in paths.values() for path in found})
        self.files = {
            path: self._file(path, [fix for fix in steps if path in paths[fix]]) for path in every
        }

    def _file(self, path: str, fixes: Sequence[str]) -> PinnedFile:
        sets = self._sets(fixes)
        images = self._pristine.images(path)
        post: dict[tuple[str, tuple[str, ...]], str] = {}
        contents: dict[str, bytes | None] = {pre: data for pre, (data, _) in images.items()}
        for pre, data in (contents or {"": None}).items():
            composer = Composer(path, data, self._steps)
            for fixes_of, made in self._posts(composer, sets).items():
                post[pre, fixes_of] = made
        pristine = {pre: tuple(sorted(wheels)) for pre, (_, wheels) in sorted(images.items())}
        return PinnedFile(path.partition("/")[0], path, pristine, post)

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
        self, composer: Composer, sets: Sequence[tuple[str, ...]]
    ) -> dict[tuple[str, ...], str]:
        """The sha256 of each set's post-image. A set that holds a failed one is left out."""
        posts: dict[tuple[str, ...], str] = {}
        failed: list[set[str]] = []
        for fixes in sets:
            if any(bad <= set(fixes) for bad in failed):
                continue
            found = self._faults(composer, fixes)
            if found:
                failed.append(set(fixes))
                self.problems += (problem for problem in found if problem not in self.problems)
            else:
                posts[fixes] = sha256(composer.compose(fixes) or b"")
        return posts

    def _faults(self, composer: Composer, fixes: tuple[str, ...]) -> list[Problem]:
        together = " together with " if len(fixes) > 1 else ""
        try:
            data = composer.compose(fixes)
        except StepError as error:
            rest = ", ".join(fix for fix in fixes if fix != error.fix)
            hint = "make one require the other, or declare the conflict" if rest else ""
            return [
                Problem(
                    ExitCode.MISMATCH,
                    "conflict" if rest else kind,
                    f"{error.fix}{together}{rest} does not apply: {what}",
                    composer.path,
                    hint,
                )
                for kind, what in error.faults
            ]
        names = ", ".join(fixes)
        if data is not None and (fault := _syntax_fault(composer.path, data)):
            what = f"the post-image of {names} is not Python: {fault}"
            return [Problem(ExitCode.MISMATCH, "bad-syntax", what, composer.path)]
        problems = []
        for fix in fixes:
            rest_of = tuple(other for other in fixes if other != fix)
            if any(fix in self._authored.fixes[other].requires for other in rest_of):
                continue
            try:
                fault = (
                    "" if composer.without(fixes, fix) == composer.compose(rest_of) else "differs"
                )
            except StepError as error:
                fault = str(error)
            if fault:
                what = f"taking {fix} back from {names} does not give the rest: {fault}"
                hint = "give the diff more context"
                problem = Problem(ExitCode.MISMATCH, "not-reversible", what, composer.path, hint)
                problems.append(problem)
        return problems


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
