"""A node's WELCOME for tests: small limits, and nothing applied."""

from __future__ import annotations

from typing import Any

from smbox.wire.messages import Welcome


def welcome(**fields: Any) -> Welcome:
    """Return a WELCOME; fields not given are those of a node with a new memory.

    Args:
        fields: fields of ``Welcome``.
    """
    usual: dict[str, Any] = {
        "node_name": "n",
        "node_uuid": bytes(16),
        "node_id": 1,
        "incarnation": 1,
        "window": 4,
        "ring_entries": 6,
        "applied": 0,
    }
    return Welcome(**(usual | fields))
