"""The schedule of a chaos run: kills, pauses and the checks at the end."""

from __future__ import annotations

import math
import random
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from smbox.address import OFFSET_MAX
from smbox.connecting import connect
from smbox.memory.layout import Stripe, name_of
from smbox.memory.mapped import MappedRegion
from smbox.memory.segment import listing
from smbox.testing.chaos import plan
from smbox.testing.chaos.commit_watch import catch
from smbox.testing.chaos.log import count_records, read_logs
from smbox.testing.chaos.processes import ClientRole, NodeRole, Role
from smbox.testing.chaos.proxy import Proxy
from smbox.testing.chaos.verdict import Verdict, judge
from smbox.testing.chaos.worker import REGION, TIMEOUT_S

POLL_S: Final = 0.02
REPORT_S: Final = 60.0
STALL_S: Final = 2 * TIMEOUT_S
DEAD_S_MAX: Final = 0.3
PAUSE_S_MAX: Final = 1.0
AIMED_SHARE: Final = 0.5

STRIKES_PER_MINUTE: Final = 75  # 1,500 in 20 minutes
KILLS_INSIDE_PER_MINUTE: Final = 2
OPERATIONS_PER_MINUTE: Final = 4_000

FATES: Final = {
    "node kill": 3,
    "local client kill": 2,
    "remote client kill": 2,
    "link cut": 3,
    "link pause": 1,
    "client pause": 1,
    "node pause": 1,
}
"""What may happen, and how often beside the others."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much chaos; a run ends when all are reached.

    Attributes:
        seed: of the schedule and of the clients' choices.
        operations: acknowledged changes.
        strikes: kills, cuts and pauses.
        kills: of these, kills and cuts.
        kills_inside: of these, kills of a process that was inside a native commit.
        seconds: of the run.
        pace: acknowledged changes of the remote clients between two fates, on average.
    """

    seed: int
    operations: int = 0
    strikes: int = 0
    kills: int = 0
    kills_inside: int = 0
    seconds: float = 0.0
    pace: int = 60

    @classmethod
    def of_minutes(cls, seed: int, minutes: float) -> Self:
        """Ask for a run of so many minutes, and for as much in them."""
        return cls(
            seed,
            operations=math.ceil(OPERATIONS_PER_MINUTE * minutes),
            strikes=math.ceil(STRIKES_PER_MINUTE * minutes),
            kills_inside=math.ceil(KILLS_INSIDE_PER_MINUTE * minutes),
            seconds=60 * minutes,
            pace=20,
        )


def _ignore(_: str) -> None:
    """Report nothing."""


class Harness:
    """One run.

    Args:
        settings: how much.
        folder: for logs and the node's socket.
        report: is called with a line about the progress, at the start and each minute.
    """

    def __init__(
        self, settings: Settings, folder: Path, report: Callable[[str], None] = _ignore
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._rng = random.Random(settings.seed)
        self._verdict = Verdict(settings.seed)
        self._node = NodeRole(f"chaos-{secrets.token_hex(4)}", folder)
        self._proxy = Proxy(self._node.path)
        self._clients: list[ClientRole] = []
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._records = 0
        self._next_strike = settings.pace
        self._moved_s = 0.0
        self._report = report
        self._next_report_s = 0.0

    def run(self) -> Verdict:
        """Run to the end, take everything down, and judge."""
        begun_s = time.monotonic()
        with ExitStack() as stack:
            stack.callback(self._kill_all)
            stack.enter_context(self._proxy)
            self._start_all()
            while not self._is_over(passed_s := time.monotonic() - begun_s):
                self._report_progress(passed_s)
                self._check_processes()
                time.sleep(POLL_S)
            self._end_all()
        self._verdict.seconds = time.monotonic() - begun_s
        left = listing(name_of(self._node.node))
        self._verdict.faults += [f"left in /dev/shm: {left}"] if left else []
        return self._verdict

    def _start_all(self) -> None:
        self._node.start_and_wait()
        with connect(self._node.address, transport="ipc", timeout_s=TIMEOUT_S) as box:
            box.create(REGION, plan.COUNT, "int64")
        ways = [(self._node.address, "shm")] * 2 + [(self._proxy.address, "tcp")] * 2
        for client, (address, transport) in enumerate(ways):
            seed = self._settings.seed
            role = ClientRole(client, address, transport, self._folder, seed)
            self._clients.append(role)
            role.start()
        self._moved_s = time.monotonic()

    def _report_progress(self, passed_s: float) -> None:
        if passed_s < self._next_report_s:
            return
        self._next_report_s += REPORT_S
        found = self._verdict
        self._report(
            f"{passed_s / 60:.1f} of {self._settings.seconds / 60:.1f} minutes:"
            f" {self._records // 2} operations, {found.strikes} strikes,"
            f" {found.kills_inside} kills inside a native commit"
        )

    def _is_over(self, passed_s: float) -> bool:
        if self._verdict.faults:
            return True
        wanted, found = self._settings, self._verdict
        return (
            self._records // 2 >= wanted.operations
            and found.strikes >= wanted.strikes
            and found.kills >= wanted.kills
            and found.kills_inside >= wanted.kills_inside
            and passed_s >= wanted.seconds
        )

    def _check_processes(self) -> None:
        """Do what is due, see that all live that should, and strike when it is time."""
        self._do_due(time.monotonic())
        failed = [role.failed() for role in (self._node, *self._clients)]
        self._verdict.faults += [each for each in failed if each is not None]
        records, remote = count_records(self._folder), count_records(self._folder, first=2)
        if records != self._records:
            self._records, self._moved_s = records, time.monotonic()
        elif time.monotonic() > self._moved_s + STALL_S:
            self._verdict.faults.append(f"nothing moved for {STALL_S:.0f} s")
        if remote // 2 >= self._next_strike:
            pace = self._settings.pace
            self._next_strike = remote // 2 + self._rng.randrange(pace // 2, 3 * pace // 2)
            self._strike()

    def _do_due(self, now_s: float) -> None:
        due = [action for due_s, action in self._due if due_s <= now_s]
        self._due = [each for each in self._due if each[0] > now_s]
        for action in due:
            action()

    def _strike(self) -> None:
        fate = self._rng.choices(list(FATES), list(FATES.values()))[0]
        whom, _, what = fate.rpartition(" ")
        seconds = self._rng.uniform(0, PAUSE_S_MAX if what == "pause" else DEAD_S_MAX)
        if whom == "link":
            done = (
                self._proxy.cut(self._rng)
                if what == "cut"
                else self._proxy.hold(self._rng, seconds)
            )
        else:
            done = self._strike_role(self._pick(whom), what, seconds)
        self._verdict.fates[fate] += done

    def _pick(self, whom: str) -> Role:
        remote = self._rng.randrange(2)
        client = self._clients[2 * (whom == "remote client") + remote]
        if whom == "client":
            client = self._rng.choice(self._clients)
        return self._node if whom == "node" else client

    def _strike_role(self, role: Role, what: str, seconds: float) -> bool:
        """Kill or pause, to be undone later; False where that cannot be done now.

        Half of the time inside a commit, if it can be caught there.
        """
        if role.process is None or (what == "kill" and role.is_immortal):
            return False
        if self._rng.random() < AIMED_SHARE:
            is_inside = catch(self._node.node, role.process.pid, self._rng)
            self._verdict.kills_inside += is_inside and what == "kill"
            self._verdict.pauses_inside += is_inside and what == "pause"
        later_s = time.monotonic() + seconds
        if what == "kill":
            role.kill()
            self._due.append((later_s, role.start))
        else:
            role.send(signal.SIGSTOP)
            self._due.append((later_s, lambda: role.send(signal.SIGCONT)))
        return True

    def _end_all(self) -> None:
        """Let all end, and compare the region with what was logged."""
        self._do_due(float("inf"))
        ends = [role.stop() for role in self._clients]
        logs = read_logs(self._folder)
        self._verdict.operations = sum(len(log.acknowledged) for log in logs.values())
        with (
            connect(self._node.address, transport="ipc", timeout_s=TIMEOUT_S) as remote,
            connect(self._node.address, transport="shm", timeout_s=TIMEOUT_S) as local,
        ):
            region = remote.attach(REGION)
            contents, counts = region.get(), self._counts(int(region.address))
            if not np.array_equal(contents, local.attach(REGION).get()):
                ends.append("the node and the memory differ")
        ends.append(self._node.stop())
        self._verdict.faults += [each for each in ends if each is not None]
        self._verdict.faults += judge(contents, counts, logs)

    def _counts(self, address: int) -> list[int]:
        """Return how many commits each stripe of the region counts."""
        mapped = MappedRegion.attach(self._node.node, address & OFFSET_MAX)
        words: list[int] = mapped.table[:, Stripe.SEQUENCE].tolist()
        return [word >> Stripe.COMMITS_SHIFT for word in words]

    def _kill_all(self) -> None:
        for role in (*self._clients, self._node):
            role.kill()


def run(settings: Settings, report: Callable[[str], None] = _ignore) -> Verdict:
    """Run in a folder of its own, which is kept if something was wrong; see ``Harness``."""
    folder = Path(tempfile.mkdtemp(prefix="smbox-chaos-"))
    verdict = Harness(settings, folder, report).run()
    if verdict.faults:
        verdict.faults.append(f"logs are in {folder}")
    else:
        shutil.rmtree(folder)
    return verdict
