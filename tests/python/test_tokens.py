"""Names and hashers: the vectors are those of the C++ tests."""

import array
import ctypes
import pickle

import ashlar
import numpy as np
import pytest

KEY = bytes([9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12, 13, 14, 15, 16])


def test_a_name_reads_what_it_writes():
    first, middle = "0:00000000000000ff", "7:0000000000000abc:00000000000012"
    late = "256:0000000000000abc:000000000012"
    for text in (first, middle, late):
        assert str(ashlar.SequenceHash.parse(text)) == text


def test_a_bad_name_says_why():
    with pytest.raises(ashlar.InvalidArgument) as caught:
        ashlar.SequenceHash.parse("nothing")
    assert caught.value.code == "invalid_argument"
    assert isinstance(caught.value, ValueError)


def test_a_name_is_a_value():
    name = ashlar.SequenceHash.make(7, 0xABC, 0x12)
    assert name == ashlar.SequenceHash.from_bits(name.hi, name.lo)
    assert name == ashlar.SequenceHash.from_bytes(name.to_bytes()) == pickle.loads(pickle.dumps(name))
    assert bytes(name) == name.hi.to_bytes(8, "big") + name.lo.to_bytes(8, "big")
    assert len({name, ashlar.SequenceHash.parse(str(name))}) == 1
    assert (name.position, name.chain, name.parent_fragment, name.is_keyed) == (7, 0xABC, 0x12, False)
    assert ashlar.SequenceHash.root(5) < name < name.child(0)
    assert name.can_precede(name.child(1)) and not name.child(1).can_precede(name)
    assert name != "7" and name.in_group(0) == name != name.in_group(1)


def test_the_chain_gives_the_vectors_of_the_field():
    hasher = ashlar.SequenceHasher()
    hashes = hasher.hash_blocks(np.arange(1, 15, dtype=np.uint32), 4)
    assert len(hashes) == 3
    assert hashes.local.tolist() == [14643705804678351452, 16777012769546811212, 483935686894639516]
    chains = [14643705804678351452, 4945711292740353085, 12583592247330656132]
    assert hashes.sequence.chains().tolist() == chains
    assert hasher.local_hash(range(16)) == 15310707395893867146


def test_salts_and_schemes_give_their_vectors():
    tokens = [1, 2, 3, 4]
    for lora, tenant, local in (
        ("adapter-a", "", 11381080598872079209),
        ("", "tenant-a", 5738685477468498325),
        ("adapter-a", "tenant-a", 9967753091837871098),
    ):
        assert ashlar.SequenceHasher(salt=ashlar.Salt(lora, tenant)).local_hash(tokens) == local
    plain = ashlar.SequenceHasher(ashlar.HashScheme("xxh64_int64"))
    chains = plain.hash_blocks(range(1, 9), 4).sequence.chains()
    assert chains.tolist() == [8356527653647720045, 610383040053763902]
    keyed = ashlar.SequenceHasher(ashlar.HashScheme("keyed128", KEY), ashlar.Salt("adapter-a", "tenant-a"))
    hashes = keyed.hash_blocks(range(1, 9), 4)
    assert [str(name) for name in hashes.sequence] == [
        "0:00ce5f3493804c525d74bb4eab",
        "1:0d3f5a2377674089b450e7dc37",
    ]
    assert hashes.local[1] == 15105143736599241699


def test_prefix_digests_belong_to_their_key():
    hasher = ashlar.SequenceHasher(prefix_key=bytes([1] + [0] * 15))
    digest = hasher.hash_blocks([42] * 16, 16).prefix_at(0)
    assert digest == ashlar.PrefixDigest(0x9F0B5226AF0FA426, 0x19798DE10B1E5615)
    assert digest.is_known and not ashlar.PrefixDigest().is_known
    assert digest.agrees_with(ashlar.PrefixDigest())
    assert not digest.agrees_with(ashlar.SequenceHasher().hash_blocks([42] * 16, 16).prefix_at(0))


def test_blocks_go_on_where_others_ended():
    hasher = ashlar.SequenceHasher()
    whole = hasher.hash_blocks(range(64), 16)
    rest = hasher.hash_blocks(range(32, 64), 16, parent=whole.sequence[1], parent_prefix=whole.prefix_at(1))
    assert rest.sequence == whole.sequence[2:] and (rest.prefix == whole.prefix[2:]).all()
    assert not hasher.hash_blocks(range(32, 64), 16, parent=whole.sequence[1]).prefix_at(0).is_known


@pytest.mark.parametrize("kind", [np.uint32, np.int32, np.int64, np.uint64])
def test_tokens_come_in_every_integer_type(kind):
    hasher = ashlar.SequenceHasher()
    expected = hasher.hash_blocks(list(range(100)), 16).sequence
    tokens = np.arange(100, dtype=kind)
    assert hasher.hash_blocks(tokens, 16).sequence == expected
    assert hasher.hash_blocks(np.repeat(tokens, 2)[::2], 16).sequence == expected
    tokens.flags.writeable = False
    assert hasher.hash_blocks(memoryview(tokens), 16).sequence == expected
    assert hasher.hash_blocks(array.array("I", range(100)), 16).sequence == expected


class OnlyDlpack:
    """What a tensor of another library shows."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def test_tokens_come_from_tensors():
    hasher = ashlar.SequenceHasher()
    assert hasher.local_hash(OnlyDlpack(np.arange(16))) == hasher.local_hash(range(16))


@pytest.mark.parametrize(
    "bad",
    [[-1], [2**32], [2**80], np.array([-1]), np.array([-1], np.int32), np.array([2**32]),
     np.ones((2, 2), int)],
)
def test_tokens_out_of_range_are_refused(bad):
    with pytest.raises(ValueError):
        ashlar.SequenceHasher().local_hash(bad)


@pytest.mark.parametrize("bad", [None, 5, "text", [1.5], [None], np.array([1.5]), b"bytes", np.array(["a"])])
def test_what_is_no_token_is_refused(bad):
    with pytest.raises(TypeError):
        ashlar.SequenceHasher().local_hash(bad)


def test_a_list_that_shrinks_while_it_is_read():
    class Shrinking:
        def __index__(self):
            tokens.clear()
            return 1

    tokens = [Shrinking(), 2, 3]
    ashlar.SequenceHasher().local_hash(tokens)


def test_wrong_block_sizes_and_parents_are_refused():
    hasher = ashlar.SequenceHasher()
    for size in (0, 65537):
        with pytest.raises(ashlar.InvalidArgument):
            hasher.hash_blocks([1, 2], size)
    keyed = ashlar.SequenceHasher(ashlar.HashScheme("keyed128", KEY)).hash_blocks([1], 1).sequence[0]
    with pytest.raises(ashlar.InvalidArgument):
        hasher.hash_blocks([1], 1, parent=keyed)
    with pytest.raises(ashlar.NotFound):
        ashlar.HashScheme("md5")
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.HashScheme("keyed128")
    with pytest.raises(ValueError):
        ashlar.HashScheme("keyed128", b"short")
    assert "9" not in repr(ashlar.HashScheme("keyed128", KEY))


def test_hash_lists_show_their_memory():
    hashes = ashlar.SequenceHasher().hash_blocks(range(160), 16).sequence
    view = hashes.numpy()
    assert view.shape == (10, 2) and view.dtype == np.uint64 and not view.flags.writeable
    assert view[3].tolist() == [hashes[3].hi, hashes[3].lo]
    assert np.shares_memory(view, np.asarray(hashes)) and np.shares_memory(view, hashes[2:5].numpy())
    expected = hashes.to_bytes()
    part = hashes[4:6]
    del hashes
    assert view.astype(">u8").tobytes() == expected  # the view keeps the list alive
    assert part.to_bytes() == expected[64:96]
    with pytest.raises(TypeError):
        memoryview(part).cast("B")[0] = 1
    with pytest.raises(ValueError):
        np.asarray(part)[0, 0] = 1


def test_hash_lists_are_lists():
    hashes = ashlar.SequenceHasher().hash_blocks(range(160), 16).sequence
    names = list(hashes)
    assert len(hashes) == 10 and hashes[-1] == names[9] and list(hashes[::-3]) == names[::-3]
    with pytest.raises(IndexError):
        hashes[10]
    strided = np.repeat(hashes.numpy(), 2, 0)[::2]
    for same in (names, tuple(names), hashes.numpy(), hashes.numpy().copy(), strided):
        assert ashlar.SequenceHashes(same) == hashes
    assert hash(hashes) == hash(ashlar.SequenceHashes(names)) and hashes != hashes[1:]
    assert pickle.loads(pickle.dumps(hashes)) == hashes == ashlar.SequenceHashes.from_bytes(hashes.to_bytes())
    assert len(ashlar.SequenceHashes([])) == 0 and ashlar.SequenceHashes([]).numpy().shape == (0, 2)
    for bad in ([1], [names[0], None], np.zeros((2, 3), np.uint64), np.zeros((2, 2), np.int64), 5):
        with pytest.raises(TypeError):
            ashlar.SequenceHashes(bad)
    with pytest.raises(ValueError):
        ashlar.SequenceHashes.from_bytes(b"123")


def test_a_sequence_grows_and_shrinks():
    sequence = ashlar.TokenSequence(range(30), 8)
    assert sequence.append(30) is None and sequence.append(31) == 3
    assert sequence.extend(np.arange(32, 50)) == (4, 6)
    assert len(sequence) == 50 and sequence.block_count == 6 and sequence.tokens.tolist() == list(range(50))
    hasher = ashlar.SequenceHasher()
    assert sequence.sequence_hashes == hasher.hash_blocks(range(50), 8).sequence
    block = sequence.block(-1)
    assert block.position == 5 and block.tokens.tolist() == list(range(40, 48))
    assert block.sequence_hash == sequence.sequence_hashes[5] and block.parent == sequence.sequence_hashes[4]
    assert block.root == sequence.sequence_hashes[0] and block.prefix_digest.is_known
    assert sequence.pop() == 49
    sequence.truncate(9)
    assert len(sequence) == 9
    with pytest.raises(ashlar.InvalidArgument):
        sequence.truncate(10)
    with pytest.raises(IndexError):
        sequence.block(1)
    sequence.reset()
    assert len(sequence) == 0 and sequence.pop() is None


def test_multimodal_items_enter_the_names():
    def names(item):
        return ashlar.TokenSequence([5] * 8, 4, runs=[ashlar.MultimodalRun(item, 2, 2)]).sequence_hashes

    assert names(0xAA) == names(0xAA) != names(0xAB)
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.TokenSequence([5] * 8, 4, runs=[ashlar.MultimodalRun(1, 7, 2)])


def test_hashes_of_engines():
    for algorithm, seed, first, second in (
        ("sha256", "0", "2f310d760d759dff04c4d10761d61d07721dd5f28f17b0b2b1aca189072f77a2",
         "9d17f5948d173495ee6773162303d80ca38c5e936bc9ee1c40ec39fb3ab240c3"),
        ("sha256_cbor", None, "b2a727d31d71531aa716681e4783e0219ad14445f650848ba95e744b6ac91bce",
         "0e511777fef56bf89905655aeeed8e662902ebfa6b08f4c53a69a32ed05d8f2e"),
        ("xxhash", "0", "9f9a56c1f63454216b49413b7de236af", "d416ea406e99164ae4705a3413653025"),
    ):
        hasher = ashlar.VllmHasher(algorithm, seed)
        digest = hasher.hash_block(None, range(1, 33))
        assert digest.hex() == first
        assert hasher.hash_block(digest, range(33, 65)).hex() == second
        assert ashlar.vllm_name(digest) == int(first[-16:], 16)
    salted = ashlar.VllmHasher("sha256", "0").hash_block(None, range(1, 33), cache_salt="tenant-a")
    assert salted.hex() == "5896d5749bf899f8984b51e9de22324cfb4a437883785b63d5605f76e4524d2e"
    with pytest.raises(ashlar.Unsupported):
        ashlar.VllmHasher("xxhash")
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.VllmHasher().hash_block(b"short", [1])
    digest = ashlar.sglang_hash_block(None, range(1, 17))
    assert ashlar.sglang_name(digest) == 8635429971592222890
    assert ashlar.sglang_name(ashlar.sglang_hash_block(digest, range(17, 33))) == 1256577331724852459
    assert ashlar.router_local_hash(range(16)) == 15310707395893867146
    assert ashlar.router_local_hash(range(16), [2, 1]) == ashlar.router_local_hash(range(16), [1, 2])
    assert len(ashlar.eagle_local_hashes(range(9), 4)) == 2


def test_names_have_no_columns_one_after_another():
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
    release.argtypes, release.restype = [ctypes.c_void_p], None
    strided, by_rows, by_columns, either = 0x18, 0x38, 0x58, 0x98
    for count, refused in ((0, ()), (1, ()), (2, (by_columns,))):
        names = ashlar.SequenceHashes([ashlar.SequenceHash.root(i) for i in range(count)])
        for flags in (strided, by_rows, by_columns, either):
            view = ctypes.create_string_buffer(256)
            if flags in refused:
                with pytest.raises(BufferError):
                    get(names, view, flags)
            else:
                get(names, view, flags)
                release(view)
