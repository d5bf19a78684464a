"""Only the node's own memory, under its name and with its uuid, proves anything."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from smbox.errors import PeerLostError, SystemLimitError
from smbox.memory import layout
from smbox.memory.layout import Superblock
from smbox.memory.segment import Segment
from smbox.paths.mappings import check_still_shared, why_not_shared


def test_the_memory_itself_is_the_proof(solo):
    assert why_not_shared(solo.control.node) is None
    check_still_shared(solo.control.node)


def test_no_memory_of_this_name(solo):
    node = replace(solo.control.node, name="no-such-node")
    assert "not in this /dev/shm" in why_not_shared(node)


def test_memory_of_another_node(solo):
    node = replace(solo.control.node, uuid=b"x" * 16)
    assert "another node" in why_not_shared(node)
    with pytest.raises(PeerLostError, match="another node") as caught:
        check_still_shared(node)
    assert caught.value.facts["outcome"] == "none"


@pytest.mark.parametrize("check", [why_not_shared, check_still_shared])
def test_who_can_open_no_file_has_no_proof_of_either(solo, no_more_files, check):
    with no_more_files(), pytest.raises(SystemLimitError, match="ulimit"):
        check(solo.control.node)


def test_memory_of_another_format(solo):
    segment = Segment.attach(layout.name_of(solo.control.node.name, "node"))
    words = segment.words(0, 16)
    words[[Superblock.FORMAT, Superblock.UUID_LOW]] += 1  # the uuid may be elsewhere
    assert "format" in why_not_shared(solo.control.node)
    words[[Superblock.FORMAT, Superblock.UUID_LOW]] -= 1
