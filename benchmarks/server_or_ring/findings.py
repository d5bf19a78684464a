"""What the rows say: where the server saturates, where the ring wins, what elasticity saves."""

from __future__ import annotations

from result_files import Result

from server_or_ring.tables import MB, Results

MOST = 6
FEWER = 4
FEWEST = 2
LEVEL = 0.25
"""A speed-up has levelled off if it grows by at most this share of what the workers grow by."""


def findings(results: Results) -> str:
    """Return a list of sentences, each of figures of rows that are there; "" without any."""
    by = {(row.model, row.way, row.workers): result for row, result in results.items()}
    models = list(dict.fromkeys(row.model for row in results))
    lines = []
    for model in models:
        for sentence in (_traffic, _server, _ring, _elastic):
            try:
                lines.append(f"- {model}: {sentence(by, model)}")
            except KeyError:  # a row that it is about has not run
                continue
    lines += _levels_off(by, models)
    return "\n".join(lines)


Table = dict[tuple[str, str, int], Result]


def _speed(by: Table, model: str, way: str, workers: int) -> float:
    return float(by[model, way, workers]["speed_up"])


def _moved(by: Table, model: str, way: str, workers: int, host: str) -> float:
    """Return the 10^6 bytes of an iteration in and out of a host; of several, the mean."""
    hosts = by[model, way, workers]["hosts"]
    mine = [each for name, each in hosts.items() if name.startswith(host)]
    return sum(each["in_bytes"] + each["out_bytes"] for each in mine) / len(mine) / MB


def _traffic(by: Table, model: str) -> str:
    node, worker = (
        [_moved(by, model, way, workers, host) for workers in (FEWEST, MOST)]
        for way, host in (("server-sync", "node"), ("ring", "worker"))
    )
    return (
        f"from {FEWEST} to {MOST} workers the traffic of the synchronous server's node grows"
        f" {node[1] / node[0]:.1f} times ({node[0]:.0f} to {node[1]:.0f} MB an iteration, both"
        f" ways), that of a worker of the ring {worker[1] / worker[0]:.2f} times"
        f" ({worker[0]:.0f} to {worker[1]:.0f} MB; 2 (W - 1) / W would be 1.67 times)."
    )


def _server(by: Table, model: str) -> str:
    gained = {}
    for way in ("server-sync", "server-async"):
        gained[way] = (_speed(by, model, way, FEWER), _speed(by, model, way, MOST))
    sync, free = gained["server-sync"], gained["server-async"]
    return (
        f"from {FEWER} to {MOST} workers the speed-up of the synchronous server goes from"
        f" {sync[0]:.2f} to {sync[1]:.2f}, of the asynchronous one from {free[0]:.2f} to"
        f" {free[1]:.2f} ({MOST / FEWER:.2f} times as many workers)."
    )


def _levels_off(by: Table, models: list[str]) -> list[str]:
    """Judge the published "levels off by 6 workers"; empty without a row that it needs."""
    names = {"server-sync": "synchronous server", "server-async": "asynchronous server"}
    try:
        grown = {
            way: [_speed(by, each, way, MOST) / _speed(by, each, way, FEWER) for each in models]
            for way in (*names, "ring")
        }
    except KeyError:
        return []
    if not models:
        return []
    told = []
    for way, name in names.items():
        does = max(grown[way]) - 1 <= LEVEL * (MOST / FEWER - 1)
        span = f"{min(grown[way]):.2f} to {max(grown[way]):.2f}"
        told.append(f"that of the {name} {span} times: **{'holds' if does else 'does not'}**")
    ring = f"{min(grown['ring']):.2f} to {max(grown['ring']):.2f}"
    line = (
        f'- The published "levels off by {MOST} workers", taken as: at most {LEVEL:.0%} of what'
        f" {MOST / FEWER:.2f} times as many workers could add. From {FEWER} to {MOST} workers"
        f" the speed-up grows, over the models: {'; '.join(told)}. That of the ring grows"
        f" {ring} times."
    )
    return [line]


def _ring(by: Table, model: str) -> str:
    ring, ddp, sync = (_speed(by, model, way, MOST) for way in ("ring", "ddp", "server-sync"))
    better = "faster" if ring >= ddp else "slower"
    ratio = max(ring, ddp) / min(ring, ddp)
    return (
        f"with {MOST} workers RingAllReduce has {ring / sync:.1f} times the images/s of the"
        f" synchronous server, and is {ratio:.2f} times {better} than DDP over gloo, which sums"
        " during its backward pass."
    )


def _elastic(by: Table, model: str) -> str:
    easgd, free = by[model, "easgd", MOST], by[model, "server-async", MOST]
    sent = [each["hosts"]["node"]["in_bytes"] / MB for each in (easgd, free)]
    ddp = _speed(by, model, "ddp", MOST)
    return (
        f"with {MOST} workers EASGD with period 10 sends the node {sent[0]:.0f} MB an"
        f" iteration, the asynchronous server {sent[1]:.0f} MB; the speed-up of EASGD is"
        f" {easgd['speed_up']:.2f}, striped over two nodes"
        f" {_speed(by, model, 'easgd-striped', MOST):.2f}, that of HybridSGD"
        f" {_speed(by, model, 'hybrid', MOST):.2f} and of DDP {ddp:.2f}."
    )
