"""A node's life in one event loop: meet the others, run the engine, answer probes, end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Mapping
from types import FrameType
from typing import NamedTuple

from fixes.errors import ExitCode, FixesError, Problem
from fixes.launch import health, keeper, plan, processes, scratch
from fixes.launch.events import Kept, Signalled
from fixes.launch.keeper import BEAT, SILENCE, Keeper
from fixes.launch.link import Card, Link, Say
from fixes.launch.meeting import Head, Worker
from fixes.launch.plan import Settings
from fixes.launch.watch import Ending, Watch

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Terms(NamedTuple):
    """What a node's life is bounded by. ``head`` is the head's address as given."""

    head: str
    watch_port: int
    token: bytes
    deadline: float
    grace: float


def live(made: Settings, card: Card, terms: Terms, environ: Mapping[str, str], say: Say) -> Ending:
    """Live one node's life. Raises FixesError where the replica does not come to be.

    Whatever ends it, nothing that it started is left. Once it is over signals change nothing
    any more; a start that failed may still be waited for, and is left by one.
    """
    folder = scratch.make(environ)
    environ = {**environ, scratch.VARIABLE: folder} if folder else environ
    kept = keeper.start(folder)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        return asyncio.run(_live(made, card, terms, environ, say, kept))
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    finally:
        processes.end_all()
        scratch.remove(folder)


async def _live(
    made: Settings,
    card: Card,
    terms: Terms,
    environ: Mapping[str, str],
    say: Say,
    kept: Keeper,
) -> Ending:
    link = _link(made, card, terms, say)
    _hand_on_signals(asyncio.get_running_loop(), link)
    await kept.open()
    link.keep(kept.listen(lambda said: link.events.put_nowait(Kept(said))))
    link.keep(_reap())
    state = _State(link)
    complete = None
    if card.rank == 0:
        where = health.endpoint(made, environ)
        complete = lambda: health.complete(where)  # noqa: E731
    probes = health.Health(card.rank, terms.watch_port, state.why, complete)
    if why := await probes.open():
        say(why)
    try:
        if isinstance(link, Head):
            await link.open(terms.watch_port)
        if isinstance(link, (Head, Worker)):
            if stopped := await _meet(link, terms.deadline):
                return Ending(stopped)
            say(f"the {made.nnodes} nodes agree")
        head = card.ip if card.rank == 0 else link.cards[0].ip
        node = plan.node(made, card.rank, head, card.ip, environ)
        state.watch = Watch(link, kept, node, terms.grace, say)
        environment = plan.child_environment(node, environ)
        return await state.watch.run(environment | plan.ray_token(made, terms.token, environ))
    finally:
        probes.close()
        await link.close()


async def _reap() -> None:
    """Reap the orphans of others, where this is a container's first process."""
    while True:
        processes.reap()
        await asyncio.sleep(BEAT)


def _hand_on_signals(loop: asyncio.AbstractEventLoop, link: Link) -> None:
    """Make events of signals.

    The loop's own handlers would go with the loop, and a signal that comes after it kill.
    """

    def arrived(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(link.events.put_nowait, Signalled(number))

    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, arrived)


def _link(made: Settings, card: Card, terms: Terms, say: Say) -> Link:
    if made.nnodes == 1:
        return Link(card, say)
    if card.rank == 0:
        return Head(card, made.nnodes, terms.token, say)
    return Worker(card, terms.head, terms.watch_port, terms.token, say)


async def _meet(link: Head | Worker, deadline: float) -> ExitCode:
    """Meet; the exit code where a signal says that it is not wanted any more, else OK.

    Raises FixesError: see the links, and where the keeper is gone.
    """
    others = asyncio.ensure_future(link.meet(deadline))
    event = asyncio.ensure_future(link.events.get())
    await asyncio.wait({others, event}, return_when=asyncio.FIRST_COMPLETED)
    if not event.done() or link.together:
        if event.done():
            link.events.put_nowait(event.result())  # it is the watch's
        event.cancel()
        await others
        return ExitCode.OK
    others.cancel()
    await asyncio.gather(others, return_exceptions=True)
    happened = event.result()
    if isinstance(happened, Signalled):
        interrupted = happened.number == signal.SIGINT
        return ExitCode.INTERRUPTED if interrupted else ExitCode.TERMINATED
    what = "the keeper, a process of this launcher, ended before there was anything to keep"
    raise FixesError(Problem(ExitCode.REPLICA_ENDED, "keeper-lost", what))


class _State:
    """What the probes are told."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.watch: Watch | None = None

    def why(self, asked: str) -> str:
        """Why this node is not live, or not ready, or nothing. One that waits is live."""
        if self.watch is None:
            return "" if asked == "live" else "the node waits for the others"
        if self.watch.phase != "running":
            return f"the node is {self.watch.phase}"
        now = time.monotonic()
        for rank in self._link.cards:
            heard = self._link.heard.get(rank)
            if rank != self._link.own.rank and (heard is None or now - heard > SILENCE):
                return f"{self._link.name(rank)} is not to be heard"
        return ""
