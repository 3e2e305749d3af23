// AnyIndex: an index chosen at run time. IndexOf<T> puts any Indexer behind it; make_index.h makes one by
// name.
//
// The interface is that of Indexer as virtual functions, plus settle() for structures that apply what they
// accept later (ThreadPoolIndexer). AnyIndex is an Indexer itself, so that code written against the concept
// takes either.
//
// Thread safety: that of the structure inside.
// Complexity:    one virtual call on top of the structure's.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ashlar/index/indexer.h"

namespace ashlar::index {

class AnyIndex : public IndexSink {
 public:
  // What is inside, for people: "flash", "radix_tree in 4 lanes".
  virtual std::string_view name() const noexcept = 0;

  virtual void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                            const FindOptions& options = {}) const = 0;
  virtual void dump(IndexSink& sink) const = 0;
  virtual IndexSizes sizes() const = 0;
  virtual IndexCounters counters() const = 0;
  // Returns when everything accepted before the call is applied, and so seen by find_matches().
  virtual void settle() {}
};

// Owns a T. Structures that cannot be moved are made in place.
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

}  // namespace ashlar::index
