"""Copies between an engine's pages and the slots of G2, beside one contiguous copy of as many bytes.

    PYTHONPATH=$PWD/build/vllm-site PYTHON bench/python/page_copies.py [--tokens N] [--rounds N]

PYTHON has torch. Pages as vLLM lays them out for a Llama of 92 million parameters in bfloat16 and for the
8 layers of a larger one: blocks of 32 tokens, a tensor for each layer. On the host, by one thread as between
steps and by all cores as within one; with the checksum of each slot in the same pass, and before the copy.
On a CUDA device where there is one. A rate counts the bytes of pages once; each is the median of --rounds.
"""
import argparse
import os
import statistics
import time

import numpy as np
import torch
from ashlar import _native
from ashlar._page_copies import PageCopier, Piece

BLOCK = 32
SHAPES = {"8 layers of 4 heads of 64": (8, 32 << 10), "8 layers of 8 heads of 128": (8, 128 << 10)}


class Bench:
    def __init__(self, layers, page, tokens, device):
        self.count = tokens // BLOCK
        self.device = device
        spare = 2 * self.count
        self.tensors = [torch.ones((spare, page), dtype=torch.int8, device=device) for _ in range(layers)]
        self.slots = np.ones((spare, layers * page), np.uint8)
        pieces = [Piece(i, 0, i * page, page, page) for i in range(layers)]
        self.copier = PageCopier(self.tensors, [pieces], self.slots)
        order = np.random.default_rng(1)
        blocks, self.named = (order.permutation(spare)[:self.count] for _ in range(2))
        self.places = self.copier.places(blocks, [self.count], [0], self.named)
        self.bytes = self.count * layers * page
        self.parts = (np.uint64(self.slots.ctypes.data)
                      + self.named.astype(np.uint64) * np.uint64(self.slots.strides[0]))
        self.flat = torch.ones(self.bytes, dtype=torch.int8)
        self.flat = self.flat if device == "cpu" else self.flat.pin_memory()
        self.other = torch.ones(self.bytes, dtype=torch.int8, device=device)

    def rows(self):
        size, cores = self.slots.shape[1], len(os.sched_getaffinity(0))

        def check_then_load(threads):
            _native._checksums(self.parts, size)
            self.copier.load(self.places, None, threads)
        yield "one contiguous copy, for comparison", lambda: self.other.copy_(self.flat)
        yield "store", lambda: self.copier.store(self.places)
        yield "load", lambda: self.copier.load(self.places)
        if self.device != "cpu":
            return
        yield f"load, {cores} threads", lambda: self.copier.load(self.places, None, cores)
        yield "check, then load", lambda: check_then_load(1)
        yield "check and load in one pass", lambda: self.checked(size, 1)
        yield f"check and load in one pass, {cores} threads", lambda: self.checked(size, cores)

    def checked(self, size, threads):
        assert self.copier.load_checked(self.places, self.parts, size, threads) is not None

    def seconds(self, what, rounds):
        what()
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            what()
            if self.device != "cpu":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=3488)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for device in ("cpu", "cuda"):
        if device == "cuda" and not torch.cuda.is_available():
            print("page_copies: no CUDA device here: its rows are left out")
            continue
        for name, (layers, page) in SHAPES.items():
            bench = Bench(layers, page, options.tokens, device)
            print(f"{device}, {name}: {bench.count} blocks, {bench.bytes / 1e6:.1f} MB")
            base = None
            for row, what in bench.rows():
                took = bench.seconds(what, options.rounds)
                base = base or took
                print(f"  {row:<42} {1e3 * took:8.2f} ms {bench.bytes / took / 1e9:7.2f} GB/s"
                      f" {base / took:6.2f}")
            bench.copier.close()


if __name__ == "__main__":
    main()
