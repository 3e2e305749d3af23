"""KvBlockManager: blocks go down and come back with their bytes, by policy and by call."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import ashlar
import numpy as np
import pytest
from kv_blocks import check, content, make, names_of, store


def test_blocks_go_down_and_come_back():
    kv = make(g2_blocks=32)
    names = names_of(kv, 6).sequence
    store(kv, names).release()
    assert kv.drain()
    assert kv.presence(names).tolist() == [0b11] * 6
    assert kv.reset("g1") == 6
    assert kv.presence(names).tolist() == [0b10] * 6
    assert [run[:3] for run in kv.find(names)] == [("g2", 0, 6)]
    with kv.onboard(names) as guards:
        check(kv, guards, names)
    status = kv.status
    assert status["g2"]["onboarded"] == 6 and status["to_g2"]["arrived"] == 6
    assert status["g3"] is None and status["g1"]["pool"].active == 0
    assert "ashlar_" in kv.metrics({"rank": "0"})


def test_a_file_survives_a_restart(tmp_path):
    path = tmp_path / "g3"
    with make(g2_blocks=16, g3_blocks=32, g3_path=path, model="m") as kv:
        names = names_of(kv, 5).sequence
        store(kv, names).release()
        assert kv.drain()
        assert kv.presence(names).tolist() == [0b111] * 5
    assert kv.closed
    with make(g2_blocks=16, g3_blocks=32, g3_path=[str(path)], model="m") as kv:
        assert [run[:3] for run in kv.find(names)] == [("g3", 0, 5)]
        handle = kv.prefetch(names)
        handle.wait(60)
        assert kv.presence(names).tolist() == [0b110] * 5
        with kv.onboard(names) as guards:
            check(kv, guards, names)
    with pytest.raises(ashlar.AshlarError):
        make(g2_blocks=16, g3_blocks=32, g3_path=path, model="another")


def test_digests_tell_other_tokens_apart():
    kv = make(g2_blocks=16)
    hashes = names_of(kv, 3)
    sequence = ashlar.TokenSequence(np.arange(12, dtype=np.uint32), 4, kv.hasher())
    kv.g1.register(kv.g1.allocate(3).complete(sequence)).release()
    assert len(kv.onboard(hashes)) == 3
    class Forged:
        sequence, local = hashes.sequence, hashes.local
        prefix = names_of(kv, 3, seed=1).prefix
    assert len(kv.onboard(Forged)) == 0
    Forged.prefix = Forged.prefix[:1]
    with pytest.raises(ashlar.InvalidArgument):
        kv.onboard(Forged)


def test_an_offload_waits_for_its_fence():
    kv = make(g2_blocks=16, offload="on_call")
    names = names_of(kv, 3).sequence
    guards = store(kv, names)
    assert kv.presence(names).tolist() == [1, 1, 1]
    signal = ashlar.FenceSignal()
    handle = kv.offload(names, after=signal.fence)
    with pytest.raises(ashlar.Timeout):
        handle.wait(0.01)
    assert not handle.done and handle.progress.ended == 0
    signal.signal()
    progress = handle.wait(60)
    assert (progress.total, progress.arrived, progress.ended) == (3, 3, 3)
    assert kv.offload(names).wait(60).present == 3

    cancelled = kv.offload(names_of(kv, 2, seed=1).sequence)
    assert cancelled.wait(60).gone == 2
    abandoned = ashlar.FenceSignal()
    more = names_of(kv, 2, seed=2).sequence
    other = store(kv, more)
    handle = kv.offload(more, after=[abandoned.fence, abandoned.fence])
    handle.cancel()
    assert handle.wait(60).cancelled == 2
    handle = kv.offload(more, after=abandoned.fence)
    del abandoned
    gc.collect()
    assert handle.done and handle.progress.failed == 2
    with pytest.raises(ashlar.AshlarError):
        handle.wait(60)
    with pytest.raises(ashlar.InvalidArgument):
        kv.offload(names, after=[signal.fence, signal.fence])
    with pytest.raises(ashlar.Unsupported):
        kv.offload(names, tier="g3")
    with pytest.raises(ashlar.InvalidArgument):
        kv.offload(names, tier="g9")
    del guards, other


def test_onboarding_in_the_background():
    kv = make(g2_blocks=16)
    names = names_of(kv, 5).sequence
    store(kv, names).release()
    kv.drain()
    kv.reset("g1")
    done = threading.Event()
    handle = kv.onboard_async(names, by_layer=True, on_done=done.set)
    assert len(handle.wait_layer(0)) == 5 and len(handle.wait_layer(1)) == 5
    with pytest.raises(ashlar.InvalidArgument):
        handle.wait_layer(2)
    guards = handle.wait(60)
    check(kv, guards, names)
    assert done.wait(60)
    assert handle.done and handle.outcomes == [("hit", None, "g2")] * 5
    assert len(handle.wait(60)) == 0  # handed over before
    guards.release()

    missing = kv.onboard_async(names_of(kv, 2, seed=9).sequence)
    assert len(missing.wait(60)) == 0
    assert [outcome[:2] for outcome in missing.outcomes] == [("miss", "unknown"), ("miss", "behind")]
    missing.cancel()


def test_an_exception_of_on_done_is_unraisable(monkeypatch):
    seen, told = [], threading.Event()

    def hook(unraisable):
        seen.append(unraisable.exc_type)
        told.set()

    monkeypatch.setattr(sys, "unraisablehook", hook)
    kv = make(g2_blocks=16)

    def fail():
        raise KeyError("on purpose")

    assert len(kv.onboard_async(names_of(kv, 1).sequence, on_done=fail).wait(60)) == 0
    assert told.wait(60) and seen == [KeyError]
    with pytest.raises(TypeError):
        kv.onboard_async(names_of(kv, 1).sequence, on_done=5)


def test_pins_hold_blocks_in_every_tier():
    kv = make(g2_blocks=16)
    names = names_of(kv, 2).sequence
    store(kv, names).release()
    kv.drain()
    with kv.pin(names, 3600) as pin:
        assert pin.active and pin.pinned == 4 and pin.refused == 0
        assert kv.reset("g1") == 0
        assert kv.describe(names[0])["pins"] == 1
    assert not pin.active
    with pytest.raises(ashlar.UsedGuard):
        pin.pinned
    pin.release()
    assert kv.reset("g1") == 2
    with pytest.raises(ashlar.InvalidArgument):
        kv.pin(names, 0)


def test_what_is_known_of_a_block():
    kv = make(g2_blocks=16)
    names = names_of(kv, 2).sequence
    store(kv, names).release()
    kv.drain()
    assert kv.set_retention(names, 80) == 2
    assert kv.set_metadata(names[:1], 7) == 1 and kv.metadata(names[0]) == 7
    known = kv.describe(names[0])
    assert known["priority"] == 80 and known["metadata"] == 7
    assert [tier["tier"] for tier in known["tiers"]] == ["g1", "g2"]
    assert known["tiers"][0]["bytes"] == content(names[0]).nbytes
    assert kv.describe(names[1])["parent"] == names[0]
    unknown = names_of(kv, 1, seed=5).sequence[0]
    assert kv.describe(unknown) is None and kv.metadata(unknown) is None
    kv.reset_blocks(names)
    assert kv.presence(names).tolist() == [0, 0]
    with pytest.raises(ValueError):
        kv.set_retention(names, 101)


@pytest.mark.parametrize("eviction", ashlar.eviction_names())
def test_every_eviction_works_in_all_tiers(tmp_path, eviction):
    options = dict(g1_blocks=4, g2_blocks=8, g3_blocks=16, g3_path=tmp_path / "g3", eviction=eviction)
    with make(**options) as kv:
        for seed in range(3):
            names = names_of(kv, 4, seed).sequence
            store(kv, names).release()
            assert kv.drain(60)
        with kv.onboard(names_of(kv, 4, 0).sequence, timeout=60) as found:
            check(kv, found, names_of(kv, 4, 0).sequence)
            assert len(found) == 4


def test_volumes_come_and_go(tmp_path):
    (tmp_path / "volume").mkdir()
    kv = make(g2_blocks=16, g4_blocks=32)
    kv.register_volume("cold", "directory", tmp_path / "volume")
    with pytest.raises(ashlar.AlreadyExists):
        kv.register_volume("cold", "directory", str(tmp_path / "volume"))
    with pytest.raises(ashlar.NotFound):
        kv.register_volume("other", "attic", "somewhere")
    names = names_of(kv, 3).sequence
    store(kv, names).release()
    kv.drain()
    assert kv.presence(names).tolist() == [0b1011] * 3
    assert kv.status["volumes"][0]["blocks"] == 3
    kv.reset("g1")
    kv.reset("g2")
    with kv.onboard(names) as guards:
        check(kv, guards, names)
    assert kv.unregister_volume("cold") == 3
    with pytest.raises(ashlar.NotFound):
        kv.unregister_volume("cold", timeout=1)


def test_g1_serves_requests_and_matches():
    kv = make(g2_blocks=16)
    names = names_of(kv, 4).sequence
    store(kv, names).release()
    assert len(kv.g1.match(names)) == 4
    assert kv.g1.block_count == 8 and kv.g1.block_size == 4
    g1 = kv.g1
    kv.close()
    assert len(g1.match(names)) == 4  # a part keeps the whole
    blocks = g1.allocate(2)
    del g1, kv
    gc.collect()
    assert len(blocks) == 2


def test_wrong_options_are_errors(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for wrong in (dict(layers=0), dict(dtype="int4"), dict(g1_blocks=0), dict(eviction="by luck"),
                  dict(offload="never"), dict(duplicates="maybe"), dict(g1_order="upside_down"),
                  dict(g3_blocks=8), dict(g3_path="x"), dict(rank=1), dict(rank=2, ranks=2), dict(ranks=0),
                  dict(heads=2**31, head_dim=4), dict(heads=2**31, head_dim=1, ranks=4),
                  dict(prefix_key=b"short"), dict(block_size=0), dict(block_size=2**20),
                  dict(max_pins=2**40)):
        with pytest.raises((ValueError, ashlar.AshlarError)):
            make(g2_blocks=4, **wrong)
    for path in (folder, tmp_path / "missing" / "g3", "/proc/g3", "/dev/null"):
        with pytest.raises(ashlar.AshlarError):
            make(g2_blocks=4, g3_blocks=4, g3_path=path)
    with pytest.raises(ashlar.CapacityError):
        make(layers=2**12, head_dim=2**20, block_size=2**16)
    with pytest.raises(TypeError):
        make(g1_block=3)
    kv = make()
    with pytest.raises(ashlar.Unsupported):
        kv.reset("g3")
    with pytest.raises(ashlar.Unsupported):
        kv.register_volume("cold", "directory", str(folder))
    with pytest.raises(ashlar.InvalidArgument):
        kv.drain(-1)
    with pytest.raises(ashlar.InvalidArgument):
        kv.onboard(names_of(kv, 1).sequence, compute_tokens_per_second=0)


def test_a_full_disk_is_no_crash(tmp_path):
    with pytest.raises(ashlar.AshlarError):
        make(g2_blocks=8, g3_blocks=1024, g3_path="/dev/full")
    # A disk that ends in the middle of the file.
    program = f"""
import resource, ashlar
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    ashlar.KvBlockManager(layers=2, heads=2, head_dim=64, g1_blocks=8, g2_blocks=8, g3_blocks=4096,
                          g3_path={str(tmp_path / "g3")!r})
except ashlar.AshlarError as error:
    print("refused:", error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout.startswith("refused:"), ended.stderr


def test_requests_find_what_the_tiers_have():
    kv = make(g2_blocks=32)
    prompt = np.arange(18, dtype=np.uint32)
    for cached in (0, 16, 16):
        request = ashlar.RequestSequence(kv.g1, prompt)
        with request:
            assert request.match_prefix() == cached
            while request.computed_tokens < request.prompt_size:
                step = request.tokens_to_compute
                request.schedule_prefill(step)
                for id_ in request.block_table():
                    if cached == 0:
                        kv.array()[id_] = 2.5
                request.apply_prefill(7)
            assert (kv.array(int(request.block_table()[0])) == 2.5).all()
        kv.drain()
        kv.reset("g1")  # from G2 the next time
    request = ashlar.RequestSequence(kv.g1, prompt)
    kv.close()
    del kv
    gc.collect()
    request.match_prefix()  # a request keeps the tiers that it reads from
    request.release()


def test_a_closed_manager_is_an_error():
    kv = make(g2_blocks=16)
    names = names_of(kv, 2).sequence
    handle = kv.onboard_async(names)
    handle.wait(60)
    kv.shutdown(timeout=60)
    with pytest.raises(ashlar.Cancelled):
        kv.offload(names)
    with pytest.raises(ashlar.Cancelled):
        kv.onboard_async(names)
    kv.close()
    kv.close()
    for call in (lambda: kv.status, lambda: kv.g1, lambda: kv.array(), lambda: kv.onboard(names),
                 lambda: kv.drain(), lambda: kv.pin(names, 1), lambda: kv.metrics(), lambda: kv.reset("g1"),
                 lambda: kv.shutdown(), lambda: kv.find(names), kv.__enter__, lambda: kv.hasher()):
        with pytest.raises(ashlar.UsedGuard):
            call()
    assert handle.done and len(handle.outcomes) == 2


def test_managers_die_with_everything_outstanding():
    # Guards, pins, handles, fences and views outlive the name of their manager, in any order.
    for order in range(6):
        kv = make(g2_blocks=16)
        names = names_of(kv, 3).sequence
        signal = ashlar.FenceSignal()
        kept = [store(kv, names), kv.pin(names[:2], 60), kv.offload(names, after=signal.fence), kv.array(),
                kv.onboard_async(names), kv.g1.allocate(2)]
        kept = kept[order:] + kept[:order]
        del kv
        gc.collect()
        while kept:
            kept.pop()
            gc.collect()
        del signal


def test_threads_store_and_onboard_at_once():
    kv = make(g1_blocks=24, g2_blocks=64, onboard_threads=2)
    problems, start = [], threading.Barrier(5)

    def work(number):
        rng = np.random.default_rng(number)
        start.wait()
        try:
            for _ in range(25):
                names = names_of(kv, int(rng.integers(1, 5)), seed=int(rng.integers(6))).sequence
                with kv.onboard(names) as have:
                    check(kv, have, names[:len(have)])
                    rest = names[len(have):]
                    if len(rest):
                        try:
                            store(kv, rest).release()
                        except ashlar.CapacityError:
                            pass
        except BaseException as error:  # noqa: BLE001
            problems.append(error)

    def collect():
        start.wait()
        while any(thread.is_alive() for thread in threads):
            gc.collect()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    collector = threading.Thread(target=collect)
    collector.start()
    for thread in [*threads, collector]:
        thread.join()
    assert not problems
    kv.drain()
    assert kv.status["g1"]["pool"].active == kv.status["g1"]["pool"].owned == 0


@pytest.mark.parametrize("as_path", [os.fsencode, os.fsdecode])
def test_files_have_any_name(tmp_path, as_path):
    name = as_path(os.fsencode(tmp_path) + b"/odd \xff")
    with make(g2_blocks=16, g3_blocks=32, g3_path=name, events=64) as kv:
        names = names_of(kv, 2).sequence
        store(kv, names).release()
        assert kv.drain()
        assert kv.presence(names).tolist() == [0b111] * 2
        places = [tier["location"] for tier in kv.describe(names[0])["tiers"]]
        assert all(isinstance(place, str) for place in places)
    assert os.path.exists(name)


class Owner:
    """Holds a manager, and a handle whose callback is a method of this."""

    def __init__(self):
        self.kv = make(g2_blocks=32)
        names = names_of(self.kv, 4).sequence
        store(self.kv, names).release()
        self.kv.drain()
        self.kv.reset("g1")
        self.called = threading.Event()
        self.handle = self.kv.onboard_async(names, on_done=self.done)

    def done(self):
        self.called.set()


def collected(reference):
    """Waits until the object is gone: a thread of the library may hold it for another moment."""
    while reference() is not None:
        gc.collect()
    return True


def test_a_callback_is_dropped_when_it_has_been_called():
    owner = Owner()
    owner.called.wait()
    owner.handle.wait().release()
    gone = weakref.ref(owner)
    del owner
    assert collected(gone)


def test_a_request_whose_callback_refers_to_it_is_collected():
    kv = make(g1_blocks=16, g2_blocks=32)
    prompt = np.arange(18, dtype=np.uint32)
    names = kv.hasher().hash_blocks(prompt, 4).sequence
    store(kv, names).release()
    kv.drain()
    kv.reset("g1")

    def match_and_leave():
        request = ashlar.RequestSequence(kv.g1, prompt, hasher=kv.hasher())
        assert request.begin_match(lambda: request and None).pending

    match_and_leave()
    while kv.g1.status.active:
        gc.collect()
    kv.shutdown()
    assert kv.g1.status.active == 0
    kv.close()
