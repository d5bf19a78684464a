"""Only rank 0 is accelerate's main process, which opens logs and writes into them."""

from __future__ import annotations

from collections.abc import Callable

TRACKERS = """
import os, pickle
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.tracking import GeneralTracker
from smbox_torch.integrations.accelerate import number

class Lines(GeneralTracker):
    name, requires_logging_directory, tracker, main_process_only = "lines", False, None, True

    def store_init_configuration(self, values):
        lines.append("begun")

    def log(self, values, step=None, **_):
        lines.append(values["loss"])

def lines_of(rank):
    lines.clear()
    os.environ.update(SMBOX_RANK=str(rank), SMBOX_WORLD_SIZE="3",
                      SMBOX_LOCAL_RANK=str(rank % 2), SMBOX_LOCAL_WORLD_SIZE="2")
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, log_with=Lines())
    number(accelerator)
    accelerator.init_trackers("run", {"rate": 0.1})
    accelerator.log({"loss": 0.5})
    accelerator.on_main_process(lambda: lines.append("called"))()
    accelerator.on_local_main_process(lambda: lines.append("local"))()
    PartialState().on_main_process(function=lines.append)("by name")
    pickle.dumps(PartialState())  # as for the processes of a loader
    accelerator.end_training()
    return [*lines]

lines = []
assert lines_of(0) == ["begun", 0.5, "called", "local", "by name"]
assert lines_of(1) == []
assert lines_of(2) == ["local"]
assert lines_of(0) == ["begun", 0.5, "called", "local", "by name"]
"""


def test_only_rank_0_logs(run: Callable[..., None]):
    run(TRACKERS, "accelerate")
