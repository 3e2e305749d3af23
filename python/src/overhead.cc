// For bench/python/overhead.py: an empty call, and the work of batches timed without Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <string>
#include <vector>

#include "arrays.h"
#include "ashlar/block/sequence_batch.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "errors.h"
#include "managers.h"
#include "module.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

using block::G1;

std::vector<tokens::Token> counted_tokens(std::size_t count) {
  std::vector<tokens::Token> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = tokens::Token(static_cast<std::uint32_t>(i));
  return made;
}

template <class F>
double seconds_per_round(std::size_t rounds, F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < rounds; ++i) f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
         static_cast<double>(rounds);
}

// What the Python program does with `count` blocks or requests, in C++. Seconds per round.
double time_batch(const ManagerObject& object, const std::string& what, std::size_t count,
                  std::size_t rounds) {
  Manager& manager = *object.manager;
  const tokens::SequenceHasher hasher;
  const std::uint32_t size = manager.block_size();
  const std::vector<tokens::Token> tokens = counted_tokens(count * size);
  if (what == "hash") {
    return seconds_per_round(rounds, [&] {
      std::vector<tokens::BlockHashes> hashes(count);
      value_or_raise(hasher.hash_blocks({}, tokens, size, hashes));
    });
  }
  std::vector<tokens::BlockHashes> hashes(count);
  value_or_raise(hasher.hash_blocks({}, tokens, size, hashes));
  std::vector<tokens::SequenceHash> names;
  for (const tokens::BlockHashes& block : hashes) names.push_back(block.sequence);
  if (what == "match") {
    return seconds_per_round(rounds, [&] { (void)manager.match_blocks(names).size(); });
  }
  if (what == "register") {
    return seconds_per_round(rounds, [&] {
      block::BlockList<block::MutableBlock<G1>> blocks = value_or_raise(manager.allocate_blocks(count));
      block::BlockList<block::CompleteBlock<G1>> staged;
      staged.reserve(count);
      for (std::size_t i = 0; i < count; ++i) {
        staged.push_back(std::move(blocks[i]).stage(names[i], block::KvReady::asserted_by_caller()));
      }
      auto registered = manager.register_blocks(std::move(staged));
      if (!registered) raise(registered.error().error);
    });
  }
  if (what == "decode") {
    std::vector<block::RequestSequence<G1>> requests;
    block::SequenceBatch<G1> batch;
    requests.reserve(count);
    std::vector<std::size_t> chunks(count, 1);
    const std::vector<std::optional<tokens::Token>> first(count, tokens::Token(1));
    for (std::size_t i = 0; i < count; ++i) {
      block::RequestOptions options;
      options.max_tokens = rounds + 8;
      requests.push_back(value_or_raise(block::RequestSequence<G1>::create(
          manager, {tokens::Token(static_cast<std::uint32_t>(i))}, options)));
      batch.add(requests.back());
    }
    value_or_raise(batch.schedule_prefill(chunks));
    value_or_raise(batch.apply_prefill(first));
    const std::vector<tokens::Token> next = counted_tokens(count);
    return seconds_per_round(rounds, [&] {
      value_or_raise(batch.schedule_decode());
      value_or_raise(batch.apply_decode(next));
    });
  }
  refuse("no such batch");
}

}  // namespace

void bind_overhead(nb::module_& module) {
  module.def("_bare", [] {}, "Does nothing: what a call costs.");
  module.def("_time_batch", &time_batch, nb::arg("manager"), nb::arg("what"), nb::arg("count"),
             nb::arg("rounds"), "Seconds per round of a batch in C++.");
}

}  // namespace ashlar::python
