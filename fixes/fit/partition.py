"""Layers over stages: vLLM's default, and the most even split that holds what is asked for."""

from __future__ import annotations

from collections.abc import Callable

#: Whether a stage may have the layers from ``start`` to before ``end``.
Holds = Callable[[int, int, int], bool]


def default(layers: int, stages: int) -> tuple[int, ...]:
    """As vLLM does (``get_pp_indices``, alike in all releases from 0.26.0 to 0.33.0): what is
    left over goes to the stages before the last, one each, counted from the end.
    """
    found = [layers // stages] * stages
    for at in range(2, layers % stages + 2):
        found[-at] += 1
    return tuple(found)


def closest(layers: int, stages: int, holds: Holds) -> tuple[int, ...] | None:
    """The partition that differs least from the default, of all that hold; None if none does.

    Every stage has a layer. By dynamic programming over the layers that the first stages have.
    """
    wanted = default(layers, stages)
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(stages):
        left = stages - stage - 1
        reached: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (cost, before) in best.items():
            for end in range(start + 1, layers - left + 1):
                if not holds(stage, start, end):
                    break  # nor does it hold more of them
                if left == 0 and end < layers:
                    continue
                price = cost + (end - start - wanted[stage]) ** 2
                if end not in reached or price < reached[end][0]:
                    reached[end] = (price, (*before, end - start))
        best = reached
    return best[layers][1] if layers in best else None
