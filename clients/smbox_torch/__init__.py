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
    from smbox_torch.averaging.equal_gradients import EqualGradientsWarning
    from smbox_torch.averaging.parameter_server import ParameterServer
    from smbox_torch.averaging.ring_all_reduce import RingAllReduce
    from smbox_torch.averaging.sync_group import SyncGroup
    from smbox_torch.downpour.adownpour import ADownpour
    from smbox_torch.downpour.downpour import Downpour
    from smbox_torch.downpour.mdownpour import MDownpour
    from smbox_torch.downpour.mvadownpour import MVADownpour
    from smbox_torch.downpour.server_downpour import ServerDownpour
    from smbox_torch.downpour.ssp import SSP
    from smbox_torch.elastic.eamsgd import EAMSGD
    from smbox_torch.elastic.easgd import EASGD
    from smbox_torch.elastic.easgd_sync import SyncEASGD
    from smbox_torch.elastic.seasgd import SEASGD
    from smbox_torch.elastic.stability import StabilityWarning
    from smbox_torch.hogwild.dogwild import Dogwild
    from smbox_torch.hogwild.hogwild import Hogwild
    from smbox_torch.hogwild.hogwild_pp import HogwildPP
    from smbox_torch.hybrid.hybrid import HybridSGD
    from smbox_torch.model.flat import FlatParameters
    from smbox_torch.optimizer.scalars import Scalars
    from smbox_torch.optimizer.slow_exchange import SlowExchangeWarning
    from smbox_torch.optimizer.stats import Stats
    from smbox_torch.optimizer.torch_group import CommunicationWarning
    from smbox_torch.optimizer.wrapper import BoxOptimizer
    from smbox_torch.pipeline.pipeline import Pipeline
    from smbox_torch.publishing.publisher import Publisher
    from smbox_torch.publishing.subscriber import Subscriber
    from smbox_torch.sandblaster.sandblaster import Sandblaster, SandblasterStep
    from smbox_torch.sandblaster.worker import SandblasterWorker
    from smbox_torch.topology import Topology
    from smbox_torch.workers.connecting import connect
    from smbox_torch.workers.sampling import distributed_sampler
    from smbox_torch.workers.stopping import Stopping

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
    "EqualGradientsWarning",
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
    "SlowExchangeWarning",
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
    "EAMSGD": "elastic.eamsgd",
    "EASGD": "elastic.easgd",
    "SEASGD": "elastic.seasgd",
    "SSP": "downpour.ssp",
    "ADownpour": "downpour.adownpour",
    "BoxOptimizer": "optimizer.wrapper",
    "CommunicationWarning": "optimizer.torch_group",
    "Dogwild": "hogwild.dogwild",
    "Downpour": "downpour.downpour",
    "EqualGradientsWarning": "averaging.equal_gradients",
    "FlatParameters": "model.flat",
    "Hogwild": "hogwild.hogwild",
    "HogwildPP": "hogwild.hogwild_pp",
    "HybridSGD": "hybrid.hybrid",
    "MDownpour": "downpour.mdownpour",
    "MVADownpour": "downpour.mvadownpour",
    "ParameterServer": "averaging.parameter_server",
    "Pipeline": "pipeline.pipeline",
    "Publisher": "publishing.publisher",
    "RingAllReduce": "averaging.ring_all_reduce",
    "Sandblaster": "sandblaster.sandblaster",
    "SandblasterStep": "sandblaster.sandblaster",
    "SandblasterWorker": "sandblaster.worker",
    "Scalars": "optimizer.scalars",
    "ServerDownpour": "downpour.server_downpour",
    "SlowExchangeWarning": "optimizer.slow_exchange",
    "StabilityWarning": "elastic.stability",
    "Stats": "optimizer.stats",
    "Stopping": "workers.stopping",
    "Subscriber": "publishing.subscriber",
    "SyncEASGD": "elastic.easgd_sync",
    "SyncGroup": "averaging.sync_group",
    "Topology": "topology",
    "as_array": "adapter",
    "connect": "workers.connecting",
    "distributed_sampler": "workers.sampling",
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
