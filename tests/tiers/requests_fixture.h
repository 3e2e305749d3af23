// RequestsTest: requests over the G1 of a KvBlockManager with four small tiers, and the bytes of blocks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {

class RequestsTest : public ::testing::Test {
 protected:
  using G1 = events::G1;
  using Request = block::RequestSequence<G1>;
  using RequestOptions = block::RequestOptions;
  using RequestState = block::RequestState;
  using SequenceHash = tokens::SequenceHash;
  using Token = tokens::Token;

  static constexpr std::size_t kBlockSize = 4;

  static std::vector<Token> text(std::uint32_t which, std::size_t tokens) {
    std::vector<Token> out;
    for (std::uint32_t i = 0; i < tokens; ++i) out.emplace_back(which * 1000 + i);
    return out;
  }
  // Four tiers with 8, 12, 40 and 40 blocks.
  void open(Trigger trigger = Trigger::kOnArrival) {
    KvOptions options = KvWorkload::options_in(folder_.path());
    options.to_g2.trigger = options.to_g3.trigger = options.to_g4.trigger = trigger;
    open(std::move(options));
  }
  void open(KvOptions options) {
    kv_ = KvBlockManager::create(std::move(options)).value();
    work_.emplace(*kv_);
  }
  Request request(std::vector<Token> prompt, RequestOptions options = {}) {
    return Request::create(kv_->g1(), std::move(prompt), std::move(options)).value();
  }
  // The names of a request in a group.
  static SequenceHash name(const Request& request, std::size_t i, std::uint32_t group) {
    return request.sequence_hashes()[i].in_group(group);
  }
  // Writes the blocks that a step over `tokens` tokens fills.
  void compute(const Request& request, std::size_t tokens) {
    for (std::uint32_t g = 0; g < request.group_count(); ++g)
      for (std::size_t i = request.computed_tokens() / kBlockSize;
           i < std::min(request.computed_tokens() + tokens, request.size()) / kBlockSize; ++i)
        work_->compute(request.block_table(g)[i], name(request, i, g));
  }
  // Whether every block with computed tokens has its bytes.
  bool right(const Request& request) {
    for (std::uint32_t g = 0; g < request.group_count(); ++g)
      for (std::size_t i = 0; i < request.computed_tokens() / kBlockSize; ++i) {
        const block::BlockId id = request.block_table(g)[i];
        if (id != block::kNoBlock && !work_->has_bytes(id, name(request, i, g))) return false;
      }
    return true;
  }
  // Computes the rest of a prompt and one token.
  void prefill(Request& request) {
    const std::size_t tokens = request.tokens_to_compute();
    ASSERT_TRUE(request.schedule_prefill(tokens));
    compute(request, tokens);
    ASSERT_TRUE(request.apply_prefill(Token(7)));
  }
  // Pushes everything out of G1, and out of the tiers above `tier`.
  void only_in(events::TierId tier) {
    kv_->drain();
    for (const events::TierId above : {kG1, kG2, kG3})
      if (above.value() < tier.value()) kv_->reset(above).value();
  }
  void expect_counts_exact() {
    kv_->drain();
    EXPECT_EQ(kv_->g1().available_blocks(), 8u);
    EXPECT_EQ(kv_->g2()->available_blocks(), 12u);
    EXPECT_EQ(kv_->status().g1.evictions, kv_->g1().counters().evictions);
    EXPECT_EQ(kv_->status().g2->evictions, kv_->g2()->counters().evictions);
    kv_->check_invariants();
  }

  ScratchFolder folder_;
  std::unique_ptr<KvBlockManager> kv_;
  std::optional<KvWorkload> work_;
};

}  // namespace ashlar::tiers
