"""BlockManager and guards."""

import gc
import threading
import time

import ashlar
import numpy as np
import pytest


def sequence(blocks=4, start=0, size=16):
    return ashlar.TokenSequence(np.arange(start, start + blocks * size), size)


def store(manager, text):
    """Registers all full blocks of a sequence."""
    return manager.register(manager.allocate(text.block_count).complete(text))


def test_a_block_goes_from_allocation_to_a_hit():
    manager = ashlar.BlockManager(10)
    text = sequence()
    with manager.allocate(4) as blocks:
        assert len(blocks) == 4 and blocks.block_ids.tolist() == [0, 1, 2, 3]
        completed = blocks.complete(text)
        assert blocks.used and completed.sequence_hashes == text.sequence_hashes
        with manager.register(completed) as registered:
            assert completed.used and registered.sequence_hashes == text.sequence_hashes
            assert manager.status.active == 4
    assert (manager.status.inactive, manager.status.owned, manager.available) == (4, 0, 10)
    with manager.match(text.sequence_hashes) as found:
        assert found.block_ids.tolist() == [0, 1, 2, 3]
    hashes = ashlar.SequenceHasher().hash_blocks(np.arange(80), 16)
    assert len(manager.match(hashes.sequence, hashes.prefix)) == 4
    assert len(manager.match(hashes.sequence, np.full((5, 2), 2**63, np.uint64))) == 0
    assert len(manager.match_sequence(sequence(5))) == 4
    scattered = manager.match_scattered(hashes.sequence[::-1])
    assert scattered[0] is None and [block.block_id for block in scattered[1:]] == [3, 2, 1, 0]
    assert sorted(map(str, manager.registered())) == sorted(map(str, text.sequence_hashes))
    assert manager.counters["registrations"] == 4


def test_single_blocks_have_every_state():
    manager = ashlar.BlockManager(2, 4)
    block = manager.allocate_block()
    assert block.block_id == 0 and block.block_size == 4
    partial = block.init_sequence()
    partial.add_token(1)
    partial.add_tokens([2, 3, 4, ])
    assert partial.is_full and partial.remaining == 0 and partial.tokens.tolist() == [1, 2, 3, 4]
    partial.pop_tokens(2)
    assert partial.sequence_hash is None and partial.computed_tokens == 0
    signal = ashlar.FenceSignal()
    inflight = partial.schedule().launch(signal.fence)
    with pytest.raises(ashlar.NotReady):
        inflight.compute_done()
    signal.signal()
    partial = inflight.compute_done()
    assert isinstance(partial, ashlar.PartialBlock) and partial.computed_tokens == 2
    partial.add_tokens([3, 4])
    complete = partial.schedule().launch(ashlar.Fence.passed_already()).compute_done()
    assert isinstance(complete, ashlar.CompleteBlock) and complete.tokens.tolist() == [1, 2, 3, 4]
    assert complete.sequence_hash == ashlar.SequenceHasher().hash_blocks([1, 2, 3, 4], 4).sequence[0]
    shared = manager.register(complete)
    with shared.copy() as second:
        assert shared.use_count == second.use_count == 2
    empty = manager.allocate_block().stage(ashlar.SequenceHash.root(5)).reset()
    assert isinstance(empty, ashlar.MutableBlock)
    partial = empty.init_sequence()
    partial.add_tokens([9] * 4)
    assert partial.schedule().cancel().commit().reset().init_sequence().reset().release() is None
    assert manager.status.owned == 0 and manager.status.active == 1


def test_used_guards_are_refused_and_refused_ones_are_not_used():
    manager, other = ashlar.BlockManager(4, 4), ashlar.BlockManager(4, 4)
    block = manager.allocate_block()
    with pytest.raises(ashlar.InvalidArgument):
        block.complete(ashlar.TokenSequence(range(8), 8).block(0))
    complete = block.complete(ashlar.TokenSequence(range(4), 4).block(0))
    for call in (lambda: block.block_id, lambda: block.init_sequence(), lambda: block.__enter__()):
        with pytest.raises(ashlar.UsedGuard):
            call()
    with pytest.raises(ashlar.InvalidArgument, match="manager"):
        other.register(complete)
    assert not complete.used
    block.release()  # does nothing
    shared = manager.register(complete)
    with pytest.raises(ashlar.UsedGuard):
        manager.register(complete)
    shared.release()
    with pytest.raises(ashlar.UsedGuard):
        shared.downgrade()
    blocks = manager.allocate(2)
    with pytest.raises(ashlar.InvalidArgument):
        blocks.stage([ashlar.SequenceHash.root(1)])
    with pytest.raises(ashlar.InvalidArgument):
        blocks.complete(ashlar.TokenSequence(range(4), 4))
    with pytest.raises(ashlar.InvalidArgument):
        blocks.complete(ashlar.TokenSequence(range(16), 8))
    with pytest.raises(ashlar.InvalidArgument):
        blocks.append(other.allocate_block())
    assert len(blocks) == 2
    third = manager.allocate_block()
    number = third.block_id
    blocks.append(third)
    assert third.used and len(blocks) == 3 and blocks.pop().block_id == number and len(blocks) == 2
    staged = blocks.stage(ashlar.SequenceHasher().hash_blocks(range(8), 4).sequence)
    with pytest.raises(ashlar.UsedGuard):
        len(blocks)
    with pytest.raises(ashlar.InvalidArgument):
        other.register(staged)
    assert len(manager.register(staged)) == 2


def test_refusals_carry_their_numbers():
    manager = ashlar.BlockManager(4)
    with manager.allocate(3):
        with pytest.raises(ashlar.CapacityError) as refused:
            manager.allocate(2)
        assert (refused.value.reason, refused.value.wanted, refused.value.available) == ("no_room", 2, 1)
        assert refused.value.status.owned == 3
        with pytest.raises(ashlar.Timeout) as late:
            manager.allocate(2, timeout=0.01)
        assert isinstance(late.value, TimeoutError) and late.value.reason == "timed_out"
        assert manager.can_allocate(1) and not manager.can_allocate(2)
    with pytest.raises(ashlar.InvalidArgument) as never:
        manager.allocate(5)
    assert never.value.reason == "too_many"
    with pytest.raises(ashlar.InvalidArgument):
        ashlar.BlockManager(0)
    for wrong in ({"block_size": 0}, {"duplicates": "x"}, {"reset_order": "x"}, {"low_watermark": 2}):
        with pytest.raises(ashlar.InvalidArgument):
            ashlar.BlockManager(1, **wrong)
    with pytest.raises(ashlar.NotFound):
        ashlar.BlockManager(1, eviction="none such")
    with pytest.raises(TypeError):
        manager.allocate(-1)


@pytest.mark.parametrize("eviction", ashlar.eviction_names())
def test_every_eviction_order_evicts(eviction):
    manager = ashlar.BlockManager(8, 4, eviction=eviction)
    store(manager, sequence(8, size=4)).release()
    candidates = manager.eviction_candidates(100)
    assert len(candidates) == 8
    blocks, evicted = manager.allocate_with_evictions(3)
    assert list(evicted) == list(candidates[:3])
    blocks.release()
    assert manager.reset_inactive() == 5 and manager.status.reset == 8


def test_an_allocation_waits_for_room_without_the_gil():
    manager = ashlar.BlockManager(2)
    held = manager.allocate(2)
    got = []
    thread = threading.Thread(target=lambda: got.append(manager.allocate(1, timeout=60).block_ids.tolist()))
    thread.start()
    while manager.status.waiters == 0:
        time.sleep(0)
    with pytest.raises(ashlar.CapacityError) as behind:
        manager.allocate(1)
    assert behind.value.reason in ("queued", "no_room")
    held.release()
    thread.join()
    assert len(got) == 1 and manager.available == 2


def test_guards_keep_their_manager():
    manager = ashlar.BlockManager(4)
    blocks, single = manager.allocate(2), manager.allocate_block()
    weak = store(manager, sequence(1))[0].downgrade()
    del manager
    gc.collect()
    assert blocks.block_ids.tolist() == [0, 1] and weak.upgrade() is not None
    blocks.release()
    single.release()
    assert weak.upgrade() is None and weak.sequence_hash == sequence(1).sequence_hashes[0]


def test_blocks_in_flight_outlive_guard_and_manager():
    manager = ashlar.BlockManager(2, 4)
    signal, lost = ashlar.FenceSignal(), ashlar.FenceSignal()
    for fence in (signal.fence, lost.fence):
        partial = manager.allocate_block().init_sequence()
        partial.add_token(1)
        partial.schedule().launch(fence).release()
    assert manager.status.quarantined == 2
    signal.signal()
    assert manager.status.quarantined == 1 and signal.fence.passed
    del manager  # its last block never comes back: the manager is set aside, not destroyed
    fence = lost.fence
    del lost
    assert fence.abandoned and not fence.passed
    with pytest.raises(ashlar.UsedGuard):
        signal.signal()


def test_what_a_failed_step_wrote_is_not_found():
    manager = ashlar.BlockManager(4, 4)
    request = ashlar.RequestSequence(manager, range(8))
    request.schedule_prefill(8)
    signal = ashlar.FenceSignal()
    request.set_written_after(signal.fence)
    request.apply_prefill(8)
    assert ashlar.RequestSequence(manager, range(9)).match_prefix() == 8
    request.release()
    assert manager.status.active == 2, "the step may still write them"
    signal.fail()
    assert signal.fence.failed and not signal.fence.passed and not signal.fence.abandoned
    assert manager.status.reset == 4
    assert ashlar.RequestSequence(manager, range(9)).match_prefix() == 0
    with pytest.raises(ashlar.UsedGuard):
        signal.signal()


def test_references_are_given_back_after_a_fence():
    manager = ashlar.BlockManager(2)
    shared = store(manager, sequence(1))[0]
    signal = ashlar.FenceSignal()
    shared.release_after(signal.fence)
    assert shared.used and manager.status.active == 1
    signal.signal()
    assert manager.status.inactive == 1


def test_pins_and_holds_keep_blocks():
    manager = ashlar.BlockManager(4, max_pins=1)
    text = sequence(2)
    with store(manager, text) as blocks, blocks[0].pin(60) as pin:
        blocks.release()
        assert pin.active and manager.status.pinned_inactive == 1
        with pytest.raises(ashlar.CapacityError):
            manager.pin(text.sequence_hashes[1], 60)
    assert not pin.active and manager.status.pinned_inactive == 0
    with pytest.raises(ashlar.NotFound):
        manager.pin(ashlar.SequenceHash.root(1), 60)
    with pytest.raises(ashlar.InvalidArgument):
        manager.pin(text.sequence_hashes[0], 0)
    with pytest.raises(ValueError):
        manager.pin(text.sequence_hashes[0], float("nan"))
    hold = manager.hold(text.sequence_hashes[0])
    assert hold.active and hold.block_id == 0
    manager.reset_inactive()
    assert manager.status.held_inactive == 1
    del manager
    hold.release()
    with pytest.raises(ashlar.UsedGuard):
        hold.block_id


def test_retention_orders_evictions():
    manager = ashlar.BlockManager(4, eviction="retention")
    text = sequence(4)
    blocks = store(manager, text)
    blocks[0].set_retention(0)
    blocks.release()
    manager.set_retention(text.sequence_hashes[3], 100, 60.0)
    candidates = list(manager.eviction_candidates(4))
    assert candidates[0] == text.sequence_hashes[0] and candidates[3] == text.sequence_hashes[3]
    for priority in (-1, 101):
        with pytest.raises(ValueError):
            manager.set_retention(text.sequence_hashes[0], priority)
    with pytest.raises(ashlar.Unsupported):
        manager.set_metadata(text.sequence_hashes[0], 7)


def test_duplicates_and_collisions():
    text = sequence(1)
    allow = ashlar.BlockManager(4)
    first, second = store(allow, text), store(allow, text)
    assert first.block_ids.tolist() != second.block_ids.tolist() and first[0].is_duplicate
    reject = ashlar.BlockManager(4, duplicates="reject")
    first, second = store(reject, text), store(reject, text)
    assert first.block_ids.tolist() == second.block_ids.tolist()
    liar = reject.allocate_block().stage(text.sequence_hashes[0], prefix=ashlar.PrefixDigest(2**63 + 1, 1))
    with pytest.raises(ashlar.CorruptionError):
        reject.register(liar)
    assert not liar.used


def test_lists_of_references_are_lists():
    manager = ashlar.BlockManager(8)
    blocks = store(manager, sequence(8))
    assert [block.block_id for block in blocks] == list(range(8))
    assert blocks[-1].block_id == 7 and blocks[1:5:2].block_ids.tolist() == [1, 3]
    with pytest.raises(IndexError):
        blocks[8]
    second = blocks.copy()
    blocks.truncate(2)
    second.release()
    assert (manager.status.active, manager.status.inactive) == (2, 6)
    with manager.match(sequence(8).sequence_hashes) as again:
        assert manager.status.active == 8 and len(again) == 8
    blocks[0].set_reset_on_release(True)
    blocks.release()
    assert manager.status.reset == 1


def test_a_slice_may_change_the_list_while_it_is_read():
    manager = ashlar.BlockManager(8)

    class Changing:
        def __init__(self, change, value):
            self.change, self.value = change, value

        def __index__(self):
            self.change()
            return self.value

    blocks = store(manager, sequence(8))
    assert len(blocks[Changing(lambda: blocks.truncate(2), 0):8]) == 2
    assert len(blocks[0:Changing(lambda: blocks.truncate(1), 8)]) == 1
    assert len(blocks[1::Changing(lambda: blocks.truncate(0), 1)]) == 0
    blocks = store(manager, sequence(8))
    with pytest.raises(ashlar.UsedGuard):
        blocks[Changing(blocks.release, 0):8]
    assert manager.status.active == 0


def test_describe_and_pressure():
    manager = ashlar.BlockManager(4, low_watermark=2, high_watermark=3, keep_tokens=True)
    assert manager.pressure == "normal" and len(manager) == manager.block_count == 4
    with store(manager, sequence(3)) as blocks:
        assert manager.pressure == "low"
        name = blocks.sequence_hashes[0]
        description = manager.describe(name)
        assert description.block_id == 0 and description.references == 1 and description.state == "primary"
        assert description.sequence_hash == name == manager.describe(0).sequence_hash
    assert manager.describe(0).is_inactive and manager.describe(3).sequence_hash is None
    assert manager.pressure == "normal" and manager.tokens_of(name).tolist() == list(range(16))
    assert manager.describe(ashlar.SequenceHash.root(1)) is None
    assert manager.tokens_of(ashlar.SequenceHash.root(1)) is None
    with pytest.raises(ashlar.InvalidArgument):
        manager.describe(4)
