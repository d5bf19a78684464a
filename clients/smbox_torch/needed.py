"""Dependencies of smbox_torch; imported first, so that a missing one raises a clear error."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        "smbox_torch needs PyTorch: pip install 'smbox[torch]' (or 'smbox[demo]')", name="torch"
    )
