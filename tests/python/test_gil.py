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
from ashlar import replay

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


TOKENS = np.arange(1 << 17, dtype=np.uint32)  # 8192 blocks of 16
PROMPT = TOKENS[:1 << 16]


def naming():
    def once(do):
        do("hash_blocks", ashlar.SequenceHasher().hash_blocks, TOKENS, 16)
        sequence = do("TokenSequence", ashlar.TokenSequence, TOKENS, 16)
        assert do("extend", sequence.extend, TOKENS) == (8192, 16384)
    return once


def requests():
    manager = ashlar.BlockManager(3 * 4096, 16)

    def once(do):
        request = do("RequestSequence", ashlar.RequestSequence, manager, PROMPT)
        do("schedule_prefill", request.schedule_prefill, len(PROMPT))
        do("revert", request.revert)
        request.schedule_prefill(len(PROMPT))
        do("apply_prefill", request.apply_prefill, 1)
        forked = do("fork", request.fork, 5)
        do("preempt", forked.preempt)
        do("resume", forked.resume)
        do("release", request.release)
        kept = [forked]
        del forked
        do("dropped", kept.clear)
        manager.reset_inactive()
    return once


def index():
    def once(do):
        made = ashlar.Index("flash")
        locals_ = np.arange(1, 1 << 15, dtype=np.uint64)
        assert do("store", made.store, 1, locals_, locals_) == ashlar.StoreVerdict.APPLIED
        assert do("find_matches", made.find_matches, locals_).best.depth == len(locals_)
        do("dump", made.dump)
        assert do("remove", made.remove, 1, locals_[1 << 14:]) == len(locals_) - (1 << 14)
        do("clear", made.clear, 1)
        made.store(2, locals_, locals_)
        do("remove_worker", made.remove_worker, 2)
    return once


def feed():
    def once(do):
        made = ashlar.EngineFeed(ashlar.Index("flash"), 1, block_size=1)
        hashes = b"".join(b"\xce" + (1000 + i).to_bytes(4, "big") for i in range(1 << 14))
        ids = b"\xdc\x40\x00" + b"".join(b"\xce" + i.to_bytes(4, "big") for i in range(1 << 14))
        # [timestamp, [{type, block_hashes, parent_block_hash, token_ids, block_size}], rank]
        stored = (b"\x93\xca\x3f\x80\0\0\x91\x85\xa4type\xabBlockStored\xacblock_hashes\xdc\x40\x00" +
                  hashes + b"\xb1parent_block_hash\xc0\xa9token_ids" + ids + b"\xaablock_size\x01\x00")
        assert do("apply", made.apply, stored) == 1
        assert made.counters()["present"] == 1 << 14
    return once


def tiers():
    kv = ashlar.KvBlockManager(layers=1, heads=1, head_dim=8, block_size=16, g1_blocks=8192, g2_blocks=8192,
                               offload="on_call")

    def once(do):
        names = kv.hasher().hash_blocks(TOKENS, 16).sequence
        kv.g1.register(kv.g1.allocate(len(names)).stage(names)).release()
        handle = do("offload", kv.offload, names)
        do("wait", handle.wait)
        do("drain", kv.drain)
        do("presence", kv.presence, names)
        do("find", kv.find, names)
        pin = do("pin", kv.pin, names[:1024], 60)
        do("unpin", pin.release)
        do("set_retention", kv.set_retention, names, 50)
        do("reset", kv.reset, "g1")
        do("onboard", kv.onboard, names).release()
        kv.reset("g1")
        handle = do("onboard_async", kv.onboard_async, names)
        do("wait_onboard", handle.wait).release()
        do("reset_blocks", kv.reset_blocks, names)
    return once


def replays():
    def once(do):
        trace = do("generate", replay.Trace.generate, "chat,requests=300")
        do("replay_trace", replay.replay_trace, trace, g1=100)
    return once


def host_store():
    kv = ashlar.KvBlockManager(layers=1, heads=1, head_dim=8, block_size=1, g1_blocks=1, g2_blocks=1 << 13)

    def once(do):
        store = ashlar.HostStore(kv)
        keys = [i.to_bytes(16, "big") + bytes(4) for i in range(1 << 13)]
        job, chosen, _ = do("begin_store", store.begin_store, keys)
        assert len(chosen) == len(keys)
        do("end_job", store.end_job, job)
        do("forget_all", store.forget_all)
        do("close", store.close)
    return once


# Each part of the interface returns a function that makes its calls by `do`, which notes those during which
# the other thread ran.
@pytest.mark.parametrize("part", [naming, requests, index, feed, tiers, replays, host_store],
                         ids=lambda part: part.__name__)
def test_long_calls_give_the_gil_up(part):
    once, called, seen = part(), set(), set()
    with Beside() as beside:
        def do(name, call, *arguments, **named):
            called.add(name)
            made, ran = beside.ran_during(lambda: call(*arguments, **named))
            if ran:
                seen.add(name)
            return made

        for _ in range(2000):
            once(do)
            if seen == called:
                break
    assert seen == called


def test_a_sequence_that_is_extended_is_busy():
    sequence = ashlar.TokenSequence([], 16)
    ended, refused = threading.Event(), 0

    def extend():
        while not ended.is_set():
            try:
                sequence.extend(TOKENS)
                sequence.reset()
            except ashlar.InvalidArgument:
                pass  # the other thread is in extend()

    thread = threading.Thread(target=extend)
    thread.start()
    while not refused:
        try:
            assert sequence.block_count in (0, 8192)
            sequence.sequence_hashes, sequence.extend(TOKENS[:5000]), sequence.reset()
        except ashlar.InvalidArgument as error:
            assert "another thread" in str(error)
            refused += 1
    ended.set()
    thread.join()
    sequence.reset()
    assert sequence.extend(TOKENS[:32]) == (0, 2)


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
