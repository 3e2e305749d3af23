"""The end of the interpreter, with threads in calls and callbacks that were not called yet."""

import subprocess
import sys

import pytest

FILLED = """
import os, threading, time
import ashlar, numpy as np
def filled(blocks=32, **options):
    kv = ashlar.KvBlockManager(layers=8, heads=8, head_dim=128, dtype="f32", g1_blocks=64, g2_blocks=64,
                               **options)
    names = kv.hasher().hash_blocks(np.arange(16 * blocks, dtype=np.uint32), 16).sequence
    kv.g1.register(kv.g1.allocate(blocks).stage(names)).release()
    kv.drain(60)
    kv.reset("g1")
    return kv, names
"""


def run(program, rounds=1):
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", FILLED + program], capture_output=True, text=True,
                              timeout=120)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("call", [
    "lambda: hasher.hash_blocks(tokens, 16)",
    "lambda: manager.match(names)",
    "lambda: manager.allocate(9999).release()",
    "lambda: index.settle()",
    "lambda: request.match_prefix()",
])
def test_daemon_threads_are_in_calls_at_the_end(call):
    run(f"""
hasher, tokens = ashlar.SequenceHasher(), np.arange(200000, dtype=np.uint32)
manager, index = ashlar.BlockManager(10000), ashlar.Index("flash", threads=1)
names = hasher.hash_blocks(tokens[:16 * 5000], 16).sequence
request = ashlar.RequestSequence(manager, range(10))
inside = threading.Semaphore(0)
def loop(call):
    try:
        call()
    except ashlar.AshlarError:
        pass
    inside.release()
    while True:
        try:
            call()
        except ashlar.AshlarError:
            pass
for _ in range(3):
    threading.Thread(target=loop, args=({call},), daemon=True).start()
for _ in range(3):
    inside.acquire()
""", rounds=3)


def test_a_daemon_thread_waits_at_the_end():
    run("""
manager = ashlar.BlockManager(8)
kept = manager.allocate(8)
threading.Thread(target=manager.allocate, args=(8, 3600), daemon=True).start()
while manager.status.waiters == 0:
    pass
""")


@pytest.mark.parametrize("call", ["lambda: None", "lambda: time.sleep(0.05)"])
def test_a_callback_is_pending_at_the_end(call):
    run(f"""
kv, names = filled()
handle = kv.onboard_async(names, on_done={call})
""", rounds=3)


def test_many_callbacks_are_pending_at_the_end():
    run("""
kv, names = filled(onboard_threads=2)
handles = [kv.onboard_async(names, on_done=lambda: time.sleep(0.001)) for _ in range(300)]
""")


def test_a_match_is_pending_at_the_end():
    run("""
kv, names = filled()
request = ashlar.RequestSequence(kv.g1, np.arange(16 * 32 + 1), hasher=kv.hasher())
request.begin_match(lambda: time.sleep(0.01))
""", rounds=3)


def test_a_callback_that_never_returns_does_not_keep_the_process():
    run("""
kv, names = filled()
begun = threading.Event()
handle = kv.onboard_async(names, on_done=lambda: (begun.set(), threading.Event().wait()))
begun.wait()
""")


def test_a_callback_has_the_last_reference_to_its_manager():
    run("""
def leave_it_to_the_callback():
    kv, names = filled(blocks=8)
    begun.clear()
    kv.onboard_async(names, on_done=lambda: (kv.closed, begun.wait()))
begun = threading.Event()
threads = len(os.listdir("/proc/self/task"))
for _ in range(3):
    leave_it_to_the_callback()
    begun.set()
    while len(os.listdir("/proc/self/task")) != threads:  # until the manager is gone, with its threads
        time.sleep(0.001)
leave_it_to_the_callback()
begun.set()
""")
