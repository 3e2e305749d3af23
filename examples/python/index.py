"""Which worker has most of a prompt: workers report blocks, the index answers; engines report by messages."""

import pathlib
import struct

import ashlar
import numpy as np

hasher = ashlar.SequenceHasher()
prompt = np.arange(10 * 16, dtype=np.uint32)
blocks = hasher.hash_blocks(prompt, block_size=16)
names = np.asarray(blocks.sequence)[:, 0].copy()  # any numbers do: a worker's own names of its blocks

index = ashlar.Index("flash")
index.store(1, blocks.local[:6], names[:6])
index.store(2, blocks.local[:4], names[:4])
index.store(2, blocks.local[4:9], names[4:9], tier="host", parent=int(names[3]))

for match in index.find_matches(blocks.local):
    print(f"worker {match.worker}: {match.depth} blocks, {match.device_depth} of them in its GPU")
index.remove(1, names[2:3])
print("after a removal:", index.find_matches(blocks.local).depths.tolist())

# What a vLLM published, as its socket delivers it: a recording of these messages.
recording = pathlib.Path(__file__).parents[2] / "tests" / "data" / "vllm" / "default.kvrec"
feed = ashlar.EngineFeed(index, worker=3)
data, at = recording.read_bytes(), 0
while at < len(data):
    (count,) = struct.unpack_from("<I", data, at)
    at, frames = at + 4, []
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, at)
        frames.append(data[at + 4:at + 4 + size])
        at += 4 + size
    feed.apply(frames[-1], sequence=int.from_bytes(frames[-2], "big"))
counters = feed.counters()
print(f"the engine: {counters['applied']} messages, {counters['lost']} lost, {counters['present']} blocks")
