"""What edits rely on, pinned as syntax."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fixes.edits import Edit
from fixes.lock import Scope
from fixes.scopes import differing, pins
from fixes.syntax import ScopeError

CHECKOUT = Path(__file__).parents[1]
OTHERS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[0-9]*/bin/python"))
MODULE = """\
import os


class Base:
    pass


class Worker(Base, metaclass=type):
    limit = 3

    def helper(self, one: int, *, two: str = "b") -> int:
        return one

    def run(self, batch):
        # The first comment.
        done = self.helper(1, two='x')
        return done


def main() -> None:
    Worker().run([])
"""
RUN = Edit("m.py", "insert-before", "Worker.run", "return done", "done += 1")


def change(old: str, new: str) -> str:
    assert old in MODULE
    return MODULE.replace(old, new, 1)


def parts(*edits: Edit) -> set[tuple[str, str]]:
    return {(scope.name, scope.part) for scope in pins(MODULE.encode(), edits)}


def test_a_method_is_pinned_whole_with_the_bases_of_its_class() -> None:
    assert parts(RUN) == {("Worker", "bases"), ("Worker.run", "whole")}


def test_what_the_new_source_calls_is_pinned_by_its_signature() -> None:
    edit = Edit("m.py", "delete", "main", "Worker().run([])", relies=("Worker.helper", "Base"))
    assert parts(edit) == {("main", "whole"), ("Worker.helper", "signature"), ("Base", "bases")}


def test_other_operations_pin_what_they_touch() -> None:
    method = Edit("m.py", "add-method", "Worker", new="def stop(self): pass")
    assert parts(method) == {("Worker", "bases")}
    statement = Edit("m.py", "delete", "Worker", "limit = 3")
    assert parts(statement) == {("Worker", "bases"), ("Worker", "header")}
    assert parts(Edit("m.py", "add-import", new="import sys")) == set()
    assert parts(Edit("m.py", "delete", "", "import os")) == {("", "header")}


SAME = [
    ("# The first comment.", "# Quite another one, on\n        # two lines."),
    ("'x'", '"x"'),
    ("self.helper(1, two='x')", "self.helper(\n            1, two='x',\n        )"),
    ("def main() -> None:", "def other():\n    return 1\n\n\ndef main() -> int:"),
    ("        return one", "        return one + 1"),
    ("import os", "import os, sys"),
    ("limit = 3", "limit = 4"),
    ("class Base:\n", "class Base(dict):\n"),
]


@pytest.mark.parametrize(("old", "new"), SAME)
def test_what_an_edit_does_not_rely_on_may_differ(old: str, new: str) -> None:
    wanted = pins(MODULE.encode(), [RUN])
    assert differing(change(old, new).encode(), wanted) == ()
    assert differing(MODULE.replace("\n", "\r\n").encode(), wanted) == ()


DIFFERENT = [
    ("return done", "return done or 1", "Worker.run is other code"),
    ("def run(self, batch):", "def run(self, batch, x=1):", "Worker.run is other code"),
    ("    def run(self", "    @staticmethod\n    def run(self", "Worker.run is other code"),
    ("    def run(self", "    async def run(self", "Worker.run is other code"),
    ("class Worker(Base,", "class Worker(dict,", "the bases of Worker is other code"),
    ("metaclass=type", "metaclass=abc", "the bases of Worker is other code"),
    ("def run(self", "def walk(self", "Worker.run: there is no run"),
    ("def main", "    def run(self):\n        pass\n\n\ndef main", "run is defined at lines"),
]


@pytest.mark.parametrize(("old", "new", "fault"), DIFFERENT)
def test_what_an_edit_relies_on_may_not_differ(old: str, new: str, fault: str) -> None:
    found = differing(change(old, new).encode(), pins(MODULE.encode(), [RUN]))
    assert any(fault in one for one in found), found
    assert not any("Worker.run: Worker.run" in one for one in found), found


def test_what_is_missing_is_named_once() -> None:
    edit = Edit("m.py", "delete", "Worker", "limit = 3", relies=("Base", "Worker.helper"))
    wanted = pins(MODULE.encode(), [edit])
    gone = MODULE.replace("class Worker(", "class Walker(").replace("class Base:", "class Root:")
    assert set(differing(gone.encode(), wanted)) == {
        "Worker: there is no Worker",
        "Base: there is no Base",
        "Worker.helper: there is no Worker",
    }
    assert len(differing(gone.encode(), wanted)) == 3
    other = change(
        '    def helper(self, one: int, *, two: str = "b") -> int:\n        return one\n',
        "    class helper:\n        pass\n",
    )
    assert "Worker.helper: it has no signature" in differing(other.encode(), wanted)


def test_releases_may_differ_in_a_scope_if_each_is_pinned() -> None:
    other = change("return done", "return done or 1").encode()
    both = (*pins(MODULE.encode(), [RUN]), *pins(other, [RUN]))
    assert differing(MODULE.encode(), both) == differing(other, both) == ()
    (fault,) = differing(change("return done", "return done or 2").encode(), both)
    assert fault == "Worker.run is other code than was pinned"


def test_a_signature_is_all_that_callers_see() -> None:
    edit = Edit("m.py", "delete", "main", "Worker().run([])", relies=("Worker.helper",))
    wanted = pins(MODULE.encode(), [edit])
    assert differing(change("return one", "return two").encode(), wanted) == ()
    for old, new in (('"b"', '"c"'), ("one: int", "one"), ("*, two", "two"), ("-> int", "-> str")):
        (fault,) = differing(change(old, new).encode(), wanted)
        assert "the signature of Worker.helper is other code" in fault


def test_a_name_that_is_no_definition_cannot_be_pinned() -> None:
    with pytest.raises(ScopeError, match="there is no walk"):
        pins(MODULE.encode(), [Edit("m.py", "delete", "Worker.walk", "x = 1")])
    with pytest.raises(SyntaxError):
        differing(b"def", ())


def test_every_python_pins_the_same(tmp_path: Path) -> None:
    """Images run 3.10 to 3.14; a lock is made by any of them."""
    file = tmp_path / "m.py"
    file.write_text(MODULE)
    program = (
        f"import sys; sys.path.insert(0, {str(CHECKOUT)!r})\n"
        "from fixes.edits import Edit; from fixes.scopes import pins\n"
        f"print(pins(open({str(file)!r}, 'rb').read(), [{RUN!r}]))"
    )
    pythons = [sys.executable, *map(str, OTHERS)]
    found = {
        subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout
        for python in pythons
    }
    assert found == {f"{pins(MODULE.encode(), [RUN])}\n"}
    assert isinstance(pins(MODULE.encode(), [RUN])[0], Scope)
