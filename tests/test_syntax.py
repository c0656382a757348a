"""The canonical dump on every Python, scopes, offsets, changed names and shadows."""

from __future__ import annotations

import ast
import functools
import json
import os
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixes.functions import changed, shadow
from fixes.source import Source, reindent
from fixes.syntax import ScopeError, digest, dump, find_scope, parse

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("VLLM_FIXES_CACHE", "~/.cache/vllm-fixes")).expanduser()
TREE = CACHE / "trees" / "vllm-0.30.0"

#: The grammar of Python 3.10, with what later versions parse to other nodes or fields.
CORPUS = r'''
"""Docstring
  with lines."""
from __future__ import annotations
import a, b.c as d
from . import e
from ..f import g as h, i
from j import *

@deco.rator(1)(2)
async def func(p, /, q: int = 1, *args: str, r, s=2, **kw: "x") -> None:
    """Doc."""
    async with a as b, c: pass
    async for x, *y in z: await x
    else: pass
    return [await t async for t in u if v if w]

def gen(a=1, *, b, c=3):
    global g1, g2
    x = yield
    yield from (yield x)
    def inner():
        nonlocal x
        x: int
        x: int = 3
        (x): int = 3
        x.y[0]: int
    return lambda: (lambda *a, b=1, **c: a)(*x, **y)

class C(B, metaclass=M, *args, **kw):
    attr: int = 1
    __slots__ = ()

class Empty: ...

if x: pass
elif y: pass
else: pass
while x: break
else: continue
for (i, j), k in l: pass
with (a as b, c as (d, e),): pass
with (a, b): pass
with (a): pass
with (a, b) as c: pass
with (yield): pass
try: pass
except E: raise
except (F, G) as f: raise H from f
except: raise H
else: pass
finally: pass
try: pass
finally: del a, b.c, d[0], (e, [f])
assert a, "b"
a = b = c, *d = e
a += 1; a -= 1; a *= 1; a /= 1; a //= 1; a %= 1; a **= 1; a @= 1
a <<= 1; a >>= 1; a &= 1; a |= 1; a ^= 1
x = not a and b or c if d else -e ** ~f
x = (a < b <= c == d != e > f >= g is h is not i in j not in k)
x = a + b - c * d / e // f % g @ h << i >> j & k | l ^ m, +n
x = [1, *a], (1, *a), {1, *a}, {1: 2, **a, None: 3}, [], (), {}
x = [a for b in c for d in e if f], {a for b in c}, {a: b for c in d}, (a for b in c)
x = a[1], a[1:2], a[1:2:3], a[:], a[::2, 1, ...], a[()], a[b, ], a[x := 1]
if (n := len(a)) > 1: print(f(a for b in c), n, sep="")
x = 1, 0x_ff, 0o17, 0b1, 1_000, 10 ** 100, 0xffffffffffffffffffffffffffffffffffffff
x = 1.0, 1e999, .1, 1e-7, 5e-324, 1j, 2.5J, 0j, -0.0, True, False, None, ..., ...
x = "a" 'b' """c
d""" r'\e' u"f" "\N{BULLET}\x41\u00e9\U0001F600\ud800\0\
g", b"a" rb'\b' b"\xff", "é漢😀" + ''
x = f"", f"a", f"a" "b" f"{c}" 'd' f'e{f}g', "a" f"{b}" "" "c", f"{a}{b}" f"{c}"
x = f"{{a}}{b!r:>{c}.{d}}{e!s}{f!a:x}", f"{g:{h}}", f"{i:a{j}b}", f"{k = }", f"x{l=!r:>5}"
x = f"""{
    m
} {n:%Y-%m-%d} {f'{o}' "p"} {'q' if r else 's'} {t["u"]} {(lambda: 1)()} {v,} {w:{'{'}>1}"""
x = rf"\d{a}\n", fR'{b}\{{', F"\x41{c}\N{BULLET}", f"{a!r:^{b}}" f"{c:{d}{e}}"
x = f"{a:{b}c{d}}", f"{'a' 'b'}", f"{ {1: 2}[1] }", f"{a!=b}", f"{a==b}" "\
", f"{*a,}", f"{yield_}"
match x:
    case 1 | -1 | 1.5 | -2j | 1 + 2j | "a" "b" | b"c": pass
    case None | True | False: pass
    case a.b.c: pass
    case [a, *_] | (a, _): pass
    case [a, *b]: pass
    case {"k": v, 1: None, **rest}: pass
    case {}: pass
    case P(): pass
    case P(a, b=1, c=Q(d)) as z if z > 1: pass
    case (a as b), : pass
    case _: pass
match (a, b):
    case x: pass
match = case = type = _ = soft = 1
print(*a, b, *c, d=1, **e, f=2, **g)
def deep(): return (((((((((((1)))))))))))
@(x := y)
@a[0]
class Decorated: "only a docstring"
'''


@functools.cache
def interpreters() -> dict[str, str]:
    """Each Python from 3.10 to 3.14 that can be found, by its version."""
    pyenv = Path("~/.pyenv/versions").expanduser()
    found = {}
    for minor in range(10, 15):
        places = [shutil.which(f"python3.{minor}")]
        places += [str(path) for path in sorted(pyenv.glob(f"3.{minor}.*/bin/python3"))]
        for place in filter(None, places):
            if subprocess.run([place, "-c", ""], capture_output=True).returncode == 0:
                found.setdefault(f"3.{minor}", place)
    found.setdefault(f"{sys.version_info[0]}.{sys.version_info[1]}", sys.executable)
    return found


def digests(python: str, paths: list[Path]) -> dict[str, str]:
    code = """if True:
        import json, sys, warnings
        warnings.simplefilter("ignore")
        sys.path.insert(0, sys.argv[1])
        from fixes.syntax import digest, parse
        out = {}
        for path in json.load(sys.stdin):
            with open(path, "rb") as file:
                try:
                    out[path] = digest(parse(file.read()))
                except SyntaxError as error:
                    out[path] = "no syntax"
        print(json.dumps(out))
    """
    command = [python, "-I", "-B", "-c", code, str(ROOT)]
    text = json.dumps([str(path) for path in paths])
    outcome = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return dict(json.loads(outcome.stdout))


def assert_equal_everywhere(paths: list[Path]) -> None:
    found = interpreters()
    if len(found) < 2:
        pytest.skip(f"only one Python to compare: {', '.join(found)}")
    outcomes = {version: digests(python, paths) for version, python in found.items()}
    (reference, wanted), *others = outcomes.items()
    for version, outcome in others:
        different = [path for path, value in wanted.items() if outcome[path] != value]
        assert not different, f"{version} differs from {reference}"
    assert sum(value != "no syntax" for value in wanted.values()) >= len(paths) * 0.9


def test_the_dump_of_every_construct_is_equal_on_every_python(tmp_path: Path) -> None:
    whole = tmp_path / "corpus.py"
    whole.write_text(CORPUS, encoding="utf-8")
    paths = [whole]
    for number, node in enumerate(ast.parse(CORPUS).body):
        paths.append(tmp_path / f"{number}.py")  # apart, so that a failure says which
        text = ast.get_source_segment(CORPUS, node)
        paths[-1].write_text(str(text), encoding="utf-8")
    assert_equal_everywhere(paths)


def test_the_dump_of_the_standard_library_is_equal_on_every_python() -> None:
    oldest = next(iter(interpreters().values()))
    code = "import os; print(os.path.dirname(os.__file__))"
    library = subprocess.run([oldest, "-c", code], capture_output=True, text=True, check=True)
    folder = Path(library.stdout.strip())
    paths = [*folder.glob("[a-s]*.py"), *folder.glob("asyncio/*.py")]
    paths += [folder / f"test/test_{name}.py" for name in ("fstring", "grammar", "patma")]
    paths = sorted(path for path in paths if path.is_file())
    assert len(paths) > 150
    assert_equal_everywhere(paths)


@pytest.mark.wheels
def test_the_dump_of_real_files_is_equal_on_every_python() -> None:
    if not TREE.is_dir():
        pytest.skip(f"no unpacked wheel at {TREE}")
    assert_equal_everywhere(sorted(TREE.glob("vllm/v1/[e-w]*/*.py")))


def one(text: str) -> str:
    return dump(parse(text.encode("utf-8", "surrogatepass")))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("x = 'a'", 'x=("""a""") # c'),
        ("x = 'a' 'b'", "x = u'ab'"),
        ("f(a,\n  b)", "f(a, b,)"),
        ("x = 16", "x = 0x1_0"),
        ("x = f'a' 'b{c}' f'{d}'", "x = f'ab{{c}}{d}'"),
        ("if a:\n  b\nelif c: d", "if a: b\nelse:\n    if c:\n        d"),
        ("with (a as b, c): pass", "with a as b, c: pass"),
    ],
)
def test_spelling_does_not_matter(left: str, right: str) -> None:
    assert one(left) == one(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("x = 1", "x = True"),
        ("x = 1", "x = 1.0"),
        ("x = 'a'", "x = b'a'"),
        ("x = 0.0", "x = -0.0"),
        ("x = 1j", "x = 1.0"),
        ("x = 'None'", "x = None"),
        ("x = '...'", "x = ..."),
        ("x = {None: 1}", "x = {**1}"),
        ("x = f'{a}b'", "x = f'{a!s}b'"),
        ("x = f'{a}'", "x = f'a'"),
        ("x = 'é'", "x = 'e\\u0301'"),
        ("def f(a, *, b=1, c): pass", "def f(a, *, b, c=1): pass"),
        ("def f(a, /, b): pass", "def f(a, b): pass"),
        ("def f(): pass", "async def f(): pass"),
        ("from a import b", "from .a import b"),
        ("x: int", "(x): int"),
        ("x = a,", "x = a"),
        ("x = ['a', 'b']", "x = ['a b']"),
        ("global a, b", "global b, a"),
        ("x = a if b else c", "x = b if a else c"),
        ("x = a[b:]", "x = a[:b]"),
        ("x = 'a) (Name id=b'", "x = 'a' ; b"),
    ],
)
def test_meaning_does(left: str, right: str) -> None:
    assert one(left) != one(right)


def test_what_the_dump_looks_like() -> None:
    assert one("x = f(1, *'é')") == (
        "(Module body=[ (Assign targets=[ (Name id='x')] value=(Call func=(Name id='f') "
        "args=[ (Constant int:0x1) (Starred value=(Constant str:'\\xe9'))]))])"
    )
    assert digest(parse(b"x")) == digest(parse(b"(x)"))
    assert len(digest(parse(b"x"))) == 64


def test_long_sums_and_long_numbers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = "x = " + " + ".join(["a"] * 900) + "\ny = 0x" + "f" * 20_000
        assert one(text).count("BinOp") == 899


SCOPES = """
import os as system, a.b
from m import C as D, f
try:
    from m import maybe
except ImportError:
    def maybe(): "own"
if system:
    def one(): pass
else:
    def two(): pass
    def one(): pass
class C:
    x: int = 1
    alias = method
    if x:
        def method(self):
            def inner():
                def deepest(): pass
    else:
        with a as bound: pass
    class Nested:
        async def method(self): pass
    @property
    def p(self): pass
    @p.setter
    def p(self, value): pass
again = C
for looped in y: (walrus := 1)
match y:
    case [first, *others]: pass
try: pass
except E as caught: pass
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("maybe", "FunctionDef"),
        ("two", "FunctionDef"),
        ("C", "ClassDef"),
        ("C.method", "FunctionDef"),
        ("C.method.inner", "FunctionDef"),
        ("C.method.<locals>.inner.<locals>.deepest", "FunctionDef"),
        ("C.Nested.method", "AsyncFunctionDef"),
        ("", "Module"),
        ("one", "ambiguous"),
        ("C.p", "ambiguous"),
        ("system", "alias"),
        ("a", "alias"),
        ("D", "alias"),
        ("D.method", "alias"),
        ("f", "alias"),
        ("again", "alias"),
        ("C.alias", "alias"),
        ("C.x", "alias"),
        ("C.bound", "alias"),
        ("looped", "alias"),
        ("walrus", "alias"),
        ("first", "alias"),
        ("others", "alias"),
        ("caught", "alias"),
        ("os", "missing"),
        ("b", "missing"),
        ("method", "missing"),
        ("inner", "missing"),
        ("C.inner", "missing"),
        ("C.method.deepest", "missing"),
    ],
)
def test_find_scope(name: str, kind: str) -> None:
    tree = ast.parse(SCOPES)
    if kind in ("ambiguous", "alias", "missing"):
        with pytest.raises(ScopeError) as caught:
            find_scope(tree, name)
        assert caught.value.kind == kind
        assert caught.value.message.startswith(name)
    else:
        node = find_scope(tree, name)
        assert type(node).__name__ == kind
        assert name.endswith(getattr(node, "name", ""))


@pytest.mark.parametrize(
    "data",
    [
        CORPUS.encode("utf-8", "surrogatepass"),
        b"\xef\xbb\xbf" + CORPUS.encode(),
        CORPUS.replace("\n", "\r\n").encode(),
        CORPUS.rstrip().encode(),
        ("if 1:" + textwrap.indent(CORPUS, "\t")).encode(),
    ],
)
def test_offsets_cut_out_what_they_should(data: bytes) -> None:
    source = Source(data)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.stmt):
            start, end = source.start(node), source.end(node)
            if data.startswith(b"elif", start):
                continue
            cut = data[start - len(source.indent(start)) : end].decode()
            if source.indent(start).strip():
                cut = data[start:end].decode()
            tree = parse(reindent(cut, "").encode())
            assert [dump(found) for found in tree.body] == [dump(node)]


def test_offsets_of_odd_lines() -> None:
    data = b"\xef\xbb\xbfa\r\n\x0c  \x0cif b:\r\tc ; \\\n d  # e\n@ \\\n x\ndef f(): g"
    source = Source(data)
    a, branch, function = source.tree.body
    assert isinstance(branch, ast.If) and isinstance(function, ast.FunctionDef)
    assert (source.start(a), source.end(a)) == (3, 4)
    assert data[source.start(branch) :].startswith(b"if b:")
    assert source.indent(source.start(branch)) == b""
    c, d = branch.body
    assert source.rest(source.end(c)) == (data.index(b"d  #"), False)
    assert source.rest(source.end(d)) == (data.index(b"\n@"), True)
    assert data[source.start(function) :].startswith(b"@ \\\n x")
    assert source.rest(source.end(function)) == (len(data), True)


@pytest.mark.parametrize(
    "data", [b"x = (", b"\0", b"\xff", b"# -*- coding: latin-1 -*-\nx", b"# coding: no-such\n"]
)
def test_what_is_no_python(data: bytes) -> None:
    with pytest.raises(SyntaxError):
        parse(data)


@given(st.sampled_from(["", "  ", "\t", "      "]), st.sampled_from(["", "    ", "\t"]))
@settings(deadline=None)
def test_reindent_changes_no_syntax(before: str, after: str) -> None:
    moved = reindent(CORPUS, before)
    head = "if 1:\n" if before else ""
    expected = dump(ast.Module(ast.parse(CORPUS).body, []))
    tree = ast.parse(head + moved)
    body = tree.body[0].body if before else tree.body  # type: ignore[attr-defined]
    assert dump(ast.Module(body, [])) == expected
    back = reindent(reindent(moved, after, "\r\n"), "")
    assert dump(ast.parse(back)) == expected


OLD = b"""
import a
class C(B):
    x = 1
    def f(self):
        def inner(): return 1
        return inner
    @property
    def p(self): return 1
    @p.setter
    def p(self, v): pass
    class D:
        def g(self): pass
def h(): pass
if a:
    def k(): pass
else:
    def k(): return 2
"""


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        (b"", b"", ()),
        (b"import a", b"import a, b  # c", ()),
        (b"return 1\n        return", b"return 2\n        return", ("C.f",)),
        (b"x = 1", b"x = 2", ("C",)),
        (b"(B)", b"(Q)", ("C",)),
        (b"@property", b"@cached", ("C.p",)),
        (b"def p(self, v): pass", b"def p(self, v): q", ("C.p",)),
        (b"def g(self): pass", b"def g(self): q", ("C.D.g",)),
        (b"class D:\n", b"class D:\n        y = 1\n", ("C.D",)),
        (b"def h(): pass", b"def h(): pass\ndef n(): pass", ("n",)),
        (b"    class D:", b"    def m(self): pass\n    class D:", ("C.m",)),
        (b"return 2", b"return 3", ("k",)),
        (b"    class D:\n        def g(self): pass\n", b"", ("C",)),
        (b"def h(): pass", b"class E:\n    def m(self): pass", ("E", "E.m")),
        (b"def h(): pass", b"async def h(): pass", ("h",)),
    ],
)
def test_changed(old: bytes, new: bytes, names: tuple[str, ...]) -> None:
    assert old in OLD
    assert changed(OLD, OLD.replace(old, new, 1)) == names


def test_changed_of_a_new_file() -> None:
    assert changed(None, b"x = 1\nclass C:\n    def f(self): pass\n") == ("C", "C.f")


@pytest.mark.parametrize("eol", [b"\n", b"\r\n"])
def test_shadow(eol: bytes) -> None:
    pre = b"class C:\n  @d\n  def f(self):\n    '''\ns'''\n    return 1  # one\n".replace(
        b"\n", eol
    )
    post = b"class C:\n    def f(self): return 2  # two\n    x = 1".replace(b"\n", eol)
    assert shadow(pre, post, "C.f") == (
        b"class C:\n    def f(self): return 2  # two\n"
        b"    @d\n    def f(self):\n      '''\ns'''\n      return 1  # one\n    x = 1"
    ).replace(b"\n", eol)


def test_a_shadow_is_what_runs() -> None:
    pre = b"class C:\n @property\n def p(self): return 1\n @p.setter\n def p(self, v): pass\n"
    post = pre.replace(b"return 1", b"return 2")
    for data, value in ((post, 2), (shadow(pre, post, "C.p"), 1)):
        names: dict[str, type] = {}
        exec(compile(data, "m", "exec"), names)
        assert names["C"]().p == value


@pytest.mark.parametrize("name", ["C.n", "C.q", "D", "k", "a"])
def test_no_shadow(name: str) -> None:
    with pytest.raises(ValueError):
        shadow(OLD, OLD.replace(b"    class D", b"    def n(self): pass\n    class D"), name)


@pytest.mark.wheels
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("vllm/v1/engine/core.py", "EngineCore.step_with_batch_queue"),
        ("vllm/v1/executor/multiproc_executor.py", "WorkerProc.worker_main"),
        ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.load_model"),
        ("vllm/v1/core/sched/scheduler.py", "Scheduler.schedule"),
    ],
)
def test_shadow_of_real_functions(path: str, name: str) -> None:
    file = TREE / path
    if not file.is_file():
        pytest.skip(f"no unpacked wheel at {TREE}")
    pre = file.read_bytes()
    node = find_scope(parse(pre), name)
    assert isinstance(node, ast.FunctionDef)
    source = Source(pre)
    first = source.start(node.body[-1])
    post = pre[:first] + b"new = 1\n" + source.indent(first) + pre[first:]
    assert changed(pre, post) == (name,)
    mutant = shadow(pre, post, name)
    assert changed(post, mutant) == (name,)
    start, end = source.start(node), source.end(node)
    assert mutant.count(pre[start:end]) == 1
    assert len(mutant) == len(post) + len(b"\n    ") + source.rest(end)[0] - start
