"""The same with tensors of torch, on the host, and on a GPU where there is one."""

import sys

import ashlar

try:
    import torch
except ImportError:
    print("torch is not installed: nothing to show")
    sys.exit(0)

LAYERS, BLOCKS, TOKENS, HEADS, DIM = 2, 8, 16, 2, 64


def show(device):
    # One tensor per layer, as engines allocate them.
    layers = [torch.zeros((BLOCKS, 2, TOKENS, HEADS, DIM), dtype=torch.bfloat16, device=device)
              for _ in range(LAYERS)]
    with ashlar.KvBlockManager(layers=LAYERS, heads=HEADS, head_dim=DIM, block_size=TOKENS, dtype="bf16",
                               g1_memory=layers, g2_blocks=32) as kv:
        block = kv.g1.allocate_block()
        for layer in layers:
            layer[block.block_id] = 3.5
        if device == "cuda":
            torch.cuda.synchronize()  # the block is complete when its bytes are there
        name = kv.hasher().hash_blocks(list(range(TOKENS)), TOKENS).sequence[0]
        kv.g1.register(block.stage(name)).release()
        kv.drain()
        kv.reset("g1")
        for layer in layers:
            layer.zero_()
        if device == "cuda":
            torch.cuda.synchronize()
        with kv.onboard([name]) as table:
            back = torch.from_dlpack(kv.tensor(layer=1))[int(table.block_ids[0])]
            same = back.data_ptr() == layers[1][int(table.block_ids[0])].data_ptr()
            print(f"{device}: {tuple(back.shape)} {back.dtype}, without a copy: {same}, "
                  f"its bytes are back: {bool((back == 3.5).all())}")


show("cpu")
if torch.cuda.is_available():
    show("cuda")
