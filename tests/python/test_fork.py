"""fork(): a child may end and drop what its parent made, may not use it, and may make its own."""

import multiprocessing
import os
import subprocess
import sys

import ashlar
import numpy as np
import pytest
from kv_blocks import check, make, names_of, store


class Everything:
    """An object of every kind that has threads or locks, with work of theirs."""

    def __init__(self, folder):
        self.batches = []
        self.kv = make(g2_blocks=16, g3_blocks=16, g3_path=os.path.join(folder, "g3"), events=64)
        self.stream = ashlar.EventStream(self.kv, self.batches.append)
        self.names = names_of(self.kv, 4).sequence
        self.blocks = store(self.kv, self.names)
        self.one = self.blocks[0]
        self.weak = self.one.downgrade()
        self.view = self.kv.array(self.one)
        self.offload = self.kv.offload(self.names, tier="g2")
        self.onboard = self.kv.onboard_async(self.names)
        self.kv_pin = self.kv.pin(self.names[:1], ttl=600)
        self.host = ashlar.HostStore(make(g2_blocks=8))
        self.manager = ashlar.BlockManager(8, 4)
        self.free = self.manager.allocate(2)
        self.single = self.manager.allocate_block()
        self.request = ashlar.RequestSequence(self.manager, list(range(8)), max_tokens=16)
        self.request.schedule_prefill(8)
        self.signal = ashlar.FenceSignal()
        self.pin = self.one.pin(600.0)
        self.hold = self.kv.g1.hold(self.names[0])
        self.index = ashlar.Index(threads=2)
        self.locals = np.arange(4, dtype=np.uint64)
        self.index.store(1, self.locals, self.locals)
        self.feed = ashlar.EngineFeed(self.index, 7)

    def refused(self):
        """Calls that only the process of the objects may make."""
        return [lambda: self.kv.status, lambda: self.kv.drain(), lambda: self.kv.g1,
                lambda: self.stream.flush(), lambda: self.blocks.block_ids,
                lambda: self.one.sequence_hash, lambda: self.weak.upgrade(),
                lambda: self.manager.allocate(1), lambda: self.free.block_ids, lambda: self.single.block_id,
                lambda: self.request.block_table(), lambda: self.signal.signal(), lambda: self.index.settle(),
                lambda: self.index.find_matches(self.locals), lambda: self.feed.apply(b""),
                lambda: self.host.begin_request(), lambda: self.pin.active, lambda: self.kv_pin.active,
                lambda: self.kv_pin.pinned, lambda: self.hold.active, lambda: self.hold.block_id,
                lambda: self.offload.done, lambda: self.offload.progress, lambda: self.offload.wait(1),
                lambda: self.offload.cancel(), lambda: self.onboard.done, lambda: self.onboard.outcomes,
                lambda: self.onboard.wait(1), lambda: self.onboard.cancel()]


def check_child(everything, how):
    for call in everything.refused():
        try:
            call()
        except ashlar.InvalidArgument as error:
            assert "fork" in str(error)
        else:
            raise AssertionError("a call with an object of the parent was not refused")
    with make(g2_blocks=8) as own:  # which has threads of this process
        names = names_of(own, 2).sequence
        check(own, store(own, names), names)
        own.drain()
    if how == "close":
        everything.kv.close()
        everything.stream.close()
        everything.host.close()
        everything.free.release()
    if how == "drop":
        for name in list(vars(everything)):
            delattr(everything, name)


def run(folder, how):
    """The program of the tests below: forks, looks how the child ends, and goes on."""
    everything = Everything(folder)
    child = os.fork()
    if child == 0:
        check_child(everything, how)
        sys.exit(7)
    status = os.waitpid(child, 0)[1]
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7, status
    everything.offload.wait(60)
    check(everything.kv, everything.blocks, everything.names)
    everything.index.settle()
    everything.stream.close()
    assert everything.batches


@pytest.mark.parametrize("how", ["exit", "close", "drop"])
def test_a_child_ends_with_objects_of_its_parent(tmp_path, how):
    program = f"import test_fork; test_fork.run({str(tmp_path)!r}, {how!r})"
    done = subprocess.run([sys.executable, "-B", "-c", program], timeout=300, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def run_worker(folder):
    everything = Everything(folder)
    worker = multiprocessing.get_context("fork").Process(target=check_child, args=(everything, "drop"))
    worker.start()
    worker.join()
    assert worker.exitcode == 0, worker.exitcode


def test_a_worker_of_multiprocessing_drops_them(tmp_path):
    program = f"import test_fork; test_fork.run_worker({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-B", "-c", program], timeout=300, check=True,
                   env={**os.environ, "PYTHONPATH": os.path.dirname(__file__)})
