// make_index(): an index by the name of its structure, for programs that choose at run time (docs/index.md
// says which to choose); AnyIndex, the type it returns; and IndexOf<T>, which puts a user's own index behind
// AnyIndex.
//
// Thread safety: make_index() is thread-safe. The index has the thread safety of its structure; in a thread
//                pool every structure is thread-safe.
// Complexity:    one virtual call more than the structure itself.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ashlar/base/result.h"
#include "ashlar/index/indexer.h"

namespace ashlar::index {

// The calls of Indexer as virtual functions, and settle() for structures that apply later what they accept
// (ThreadPoolIndexer). AnyIndex is an Indexer itself: code written against the concept takes either.
//
// Thread safety: that of the structure inside.
class AnyIndex : public IndexSink {
 public:
  // The structure inside, for logs: "flash", "radix_tree on 4 threads".
  virtual std::string_view name() const noexcept = 0;

  virtual void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                            const FindOptions& options = {}) const = 0;
  virtual void dump(IndexSink& sink) const = 0;
  virtual IndexSizes sizes() const = 0;
  virtual IndexCounters counters() const = 0;
  // Returns when everything accepted before the call is applied, and so seen by find_matches().
  virtual void settle() {}
};

// Puts any Indexer behind AnyIndex and owns it. Structures that cannot be moved are made in place.
template <Indexer T>
class IndexOf final : public AnyIndex {
 public:
  template <class... Args>
    requires std::constructible_from<T, Args...>
  explicit IndexOf(std::string name, Args&&... args)
      : name_(std::move(name)), index_(std::forward<Args>(args)...) {}
  IndexOf(const IndexOf&) = delete;
  IndexOf& operator=(const IndexOf&) = delete;

  T& get() noexcept { return index_; }
  const T& get() const noexcept { return index_; }

  std::string_view name() const noexcept override { return name_; }

  StoreVerdict store(const BlocksStored& event) override { return index_.store(event); }
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) override {
    return index_.remove(worker, tier, names);
  }
  void clear(const Worker& worker) override { index_.clear(worker); }
  void remove_worker(WorkerId worker) override { index_.remove_worker(worker); }
  bool presence(const Worker& worker, std::span<const BlockName> names,
                std::span<BlockPresence> out) const override {
    return presence_in(index_, worker, names, out);
  }
  bool list(const Worker& worker, std::vector<BlockPresence>& out) const override {
    return list_of(index_, worker, out);
  }
  bool holds_nothing(const Worker& worker) const override { return holds_nothing_in(index_, worker); }

  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options = {}) const override {
    index_.find_matches(locals, scores, options);
  }
  void dump(IndexSink& sink) const override { index_.dump(sink); }
  IndexSizes sizes() const override { return index_.sizes(); }
  IndexCounters counters() const override { return index_.counters(); }
  void settle() override {
    if constexpr (requires { index_.settle(); }) index_.settle();
  }

 private:
  std::string name_;
  T index_;
};

static_assert(Indexer<AnyIndex>);

inline constexpr std::array<std::string_view, 4> kIndexKinds = {"flash", "positional",
                                                                "concurrent_radix_tree", "radix_tree"};

struct IndexOptions {
  std::string kind = "flash";  // one of kIndexKinds
  // Of a positional index: positions between look-ups of a query. Other structures ignore it.
  std::uint32_t jump_size = 32;
  // Above 0: the index is wrapped in a ThreadPoolIndexer with that many threads, and stores return before
  // they are applied.
  std::size_t threads = 0;
  // Of the pool: blocks and names that may wait for one thread.
  std::size_t queue_capacity = std::size_t{1} << 16;
  // Of flash: blocks whose memory is there from the start (FlashOptions). Other structures ignore it.
  std::size_t expected_blocks = 0;
  // kOrphan is supported by flash only.
  MidChainRemoval mid_chain = MidChainRemoval::kRetain;

  // Errors: kInvalidArgument, with the value and what is allowed.
  Result<void> validate() const;
};

// Errors: those of validate(); kCapacity when the system gives no thread or no memory.
Result<std::unique_ptr<AnyIndex>> make_index(const IndexOptions& options);

}  // namespace ashlar::index
