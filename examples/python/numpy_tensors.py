"""An engine's own numpy arrays become G1, without a copy: what the engine computes is what is offloaded."""

import ashlar
import numpy as np

LAYERS, BLOCKS, TOKENS, HEADS, DIM = 2, 8, 16, 2, 64

# As the engine has it: per layer K and V, blocks, heads before tokens.
engine = np.zeros((LAYERS, 2, BLOCKS, HEADS, TOKENS, DIM), np.float32)

# As Ashlar names the axes: blocks, layers, K/V, tokens, heads, dim. A view; nothing moves.
view = engine.transpose(2, 0, 1, 4, 3, 5)
with ashlar.KvBlockManager(layers=LAYERS, heads=HEADS, head_dim=DIM, block_size=TOKENS, dtype="f32",
                           g1_memory=view, g2_blocks=32) as kv:
    print("G1 is the engine's array:", np.shares_memory(kv.array(), engine))

    block = kv.g1.allocate_block()
    engine[:, :, block.block_id] = 3.5  # the engine's kernel
    name = kv.hasher().hash_blocks(np.arange(TOKENS, dtype=np.uint32), TOKENS).sequence[0]
    kv.g1.register(block.stage(name)).release()
    kv.drain()

    kv.reset("g1")
    engine[:] = 0  # the memory is used for something else
    with kv.onboard([name]) as table:
        print("back in the engine's array:", bool((engine[:, :, table.block_ids[0]] == 3.5).all()))
        one = kv.array(table[0])
        print("one block:", one.shape, one.dtype, "writable" if one.flags.writeable else "read-only")
        print("by DLPack:", np.shares_memory(np.from_dlpack(kv.tensor(table[0])), engine))
