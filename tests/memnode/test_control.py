from __future__ import annotations

from smbox.wire.messages import Attach, Empty, Free, ListRegions, Publish
from smbox.wire.ops import Op, Status


def test_ping(peer):
    assert peer.ask(Op.PING, body=Empty()).body == Empty()


def test_attach_by_name_and_by_address(peer):
    made = peer.create("w").body
    assert peer.ask(Op.ATTACH, body=Attach(name="w")).body.address == made.address
    inside = Attach(address=made.address + 5)
    assert peer.ask(Op.ATTACH, body=inside).body.address == made.address
    missing = peer.ask(Op.ATTACH, body=Attach(name="v"))
    assert missing.status is Status.REGION_NOT_FOUND
    assert "smbox ls" in missing.error.message
    assert peer.ask(Op.ATTACH, body=Attach(address=0)).status is Status.ADDRESS_RANGE


def test_publish_makes_a_region_findable(peer):
    made = peer.create("w", publish=False).body
    assert peer.ask(Op.ATTACH, body=Attach(name="w")).status is Status.REGION_NOT_FOUND
    assert peer.ask(Op.PUBLISH, body=Publish(address=made.address)).status is Status.OK
    assert peer.ask(Op.ATTACH, body=Attach(name="w")).body.address == made.address


def test_free(peer):
    made = peer.create("w").body
    free = Free(address=made.address)
    assert peer.ask(Op.FREE, body=free).status is Status.OK
    assert peer.ask(Op.FREE, body=free).status is Status.REGION_FREED
    assert peer.ask(Op.FREE, body=Free(address=1 << 30)).status is Status.ADDRESS_RANGE
    assert peer.create("w").body.address > made.address


def test_list_goes_page_by_page(peer):
    names = [f"r{index}" for index in range(5)]
    for name in names:
        peer.create(name)
    found, after, more = [], -1, True
    while more:
        page = peer.ask(Op.LIST, body=ListRegions(after=after, limit=2)).body
        found += [region.name for region in page.regions]
        after, more = page.regions[-1].address, page.more
    assert found == names


def test_stats(peer):
    peer.create("w")
    facts = peer.ask(Op.STATS, body=Empty()).body.facts
    assert facts["regions"] == 1
    assert facts["sessions"] == 1
    assert facts["requests.CREATE"] == 1
    assert 0 < facts["used_nbytes"] < facts["memory_nbytes"]
