// The benchmarks by name, with what each is measured against and what it should reach: the one table of
// them. docs/performance.md has the results.
//
// Thread safety: immutable.
#pragma once

#include <array>
#include <string_view>

namespace ashlar::apps {

struct BenchmarkEntry {
  std::string_view name;  // of the executable
  std::string_view measures;
  std::string_view target;  // empty: it has none, and prints what it finds
};

inline constexpr std::array<BenchmarkEntry, 20> kBenchmarks = {{
    {"block_bench", "blocks beside a map, a list and shared_ptr under a mutex",
     "share of independent managers: 0.85 on 2 threads, 0.65 on 16 (--scaling)"},
    {"c_bench", "calls through the C interface beside the same calls in C++", ""},
    {"chain_bench", "bytes per block from a socket to the index, and blocks per second", ""},
    {"engine_decode_bench", "decoding of engines' messages, beside a plain decoder and a copy", "1 GB/s"},
    {"event_bench", "cost of events for their thread; throughput of every feed", "those of the feeds' own"},
    {"eviction_bench", "eviction backends beside a list and a map",
     "LRU: 3 times as fast at a million blocks"},
    {"index_bench", "router indexes: store, remove, find, memory",
     "0.80 of private copies beside a churning writer (--scaling)"},
    {"lines_bench", "instructions and cache lines per block, for bench/count_lines under valgrind", ""},
    {"nats_feed_bench", "events through NATS, beside plain cnats", "0.80 of it in batches of 100"},
    {"proxy_bench", "ashlar serve beside nginx and routers of the field",
     "at most 60 us added; half the latency and 2.5 times the throughput of the routers"},
    {"remote_bench", "remote memory between processes, beside ucx_perftest and memcpy",
     "0.90 of the bandwidth, scattered 0.80, loopback 0.75"},
    {"remote_gpu_bench", "G1 of one process to G1 of another, beside a device copy", "0.80 of it"},
    {"replay_bench", "hit rates on a trace beside a reference simulator, and the simulator's speed",
     "the reference's digits; a million requests per minute"},
    {"selection_bench", "POST /query at a steady rate while engines publish",
     "20,000 queries per second, 99% of them within 5 ms"},
    {"sequence_bench", "whole sequences: allocate, free, decode",
     "0.77 of match and drop alone, cached; decoding a third of push_back"},
    {"serve_accuracy", "claims of ashlar serve beside what engines find", "0.999 of them right"},
    {"tier_bench", "moves between tiers, beside raw transfers of the same bytes", "0.85 of them"},
    {"tokens_bench", "hashing of a prompt, beside a bare loop over xxHash", "0.56 of it, digests included"},
    {"transfer_bench", "transfers beside memcpy, io_uring and XXH3 alone", "0.90 of each"},
    {"zmq_feed_bench", "events over ZeroMQ, beside plain sockets", "0.80 of them in batches of 100"},
}};

}  // namespace ashlar::apps
