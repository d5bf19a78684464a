"""Seven scripts as strangers write them, and each on many workers: few lines, same results.

    python tests/smbox_torch/integrations/test_scripts.py

prints the table of docs/your_script.md.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "examples" / "scripts"
PAGE = ROOT / "docs" / "your_script.md"
LINES_MAX = 6
SMBOX = "from smbox.cli.main import main; main()"
TIMEOUT_S = 240


@dataclass(frozen=True)
class Script:
    """A script of small size.

    Args:
        name: of its file, without ``.py``.
        kind: what it is.
        needs: packages.
        arguments: of every run; ``{data}`` and ``{out}`` are folders.
        longer: more of them for a run that goes on where the first one ended.
        loss: what it prints of the loss.
        alone: further arguments of the script without smbox.
        shared: further arguments of the script with smbox.
        checkpoint: a file that it saves, in ``{out}``.
        begin: loss of a model that knows nothing, where what is printed begins later.
        small: further arguments in the tests, for less work than the page's table shows.
    """

    name: str
    kind: str
    needs: tuple[str, ...]
    arguments: str
    longer: str
    loss: str
    checkpoint: str
    alone: str = ""
    shared: str = ""
    begin: float = 0.0
    small: str = ""


ALL = [
    Script(
        "resnet_cifar10",
        "ResNet-18 on CIFAR-10, torchvision",
        ("torchvision",),
        "--data {data}/cifar --batch-size 12 --lr 0.01 --loaders 0 --epochs 2"
        " --checkpoint {out}/resnet.pt",
        "--epochs 3 --resume",
        r"loss (\d+\.\d{4})",
        "resnet.pt",
        small="--arch shufflenet_v2_x0_5",
    ),
    Script(
        "char_gpt",
        "nanoGPT-like, its own loop",
        (),
        "--data={data}/input.txt --out_dir={out} --n_layer=2 --n_embd=32 --compile_model=0"
        " --eval_interval=20 --eval_iters=2 --learning_rate=0.01 --max_iters=40"
        " --batch_size=4 --block_size=32",
        "--max_iters=30 --init_from=resume",
        r"val loss (\d+\.\d{4})",
        "ckpt.pt",
        small="--eval_interval=10 --max_iters=20",
    ),
    Script(
        "lstm_lm",
        "tied LSTM language model",
        (),
        "--data {data}/input.txt --emsize 32 --batch-size 5 --bptt 12 --lr 10 --dropout 0"
        " --nlayers 1 --epochs 3 --save {out}/lstm.pt",
        "--epochs 4 --resume",
        r"train loss (\d+\.\d{4})",
        "lstm.pt",
    ),
    Script(
        "mnist_hogwild",
        "PyTorch's Hogwild example",
        ("torchvision",),
        "--data {data}/mnist --batch-size 8 --lr 0.05 --epochs 2 --save {out}/mnist.pt",
        "--epochs 1 --resume",
        r"loss (\d+\.\d{4})",
        "mnist.pt",
        alone="--num-processes 2",
        shared="--num-processes 1",
    ),
    Script(
        "trainer_gpt2",
        "Hugging Face Trainer",
        ("transformers", "accelerate"),
        "--output {out} --every 10 --steps 20",
        "--steps 15 --resume",
        r"'eval_loss': '?([\d.]+)",
        "final/model.safetensors",
        begin=math.log(96),
        small="--every 5 --steps 10",
    ),
    Script(
        "accelerate_digits",
        "Hugging Face accelerate",
        ("accelerate", "sklearn"),
        "--output {out} --epochs 2",
        "--epochs 3 --resume",
        r"loss (\d+\.\d{4})",
        "checkpoint/model.safetensors",
    ),
    Script(
        "lightning_digits",
        "Lightning",
        ("lightning", "sklearn"),
        "--output {out} --epochs 2",
        "--epochs 3 --resume",
        r"loss (\d+\.\d{4})",
        "last.ckpt",
    ),
]
each_script = pytest.mark.parametrize("script", ALL, ids=lambda script: script.name)


def code(name: str) -> list[str]:
    """The lines of a script behind its docstring, blank ones aside."""
    text = (SCRIPTS / f"{name}.py").read_text().split('"""', 2)[2]
    return [line for line in text.splitlines() if line.strip()]


def changes(script: Script) -> tuple[int, int, int]:
    """How many lines change: in all (one that is replaced counts once), added, taken away."""
    before, after = code(script.name), code(f"{script.name}_smbox")
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    found = [
        (i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"
    ]
    removed, added = (sum(each) for each in zip(*found, strict=True))
    return sum(max(each) for each in found), added, removed


def run(*words: str) -> str:
    """What a command prints; it runs on as many threads as it has processes."""
    environment = {key: os.environ[key] for key in os.environ if "SMBOX_" not in key}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def arguments(script: Script, text: str, data: Path, out: Path) -> list[str]:
    return f"{script.arguments} {text}".format(data=data, out=out).split()


def run_alone(script: Script, data: Path, out: Path, python: str) -> str:
    words = arguments(script, script.alone, data, out)
    return run(python, str(SCRIPTS / f"{script.name}.py"), *words)


def run_shared(script: Script, data: Path, out: Path, python: str, *, more: str = "") -> str:
    """What two workers print; with more arguments, one worker that goes on."""
    words = arguments(script, f"{script.shared} {more}", data, out)
    program = (python, str(SCRIPTS / f"{script.name}_smbox.py"), *words)
    workers = "1" if more else "2"
    return run(python, "-c", SMBOX, "run", "--per-node", workers, *program)


def losses(script: Script, said: str, rank: int | None = None) -> list[float]:
    """What was printed, by one worker or by the one process, in order."""
    lines = said.splitlines()
    if rank is not None:
        lines = [line for line in lines if f"[rank {rank}]" in line]
    return [float(found) for line in lines for found in re.findall(script.loss, line)]


def skip_without(script: Script) -> None:
    missing = [name for name in script.needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install 'smbox[frameworks,vision]'")


@each_script
def test_few_lines_change(script: Script):
    every, added, _ = changes(script)
    assert added > 0
    assert every <= LINES_MAX


@each_script
def test_a_script_says_how_to_run_it(script: Script):
    for name in (script.name, f"{script.name}_smbox"):
        assert f"examples/scripts/{name}.py" in (SCRIPTS / f"{name}.py").read_text()
    assert "smbox" not in "\n".join(code(script.name))


@each_script
def test_the_page_tells_the_lines(script: Script):
    every, added, removed = changes(script)
    assert row(script, every, added, removed) in PAGE.read_text()


@pytest.mark.timeout(2 * TIMEOUT_S)
@each_script
def test_it_learns_alone_and_on_workers_saves_the_center_and_goes_on(
    script: Script, data: Path, tmp_path: Path, frameworks: str
):
    skip_without(script)
    script = replace(script, arguments=f"{script.arguments} {script.small}")
    said = run_shared(script, data, tmp_path, frameworks)
    found = losses(script, said)
    begin = max(script.begin, *found)  # of whoever was first: others begin at the center
    assert len(found) > 1
    assert losses(script, said, rank=0)[-1] < 0.95 * begin
    check_checkpoint(script, tmp_path / script.checkpoint)
    other = tmp_path / "alone"
    other.mkdir()
    with ThreadPoolExecutor(2) as pool:  # a process each
        resumed = pool.submit(
            run_shared, script, data, tmp_path, frameworks, more=script.longer
        )
        alone = losses(script, pool.submit(run_alone, script, data, other, frameworks).result())
        again = losses(script, resumed.result(), rank=0)
    assert again
    assert again[-1] < 0.95 * begin
    assert alone[-1] < 0.95 * alone[0]
    assert (other / script.checkpoint).is_file()


def check_checkpoint(script: Script, path: Path) -> None:
    """What was saved as the model is not the worker's own, where both are in the file."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        assert len(load_file(path)) > 8  # of tensors that share a storage it would be one
        return
    saved = torch.load(path)
    model = saved.get("model", saved.get("state_dict", saved))
    (state,) = saved.get("optimizer_states", [saved.get("optimizer")])
    assert all(torch.isfinite(x).all() for x in model.values())
    if state is not None:
        own = state["parameters"]["float32"]
        center = state["centers"][0]["float32"]
        assert own.shape == center.shape
        assert not torch.equal(own, center)
        shown = torch.cat([x.flatten() for x in model.values() if x.is_floating_point()])
        some = own[:: max(1, own.numel() // 1000)]  # few: each looks at all that is shown
        assert not all((shown == x).any() for x in some)


def row(script: Script, every: int, added: int, removed: int) -> str:
    return f"| `{script.name}.py` | {script.kind} | {every} | +{added} -{removed} |"


def results(script: Script, folder: Path) -> str:
    """The losses of one process and of two workers, first and last."""
    data, python = folder / "data", sys.executable
    alone = losses(script, run_alone(script, data, folder / script.name, python))
    said = run_shared(script, data, folder / f"{script.name}_smbox", python)
    shared = losses(script, said, rank=0)
    return f" {alone[0]:.2f} to {alone[-1]:.2f} | {shared[0]:.2f} to {shared[-1]:.2f} |"


def main() -> None:
    spec = importlib.util.spec_from_file_location("data", Path(__file__).parent / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    makers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(makers)
    print("| script | kind | changed | lines | one process | two workers |")
    print("| --- | --- | --: | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        makers.make(folder / "data")
        for script in ALL:
            for out in (script.name, f"{script.name}_smbox"):
                (folder / out).mkdir()
            print(row(script, *changes(script)) + results(script, folder), flush=True)


if __name__ == "__main__":
    main()
