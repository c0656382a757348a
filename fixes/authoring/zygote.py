"""Runs inside the target environment: asks probes about many trees of the same packages.

Most of an import of vLLM is the import of what it needs from elsewhere. A first fork imports
the modules from one tree of each group and tells what that brought in; this process imports
the same from the environment, but nothing of the targets, and then forks once for each tree.
Only the standard library, like ``fixes/child.py``, whose way to run a probe it shares.

Environment variables that a target sets before it imports a library are not set yet when the
library is imported here.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from types import CodeType
from typing import Any

from fixes.child import end_with_parent, forked


def main() -> None:
    """Read the request (JSON) from standard input, write the answers (JSON) to a file.

    The request: ``paths`` to take off ``sys.path``, ``scratch`` (a folder), ``targets``,
    ``probes`` (by id: source and file), ``trees`` (path, group, modules, probes), ``jobs``,
    ``import_s`` and ``probe_s``. The answers, one for each tree: ``fault`` (why its modules
    cannot be imported) or ``probes`` (by id: answer, reason, seconds).
    """
    request = json.load(sys.stdin)
    os.dup2(2, 1)
    away = ("", os.getcwd(), *request["paths"])
    sys.path[:] = [entry for entry in sys.path if entry not in away]
    sys.dont_write_bytecode = True
    answers = _Zygote(request).answers()
    with open(os.path.join(request["scratch"], "answers"), "w") as stream:
        json.dump(answers, stream)
    sys.stderr.flush()
    os._exit(0)  # as in fixes/child.py: no exit handlers of what was imported


class _Zygote:
    def __init__(self, request: dict[str, Any]) -> None:
        self._scratch: str = request["scratch"]
        self._targets: list[str] = request["targets"]
        self._probes: dict[str, dict[str, str]] = request["probes"]
        self._trees: list[dict[str, Any]] = request["trees"]
        self._jobs: int = request["jobs"]
        self._import_s: int = request["import_s"]
        self._probe_s: float = request["probe_s"]
        #: By group, the modules that its first tree cannot import.
        self._left_out: dict[str, list[str]] = {}

    def answers(self) -> list[dict[str, Any]]:
        groups: dict[str, list[dict[str, Any]]] = {}
        for tree in self._trees:
            groups.setdefault(tree["group"], []).append(tree)
        for group, trees in groups.items():
            self._prepare(group, trees)
        gc.freeze()  # a collection in a fork would copy every page of what is shared
        work = [lambda tree=tree: self._ask(tree) for tree in self._trees]
        return self._run(work)

    def _prepare(self, group: str, trees: Sequence[dict[str, Any]]) -> None:
        """Import what the trees of a group need that is not of the targets."""
        modules = list(dict.fromkeys(module for tree in trees for module in tree["modules"]))
        (learnt,) = self._run([lambda: self._learn(trees[0], modules)])
        self._left_out[group] = learnt.get("left_out", modules)
        for name in learnt.get("needed", ()):
            try:
                importlib.import_module(name)
            except Exception:  # an entry of sys.modules that is no module to import
                continue
        if found := [name for name in sys.modules if self._of_target(name)]:
            raise SystemExit(f"{found[0]} comes with a library: no tree can be put before it")

    def _learn(self, tree: dict[str, Any], modules: list[str]) -> dict[str, Any]:
        _enter(tree["path"], self._scratch)
        left_out = [module for module in modules if _import(module)]
        needed = [name for name in sys.modules if not self._of_target(name)]
        return {"left_out": left_out, "needed": needed}

    def _of_target(self, name: str) -> bool:
        return name.partition(".")[0] in self._targets

    def _ask(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Import a tree's modules and run its probes, each in a fork of its own.

        A module that not even the group's first tree can import is left to the probes.
        """
        _enter(tree["path"], self._scratch)
        began = time.monotonic()
        for module in tree["modules"]:
            if module not in self._left_out[tree["group"]] and (fault := _import(module)):
                return {"fault": fault}
        signal.alarm(0)
        import_s = time.monotonic() - began
        probes = {}
        for name in tree["probes"]:
            start = time.monotonic()
            probes[name] = forked(self._probes[name], self._probe_s)
            probes[name]["seconds"] = time.monotonic() - start
        return {"probes": probes, "import_s": import_s}

    def _run(self, work: Sequence[Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
        """What pieces of work give, each done in a fork, ``jobs`` of them at a time."""
        waiting, running = list(enumerate(work)), dict[int, int]()
        found: dict[int, dict[str, Any]] = {}
        while waiting or running:
            while waiting and len(running) < self._jobs:
                index, piece = waiting.pop(0)
                running[self._fork(piece)] = index
            process, status = os.wait()
            found[running.pop(process)] = self._result(process, status)
        return [found[index] for index in range(len(work))]

    def _fork(self, piece: Callable[[], dict[str, Any]]) -> int:
        process = os.fork()
        if process:
            return process
        try:
            end_with_parent()
            signal.alarm(self._import_s)
            result = piece()
            with open(self._place(os.getpid()), "w") as stream:
                json.dump(result, stream)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _result(self, process: int, status: int) -> dict[str, Any]:
        try:
            with open(self._place(process)) as stream:
                result: dict[str, Any] = json.load(stream)
        except (OSError, ValueError):
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
                return {"fault": f"the imports took longer than {self._import_s} s"}
            return {"fault": f"the process ended with {os.waitstatus_to_exitcode(status)}"}
        os.unlink(self._place(process))
        return result

    def _place(self, process: int) -> str:
        return os.path.join(self._scratch, f"{process}.json")


def _import(module: str) -> str:
    """Import a module; what is wrong with it, or nothing."""
    try:
        importlib.import_module(module)
    except BaseException as error:  # a module may even raise SystemExit
        line = traceback.format_exception_only(type(error), error)[-1].strip()
        return f"{module} cannot be imported: {line}"
    return ""


def _enter(tree: str, scratch: str) -> None:
    """Put a tree before everything else, with bytecode that it shares with other trees."""

    class Loader(_Shared):
        folder = scratch

    finder = FileFinder.path_hook((Loader, SOURCE_SUFFIXES))

    def hook(path: str) -> Any:
        if path != tree and not path.startswith(tree + os.sep):
            raise ImportError(path)
        return finder(path)

    sys.path_hooks.insert(0, hook)
    sys.path.insert(0, tree)


class _Shared(SourceFileLoader):
    """Keeps bytecode by the sha256 of the source: trees differ in few files only."""

    folder: str

    def get_code(self, fullname: str) -> CodeType | None:
        sys.dont_write_bytecode = False
        try:
            return super().get_code(fullname)
        finally:
            sys.dont_write_bytecode = True

    def path_stats(self, path: str) -> Any:
        with open(path, "rb") as stream:
            source = stream.read()
        self._digest = hashlib.sha256(source).hexdigest()
        return {"mtime": 1, "size": len(source)}

    def get_data(self, path: str) -> bytes:
        return super().get_data(self._place(path))

    def set_data(self, path: str, data: Any, **mode: Any) -> None:
        super().set_data(self._place(path), data, **mode)

    def _place(self, path: str) -> str:
        return os.path.join(self.folder, self._digest) if path.endswith(".pyc") else path
