"""Cases about the last hop: memory damaged between a store and a load, and the memory of another engine."""
import os

import psutil
from engine import EngineFailed, checking, offloading
from fixtures import free_ports
from lab import BLOCK, case, prompt


def checked(folder, policy):
    """AshlarConnector without G3: what is damaged is nowhere else."""
    return checking(folder, policy, g3_path=None, g3_bytes=None)


def damage_g2(engine):
    """Flips a bit in every slot of G2 that has something. Returns how many."""
    for process in psutil.Process(engine.program.process.pid).children(recursive=True):
        try:
            maps = open(f"/proc/{process.pid}/maps").read().splitlines()
        except OSError:
            continue
        for line in maps:
            if "ashlar-g2-" in line:
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                return flip(process.pid, begin, end - begin)
    raise AssertionError("no process of the engine has the memory of G2")


def flip(pid, begin, size):
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    try:
        slots = int.from_bytes(os.pread(memory, 8, begin + 16), "little")
        slot_bytes = int.from_bytes(os.pread(memory, 8, begin + 24), "little")
        # The mapping ends on a page, the slots are whole pages.
        first = begin + size - slots * slot_bytes
        flipped = 0
        for slot in range(slots):
            byte = os.pread(memory, 64, first + slot * slot_bytes)
            if any(byte):
                os.pwrite(memory, bytes([byte[7] ^ 16]), first + slot * slot_bytes + 7)
                flipped += 1
        return flipped
    finally:
        os.close(memory)


@case("6")
def damaged_memory_is_computed_again(lab):
    """Policy recompute: the blocks are dropped, the answer is right, and they are stored again."""
    with lab.engine(checked(lab.fresh("recompute"), "recompute")) as engine:
        ids, other = prompt("damaged", 9), prompt("not damaged", 5)
        lab.same(engine, ids)
        lab.until_cached(engine, ids, 9)
        assert damage_g2(engine) >= 9
        assert engine.reset()
        lab.same(engine, ids)
        assert engine.metric("vllm:ashlar_damaged") == 9
        lab.same(engine, other)
        lab.until_cached(engine, ids, 9)
        assert engine.metric("vllm:ashlar_damaged") == 9


@case("6")
def damaged_memory_fails_its_request_alone(lab):
    """Policy fail: an error for this request, and the engine goes on."""
    with lab.engine(checked(lab.fresh("fail"), "fail")) as engine:
        ids = prompt("damaged and refused", 9)
        lab.same(engine, ids)
        lab.until_cached(engine, ids, 9)
        assert damage_g2(engine) >= 9
        assert engine.reset()
        try:
            answer = engine.generate(ids)
            assert answer["reason"] == "error", answer
        except EngineFailed as failure:
            assert "load" in str(failure).lower(), failure
        lab.same(engine, prompt("next", 4))
        lab.same(engine, ids)


@case("1")
def second_engine_reads_the_memory_of_the_first(lab):
    port = free_ports(1)[0]
    first = offloading(lab.fresh("owner"), remote=dict(listen=f"127.0.0.1:{port}"))
    second = offloading(lab.fresh("reader"), remote=dict(listen="127.0.0.1:0", peers=[f"127.0.0.1:{port}"]))
    with lab.engine(first) as owner:
        ids = prompt("remote", 10)
        lab.same(owner, ids)
        lab.until_cached(owner, ids, 10)
        with lab.engine(second) as reader:
            assert lab.same(reader, ids) == 10 * BLOCK
            assert reader.metric("vllm:ashlar_hits_peer") == 10
            assert reader.metric("vllm:prompt_tokens_cached_by_source", source="p2p") == 10 * BLOCK
