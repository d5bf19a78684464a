"""The settings of a plan, read from a TOML file. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from smbox import toml
from smbox.errors import ConfigError
from smbox_torch.planning.methods import METHODS, Setup
from smbox_torch.planning.rates import Rates

__all__ = ["File", "read"]

FLOAT32: Final = 4
COUNT_MAX: Final = 1_000_000
PARAMETERS_MAX: Final = 10**15
LATENCY_MS_MAX: Final = 1e6
RATE_MIN, RATE_MAX = 1e-6, 1e9
"""Limit of rates and times, far beyond real hardware, so that all results are finite."""


class ModelTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[model]``.

    Attributes:
        batch: images of one worker's iteration.
        name: name of a torchvision model; or
        parameters: number of parameters.
        compute_s: seconds of the forward and backward pass of a batch; None: measure them.
    """

    batch: int
    name: str | None = None
    parameters: int | None = None
    compute_s: float | None = None


class NetworkTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[network]``.

    Attributes:
        link_mbit: rate of every host's link, each way, in 10^6 bit/s.
        latency_ms: latency of a message between two hosts.
    """

    link_mbit: float
    latency_ms: float = 0.0


class NodeTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[node]``.

    Attributes:
        rate_gbytes: rate of a memory node that no link limits, both directions together, in
            10^9 bytes/s.
        nodes: number of nodes over which easgd-striped spreads its center.
    """

    rate_gbytes: float = 1.0
    nodes: int = 2


class PlanTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[plan]``.

    Attributes:
        workers: numbers of workers.
        methods: names of training methods.
        period: iterations between two elastic exchanges.
        per_host: number of workers on a host, for hybrid.
    """

    workers: tuple[int, ...] = (2, 4, 6, 10, 20, 50, 100, 200, 500, 1000)
    methods: tuple[str, ...] = tuple(METHODS)
    period: int = 10
    per_host: int = 2


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entire file."""

    model: ModelTable
    network: NetworkTable
    node: NodeTable = NodeTable()
    plan: PlanTable = PlanTable()

    def rates(self) -> Rates:
        """Return the rates of links and nodes."""
        network = self.network
        return Rates(network.link_mbit, network.latency_ms / 1e3, self.node.rate_gbytes)

    def setups(self, parameters: int, compute_s: float) -> list[Setup]:
        """Return the setups to predict, one for each number of workers."""
        return [
            Setup(
                workers,
                float(FLOAT32 * parameters),
                compute_s,
                period=self.plan.period,
                nodes=self.node.nodes,
                per_host=self.plan.per_host,
            )
            for workers in self.plan.workers
        ]


def read(text: bytes, *, is_measured: bool) -> File:
    """Read the text of a TOML file.

    Args:
        text: text of the file.
        is_measured: the compute time will be measured.

    Raises:
        ConfigError: the text is not TOML, has unknown fields or invalid values.
    """
    file = toml.decode(text, File, "this is not a plan (docs/planner.md)")
    _check_model(file.model, is_measured=is_measured)
    _check_rate("link_mbit", file.network.link_mbit)
    _check_rate("rate_gbytes", file.node.rate_gbytes)
    _check_number("latency_ms", file.network.latency_ms, 0.0, LATENCY_MS_MAX)
    _check_plan(file)
    return file


def _check_model(model: ModelTable, *, is_measured: bool) -> None:
    if (model.name is None) == (model.parameters is None):
        raise ConfigError(
            "[model] needs either name (of a torchvision model) or parameters (a number)"
        )
    if is_measured and model.name is None:
        raise ConfigError("--measure needs the name of a torchvision model in [model]")
    if is_measured and model.compute_s is not None:
        raise ConfigError("compute_s is given: remove it from [model] to use --measure")
    if not is_measured:
        if model.compute_s is None:
            raise ConfigError("[model] has no compute_s: give it, or measure it with --measure")
        _check_rate("compute_s", model.compute_s)
    _check_number("batch", model.batch, 1, COUNT_MAX)
    if model.parameters is not None:
        _check_number("parameters", model.parameters, 1, PARAMETERS_MAX)


def _check_plan(file: File) -> None:
    plan = file.plan
    _check_number("nodes", file.node.nodes, 1, COUNT_MAX)
    _check_number("period", plan.period, 1, COUNT_MAX)
    _check_number("per_host", plan.per_host, 1, COUNT_MAX)
    for workers in plan.workers or (0,):
        _check_number("each of workers", workers, 1, COUNT_MAX)
    unknown = [method for method in plan.methods if method not in METHODS]
    if unknown or not plan.methods:
        raise ConfigError(f"methods must be some of {', '.join(METHODS)}", unknown=unknown)


def _check_rate(name: str, value: float) -> None:
    _check_number(name, value, RATE_MIN, RATE_MAX)


def _check_number(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # also false for NaN
        raise ConfigError(f"{name} must be at least {least:g} and at most {most:g}")
