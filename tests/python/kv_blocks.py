"""Small managers with bytes, for the tests of tiers."""

import ashlar
import numpy as np

SHAPE = dict(layers=2, heads=2, head_dim=8, block_size=4, dtype="f32")
ONE = (2, 2, 4, 2, 8)  # the axes of one block: layers, outer, tokens, heads, dim


def make(**options):
    return ashlar.KvBlockManager(**{**SHAPE, "g1_blocks": 8, **options})


def names_of(kv, blocks, seed=0):
    """The hashes of a sequence of that many blocks."""
    tokens = (np.arange(blocks * 4, dtype=np.uint32) + 1000 * seed) % 50000
    return kv.hasher().hash_blocks(tokens, 4)


def content(hash_):
    """What the tests write into the block of a name."""
    return np.random.default_rng(hash_.chain).random(ONE, dtype=np.float32)


def store(kv, hashes):
    """Computes, completes and registers blocks of these names; returns the guards."""
    blocks = kv.g1.allocate(len(hashes))
    memory = kv.array()
    for id_, hash_ in zip(blocks.block_ids, hashes):
        memory[id_] = content(hash_)
    return kv.g1.register(blocks.stage(hashes))


def check(kv, guards, hashes):
    """The guards are the blocks of these names, with their bytes."""
    assert list(guards.sequence_hashes) == list(hashes)
    for i, hash_ in enumerate(hashes):
        assert np.array_equal(kv.array(guards[i]), content(hash_))
