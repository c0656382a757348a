"""``launch``: run one node of a replica, from the fixes to the end of its last process."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from fixes import report
from fixes.errors import ExitCode, FixesError, Problem, worst

#: How long nodes wait for each other: torch's own rendezvous waits as long.
MEETING = 1800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb. What stands behind ``--`` is vLLM's."""
    from fixes.cli import filled, folder, seconds

    add = parser.add_argument
    parser.usage = "vllm-fixes launch [options] [-- MODEL [options of vllm serve]]"
    add("--head", action="store_true", help="this node is rank 0 and serves HTTP")
    add("--worker", action="store_true", help="this node is another one: rank 1, or --rank")
    add("--head-ip", type=filled, metavar="ADDRESS", help="the head's address or name")
    add("--rank", type=int, metavar="N", help="this node's rank, with --nnodes")
    add("--nnodes", type=int, metavar="M", help="how many nodes the replica has")
    add("--model", type=filled, help="the model; default: behind --, or $MODEL")
    add("--tensor-parallel-size", "-tp", type=int, metavar="N", help="or $TENSOR_PARALLEL_SIZE")
    add("--pipeline-parallel-size", "-pp", type=int, metavar="N", help="or $PIPELINE_PARALLEL_SIZE")
    add("--engine", choices=("vllm", "dynamo", "ray"), default="vllm", help="what to start")
    add("--master-port", type=_port, metavar="PORT", help="torch's rendezvous on the head; 29501")
    add("--watch-port", type=_port, default=0, metavar="PORT", help="the launchers'; 29590")
    add("--host-ip", type=filled, metavar="IP", help="this node's own address")
    add("--interface", type=filled, metavar="NAME", help="the interface between nodes")
    add("--token-file", type=folder, metavar="FILE", help="the token; or $VLLM_FIXES_TOKEN")
    add("--meet-timeout", type=seconds, default=MEETING, metavar="S", help="to wait for the others")
    add(
        "--grace",
        type=seconds,
        default=20.0,
        metavar="S",
        help="for the engine to end when stopped",
    )
    add(
        "--fail-slow",
        type=seconds,
        default=0.0,
        metavar="S",
        help="to wait before a failed start ends",
    )
    add(
        "--fix",
        action="append",
        type=filled,
        metavar="FIX",
        help="a fix or bundle; default: pipeline-parallel",
    )
    add("--profile", type=filled, default="auto", help="a profile such as v0.30.0, or auto")
    add("--profiles", type=folder, metavar="DIR", help="another folder of profiles and patches")
    add("--python", type=filled, metavar="EXE", help="the interpreter that runs vLLM")
    add("--verify", choices=("bytes", "import", "probe"), help="level to reach")
    add("--expect-digest", type=filled, metavar="D", help="fail before writing if it differs")
    add("--accept-version", type=filled, metavar="EXACT", help="as of apply")
    add("--allow-foreign", action="append", type=filled, metavar="PATH", help="as of apply")
    add("--scope-lock", action="store_true", help="as of apply")
    add("--dry-run", action="store_true", help="print what every node would run, and end")
    add("--json", action="store_true", help="with --dry-run: print one JSON document")
    add(
        "--quiet", action="store_true", help="print the level, the digest and problems of the fixes"
    )


def run(options: argparse.Namespace) -> int:
    """Run one node. 0: a dry run, or the replica was stopped at its head.

    NOT_STARTED where the replica does not come to be, REPLICA_ENDED where it ends by itself;
    what `apply` ends with where the fixes do not go in.
    """
    try:
        code = _run(options)
    except FixesError as error:
        if not options.fail_slow or worst(error.problems) is ExitCode.REPLICA_ENDED:
            raise
        report.complain(error.problems, "launch")
        code = error.exit_code
    if options.fail_slow and code not in _NO_FAILED_START:
        _say_as("launch", f"a failed start: ending in {options.fail_slow:g} s")
        time.sleep(options.fail_slow)
    return code


_NO_FAILED_START = (
    ExitCode.OK,
    ExitCode.REPLICA_ENDED,
    ExitCode.INTERRUPTED,
    ExitCode.TERMINATED,
)


def _run(options: argparse.Namespace) -> int:
    from fixes import environment, tree
    from fixes.launch import group, plan

    environ = dict(os.environ)
    asked = group.Asked(
        options.head, options.worker, options.rank, options.nnodes, options.head_ip or ""
    )
    found = group.find(asked, environ)
    made = plan.settings(
        found.nnodes,
        options.tensor_parallel_size,
        options.pipeline_parallel_size,
        options.engine,
        options.model or "",
        getattr(options, "behind", ()),
        environ,
    )
    master = environ.get("MASTER_PORT", "")
    preset = int(master) if plan.is_port(master) else plan.MASTER_PORT
    port = options.master_port or preset
    made = made._replace(interface=options.interface or "", master_port=port)
    path = environ.get("PATH", os.defpath)
    if options.dry_run:
        made = made._replace(python=options.python or sys.executable)
        with contextlib.suppress(FixesError):  # no vLLM is needed for it
            env = environment.of(options.python) if options.python else environment.current()
            tree.find("vllm", env)
            made = made._replace(program=plan.script(env.executable or sys.executable, path))
        return _dry_run(options, found, made, environ)
    env = environment.of(options.python) if options.python else environment.current()
    python = env.executable or sys.executable
    made = made._replace(python=python, program=plan.script(python, path))
    return _launch(options, found, made, env, environ)


def _launch(options: argparse.Namespace, found: Any, made: Any, env: Any, environ: Any) -> int:
    from fixes import tree
    from fixes.launch import address, facts, link, model, node, plan, preflight

    def say(text: str) -> None:
        _say_as(f"node {found.rank}", text)

    token = _token(options.token_file, environ) if found.nnodes > 1 else b""
    deadline = time.monotonic() + options.meet_timeout
    say(f"{found.rank} of {found.nnodes} nodes, as {found.source} says")
    head = address.resolve(found.head, deadline, say) if found.head else ""
    own_ip = environ.get("VLLM_HOST_IP", "")
    here = preflight.place(found, head, options.host_ip or "", made.interface, own_ip)
    made = made._replace(interface=here.interface)
    cpu = preflight.is_cpu_build(tree.find("vllm", env).distribution)
    watch_port = options.watch_port or plan.WATCH_PORT
    if problems := preflight.check(found, made, here, watch_port, cpu, environ, env.paths):
        raise FixesError(*problems)
    for warning in preflight.warnings(made, environ):
        say(f"warning: {warning}")
    document = _apply(options)
    if report.show(document, as_json=False, quiet=options.quiet):
        return int(document["exit"])
    versions = {
        "vLLM": document["trees"][0]["version"],
        "Python": env.version,
        "torch": _version_of("torch", env.paths),
    }
    if name := {"ray": "ray", "dynamo": "ai-dynamo"}.get(made.engine):
        versions[name] = _version_of(name, env.paths)
    identity = model.identify(made.model, plan.option(made.arguments, "--revision"), environ)
    known = facts.gather(versions, document["digest"], identity, made, environ)
    own = link.card(found.rank, here.ip, known, found.replica)
    terms = node.Terms(found.head, watch_port, token, deadline, options.grace)
    ending = node.live(made, own, terms, environ, say)
    if ending.code is ExitCode.REPLICA_ENDED:
        raise FixesError(Problem(ExitCode.REPLICA_ENDED, "replica-ended", ending.cause))
    return int(ending.code)


def _apply(options: argparse.Namespace) -> dict[str, Any]:
    """The report of applying the fixes, as the verb `apply` does it.

    Where PYTHONPATH names an overlay the fixes are in that, for a tree that cannot be written
    to: then they are verified, as the verb `verify` does it.
    """
    from fixes import overlays, recall
    from fixes.commands import apply, verify

    words = ["--scope-lock"] if options.scope_lock else []
    for name in ("profile", "profiles", "python", "verify", "expect_digest", "accept_version"):
        if value := getattr(options, name):
            words.append(f"--{name.replace('_', '-')}={value}")
    words += [f"--allow-foreign={path}" for path in options.allow_foreign or ()]
    names = ["--", *(options.fix or ["pipeline-parallel"])]  # whatever they begin with
    parser = argparse.ArgumentParser(add_help=False)
    if served := overlays.named(os.environ):
        verify.add_arguments(parser)
        words += [f"--overlay={served[0]}"] if options.python else []
        return verify.verified(parser.parse_args(words + names)).document()
    apply.add_arguments(parser)
    asked = parser.parse_args(words + names)
    document = recall.answer(asked)
    if document is None:
        from fixes import application

        document = application.run(asked).document()
    return document


def _token(file: Path | None, environ: dict[str, str]) -> bytes:
    """The shared token, which no process that is started from now on gets.

    Raises FixesError (usage): none, not readable, too short, too long.
    """
    from fixes.launch.plan import TOKEN
    from fixes.launch.wire import LONGEST_TOKEN, SHORTEST_TOKEN

    where = f"--token-file {file}" if file else TOKEN
    hint = f"nodes share a token: `head -c 32 /dev/urandom | base64`, in a file or in {TOKEN}"
    os.environ.pop(TOKEN, None)
    try:
        if file:
            with file.open("rb") as stream:
                token = stream.read(LONGEST_TOKEN + 1).strip()
        else:
            token = os.fsencode(environ.get(TOKEN, "")).strip()
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, where, hint)) from None
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
        what = f"a token has {SHORTEST_TOKEN} to {LONGEST_TOKEN} bytes"
        what += f", and not {len(token)}" if len(token) < SHORTEST_TOKEN else ", and not more"
        what = what if token else "no token"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, where, hint))
    return token


def _port(text: str) -> int:
    """An option's value that is a port."""
    from fixes.launch import plan

    if not plan.is_port(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)


def _version_of(distribution: str, paths: tuple[str, ...]) -> str:
    from importlib.metadata import distributions

    for found in distributions(name=distribution, path=list(paths)):
        return str(found.version)
    return ""


def _dry_run(options: argparse.Namespace, found: Any, made: Any, environ: Any) -> int:
    """What every node would run. Looks nothing up but the head's name, and that once.

    What only another node knows, or this one does not, has the name of a place holder.
    """
    import json
    import shlex

    from fixes.launch import address, plan, preflight

    own = environ.get("VLLM_HOST_IP", "")
    addresses = address.lookup(found.head) if found.head else []
    head = addresses[0] if len(addresses) == 1 else ""
    places = {
        rank: preflight.Place(f"NODE{rank}_IP", made.interface or f"NODE{rank}_INTERFACE")
        for rank in range(found.nnodes)
    }
    places[0] = places[0]._replace(ip=head or found.head or "HEAD_IP")
    if options.host_ip or own:
        places[found.rank] = places[found.rank]._replace(ip=options.host_ip or own)
    with contextlib.suppress(FixesError):
        here = preflight.place(found, head, options.host_ip or "", made.interface, own)
        places[found.rank] = here
    nodes = [
        plan.node(made._replace(interface=at.interface), rank, places[0].ip, at.ip, environ)
        for rank, at in places.items()
    ]
    if options.json:
        document = {"verb": "launch", "source": found.source, "rank": found.rank}
        each = [{**one._asdict(), "commands": [list(c) for c in one.commands]} for one in nodes]
        report.emit(json.dumps({**document, "nodes": each}, indent=2) + "\n")
        return ExitCode.OK
    for one in nodes:
        mark = ", this one" if one.rank == found.rank else ""
        report.emit(f"node {one.rank} ({one.role}{mark})\n")
        for name, value in one.environment.items():
            report.emit(f"  {name}={shlex.quote(value)}\n")
        for command in one.commands:
            report.emit(f"  {shlex.join(command)}\n")
    return ExitCode.OK


def _say_as(who: str, text: str) -> None:
    report.emit(f"{time.strftime('%H:%M:%S')} vllm-fixes {who}: {text}\n", error=True)
