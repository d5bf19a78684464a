"""The connected hosts of a run and their memory nodes, ended together."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from smbox_torch.launching import node_keeper, remote_host
from smbox_torch.launching.children import Child, forget
from smbox_torch.launching.cluster import Plan
from smbox_torch.launching.interrupts import held
from smbox_torch.launching.local_host import LocalHost, StartingHost
from smbox_torch.launching.node_keeper import NodeKeeper
from smbox_torch.launching.remote_host import RemoteHost


@dataclass
class Serving:
    """The hosts and memory nodes that exist while workers run.

    Attributes:
        hosts: hosts of the plan, in its order; one if all nodes are simulated on this host.
        agents: local processes that connect to the hosts.
        nodes: memory nodes that were started.
        address: address of all memory nodes.
    """

    hosts: Sequence[StartingHost]
    agents: Sequence[Child]
    nodes: list[NodeKeeper] = field(default_factory=list)
    address: str = ""

    def take_ends(self, ended: Sequence[Any], selector: selectors.BaseSelector) -> None:
        """Restart memory nodes that have ended; record hosts that are lost.

        Raises:
            ConnectError: a node was stopped or died too often, or its host is lost.
        """
        for agent in self.agents:
            if agent in ended and agent.reap():  # its processes have ended too
                forget(selector, agent)
        for node in self.nodes:
            if node.child in ended and node.child.reap():
                node.restart(selector)


@contextmanager
def serving(
    plan: Plan, env: Mapping[str, str], note: Callable[[str], None]
) -> Iterator[Serving]:
    """Connect to all hosts and start the memory nodes; end them after the block.

    Args:
        plan: plan of the run.
        env: environment of the memory nodes; also sent to the hosts.
        note: called with lines to show.

    Raises:
        ConnectError: a host cannot be reached, or a memory node did not start.
        ConfigError: a host lacks the folder or command, or a node refused its arguments.
            Nothing is left in either case.
    """
    with ExitStack() as ends:  # hosts are closed even if closing a node fails
        far: list[RemoteHost] = []
        ends.callback(remote_host.close_all, far, plan.grace_s)
        for host in plan.hosts:
            words = plan.command if host.workers else ()
            with held():  # an interrupt in between would leave the process running
                far.append(RemoteHost(host, words, env, plan.grace_s, note))
        for each in far:
            each.await_ready()
        hosts: Sequence[StartingHost] = far or [LocalHost(plan.command)]
        serving = Serving(hosts, [each.agent for each in far], address=plan.address or "")
        ends.callback(node_keeper.close_all, serving.nodes, plan.grace_s)
        for node_id, index in enumerate(plan.memory_hosts):
            with held():
                serving.nodes.append(NodeKeeper(plan, hosts[index], env, note, node_id))
        for node in serving.nodes:
            node.await_ready()
        if serving.nodes:
            serving.address = ",".join(node.address for node in serving.nodes)
        yield serving
