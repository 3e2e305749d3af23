// NaiveBlockManager: the block manager one writes first. The rival in block_bench.
//
// A reserved std::unordered_map from hash to block, a std::list in LRU order for the inactive blocks,
// shared_ptr for the references, and one mutex: taken once per match call, once per registered batch and once
// per last drop.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::bench {

class NaiveBlockManager {
 public:
  struct Block {
    std::uint32_t id;
    tokens::SequenceHash hash;
  };
  using Ref = std::shared_ptr<Block>;

  explicit NaiveBlockManager(std::uint32_t blocks) {
    known_.reserve(blocks);
    for (std::uint32_t id = 0; id < blocks; ++id) free_.push_back(id);
  }

  // Evicts as needed, registers the hashes, and returns the references.
  std::vector<Ref> allocate_and_register(std::span<const tokens::SequenceHash> hashes) {
    std::vector<Ref> refs;
    refs.reserve(hashes.size());
    const std::lock_guard<std::mutex> lock(mu_);
    for (const auto& hash : hashes) {
      std::uint32_t id = 0;
      if (!free_.empty()) {
        id = free_.front();
        free_.pop_front();
      } else {
        id = idle_.front().id;
        known_.erase(idle_.front().hash);
        idle_.pop_front();
      }
      refs.push_back(make_ref({id, hash}));
      known_[hash] = {refs.back(), idle_.end()};
    }
    return refs;
  }

  std::vector<Ref> match(std::span<const tokens::SequenceHash> hashes) {
    std::vector<Ref> refs;
    refs.reserve(hashes.size());
    const std::lock_guard<std::mutex> lock(mu_);
    for (const auto& hash : hashes) {
      const auto found = known_.find(hash);
      if (found == known_.end()) break;
      Ref ref = found->second.active.lock();
      if (!ref) {
        if (found->second.idle == idle_.end()) break;
        ref = make_ref(*found->second.idle);
        idle_.erase(found->second.idle);
        found->second = {ref, idle_.end()};
      }
      refs.push_back(std::move(ref));
    }
    return refs;
  }

 private:
  struct Known {
    std::weak_ptr<Block> active;
    std::list<Block>::iterator idle;
  };

  Ref make_ref(const Block& block) {
    return Ref(new Block(block), [this](Block* dropped) {
      const std::lock_guard<std::mutex> lock(mu_);
      const auto found = known_.find(dropped->hash);
      if (found != known_.end()) {
        idle_.push_back(*dropped);
        found->second.idle = std::prev(idle_.end());
      }
      delete dropped;
    });
  }

  std::mutex mu_;
  std::unordered_map<tokens::SequenceHash, Known> known_;
  std::list<Block> idle_;
  std::list<std::uint32_t> free_;
};

}  // namespace ashlar::bench
