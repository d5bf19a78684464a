"""The code of the pages of docs/algorithms runs, as the one worker of `smbox run`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

BLOCK = re.compile(r"(?P<before>[^\n]*)\n+```python\n(?P<code>.*?)\n```", re.DOTALL)
NOT_RUN = "<!-- not run"
RUN = ("-c", "from smbox.cli.main import main; main()", "run")


def code_of(page: Path) -> str:
    blocks = BLOCK.finditer(page.read_text())
    return "\n".join(block["code"] for block in blocks if NOT_RUN not in block["before"])


FOLDER = Path(__file__).resolve().parents[2] / "docs" / "algorithms"


def test_the_code_of_every_page_runs(preloaded: str, tmp_path: Path):
    codes = {page.name: code_of(page) for page in sorted(FOLDER.glob("*.md"))}
    pages = [name for name, code in codes.items() if code]
    assert {"easgd.md", "hybrid.md", "sync_group.md"} <= set(pages)
    for name in pages:
        (tmp_path / name).write_text(codes[name])
    script = tmp_path / "all.py"
    script.write_text(
        "import runpy\n" + "".join(f"runpy.run_path({name!r})\n" for name in pages)
    )
    own = {name: os.environ[name] for name in os.environ if "SMBOX_" not in name}
    done = subprocess.run(
        [preloaded, *RUN, "--memory", "64MiB", preloaded, script],
        cwd=tmp_path,
        env=own | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
