"""Calls on many blocks let other threads run.

With a switch interval that never ends, another thread gets the GIL only where a call gives it up. Whether it
is quick enough to take it is luck, so every call is repeated until it was seen.
"""

import sys
import threading
import time

import ashlar
import numpy as np
import pytest

BLOCKS = 4096


class Beside:
    """Counts on a thread of its own, whenever that may run."""

    def __enter__(self):
        self.before, self.count, self.ended = sys.getswitchinterval(), 0, False
        sys.setswitchinterval(3600)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        while not self.ended:
            self.count += 1
            time.sleep(0)

    def ran_during(self, call, *arguments):
        before = self.count
        made = call(*arguments)
        return made, self.count != before

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()
        sys.setswitchinterval(self.before)


NAMES = ("allocate", "stage", "complete", "register", "match", "match_sequence", "match_scattered",
         "registered", "candidates", "release", "reset_inactive", "evicting")


def test_lists_of_blocks_give_the_gil_up():
    manager = ashlar.BlockManager(2 * BLOCKS, 4)
    sequence = ashlar.TokenSequence(np.arange(4 * BLOCKS, dtype=np.uint32), 4)
    names = ashlar.SequenceHasher().hash_blocks(np.arange(4 * BLOCKS, dtype=np.uint32), 4).sequence
    seen = set()

    with Beside() as beside:
        def do(name, call, *arguments):
            made, ran = beside.ran_during(call, *arguments)
            if ran:
                seen.add(name)
            return made

        for _ in range(2000):
            empty = do("allocate", manager.allocate, BLOCKS)
            do("complete", empty.complete, sequence).release()
            full = do("stage", manager.allocate(BLOCKS).stage, names)
            blocks = do("register", manager.register, full)
            do("match", manager.match, names).release()
            do("match_sequence", manager.match_sequence, sequence).release()
            do("match_scattered", manager.match_scattered, names).clear()
            do("registered", manager.registered)
            do("release", blocks.release)
            do("candidates", manager.eviction_candidates, BLOCKS)
            do("reset_inactive", manager.reset_inactive)
            do("evicting", manager.allocate_with_evictions, BLOCKS)[0].release()
            if seen == set(NAMES):
                break
    assert seen == set(NAMES)
    assert manager.available == 2 * BLOCKS


def test_batches_give_the_gil_up():
    requests = 2048
    manager = ashlar.BlockManager(26 * requests, 16)
    batch, seen = ashlar.SequenceBatch(), set()
    members = [ashlar.RequestSequence(manager, range(17), max_tokens=400) for _ in range(requests)]
    for member in members:
        batch.add(member)
    with Beside() as beside:
        def do(name, call, *arguments):
            made, ran = beside.ran_during(call, *arguments)
            if ran:
                seen.add(name)
            return made

        do("schedule_prefill", batch.schedule_prefill, [17] * requests)
        do("revert", batch.revert)
        for _ in range(2000):
            if "schedule_prefill" in seen and "revert" in seen:
                break
            do("schedule_prefill", batch.schedule_prefill, [17] * requests)
            do("revert", batch.revert)
        batch.schedule_prefill([17] * requests)
        batch.apply_prefill([1] * requests)
        for _ in range(380):
            do("schedule_decode", batch.schedule_decode)
            do("apply_decode", batch.apply_decode, [1] * requests)
            if len(seen) == 4:
                break
    assert len(seen) == 4
    batch.release()


def test_a_busy_request_is_not_added_to_a_batch():
    # Both threads that onboard are in callbacks, so that finish_match() waits: the one for all calls, and the
    # one that calls whose blocks are in memory have while the other is busy.
    kv = ashlar.KvBlockManager(layers=1, heads=1, head_dim=8, block_size=4, g1_blocks=16, g2_blocks=16,
                               onboard_threads=1)
    prompt = np.arange(18, dtype=np.uint32)
    names = kv.hasher().hash_blocks(prompt, 4).sequence
    kv.g1.register(kv.g1.allocate(4).stage(names)).release()
    kv.drain()
    kv.reset("g1")
    go_on = threading.Event()
    for _ in range(2):
        begun = threading.Event()
        kv.onboard_async(names[:1], on_done=lambda event=begun: (event.set(), go_on.wait()))
        begun.wait()
    request, batch = ashlar.RequestSequence(kv.g1, prompt, hasher=kv.hasher()), ashlar.SequenceBatch()
    assert request.begin_match(lambda: None).pending
    waiting = threading.Thread(target=request.finish_match)
    waiting.start()
    while True:
        try:
            batch.add(request)
            batch.clear()
        except ashlar.InvalidArgument as error:
            assert "another thread" in str(error)
            break
    assert len(batch) == 0
    go_on.set()
    waiting.join()
    batch.add(request)
    assert len(batch) == 1
    with pytest.raises(ashlar.InvalidArgument):
        batch.add(request)
    batch.release()
    kv.close()
