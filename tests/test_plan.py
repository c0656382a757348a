"""The plan is declarative: what is wanted, computed from the pristine bytes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fixes.digest import sha256
from fixes.hunks import Hunk
from fixes.lock import FileChange, Fix, Lock, Need, PinnedFile, Probe, Step
from fixes.origin import FileVerdict
from fixes.plan import Plan, make
from fixes.state import FixedFile, State, pack

ONE, TWO, NEW = "vllm/one.py", "vllm/two.py", "vllm/new.py"
PRISTINE = {
    ONE: b"".join(b"line_%d\n" % number for number in range(40)),
    TWO: b"alpha\r\nbeta\r\ngamma\r\ndelta",
    NEW: None,
}


def fix(name: str, *changes: FileChange, **more: object) -> Fix:
    facts = {
        "title": name,
        "symptom": "",
        "cause": "",
        "affects": "",
        "workaround": "",
        "log": (),
        "threads": (),
        "releases": (),
        "removed_in": "",
        "targets": ("vllm",),
        "requires": (),
        "conflicts": (),
        "risk": "",
        "drop_when": "",
        "wire": False,
        "need": Need.OFFERED,
        "why": "",
        "steps": (Step("diff", f"patches/{name}/x.patch", changes),),
        "probe": Probe(f"patches/{name}/probe.py", "behaviour", "fault"),
        **more,
    }
    return Fix(id=name, **facts)  # type: ignore[arg-type]


def change(path: str, line: int, old: bytes, new: bytes) -> FileChange:
    return FileChange("vllm", path, (Hunk(line, old, new),))


A = fix("a", change(ONE, 6, b"line_5\n", b"line_5\nfive_and_a_half\n"))
B = fix("b", change(ONE, 21, b"line_20\n", b"LINE_20\n"), change(TWO, 2, b"beta\r\n", b"BETA\r\n"))
C = fix("c", change(TWO, 4, b"delta", b"delta\r\nepsilon"), requires=("b",))
D = fix("d", FileChange("vllm", NEW, (), b"added = True\n"))
E = fix("e", change(ONE, 11, b"line_10\n", b"line_ten\n"), conflicts=("a",))


def lock(*fixes: Fix) -> Lock:
    files = {
        path: PinnedFile("vllm", path, {sha256(data): ("vllm==1",)} if data is not None else {}, {})
        for path, data in PRISTINE.items()
    }
    return Lock("v1", "1", {}, {}, files, {item.id: item for item in fixes}, {}, ())


ALL = lock(A, B, C, D)


def written(plan: Plan, seen: dict[str, bytes | None]) -> dict[str, bytes | None]:
    """The tree after a plan has been carried out."""
    assert plan.problems == ()
    after = dict(seen)
    for file in plan.files:
        if file.changes:
            after[file.path] = file.content
    return after


def recorded(plan: Plan) -> State:
    files = {
        f.path: FixedFile(f.path, f.pre, f.post, f.wanted, None, pack(f.pristine() or b""))
        for f in plan.files
        if f.wanted
    }
    return State("0", "v1", "1", "", plan.wanted, {}, files, "")


def kinds(plan: Plan) -> list[str]:
    return [problem.kind for problem in plan.problems]


def test_every_order_and_every_grouping_gives_the_same_bytes() -> None:
    at_once = written(make(ALL, "abcd", PRISTINE, None), PRISTINE)
    for order in itertools.permutations("abd"):
        seen, state = dict(PRISTINE), None
        for name in order:
            asked = {"b", "c"} if name == "b" else {name}
            plan = make(ALL, asked, seen, state)
            seen, state = written(plan, seen), recorded(plan)
        assert seen == at_once


def test_a_second_run_has_nothing_to_write_with_and_without_a_state() -> None:
    first = make(ALL, "abcd", PRISTINE, None)
    after = written(first, PRISTINE)
    for state in (recorded(first), None):
        again = make(ALL, "abcd", after, state)
        assert again.writes == ()
        assert again.problems == ()
        assert again.present == again.wanted == ("a", "b", "c", "d")
        assert again.digest({"vllm": "1"}) == first.digest({"vllm": "1"})


@given(st.sets(st.sampled_from("abcd")), st.sets(st.sampled_from("abcd")), st.booleans())
def test_adding_and_taking_out_equals_asking_for_the_rest(
    first: set[str], second: set[str], with_state: bool
) -> None:
    first, second = ({*names, "b"} if "c" in names else names for names in (first, second))
    plan = make(ALL, first | second, PRISTINE, None)
    both = written(plan, PRISTINE)
    removed = second - first
    if "c" in first:
        removed -= {"b"}
    taken = make(ALL, (), both, recorded(plan) if with_state else None, removed=removed)
    only = (first | second) - removed
    assert written(taken, both) == written(make(ALL, only, PRISTINE, None), PRISTINE)


def test_a_patched_file_without_a_state_is_recognised_and_its_pristine_bytes_known() -> None:
    after = written(make(ALL, "ab", PRISTINE, None), PRISTINE)
    plan = make(ALL, (), after, None)
    assert plan.present == ("a", "b")
    files = {file.path: file for file in plan.files}
    assert files[ONE].verdict is FileVerdict.APPLIED
    assert files[ONE].pristine() == PRISTINE[ONE]


def test_a_fix_that_only_some_of_its_files_hold_is_named_and_can_be_made_whole() -> None:
    after = written(make(ALL, "b", PRISTINE, None), PRISTINE)
    half = {**after, TWO: PRISTINE[TWO]}
    assert kinds(make(ALL, "a", half, None)) == ["half-applied"]
    assert written(make(ALL, "b", half, None), half) == after
    assert written(make(ALL, (), half, None, removed=["b"]), half) == PRISTINE


def test_every_foreign_and_missing_file_is_named_in_one_run() -> None:
    seen = {**PRISTINE, ONE: b"something else\n", TWO: None}
    plan = make(ALL, "ab", seen, None)
    assert kinds(plan) == ["foreign", "missing"]
    assert [problem.where for problem in plan.problems] == [ONE, TWO]


@given(st.integers(0, len(PRISTINE[ONE] or b"") - 1), st.integers(1, 255))
def test_any_changed_byte_of_a_pristine_or_fixed_file_is_foreign(place: int, flip: int) -> None:
    for names in ("", "ab"):
        plan = make(ALL, names, PRISTINE, None)
        after = written(plan, PRISTINE)
        data = bytearray(after[ONE] or b"")
        data[place] ^= flip
        for state in (recorded(plan), None):
            assert "foreign" in kinds(make(ALL, "ab", {**after, ONE: bytes(data)}, state))


def test_a_foreign_file_is_accepted_by_name_if_every_hunk_still_fits() -> None:
    seen = {**PRISTINE, ONE: b"# local\n" + (PRISTINE[ONE] or b"")}
    plan = make(ALL, "a", seen, None, foreign_allowed=[ONE])
    assert plan.problems == ()
    [file] = plan.writes
    assert file.accepted and file.offsets == (1,)
    broken = {**PRISTINE, ONE: (PRISTINE[ONE] or b"").replace(b"line_5\n", b"line_51\n")}
    assert kinds(make(ALL, "a", broken, None, foreign_allowed=[ONE])) == ["drifted"]
    twice = {**PRISTINE, ONE: (PRISTINE[ONE] or b"") * 2}
    assert kinds(make(ALL, "a", twice, None, foreign_allowed=[ONE])) == ["ambiguous"]


def test_an_older_version_of_a_step_is_outdated_and_made_anew_from_the_saved_bytes() -> None:
    old = lock(fix("a", change(ONE, 6, b"line_5\n", b"line_five\n")), B)
    first = make(old, "ab", PRISTINE, None)
    after = written(first, PRISTINE)
    plan = make(lock(A, B), "a", after, recorded(first))
    [file] = plan.writes
    assert file.verdict is FileVerdict.OUTDATED
    assert written(plan, after) == written(make(ALL, "ab", PRISTINE, None), PRISTINE)


def test_a_file_that_todays_steps_no_longer_touch_is_given_back() -> None:
    wide = lock(fix("a", *A.steps[0].changes, change(TWO, 1, b"alpha\r\n", b"ALPHA\r\n")))
    first = make(wide, "a", PRISTINE, None)
    today = lock(A)
    narrow = Lock("v1", "1", {}, {}, {ONE: today.files[ONE]}, today.fixes, {}, ())
    after = written(first, PRISTINE)
    plan = make(narrow, "a", after, recorded(first))
    assert written(plan, after)[TWO] == PRISTINE[TWO]


def test_a_recorded_fix_that_the_profile_does_not_know_is_refused_until_it_is_taken_out() -> None:
    first = make(ALL, "ab", PRISTINE, None)
    after = written(first, PRISTINE)
    assert kinds(make(lock(B), "b", after, recorded(first)))[0] == "not-offered"
    empty = Lock("(none)", "1", {}, {}, {}, {}, {}, ())
    plan = make(empty, (), after, recorded(first), removed="ab")
    assert written(plan, after) == PRISTINE


def test_what_belongs_together_and_what_excludes_each_other() -> None:
    assert kinds(make(ALL, "c", PRISTINE, None)) == ["conflict"]
    assert kinds(make(lock(A, E), "ae", PRISTINE, None)) == ["conflict"]
    first = make(ALL, "bc", PRISTINE, None)
    after = written(first, PRISTINE)
    assert kinds(make(ALL, (), after, recorded(first), removed="b")) == ["conflict"]


def test_a_file_to_add_that_is_there_already_is_a_conflict_or_ours() -> None:
    assert kinds(make(ALL, "d", {**PRISTINE, NEW: b"theirs = 1\n"}, None)) == ["foreign"]
    assert make(ALL, "d", {**PRISTINE, NEW: b"added = True\n"}, None).writes == ()


def test_the_digest_is_of_fixed_files_and_releases_only() -> None:
    plans = [make(ALL, names, PRISTINE, None) for names in ("a", "ab", "b", "")]
    digests = [plan.digest({"vllm": "1"}) for plan in plans]
    assert len(set(digests)) == 4
    assert plans[0].digest({"vllm": "2"}) not in digests


def test_a_damaged_saved_pre_image_is_a_problem_and_not_a_crash() -> None:
    first = make(ALL, "a", PRISTINE, None)
    after = written(first, PRISTINE)
    state = recorded(first)
    bad = FixedFile(**{**vars(state.files[ONE]), "packed": pack(b"not it")})
    spoilt = State(**{**vars(state), "files": {ONE: bad}})
    assert kinds(make(ALL, (), after, spoilt, removed="a")) == ["damaged-state"]


def test_a_thousand_fixes_are_planned_in_linear_time() -> None:
    def planned(count: int) -> int:
        names = [f"vllm/m{number}.py" for number in range(count)]
        many = [
            fix(f"f{i}", *(change(name, n + 1, b"x%d\n" % n, b"y%d\n" % n) for n in range(10)))
            for i, name in enumerate(names)
        ]
        data = b"".join(b"x%d\n" % n for n in range(10))
        files = {name: PinnedFile("vllm", name, {sha256(data): ()}, {}) for name in names}
        big = Lock("v1", "1", {}, {}, files, {item.id: item for item in many}, {}, ())
        counter = Counter(dict.fromkeys(names, data))
        plan = make(big, [item.id for item in many], counter, None)
        assert len(plan.writes) == count
        return steps(lambda: make(big, [item.id for item in many], counter, None))

    assert planned(200) < 3 * planned(100)


class Counter(dict):  # type: ignore[type-arg]
    """A tree that is only read."""


def steps(work: object) -> int:
    """How many lines of Python run: a count, where a time would depend on the machine."""
    import sys

    count = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        work()  # type: ignore[operator]
    finally:
        sys.settrace(before)
    return count


def test_what_would_not_be_python_any_more_is_not_written() -> None:
    seen = {**PRISTINE, ONE: (PRISTINE[ONE] or b"") + b"def (\n"}
    assert kinds(make(ALL, "a", seen, None, foreign_allowed=[ONE])) == ["not-python"]


def test_a_refused_plan_still_says_what_is_in() -> None:
    after = written(make(ALL, "a", PRISTINE, None), PRISTINE)
    plan = make(ALL, "ab", {**after, TWO: b"theirs\n"}, None)
    assert kinds(plan) == ["foreign"]
    releases = {"vllm": "1"}
    assert plan.digest_now(releases) == make(ALL, "a", PRISTINE, None).digest(releases)
