"""Ctrl-C in calls that wait: each raises KeyboardInterrupt while it cannot return, and loses nothing.

Every case is a process of its own. A call that does not see the signal never returns.
"""

import gc
import os
import pathlib
import subprocess
import sys
import threading
import time
import weakref

import ashlar
import pytest
from interrupted import StuckMemory
from kv_blocks import make

needs_stuck_memory = pytest.mark.skipif(StuckMemory.open() is None,
                                        reason="the kernel grants no userfaultfd to this user")


def run(program):
    folders = [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run([sys.executable, "-B", "-c", "from interrupted import *\n" + program],
                          capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))})
    assert (done.returncode, done.stderr) == (0, "")


def test_an_allocation_leaves_the_queue():
    run("""
manager = ashlar.BlockManager(8)
kept = manager.allocate(8)
interrupt(lambda: manager.allocate(2, timeout=3600))
assert manager.status.waiters == 0
kept.release()
assert manager.available == 8
""")


def test_an_allocation_of_the_main_thread_keeps_its_place():
    manager = ashlar.BlockManager(8)
    kept, order = manager.allocate(8), []

    def second():
        while manager.status.waiters != 1:
            time.sleep(0)
        behind = threading.Thread(target=third)
        behind.start()
        while manager.status.waiters != 2:
            time.sleep(0)
        time.sleep(0.5)  # for the main thread to look for signals: it must not queue anew
        kept.release()
        behind.join()

    def third():
        with manager.allocate(8, timeout=3600):
            order.append("third")

    other = threading.Thread(target=second)
    other.start()
    with manager.allocate(8, timeout=3600):
        order.append("main")
    other.join()
    assert order == ["main", "third"] and manager.available == 8


def test_the_wait_for_an_offload():
    run("""
kv = ashlar.KvBlockManager(**SHAPE, g1_blocks=BLOCKS, g2_blocks=BLOCKS, offload="on_call")
names = names_of(kv, 4)
store(kv, names)
signal_ = ashlar.FenceSignal()
handle = kv.offload(names, after=signal_.fence)
interrupt(lambda: handle.wait())
assert not handle.done
signal_.signal()
assert handle.wait().arrived == 4
""")


@pytest.mark.parametrize("call", ["handle.wait()", "handle.wait(3600)", "handle.wait_layer(0)"])
def test_the_wait_for_blocks_from_below(call):
    run(f"""
kv, names = below(onboard_threads=1)
busy = BusyOnboarding(kv, names)
handle = kv.onboard_async(names, by_layer=True)
interrupt(lambda: {call})
busy.end()
with handle.wait() as table:
    assert len(table) == 4
assert kv.g1.status.active == 0
""")


@pytest.mark.parametrize("begin, call", [
    ("", "request.match_prefix()"),
    ("request.preempt()", "request.resume()"),
    ("request.begin_match(lambda: None)", "request.finish_match()"),
    ("request.begin_match(lambda: None)", "request.wait_layer(1)"),
])
def test_a_request_stays_onboarding(begin, call):
    run(f"""
kv, names = below(onboard_threads=1)
busy = BusyOnboarding(kv, names)
request = ashlar.RequestSequence(kv.g1, np.arange(4 * BLOCK_SIZE + 1), hasher=kv.hasher(), by_layer=True)
{begin}
interrupt(lambda: {call})
assert request.state == "onboarding"
busy.end()
assert request.finish_match() == 4 * BLOCK_SIZE
request.release()
assert kv.g1.status.active == 0
""")


@needs_stuck_memory
def test_onboarding_ends_in_the_background():
    run("""
memory = memory_for(BLOCKS)
kv, names = below(g1_memory=memory.map)
memory.stick()
interrupt(lambda: kv.onboard(names))
memory.free()
while kv.g1.status.active + kv.g1.status.owned != 0:
    time.sleep(0)
with kv.onboard(names) as table:
    assert len(table) == 4
""")


@needs_stuck_memory
@pytest.mark.parametrize("call, closed", [
    ("kv.drain()", False), ("kv.shutdown()", False), ("kv.close(timeout=None)", True),
    ("handle.wait()", False),
])
def test_offloads_go_on(call, closed):
    run(f"""
memory = memory_for(BLOCKS)
kv = ashlar.KvBlockManager(**SHAPE, g1_memory=memory.map, g1_blocks=BLOCKS, g2_blocks=BLOCKS,
                           offload="on_call")
names = names_of(kv, 4)
store(kv, names)
memory.stick()
handle = kv.offload(names)
interrupt(lambda: {call})
assert kv.closed == {closed} and not handle.done
memory.free()
assert handle.wait().arrived == 4
""")


@needs_stuck_memory
def test_a_removal_of_blocks_that_are_being_copied():
    run("""
memory = memory_for(BLOCKS)
kv = ashlar.KvBlockManager(**SHAPE, g1_memory=memory.map, g1_blocks=BLOCKS, g2_blocks=BLOCKS)
names = names_of(kv, 4)
memory.stick()
store(kv, names)
while kv.status["to_g2"]["in_flight"] == 0:
    time.sleep(0)
interrupt(lambda: kv.reset_blocks(names))
memory.free()
while kv.presence(names).any():
    time.sleep(0)
""")


@needs_stuck_memory
def test_a_volume_in_use(tmp_path):
    run(f"""
memory = memory_for(BLOCKS)
kv = ashlar.KvBlockManager(**SHAPE, g1_blocks=BLOCKS, g2_memory=memory.map, g2_blocks=BLOCKS, g4_blocks=16,
                           offload="on_call")
kv.register_volume("shared", "directory", {str(tmp_path)!r})
names = names_of(kv, 4)
store(kv, names)
assert kv.offload(names).wait().arrived == 4
memory.stick()
handle = kv.offload(names, tier="g4")
while kv.status["to_g4"]["in_flight"] == 0:
    time.sleep(0)
interrupt(lambda: kv.unregister_volume("shared"))
memory.free()
while kv.status["volumes"]:
    time.sleep(0)
""")


@pytest.mark.parametrize("call", ["stream.flush(3600)", "stream.close(3600)"])
def test_a_stream_whose_function_does_not_return(call):
    run(f"""
kv = ashlar.KvBlockManager(**SHAPE, g1_blocks=BLOCKS, events=1024)
begun, go_on, seen = threading.Event(), threading.Event(), []
def listen(batch):
    seen.extend(event.hash for event in batch)
    begun.set()
    go_on.wait()
names = names_of(kv, 4)
store(kv, names)
stream = ashlar.EventStream(kv, listen)
begun.wait()
interrupt(lambda: {call})
go_on.set()
stream.close()
while set(seen) != set(names):
    time.sleep(0)
""")


@pytest.mark.parametrize("call", ["client.health()", "client.post('/v1/completions', {})"])
def test_a_service_that_does_not_answer(call):
    run(f"""
import socket
from ashlar.service import ServiceClient
listener = socket.create_server(("127.0.0.1", 0))
client = ServiceClient(f"127.0.0.1:{{listener.getsockname()[1]}}", timeout=3600)
interrupt(lambda: {call})
""")


def test_a_replay():
    run("""
from ashlar import replay
trace = replay.Trace.generate("chat,requests=20000")
def replay_for_ever():
    while True:
        replay.replay_trace(trace, g1=1000)
interrupt(replay_for_ever)
""")


class Owner:
    def __init__(self, kv):
        self.seen = 0
        self.stream = ashlar.EventStream(kv, self.listen)

    def listen(self, batch):
        self.seen += len(batch)


def test_a_stream_and_its_owner_are_collected():
    kv = make(events=1 << 12)
    for _ in range(3):  # a manager has one stream at a time
        owner = weakref.ref(Owner(kv))
        while owner() is not None:
            gc.collect()
    with ashlar.EventStream(kv, lambda batch: None) as stream:
        stream.flush()
    kv.close()


def test_a_collected_stream_delivers_what_waits_to_whole_objects():
    manager = ashlar.BlockManager(64, 4, events=1 << 12)
    names = ashlar.SequenceHasher().hash_blocks(list(range(4 * 32)), 4).sequence
    seen = []

    class Recorder:
        def __init__(self):
            self.stream = ashlar.EventStream(manager, self.listen, max_events=64, max_age=3600)

        def listen(self, batch):
            seen.extend((self.stream is not None, event.hash) for event in batch)

    gc.disable()
    try:
        recorder = weakref.ref(Recorder())
        manager.register(manager.allocate(32).stage(names)).release()
    finally:
        gc.enable()
    while recorder() is not None:
        gc.collect()
    assert {name for whole, name in seen if whole} == set(names) and all(whole for whole, _ in seen)
