"""The rival's side of run_remote: NIXL with its UCX back end (remote_blocks.md defines work and timing).

usage: nixl_peer.py --blocks BYTES[,BYTES...]     with UCX_TLS in the environment
"""

import json
import multiprocessing
import os
import statistics
import sys
import time
from importlib import metadata

import numpy
from nixl_cu13._api import nixl_agent, nixl_agent_config

REGION = 64 << 20
ROUNDS = 4
SINGLES = 1000
SINGLE_PLACES = 16


def pattern():
    return (numpy.arange(1, REGION // 8 + 1, dtype=numpy.uint64)) * numpy.uint64(0x9E3779B97F4A7C15)


def sum_of(memory):
    words = memory.view(numpy.uint64)
    weights = numpy.arange(words.size, dtype=numpy.uint64) * numpy.uint64(2) + numpy.uint64(1)
    return int((words * weights).sum(dtype=numpy.uint64))


def make_memory():
    """64 MiB that begin on a page."""
    room = numpy.zeros(REGION + 4096, dtype=numpy.uint8)
    start = -room.ctypes.data % 4096
    return room[start:start + REGION]


def make_agent(name, memory):
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(memory.ctypes.data, REGION, 0, "")], "DRAM")
    return agent


def own(pipe):
    """The other process: fills its memory and waits for the end."""
    memory = make_memory()
    memory.view(numpy.uint64)[:] = pattern()
    agent = make_agent("owner", memory)
    pipe.send((agent.get_agent_metadata(), memory.ctypes.data))
    pipe.recv()
    os._exit(0)


class Reader:
    def __init__(self, pipe):
        blob, self.far = pipe.recv()
        self.memory = make_memory()
        self.near = self.memory.ctypes.data
        self.agent = make_agent("reader", self.memory)
        self.owner = self.agent.add_remote_agent(blob)

    def lists(self, size):
        """The blocks of both sides, as the library wants them."""
        places = range(REGION // size)
        here = self.agent.prep_xfer_dlist(
            "NIXL_INIT_AGENT", [(self.near + place * size, size, 0) for place in places], "DRAM")
        there = self.agent.prep_xfer_dlist(
            self.owner, [(self.far + place * size, size, 0) for place in places], "DRAM")
        return here, there

    def request(self, kind, lists, near, far):
        here, there = lists
        return self.agent.make_prepped_xfer(kind, here, near, there, far)

    def run(self, request):
        state = self.agent.transfer(request)
        while state == "PROC":
            state = self.agent.check_xfer_state(request)
        if state != "DONE":
            sys.exit(f"a transfer ended as {state}")

    def bulk(self, kind, lists, size):
        count = REGION // size
        near = [(11 * i + 1) % count for i in range(count)]
        far = [(5 * i + 1) % count for i in range(count)]
        request = self.request(kind, lists, near, far)
        self.run(request)
        start = time.perf_counter()
        for _ in range(ROUNDS):
            self.run(request)
        elapsed = time.perf_counter() - start
        self.agent.release_xfer_handle(request)
        return elapsed / ROUNDS / count * 1e6

    def single(self, kind, lists):
        requests = [self.request(kind, lists, [place], [place]) for place in range(SINGLE_PLACES)]
        times = []
        for i in range(SINGLES):
            start = time.perf_counter()
            self.run(requests[i % SINGLE_PLACES])
            times.append(time.perf_counter() - start)
        for request in requests:
            self.agent.release_xfer_handle(request)
        return statistics.median(times) * 1e6

    def report(self, op, size, microseconds):
        print(json.dumps({"peer": f"nixl {metadata.version('nixl-cu13')}", "op": op, "block_bytes": size,
                          "us_per_block": round(microseconds, 3),
                          "check": f"sum={sum_of(self.memory):016x}"}), flush=True)

    def measure(self, size):
        lists = self.lists(size)
        self.memory[:] = 0
        self.report("read", size, self.bulk("READ", lists, size))
        self.memory.view(numpy.uint64)[:] = pattern()
        write = self.bulk("WRITE", lists, size)
        self.memory[:] = 0
        self.bulk("READ", lists, size)
        self.report("write", size, write)
        self.report("read_one", size, self.single("READ", lists))
        self.report("write_one", size, self.single("WRITE", lists))
        self.memory.view(numpy.uint64)[:] = pattern()
        places = list(range(REGION // size))
        self.run(self.request("WRITE", lists, places, places))


def main():
    if len(sys.argv) != 3 or sys.argv[1] != "--blocks":
        sys.exit(__doc__)
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    owner = context.Process(target=own, args=(theirs,), daemon=True)
    owner.start()
    reader = Reader(mine)
    for size in sys.argv[2].split(","):
        reader.measure(int(size))
    mine.send("end")
    owner.join(10)
    sys.stdout.flush()
    os._exit(0)  # the library's destructors crash after the interpreter's


if __name__ == "__main__":
    main()
