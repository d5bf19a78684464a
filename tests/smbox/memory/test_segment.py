from __future__ import annotations

import errno
import os
import resource
import secrets

import pytest

from smbox.errors import OutOfMemoryError, SegmentError, SystemLimitError
from smbox.memory import segment
from smbox.memory.segment import NoSegmentError, Segment


@pytest.fixture
def name():
    name = f"smbox.{secrets.token_hex(4)}"
    yield name
    segment.unlink(name)


def test_two_mappings_are_one_memory(name):
    one = Segment.create(name, 8192)
    two = Segment.attach(name)
    one.words(4096, 2)[1] = 7
    assert two.words(4096, 2)[1] == 7
    assert not two.bytes[:4096].any()


def test_a_view_outlives_close(name):
    made = Segment.create(name, 4096)
    view = made.bytes
    made.close()
    view[0] = 5
    assert Segment.attach(name).bytes[0] == 5


def test_a_name_is_made_once(name):
    Segment.create(name, 4096)
    with pytest.raises(SegmentError, match="exists"):
        Segment.create(name, 4096)


def test_attach_needs_a_whole_segment(name):
    with pytest.raises(SegmentError, match="no segment"):
        Segment.attach(name)
    (segment.DIRECTORY / name).touch(0o600)
    with pytest.raises(SegmentError, match="empty"):
        Segment.attach(name)


def made_foreign(path, how):
    """Let others write a file, or replace it by a link."""
    if how == "link":
        path.rename(path.with_name(path.name + ".real"))
        path.symlink_to(path.with_name(path.name + ".real"))
    elif how == "user":
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(path, 12345, 12345)
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    else:
        path.chmod(how)


@pytest.mark.parametrize("how", ["link", "user", "pipe", 0o620, 0o602])
def test_what_others_may_write_is_not_trusted(name, how):
    Segment.create(name, 4096).close()
    made_foreign(segment.DIRECTORY / name, how)
    assert segment.is_untrusted(name)
    with pytest.raises(SegmentError):
        Segment.attach(name)
    segment.unlink(name + ".real")


def test_a_name_is_no_path(name):
    Segment.create(name, 4096).close()
    with pytest.raises(NoSegmentError):
        Segment.attach(f"../shm/{name}")


def test_more_than_there_is_leaves_nothing(name):
    with pytest.raises(OutOfMemoryError, match="shm-size"):
        Segment.create(name, segment.room_nbytes() + (1 << 30))
    assert name not in segment.listing("smbox.")


def test_a_host_without_dev_shm_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(segment, "DIRECTORY", tmp_path / "shm")
    with pytest.raises(SegmentError, match=r"cannot use shared memory: .*/shm"):
        segment.room_nbytes()


def test_room_that_others_take_meanwhile_is_told(name, monkeypatch):
    made = Segment.create_sparse(name, 8192)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutOfMemoryError, match="shm-size"):
        made.allocate(0, 8192)


def test_names_move(name):
    made = Segment.create(name, 8192)
    made.rename(name + ".b")
    assert segment.listing(name) == [name + ".b"]
    made.unlink()
    made.unlink()
    assert segment.listing(name) == []


def test_a_creator_with_too_many_open_files_is_told_the_limit(name):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(SystemLimitError, match="ulimit -n"):
            Segment.create_sparse(name, 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    ("module", "function", "number", "cure"),
    [
        (os, "open", errno.EMFILE, "ulimit -n"),
        (os, "open", errno.ENFILE, "file-max"),
        (os, "open", errno.ENOSPC, "nr_inodes"),
        (os, "ftruncate", errno.EFBIG, "ulimit -f"),
        (os, "posix_fallocate", errno.EFBIG, "ulimit -f"),
        (segment.mapping, "map_shared", errno.ENOMEM, "map_count"),
    ],
)
def test_a_limit_of_the_system_is_told_with_its_cure(
    name, monkeypatch, module, function, number, cure
):
    def full(*_args):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(module, function, full)
        with pytest.raises(SystemLimitError, match=cure):
            Segment.create(name, 4096)
    with pytest.raises(NoSegmentError):
        Segment.attach(name)


def test_a_listing_without_a_free_descriptor_names_the_limit(monkeypatch):
    def full(_path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "listdir", full)
    with pytest.raises(SystemLimitError, match="ulimit"):
        segment.listing("smbox.")


def test_a_segment_made_aside_replaces_an_empty_one(name):
    (segment.DIRECTORY / name).touch(0o600)
    with pytest.raises(NoSegmentError, match="empty"):
        Segment.attach(name)
    with segment.create_filled("t-node", name, 4096) as made:
        assert made.name != name
    assert (made.name, segment.listing("smbox.t-node.")) == (name, [])
    assert Segment.attach(name).nbytes == 4096


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_name_that_may_not_be_removed_hides_no_other_error(name, monkeypatch, number):
    def refuse(_path):
        raise OSError(number, os.strerror(number))

    Segment.create(name, 4096)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        segment.unlink(name)
    assert segment.size(name) == 4096
    number = errno.EIO
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(OSError, match="Input/output"):
        segment.unlink(name)
    monkeypatch.undo()


def test_a_segment_that_is_gone_has_no_size(name):
    Segment.create(name, 8192).close()
    assert segment.size(name) == 8192
    segment.unlink(name)
    assert segment.size(name) == 0
