"""Random calls of tiers from several threads, with failures, dropped objects and collections in between.

At the end every block is back, and the bytes of whatever was found were those of its name.
"""

import gc
import os
import random
import threading

import ashlar
import numpy as np
import pytest
from kv_blocks import content, make, names_of, store

CALLS = int(os.environ.get("ASHLAR_FUZZ_CALLS", "250"))
SEEDS = [1, 2]
if "ASHLAR_FUZZ_SEED" in os.environ:
    SEEDS = [int(os.environ["ASHLAR_FUZZ_SEED"])]
elif float(os.environ.get("ASHLAR_TEST_SECONDS", 0)) > 0:  # a long run looks for more
    SEEDS.append(random.SystemRandom().randrange(1 << 30))


class Caller:
    """One thread's random calls; keeps a few objects of every kind and drops them in any order."""

    def __init__(self, kv, seed):
        self.kv, self.rng, self.kept, self.signals = kv, random.Random(seed), [], []
        self.calls = [self.store, self.onboard, self.onboard_async, self.offload, self.pin, self.view,
                      self.find, self.reset, self.wait, self.wrong, self.signal, self.drop, self.drop]

    def names(self):
        return names_of(self.kv, self.rng.randrange(1, 5), seed=self.rng.randrange(5)).sequence

    def run(self):
        for _ in range(CALLS):
            try:
                self.rng.choice(self.calls)()
            except (ashlar.CapacityError, ashlar.Timeout, ashlar.Cancelled, ashlar.NotFound):
                pass
            if len(self.kept) > 12:
                self.drop()
        self.signals.clear()
        self.kept.clear()

    def check(self, guards, names):
        for i, name in enumerate(names[:len(guards)]):
            assert np.array_equal(self.kv.array(guards[i]), content(name))

    def store(self):
        self.kept.append(store(self.kv, self.names()))

    def onboard(self):
        names = self.names()
        guards = self.kv.onboard(names)
        self.check(guards, names)
        self.kept.append(guards)

    def onboard_async(self):
        self.kept.append((self.kv.onboard_async(self.names(), on_done=self.rng.choice([None, int])),))

    def offload(self):
        after = None
        if self.rng.random() < 0.3:
            self.signals.append(ashlar.FenceSignal())
            after = self.signals[-1].fence
        self.kept.append(self.kv.offload(self.names(), after=after, timeout=self.rng.choice([None, 0.01])))

    def signal(self):
        if self.signals:
            signal = self.signals.pop(self.rng.randrange(len(self.signals)))
            if self.rng.random() < 0.7:
                signal.signal()

    def pin(self):
        self.kept.append(self.kv.pin(self.names(), self.rng.choice([0.001, 60])))

    def view(self):
        held = [one for one in self.kept if isinstance(one, ashlar.ImmutableBlocks) and len(one)]
        target = self.rng.choice(held)[0] if held and self.rng.random() < 0.7 else self.rng.randrange(8)
        self.kept.append(self.kv.array(target, layer=self.rng.choice([None, 0, 1])))

    def find(self):
        names = self.names()
        self.kv.find(names), self.kv.presence(names), self.kv.describe(names[0]), self.kv.status

    def reset(self):
        if self.rng.random() < 0.5:
            self.kv.reset(self.rng.choice(["g1", "g2"]))
        else:
            self.kv.set_retention(self.names(), self.rng.randrange(101))

    def wait(self):
        for one in self.kept:
            if isinstance(one, tuple):
                self.kept.append(one[0].wait(self.rng.choice([0, 0.01, 1])))
                one[0].cancel()
                return

    def wrong(self):
        for call in (lambda: self.kv.array(99), lambda: self.kv.reset("g7"),
                     lambda: self.kv.pin(self.names(), -1),
                     lambda: self.kv.offload(self.names(), tier="g4")):
            with pytest.raises(ashlar.AshlarError):
                call()

    def drop(self):
        if self.kept:
            self.kept.pop(self.rng.randrange(len(self.kept)))
        if self.rng.random() < 0.1:
            gc.collect()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_calls_leave_nothing_behind(seed, threads, capfd):
    with capfd.disabled():
        if seed == SEEDS[-1]:
            print(f" seed {seed}, {threads} threads", end="")
    kv = make(g1_blocks=24, g2_blocks=40, events=1 << 14)
    callers = [Caller(kv, seed + number) for number in range(threads)]
    problems, batches = [], []

    def run(caller):
        try:
            caller.run()
        except BaseException as error:  # noqa: BLE001
            problems.append(error)

    with ashlar.EventStream(kv, batches.append):
        workers = [threading.Thread(target=run, args=(caller,)) for caller in callers]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert not problems and batches
    for caller in callers:
        caller.kept.clear()
    gc.collect()
    while kv.status["to_g2"]["blocked"]:  # fences that were abandoned settle at once
        pass
    kv.drain()
    kv.shutdown(timeout=60)
    for tier in ("g1", "g2"):
        kv.reset(tier)
        pool = kv.status[tier]["pool"]
        assert pool.active == pool.owned == pool.quarantined == 0 and pool.available == pool.total
    kv.close()
