"""Turns of ways: a neighbour who slows the machine down for a while slows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def in_turns(
    ways: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: int = 0
) -> dict[str, list[float]]:
    """Let every way have its turn in each round; every second round runs backwards.

    Args:
        ways: what to measure, each returns its figure.
        rounds: that count.
        warm_up: rounds before them.

    Returns:
        The figures of each way, by round.
    """
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(warm_up + rounds):
        for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            figure = ways[name]()
            if number >= warm_up:
                found[name].append(figure)
    return found
