"""Index and EngineFeed: every kind against a model in plain Python, threads, and what an engine sent."""

import gc
import pathlib
import random
import struct
import threading

import ashlar
import numpy as np
import pytest

KINDS = [("flash", 0), ("positional", 0), ("concurrent_radix_tree", 0), ("radix_tree", 0), ("radix_tree", 2)]
TIERS = ["device", "host", "disk", "external", "remote"]
FASTEST_FIRST = ["device", "host", "remote", "disk", "external"]
RECORDINGS = pathlib.Path(__file__).parent.parent / "data" / "vllm"


def u64(values):
    return np.array(list(values), dtype=np.uint64)


class Model:
    """What indexer.h promises, by brute force."""

    def __init__(self):
        self.names = {}  # (worker, rank) -> name -> content: the path of local hashes
        self.held = {}  # (worker, rank) -> (tier, content) -> names

    def store(self, worker, rank, tier, locals_, names, parent):
        known = self.names.setdefault((worker, rank), {})
        held = self.held.setdefault((worker, rank), {})
        if not names:
            return "EMPTY"
        if parent is not None and parent not in known:
            return "UNKNOWN_PARENT"
        path = known[parent] if parent is not None else ()
        contents = []
        for local in locals_:
            path = path + (local,)
            contents.append(path)
        clash = any(known.get(name, content) != content for name, content in zip(names, contents))
        if len(set(names)) < len(names) or parent in names or clash:
            return "NAME_IN_USE"
        for name, content in zip(names, contents):
            known[name] = content
            held.setdefault((tier, content), set()).add(name)
        return "APPLIED"

    def remove(self, worker, rank, tier, names):
        known = self.names.get((worker, rank), {})
        held = self.held.get((worker, rank), {})
        removed = 0
        for name in names:
            content = known.get(name)
            if name not in held.get((tier, content), ()):
                continue
            removed += 1
            held[tier, content].remove(name)
            if not held[tier, content]:
                del held[tier, content]
            if not any(name in held.get((other, content), ()) for other in TIERS):
                del known[name]
        return removed

    def clear(self, worker, rank):
        self.names.pop((worker, rank), None)
        self.held.pop((worker, rank), None)

    def find(self, locals_):
        answers = {}
        for owner, held in self.held.items():
            blocks, device, path = dict.fromkeys(TIERS, 0), 0, ()
            for local in locals_:
                path = path + (local,)
                tier = next((tier for tier in FASTEST_FIRST if (tier, path) in held), None)
                if tier is None:
                    break
                if tier == "device" and device == sum(blocks.values()):
                    device += 1
                blocks[tier] += 1
            if sum(blocks.values()):
                answers[owner] = (sum(blocks.values()), device, blocks)
        return answers


def answers_of(matches):
    return {(m.worker, m.rank): (m.depth, m.device_depth, m.blocks) for m in matches}


@pytest.mark.parametrize("kind,threads", KINDS)
def test_random_calls_give_the_model_s_answers(kind, threads):
    rng = random.Random(7)
    index, model = ashlar.Index(kind, threads=threads), Model()
    found = 0
    for _ in range(1500):
        worker, rank, tier = rng.randrange(3), rng.randrange(2), rng.choice(TIERS[:3])
        known = list(model.names.get((worker, rank), {}))
        call = rng.random()
        if call < 0.55:
            parent = rng.choice(known) if known and rng.random() < 0.6 else None
            locals_ = [rng.randrange(3) for _ in range(rng.randrange(4))]
            names = [rng.randrange(1, 60) for _ in locals_]
            verdict = index.store(worker, u64(locals_), u64(names), rank=rank, tier=tier, parent=parent)
            expected = model.store(worker, rank, tier, locals_, names, parent)
            if threads == 0:
                assert verdict.name == expected
        elif call < 0.75:
            names = rng.sample(known, min(len(known), rng.randrange(4))) + [99]
            removed = model.remove(worker, rank, tier, names)
            answer = index.remove(worker, u64(names), rank=rank, tier=tier)
            assert answer == (removed if threads == 0 else len(names))  # a pool says what it accepted
        elif call < 0.77:
            index.clear(worker, rank=rank)
            model.clear(worker, rank)
        elif call < 0.78:
            index.remove_worker(worker)
            for each in (0, 1):
                model.clear(worker, each)
        else:
            request = [rng.randrange(3) for _ in range(rng.randrange(6))]
            index.settle()
            answer = index.find_matches(u64(request))
            assert answers_of(answer) == model.find(request)
            assert answer.exact
            found += len(answer)
    assert found > 100
    copy = ashlar.Index()
    assert copy.load(index.dump()) == 0
    for _ in range(50):
        request = u64(rng.randrange(3) for _ in range(5))
        assert answers_of(copy.find_matches(request)) == model.find(request.tolist())


def test_columns_are_arrays_that_outlive_their_answer():
    index = ashlar.Index()
    assert index.store(5, u64([1, 2, 3]), u64([11, 12, 13]), rank=2) == ashlar.StoreVerdict.APPLIED
    index.store(6, u64([1, 2]), u64([21, 22]))
    index.store(6, u64([3]), u64([23]), tier="host", parent=22)
    answer = index.find_matches(u64([1, 2, 3, 4]))
    workers, ranks, depths, blocks = answer.workers, answer.ranks, answer.depths, answer.blocks
    device = answer.device_depths
    best = answer.best
    del answer
    gc.collect()
    assert sorted(zip(workers.tolist(), ranks.tolist(), depths.tolist(), device.tolist())) == [
        (5, 2, 3, 3), (6, 0, 3, 2)]
    assert blocks.shape == (2, 5) and blocks.sum() == 6
    assert best.depth == 3
    assert not depths.flags.writeable
    assert index.find_matches(u64([9])).best is None
    with pytest.raises(IndexError):
        index.find_matches(u64([9]))[0]


def test_a_batch_answers_as_its_requests_one_by_one():
    index = ashlar.Index()
    for worker in range(4):
        index.store(worker, u64(range(worker + 1)), u64(range(100, 101 + worker)))
    requests = [[0, 1, 2, 3], [], [7], [0, 1], [0]]
    offsets = np.cumsum([0] + [len(request) for request in requests]).astype(np.uint64)
    batch = index.find_batch(u64(sum(requests, [])), offsets)
    assert len(batch.offsets) == len(requests) + 1
    for i, request in enumerate(requests):
        part = slice(int(batch.offsets[i]), int(batch.offsets[i + 1]))
        alone = index.find_matches(u64(request))
        assert batch.workers[part].tolist() == alone.workers.tolist()
        assert batch.depths[part].tolist() == alone.depths.tolist()
    for bad in ([0, 9], [1, 8], [0, 5, 2, 8], []):
        with pytest.raises(ashlar.InvalidArgument):
            index.find_batch(u64(sum(requests, [])), u64(bad))


def test_presence_tells_the_tiers_of_names():
    index = ashlar.Index()
    index.store(1, u64([1, 2]), u64([11, 12]))
    index.store(1, u64([1]), u64([11]), tier="g3")
    assert index.presence(1, u64([11, 12, 13])).tolist() == [0b101, 0b001, 0]
    assert index.sizes()["blocks"] == 3
    assert index.counters()["stored"] == 3


def test_wrong_arguments_are_errors():
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.Index("tree")
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.Index("positional", jump_size=0)
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.Index("positional", mid_chain="orphan")
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.Index(mid_chain="maybe")
    index = ashlar.Index()
    with pytest.raises(ashlar.InvalidArgument, match="one name per block"):
        index.store(1, u64([1, 2]), u64([1]))
    with pytest.raises(ashlar.InvalidArgument, match="not a tier"):
        index.store(1, u64([1]), u64([1]), tier="attic")
    for wrong in (np.zeros(2), np.zeros((2, 2), dtype=np.uint64), u64(range(8))[::2], [1, 2], b"12345678"):
        with pytest.raises(TypeError):
            index.find_matches(wrong)


@pytest.mark.parametrize("kind,threads", KINDS)
def test_threads_write_and_read_at_once(kind, threads):
    index = ashlar.Index(kind, threads=threads)
    depth, problems = 40, []
    start = threading.Barrier(4)

    def write(worker):
        start.wait()
        for round_ in range(60):
            index.store(worker, u64(range(depth)), u64(range(1000, 1000 + depth)))
            if round_ % 2:
                index.remove(worker, u64(range(1000, 1000 + depth)))
        index.clear(worker)
        index.store(worker, u64(range(depth)), u64(range(1000, 1000 + depth)))

    def read():
        start.wait()
        while any(writer.is_alive() for writer in writers):
            for match in index.find_matches(u64(range(depth))):
                if match.worker not in (0, 1, 2) or match.depth > depth:
                    problems.append(match)

    writers = [threading.Thread(target=write, args=(worker,)) for worker in range(3)]
    reader = threading.Thread(target=read)
    for thread in [*writers, reader]:
        thread.start()
    for thread in [*writers, reader]:
        thread.join()
    index.settle()
    assert not problems
    assert sorted(index.find_matches(u64(range(depth))).depths.tolist()) == [depth] * 3


def messages_of(path):
    """The (number, payload) of every message of a recording; the format is in engine_source.h."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        frames = []
        for _ in range(count):
            (size,) = struct.unpack_from("<I", data, at)
            frames.append(data[at + 4:at + 4 + size])
            at += 4 + size
        messages.append((int.from_bytes(frames[-2], "big"), frames[-1]))
    return messages


def test_a_feed_applies_what_vllm_sent():
    messages = messages_of(RECORDINGS / "default.kvrec")
    index = ashlar.Index()
    feed = ashlar.EngineFeed(index, 7)
    for number, payload in messages:
        assert feed.apply(payload, number) == 1
    seen = feed.counters()
    assert seen["applied"] == len(messages) and seen["lost"] == 0 and seen["last_refusal"] == ""
    assert seen["stored"] > 0 and seen["block_size"] > 0
    assert index.sizes()["blocks"] == seen["present"] > 0
    call = next(call for call in index.dump() if call.kind == "store" and call.parent is None)
    best = index.find_matches(np.ascontiguousarray(call.locals)).best
    assert best.worker == 7 and best.depth == len(call.locals)

    # Without numbers the same state; a repeated message changes nothing; a gap drops what is known.
    other = ashlar.Index()
    unnumbered = ashlar.EngineFeed(other, 7)
    for _, payload in messages:
        unnumbered.apply(payload)
    assert other.sizes()["blocks"] == index.sizes()["blocks"]
    assert feed.apply(messages[-1][1], messages[-1][0]) == 0
    assert feed.counters()["duplicates"] == 1
    feed.apply(messages[0][1], messages[-1][0] + 5)
    assert feed.counters()["resyncs"] == 1


def test_a_feed_keeps_its_index_and_says_what_it_cannot_read():
    index = ashlar.Index()
    feed = ashlar.EngineFeed(index, 1)
    del index
    gc.collect()
    for number, payload in messages_of(RECORDINGS / "evict.kvrec"):
        feed.apply(payload, number)
    assert feed.counters()["removed"] > 0
    with pytest.raises(ashlar.CorruptionError, match="no event batch"):
        feed.apply(b"\xc1 is no msgpack")
    with pytest.raises(TypeError):
        feed.apply("text")


def test_a_feed_that_resyncs_starts_anew():
    messages = messages_of(RECORDINGS / "default.kvrec")
    index = ashlar.Index()
    feed = ashlar.EngineFeed(index, 7, full_reports=False)
    for number, payload in messages:
        feed.apply(payload, number)
    blocks = index.sizes()["blocks"]
    feed.resync()
    assert index.sizes()["blocks"] == 0 and feed.counters()["present"] == 0
    for number, payload in messages:
        feed.apply(payload, number)
    assert index.sizes()["blocks"] == blocks > 0 and feed.counters()["lost"] == 0


def test_a_stream_of_events_keeps_an_index():
    index = ashlar.Index()
    manager = ashlar.BlockManager(16, 4, events=4)  # of 8 events at once some are lost, and made good
    tokens = [np.arange(16, dtype=np.uint32) + 100 * i for i in range(3)]
    locals_ = [ashlar.SequenceHasher().hash_blocks(each, 4).local for each in tokens]

    def keep(each):
        manager.register(manager.allocate(4).complete(ashlar.TokenSequence(each, 4))).release()

    def depths():
        return [index.find_matches(each).best.depth if len(index.find_matches(each)) else 0
                for each in locals_]

    keep(tokens[0])  # before anyone listens
    feed = ashlar.EventFeed(index, worker=9)
    with ashlar.EventStream(manager, feed.apply, worker=1, rank=2) as stream:
        stream.flush()
        assert depths() == [4, 0, 0]
        best = index.find_matches(locals_[0]).best
        assert (best.worker, best.rank, best.device_depth) == (9, 2, 4)
        manager.reset_inactive()
        keep(tokens[1])
        keep(tokens[2])
        stream.flush()
        assert depths() == [0, 4, 4]
        keep(tokens[0])
        snapshot = stream.snapshot()
        stream.flush()
        # Names alone cannot be found by what a prompt hashes to.
        manager.register(manager.allocate(1).stage(
            ashlar.SequenceHasher().hash_blocks(tokens[0] + 9000, 4).sequence[:1])).release()
        stream.flush()
        assert depths() == [4, 4, 4] and feed.counters()["without_local"] == 1
    assert feed.counters()["refused"] == 0 and feed.counters()["events"] >= 17

    # A snapshot replaces what was known, of its rank alone.
    other = ashlar.Index()
    late = ashlar.EventFeed(other, worker=5)
    late.apply(snapshot)
    late.apply(snapshot)
    assert other.sizes()["blocks"] == 12
    manager.reset_inactive()
    late.apply(manager.drain_events())
    assert other.sizes()["blocks"] == 12  # those were of rank 0
    with pytest.raises(TypeError):
        late.apply([])


def test_a_stream_of_tiers_tells_the_tiers():
    kv = ashlar.KvBlockManager(layers=1, heads=1, head_dim=8, block_size=4, g1_blocks=8, g2_blocks=8,
                               events=64)
    index = ashlar.Index()
    prompt = np.arange(16, dtype=np.uint32)
    with ashlar.EventStream(kv, ashlar.EventFeed(index, worker=1).apply) as stream:
        with ashlar.RequestSequence(kv.g1, prompt, hasher=kv.hasher()) as request:
            request.schedule_prefill(16)
            request.apply_prefill(1)
        kv.drain()
        kv.reset("g1")
        stream.flush()
        best = index.find_matches(ashlar.SequenceHasher().hash_blocks(prompt, 4).local).best
        assert best.depth == 4 and best.device_depth == 0 and best.blocks["host"] == 4
    kv.close()
