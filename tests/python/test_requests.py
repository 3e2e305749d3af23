"""RequestSequence and SequenceBatch."""

import sys
import threading

import ashlar
import numpy as np
import pytest


def prefill(request, token=1):
    request.schedule_prefill(request.tokens_to_compute)
    return request.apply_prefill(token)


def test_a_request_from_prompt_to_release():
    manager = ashlar.BlockManager(16, 4)
    with ashlar.RequestSequence(manager, np.arange(10), max_tokens=13) as request:
        assert request.state == "idle" and request.match_prefix() == 0
        plan = request.schedule_prefill(6)
        assert plan.new_blocks == 2 and plan.copies == [] and request.state == "prefill_scheduled"
        assert request.apply_prefill().registered == 1
        request.schedule_prefill(4)
        assert request.apply_prefill(10).registered == 1
        assert (len(request), request.prompt_size, request.computed_tokens) == (11, 10, 10)
        assert request.tokens_left == 2
        request.schedule_decode()
        assert not request.apply_decode(11).at_limit
        request.schedule_decode()
        request.revert()
        request.schedule_decode()
        outcome = request.apply_decode(12)
        assert outcome.at_limit and outcome.registered == 1 and outcome.replaced == 0
        assert request.tokens.tolist() == list(range(13)) and request.tokens.dtype == np.uint32
        assert request.block_table().tolist() == [0, 1, 2]
        assert request.sequence_hashes == ashlar.SequenceHasher().hash_blocks(range(13), 4).sequence
        assert request.is_registered(0) and request.use_count(0) == 1 and request.use_count(9) == 0
        table = request.block_table()
    assert request.state == "released" and table.tolist() == [0, 1, 2] and len(request) == 13
    request.release()
    assert manager.available == 16 and manager.status.inactive == 3
    again = ashlar.RequestSequence(manager, np.arange(10))
    assert again.match_prefix() == again.cached_tokens == 8


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes have __buffer__ since Python 3.12")
def test_the_buffer_of_an_array_may_end_the_request():
    manager = ashlar.BlockManager(32, 4)
    request = ashlar.RequestSequence(manager, range(40))
    prefill(request)

    class Ending:
        def __buffer__(self, flags):
            request.release()
            return memoryview(np.zeros(12, np.uint32))

    assert request.block_table_into(Ending()) == 0


def test_tables_are_written_into_arrays():
    manager = ashlar.BlockManager(32, 4)
    request = ashlar.RequestSequence(manager, range(40), windows=[None, 8])
    prefill(request)
    assert request.group_count == 2
    for kind, nothing in ((np.uint32, ashlar.NO_BLOCK), (np.int32, -1), (np.int64, -1)):
        table = np.zeros(12, kind)
        assert request.block_table_into(table, 1) == 10
        assert table[0] == nothing and table[9] == request.block_table(1)[9] and table[10] == 0
    with pytest.raises(ValueError):
        request.block_table_into(np.zeros(3, np.uint32))
    strided = np.zeros(40, np.uint32)[::2]
    for wrong in (np.zeros(20, np.float32), np.zeros((20, 2), np.uint32), strided, [0] * 20):
        with pytest.raises(TypeError):
            request.block_table_into(wrong)
    for call in (request.block_table, lambda group: request.use_count(0, group),
                 lambda group: request.is_registered(0, group)):
        with pytest.raises(IndexError):
            call(2)
    with pytest.raises(IndexError):
        request.is_registered(11)


def test_refused_steps_change_nothing_and_say_why():
    manager = ashlar.BlockManager(3, 4)
    request = ashlar.RequestSequence(manager, range(9))
    held = manager.allocate_block()
    with pytest.raises(ashlar.CapacityError) as full:
        request.schedule_prefill(9)
    assert (full.value.reason, full.value.state, full.value.wanted) == ("no_room", "idle", 3)
    assert full.value.available == 2 and full.value.status.total == 3
    with pytest.raises(ashlar.NotReady) as early:
        request.apply_decode(1)
    assert (early.value.reason, early.value.state) == ("wrong_state", "idle")
    with pytest.raises(ashlar.AshlarError) as over:
        request.schedule_prefill(10)
    assert (over.value.reason, over.value.wanted, over.value.limit) == ("prefill_overrun", 10, 9)
    assert request.state == "idle" and manager.available == 2
    for wrong in ({"tokens": []}, {"tokens": [1], "windows": [0]}, {"tokens": [1, 2], "max_tokens": 1},
                  {"tokens": range(4), "hashes": [ashlar.SequenceHash.root(1)] * 2},
                  {"tokens": [1], "retention": [(1, 1, 50, None)]}):
        with pytest.raises(ashlar.InvalidArgument):
            ashlar.RequestSequence(manager, **wrong)
    for wrong in (
        {"decode_priority": 101},
        {"decode_seconds": float("nan")},
        {"compute_tokens_per_second": 0.0},
    ):
        with pytest.raises(ValueError):
            ashlar.RequestSequence(manager, [1], **wrong)


def test_forks_share_until_they_write():
    manager = ashlar.BlockManager(8, 4)
    request = ashlar.RequestSequence(manager, range(6))
    prefill(request, 6)
    fork = request.fork(last=7)
    assert fork.tokens.tolist() == [0, 1, 2, 3, 4, 5, 7] and request.use_count(1) == 2
    plan = fork.schedule_decode()
    assert plan.new_blocks == 1 and plan.copies == fork.copies == [(0, 1, 2)]
    fork.apply_decode(8)
    assert fork.block_table().tolist() == [0, 2] and request.block_table().tolist() == [0, 1]
    del request
    fork.release()
    assert manager.available == 8


def test_preempted_requests_resume_from_the_cache():
    manager = ashlar.BlockManager(8, 4)
    request = ashlar.RequestSequence(manager, range(10))
    prefill(request)
    request.preempt()
    assert request.state == "preempted" and manager.status.active == 0
    assert request.resume() == 8 and request.tokens_to_compute == 3
    request.preempt()
    start = request.begin_match(lambda: None)
    assert start.cached == 8 and not start.pending and request.state == "idle"
    with pytest.raises(ashlar.NotReady):
        request.finish_match()
    with pytest.raises(ashlar.NotReady):
        request.wait_layer(0)


def test_speculation_keeps_the_accepted_drafts():
    manager = ashlar.BlockManager(8, 4)
    request = ashlar.RequestSequence(manager, range(4))
    prefill(request, 4)
    assert request.schedule_speculative(6).new_blocks == 2
    with pytest.raises(ashlar.AshlarError) as many:
        request.apply_speculative(range(8))
    assert many.value.reason == "too_many_accepted"
    request.apply_speculative(np.array([5, 6], np.int64))
    assert request.tokens.tolist() == list(range(7)) and len(request.block_table()) == 2


def test_a_step_in_flight_keeps_its_blocks():
    manager = ashlar.BlockManager(4, 4)
    request = ashlar.RequestSequence(manager, range(8))
    request.schedule_prefill(8)
    signal = ashlar.FenceSignal()
    request.set_written_after(signal.fence)
    request.release_after(signal.fence)
    assert request.state == "released" and manager.available == 2
    signal.signal()
    assert manager.available == 4
    abandoned = ashlar.FenceSignal()
    request = ashlar.RequestSequence(manager, range(8))
    request.schedule_prefill(8)
    request.release_after(abandoned.fence)
    del request, manager, abandoned


def test_a_batch_steps_as_one():
    manager = ashlar.BlockManager(64, 4)
    requests = [ashlar.RequestSequence(manager, [i] * (i + 1)) for i in range(8)]
    batch = ashlar.SequenceBatch()
    for request in requests:
        batch.add(request)
    assert batch.schedule_prefill([i + 1 for i in range(8)]).new_blocks == 12
    assert batch.apply_prefill([100 + i for i in range(8)]).registered == 6
    batch.schedule_decode()
    with pytest.raises(ashlar.InvalidArgument):
        batch.apply_decode([1])
    batch.revert()
    batch.schedule_decode()
    batch.apply_decode(np.arange(8, dtype=np.uint32))
    assert requests[3].tokens.tolist() == [3, 3, 3, 3, 103, 3]
    requests[2].schedule_decode()
    with pytest.raises(ashlar.NotReady) as refused:
        batch.schedule_decode()
    assert refused.value.index == 2 and refused.value.reason == "wrong_state"
    requests[2].revert()
    with pytest.raises(ashlar.InvalidArgument):
        batch.add(requests[0])
    with pytest.raises(ashlar.InvalidArgument):
        batch.schedule_prefill([1])
    with pytest.raises(ashlar.InvalidArgument):
        batch.apply_prefill([1])
    batch.set_written_after(ashlar.Fence.passed_already())
    del requests, request
    batch.release()
    assert manager.available == 64 and len(batch) == 8
    batch.clear()
    assert len(batch) == 0
    batch.schedule_decode()  # of no request
    batch.add(ashlar.RequestSequence(manager, [1]))
    batch.add(ashlar.RequestSequence(ashlar.BlockManager(4, 4), [1]))
    with pytest.raises(ashlar.AshlarError) as other:
        batch.schedule_prefill([1, 1])
    assert other.value.reason == "other_manager" and other.value.index == 1


def test_requests_keep_their_manager():
    request = ashlar.RequestSequence(ashlar.BlockManager(8, 4), range(10))
    prefill(request)
    fork = request.fork()
    del request
    assert len(fork.block_table()) == 3


def test_requests_of_many_threads_share_a_manager():
    manager = ashlar.BlockManager(256, 4)
    prompt = np.arange(40)

    def run(index):
        for _ in range(20):
            with ashlar.RequestSequence(manager, prompt, max_tokens=60) as request:
                request.match_prefix()
                prefill(request, index)
                for token in range(10):
                    request.schedule_decode()
                    request.apply_decode(token)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert manager.available == 256 and manager.status.inactive > 0
