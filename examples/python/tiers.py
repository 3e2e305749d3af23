"""Blocks go from G1 down to host memory and a file, and come back with their bytes, also after a restart."""

import tempfile

import ashlar
import numpy as np

SHAPE = dict(layers=4, heads=2, head_dim=64, block_size=16, dtype="f16", model="example")


def open_tiers(path):
    return ashlar.KvBlockManager(**SHAPE, g1_blocks=8, g2_blocks=32, g3_blocks=128, g3_path=path)


with tempfile.TemporaryDirectory() as folder:
    path = folder + "/g3"
    tokens = np.arange(6 * 16, dtype=np.uint32)

    with open_tiers(path) as kv:
        names = kv.hasher().hash_blocks(tokens, block_size=16)
        blocks = kv.g1.allocate(6)
        kv.array()[blocks.block_ids] = np.arange(6, dtype=np.float16).reshape(6, 1, 1, 1, 1, 1)  # "compute"
        kv.g1.register(blocks.stage(names.sequence)).release()
        kv.drain()  # what was registered is copied down in the background
        print("tiers of each block:", kv.presence(names.sequence).tolist())
        with kv.pin(names.sequence[:1], ttl=60):
            print("evicted from G1:", kv.reset("g1"), "of 6, one is pinned")

    with open_tiers(path) as kv:  # as after a restart: only the file is left
        for tier, first, count, _ in kv.find(names.sequence):
            print("found:", count, "blocks in", tier, "from block", first)
        with kv.onboard(names.sequence) as table:
            content = [float(kv.array(table[i]).max()) for i in range(len(table))]
            print("onboarded:", content)
        print("read from the file:", kv.status["g3"]["onboarded"])
