// NaiveRequest: what a RequestSequence does, written for obviousness. It knows tokens, numbers and which
// blocks are shared by forks; it does not know ids.
//
// A call has two parts: why_not_…() says why the request would refuse it, and the verb does it.
//
// Thread safety: confined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_error.h"
#include "ashlar/tokens/token.h"

namespace ashlar::block::support {

struct NaiveRequestOptions {
  std::uint32_t block_size = 4;
  std::vector<CacheGroup> groups;
  std::size_t max_tokens = 0;
  bool reuse_last_token = false;
};

class NaiveRequest {
 public:
  using Reason = SequenceError::Reason;
  using Refusal = std::optional<Reason>;
  // Whether the cache has the block of a group.
  using Present = std::function<bool(std::size_t group, std::size_t block)>;

  NaiveRequest(std::vector<tokens::Token> prompt, NaiveRequestOptions options);

  RequestState state() const noexcept { return state_; }
  const std::vector<tokens::Token>& tokens() const noexcept { return tokens_; }
  std::size_t size() const noexcept { return tokens_.size(); }
  std::size_t prompt_size() const noexcept { return prompt_size_; }
  std::size_t computed() const noexcept { return computed_; }
  std::size_t cached() const noexcept { return cached_; }
  std::size_t left_to_compute() const noexcept { return size() - computed_; }
  std::size_t scheduled() const noexcept { return scheduled_; }
  bool at_limit() const noexcept { return options_.max_tokens != 0 && size() == options_.max_tokens; }
  // Whether the entry of a block table has a block.
  std::size_t table_size(std::size_t group) const { return pages_[group].size(); }
  bool has_block(std::size_t group, std::size_t place) const { return pages_[group][place] != nullptr; }
  // Blocks that a scheduled step copies from.
  std::size_t sources() const noexcept { return sources_.size(); }

  Refusal why_not_match() const;
  Refusal why_not_resume() const;
  // Either; returns the tokens found.
  std::size_t begin_with_cache(const Present& present);

  Refusal why_not_prefill(std::size_t tokens) const;
  Refusal why_not_decode() const;
  struct Wanted {
    std::size_t blocks = 0;  // copies included
    std::size_t copies = 0;
  };
  Wanted wanted(std::size_t tokens) const;
  void schedule(RequestState state, std::size_t tokens);

  Refusal why_not_apply_prefill(bool with_token) const;
  Refusal why_not_apply_decode() const;
  Refusal why_not_apply_speculative(std::size_t accepted) const;
  // `computed` of the scheduled tokens have KV now. Returns how many blocks became complete, over all groups.
  std::size_t apply(std::size_t computed, std::span<const tokens::Token> next);

  Refusal why_not_revert() const;
  void revert();
  Refusal why_not_preempt() const;
  void preempt();
  Refusal why_not_fork(bool with_last) const;
  NaiveRequest fork(std::optional<tokens::Token> last) const;
  void release();

 private:
  struct Page {};
  using PagePtr = std::shared_ptr<Page>;

  std::size_t blocks_of(std::size_t tokens) const;
  void let_go_of_everything();
  bool is_idle() const noexcept { return state_ == RequestState::kIdle; }

  NaiveRequestOptions options_;
  RequestState state_ = RequestState::kIdle;
  std::vector<tokens::Token> tokens_;
  std::size_t prompt_size_;
  std::size_t computed_ = 0;
  std::size_t cached_ = 0;
  std::size_t scheduled_ = 0;
  std::vector<std::vector<PagePtr>> pages_;
  struct Source {
    std::size_t group;
    PagePtr page;
  };
  std::vector<Source> sources_;
};

}  // namespace ashlar::block::support
