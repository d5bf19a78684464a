"""Count lines and files of the core, and the Python functions that one put calls.

    python benchmarks/census.py           # the tables of docs/architecture.md
    python benchmarks/census.py --tour    # its tour of the files

Lines of code are lines of Python and C without blanks, comments and docstrings. The core is
smbox without smbox.cli and smbox.testing, plus memnode. The calls are those of Python functions
of the core in one put of 4 KiB, after a few puts to warm up.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pages

import smbox
from memnode.config import Bind, NodeConfig
from memnode.server import NodeServer

ROOT = Path(__file__).resolve().parent.parent
APART = ("smbox/cli/", "smbox/testing/")
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
WARM_UP = 5

PUTS = f"""
import os, signal, sys
import numpy as np, smbox
with smbox.connect(sys.argv[1], transport="tcp") as box:
    region = box.create("census", shape=(1024,), dtype="float32")
    for _ in range({WARM_UP}):
        region.put(np.ones(1024, np.float32))
os.kill(int(sys.argv[2]), signal.SIGTERM)
"""

SECTIONS = {
    "smbox": "the client API",
    "smbox/wire": "the protocol, pure code for both ends",
    "smbox/native": "commit, reader and kernels in C; build and loading",
    "smbox/memory": "segments, orders for the native library, recovery",
    "smbox/transports": "transports: frames in, frames out",
    "smbox/client": "the client's end of the wire",
    "smbox/paths": "data paths: mapped memory or messages",
    "smbox/many": "several nodes as one address space",
    "smbox/cli": "the command line",
    "smbox/cli/bench": "the benchmark",
    "smbox/testing": "oracles and contract checks, for smbox and third parties",
    "smbox/testing/stepping": "the native library, stepped instruction by instruction",
    "smbox/testing/chaos": "kills, pauses and cut connections at random",
    "memnode": "the memory node",
    "clients/smbox_torch": "PyTorch",
    "clients/smbox_torch/averaging": "synchronous SGD",
    "clients/smbox_torch/demo": "the command `smbox demo`",
    "clients/smbox_torch/downpour": "Downpour SGD and SSP",
    "clients/smbox_torch/elastic": "elastic averaging",
    "clients/smbox_torch/hogwild": "lock-free workers",
    "clients/smbox_torch/hybrid": "groups of workers",
    "clients/smbox_torch/integrations": "training frameworks",
    "clients/smbox_torch/launching": "the command `smbox run`",
    "clients/smbox_torch/model": "the tensors of a model",
    "clients/smbox_torch/optimizer": "the base classes of the algorithms",
    "clients/smbox_torch/pipeline": "a model split over processes",
    "clients/smbox_torch/planning": "the command `smbox plan`",
    "clients/smbox_torch/publishing": "versions of weights",
    "clients/smbox_torch/sandblaster": "L-BFGS",
    "clients/smbox_torch/topology": "measured links and the groups that follow from them",
    "clients/smbox_torch/workers": "membership and coordination of workers",
}

APART_FEATURES = {
    "several nodes, striped regions": ("smbox/many/", "smbox/head.py", "memnode/group.py"),
    "locks and membership": (
        "smbox/heartbeat.py",
        "smbox/lease.py",
        "smbox/lock.py",
        "smbox/meeting.py",
        "smbox/member_record.py",
        "smbox/membership.py",
        "smbox/mutex.py",
        "smbox/roster.py",
        "smbox/watch.py",
    ),
    "keys and roles": (
        "smbox/keys.py",
        "smbox/toml.py",
        "smbox/transports/handshake.py",
        "memnode/access.py",
    ),
    "chained and grouped handles": ("smbox/combining.py",),
}
"""Files that only these features need: an address space of one node works without them."""


def core() -> list[Path]:
    """List the files of the core: Python, C and headers."""
    found = [path for folder in ("smbox", "memnode") for path in (ROOT / folder).rglob("*.*")]
    return sorted(
        path
        for path in found
        if path.suffix in {".py", ".c", ".h"} and not shown(path).startswith(APART)
    )


def shown(path: Path) -> str:
    """Return a path as the tables show it."""
    return path.relative_to(ROOT).as_posix()


def code_lines(path: Path) -> int:
    """Count the lines of a file that hold code."""
    text = path.read_text()
    if path.suffix != ".py":
        bare = C_COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
        return sum(1 for line in bare.splitlines() if line.strip())
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT and token.string:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(text)))


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of the strings that stand alone: docstrings of all kinds."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


class Calls:
    """The Python functions of the core that run: which, and how deep below the first."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.deepest = 0
        self._depth = 0

    def note(self, frame: FrameType, event: str) -> None:
        """Take a ``call`` or ``return`` event of ``sys.setprofile``."""
        code = frame.f_code
        if code.co_name.startswith("<") or not code.co_filename.startswith(
            (f"{ROOT}/smbox/", f"{ROOT}/memnode/")
        ):
            return
        if event == "call":
            self._depth += 1
            self.deepest = max(self.deepest, self._depth)
            self.names.add(f"{Path(code.co_filename).stem}.{code.co_qualname}")
        elif event == "return":
            self._depth = max(0, self._depth - 1)


def calls_of(verb: Callable[[], Any]) -> Calls:
    """Run a verb and return what it called."""
    calls = Calls()
    sys.setprofile(lambda frame, event, _: calls.note(frame, event))
    try:
        verb()
    finally:
        sys.setprofile(None)
    return calls


def client_calls() -> dict[str, Calls]:
    """Return what a put calls in its own process, on mapped memory and over tcp."""
    found = {}
    x = np.ones(1024, np.float32)
    with smbox.local(memory="64MiB") as box:
        for transport in ("shm", "tcp"):
            with smbox.connect(box.address, transport=transport) as each:
                region = each.create(transport, shape=(1024,), dtype="float32")
                for _ in range(WARM_UP):
                    region.put(x)
                found[transport] = calls_of(lambda region=region: region.put(x))
    return found


def node_calls() -> Calls:
    """Return what a node calls for one put, from the message's arrival to the reply."""
    taken: list[Calls] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_qualname == "NodeServer._receive":
            taken.append(Calls())
        if taken:
            taken[-1].note(frame, event)

    bind = Bind.parse("tcp://127.0.0.1:0")
    server = NodeServer(
        NodeConfig(binds=(bind,), name=f"census-{os.getpid()}", memory_nbytes=1 << 26)
    )
    with server.opened():
        command = [sys.executable, "-c", PUTS, server.addresses[0], str(os.getpid())]
        client = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        sys.setprofile(profile)
        try:
            server.run()
        finally:
            sys.setprofile(None)
            client.wait(timeout=60)
    puts = [calls for calls in taken if "changes.change" in calls.names]
    return min(puts, key=lambda calls: len(calls.names))


def census() -> str:
    """Return the tables."""
    files = core()
    lines = {path: code_lines(path) for path in files}
    rows = [("part", "files", "lines of code")]
    parts = sorted({shown(path.parent) for path in files})
    for part in parts:
        inside = [path for path in files if shown(path.parent) == part]
        rows.append((f"`{part}`", *counted(inside, lines)))
    in_c = sum(lines[path] for path in files if path.suffix != ".py")
    rows.append(("all", str(len(files)), f"{sum(lines.values()):,}, of which {in_c:,} in C"))
    features = [("feature", "files", "lines of code")]
    kept = set(files)
    for feature, names in APART_FEATURES.items():
        own = [path for path in files if shown(path).startswith(names)]
        kept -= set(own)
        features.append((feature, *counted(own, lines)))
    features.append(("core without these features", *counted(kept, lines)))
    at_client = client_calls()
    paths = [("a put of 4 KiB", "depth of calls", "functions called")]
    for name, calls in (
        ("on mapped memory", at_client["shm"]),
        ("over tcp, at the client", at_client["tcp"]),
        ("over tcp, at the node", node_calls()),
    ):
        paths.append((name, str(calls.deepest), str(len(calls.names))))
    return "\n\n".join(map(markdown, (rows, features, paths)))


def counted(paths: Collection[Path], lines: Mapping[Path, int]) -> tuple[str, str]:
    """Return how many files they are, and how many lines they have, as the tables show it."""
    return str(len(paths)), f"{sum(lines[path] for path in paths):,}"


def markdown(rows: list[tuple[str, ...]]) -> str:
    """Return rows, the first of them the head, as a table."""
    return pages.table(rows[0], rows[1:])


def tour() -> str:
    """Return the tour of docs/architecture.md: each file with its docstring's first line."""
    parts = []
    for folder, what in SECTIONS.items():
        entries = [
            f"- `{shown(path)}` - {first_line(path)}"
            for path in told(sorted((ROOT / folder).glob("*.py")))
        ]
        parts.append("\n".join([f"### {folder}: {what}", "", *entries]))
    return "\n\n".join(parts)


def told(paths: Iterable[Path]) -> list[Path]:
    """Leave out the ``__init__`` of inner packages."""
    tops = {ROOT / "smbox", ROOT / "memnode", ROOT / "clients/smbox_torch"}
    return [path for path in paths if path.name != "__init__.py" or path.parent in tops]


def first_line(path: Path) -> str:
    """Return the first line of a file's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n")[0].replace("``", "`")


if __name__ == "__main__":
    if not Path(smbox.__file__).is_relative_to(ROOT):
        sys.exit(f"this smbox is {smbox.__file__}: set PYTHONPATH={ROOT} to measure this copy")
    print(tour() if "--tour" in sys.argv[1:] else census())
