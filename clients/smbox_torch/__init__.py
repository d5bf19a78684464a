"""PyTorch on smbox: published algorithms of distributed training as optimizer wrappers.

Every algorithm is one file and wraps a ``torch.optim.Optimizer``; the training loop stays as it
is. Importing this package also makes torch tensors arrays for every verb of smbox. PyTorch is
imported with the first name that needs it: a launcher (``smbox run``) does without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from smbox.array import register_adapter
from smbox_torch import needed  # noqa: F401 - first: it says what is missing

if TYPE_CHECKING:  # the same names as _HOMES, for checkers and editors
    from smbox_torch.adapter import as_array
    from smbox_torch.adownpour import ADownpour
    from smbox_torch.connecting import connect
    from smbox_torch.dogwild import Dogwild
    from smbox_torch.downpour import Downpour
    from smbox_torch.eamsgd import EAMSGD
    from smbox_torch.easgd import EASGD
    from smbox_torch.easgd_sync import SyncEASGD
    from smbox_torch.elastic import StabilityWarning
    from smbox_torch.flat import FlatParameters
    from smbox_torch.hogwild import Hogwild
    from smbox_torch.hogwild_pp import HogwildPP
    from smbox_torch.hybrid import HybridSGD
    from smbox_torch.mdownpour import MDownpour
    from smbox_torch.mvadownpour import MVADownpour
    from smbox_torch.parameter_server import ParameterServer
    from smbox_torch.pipeline import Pipeline
    from smbox_torch.publishing import Publisher
    from smbox_torch.ring_all_reduce import RingAllReduce
    from smbox_torch.sampling import distributed_sampler
    from smbox_torch.sandblaster import Sandblaster, SandblasterStep
    from smbox_torch.sandblaster_worker import SandblasterWorker
    from smbox_torch.scalars import Scalars
    from smbox_torch.seasgd import SEASGD
    from smbox_torch.server_downpour import ServerDownpour
    from smbox_torch.ssp import SSP
    from smbox_torch.stats import Stats
    from smbox_torch.stopping import Stopping
    from smbox_torch.subscribing import Subscriber
    from smbox_torch.sync_group import SyncGroup
    from smbox_torch.topology import Topology
    from smbox_torch.torch_group import CommunicationWarning
    from smbox_torch.wrapper import BoxOptimizer

__all__ = [
    "EAMSGD",
    "EASGD",
    "SEASGD",
    "SSP",
    "ADownpour",
    "BoxOptimizer",
    "CommunicationWarning",
    "Dogwild",
    "Downpour",
    "FlatParameters",
    "Hogwild",
    "HogwildPP",
    "HybridSGD",
    "MDownpour",
    "MVADownpour",
    "ParameterServer",
    "Pipeline",
    "Publisher",
    "RingAllReduce",
    "Sandblaster",
    "SandblasterStep",
    "SandblasterWorker",
    "Scalars",
    "ServerDownpour",
    "StabilityWarning",
    "Stats",
    "Stopping",
    "Subscriber",
    "SyncEASGD",
    "SyncGroup",
    "Topology",
    "as_array",
    "connect",
    "distributed_sampler",
]

_HOMES: Final = {
    "EAMSGD": "eamsgd",
    "EASGD": "easgd",
    "SEASGD": "seasgd",
    "SSP": "ssp",
    "ADownpour": "adownpour",
    "BoxOptimizer": "wrapper",
    "CommunicationWarning": "torch_group",
    "Dogwild": "dogwild",
    "Downpour": "downpour",
    "FlatParameters": "flat",
    "Hogwild": "hogwild",
    "HogwildPP": "hogwild_pp",
    "HybridSGD": "hybrid",
    "MDownpour": "mdownpour",
    "MVADownpour": "mvadownpour",
    "ParameterServer": "parameter_server",
    "Pipeline": "pipeline",
    "Publisher": "publishing",
    "RingAllReduce": "ring_all_reduce",
    "Sandblaster": "sandblaster",
    "SandblasterStep": "sandblaster",
    "SandblasterWorker": "sandblaster_worker",
    "Scalars": "scalars",
    "ServerDownpour": "server_downpour",
    "StabilityWarning": "elastic",
    "Stats": "stats",
    "Stopping": "stopping",
    "Subscriber": "subscribing",
    "SyncEASGD": "easgd_sync",
    "SyncGroup": "sync_group",
    "Topology": "topology",
    "as_array": "adapter",
    "connect": "connecting",
    "distributed_sampler": "sampling",
}
"""Module of each public name."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})


def _first_tensor(tensor: Any) -> Any:
    """View the first tensor as an array; later ones take the adapter without a detour."""
    adapter = import_module("smbox_torch.adapter")
    adapter.register()
    return adapter.as_array(tensor)


register_adapter("torch.Tensor", _first_tensor)
