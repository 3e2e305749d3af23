"""Random calls from several threads, with stale guards, exceptions and collections at random points.

Whatever was called, every block is back at the end, and the pools are whole. A seed of the clock is printed:
`ASHLAR_FUZZ_SEED=… pytest tests/python/test_fuzz.py` repeats it (exactly with one thread).
"""

import concurrent.futures
import gc
import os
import random
import sys
import time

import ashlar
import ashlar._native
import numpy as np
import pytest

BLOCK_SIZE = 4
SEEDS = [1, 2, 3, int(os.environ.get("ASHLAR_FUZZ_SEED", time.time_ns() % 2**32))]


BIG_NAMES = ashlar.SequenceHasher().hash_blocks(range(300 * BLOCK_SIZE), BLOCK_SIZE).sequence


class Interrupted(Exception):
    """Raised in the middle of a `with`."""


class Caller:
    """One thread's objects, of every state, and random calls of them. Refusals are expected."""

    def __init__(self, managers, seed, steps):
        self.random = random.Random(seed)
        self.managers = managers
        self.steps = steps
        self.kept = []  # guards, requests and the like, used up or not
        self.signals = []  # of every fence: one that is lost would keep its blocks forever
        self.calls = 0

    def prompt(self):
        start = self.random.choice((0, 0, 0, 100))
        length = self.random.randint(1, 6 * BLOCK_SIZE)
        kind = self.random.choice((np.uint32, np.int64, list, np.int32))
        tokens = range(start, start + length)
        return list(tokens) if kind is list else np.array(tokens, kind)

    def any_of(self, *types):
        found = [item for item in self.kept if isinstance(item, types)]
        return self.random.choice(found) if found else None

    def new_fence(self):
        self.signals.append(ashlar.FenceSignal())
        return self.signals[-1].fence

    def keep(self, item):
        if item is not None:
            self.kept.append(item)

    # Each takes a random object of its kind, which may be used up, and keeps what comes of it.

    def allocate(self):
        manager = self.random.choice(self.managers)
        timeout = self.random.choice((None, None, None, 0.0, 0.0005))
        self.keep(manager.allocate(self.random.randint(0, 5), timeout))

    def allocate_block(self):
        self.keep(self.random.choice(self.managers).allocate_block())

    def complete_list(self):
        blocks = self.any_of(ashlar.MutableBlocks)
        if blocks is None:
            return
        first = self.random.choice((0, 0, 1))
        length = (len(blocks) + first) * BLOCK_SIZE - self.random.choice((0, 0, 1))
        text = ashlar.TokenSequence(range(length), BLOCK_SIZE)
        if self.random.random() < 0.5:
            self.keep(blocks.complete(text, first))
        else:
            self.keep(blocks.stage(text.sequence_hashes[first:]))

    def register(self):
        block = self.any_of(ashlar.CompleteBlocks, ashlar.CompleteBlock)
        if block is not None:
            self.keep(self.random.choice(self.managers).register(block, priority=self.random.randint(0, 100)))

    def begin(self):
        block = self.any_of(ashlar.MutableBlock)
        if block is None:
            return
        if self.random.random() < 0.3:
            self.keep(block.stage(ashlar.SequenceHash.root(self.random.randint(0, 3))))
        else:
            self.keep(block.init_sequence())

    def fill(self):
        block = self.any_of(ashlar.PartialBlock)
        if block is None:
            return
        if self.random.random() < 0.7:
            block.add_tokens(self.prompt()[: self.random.randint(0, BLOCK_SIZE)])
        else:
            block.pop_tokens(self.random.randint(0, 3))

    def advance(self):
        block = self.any_of(
            ashlar.PartialBlock, ashlar.ScheduledBlock, ashlar.InflightBlock, ashlar.CompleteBlock
        )
        if isinstance(block, ashlar.PartialBlock):
            self.keep(self.random.choice((block.schedule, block.commit, block.reset))())
        elif isinstance(block, ashlar.ScheduledBlock):
            if self.random.random() < 0.3:
                self.keep(block.cancel())
            else:
                self.keep(block.launch(self.new_fence()))
        elif isinstance(block, ashlar.InflightBlock):
            self.keep(block.compute_done())
        elif block is not None:
            self.keep(block.reset())

    def signal(self):
        while len(self.signals) > 3:
            self.signals.pop(self.random.randrange(len(self.signals))).signal()

    def match(self):
        manager = self.random.choice(self.managers)
        hashes = ashlar.SequenceHasher().hash_blocks(self.prompt(), BLOCK_SIZE)
        way = self.random.randrange(4)
        if way == 0:
            self.keep(manager.match(hashes.sequence, hashes.prefix))
        elif way == 1:
            self.keep(manager.match(list(hashes.sequence)))
        elif way == 2:
            for block in manager.match_scattered(hashes.sequence.numpy()):
                self.keep(block)
        else:
            self.keep(manager.match_sequence(ashlar.TokenSequence(self.prompt(), BLOCK_SIZE)))

    def batch_many(self):
        # Enough blocks that the library works without the GIL.
        names = BIG_NAMES[: self.random.randint(250, 300)]
        with self.managers[-1].register(self.managers[-1].allocate(len(names)).stage(names)) as blocks:
            self.keep(self.managers[-1].match(names.numpy()))
            self.keep(blocks[:2])

    def share(self):
        block = self.any_of(ashlar.ImmutableBlock, ashlar.ImmutableBlocks, ashlar.WeakBlock)
        if isinstance(block, ashlar.WeakBlock):
            self.keep(block.upgrade())
        elif isinstance(block, ashlar.ImmutableBlocks):
            way = self.random.randrange(4)
            if way == 0:
                self.keep(block[self.random.randint(-3, 3)])
            elif way == 1:
                self.keep(block[:: self.random.choice((1, 2, -1))])
            elif way == 2:
                block.truncate(self.random.randint(0, 4))
            else:
                self.keep(block.pop())
        elif block is not None:
            way = self.random.randrange(5)
            if way == 0:
                self.keep(block.copy())
            elif way == 1:
                self.keep(block.downgrade())
            elif way == 2:
                self.keep(block.pin(self.random.choice((0, 0.001, 60))))
            elif way == 3:
                block.set_retention(self.random.randint(-1, 101))
            else:
                block.release_after(self.new_fence())

    def release(self):
        item = self.any_of(object)
        if hasattr(item, "release"):
            item.release()

    def forget(self):
        if self.kept:
            del self.kept[self.random.randrange(len(self.kept))]

    def interrupt(self):
        manager = self.random.choice(self.managers)
        with manager.allocate(self.random.randint(0, 3)) as blocks:
            if self.random.random() < 0.5:
                self.keep(blocks.stage([ashlar.SequenceHash.root(self.random.randint(0, 9))] * len(blocks)))
            raise Interrupted

    def request(self):
        manager = self.random.choice(self.managers)
        windows = self.random.choice(([], [], [None, 6]))
        request = ashlar.RequestSequence(manager, self.prompt(), max_tokens=40, windows=windows)
        self.keep(request)
        if self.random.random() < 0.8:
            request.match_prefix()
        if self.random.random() < 0.6:
            request.schedule_prefill(request.tokens_to_compute)
            request.apply_prefill(self.random.randint(0, 5))

    def step(self):
        request = self.any_of(ashlar.RequestSequence)
        if request is None:
            return
        token = self.random.randint(0, 5)
        self.random.choice((
            lambda: request.schedule_prefill(self.random.randint(0, max(1, request.tokens_to_compute))),
            lambda: request.apply_prefill(self.random.choice((None, token))),
            request.schedule_decode,
            lambda: request.apply_decode(token),
            lambda: request.schedule_speculative(3),
            lambda: request.apply_speculative([token] * self.random.randint(0, 5)),
            request.revert,
            request.preempt,
            request.resume,
            lambda: request.begin_match(lambda: 1 / 0),
            lambda: self.keep(request.fork(self.random.choice((None, token)))),
            lambda: request.block_table(self.random.randint(0, 2)),
            lambda: request.sequence_hashes,
            request.release,
            lambda: request.release_after(self.new_fence()),
        ))()

    def batch(self):
        requests = [item for item in self.kept if isinstance(item, ashlar.RequestSequence)]
        batch = ashlar.SequenceBatch()
        for request in self.random.sample(requests, min(len(requests), self.random.randint(0, 4))):
            batch.add(request)
        self.keep(batch)
        way = self.random.randrange(4)
        if way == 0:
            batch.schedule_prefill([self.random.randint(1, 4)] * len(batch))
            batch.apply_prefill([self.random.choice((None, 1))] * len(batch))
        elif way == 1:
            batch.schedule_decode()
            batch.apply_decode(np.arange(self.random.choice((len(batch), 2)), dtype=np.uint32))
        elif way == 2:
            batch.revert()
        else:
            batch.release()

    def look(self):
        manager = self.random.choice(self.managers)
        assert manager.status.total == manager.block_count
        manager.eviction_candidates(3)
        manager.describe(self.random.randint(0, manager.block_count))
        manager.reset_inactive()

    def collect(self):
        gc.collect(self.random.randint(0, 1))

    def run(self):
        actions = [getattr(self, name) for name in (
            "allocate", "allocate_block", "complete_list", "register", "begin", "fill", "advance", "advance",
            "signal", "match", "share", "release", "forget", "forget", "interrupt", "request", "step", "step",
            "step", "batch", "batch_many", "look")]
        for _ in range(self.steps):
            self.calls += 1
            try:
                self.random.choice(actions)()
                while len(self.kept) > 30:
                    self.forget()
            except (ashlar.AshlarError, Interrupted, ValueError, IndexError):
                pass
            if self.calls % 100 == 0:
                self.collect()

    def end(self):
        """Passes every fence, then gives everything back in a random order."""
        while self.signals:
            self.signals.pop().signal()
        self.random.shuffle(self.kept)
        while self.kept:
            item = self.kept.pop()
            if hasattr(item, "release") and self.random.random() < 0.5:
                item.release()


def unseen(managers):
    """What a run is for, and has not happened yet."""
    wanted = {"registrations": 100, "match_blocks_returned": 50, "quarantines": 2, "evictions": 5}
    counters = [manager.counters for manager in managers[:2]]
    return [name for name, least in wanted.items() if sum(counter[name] for counter in counters) < least]


@pytest.fixture(autouse=True)
def frequent_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("threads, sharing", [(1, False), (4, False), (4, True)])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_call_leaks_or_breaks_a_block(seed, threads, sharing, monkeypatch, capfd):
    with capfd.disabled():
        if seed == SEEDS[-1]:
            print(f" seed {seed}, {threads} threads", end="")
    monkeypatch.setattr("sys.unraisablehook", lambda report: None)
    eviction = ashlar.eviction_names()[seed % len(ashlar.eviction_names())]
    managers = [
        ashlar.BlockManager(20 + 10 * threads, BLOCK_SIZE, eviction=eviction),
        ashlar.BlockManager(6 * threads, BLOCK_SIZE, duplicates="reject"),
        ashlar.BlockManager(900 * threads, BLOCK_SIZE),
    ]
    callers = [Caller(managers, seed * 100 + index, 1200 // threads) for index in range(threads)]
    for caller in callers:
        if sharing:  # guards, too, are used by several threads
            caller.kept, caller.signals = callers[0].kept, callers[0].signals
    deadline = time.monotonic() + float(os.environ.get("ASHLAR_TEST_SECONDS", 0)) / len(SEEDS) / 3
    for _ in range(100000):
        if threads == 1:
            callers[0].run()
        else:
            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                for running in [pool.submit(caller.run) for caller in callers]:
                    running.result()
        if not unseen(managers) and time.monotonic() >= deadline:
            break
    assert not unseen(managers), "the fuzzer is idle"
    for caller in callers:
        caller.end()
    for manager in managers:
        status = manager.status
        assert (status.active, status.owned, status.quarantined, status.waiters) == (0, 0, 0, 0)
        assert status.reset + status.inactive + status.pinned_inactive == manager.block_count
        ashlar._native._check_invariants(manager)
        with manager.allocate(manager.available):
            pass

