"""HostStore and what vLLM's processes share, without vLLM: a manager and two ranks over one region."""

import hashlib
import os
import subprocess
import sys
import threading

import ashlar
import numpy as np
import pytest
from ashlar._host_region import HostRegion
from ashlar._vllm_hints import HintDesk

SLOT = 4096


def key(number, group=0):
    return hashlib.sha256(str(number).encode()).digest() + group.to_bytes(4, "big")


class Fleet:
    """The scheduler's side and the memory that its workers see."""

    def __init__(self, folder, *, slots=32, ranks=2, **options):
        name = f"test-{os.getpid()}-{id(self)}"
        shape = dict(ranks=ranks, slots=slots, slot_bytes=SLOT, fingerprint=b"print", folder=str(folder))
        self.region = HostRegion(name, rank=None, **shape)
        self.workers = [HostRegion(name, rank=rank, **shape) for rank in range(ranks)]
        self.kv = ashlar.KvBlockManager(
            layers=1, outer=1, heads=1, head_dim=SLOT, block_size=1, dtype="u8", model="m", g1_blocks=1,
            g2_blocks=slots, g2_memory=self.region.array.reshape(slots, 1, 1, 1, 1, SLOT), **options)
        self.store = ashlar.HostStore(self.kv)

    def put(self, numbers):
        job, chosen, slots = self.store.begin_store([key(n) for n in numbers])
        for i, slot in zip(chosen, slots):
            self.workers[0].array[slot] = numbers[i] % 251
        if slots:
            self.store.end_job(job)
        return len(slots)

    def settled(self, request, numbers):
        while True:
            answers = [self.store.lookup(request, key(n)) for n in numbers]
            self.store.fetch_asked()
            if not {"pending", "unknown"} & set(answers):
                return answers

    def close(self):
        self.store.close()
        self.kv.drain()
        self.kv.close()


def test_blocks_come_back_from_g2_and_from_a_file(tmp_path):
    options = dict(g3_blocks=64, g3_path=tmp_path / "g3", survive_power_loss=False)
    fleet = Fleet(tmp_path, **options)
    assert fleet.put([1, 2, 3]) == 3
    assert fleet.put([1, 2, 3]) == 0
    request = fleet.store.begin_request()
    assert fleet.settled(request, [1, 2, 3, 4]) == ["hit", "hit", "hit", "miss"]
    assert fleet.store.source(request, key(1)) == "g2"
    fleet.close()

    fleet = Fleet(tmp_path, **options)
    request = fleet.store.begin_request()
    assert fleet.settled(request, [1, 2, 3]) == ["hit"] * 3
    assert fleet.store.source(request, key(1)) == "g3"
    job, slots, _ = fleet.store.begin_load(request, [key(3), key(1)])
    assert [int(fleet.workers[1].array[slot].max()) for slot in slots] == [3, 1]
    fleet.store.end_job(job)
    assert fleet.store.counters["hits_disk"] == 3
    fleet.close()


def test_groups_and_digests_are_other_blocks(tmp_path):
    fleet = Fleet(tmp_path)
    fleet.put([1])
    request = fleet.store.begin_request()
    near = bytearray(key(1))
    near[4] ^= 1  # the name is the same, the digest is not
    assert fleet.store.name(bytes(near)) == fleet.store.name(key(1))
    asked = [key(1), key(1, group=1), bytes(near), key(1)[16:32] + b"\0\0\0\0"]
    while True:
        answers = [fleet.store.lookup(request, each) for each in asked]
        fleet.store.fetch_asked()
        if "pending" not in answers:
            break
    assert answers == ["hit", "miss", "miss", "miss"]
    fleet.close()


def test_forgotten_blocks_are_found_nowhere_and_jobs_keep_their_slots(tmp_path):
    fleet = Fleet(tmp_path, g3_blocks=64, g3_path=tmp_path / "g3", survive_power_loss=False)
    fleet.put([1, 2])
    request = fleet.store.begin_request()
    assert fleet.settled(request, [1, 2]) == ["hit", "hit"]
    job, slots, _ = fleet.store.begin_load(request, [key(1), key(2)])
    fleet.store.forget_all()
    fleet.put(list(range(100, 130)))
    assert [int(fleet.workers[0].array[slot].max()) for slot in slots] == [1, 2]
    fleet.store.end_job(job)
    assert fleet.settled(fleet.store.begin_request(), [1, 2]) == ["miss", "miss"]
    fleet.close()


def test_a_load_that_found_damage_drops_its_blocks(tmp_path):
    fleet = Fleet(tmp_path)
    fleet.put([1, 2])
    request = fleet.store.begin_request()
    fleet.settled(request, [1, 2])
    job, _, writers = fleet.store.begin_load(request, [key(1)])
    assert writers[0] != 0
    fleet.store.end_job(job, False)
    assert fleet.settled(fleet.store.begin_request(), [1, 2]) == ["miss", "hit"]
    assert fleet.store.counters["damaged"] == 1
    fleet.close()


def test_a_store_is_closed_while_others_use_it(tmp_path):
    # Long lists, so that some threads are inside a call, and others wait for them there, when it is closed.
    fleet = Fleet(tmp_path, slots=16, ranks=1)
    keys = [key(i) for i in range(10000)]
    for _ in range(20):
        store, refused, started = ashlar.HostStore(fleet.kv), [], threading.Semaphore(0)

        def use(store=store, refused=refused, started=started):
            try:
                while True:
                    started.release()
                    job, _, slots = store.begin_store(keys)
                    if slots:
                        store.end_job(job, False)
            except ashlar.UsedGuard:
                refused.append(True)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in threads:
            started.acquire()
        store.close()
        for thread in threads:
            thread.join()
        assert len(refused) == 4
        assert fleet.kv.status["g2"]["pool"].reset == 16  # all slots are back
    fleet.close()


def test_bad_calls_are_errors(tmp_path):
    fleet = Fleet(tmp_path)
    with pytest.raises(ashlar.InvalidArgument, match="16 or 32 bytes"):
        fleet.store.lookup(1, b"short")
    with pytest.raises(TypeError):
        fleet.store.lookup(1, "text")
    with pytest.raises(ashlar.NotFound):
        fleet.store.begin_load(fleet.store.begin_request(), [key(1)])
    with pytest.raises(ashlar.NotFound):
        fleet.store.end_job(12345)
    with pytest.raises(ashlar.InvalidArgument, match="no G2"):
        ashlar.HostStore(ashlar.KvBlockManager(layers=1, heads=1, head_dim=8, g1_blocks=4))
    with pytest.raises(ashlar.InvalidArgument, match="g2_blocks is 64"):
        ashlar.KvBlockManager(layers=1, outer=1, heads=1, head_dim=SLOT, block_size=1, dtype="u8",
                              g1_blocks=1, g2_blocks=64, g2_memory=np.zeros((2, 1, 1, 1, 1, SLOT), np.uint8))
    fleet.close()
    with pytest.raises(ashlar.UsedGuard):
        fleet.store.begin_request()


def test_a_region_loses_its_name_and_reports(tmp_path):
    shape = dict(ranks=2, slots=4, slot_bytes=SLOT, fingerprint=b"one", folder=str(tmp_path))
    manager = HostRegion("engine", rank=None, **shape)
    first = HostRegion("engine", rank=0, **shape)
    assert not manager.complete and manager.missing() == [1]
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ValueError, match="one configuration"):
        HostRegion("engine", rank=1, **{**shape, "fingerprint": b"two"})
    second = HostRegion("engine", rank=1, **shape)
    assert manager.complete and not list(tmp_path.iterdir())
    first.ended(0, 7)
    assert not manager.has_ended(7)
    second.ended(1, 7, failed=True)
    assert manager.has_ended(7) and manager.has_failed(7) and not manager.has_failed(6)
    first.array[2] = 9
    assert int(second.array[2].sum()) == 9 * SLOT
    for each in (manager, first, second):
        each.close()


def test_a_file_of_a_killed_engine_is_swept(tmp_path):
    code = f"""
import os
from ashlar._host_region import HostRegion
HostRegion("gone", ranks=1, slots=4, slot_bytes=4096, fingerprint=b"x", rank=None, folder={str(tmp_path)!r})
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    left = next(tmp_path.iterdir())
    shape = dict(ranks=1, slots=4, slot_bytes=4096, fingerprint=b"x", folder=str(tmp_path))
    HostRegion("young", rank=None, **shape).close()
    assert left.exists()  # it may be of a process that cannot be seen from here
    os.utime(left, (1, 1))
    HostRegion("next", ranks=1, slots=4, slot_bytes=4096, fingerprint=b"x", rank=0, folder=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["ashlar-g2-next"]


class Action:
    def __init__(self, kind, version="1.0", **payload):
        self.action_id, self.action_type, self.action_version, self.payload = kind, kind, version, payload


class Envelope:
    def __init__(self, *actions):
        self.actions = actions


def test_hints_have_outcomes(tmp_path):
    fleet = Fleet(tmp_path, g3_blocks=64, g3_path=tmp_path / "g3", survive_power_loss=False, max_pins=8)
    fleet.put([1, 2, 3])
    fleet.kv.drain()
    desk = HintDesk(fleet.kv, fleet.store)
    here, absent = key(1)[:32].hex(), key(99)[:32].hex()
    outcomes = desk.take(Envelope(
        Action("kv.retain", block_hashes=[here], priority=90, seconds=60),
        Action("kv.retain", block_hashes=[here, absent], priority=90),
        Action("kv.retain", block_hashes=[absent], priority=90),
        Action("kv.retain", block_hashes=[here], priority=900),
        Action("kv.pin", block_hashes=[here], seconds=60),
        Action("kv.pin", block_hashes=[here], seconds=1e9),
        Action("kv.pin", block_hashes=[absent], seconds=60),
        Action("kv.pin", block_hashes=[here], seconds=float("nan")),
        Action("kv.demote", block_hashes=[key(2)[:32].hex()]),
        Action("kv.prefetch", block_hashes=[here]),
        Action("kv.prefetch", block_hashes=["zz"]),
        Action("kv.prefetch", block_hashes=[]),
        Action("kv.fly", block_hashes=[here]),
        Action("kv.pin", version="2.0", block_hashes=[here]),
        Action("kv.fetch", block_hashes=[1], source_control_endpoint="127.0.0.1:1"),
    ))
    assert [each.outcome for each in outcomes] == [
        "accepted", "clipped", "refused", "refused", "accepted", "clipped", "deferred", "refused", "accepted",
        "deferred", "refused", "refused", "refused", "refused", "refused"], outcomes
    assert sum(desk.counters.values()) == len(outcomes)
    assert fleet.kv.describe(fleet.store.name(key(1)))["pins"] == 2
    while desk.busy:
        desk.step()
    assert outcomes[9].outcome == "accepted", outcomes[9]
    desk.forget()
    assert fleet.kv.describe(fleet.store.name(key(1)))["pins"] == 0
    fleet.close()


@pytest.mark.parametrize("transport", ["loopback", "ucx"])
def test_a_second_manager_reads_g2_of_the_first(tmp_path, transport):
    try:
        owner = Fleet(tmp_path, remote=dict(listen="127.0.0.1:0", transport=transport))
    except ashlar.Unsupported as error:
        assert transport == "ucx"
        pytest.skip(str(error))
    owner.put([5, 6])
    address = owner.kv.remote_address
    reader = Fleet(tmp_path, remote=dict(listen="127.0.0.1:0", peers=[address], transport=transport))
    request = reader.store.begin_request()
    assert reader.settled(request, [5, 6, 7]) == ["hit", "hit", "miss"]
    assert reader.store.source(request, key(5)) == "remote"
    job, slots, _ = reader.store.begin_load(request, [key(5), key(6)])
    assert [int(reader.workers[0].array[slot].max()) for slot in slots] == [5, 6]
    reader.store.end_job(job)
    with pytest.raises(ashlar.InvalidArgument, match="nobody reads"):
        Fleet(tmp_path, remote=dict(liste="127.0.0.1:0"))
    reader.close()
    owner.close()


def test_a_hint_fetches_from_a_peer_that_it_names(tmp_path):
    owner = Fleet(tmp_path, remote=dict(listen="127.0.0.1:0"))
    owner.put([5, 6])
    reader = Fleet(tmp_path, remote=dict(listen="127.0.0.1:0"))
    desk = HintDesk(reader.kv, reader.store)

    def number(n):  # as engines and routers shorten it
        return int.from_bytes(key(n)[:32], "big") & (1 << 64) - 1
    source = dict(source_control_endpoint=owner.kv.remote_address)
    outcomes = desk.take(Envelope(
        Action("kv.fetch", block_hashes=[number(5), number(6)], **source),
        Action("kv.fetch", block_hashes=[number(6), number(7)], **source),
        Action("kv.fetch", block_hashes=[number(7)], **source),
        Action("kv.fetch", block_hashes=[number(5)], mode="move", **source),
        Action("kv.fetch", block_hashes=[number(8)], source_control_endpoint="127.0.0.1:1"),
        Action("kv.fetch", block_hashes=[-1], **source),
        Action("kv.fetch", block_hashes=[number(5)]),
    ))
    assert [each.outcome for each in outcomes] == ["deferred"] * 5 + ["refused"] * 2
    while desk.busy:
        desk.step()
    found = [each.outcome for each in outcomes]
    assert found == ["accepted", "clipped"] + ["refused"] * 5, outcomes
    assert all(each.why for each in outcomes[1:])
    owner.close()  # what was fetched is here
    request = reader.store.begin_request()
    assert reader.settled(request, [5, 6, 7]) == ["hit", "hit", "miss"]
    assert reader.store.source(request, key(5)) == "g2"
    desk.close()
    reader.close()


def test_blocks_of_an_earlier_epoch_are_in_nobodys_way(tmp_path):
    """They are pinned while everything is forgotten, so they stay; the same blocks are stored again."""
    fleet = Fleet(tmp_path, g3_blocks=64, g3_path=tmp_path / "g3", survive_power_loss=False)
    fleet.put([1, 2])
    fleet.kv.drain()
    before = fleet.store.name(key(1))
    request = fleet.store.begin_request()
    assert fleet.settled(request, [1, 2]) == ["hit", "hit"]
    job, _, _ = fleet.store.begin_load(request, [key(1), key(2)])
    fleet.store.forget_all()
    assert fleet.kv.presence([before])[0], "this test pins nothing"
    assert fleet.store.name(key(1)) != before
    assert fleet.put([1, 2]) == 2
    request = fleet.store.begin_request()
    assert fleet.settled(request, [1, 2]) == ["hit", "hit"]
    fleet.kv.drain()
    assert fleet.kv.presence([fleet.store.name(key(1))])[0] & 4, "it was not written to the file again"
    fleet.store.end_job(job)
    assert not fleet.kv.presence([before])[0]
    fleet.close()


def test_a_window_is_asked_of_a_volume_at_once(tmp_path):
    """From its end, as engines ask for windows, and the end is nowhere: few rounds, however many blocks."""
    (tmp_path / "volume").mkdir()
    volume = ("shared", "directory", str(tmp_path / "volume"))
    first = Fleet(tmp_path, slots=64, g4_blocks=256)
    first.kv.register_volume(*volume)
    first.put(list(range(0, 60, 2)))  # every second one
    first.close()
    fleet = Fleet(tmp_path, slots=64, g4_blocks=256)
    fleet.kv.register_volume(*volume)
    request = fleet.store.begin_request()
    window = list(range(59, -1, -1))
    rounds = 0
    while True:
        answers = [fleet.store.lookup(request, key(n)) for n in window]
        if not {"pending", "unknown"} & set(answers):
            break
        rounds += 1
        while fleet.store.fetching:
            fleet.store.fetch_asked()
    assert answers == ["miss" if n % 2 else "hit" for n in window]
    assert rounds <= 4, f"{rounds} rounds for {len(window)} blocks"
    fleet.close()
