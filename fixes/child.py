"""Runs inside the target environment: imports the fixed modules and runs the probes.

A program of its own, started as ``python -c <this source>`` with a request (JSON) on standard
input; it answers (JSON) on the standard output it was given, which it keeps from everything
that the imported modules print. It writes no bytecode and leaves nothing behind.
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
from types import CodeType, FunctionType, ModuleType
from typing import Any

#: Answers of a probe (docs/authoring.md).
ABSENT, PRESENT, CANNOT_TELL = 0, 1, 77
#: Linux prctl(2): a probe does not outlive this process.
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read the request, answer it."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the probe as well
    request = json.load(sys.stdin)
    working = os.getcwd()
    sys.path[:] = [entry for entry in sys.path if entry not in ("", working)]
    sys.path[:0] = request["paths"]
    began = time.monotonic()
    modules = _Imports(request["modules"]).found
    imported = time.monotonic()
    probes = {}
    left = float(request["probes_s"])
    if all(not found for found in modules.values()):
        for spec in request["probes"]:
            limit = min(float(request["probe_s"]), left)
            start = time.monotonic()
            probes[spec["id"]] = forked(spec, limit)
            left = max(0.0, left - (time.monotonic() - start))
    json.dump(
        {
            "modules": modules,
            "probes": probes,
            "import_s": imported - began,
            "probes_s": time.monotonic() - imported,
            "python": sys.version.split()[0],
        },
        answer,
    )
    answer.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # No exit handlers of the imported modules: they were never asked to work.


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
        origin = getattr(module, "__file__", None) or ""
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
        """Each name must be there, and a function must be the code of a fixed file.

        Where the module is a fixed file that defines the name, that is its code of the same name;
        elsewhere (a subclass, a re-export) it is the code of any fixed file.
        """
        own = self._codes.get(spec["module"], {})
        for name in spec["names"]:
            value: Any = module
            for part in name.split("."):
                value = getattr(value, part, None)
            if value is None:
                self.found[spec["module"]].append(f"{name} is not there")
                continue
            live = _code(value)
            if live is None:
                continue
            if name in own:
                good = live in own[name]
            else:
                every = (codes for file in self._codes.values() for codes in file.values())
                good = any(live in codes for codes in every)
            if not good:
                what = f"{name} is not the fixed file's code (stale bytecode, or an alias)"
                self.found[spec["module"]].append(what)


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _code(value: Any) -> CodeType | None:
    """The code behind a function, method, property or any chain of wrappers."""
    for _ in range(20):
        if isinstance(value, FunctionType):
            wrapped = getattr(value, "__wrapped__", None)
            if wrapped is None:
                return value.__code__
            value = wrapped
        elif isinstance(value, property):
            value = value.fget
        else:
            value = getattr(value, "__wrapped__", None) or getattr(value, "__func__", None)
        if value is None:
            return None
    return None


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


def end_with_parent() -> None:
    """Have the kernel end this process when the one that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def forked(spec: dict[str, Any], limit: float) -> dict[str, Any]:
    """Run one probe in a fork of this process, and end it when its time is over."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent()
        os.write(writer, json.dumps(_probe(spec)).encode() + b"\n")
        os._exit(0)
    os.close(writer)
    try:
        deadline = time.monotonic() + limit
        data = b""
        while not data.endswith(b"\n"):  # what the probe left running may hold the pipe open
            ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return {"answer": None, "reason": f"no answer within {limit:.0f} s"}
            piece = os.read(reader, 65536)
            if not piece:
                break
            data += piece
        if not data:
            return {"answer": None, "reason": "the probe's process died"}
        answer: dict[str, Any] = json.loads(data)
        return answer
    finally:
        os.close(reader)
        _end(child)


def _end(child: int) -> None:
    """End the probe's process group: whatever the probe left running goes with it."""
    for target in (os.killpg, os.kill):
        try:
            target(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    os.waitpid(child, 0)


def _probe(spec: dict[str, Any]) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "probe", "__file__": spec["file"]}
    try:
        exec(compile(spec["source"], spec["file"], "exec", dont_inherit=True), namespace)
        answer, reason = namespace["probe"]()
    except BaseException as error:
        line = traceback.format_exception_only(type(error), error)[-1].strip()
        where = traceback.extract_tb(error.__traceback__)[-1]
        return {
            "answer": None,
            "reason": f"the probe broke: {line} ({where.filename}:{where.lineno})",
        }
    if answer not in (ABSENT, PRESENT, CANNOT_TELL):
        return {"answer": None, "reason": f"the probe gave {answer!r}"}
    return {"answer": answer, "reason": str(reason)}


if __name__ == "__main__":
    main()
