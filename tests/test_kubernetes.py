"""Tests of the manifests of docs/kubernetes.md: valid by schema, and their commands run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import smbox

yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install 'smbox[dev]'")

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
MANIFESTS = list(
    yaml.safe_load_all((ROOT / "examples" / "kubernetes" / "smbox.yaml").read_text())
)
PROGRAMS = {
    "smbox": "from smbox.cli.main import main; main()",
    "memnode": "import sys; from memnode.cli import main; sys.exit(main())",
}
WORKER = """
import os
import smbox
from smbox_torch.world import World

world = World.from_env(os.environ)
with smbox.connect() as box, smbox.join(box, "run", expected=world.world_size) as member:
    sums = box.create("sums", shape=(8, 2), init=0.0, layout="striped", exist_ok=True)
    sums.accumulate([[1.0, 1.0]] * 8)
    member.meet()
    nodes = sorted({part.node for part in sums.parts})
    print(world.rank, world.local_rank, world.group_rank, world.groups, world.run_id[:3],
          world.master_addr, sums.get().sum(), nodes)
"""


Start = Callable[..., tuple[subprocess.Popen[bytes], str]]


def found(kind: str, name: str) -> dict[str, Any]:
    (manifest,) = [
        each for each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return manifest["spec"]


NODES = found("StatefulSet", "memory")
WORKERS = found("Job", "train")
TEMPLATES = (NODES["template"]["spec"], WORKERS["template"]["spec"])


def secrets(folder: Path) -> dict[str, dict[str, Path]]:
    """Make keys with the page's commands; return the files of each secret, by entry."""
    (keygen,) = re.findall(r"^    (smbox keygen .*)$", PAGE, re.MULTILINE)
    main = [sys.executable, "-c", PROGRAMS["smbox"]]
    subprocess.run([*main, *shlex.split(keygen)[1:]], cwd=folder, check=True)
    made = {}
    for line in re.findall(r"^    kubectl create secret generic (.*)$", PAGE, re.MULTILINE):
        name, *files = shlex.split(line)
        pairs = [re.fullmatch(r"--from-file=(.+)=(.+)", each).groups() for each in files]
        made[name] = {entry: folder / path for entry, path in pairs}
    return made


def mounted(pod: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write the secrets of a pod as the kubelet does; return the folders by mount path."""
    made = secrets(folder)
    mounts = {m["name"]: m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    places = {}
    for volume in pod["volumes"]:
        if "secret" not in volume:
            continue
        secret, root = volume["secret"], folder / volume["name"] / "mount"
        entries = made[secret["secretName"]]
        items = secret.get("items") or [{"key": key, "path": key} for key in entries]
        for item in items:
            file = root / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(entries[item["key"]].read_bytes())
            file.chmod(secret["defaultMode"])
        places[mounts[volume["name"]]] = str(root)
    return places


def environment(container: dict[str, Any], fields: dict[str, str]) -> dict[str, str]:
    """Return the environment of a container, with the fields of its pod filled in."""
    kept = {name: text for name, text in os.environ.items() if "SMBOX_" not in name}
    for each in container["env"]:
        field = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        kept[each["name"]] = each["value"] if field is None else fields[field]
    return kept


@pytest.fixture
def programs(tmp_path: Path, preloaded: str) -> str:
    """Return a PATH with the programs of the container image.

    A test kills a memory node, so that is not a preloaded one, which would end a little later.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, words in {**{n: f'-c "{c}"' for n, c in PROGRAMS.items()}, "python": ""}.items():
        python = sys.executable if name == "memnode" else preloaded
        (folder / name).write_text(f"#!/bin/sh\nexec '{python}' {words} \"$@\"\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def start(tmp_path: Path, programs: str) -> Iterator[Start]:
    """Yield a function that runs a memory node's container; it returns process and address."""
    (container,) = TEMPLATES[0]["containers"]
    (tmp_path / "node").mkdir()
    places = mounted(TEMPLATES[0], tmp_path / "node")
    with ExitStack() as ends:

        def run(index: int, port: str = "0") -> tuple[subprocess.Popen[bytes], str]:
            pod = {"metadata.name": f"memory-{index}", "status.podIP": "127.0.0.1"}
            *shell, script = container["command"]
            script = script.replace("/keys", places["/keys"]).replace(":7070", f":{port}")
            script = script.replace('"$POD_NAME"', f'"k8s-{os.getpid()}-$POD_NAME"', 1)
            node = subprocess.Popen(
                [*shell, script.replace("4GiB", "16MiB") + " --json"],
                env=environment(container, pod) | {"PATH": programs},
                stdout=subprocess.PIPE,
            )
            ends.enter_context(node)
            ends.callback(node.terminate)
            return node, json.loads(node.stdout.readline())["address"]

        yield run


def test_the_schemas_take_every_manifest():
    validate = pytest.importorskip(
        "kubernetes_validate",
        reason="needs kubernetes-validate: pip install kubernetes-validate",
    )
    newest = validate.latest_version()
    for version in ("1.29", newest):  # backoffLimitPerIndex came with 1.29
        for manifest in MANIFESTS:
            validate.validate(manifest, version, strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate({**MANIFESTS[0], "spec": {"port": 7070}}, newest, strict=True)


def test_names_lead_from_one_manifest_to_the_other():
    for kind, name, spec in (("StatefulSet", "memory", NODES), ("Job", "workers", WORKERS)):
        service = found("Service", name)
        assert service["clusterIP"] == "None"
        assert service["selector"].items() <= spec["template"]["metadata"]["labels"].items()
        assert spec["template"]["spec"].get("subdomain", spec.get("serviceName")) == name, kind
    env = environment(WORKERS["template"]["spec"]["initContainers"][0], {})
    pods = [f"tcp://memory-{index}.memory:7070" for index in range(NODES["replicas"])]
    assert env["SMBOX_ADDRESS"] == ",".join(pods)
    assert WORKERS["completions"] == WORKERS["parallelism"]


def test_every_secret_of_the_page_is_mounted_and_no_other(tmp_path: Path):
    made = secrets(tmp_path)
    volumes = [volume for pod in TEMPLATES for volume in pod["volumes"] if "secret" in volume]
    assert {volume["secret"]["secretName"] for volume in volumes} == set(made)
    assert "node.toml" not in made["smbox-worker"]  # workers do not have the node's secret
    assert all(file.is_file() for entries in made.values() for file in entries.values())


def test_a_container_that_is_restarted_finds_its_memory(start: Start, tmp_path: Path):
    node, address = start(0)
    with smbox.connect(address, key=tmp_path / "node" / "keys" / "worker.key") as box:
        region = box.create("kept", shape=(4,), init=1.0)
        node.kill()
        node.wait()
        start(0, address.rpartition(":")[2])
        region.accumulate([1.0] * 4, timeout_s=60.0)
        assert region.get().tolist() == [2.0] * 4


def test_workers_find_their_places_and_all_memory_nodes(
    start: Start, tmp_path: Path, programs: str
):
    addresses = [start(index)[1] for index in range(NODES["replicas"])]
    pod = TEMPLATES[1]
    (tmp_path / "train.py").write_text(WORKER)
    # a key that the nodes know, not a new one
    key = tmp_path / "node" / "keys" / "worker.key"
    told = {"PATH": programs, "SMBOX_ADDRESS": ",".join(addresses), "SMBOX_KEY": str(key)}
    (waits,) = pod["initContainers"]
    subprocess.run(waits["command"], env=environment(waits, {}) | told, check=True, timeout=60)
    workers = []
    (container,) = pod["containers"]
    for index in range(WORKERS["completions"]):
        fields = {
            "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
            "metadata.labels['batch.kubernetes.io/controller-uid']": "uid",
        }
        env = environment(container, fields) | told
        workers.append(
            subprocess.Popen(
                ["timeout", "60", *container["command"]],
                cwd=tmp_path,
                env=env,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    said = [worker.communicate()[0].strip() for worker in workers]
    assert said == [f"{rank} 0 {rank} 4 uid train-0.workers 64.0 [0, 1]" for rank in range(4)]
