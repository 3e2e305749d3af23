"""Wrong arguments: InvalidArgument for a wrong value, TypeError for a wrong type, and nothing else."""

import types

import ashlar
import numpy as np
import pytest
from ashlar import replay
from ashlar.service import ServiceClient
from kv_blocks import make, names_of, store


class Key:
    """An object that is a number for Python, and no Fence, dict or bytes."""

    def __index__(self):
        return 1


def test_a_wrong_type_is_a_type_error():
    for wrong in (1, "listen", ["listen"], Key()):
        with pytest.raises(TypeError, match="remote must be a dict"):
            make(remote=wrong)
    kv = make(g2_blocks=8)
    names = names_of(kv, 2).sequence
    blocks = store(kv, names)
    for wrong in ([1], [None], (ashlar.FenceSignal().fence, "fence")):
        with pytest.raises(TypeError, match="after must be a Fence"):
            kv.offload(names, tier="g2", after=wrong)
    for wrong in (("one", 0), (None, 0), (1.5, 0)):
        with pytest.raises(TypeError, match="max_version"):
            kv.tensor(blocks[0]).__dlpack__(max_version=wrong)


def test_keys_of_a_host_store_are_bytes():
    kv = make(g2_blocks=8)
    host = ashlar.HostStore(kv)
    for wrong in (1, "key", None, bytearray(20)):
        with pytest.raises(TypeError, match="a key must be bytes"):
            host.begin_store([wrong])
    with pytest.raises(ashlar.InvalidArgument):
        host.begin_store([b"short"])


def test_a_setting_that_nobody_reads_is_named():
    for wrong in ("listens", "\udc80", 5):
        with pytest.raises(ashlar.InvalidArgument, match="nobody reads"):
            make(remote={wrong: 1})


def test_a_wrong_value_is_an_invalid_argument():
    manager = ashlar.BlockManager(8, 4)
    hasher = ashlar.SequenceHasher()
    for wrong in ([1, -1], [2**32], [2**70], np.array([-1], np.int32), np.array([-1], np.int64),
                  np.array([2**32], np.int64), np.array([2**63], np.uint64), np.zeros((2, 2), np.uint32)):
        with pytest.raises(ashlar.InvalidArgument):
            hasher.hash_blocks(wrong, 4)
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.SequenceHashes.from_bytes(bytes(17))
    with pytest.raises(ashlar.InvalidArgument):
        make(prefix_key=b"short")
    block = manager.register(manager.allocate(1).stage(hasher.hash_blocks([1, 2, 3, 4], 4).sequence))[0]
    with pytest.raises(ashlar.InvalidArgument):
        block.pin(float("nan"))
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.RequestSequence(manager, [1, 2], max_tokens=8, compute_tokens_per_second=0.0)
    request = ashlar.RequestSequence(manager, list(range(8)), max_tokens=16)
    request.schedule_prefill(8)
    with pytest.raises(ashlar.InvalidArgument):
        request.block_table_into(np.zeros(1, np.uint32))
    for wrong in ("a\0b", b"a\0b"):
        with pytest.raises(ashlar.InvalidArgument):
            replay.Trace.open(wrong)
    with pytest.raises(TypeError):
        replay.Trace.open(5)


def test_local_hashes_of_a_request_are_numbers():
    kv = make(g2_blocks=8)
    names = names_of(kv, 1).sequence
    prefix = np.zeros((1, 2), np.uint64)
    for wrong in (-1, 2**64):
        request = types.SimpleNamespace(sequence=names, prefix=prefix, local=[wrong])
        with pytest.raises(ashlar.InvalidArgument, match="local hash"):
            kv.onboard(request)


def test_an_address_that_is_none_is_an_invalid_argument():
    for wrong in ("http://[::1", "http://a b:80", "http://host:port", "http://", "ftp://host:1",
                  "http://ho\x01st:80"):
        with pytest.raises(ashlar.InvalidArgument, match="is no address"):
            ServiceClient(wrong)


def test_arrays_may_begin_at_any_byte():
    hasher = ashlar.SequenceHasher()
    for dtype in (np.uint32, np.int32, np.uint64, np.int64):
        tokens = np.arange(8, dtype=dtype)
        shifted = np.frombuffer(b"." + tokens.tobytes(), dtype, offset=1)
        assert hasher.hash_blocks(shifted, 4).sequence == hasher.hash_blocks(tokens, 4).sequence
    kv = make()
    names = names_of(kv, 2).sequence
    guards = store(kv, names)
    plain = np.array(names)
    shifted = np.frombuffer(b"." + plain.tobytes(), np.uint64, offset=1).reshape(plain.shape)
    assert kv.g1.match(shifted).block_ids.tolist() == guards.block_ids.tolist()
