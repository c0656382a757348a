"""Runs inside the target environment: imports the fixed modules and runs the probes.

A program of its own, started as ``python -c <this source> <descriptor>`` with a request (JSON)
on standard input. It answers with one line of JSON on that descriptor, which nothing else knows
of: whatever prints, at the start of the interpreter or later, does not disturb it. It writes no
bytecode and leaves neither files nor processes behind.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Collection
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

#: Answers of a probe (docs/authoring.md).
ABSENT, PRESENT, CANNOT_TELL = 0, 1, 77
#: Linux prctl(2): a signal when the parent ends; orphans become children of this process.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Characters that are kept of what a probe or a failed import says.
_SAID = 2000
#: Where a function keeps what it wraps: functools.wraps, partialmethod (until 3.12 and since).
_WRAPPED = ("__wrapped__", "_partialmethod", "__partialmethod__")
#: And where other wrappers do: static and class methods, property, partial and cached_property,
#: a kernel of Triton.
_HELD = (*_WRAPPED, "__func__", "fget", "func", "fn")


def main() -> None:
    """Have a fork answer the request, and end all that it leaves running, however it ends."""
    # By its own pipe, or (without an argument) by the standard output of before.
    answers = int(sys.argv[1]) if len(sys.argv) > 1 else os.dup(1)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)
    end_with_parent(signal.SIGTERM)
    with open(0, "rb", closefd=False) as stream:  # bytes: PYTHONIOENCODING is for text
        request = json.loads(stream.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _adopt_orphans()
    # Blocked and waited for, no signal can come at a bad time.
    awaited = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    worker = os.fork()
    if worker == 0:
        try:
            end_with_parent()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _answer(request, answers)
            os._exit(0)  # No exit handlers of the imported modules: they were not asked to work.
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(answers)
    while (number := signal.sigwait(awaited)) == signal.SIGCHLD:
        ended, status = os.waitpid(worker, os.WNOHANG)
        if ended:
            number = os.waitstatus_to_exitcode(status)
            break
    else:
        number = -number
    _end_children()
    os._exit(number if number >= 0 else 128 - number)  # as a shell tells of a signal


def _answer(request: dict[str, Any], answers: int) -> None:
    """Import, probe, and write the answer."""
    sys.dont_write_bytecode = True
    working = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry not in ("", working)]
    sys.path[:0] = request["paths"]
    began = time.monotonic()
    modules = _Imports(request["modules"]).found
    imported = time.monotonic()
    sound = not any(modules.values())
    answer = {
        "modules": {name: [_cut(what) for what in found] for name, found in modules.items()},
        "probes": _probes(request) if sound else {},
        "import_s": imported - began,
        "probes_s": time.monotonic() - imported,
        "python": sys.version.split()[0],
    }
    with open(answers, "wb") as stream:
        stream.write(json.dumps(answer).encode() + b"\n")


def _probes(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Ask one probe after the other, until the time for all of them is used up."""
    each, together = float(request["probe_s"]), float(request["probes_s"])
    deadline = time.monotonic() + together
    used_up = f"the {together:g} s for all probes are used up"
    answers: dict[str, dict[str, Any]] = {}
    for spec in request["probes"]:
        left = deadline - time.monotonic()
        if left <= 0:
            answers[spec["id"]] = {"answer": None, "reason": used_up}
        elif left < each:
            answers[spec["id"]] = forked(spec, left, used_up)
        else:
            answers[spec["id"]] = forked(spec, each)
    return answers


class _Imports:
    """The modules of a request, and what is wrong with each."""

    def __init__(self, specs: list[dict[str, Any]]) -> None:
        self.found: dict[str, list[str]] = {spec["module"]: [] for spec in specs}
        self._codes: dict[str, dict[str, list[CodeType]]] = {}
        loaded = [(spec, self._load(spec)) for spec in specs]
        for spec, module in loaded:
            if module is not None:
                self._check(spec, module)

    def _load(self, spec: dict[str, Any]) -> ModuleType | None:
        """Import one module; it must come from the fixed file, and that file be as planned."""
        found = self.found[spec["module"]]
        try:
            module = importlib.import_module(spec["module"])
        except BaseException as error:  # a module may even raise SystemExit
            line = traceback.format_exception_only(type(error), error)[-1].strip()
            found.append(f"cannot be imported: {line}")
            return None
        if not spec["file"]:
            return module
        origin = getattr(module.__spec__, "origin", None) or ""
        if not _same(origin, spec["file"]):
            found.append(f"is imported from {origin}, not from {spec['file']}")
            return None
        with open(origin, "rb") as stream:
            source = stream.read()
        if hashlib.sha256(source).hexdigest() != spec["sha256"]:
            found.append(f"{origin} changed since it was verified")
            return None
        code = compile(source, origin, "exec", dont_inherit=True)
        self._codes[spec["module"]] = _code_objects(code)
        return module

    def _check(self, spec: dict[str, Any], module: ModuleType) -> None:
        """Each name must be there and, unless a class, be the code of a fixed file.

        Where the module is a fixed file that defines the name, that is its code of the same name;
        elsewhere (a subclass, a re-export) it is the code of any fixed file.
        """
        own = self._codes.get(spec["module"], {})
        for name in spec["names"]:
            value: Any = module
            for part in name.split("."):
                value = _attribute(value, part)
            if value is None:
                self.found[spec["module"]].append(f"{name} is not there")
                continue
            if isinstance(value, type):
                continue
            wanted = own.get(name) or [
                code for file in self._codes.values() for codes in file.values() for code in codes
            ]
            if not any(code in wanted for code in _codes(value)):
                what = f"{name} is not the fixed file's code (stale bytecode, or an alias)"
                self.found[spec["module"]].append(what)


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _code(value: Any) -> CodeType | None:
    """The code behind a function, or any chain of wrappers; None if there is none in Python."""
    for _ in range(20):
        if isinstance(value, MethodType):
            value = value.__func__
        names = _WRAPPED if isinstance(value, FunctionType) else _HELD
        inner = [held for name in names if (held := _attribute(value, name)) is not None]
        if not inner:
            break
        value = inner[0]
    if not isinstance(value, FunctionType):
        value = _attribute(type(value), "__call__")
    return value.__code__ if isinstance(value, FunctionType) else None


def _codes(value: Any) -> list[CodeType]:
    """The code behind a function, and that of the functions which its wrappers close over.

    A class decorator may put a plain function in the place of a method and keep that in a cell
    (vLLM's support_torch_compile does so with ``__init__``).
    """
    codes, seen, todo = [], {id(value)}, [value]
    while todo:
        held = todo.pop()
        if (code := _code(held)) is not None:
            codes.append(code)
        for cell in _attribute(held, "__closure__") or ():
            inner = _attribute(cell, "cell_contents")
            if isinstance(inner, (FunctionType, MethodType)) and id(inner) not in seen:
                seen.add(id(inner))
                todo.append(inner)
    return codes


def _attribute(value: Any, name: str) -> Any:
    """An attribute; None if there is none, or if asking for it fails."""
    try:
        return getattr(value, name, None)
    except Exception:  # what looks things up by itself may raise anything
        return None


def _cut(text: str) -> str:
    return text if len(text) <= _SAID else text[: _SAID - 3] + "..."


def _code_objects(code: CodeType, prefix: str = "") -> dict[str, list[CodeType]]:
    """Every code object in ``code`` by its dotted path of names."""
    found: dict[str, list[CodeType]] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            name = prefix + constant.co_name
            found.setdefault(name, []).append(constant)
            for inner, codes in _code_objects(constant, name + ".").items():
                found.setdefault(inner, []).extend(codes)
    return found


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the one that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))


def _adopt_orphans() -> None:
    """Have every process that loses its parent below this one become a child of this one."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _children() -> set[int]:
    """The processes whose parent this one is, ended ones among them (proc(5))."""
    mine, found = os.getpid(), set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stream:
                parent = int(stream.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):  # it has ended meanwhile
            continue
        if parent == mine:
            found.add(int(name))
    return found


def _end_children(spared: Collection[int] = ()) -> None:
    """End every child but the spared ones, and what each leaves to its adopter, this process."""
    done = set(spared)
    while left := _children() - done:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
            except OSError:  # somebody else's by now, or reaped already
                done.add(process)


def forked(spec: dict[str, Any], limit: float, late: str = "") -> dict[str, Any]:
    """Run one probe in a fork of this process, and end it and all that it started.

    ``late`` is the reason that is given where there is no answer within ``limit`` seconds.
    """
    _adopt_orphans()
    before = _children()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.setpgid(0, 0)
            end_with_parent()
            mine = os.getpid()
            data = json.dumps(_probe(spec)).encode() + b"\n"
            if os.getpid() == mine:  # not in what the probe forked and let go on
                os.write(writer, data)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        deadline = time.monotonic() + limit
        data = b""
        while not data.endswith(b"\n"):  # what the probe left running may hold the pipe open
            ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return {"answer": None, "reason": late or f"no answer within {limit:g} s"}
            piece = os.read(reader, 65536)
            if not piece:
                return {"answer": None, "reason": "the probe's process died"}
            data += piece
        answer: dict[str, Any] = json.loads(data)
        return answer
    finally:
        os.close(reader)
        _end(child)
        _end_children(before)


def _end(child: int) -> None:
    """End the probe and its process group."""
    for target in (os.killpg, os.kill):
        try:
            target(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    try:
        os.waitpid(child, 0)
    except ChildProcessError:  # an imported module has it reaped by the kernel
        return


def _probe(spec: dict[str, Any]) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "probe", "__file__": spec["file"]}
    try:
        exec(compile(spec["source"], spec["file"], "exec", dont_inherit=True), namespace)
        given = namespace["probe"]()
        if not isinstance(given, tuple) or len(given) != 2:
            return {"answer": None, "reason": _cut(f"the probe gave {given!r}")}
        answer, reason = given
        # By type, since True and False are 1 and 0 as well.
        if type(answer) is not int or answer not in (ABSENT, PRESENT, CANNOT_TELL):
            return {"answer": None, "reason": _cut(f"the probe gave {answer!r}")}
        return {"answer": answer, "reason": _cut(str(reason))}
    except BaseException as error:
        line = traceback.format_exception_only(type(error), error)[-1].strip()
        where = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{_cut(line)} ({where.filename}:{where.lineno})"
        return {"answer": None, "reason": f"the probe broke: {what}"}


if __name__ == "__main__":
    main()
