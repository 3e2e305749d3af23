"""Ranks of a model that share volumes, peers and files: namespaces, degrees, hash schemes."""

import os
import subprocess

import ashlar
import numpy as np
import pytest

SHAPE = dict(layers=2, head_dim=8, block_size=4, dtype="f32", model="ranks", g1_blocks=8, g2_blocks=16)
TOKENS = np.arange(8, dtype=np.uint32)


def rank_of(rank, ranks, heads=4, **options):
    part = dict(heads=heads // ranks, rank=rank, ranks=ranks)
    return ashlar.KvBlockManager(**{**SHAPE, **part, **options})


def names_of(kv):
    return kv.hasher().hash_blocks(TOKENS, 4).sequence


def store(kv, first=0):
    """Two blocks in which head h of the rank holds first + h, plus 100 for the second block."""
    names = names_of(kv)
    blocks = kv.g1.allocate(len(names))
    for i, block in enumerate(blocks.block_ids):
        memory = kv.array()[block]  # layers, outer, tokens, heads, dim
        memory[:] = (first + 100 * i + np.arange(memory.shape[3]))[None, None, None, :, None]
    kv.g1.register(blocks.stage(names)).release()
    assert kv.drain(60)


def heads(kv):
    """What load() finds: the value of each head of each block."""
    with kv.onboard(names_of(kv), timeout=60) as found:
        memory = kv.array()
        out = []
        for block in found.block_ids:
            content = memory[block]
            assert (content == content[0, 0, 0, :, :1][None, None, None]).all()
            out.append(content[0, 0, 0, :, 0].tolist())
        return out


def peer(kv):
    return {"listen": "127.0.0.1:0", "peers": [kv.remote_address]}


def test_ranks_of_another_degree_read_from_peers():
    with rank_of(0, 1, remote={"listen": "127.0.0.1:0"}) as whole:
        store(whole)
        for rank in range(2):
            with rank_of(rank, 2, remote=peer(whole)) as half:
                assert heads(half) == [[2 * rank, 2 * rank + 1], [100 + 2 * rank, 101 + 2 * rank]]


def test_ranks_that_share_a_volume_find_their_own_blocks(tmp_path):
    def on_volume(rank, ranks, **options):
        kv = rank_of(rank, ranks, g4_blocks=32, **options)
        kv.register_volume("shared", "directory", tmp_path)
        return kv

    with on_volume(0, 2) as first, on_volume(1, 2) as second:
        store(first, 0)
        assert heads(second) == []
    with on_volume(1, 2) as second:
        store(second, 2)
    with on_volume(0, 1) as whole:
        assert heads(whole) == []
    with on_volume(0, 1, other_ranks=[2]) as whole:
        assert heads(whole) == [[0, 1, 2, 3], [100, 101, 102, 103]]
    with on_volume(3, 4, other_ranks=[2]) as quarter:
        assert heads(quarter) == [[3], [103]]
    with on_volume(0, 2, model="other", other_ranks=[1]) as other:
        assert heads(other) == []


def test_more_ranks_than_heads_share_a_namespace(tmp_path):
    options = dict(heads=1, model_heads=1, g4_blocks=32)
    with ashlar.KvBlockManager(**SHAPE, **options) as whole:
        whole.register_volume("shared", "directory", tmp_path)
        store(whole, 7)
    with ashlar.KvBlockManager(**SHAPE, **options, rank=1, ranks=2, other_ranks=[1]) as replica:
        replica.register_volume("shared", "directory", tmp_path)
        assert heads(replica) == [[7], [107]]


def test_stages_of_a_pipeline(tmp_path):
    stage = {**SHAPE, "layers": 1, "model_layers": 2, "heads": 4, "g4_blocks": 32}
    with ashlar.KvBlockManager(**{**SHAPE, "heads": 4, "g4_blocks": 32}) as whole:
        whole.register_volume("shared", "directory", tmp_path)
        store(whole, 3)
    with ashlar.KvBlockManager(**stage, first_layer=1, other_ranks=[1]) as second:
        second.register_volume("shared", "directory", tmp_path)
        assert heads(second) == [[3, 4, 5, 6], [103, 104, 105, 106]]


@pytest.mark.parametrize("options,word", [
    (dict(rank=2, ranks=2), "rank 2 of 2"),
    (dict(rank=1), "rank 1 of 1"),
    (dict(ranks=2, model_heads=8), "8 KV heads"),
    (dict(ranks=0), "at least one rank"),
    (dict(first_layer=1), "model_layers"),
    (dict(first_layer=1, model_layers=2), "beyond model_layers"),
    (dict(other_ranks=[2]), "other_ranks"),
    (dict(other_ranks=[3], g4_blocks=8), "3 ranks"),
])
def test_what_does_not_add_up_is_refused(options, word):
    with pytest.raises(ashlar.InvalidArgument, match=word):
        ashlar.KvBlockManager(**SHAPE, heads=2, **options)


def test_names_have_the_scheme_of_the_manager():
    scheme = ashlar.HashScheme("xxh64_int64")
    with rank_of(0, 1, scheme=scheme) as kv:
        assert kv.hasher().scheme == scheme and kv.hasher(scheme=scheme) == kv.hasher()
        with pytest.raises(ashlar.InvalidArgument, match="xxh64_int64"):
            kv.hasher(scheme=ashlar.HashScheme())
        with pytest.raises(ashlar.InvalidArgument, match="xxh64_int64"):
            ashlar.RequestSequence(kv.g1, TOKENS, hasher=ashlar.SequenceHasher())
        with ashlar.RequestSequence(kv.g1, TOKENS) as request:
            assert list(request.sequence_hashes) == list(names_of(kv))


def test_a_file_of_the_c_interface_opens_here_and_the_other_way(tmp_path):
    program = os.environ.get("ASHLAR_C_SHARED_FILE")
    if not program:
        pytest.skip("ctest names the program that uses the C interface")

    def run(verb, file):
        return subprocess.run([program, verb, file], capture_output=True, text=True, check=True).stdout

    shape = dict(layers=2, heads=2, head_dim=8, dtype="f16", model="shared", rank=1, ranks=2, g1_blocks=8,
                 g2_blocks=8, g3_blocks=8)
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    run("store", theirs)
    with ashlar.KvBlockManager(**shape, g3_path=theirs) as kv:
        names = kv.hasher().hash_blocks(np.arange(16, dtype=np.uint32), 16).sequence
        with kv.onboard(names, timeout=60) as found:
            assert len(found) == 1
            assert (kv.array()[found.block_ids[0]].view(np.uint8) == 0x3C).all()
    with ashlar.KvBlockManager(**shape, g3_path=ours) as kv:
        blocks = kv.g1.allocate(1)
        kv.array()[blocks.block_ids[0]].view(np.uint8)[:] = 0x3C
        kv.g1.register(blocks.stage(names)).release()
        kv.drain(60)
    assert run("load", ours) == "1 blocks, 3c to 3c\n"
