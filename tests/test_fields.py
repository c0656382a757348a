"""Typed reading of tables: values, errors with key paths, all at once."""

import pytest

from fixes.errors import ExitCode, FixesError
from fixes.fields import Document

SOUND = {
    "name": "x",
    "size": 3,
    "on": True,
    "names": ["a", "b"],
    "raw": "é\udcff",
    "inner": {"deep": "y"},
    "rows": [{"at": 1}, {"at": 2}],
    "by-name": {"one": {"at": 1}, "vllm/x.py": {"at": 2}},
    "meanings": {"k": "v"},
}


def complaints(document: Document) -> list[str]:
    return [f"{problem.where}: {problem.what}" for problem in document.problems]


def test_values_of_every_type():
    document = Document("f.toml", "bad")
    root = document.table(SOUND)
    assert root.string("name") == root.text("name") == "x"
    assert root.choice("name", ("x", "y")) == "x"
    assert root.number("size") == 3
    assert root.flag("on") is True
    assert root.strings("names") == ("a", "b")
    assert root.data("raw") == b"\xc3\xa9\xff"
    assert root.table("inner").string("deep") == "y"
    assert [row.number("at") for row in root.tables("rows")] == [1, 2]
    assert {name: row.number("at") for name, row in root.named("by-name")} == {
        "one": 1,
        "vllm/x.py": 2,
    }
    assert root.mapping("meanings") == {"k": "v"}
    assert list(root) == list(SOUND)
    assert "name" in root and "other" not in root
    root.close()
    document.close()


def test_defaults_stand_for_missing_keys_only():
    document = Document("f", "bad")
    root = document.table({"name": 1})
    assert root.string("other", "d") == "d"
    assert root.number("other", 7) == 7
    assert root.flag("other", False) is False
    assert root.strings("other", ()) == ()
    assert root.text("other", "") == ""
    assert list(root.tables("other", [])) == list(root.named("other", {})) == []
    assert root.table("other", {}).string("key", "d") == "d"
    assert not document.problems
    root.string("name", "d")
    assert complaints(document) == ["f: name: expected a string"]


@pytest.mark.parametrize(
    ("data", "read", "complaint"),
    [
        ({"k": 1}, lambda t: t.string("k"), "k: expected a string"),
        ({"k": " \n"}, lambda t: t.text("k"), "k: is empty"),
        ({"k": True}, lambda t: t.number("k"), "k: expected a whole number"),
        ({"k": 1.0}, lambda t: t.number("k"), "k: expected a whole number"),
        ({"k": 1}, lambda t: t.flag("k"), "k: expected true or false"),
        ({"k": None}, lambda t: t.string("k", ""), "k: expected a string"),
        ({"k": "a"}, lambda t: t.strings("k"), "k: expected a list"),
        ({"k": ["a", 1]}, lambda t: t.strings("k"), "k[1]: expected a string, not empty"),
        ({"k": [""]}, lambda t: t.strings("k"), "k[0]: expected a string, not empty"),
        ({"k": ["a", "a"]}, lambda t: t.strings("k"), "k[1]: names 'a' twice"),
        ({"k": "z"}, lambda t: t.choice("k", ("x", "y")), "k: is 'z', not one of 'x', 'y'"),
        ({"k": "\ud800"}, lambda t: t.data("k"), "k: holds characters that stand for no bytes"),
        ({"k": []}, lambda t: t.table("k").string("x"), "k: expected a table"),
        ({"k": [1]}, lambda t: [r.string("x") for r in t.tables("k")], "k[0]: expected a table"),
        ({"k": {"n": 1}}, lambda t: list(t.named("k")), "k.n: expected a table"),
        ({"k": {"a/b.c": 1}}, lambda t: t.mapping("k"), 'k."a/b.c": expected a string'),
        ({}, lambda t: t.string("k"), "k: missing"),
        ({}, lambda t: t.table("k").string("x"), "k: missing"),
        (
            {"k": [{}, {"j": {"i": [{"h": 1}]}}]},
            lambda t: [
                i.string("h")
                for row in t.tables("k")
                if "j" in row
                for i in row.table("j").tables("i")
            ],
            "k[1].j.i[0].h: expected a string",
        ),
    ],
)
def test_each_error_names_its_key_path_once(data, read, complaint):
    document = Document("f", "bad")
    read(document.table(data))
    assert complaints(document) == [f"f: {complaint}"]


def test_a_root_that_is_no_table():
    document = Document("f", "bad")
    root = document.table([1])
    root.string("name")
    root.close()
    assert complaints(document) == ["f: expected a table"]


def test_unknown_keys_are_refused_with_the_nearest_known():
    document = Document("f", "bad")
    root = document.table({"titel": "x", "zzz": 1})
    root.string("title", "")
    root.close()
    assert [(p.where, p.what, p.hint) for p in document.problems] == [
        ("f: titel", "unknown key", "did you mean 'title'?"),
        ("f: zzz", "unknown key", ""),
    ]


def test_all_errors_are_raised_together():
    document = Document("f", "bad-thing", ExitCode.USAGE)
    root = document.table({"a": 1, "b": 2})
    root.string("a")
    root.string("c")
    root.close()
    with pytest.raises(FixesError) as caught:
        document.close()
    assert [p.where for p in caught.value.problems] == ["f: a", "f: c", "f: b"]
    assert {p.kind for p in caught.value.problems} == {"bad-thing"}
    assert caught.value.exit_code == ExitCode.USAGE
