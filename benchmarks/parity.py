"""What `parity` measures of streams whose rate is known: 8 at once, 2,000 tokens a second each.

The server is a process of its own and notes how fast it really sent each stream. Budget: the
median of the measured rates is within 2 % of the median of the true ones.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from typing import Any

from timing import CHECKOUT

STREAMS, RATE, TOKENS, ROUNDS = 8, 2000, 4000, 5
SERVER = f"""
import json, sys
sys.path.insert(0, {str(CHECKOUT / "tests")!r})
from scripted import Scripted
with Scripted(rate={RATE}, usage="total") as server:
    print(server.port, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.truth), flush=True)
        server.truth.clear()
"""


async def measured(url: str) -> Any:
    """One round of streams, as the verb measures them."""
    from fixes.parity import speed
    from fixes.parity.client import Endpoint
    from fixes.parity.facts import COMPLETIONS
    from fixes.parity.legs import uncollected
    from fixes.parity.sse import timeline

    body = {"model": "small", **speed.body([1, 2, 3], TOKENS)}
    async with Endpoint(url) as endpoint:
        asked = [endpoint.stream(COMPLETIONS, body) for _ in range(STREAMS)]
        with uncollected():
            reads = await asyncio.gather(*asked)
    return speed.Round("server", STREAMS, 1, tuple(timeline(one, TOKENS, 3) for one in reads))


def main() -> None:
    """Print measured and true rates, round by round."""
    sys.path.insert(0, str(CHECKOUT))
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin and server.stdout
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        ratios = []
        for _ in range(ROUNDS):
            found = statistics.median(asyncio.run(measured(url)).decode)
            server.stdin.write("\n")
            server.stdin.flush()
            truth = statistics.median(json.loads(server.stdout.readline()))
            ratios.append(found / truth)
            print(f"{STREAMS} streams: measured {found:.1f} tok/s, sent {truth:.1f} tok/s")
        server.stdin.close()
    print(f"ratio: median {statistics.median(ratios):.4f}, budget 0.98 to 1.02")


if __name__ == "__main__":
    main()
