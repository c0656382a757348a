"""Source-level edits: every operation, what is refused, and that all else stays as it was."""

from __future__ import annotations

import ast
import dataclasses
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixes.editfile import parse_edits
from fixes.editing import files, resolve, resolve_all
from fixes.edits import Edit, EditError
from fixes.errors import ExitCode, FixesError
from fixes.functions import changed
from fixes.syntax import dump, find_scope, parse

CACHE = Path(os.environ.get("VLLM_FIXES_CACHE", "~/.cache/vllm-fixes")).expanduser()
TREE = CACHE / "trees" / "vllm-0.30.0"

BASE = '''\
"""Doc."""
from __future__ import annotations

import os
from x import Alias as Other  # noqa

Again = Other

class A(B):
    """Class doc."""

    # about f
    @dec(  # not @this
        "é"
    )
    @(
        # nor @this
        dec2
    )
    def f(self, a="é"):
        """Doc.

  # odd line"""

        # old comment
        x = call(
            a,  # first
        )  # tail
        return "ö" + x  # end

    async def g(self):
        async with a, b:
            await c
        return 1


if os:
    def h():
        return 1
'''


def edit(op: str, **keys: object) -> Edit:
    return Edit("m.py", op, **keys)  # type: ignore[arg-type]


def edited(source: str, *edits: Edit) -> str:
    return resolve(source.encode(), edits).data.decode()


def refused(source: str | None, *edits: Edit) -> EditError:
    with pytest.raises(EditError) as caught:
        resolve(None if source is None else source.encode(), edits)
    return caught.value


def test_insert_before_goes_above_the_first_decorator() -> None:
    anchor = (
        "@dec('é')\n@dec2\ndef f(self, a='é'):\n"
        + '''
    """Doc.

  # odd line"""
    x = call(a)
    return "ö" + x
'''
    )
    out = edited(BASE, edit("insert-before", scope="A", anchor=anchor, new="q = 1"))
    assert out == BASE.replace("    @dec(", "    q = 1\n    @dec(")
    out = edited(BASE, edit("insert-after", scope="A", anchor=anchor, new="q = 1"))
    assert out == BASE.replace("# end\n", "# end\n    q = 1\n")


def test_insert_after_goes_behind_the_trailing_comment() -> None:
    out = edited(
        BASE, edit("insert-after", scope="A.f", anchor="x=call( a )", new="  # why\n  y = 2 # so\n")
    )
    assert out == BASE.replace("# tail\n", "# tail\n        # why\n        y = 2 # so\n")


def test_replace_takes_the_trailing_comment_along_and_no_other() -> None:
    out = edited(BASE, edit("replace", scope="A.f", anchor="x = call(a,)", new="if 1:\n  x = 2\n"))
    old = "        x = call(\n            a,  # first\n        )  # tail\n"
    assert out == BASE.replace(old, "        if 1:\n          x = 2\n")


def test_several_consecutive_statements_are_one_anchor() -> None:
    source = "a()\nb()\na()\n\n# between\nb()  # last\nc()\nb()\na()\n"
    assert refused(source, edit("replace", anchor="a(); b()", new="n()")).kind == "ambiguous"
    out = edited(source, edit("replace", anchor="a()\nb()", new="n()", count=2))
    assert out == "n()\nn()\nc()\nb()\na()\n"


def test_statements_in_every_kind_of_suite_are_found() -> None:
    source = (
        "try:\n    m()\nexcept E:\n    m()\nelse:\n    m()\nfinally:\n    m()\n"
        "for a in b:\n    m()\nelse:\n    m()\nwhile a:\n    m()\nif a:\n    m()\n"
        "elif b:\n    m()\nelse:\n    m()\nwith a:\n    m()\nmatch a:\n    case 1:\n        m()\n"
        "async def f():\n    async for a in b:\n        m()\n    async with a:\n        m()\n"
        "class C:\n    def f(self):\n        def g():\n            m()\n"
    )
    total = source.count("m()")
    out = edited(source, edit("replace", anchor="m()", new="n(1)", count=total))
    assert out == source.replace("m()", "n(1)")


def test_an_elif_is_no_statement() -> None:
    source = "if a:\n    b\nelif c:\n    d\n"
    assert refused(source, edit("insert-before", anchor="if c:\n  d", new="e")).kind == "drifted"
    assert edited(source, edit("replace", anchor="d", new="e")).endswith("elif c:\n    e\n")


@pytest.mark.parametrize(
    ("op", "anchor", "new", "outcome"),
    [
        ("insert-before", "a", "n", "if x:\n    n\n    a; b  # c\nelse: d\n"),
        ("insert-before", "b", "n", "if x:\n    a\n    n\n    b  # c\nelse: d\n"),
        ("insert-after", "a", "n", "if x:\n    a\n    n\n    b  # c\nelse: d\n"),
        ("insert-after", "b", "n", "if x:\n    a; b  # c\n    n\nelse: d\n"),
        ("insert-after", "d", "n", "if x: a; b  # c\nelse:\n    d\n    n\n"),
        ("replace", "a", "n", "if x: n; b  # c\nelse: d\n"),
        ("replace", "b", "n", "if x: a; n\nelse: d\n"),
        ("replace", "a", "n # q", "if x:\n    n # q\n    b  # c\nelse: d\n"),
        ("replace", "b", "if n: p", "if x:\n    a\n    if n: p\nelse: d\n"),
        ("replace", "d", "n\np", "if x: a; b  # c\nelse:\n    n\n    p\n"),
        ("replace", "a; b", "n", "if x: n\nelse: d\n"),
        ("delete", "a", "", "if x: b  # c\nelse: d\n"),
        ("delete", "b", "", "if x: a\nelse: d\n"),
        ("delete", "d", "", "if x: a; b  # c\nelse: pass\n"),
        ("delete", "a; b", "", "if x: pass\nelse: d\n"),
    ],
)
def test_shared_lines(op: str, anchor: str, new: str, outcome: str) -> None:
    source = "if x: a; b  # c\nelse: d\n"
    assert edited(source, edit(op, anchor=anchor, new=new)) == outcome
    deep = "def f():\n\t" + source.replace("\ne", "\n\te")
    wanted = "def f():\n\t" + outcome.replace("\n", "\n\t").replace("    ", "\t").rstrip("\t")
    assert edited(deep, edit(op, anchor=anchor, new=new)) == wanted


def test_semicolons_and_continuations() -> None:
    source = "a = 1; \\\n b = 2 ;  # c\nc = \\\n  3\n"
    assert edited(source, edit("delete", anchor="b = 2")) == "a = 1\nc = \\\n  3\n"
    assert edited(source, edit("delete", anchor="a = 1")) == "b = 2 ;  # c\nc = \\\n  3\n"
    assert edited(source, edit("insert-before", anchor="b=2", new="n")) == (
        "a = 1\nn\nb = 2 ;  # c\nc = \\\n  3\n"
    )
    assert (
        edited(source, edit("replace", anchor="c = 3", new="n")) == "a = 1; \\\n b = 2 ;  # c\nn\n"
    )
    joined = "if x: \\\n    a\nb\n"
    assert edited(joined, edit("insert-before", anchor="a", new="n")) == "if x:\n    n\n    a\nb\n"
    remark = "if x:  # C:\\\n    a\nb\n"
    assert edited(remark, edit("insert-before", anchor="a", new="n")) == (
        "if x:  # C:\\\n    n\n    a\nb\n"
    )


def test_delete_leaves_pass_in_an_empty_suite() -> None:
    source = "def f():\n    a  # c\n    b\n\nx\n"
    assert edited(source, edit("delete", scope="f", anchor="a")) == "def f():\n    b\n\nx\n"
    assert edited(source, edit("delete", scope="f", anchor="a\nb")) == "def f():\n    pass\n\nx\n"
    both = edited(source, edit("delete", anchor="b"), edit("delete", anchor="a"))
    assert both == "def f():\n    pass\n\nx\n"
    assert edited(source, edit("delete", anchor="x")) == "def f():\n    a  # c\n    b\n\n"
    assert edited("x", edit("delete", anchor="x")) == ""
    assert edited("a\nb", edit("delete", anchor="b")) == "a\n"


def test_replace_expression_puts_parentheses_only_where_they_are_needed() -> None:
    source = "x = a\ny = a * 2\nf(a, k=a)\nz = 'é', a.b  # ü\n"
    out = edited(source, edit("replace-expression", anchor="a", new="p + q", count=5))
    assert out == "x = (p + q)\ny = (p + q) * 2\nf((p + q), k=(p + q))\nz = 'é', (p + q).b  # ü\n"
    plain = edited("x = a  # c\n", edit("replace-expression", anchor="a", new="p + q"))
    assert plain == "x = p + q  # c\n"
    assert (
        edited("f(i for i in j)\n", edit("replace-expression", anchor="(i for i in j)", new="k"))
        == "f(k)\n"
    )
    long = edited(
        "    \nif 1:\n    x = a\n", edit("replace-expression", anchor="a", new="p +\n    q # c")
    )
    assert long == "    \nif 1:\n    x = (p +\n        q # c\n    )\n"


def test_replace_expression_matches_defaults_decorators_and_strings() -> None:
    out = edited(
        BASE, edit("replace-expression", scope="A.f", anchor="'''é'''", new="None", count=2)
    )
    assert out == BASE.replace('"é"', "None")


def test_inside_an_f_string_is_refused() -> None:
    error = refused('x = f"{a}"\n', edit("replace-expression", anchor="a", new="b"))
    assert error.kind == "invalid"
    assert "f-string" in error.message
    out = edited('x = f"{a}" "b"\n', edit("replace-expression", anchor='f"{a}b"', new="c"))
    assert out == "x = c\n"


def test_replace_body_keeps_the_docstring_unless_it_brings_one() -> None:
    head, tail = BASE.split("        # old comment\n")[0], BASE.split("# end\n")[1]
    out = edited(BASE, edit("replace-body", scope="A.f", new="# new\nreturn 2\n"))
    assert out == head + "        # new\n        return 2\n" + tail
    out = edited(BASE, edit("replace-body", scope="A.f", new='"""New."""\nreturn 2\n'))
    assert '        """New."""\n        return 2\n\n    async def g' in out
    assert "old comment" not in out
    assert (
        edited("def f(): return 1\n", edit("replace-body", scope="f", new="a\nb"))
        == "def f():\n    a\n    b\n"
    )
    only = 'def f():\n    "doc"  # c\nx\n'
    assert (
        edited(only, edit("replace-body", scope="f", new="a"))
        == 'def f():\n    "doc"  # c\n    a\nx\n'
    )
    assert edited(BASE, edit("replace-body", scope="h", new="return 2")) == BASE.replace(
        "    def h():\n        return 1", "    def h():\n        return 2"
    )
    assert refused(BASE, edit("replace-body", scope="A", new="a")).kind == "invalid"


def test_add_import() -> None:
    new = "import os\nfrom q import (  # why\n    a,\n)\nfrom x import Alias as Other"
    out = edited(BASE, edit("add-import", new=new))
    assert out == BASE.replace("# noqa\n", "# noqa\nfrom q import (  # why\n    a,\n)\n")
    assert resolve(BASE.encode(), [edit("add-import", new="import os")]).replacements == ()
    assert edited(BASE, edit("add-import", new="import os as o")) != BASE
    future = edited(BASE, edit("add-import", new="from __future__ import division"))
    assert future == BASE.replace("annotations\n", "annotations\nfrom __future__ import division\n")
    assert edited("", edit("add-import", new="import a")) == "import a\n"
    assert edited("# c", edit("add-import", new="import a")) == "# c\nimport a\n"
    assert (
        edited("# c\n\nx = 1\n", edit("add-import", new="import a")) == "# c\n\nimport a\nx = 1\n"
    )
    assert (
        edited('"doc"\nx = 1\n', edit("add-import", new="import a")) == '"doc"\n\nimport a\nx = 1\n'
    )
    assert refused(BASE, edit("add-import", new="import a\nb = 1")).kind == "invalid"


def test_add_method() -> None:
    new = "async def n(self):\n  '''\nleft'''\n"
    text = "    async def n(self):\n      '''\nleft'''\n"
    out = edited(BASE, edit("add-method", scope="A", new=new))
    assert out == BASE.replace("        return 1\n\n\nif", f"        return 1\n\n{text}\n\nif")
    out = edited(BASE, edit("add-method", scope="A", after="f", new=new))
    assert out == BASE.replace("# end\n", f"# end\n\n{text}")
    assert edited("class A: x = 1", edit("add-method", scope="A", new="def f(self): pass")) == (
        "class A:\n    x = 1\n\n    def f(self): pass"
    )
    assert refused(BASE, edit("add-method", scope="A", new="def f(self): pass")).kind == "drifted"
    assert refused(BASE, edit("add-method", scope="A", after="q", new=new)).kind == "drifted"
    assert refused(BASE, edit("add-method", scope="A.f", new=new)).kind == "invalid"
    assert refused(BASE, edit("add-method", scope="A", new="x = 1")).kind == "invalid"


def test_add_file() -> None:
    found = resolve(None, [edit("add-file", new="x = 1\n")])
    assert (found.data, found.replacements) == (b"x = 1\n", ((0, 0, b"x = 1\n"),))
    assert refused("x = 1\n", edit("add-file", new="x = 1\n")).kind == "drifted"
    assert refused(None, edit("add-file", new="x = 1\n"), edit("delete", anchor="x")).index == 1
    assert refused(None, edit("delete", anchor="x")).kind == "drifted"


@pytest.mark.parametrize(
    ("scope", "kind"),
    [
        ("Other", "alias"),
        ("Again", "alias"),
        ("Alias", "drifted"),
        ("A.q", "drifted"),
        ("two", "ambiguous"),
    ],
)
def test_scopes_that_are_no_single_definition(scope: str, kind: str) -> None:
    source = BASE + "def two(): pass\ndef two(): pass\n"
    assert refused(source, edit("replace-body", scope=scope, new="pass")).kind == kind


def test_counts() -> None:
    source = "a\na\nif x:\n    a\n"
    assert refused(source, edit("replace", anchor="a", new="b")).kind == "ambiguous"
    assert "lines 1, 2, 4" in refused(source, edit("replace", anchor="a", new="b")).message
    assert refused(source, edit("replace", anchor="a", new="b", count=4)).kind == "drifted"
    assert edited(source, edit("replace", anchor="a", new="b", count=3)) == "b\nb\nif x:\n    b\n"


def test_line_endings_byte_order_mark_and_form_feed() -> None:
    crlf = b"\xef\xbb\xbfx = 1\r\n\x0cif x:\r\n\tb('''\r\n''')"
    found = resolve(
        crlf,
        [
            edit("insert-before", anchor="x = 1", new="'''\n  s'''\n"),
            edit("insert-before", anchor="if x:\n  b('\\n')", new="p"),
            edit("insert-after", anchor="b('\\n')", new="if 1:\n    q"),
        ],
    )
    assert found.data == (
        b"\xef\xbb\xbf'''\r\n  s'''\r\nx = 1\r\n\x0cp\r\nif x:\r\n"
        b"\tb('''\r\n''')\r\n\tif 1:\r\n\t    q"
    )


def test_blank_lines_of_the_new_source_are_kept() -> None:
    new = "\n    def n():\n\n        pass\n\n\n    "
    out = edited("x\ny\n", edit("insert-before", anchor="y", new=new))
    assert out == "x\n\ndef n():\n\n    pass\n\n\ny\n"


def test_new_source_keeps_its_strings_and_comments() -> None:
    new = '''
        # first
        s = """
    left
          right""" + f"""{
   a}
 b"""
      # outdented
        t = (1,
     2)
    '''
    out = edited("if x:\n  a\n", edit("insert-after", anchor="a", new=new))
    assert out == (
        'if x:\n  a\n\n  # first\n  s = """\n    left\n          right""" + f"""{\n   a}\n b"""\n'
        "  # outdented\n  t = (1,\n  2)\n"
    )


def test_edits_are_located_on_the_original() -> None:
    one = edit("insert-after", anchor="a", new="b")
    two = edit("insert-after", anchor="a", new="c")
    assert edited("a\nd\n", one, two) == "a\nb\nc\nd\n"
    assert refused("a\n", one, edit("delete", anchor="b")).index == 1
    swap = edited(
        "a\nb\n", edit("replace", anchor="a", new="b"), edit("replace", anchor="b", new="a")
    )
    assert swap == "b\na\n"
    ends = edited(
        "a\nb\n",
        edit("insert-before", anchor="b", new="p"),
        edit("delete", anchor="b"),
        edit("insert-after", anchor="a", new="o"),
    )
    assert ends == "a\no\np\n"


def test_overlaps_are_refused_with_both_named() -> None:
    error = refused(
        "if x:\n    a\n",
        edit("replace", anchor="if x:\n  a", new="b"),
        edit("replace", anchor="a", new="c"),
    )
    assert (error.kind, error.index) == ("invalid", 1)
    assert "edit[0]" in error.message


def test_all_errors_are_reported() -> None:
    error = refused(
        BASE,
        edit("delete", anchor="nope"),
        edit("replace-body", scope="Other", new="a"),
        edit("delete", anchor=")"),
    )
    found = [(one.index, one.kind) for one in (error, *error.also)]
    assert found == [(0, "drifted"), (1, "alias"), (2, "invalid")]


@pytest.mark.parametrize(
    "one",
    [
        edit("insert-after", anchor="a", new="return 1"),
        edit("insert-after", anchor="a", new="from __future__ import annotations"),
        edit("insert-after", anchor="a", new="# nothing"),
        edit("insert-after", anchor="a", new="  x\n y"),
        edit("insert-after", anchor="a", new="'''"),
        edit("replace-expression", anchor="a", new="b; c"),
        edit("replace-expression", anchor="a", new="b) + (c"),
        edit("replace-expression", anchor="# nothing", new="b"),
        edit("replace", anchor="# nothing", new="b"),
        edit("insert", anchor="a", new="b"),
        edit("replace-expression", anchor="b", new="1"),
    ],
)
def test_what_would_not_be_what_was_asked_for(one: Edit) -> None:
    assert refused("a\nb = 1\n", one).kind == "invalid"


@pytest.mark.parametrize(
    "data", [b"x = (", b"# coding: latin-1\nx = '\xe9'\n", b"x = '\xe9'\n", b"\0"]
)
def test_files_that_are_no_python_in_utf8(data: bytes) -> None:
    with pytest.raises(EditError) as caught:
        resolve(data, [edit("delete", anchor="x")])
    assert caught.value.kind == "invalid"


def test_warnings_of_the_file_do_not_matter() -> None:
    assert (
        edited("a = '\\d' is 1\nb\n", edit("replace", anchor="b", new="c")) == "a = '\\d' is 1\nc\n"
    )


def alternatives(*ways: Edit) -> Edit:
    return dataclasses.replace(ways[0], name="", alternatives=ways)


def test_the_first_alternative_that_fits_is_taken() -> None:
    new = Edit("new.py", "replace", anchor="b", new="c", name="from 0.29")
    old = Edit("old.py", "replace", anchor="a", new="c", name="until 0.28")
    either = alternatives(new, old)
    assert files(either) == ("new.py", "old.py")
    plain = Edit("old.py", "insert-after", anchor="x", new="y")
    found = resolve_all({"old.py": b"a\nx\n"}.get, [plain, either])
    assert {path: (one.data, one.took) for path, one in found.items()} == {
        "old.py": (b"c\nx\ny\n", ("until 0.28",))
    }
    found = resolve_all({"old.py": b"a\nx\n", "new.py": b"b\n"}.get, [plain, either])
    assert found["new.py"].took == ("from 0.29",)
    assert found["old.py"].took == ()
    with pytest.raises(EditError) as caught:
        resolve_all({"old.py": b"a\na\nx\n"}.get, [plain, either])
    assert (caught.value.kind, caught.value.index) == ("ambiguous", 1)
    assert "from 0.29 (new.py): drifted" in caught.value.message
    assert "until 0.28 (old.py): ambiguous" in caught.value.message


def test_resolve_is_about_one_file() -> None:
    with pytest.raises(EditError, match="2 files"):
        resolve(b"a\n", [edit("delete", anchor="a"), Edit("n.py", "delete", anchor="a")])


# edit.toml


def row(**keys: object) -> dict[str, object]:
    return {"file": "p/m.py", "op": "replace", "anchor": "a", "new": "b", **keys}


def test_parse_edits() -> None:
    shared = {"file": "p/m.py", "scope": "A.f", "new": "x", "op": "insert-after"}
    ways = [{"name": "one", "anchor": "a"}, {"name": "two", "op": "replace-body", "file": "p/n.py"}]
    table = {"edit": [row(count=2), {**shared, "anchor": "q", "alternatives": ways}]}
    plain, either = parse_edits(table)
    assert plain == Edit("p/m.py", "replace", anchor="a", new="b", count=2)
    assert either.alternatives == (
        Edit("p/m.py", "insert-after", "A.f", "a", "x", name="one"),
        Edit("p/n.py", "replace-body", "A.f", new="x", name="two"),
    )


def test_parse_edits_reads_the_source_of_an_added_file(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_bytes(b"x = 1\r\n")
    table = {"edit": [{"file": "p/h.py", "op": "add-file", "source": "helper.py"}]}
    read = lambda name: (tmp_path / name).read_bytes()  # noqa: E731
    assert parse_edits(table, read) == (Edit("p/h.py", "add-file", new="x = 1\r\n"),)
    with pytest.raises(FixesError, match=r"edit\[0\].source"):
        parse_edits(table)
    table["edit"][0]["source"] = "other.py"
    with pytest.raises(FixesError, match=r"edit\[0\].source.*cannot be read"):
        parse_edits(table, read)


def test_parse_edits_names_everything_that_is_wrong() -> None:
    table = {
        "edits": [],
        "edit": [
            row(op="move"),
            row(count=0, extra=1),
            row(count=0),
            row(count=True),
            row(file="../m.py"),
            row(file="/m.py"),
            row(file="m.txt"),
            row(anchor=")"),
            row(new="# nothing"),
            row(op="delete"),
            {"file": "m.py", "op": "replace-body", "new": "x"},
            {"op": "delete", "anchor": "x"},
            row(source="x"),
            row(alternatives=[]),
            row(alternatives=[{"op": 1, "name": "a"}, {"op": "mv", "name": "b"}, {}]),
            row(alternatives=[{"name": "a"}, {"name": "a", "after": "f"}]),
            row(op="replace-expression", anchor="x = 1"),
            row(op="add-import"),
            row(name="a"),
            row(op="replace-expression", anchor="# nothing"),
        ],
    }
    with pytest.raises(FixesError) as caught:
        parse_edits(table)
    assert caught.value.exit_code == ExitCode.MISMATCH
    assert {problem.kind for problem in caught.value.problems} == {"invalid-edit"}
    assert {problem.where for problem in caught.value.problems} == {
        "edits",
        "edit[0].op",
        "edit[1].extra",
        "edit[2].count",
        "edit[3].count",
        "edit[4].file",
        "edit[5].file",
        "edit[6].file",
        "edit[7].anchor",
        "edit[8].new",
        "edit[9].new",
        "edit[10].scope",
        "edit[11].file",
        "edit[12].source",
        "edit[13].alternatives",
        "edit[14].alternatives[0].op",
        "edit[14].alternatives[1].op",
        "edit[14].alternatives[2].name",
        "edit[15].alternatives[1].name",
        "edit[15].alternatives[1].after",
        "edit[16].anchor",
        "edit[17].anchor",
        "edit[18].name",
        "edit[19].anchor",
    }
    for nothing in ({}, {"edit": []}, {"edit": [1]}):
        with pytest.raises(FixesError, match="edit: invalid-edit"):
            parse_edits(nothing)


# Invariants

ATOMS = (
    "a",
    "b = 'é'",
    "c(1,\n  2)  # ü",
    "'''\n  s\n'''",
    "d; e",
    "# only",
    "",
    "if q: r; s",
    "t = \\\n  1",
)
BLOCKS = ("if x:", "for i in j:", "@dec\ndef f():", "class C:", "with w:", "try:")


@st.composite
def source(draw: st.DrawFn, depth: int = 0) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        if depth < 3 and draw(st.booleans()):
            head = draw(st.sampled_from(BLOCKS))
            indent = draw(st.sampled_from(("  ", "    ", "\t")))
            lines += head.split("\n")
            # Lines of a string get indented as well; that is another string, and as good.
            lines += [indent + line for line in draw(source(depth + 1))]
            lines += ["finally: pass"] if head == "try:" else []
        else:
            lines += draw(st.sampled_from(ATOMS)).split("\n")
    return [*lines, "z"]


@given(
    lines=source(),
    eol=st.sampled_from(("\n", "\r\n")),
    final=st.booleans(),
    op=st.sampled_from(
        ("insert-before", "insert-after", "replace", "delete", "replace-expression")
    ),
    new=st.sampled_from(("n", "# c\nif n:\n  p  # é\n", "n = '''\nö\n'''\n", "n; p")),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_splices_leave_all_else_alone(
    lines: list[str], eol: str, final: bool, op: str, new: str, data: st.DataObject
) -> None:
    original = (eol.join(lines) + (eol if final else "")).encode()
    tree = parse(original)
    kind = ast.expr if op == "replace-expression" else ast.stmt
    texts: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, kind):
            texts.setdefault(dump(node), []).append(ast.unparse(node))
    found = data.draw(st.sampled_from(sorted(texts)))
    anchor, count = texts[found][0], len(texts[found])
    one = edit(op, anchor=anchor, new="n + 1" if op == "replace-expression" else new, count=count)
    try:
        outcome = resolve(original, [one])
    except EditError as error:
        # A target of an assignment, what holds itself, neighbours on one line.
        assert error.kind == "invalid"
        assert op in ("replace", "delete", "replace-expression")
        return
    rebuilt, done, kept = b"", 0, b""
    for start, end, text in outcome.replacements:
        assert done <= start <= end <= len(original)
        kept += original[done:start]
        rebuilt += original[done:start] + text
        done = end
    assert rebuilt + original[done:] == outcome.data
    assert resolve(original, [one]) == outcome
    assert op not in ("insert-before", "insert-after") or all(
        not original[start:end].strip(b" \t;\\\r\n") for start, end, _ in outcome.replacements
    )
    if eol == "\r\n" and b"\n" in original:
        assert outcome.data.count(b"\n") == outcome.data.count(b"\r\n")


# Real files


def real(path: str) -> bytes:
    file = TREE / path
    if not file.is_file():
        pytest.skip(f"no unpacked wheel at {TREE}")
    return file.read_bytes()


STEP = "EngineCore.step_with_batch_queue"
RESULT = "model_output = future.result()"


@pytest.mark.wheels
def test_real_engine_core() -> None:
    path = "vllm/v1/engine/core.py"
    data = real(path)
    edits = [
        Edit(path, "insert-before", STEP, RESULT, "before()\n"),
        Edit(path, "replace-expression", STEP, "future.result()", "wait(future)"),
        Edit(path, "add-import", new="import colorsys\nimport gc\n"),
        Edit(path, "add-method", "EngineCore", new="def added(self): ...", after="shutdown"),
    ]
    out = resolve(data, edits).data
    head, tail = data.split(b"    def step_with_batch_queue(")
    wanted = b"before()\n            model_output = wait(future)"
    tail = tail.replace(RESULT.encode(), wanted, 1)
    at = tail.index(b"\n    def ", tail.index(b"    def shutdown("))
    tail = tail[:at] + b"\n    def added(self): ...\n" + tail[at:]
    last = b"import __version__ as VLLM_VERSION\n"
    head = head.replace(last, last + b"import colorsys\n")
    assert out == head + b"    def step_with_batch_queue(" + tail
    assert changed(data, out) == (STEP, "EngineCore.added")
    whole = dataclasses.replace(edits[0], scope="EngineCore")
    with pytest.raises(EditError, match="matches 2 places") as caught:
        resolve(data, [whole])
    assert caught.value.kind == "ambiguous"


@pytest.mark.wheels
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("vllm/v1/engine/core.py", STEP),
        ("vllm/v1/executor/multiproc_executor.py", "MultiprocExecutor._init_executor"),
        ("vllm/v1/executor/multiproc_executor.py", "WorkerProc.worker_main"),
        ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.execute_model"),
        ("vllm/v1/core/sched/scheduler.py", "Scheduler.update_from_output"),
        ("vllm/config/fault_tolerance.py", "FaultToleranceConfig"),
    ],
)
def test_every_statement_of_a_real_function_can_be_anchored(path: str, name: str) -> None:
    """All of its own statements at once, each with a line before it and one behind it."""
    data = real(path)
    scope = find_scope(parse(data), name)
    assert isinstance(scope, (ast.FunctionDef, ast.ClassDef))
    text = data.decode()
    count = Counter(dump(node) for node in ast.walk(scope) if isinstance(node, ast.stmt))
    edits: list[Edit] = []
    for node in {dump(node): node for node in scope.body}.values():
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        # The segment of an indented statement has its first line at the margin.
        anchor = " " * node.col_offset + str(ast.get_source_segment(text, node))
        matches = count[dump(node)]
        edits.append(Edit(path, "insert-before", name, anchor, "before()", matches))
        edits.append(Edit(path, "insert-after", name, anchor, "if a:\n  after()", matches))
    assert len(edits) >= 6
    found = resolve(data, edits)
    assert [start for start, end, _ in found.replacements if start != end] == []
    eol = b"\r\n" if b"\r\n" in data else b"\n"
    kept = [
        line
        for line in found.data.split(eol)
        if line.strip() not in (b"before()", b"if a:", b"after()")
    ]
    assert eol.join(kept) == data
    assert changed(data, found.data) == (name,)


@pytest.mark.wheels
def test_real_alias_is_refused() -> None:
    path = "vllm/v1/worker/cpu_model_runner.py"
    one = Edit(path, "replace-body", "GPUModelRunner.load_model", new="pass")
    with pytest.raises(EditError, match=r"vllm\.v1\.worker\.gpu_model_runner") as caught:
        resolve(real(path), [one])
    assert caught.value.kind == "alias"
