"""What Python adds: small calls beside an empty call of the binding, batches beside the same work in C++.

usage: overhead.py [--check]      with an interpreter that has the package `ashlar`

--check fails when a small call takes more than 1.5 µs, or when a batch has less than 0.5 of the speed of C++.
"""

import argparse
import sys
import timeit

import ashlar
import numpy as np
from ashlar import _native

SMALL_LIMIT = 1.5e-6
LEAST_BATCH = 0.5
BLOCKS = 512
REQUESTS = 128
BLOCK_SIZE = 16
ROUNDS = 200


def best_time(statement, names, number, repeats=15):
    """The least of several: what is above it is other work of the machine."""
    return min(timeit.Timer(statement, globals=names).repeat(repeats, number)) / number


def small_calls():
    """Seconds per statement, by name."""
    manager = ashlar.BlockManager(4096, BLOCK_SIZE)
    hasher = ashlar.SequenceHasher()
    text = ashlar.TokenSequence(range(4 * BLOCK_SIZE), BLOCK_SIZE)
    shared = manager.register(manager.allocate(4).complete(text))
    request = ashlar.RequestSequence(manager, range(64), max_tokens=1 << 20)
    request.schedule_prefill(64)
    request.apply_prefill(1)
    index = ashlar.Index("flash")
    locals_ = hasher.hash_blocks(range(4 * BLOCK_SIZE), BLOCK_SIZE).local
    for worker in range(4):
        index.store(worker, locals_, locals_)
    names = {
        "bare": _native._bare,
        "index": index,
        "locals_": locals_,
        "manager": manager,
        "hasher": hasher,
        "tokens": np.arange(BLOCK_SIZE, dtype=np.uint32),
        "hashes": text.sequence_hashes,
        "shared": shared,
        "block": shared[0],
        "request": request,
        "table": np.zeros(8192, np.uint32),
    }
    calls = {
        "an empty call": "bare()",
        "manager.available": "manager.available",
        "block.block_id": "block.block_id",
        "allocate a block, give it back": "manager.allocate_block().release()",
        "match 4 blocks, give them back": "manager.match(hashes).release()",
        "copy a reference, give it back": "block.copy().release()",
        "local hash of 16 tokens in numpy": "hasher.local_hash(tokens)",
        "names as numpy, without a copy": "hashes.numpy()",
        "request.computed_tokens": "request.computed_tokens",
        "block table into an array": "request.block_table_into(table)",
        "index.find_matches: 4 blocks, 4 workers": "index.find_matches(locals_)",
        "index.store: 4 blocks": "index.store(1, locals_, locals_)",
        "a decode step: schedule": "request.schedule_decode(); request.revert()",
        "a decode step: schedule, apply": "request.schedule_decode(); request.apply_decode(5)",
    }
    measured = {}
    for what, statement in calls.items():
        seconds = best_time(statement, names, 2000 if "decode" in statement else 10000)
        measured[what] = seconds / (1 + statement.count(";") + statement.count(").release"))
    return measured


def batches():
    """The least seconds per round, in Python and in C++, of interleaved runs, by name."""
    manager = ashlar.BlockManager(REQUESTS * (ROUNDS + 32) // BLOCK_SIZE + 4 * BLOCKS, BLOCK_SIZE)
    hasher = ashlar.SequenceHasher()
    tokens = np.arange(BLOCKS * BLOCK_SIZE, dtype=np.uint32)
    names = hasher.hash_blocks(tokens, BLOCK_SIZE).sequence
    manager.register(manager.allocate(BLOCKS).stage(names)).release()
    next_tokens = np.arange(REQUESTS, dtype=np.uint32)

    def timed_decode():
        batch = ashlar.SequenceBatch()
        for index in range(REQUESTS):
            batch.add(ashlar.RequestSequence(manager, [index], max_tokens=ROUNDS + 8))
        batch.schedule_prefill([1] * REQUESTS)
        batch.apply_prefill([1] * REQUESTS)

        def step():
            batch.schedule_decode()
            batch.apply_decode(next_tokens)

        return timeit.timeit(step, number=ROUNDS) / ROUNDS

    works = {
        f"hash {BLOCKS} blocks": ("hash", BLOCKS, lambda: hasher.hash_blocks(tokens, BLOCK_SIZE)),
        f"match {BLOCKS} blocks, give them back": ("match", BLOCKS, lambda: manager.match(names)),
        f"allocate, stage, register {BLOCKS}, give back": (
            "register", BLOCKS, lambda: manager.register(manager.allocate(BLOCKS).stage(names))),
        f"a decode step of {REQUESTS} requests": ("decode", REQUESTS, None),
    }
    measured = {}
    for what, (name, count, work) in works.items():
        runs = []
        for _ in range(15):
            here = timed_decode() if work is None else timeit.timeit(work, number=ROUNDS) / ROUNDS
            runs.append((here, _native._time_batch(manager, name, count, ROUNDS)))
        here, native = (min(times) for times in zip(*runs, strict=True))
        measured[what] = (here, native)
    return measured


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    failed = []
    small = small_calls()
    bare = small["an empty call"]
    print(f"{'one call':45} {'ns':>8} {'of an empty call':>18}")
    for what, seconds in small.items():
        print(f"{what:45} {seconds * 1e9:8.0f} {seconds / bare:18.1f}")
        if seconds > SMALL_LIMIT:
            failed.append(what)
    print(f"\n{'batch':45} {'us':>8} {'us in C++':>10} {'speed of C++':>13}")
    for what, (here, native) in batches().items():
        print(f"{what:45} {here * 1e6:8.1f} {native * 1e6:10.1f} {native / here:13.2f}")
        if native / here < LEAST_BATCH:
            failed.append(what)
    if options.check and failed:
        print("too slow: " + ", ".join(failed), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
