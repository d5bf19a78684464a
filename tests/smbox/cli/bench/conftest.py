"""One small lab for all rows of a test file: a node, a peer and boxes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from smbox.cli.bench import crowd, lab as bench_lab
from smbox.cli.bench.lab import Lab, Scale, open_lab

TINY = Scale(
    sizes=(4096, 1 << 20),
    big_nbytes=1 << 20,
    huge_nbytes=2 << 20,
    rounds=2,
    crowd_rounds=2,
    calls=20,
    crowd_s=0.05,
    memory="256MiB",
)


@pytest.fixture(autouse=True, scope="module")
def quick_programs(preloaded: str) -> Iterator[None]:
    """Start the nodes, peers and workers of the benchmark as forks, which takes less time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (bench_lab, crowd):
            patch.setattr(module, "sys", SimpleNamespace(executable=preloaded))
        yield


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with open_lab(TINY) as opened:
        yield opened
