// MultiTurnWorkload: chats that share system prompts and return after pauses, interrupted by long documents.
//
//   system prompts  many users begin with the same text, few texts with most users (Zipf: the k-th has
//                   1/k of the users of the first)
//   conversations   several turns each; the prompt of a turn is everything said before and a new question,
//                   and the answer is cached too
//   think time      the next turn comes when the user has read, after seconds or after many minutes, so that
//                   conversations interleave
//   documents       long prompts, asked about once and never again
//
// One seed gives the same workload on every machine.
//
// Thread safety: immutable after make().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/random.h"
#include "ashlar/tokens/token_sequence.h"

namespace ashlar::examples {

struct WorkloadOptions {
  // Both ends included.
  struct Range {
    std::uint32_t least = 0;
    std::uint32_t most = 0;
  };

  std::uint64_t seed = 1;
  std::uint32_t block_size = 16;
  std::uint32_t conversations = 300;
  std::uint32_t documents = 150;
  std::uint32_t span_ms = 1'800'000;  // conversations and documents begin within it

  std::uint32_t system_prompts = 24;
  Range system_tokens = {500, 2000};
  Range turns = {2, 8};
  Range question_tokens = {20, 120};
  Range answer_tokens = {60, 400};
  Range document_tokens = {4000, 8000};

  Range think_ms = {5'000, 60'000};
  double long_pause = 0.5;  // how often the user is away for longer
  Range long_pause_ms = {180'000, 600'000};
  std::uint32_t answer_ms_per_token = 25;
};

class MultiTurnWorkload {
 public:
  // One question: the blocks of its prompt, and those of the prompt with the answer.
  struct Request {
    std::uint64_t begin_ms;
    std::uint64_t end_ms;  // the answer is complete
    std::uint32_t conversation;
    std::uint32_t prompt_blocks;
    std::uint32_t total_blocks;
  };
  // The whole text of one conversation, or one document. A request is a prefix of it.
  struct Conversation {
    tokens::TokenSequence sequence;
    std::uint32_t system_blocks;  // shared with other conversations; 0 for a document
  };

  static MultiTurnWorkload make(const WorkloadOptions& options = {}) {
    MultiTurnWorkload workload(options);
    for (std::uint32_t i = 0; i < options.conversations; ++i) workload.add_conversation();
    for (std::uint32_t i = 0; i < options.documents; ++i) workload.add_document();
    std::ranges::sort(workload.requests_, {}, [](const Request& request) {
      return std::tuple(request.begin_ms, request.conversation, request.prompt_blocks);
    });
    return workload;
  }

  // In start order.
  std::span<const Request> requests() const noexcept { return requests_; }
  const Conversation& conversation_of(const Request& request) const {
    return conversations_[request.conversation];
  }
  std::span<const tokens::TokenBlock> prompt_of(const Request& request) const {
    return conversation_of(request).sequence.blocks().first(request.prompt_blocks);
  }
  // The prompt and the answer.
  std::span<const tokens::TokenBlock> blocks_of(const Request& request) const {
    return conversation_of(request).sequence.blocks().first(request.total_blocks);
  }
  // Distinct blocks in total.
  std::size_t distinct_blocks() const {
    std::unordered_set<tokens::SequenceHash> names;
    for (const Conversation& each : conversations_) {
      for (const tokens::TokenBlock& block : each.sequence.blocks()) names.insert(block.sequence_hash());
    }
    return names.size();
  }
  const WorkloadOptions& options() const noexcept { return options_; }

 private:
  using Range = WorkloadOptions::Range;

  explicit MultiTurnWorkload(const WorkloadOptions& options) : options_(options), random_(options.seed) {
    ASHLAR_CHECK(options.system_prompts > 0, "there must be a system prompt");
    for (std::uint32_t k = 0; k < options.system_prompts; ++k) {
      system_texts_.push_back(text(draw(options.system_tokens)));
      zipf_total_ += kZipfScale / (k + 1);
    }
  }

  std::uint32_t draw(const Range& range) { return random_.between(range.least, range.most); }
  std::vector<std::uint32_t> text(std::size_t tokens) {
    std::vector<std::uint32_t> drawn(tokens);
    for (std::uint32_t& token : drawn) token = static_cast<std::uint32_t>(random_.below(100'000));
    return drawn;
  }
  const std::vector<std::uint32_t>& draw_system_text() {
    std::uint64_t at = random_.below(zipf_total_);
    std::uint32_t k = 0;
    while (at >= kZipfScale / (k + 1)) at -= kZipfScale / ++k;
    return system_texts_[k];
  }

  tokens::TokenSequence empty_sequence() const {
    return tokens::TokenSequence::create(options_.block_size).value();
  }
  void say(tokens::TokenSequence& sequence, std::span<const std::uint32_t> words) {
    (void)sequence.extend(words).value();
  }

  // A question that has just been said, and its answer.
  void ask(Conversation& conversation, std::uint64_t begin_ms) {
    const auto prompt_blocks = static_cast<std::uint32_t>(conversation.sequence.blocks().size());
    const std::uint32_t answer = draw(options_.answer_tokens);
    say(conversation.sequence, text(answer));
    requests_.push_back({begin_ms, begin_ms + std::uint64_t{answer} * options_.answer_ms_per_token,
                         static_cast<std::uint32_t>(conversations_.size()), prompt_blocks,
                         static_cast<std::uint32_t>(conversation.sequence.blocks().size())});
  }
  void add_conversation() {
    const std::vector<std::uint32_t>& system = draw_system_text();
    Conversation conversation{empty_sequence(),
                              static_cast<std::uint32_t>(system.size() / options_.block_size)};
    say(conversation.sequence, system);
    std::uint64_t now = random_.below(options_.span_ms);
    for (std::uint32_t turn = draw(options_.turns); turn > 0; --turn) {
      say(conversation.sequence, text(draw(options_.question_tokens)));
      ask(conversation, now);
      const bool away = random_.chance(options_.long_pause);
      now = requests_.back().end_ms + draw(away ? options_.long_pause_ms : options_.think_ms);
    }
    conversations_.push_back(std::move(conversation));
  }
  void add_document() {
    Conversation document{empty_sequence(), 0};
    say(document.sequence, text(draw(options_.document_tokens)));
    ask(document, random_.below(options_.span_ms));
    conversations_.push_back(std::move(document));
  }

  static constexpr std::uint64_t kZipfScale = 1'000'000;

  WorkloadOptions options_;
  Random random_;
  std::vector<std::vector<std::uint32_t>> system_texts_;
  std::uint64_t zipf_total_ = 0;
  std::vector<Conversation> conversations_;
  std::vector<Request> requests_;
};

}  // namespace ashlar::examples
