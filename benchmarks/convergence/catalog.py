"""All rows of the comparison, in the order of the report.

Rows called "defaults" give their class nothing but what it demands. Learning rates were chosen
by short searches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rows import Row, Scenario

CLASSES, PERIODS, WORKERS, CROWDS, NORMED, SCENARIOS = (
    "Every class",
    "Periods",
    "Number of workers",
    "Crowds of 16",
    "A network with batch norm",
    "Slow, killed and joining workers",
)
TABLES = (CLASSES, PERIODS, WORKERS, CROWDS, NORMED, SCENARIOS)

ELASTIC_LR, PUSHING_LR, MOMENTUM = 0.02, 0.005, 0.9
PLAIN_ONE_LR, PLAIN_ELASTIC_LR, PLAIN_PUSHING_LR = 0.1, 0.1, 0.03
SWEPT_PERIODS = (1, 4, 16, 64)
SWEPT_WORKERS = (2, 8)
FEW = 0.25
RESNET_PART = 1.0 / 3.0
LEAST_RATE = 3
"""Version of rows with the default moving rate, since that is 0.45."""
EACH_STEP = 5
"""Version of rows with the default period of elastic averaging, since that is 1."""
SSP_TIMEOUT_S = 60.0
"""A worker that waits longer for a killed one gives up; the default of 300 s tells no more."""


def _baselines() -> list[Row]:
    return [
        Row("one", "one process", CLASSES, "one", ELASTIC_LR, workers=1, batch=32),
        Row(
            "one-plain",
            "one process, no momentum",
            CLASSES,
            "one",
            PLAIN_ONE_LR,
            workers=1,
            batch=32,
            momentum=0.0,
        ),
        Row("ddp", "DDP, gloo", CLASSES, "ddp", ELASTIC_LR),
    ]


def _defaults() -> list[Row]:
    """Return a row for every class, with its defaults."""

    def row(kind: str, title: str, lr: float, **more: Any) -> Row:
        return Row(kind.replace("_", "-"), f"{title}, defaults", CLASSES, kind, lr, **more)

    return [
        row("sync", "SyncGroup", ELASTIC_LR),
        row("server", "ParameterServer", ELASTIC_LR),
        row("ring", "RingAllReduce", ELASTIC_LR),
        row("easgd", "EASGD", ELASTIC_LR, version=EACH_STEP),
        row("easgd_sync", "SyncEASGD", ELASTIC_LR, version=EACH_STEP),
        row("seasgd", "SEASGD", ELASTIC_LR),
        row("eamsgd", "EAMSGD", ELASTIC_LR, momentum=0.0, version=EACH_STEP),
        row("downpour", "Downpour", PUSHING_LR),
        row("adownpour", "ADownpour", PUSHING_LR),
        row("mvadownpour", "MVADownpour", PUSHING_LR),
        row("mdownpour", "MDownpour", 0.0005, momentum=0.0),
        row("server_downpour", "ServerDownpour", 0.01, momentum=0.0),
        row("ssp", "SSP", PUSHING_LR),
        row("hogwild", "Hogwild", PUSHING_LR),
        row("hogwild_pp", "HogwildPP, 2 clusters", PUSHING_LR, options={"clusters": 2}),
        row("dogwild", "Dogwild", PUSHING_LR),
        row("hybrid", "HybridSGD 2 x 2", ELASTIC_LR, nodes=2, version=EACH_STEP),
    ]


def _overlapped() -> list[Row]:
    def row(kind: str, title: str, **more: Any) -> Row:
        return Row(
            f"{kind}-overlap",
            f"{title}, overlapped",
            CLASSES,
            kind,
            ELASTIC_LR,
            options={"overlap": True},
            version=EACH_STEP,
            **more,
        )

    return [row("easgd", "EASGD"), row("hybrid", "HybridSGD 2 x 2", nodes=2)]


def _swept(kind: str, title: str, lr: float, **more: Any) -> list[Row]:
    """Return rows of one algorithm over periods, and over workers at period 4."""
    name = kind if more.get("momentum", MOMENTUM) or kind == "eamsgd" else f"{kind}-plain"
    own = {"momentum": MOMENTUM} if kind == "eamsgd" else {}

    def options(period: int) -> dict[str, Any]:
        steps = (
            {"n_push": period, "n_fetch": period} if kind == "downpour" else {"period": period}
        )
        return own | steps

    periods = [
        Row(
            f"{name}-{period}",
            f"{title}, period {period}",
            PERIODS,
            kind,
            lr,
            options=options(period),
            **more,
        )
        for period in SWEPT_PERIODS
    ]
    workers = [
        Row(
            f"{name}-4-of-{count}",
            f"{title}, {count} workers",
            WORKERS,
            kind,
            # What Downpour's workers push adds up: the sum is to move as fast.
            lr * 4 / count if kind == "downpour" else lr,
            workers=count,
            options=options(4),
            **more,
        )
        for count in SWEPT_WORKERS
    ]
    return periods + workers


def _sweeps() -> list[Row]:
    return [
        *_swept("easgd", "EASGD, no momentum", PLAIN_ELASTIC_LR, momentum=0.0),
        *_swept("easgd", "EASGD", ELASTIC_LR, version=LEAST_RATE),
        Row(
            "hybrid-10",
            "HybridSGD 2 x 2, period 10",
            PERIODS,
            "hybrid",
            ELASTIC_LR,
            nodes=2,
            options={"period": 10},
        ),
        *_swept("eamsgd", "EAMSGD", ELASTIC_LR, momentum=0.0),
        *_swept("downpour", "Downpour, no momentum", PLAIN_PUSHING_LR, momentum=0.0),
        *_swept("downpour", "Downpour", PUSHING_LR),
    ]


def _crowds() -> list[Row]:
    """Return 16 workers over tcp, as ShmCaffe's, and one process on as many samples."""
    shmcaffe = {"period": 1, "moving_rate": 0.2}

    def row(
        name: str, title: str, kind: str, nodes: int, options: dict[str, Any], version: int = 1
    ) -> Row:
        return Row(
            f"{name}-crowd",
            f"{title}, 16 workers",
            CROWDS,
            kind,
            ELASTIC_LR,
            workers=16,
            nodes=nodes,
            part=FEW,
            options=options,
            version=version,
        )

    return [
        replace(_baselines()[0], name="one-few", table=CROWDS, part=FEW),
        row("seasgd", "SEASGD, rate 0.2", "seasgd", 16, shmcaffe),
        row("easgd", "EASGD, rate 0.2", "easgd", 16, shmcaffe),
        row("easgd-defaults", "EASGD, defaults", "easgd", 16, {}, EACH_STEP),
        row("hybrid", "HybridSGD 4 x 4, rate 0.2", "hybrid", 4, shmcaffe),
    ]


def _normed() -> list[Row]:
    """Return rows of a ResNet, whose batch-norm statistics are exchanged too."""

    def row(name: str, title: str, kind: str = "", **more: Any) -> Row:
        return Row(
            f"resnet-{name}",
            f"ResNet, {title}",
            NORMED,
            kind or name,
            ELASTIC_LR,
            **{"batch": 16, "part": RESNET_PART, "network": "resnet"} | more,
        )

    return [
        row("one", "one process", workers=1, batch=64),
        row("sync", "SyncGroup"),
        row("easgd", "EASGD, defaults", version=EACH_STEP),
        row("easgd-4", "EASGD, period 4", "easgd", options={"period": 4}),
        row("downpour", "Downpour, defaults"),
        row("hybrid", "HybridSGD 2 x 2, defaults", nodes=2, version=EACH_STEP),
        row(
            "hybrid-10", "HybridSGD 2 x 2, period 10", "hybrid", nodes=2, options={"period": 10}
        ),
    ]


def _scenarios() -> list[Row]:
    """Return four algorithms side by side, undisturbed and in every scenario they can be in."""
    sides = [
        Row("sync", "SyncGroup", SCENARIOS, "sync", ELASTIC_LR),
        Row("easgd", "EASGD", SCENARIOS, "easgd", ELASTIC_LR, version=EACH_STEP),
        Row("ssp", "SSP", SCENARIOS, "ssp", PUSHING_LR, options={"timeout_s": SSP_TIMEOUT_S}),
        Row(
            "hybrid",
            "HybridSGD 2 x 2",
            SCENARIOS,
            "hybrid",
            ELASTIC_LR,
            nodes=2,
            version=EACH_STEP,
        ),
    ]
    names: dict[Scenario, str] = {
        "none": "undisturbed",
        "slow": "one 4 x slower",
        "killed": "one killed",
        "joining": "one joining",
    }
    return [
        replace(
            row,
            name=f"{row.name}-{'undisturbed' if scenario == 'none' else scenario}",
            title=f"{row.title}, {words}",
            scenario=scenario,
            part=FEW,
        )
        for scenario, words in names.items()
        for row in sides
        if (row.kind, scenario) != ("sync", "joining")  # its group has a fixed size
    ]


ROWS = {
    row.name: row
    for row in (
        *_baselines(),
        *_defaults(),
        *_overlapped(),
        *_sweeps(),
        *_crowds(),
        *_normed(),
        *_scenarios(),
    )
}

BASELINES = {
    CLASSES: "one",
    PERIODS: "one",
    WORKERS: "one",
    CROWDS: "one-few",
    NORMED: "resnet-one",
    SCENARIOS: "one-few",
}
"""What the rows of a table are compared with, over equal samples."""


def baseline_of(row: Row) -> str:
    """Return the name of the row that a row is compared with: as many samples, one process.

    Rows without any momentum are compared with one process without momentum.
    """
    has_momentum = row.momentum or row.kind in {"eamsgd", "mdownpour", "server_downpour"}
    if BASELINES[row.table] == "one" and not has_momentum:
        return "one-plain"
    return BASELINES[row.table]
