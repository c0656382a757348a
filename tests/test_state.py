"""The state as a file: what is written is read back, and nothing else is taken for a state."""

from __future__ import annotations

import base64
import copy
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from fixes.digest import seal, sha256, unseal
from fixes.state import DamagedStateError, FixedFile, State, Verified, dump, load, pack

BEFORE = b"a\r\n\xff"
ADDED = FixedFile("vllm/b.py", "", "b" * 64, ("one",))
STATE = State(
    "1.0",
    "v1",
    "0.30.0+cpu",
    "c" * 64,
    ("one", "two"),
    {"patches/one/v1.patch": "d" * 64},
    {
        "vllm/a.py": FixedFile(
            "vllm/a.py", sha256(BEFORE), "a" * 64, ("one", "two"), ",sha256=\udcff,1", pack(BEFORE)
        ),
        "vllm/b.py": ADDED,
    },
    "e" * 64,
    ("vllm/a.py",),
    Verified("probe", "f" * 64, "3.12.1", {"two": "no-gloo"}),
    {"names": ["one"], "report": {"exit": 0}},
)
#: JSON of every type; whatever is not what a key holds is damage.
VALUES: tuple[Any, ...] = (None, True, 5, 0.5, "", "x", "\ud800", [], [1], ["x"], [["a"]], {})
VALUES += ({"a": 1}, {"a": "b"}, [{}], [None])


def resealed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The state with a change and a seal that fits."""
    body = unseal(dump(STATE))
    change(body)
    return seal(body)


def refused(data: bytes) -> str:
    with pytest.raises(DamagedStateError) as caught:
        load(data)
    return str(caught.value)


def test_what_is_written_is_read_back() -> None:
    assert load(dump(STATE)) == STATE
    bare = State("1", "v1", "", "", (), {}, {}, "")
    assert load(dump(bare)) == bare
    assert STATE.files["vllm/a.py"].pristine() == BEFORE
    assert ADDED.pristine() is None


def test_any_byte_that_changed_is_damage() -> None:
    data = dump(STATE)
    for place in range(0, len(data), 7):
        refused(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    for cut in (b"", data[:-1], data + b" ", data[:100]):
        refused(cut)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The key paths of everything inside a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, dict | list):
            found += places(inner, (*path, key))
    return found


def put(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        body = body[key]
    body[path[-1]] = value


def shape(value: Any) -> Any:
    """The types that dataclasses promise, and what every later use relies on."""
    assert all(type(name) is str for name in (*value.fixes, *value.accepted))
    for file in value.files.values():
        assert {type(one) for one in (file.path, file.pre, file.post, file.packed)} == {str}
        assert file.record is None or type(file.record) is str
        assert type(file.fixes) is tuple and all(type(name) is str for name in file.fixes)
    texts = [value.tool, value.profile, value.release, value.lock, value.digest]
    tables = [value.steps]
    if value.verified is not None:
        tables.append(value.verified.unproven)
        texts += [value.verified.level, value.verified.fingerprint, value.verified.python]
    for table in tables:
        texts += [*table, *table.values()]
    assert {type(text) for text in texts} == {str}
    assert value.answer is None or type(value.answer) is dict
    dump(value).decode("ascii")


def test_a_seal_does_not_make_a_state() -> None:
    """Every part of a state, replaced by every type of value under a seal that fits."""
    sound = unseal(dump(STATE))
    refusals = 0
    for path in places(sound):
        for value in VALUES:
            body = copy.deepcopy(sound)
            put(body, path, value)
            try:
                shape(load(seal(body)))
            except DamagedStateError:
                refusals += 1
    assert refusals > 300


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["files"][0].update(path=5),
        lambda body: body.update(fixes=[["a"]]),
        lambda body: body["verified"].update(unproven=[1]),
        lambda body: body["verified"].update(level="PROBE"),
        lambda body: body.update(accepted=[["x"]]),
        lambda body: body["files"][0].update(record=5),
        lambda body: body["files"][0].update(pre="zz"),
        lambda body: body["files"][0].update(path="vllm/\ud800.py"),
        lambda body: body["files"].append([]),
        lambda body: body["files"][0].pop("packed"),
        lambda body: body.pop("steps"),
        lambda body: body.update(more=1),
        lambda body: body.update(format=2),
    ],
)
def test_what_is_no_state(change: Callable[[dict[str, Any]], object]) -> None:
    assert refused(resealed(change))


def test_a_malformed_answer_is_dropped() -> None:
    for value in (5, "x", [], [["a"]], True):
        state = load(resealed(lambda body, value=value: body.update(answer=value)))
        assert state.answer is None and state.files == STATE.files


def test_nesting_without_end_is_damage() -> None:
    """Deeper than the JSON reader goes, which is no ValueError."""
    head, _, _ = seal({}).partition(b",")
    rest = b'"answer": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    old = head[head.index(b": ") + 3 : -1]
    with pytest.raises(DamagedStateError) as caught:
        load(head.replace(old, sha256(rest).encode()) + b"," + rest)
    assert isinstance(caught.value.__cause__, RecursionError)


def test_a_pre_image_that_unpacks_to_gigabytes() -> None:
    """A thousandth of its bytes packed: no more of it is unpacked than a pre-image may have."""
    packer = zlib.compressobj()
    packed = b"".join(packer.compress(bytes(1 << 24)) for _ in range(32)) + packer.flush()
    file = FixedFile("vllm/a.py", "a" * 64, "b" * 64, (), None, base64.b64encode(packed).decode())
    tracemalloc.start()
    try:
        with pytest.raises(DamagedStateError, match="another sha256"):
            file.pristine()
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
