"""Verification in another interpreter, whatever its start, its modules and its probes do."""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import places
import pytest
from release import BUNDLE, FIXES, Release
from test_survive_verify import alive, answering, with_probe

from fixes import verify
from fixes.errors import FixesError
from fixes.state import Level

#: Leaves a process of another session, whose parent is gone: nobody's child any more.
DAEMON = """
import os, time
def leave():
    if not os.fork():
        os.setsid()
        if not os.fork():
            with open({place!r}, "w") as stream:
                stream.write(str(os.getpid()))
            time.sleep(60)
        os._exit(0)
    while not (os.path.exists({place!r}) and open({place!r}).read()):
        time.sleep(0.01)
"""


def probing(*sources: str, **more: object) -> dict[str, Any]:
    """What the interpreter answers to probes p0, p1, ..."""
    probes = [{"id": f"p{n}", "source": text, "file": "x"} for n, text in enumerate(sources)]
    request = {"paths": [], "modules": [], "probes": probes, "probe_s": 10, "probes_s": 60}
    return verify.ask(sys.executable, {**request, **more})


def reason(*sources: str, **more: object) -> list[tuple[object, str]]:
    given = probing(*sources, **more)["probes"].values()
    return [(each["answer"], each["reason"]) for each in given]


def body(*lines: str) -> str:
    return "import os, time\ndef probe():\n" + "".join(f"    {line}\n" for line in lines)


FINE = body("return 0, 'fine'")


def ended(place: Path) -> bool:
    """Whether the process that is named there has ended (or does so now)."""
    process, deadline = int(place.read_text()), time.monotonic() + 1
    while alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(process)


@pytest.mark.parametrize("encoding", ["", "utf-16", "ascii:strict"])
def test_what_is_printed_at_the_start_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    noise = "import os\nos.write(1, b'{\"modules\": {}}\\n\\xff')\nprint('hello', flush=True)\n"
    (tmp_path / "sitecustomize.py").write_text(noise)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    assert reason(body("print('more', flush=True)", "return 0, 'grün'")) == [(0, "grün")]


def test_a_run_where_every_interpreter_prints_at_its_start(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env")
    (place.site / "noise.pth").write_text("import sys; print('hello', flush=True)\n")
    assert "3 of 3 probes passed" in place.ok(BUNDLE)


def test_a_request_that_is_larger_than_a_pipe_while_the_start_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('x' * 1_000_000, flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert reason(FINE + "#" * 1_000_000) == [(0, "fine")]


def test_a_daemon_of_a_probe_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "process"
    checks = body(f"return int(os.path.exists('/proc/' + open({str(place)!r}).read())), 'alive?'")
    began = time.monotonic()
    leaves = DAEMON.format(place=str(place)) + "def probe():\n    leave()\n    return 0, 'left'\n"
    # The next probe does not meet it either.
    assert reason(leaves, checks) == [(0, "left"), (0, "alive?")]
    assert time.monotonic() - began < 20 and ended(place)


@pytest.mark.parametrize("end", ["", "os._exit(3)", "os.abort()"])
def test_a_daemon_of_a_module_is_ended_and_not_waited_for(tmp_path: Path, end: str) -> None:
    place = tmp_path / "process"
    (tmp_path / "leaving.py").write_text(DAEMON.format(place=str(place)) + f"leave()\n{end}\n")
    module = {"module": "leaving", "file": "", "sha256": "", "names": []}
    began = time.monotonic()
    asked = {"paths": [str(tmp_path)], "modules": [module]}
    if end:
        with pytest.raises(FixesError, match=r"the interpreter ended with (3|134): "):
            probing(FINE, **asked)
    else:
        assert reason(FINE, **asked) == [(0, "fine")]
    assert time.monotonic() - began < 20 and ended(place)


def test_a_process_of_a_module_lives_as_long_as_the_probes_need_it(tmp_path: Path) -> None:
    place = tmp_path / "process"
    (tmp_path / "leaving.py").write_text(DAEMON.format(place=str(place)) + "leave()\n")
    module = {"module": "leaving", "file": "", "sha256": "", "names": []}
    checks = body(f"os.kill(int(open({str(place)!r}).read()), 0)", "return 0, 'alive'")
    asked = {"paths": [str(tmp_path)], "modules": [module]}
    assert reason(checks, checks, **asked) == [(0, "alive"), (0, "alive")]
    assert ended(place)


def test_what_prints_without_end_is_not_kept() -> None:
    endless = body("while True:", "    os.write(2, b'x' * 65536)")
    tracemalloc.start()
    try:
        given = reason(endless, FINE, probe_s=1)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert given == [(None, "no answer within 1 s"), (0, "fine")]


def test_what_is_said_is_cut() -> None:
    long = reason(
        body("return 0, 'x' * 10**7"),
        body("raise ValueError('x' * 10**7)"),
        body("return 'x' * 10**7, ''"),
    )
    assert [answer for answer, _ in long] == [0, None, None]
    assert all(len(text) < 2100 for _, text in long) and long[0][1].endswith("xxx...")


def test_the_end_of_what_is_printed_tells_why_it_died(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(
        "import os\nos.write(2, b'x' * 300_000 + b'\\nthe reason\\n')\nos._exit(3)\n"
    )
    module = {"module": "dies", "file": "", "sha256": "", "names": []}
    with pytest.raises(FixesError, match=r"ended with 3: the reason$"):
        probing(paths=[str(tmp_path)], modules=[module])


def test_which_limit_it_was() -> None:
    slow = body("time.sleep(60)")
    assert reason(slow, slow, FINE, probe_s=0.5, probes_s=0.8) == [
        (None, "no answer within 0.5 s"),
        (None, "the 0.8 s for all probes are used up"),
        (None, "the 0.8 s for all probes are used up"),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("True", "the probe gave True"),
        ("False", "the probe gave False"),
        ("None", "the probe gave None"),
        ("0", "the probe gave 0"),
        ("(0, 'x', 'y')", "the probe gave (0, 'x', 'y')"),
        ("(True, 'x')", "the probe gave True"),
        ("(False, 'x')", "the probe gave False"),
        ("(0.0, 'x')", "the probe gave 0.0"),
    ],
)
def test_what_is_no_answer(given: str, said: str) -> None:
    assert reason(body(f"return {given}")) == [(None, said)]


def test_a_probe_that_closes_everything_or_goes_on_twice() -> None:
    closes = body("os.closerange(3, 999)", "return 0, ''")
    twice = body("os.fork()", "return 0, 'twice'")
    raises = body("class R:", "    def __str__(self): 1 / 0", "return 0, R()")
    died, once, broke, fine = reason(closes, twice, raises, FINE)
    assert died == (None, "the probe's process died") and once == (0, "twice")
    assert broke[1].startswith("the probe broke: ZeroDivisionError") and fine == (0, "fine")


CHANGES = "with open(vllm.open.__file__, 'a') as file:\n            fixed and file.write('#')"


def test_a_probe_that_changes_what_it_verifies(tmp_path: Path) -> None:
    place = with_probe(
        tmp_path, answering(f'if fixed:\n        {CHANGES}\n    return int(not fixed), "it"')
    )
    place.ok(BUNDLE, "--verify", "import")
    document = place.json("verify")
    (problem,) = document["problems"]
    assert document["exit"] == 5 and problem["kind"] == "bytes"
    assert problem["where"] == str(place.package / "open.py")


def test_a_module_that_changes_what_is_verified(tmp_path: Path) -> None:
    place = places.environment(tmp_path / "env", release=Release(tmp_path / "release", FIXES))
    place.ok(BUNDLE, "--verify", "bytes")
    with (place.package / "v1/__init__.py").open("a") as stream:
        stream.write("import vllm.core\nwith open(vllm.core.__file__, 'a') as f: f.write('#')\n")
    problems = place.json("verify", "--verify", "import")["problems"]
    assert str(place.package / "core.py") in {p["where"] for p in problems if p["kind"] == "bytes"}


@pytest.mark.parametrize("now", [b"post", b"other", None, "folder"])
@pytest.mark.parametrize("post", [sha256(b"post").hexdigest(), ""])
def test_files_are_hashed_at_the_level_of_bytes(tmp_path: Path, now: Any, post: str) -> None:
    path = tmp_path / "x.py"
    if now == "folder":
        path.mkdir()
    elif now is not None:
        path.write_bytes(now)
    here: Any = SimpleNamespace(
        environment=SimpleNamespace(executable=None), where=lambda name: (None, tmp_path / name)
    )
    plan: Any = SimpleNamespace(files=(SimpleNamespace(path="x.py", post=post),), wanted=())
    if now == (b"post" if post else None):
        assert verify.run(here, plan, Level.BYTES).level == Level.BYTES
    else:
        with pytest.raises(FixesError) as raised:
            verify.run(here, plan, Level.BYTES)
        (problem,) = raised.value.problems
        assert (problem.code, problem.kind, problem.where) == (5, "bytes", str(path))


WRAPPERS = """
import functools

{define}


class Call:
    {method}


def wrapped(function):
    @functools.wraps(function)
    def wrapper():
        return function()
    return wrapper


def decorated(cls):
    inner = cls.method
    def method(self, *given):
        return inner(self, *given)
    cls.method = method
    return cls


@decorated
@decorated
class Decorated:
    method = function


class Names:
    method = function
    static = staticmethod(function)
    by_class = classmethod(function)
    prop = property(function)
    cached = functools.cached_property(function)
    partial = functools.partialmethod(function, 1)
    single = functools.singledispatchmethod(function)
    both = classmethod(functools.wraps(function)(lambda self: 1))


method = Names().method
partial = functools.partial(functools.partial(function, 1), 2)
cache = functools.lru_cache(function)
wrapper = wrapped(wrapped(function))
call = Call()
"""
#: Functions of every kind; what stands behind each is one function, or one method.
KINDS = [
    *("function", "method", "partial", "cache", "wrapper", "call"),
    *(f"Names.{name}" for name in ("method", "static", "by_class", "prop", "cached", "partial")),
    *("Names.single", "Names.both", "Decorated.method"),
]


def names_of(folder: Path, names: list[str], **files: str) -> list[str]:
    """What is said of names in ``module`` when ``fixed`` is the fixed file."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    data = (folder / "fixed.py").read_bytes()
    about = {"file": str(folder / "fixed.py"), "sha256": sha256(data).hexdigest(), "names": []}
    modules = [{"module": "fixed", **about}, {"module": "module", "file": "", "names": names}]
    request: dict[str, object] = {"paths": [str(folder)], "modules": modules, "probes": []}
    answer = verify.ask(sys.executable, {**request, "probe_s": 1, "probes_s": 1})
    assert answer["modules"]["fixed"] == []
    found: list[str] = answer["modules"]["module"]
    return found


FUNCTION = "def function(*given):\n    return 1\n"
METHOD = "def __call__(self):\n        return 2\n"
FIXED_FILE = f"{FUNCTION}\n\nclass Call:\n    {METHOD}"


def test_wrappers_of_the_fixed_code_are_it(tmp_path: Path) -> None:
    text = WRAPPERS.format(
        define="from fixed import function, Call as Fixed", method="__call__ = Fixed.__call__"
    )
    assert names_of(tmp_path, [*KINDS, "Names", "Call"], fixed=FIXED_FILE, module=text) == []


def test_wrappers_of_other_code_are_not(tmp_path: Path) -> None:
    other = WRAPPERS.format(define=FUNCTION.replace("1", "3"), method=METHOD.replace("2", "4"))
    names = [*KINDS, "builtin", "number", "lazy", "nowhere"]
    other += "builtin, number = len, 1\ndef __getattr__(name): raise ImportError(name)\n"
    found = names_of(tmp_path, names, fixed=FIXED_FILE, module=other)
    wrong = "is not the fixed file's code (stale bytecode, or an alias)"
    assert found == [
        *(f"{name} {wrong}" for name in [*KINDS, "builtin", "number"]),
        *("lazy is not there", "nowhere is not there"),
    ]


def test_it_answers_on_standard_output_where_no_descriptor_is_given() -> None:
    import subprocess

    child = Path(verify.__file__).with_name("child.py").read_text()
    request = {"paths": [], "modules": [], "probes": [], "probe_s": 1, "probes_s": 1}
    done = subprocess.run(
        [sys.executable, "-c", child], input=json.dumps(request).encode(), stdout=subprocess.PIPE
    )
    assert done.returncode == 0 and json.loads(done.stdout)["probes"] == {}
