"""Options and answers that no other test of the package has: what each changes."""

import json

import ashlar
import numpy as np
import pytest
from kv_blocks import check, make, names_of, store


def prefilled(manager, prompt, **options):
    request = ashlar.RequestSequence(manager, prompt, **options)
    request.schedule_prefill(len(prompt))
    request.apply_prefill(1)
    return request


def test_victims_go_down_before_they_are_evicted():
    kv = make(g1_blocks=4, g2_blocks=16, offload="near_eviction")
    names = names_of(kv, 4).sequence
    store(kv, names).release()
    kv.drain()
    assert kv.presence(names).tolist() == [1] * 4
    kv.look_ahead()
    kv.drain()
    assert 3 in kv.presence(names).tolist()
    store(kv, names_of(kv, 4, seed=1).sequence).release()
    kv.drain()
    assert kv.status["g2"]["pool"].inactive > 0
    kv.close()


def test_a_hit_may_cover_the_whole_prompt():
    manager = ashlar.BlockManager(16, 4)
    prompt = np.arange(16)
    prefilled(manager, prompt).release()
    assert ashlar.RequestSequence(manager, prompt).match_prefix() == 12
    assert ashlar.RequestSequence(manager, prompt, reuse_last_token=True).match_prefix() == 16


def test_a_match_brings_up_what_its_budget_allows():
    kv = make(g1_blocks=16, g2_blocks=16)
    prompt = np.arange(33, dtype=np.uint32)
    names = kv.hasher().hash_blocks(prompt, 4).sequence
    store(kv, names).release()
    kv.drain()

    def matched(**options):
        kv.reset("g1")
        with ashlar.RequestSequence(kv.g1, prompt, hasher=kv.hasher(), **options) as request:
            return request.match_prefix()

    assert matched() == 32
    assert matched(onboard_blocks=3) == 12
    assert matched(onboard_blocks=0) == 0
    assert matched(onboard_seconds=60) == 32
    assert matched(onboard_seconds=0) <= 32
    kv.reset("g1")
    request = ashlar.RequestSequence(kv.g1, prompt, hasher=kv.hasher())
    assert request.begin_match(lambda: None).pending
    while not request.match_ready:
        pass
    assert request.finish_match() == 32
    request.release()
    kv.close()


def test_blocks_are_not_cached_where_the_manager_says_so():
    manager = ashlar.BlockManager(8, 4, reset_on_release=True)
    prefilled(manager, np.arange(8)).release()
    assert manager.status.reset == 8 and manager.status.inactive == 0


def test_events_name_the_first_block_and_the_file(tmp_path):
    manager = ashlar.BlockManager(8, 4, events=16)
    request = prefilled(manager, np.arange(12))
    first, *others = manager.drain_events()
    assert all(event.prefix_group == first.hash == request.sequence_hashes[0] for event in others)
    request.release()

    kv = make(g2_blocks=16, g3_blocks=16, g3_path=tmp_path / "g3", survive_power_loss=False, events=64)
    batches = []
    names = names_of(kv, 2).sequence
    with ashlar.EventStream(kv, batches.append) as stream:
        store(kv, names).release()
        kv.drain()
        stream.flush()
    told = [(batch.locations[event.location], event.hash) for batch in batches for event in batch
            if event.tier == "g3"]
    assert sorted(told, key=lambda pair: pair[1].position) == [(str(tmp_path / "g3"), name) for name in names]
    kv.close()


def test_a_repeated_store_is_a_report_or_a_copy():
    # [timestamp, [BlockStored of 2 blocks], rank], twice
    stored = (b"\x93\xca\x3f\x80\0\0\x91\x85\xa4type\xabBlockStored\xacblock_hashes\x92\x0b\x0c"
              b"\xb1parent_block_hash\xc0\xa9token_ids\x92\x01\x02\xaablock_size\x01\x00")
    removed = b"\x93\xca\x3f\x80\0\0\x91\x82\xa4type\xacBlockRemoved\xacblock_hashes\x92\x0b\x0c\x00"
    left = {}
    for full in (True, False):
        feed = ashlar.EngineFeed(ashlar.Index(), 1, full_reports=full)
        for message in (stored, stored, removed):
            feed.apply(message)
        left[full] = feed.counters()["present"]
    assert left == {True: 0, False: 2}


def test_hints_need_a_remote_tier():
    with make(g2_blocks=4) as kv:
        with pytest.raises(ashlar.NotReady):
            kv.execute_hints(json.dumps({"version": 1, "actions": []}))


def test_requests_of_a_host_store_end():
    kv = ashlar.KvBlockManager(layers=1, heads=1, head_dim=8, block_size=1, g1_blocks=1, g2_blocks=2)
    host = ashlar.HostStore(kv)
    keys = [bytes([i]) * 20 for i in (1, 2, 3, 4)]

    def put(some):
        job, chosen, _ = host.begin_store(some)
        if chosen:
            host.end_job(job)
        return len(chosen)

    assert put(keys[:2]) == 2
    first, second = host.begin_request(), host.begin_request()
    assert host.lookup(first, keys[0]) == host.lookup(second, keys[1]) == "hit"
    assert put(keys[2:]) == 0  # both slots are pinned
    host.drop_pins(first)
    assert put(keys[2:]) == 1
    host.end_request(second)
    host.end_request(second)
    assert put(keys[3:]) == 1
    with pytest.raises(ashlar.NotFound):
        host.begin_load(second, keys[3:])
    host.close()
    kv.close()
