"""Events: streams with a callback, drains, arrays; and that closing never waits for itself."""

import gc
import subprocess
import sys
import threading

import ashlar
import numpy as np
import pytest
from kv_blocks import make, names_of, store


class Listener:
    """What a stream says the manager holds: (tier, hash) of stored blocks, in order."""

    def __init__(self):
        self.held, self.batches, self.next = set(), 0, None
        self.lock = threading.Lock()

    def __call__(self, batch):
        with self.lock:
            self.batches += 1
            if batch.is_snapshot:
                if batch.part == 0:
                    self.held.clear()
                self.next = batch.first
            else:
                assert self.next in (None, batch.first)
                self.next = batch.first + len(batch)
            for event in batch:
                change = self.held.add if event.kind == "stored" else self.held.discard
                change((event.tier, event.hash))


def held_of(kv, names):
    bits = kv.presence(names)
    return {(tier, name) for i, tier in enumerate(["g1", "g2"])
            for name, bit in zip(names, bits) if bit >> i & 1}


def test_a_stream_tells_what_the_manager_holds():
    kv = make(g2_blocks=16, events=1 << 12)
    early, late = names_of(kv, 3).sequence, names_of(kv, 4, seed=1).sequence
    store(kv, early).release()
    kv.drain()
    listener = Listener()
    with ashlar.EventStream(kv, listener, worker=3, rank=1, incarnation=9) as stream:
        stream.flush()
        assert listener.held == held_of(kv, early) and len(listener.held) == 6
        store(kv, late).release()
        kv.drain()
        kv.reset("g1")
        stream.flush()
        assert listener.held == held_of(kv, list(early) + list(late))
        snapshot = stream.snapshot()
        assert snapshot.is_snapshot and (snapshot.worker, snapshot.rank, snapshot.incarnation) == (3, 1, 9)
        assert {event.hash for event in snapshot} == {*early, *late}
        seen = stream.counters
        assert seen["lost"] == 0 and seen["present"] == len(listener.held) and seen["batches"] > 0
        assert len(kv.drain_events()) == 0  # the stream has them
        with pytest.raises(ashlar.AlreadyExists):
            ashlar.EventStream(kv, listener)
        with pytest.raises(ashlar.AlreadyExists):
            ashlar.EventStream(kv.g1, listener)
    count = listener.batches
    assert stream.closed and listener.held  # closing tells no removals
    stream.close()
    with pytest.raises(ashlar.UsedGuard):
        stream.flush()
    store(kv, names_of(kv, 2, seed=2).sequence).release()
    assert listener.batches == count
    again = ashlar.EventStream(kv, listener)  # another one may follow
    again.flush()
    again.close()


def test_drained_events_are_objects_and_an_array():
    kv = make(g2_blocks=16, events=1 << 12)
    names = names_of(kv, 3).sequence
    store(kv, names).release()
    kv.drain()
    batch = kv.drain_events()
    assert [(event.kind, event.tier) for event in batch] == [("stored", "g1")] * 3 + [("stored", "g2")] * 3
    first, second = batch[0], batch[1]
    assert first.hash == names[0] and second.parent == names[0] and first.parent is None
    assert first.bytes == kv.array(0).nbytes and first.name == names[0].chain
    assert "stored" in repr(first)
    array = batch.array
    assert len(array) == 6 and not array.flags.writeable
    assert array["tier"].tolist() == [0, 0, 0, 1, 1, 1] and (array["kind"] == 0).all()
    assert np.array_equal(array["hash"][:3], np.asarray(names))
    assert array["has_parent"].tolist()[:3] == [False, True, True]
    del batch
    gc.collect()
    assert (array["bytes"] == first.bytes).all()  # the array keeps its events
    empty = kv.drain_events()
    assert len(empty) == 0 and len(empty.array) == 0
    with pytest.raises(IndexError):
        empty[0]


def test_events_of_a_block_manager():
    manager = ashlar.BlockManager(8, 4, events=64)
    names = ashlar.SequenceHasher().hash_blocks(np.arange(16, dtype=np.uint32), 4).sequence
    manager.register(manager.allocate(4).stage(names)).release()
    assert [event.hash for event in manager.drain_events()] == list(names)
    listener = Listener()
    stream = ashlar.EventStream(manager, listener)
    assert len(manager.drain_events()) == 0
    manager.reset_inactive()
    stream.flush()
    assert listener.held == set()
    stream.close()
    with pytest.raises(ashlar.NotReady):
        ashlar.BlockManager(8, 4).drain_events()
    with pytest.raises(ashlar.NotReady):
        ashlar.EventStream(make(), listener)
    with pytest.raises(ashlar.NotReady):
        make().drain_events()
    with pytest.raises(TypeError):
        ashlar.EventStream(5, listener)
    with pytest.raises(TypeError):
        ashlar.EventStream(manager, 5)
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.EventStream(manager, listener, max_events=0)
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.BlockManager(8, 4, events=2**40)
    with pytest.raises(ashlar.InvalidArgument):
        make(events=2**40)


def test_a_log_that_overflows_says_so():
    manager = ashlar.BlockManager(64, 4, events=4)
    names = ashlar.SequenceHasher().hash_blocks(np.arange(128, dtype=np.uint32), 4).sequence
    manager.register(manager.allocate(32).stage(names)).release()
    kinds = [event.kind for event in manager.drain_events()]
    assert "resync" in kinds
    listener = Listener()
    with ashlar.EventStream(manager, listener) as stream:
        stream.flush()
        manager.reset_inactive()  # 32 at once into a log of 4: repaired from what the manager holds
        stream.flush()
        assert listener.held == set() and stream.counters["lost"] > 0


def test_an_exception_of_a_callback_is_unraisable(monkeypatch):
    seen, told = [], threading.Event()

    def hook(unraisable):
        seen.append(unraisable.exc_type)
        told.set()

    monkeypatch.setattr(sys, "unraisablehook", hook)

    def fail(batch):
        raise KeyError("on purpose")

    kv = make(events=64)
    store(kv, names_of(kv, 2).sequence).release()
    with ashlar.EventStream(kv, fail) as stream:
        stream.flush()
        assert told.wait(60)
    assert set(seen) == {KeyError}


def test_a_callback_cannot_close_or_flush_its_own_stream():
    kv = make(events=64)
    answers, told = [], threading.Event()

    def misuse(batch):
        ready.wait()
        for call in (stream.close, stream.flush):
            try:
                call()
            except ashlar.InvalidArgument as error:
                answers.append(str(error))
        kv.status, kv.presence(names)  # using the manager is allowed
        told.set()

    ready = threading.Event()
    names = names_of(kv, 2).sequence
    store(kv, names).release()
    stream = ashlar.EventStream(kv, misuse)
    ready.set()
    assert told.wait(60)
    stream.close()
    assert len(answers) >= 2 and "own stream" in answers[0]


def test_a_stream_collected_by_its_own_callback_ends():
    kv = make(events=64)
    box, done = {}, threading.Event()

    def drop(batch):
        ready.wait()
        if box.pop("stream", None) is not None:
            done.set()

    ready = threading.Event()
    store(kv, names_of(kv, 2).sequence).release()
    box["stream"] = ashlar.EventStream(kv, drop)
    ready.set()
    assert done.wait(60)
    while True:  # until the other thread has closed it
        try:
            ashlar.EventStream(kv, lambda batch: None).close()
            break
        except ashlar.AlreadyExists:
            pass


def test_streams_close_while_threads_store():
    kv = make(g1_blocks=32, g2_blocks=64, events=1 << 12)
    stop = threading.Event()

    def work(number):
        round_ = 0
        while not stop.is_set():
            try:
                store(kv, names_of(kv, 3, seed=number * 1000 + round_ % 40).sequence).release()
            except ashlar.CapacityError:
                pass
            round_ += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for round_ in range(20):
        listener = Listener()
        stream = ashlar.EventStream(kv, listener)
        if round_ % 3 == 0:
            stream.flush()
        if round_ % 2:
            stream.close()
        else:
            del stream
            gc.collect()
    stop.set()
    for thread in threads:
        thread.join()


def test_a_stream_that_is_open_at_the_end_of_the_program():
    program = """
import ashlar, numpy as np
kv = ashlar.KvBlockManager(layers=1, heads=1, head_dim=8, block_size=4, g1_blocks=8, g2_blocks=8, events=64)
names = kv.hasher().hash_blocks(np.arange(12, dtype=np.uint32), 4).sequence
stream = ashlar.EventStream(kv, lambda batch: print("got", len(batch)) if len(batch) else None)
kv.g1.register(kv.g1.allocate(3).stage(names)).release()
view = kv.array(0)
guard = kv.g1.match(names)
"""
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        assert "got" in ended.stdout


def test_a_stream_of_g1_keeps_its_events():
    kv = ashlar.KvBlockManager(layers=1, heads=1, head_dim=8, block_size=4, g1_blocks=8, g2_blocks=8,
                               events=64)
    names = kv.hasher().hash_blocks(np.arange(12, dtype=np.uint32), 4).sequence
    seen = []
    with ashlar.EventStream(kv.g1, lambda batch: seen.extend(event.kind for event in batch)) as stream:
        stream.flush()
        kv.g1.register(kv.g1.allocate(3).stage(names)).release()
        assert len(kv.drain_events()) == 0
        stream.flush()
        assert seen.count("stored") == 3
    kv.drain()
    assert {event.tier for event in kv.drain_events()} == {"g2"}
    kv.close()
