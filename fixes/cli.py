"""The command line: parse, dispatch to one module per verb, one error handler."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from fixes import __version__, report
from fixes.errors import ExitCode, FixesError, Problem, TerminatedError, worst
from fixes.verbs import VERBS, named

_LEVELS = ("bytes", "import", "probe")


class _Formatter(argparse.HelpFormatter):
    """Help of a fixed width: asking for the terminal's would import shutil on every run."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=96)


class _Parser(argparse.ArgumentParser):
    """Argparse that raises FixesError and suggests the nearest option."""

    def error(self, message: str) -> NoReturn:
        from difflib import get_close_matches

        hint = f"see `{self.prog} --help`"
        known = [option for action in self._actions for option in action.option_strings]
        for word in message.split():
            if word.startswith("-") and word.rstrip(":") not in known:
                near = get_close_matches(word.partition("=")[0], known, 1)
                hint = f"did you mean {near[0]}?" if near else hint
        raise FixesError(Problem(ExitCode.USAGE, "usage", message, hint=hint))


def main(arguments: Sequence[str] | None = None, sound: Callable[[], bool] = lambda: True) -> int:
    """Run one command line and give its exit code. Never raises and prints no traceback.

    ``sound`` says whether the file that this package was imported from is still as it was.
    """
    program = arguments is None
    _open_standard_descriptors()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        code = int(_run(arguments))
    except FixesError as error:
        code = _failed(error.problems, arguments)
    except KeyboardInterrupt:
        return _stopped("interrupted", ExitCode.INTERRUPTED, arguments)
    except TerminatedError:
        return _stopped("terminated", ExitCode.TERMINATED, arguments)
    except Exception as error:
        code = _internal(arguments, error) if sound() else _failed([_bad_bundle()], arguments)
    for number, handler in before.items():
        # The verdict stands: a program that only has to exit is not to be stopped any more.
        signal.signal(number, signal.SIG_IGN if program else handler)
    return code


def _open_standard_descriptors() -> None:
    """Where one of them is closed, no file of a tree shall get its number: others print to it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind once: a second signal must not break into the rolling back, nor into the exit."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else TerminatedError


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        report.emit(_overview())
        return ExitCode.OK if arguments else ExitCode.USAGE
    if arguments[0] == "--version":
        report.emit(f"vllm-fixes {__version__}\n")
        return ExitCode.OK
    verb, rest = named(arguments)
    command = _command(verb)
    parser = _Parser(
        prog=f"vllm-fixes {verb}",
        description=VERBS[verb].about,
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this and exit")
    command.add_arguments(parser)
    behind: list[str] = []
    if verb in ("launch", "manifest") and "--" in rest:  # the engine's command line
        at = rest.index("--")
        rest, behind = rest[:at], rest[at + 1 :]
    if {"-h", "--help"} & set(rest):
        report.emit(parser.format_help())
        return ExitCode.OK
    options = parser.parse_intermixed_args(rest)
    options.verb, options.behind = verb, behind
    return command.run(options)


def _command(verb: str) -> _Command:
    from importlib import import_module

    name = f"fixes.commands.{VERBS[verb].module}"
    try:
        return import_module(name)  # type: ignore[return-value]
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
    hint = "run it from a checkout, or from an installed vllm-fixes"
    raise FixesError(Problem(ExitCode.USAGE, "usage", "is not in this bundle", verb, hint))


class _Command:
    """What every module under fixes/commands has (for the type checker)."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def common_arguments(parser: argparse.ArgumentParser, names: str, level: str | None = None) -> None:
    """Options that every verb on a tree has. ``names`` is nargs for the fixes: ``*`` or ``+``;
    ``level`` is the default of --verify.
    """
    add = parser.add_argument
    add("names", metavar="FIX", nargs=names, type=filled, help="fixes and bundles")
    add("--profile", type=filled, default="auto", help="a profile such as v0.30.0, or auto")
    add("--profiles", type=folder, metavar="DIR", help="another folder of profiles and patches")
    add("--tree", type=folder, metavar="DIR", help="a site-packages, unpacked wheel or checkout")
    add("--python", type=filled, metavar="EXE", help="the interpreter of another environment")
    add("--verify", choices=_LEVELS, default=level, help="level to reach")
    add("--accept-version", type=filled, metavar="EXACT", help="accept one non-release version")
    add(
        "--allow-foreign",
        action="append",
        type=filled,
        default=[],
        metavar="PATH",
        help="accept the bytes of this one file if every hunk still matches in one place",
    )
    add(
        "--scope-lock",
        action="store_true",
        help="accept other bytes where all that the fixes rely on is the same syntax",
    )
    add("--expect-digest", type=filled, metavar="D", help="fail before writing if it differs")
    add("--dry-run", action="store_true", help="plan and report, write nothing")
    add("--json", action="store_true", help="print one JSON document")
    add("--quiet", action="store_true", help="print the level, the digest and problems only")


def filled(text: str) -> str:
    """An option's value. An empty one, as of an unset variable, is no value."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def folder(text: str) -> Path:
    """An option's value that names a folder."""
    return Path(filled(text))


def seconds(text: str) -> float:
    """An option's value that is a time to wait."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):  # nor is nan, which no comparison holds of
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, finite and from 0 on")
    return value


def overlay_argument(parser: argparse.ArgumentParser) -> None:
    """The option --overlay: what an engine imports that has it on its PYTHONPATH."""
    about = "an overlay over the tree; by default the one that PYTHONPATH names"
    parser.add_argument("--overlay", type=filled, metavar="DIR", help=about)


def wait_argument(parser: argparse.ArgumentParser) -> None:
    """The option --wait: seconds to wait for another run that holds the lock."""
    parser.add_argument(
        "--wait", type=seconds, default=600.0, metavar="S", help="seconds to wait for another run"
    )


def _overview() -> str:
    lines = [
        "usage: vllm-fixes [VERB] [options] FIX...",
        "",
        "Puts named, verified fixes into an installed vLLM and proves that they are in.",
        "Without a verb: apply. `vllm-fixes VERB --help` shows the options of a verb.",
        "",
    ]
    from importlib.util import find_spec

    here = (name for name, verb in VERBS.items() if find_spec(f"fixes.commands.{verb.module}"))
    lines += [f"  {name:<8} {VERBS[name].about}" for name in here]
    return "\n".join(lines) + "\n"


def _failed(problems: Sequence[Problem], arguments: list[str]) -> ExitCode:
    code = worst(problems)
    verb, _ = named(arguments)
    if "--json" in arguments:
        from fixes.outcome import Report

        report.show(Report(verb, problems=list(problems)).document(), as_json=True)
    else:
        report.complain(problems, verb)
    return code


def _stopped(word: str, code: ExitCode, arguments: list[str]) -> int:
    verb, _ = named(arguments)
    problem = Problem(code, word, "ended before it was done")
    if VERBS[verb].changes:
        what, hint = "what was not complete has been rolled back", "`status` shows what is in"
        problem = problem._replace(what=what, hint=hint)
    return _failed([problem], arguments)


def _bad_bundle() -> Problem:
    from fixes.catalogue import _ARCHIVE

    what = "is damaged, or was replaced while it ran"
    return Problem(ExitCode.MISMATCH, "bad-bundle", what, _ARCHIVE, "bring it again")


def _without_secrets(arguments: list[str]) -> str:
    """The words that may be sent in: no engine's options (`--api-key`), no URL's password."""
    import re

    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return " ".join(re.sub(r"//[^/\s]*@", "//", word) for word in own)


def _internal(arguments: list[str], error: Exception) -> int:
    """A fault of ours: everything that a report needs, in one block."""
    import platform
    import traceback

    frames = traceback.extract_tb(error.__traceback__)[-6:]
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    places = [f"    {f.filename.removeprefix(root)}:{f.lineno} {f.name}" for f in frames]
    line = traceback.format_exception_only(type(error), error)[-1].strip()
    lines = [
        "internal: this is a fault of vllm-fixes; please report the lines below",
        f"    vllm-fixes {__version__}, Python {platform.python_version()}, {platform.platform()}",
        f"    arguments: {_without_secrets(arguments)}",
        f"    {line}",
        *places,
    ]
    if VERBS[named(arguments)[0]].changes:
        lines.append("A change that was not complete has been rolled back.")
    if "--json" in arguments:
        _failed([Problem(ExitCode.INTERNAL, "internal", line, "; ".join(places))], arguments)
    report.emit("\n".join(lines) + "\n", error=True)
    return ExitCode.INTERNAL
