// EdgeTable: maps (parent node, first local hash) to the child node, for nodes with several children. Readers
// need no lock while one writer changes it.
//
// Linear hashing: each growth step splits one bucket in two. The writer copies the moving entries, publishes
// the new number of buckets, then clears the old cells. A reader that finds nothing reloads the number: if it
// saw a cleared cell it sees the new number and searches again. The number carries a version, so it never
// repeats. Entries do not move otherwise. A cell holds the child's address and 16 hash bits; parent and hash
// are compared in the child itself.
//
// Thread safety: find() from readers inside the domain; everything else is the writer's.
// Complexity:    one bucket of 7 cells, seldom two, for any keys: they are hashed with a secret
//                (table_seed.h). No step moves more than the entries of one bucket.
// Invariant:     an empty table owns no memory after free_some() (the directory is part of the object).
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/table_seed.h"
#include "index/flash/era_domain.h"
#include "index/flash/flash_node.h"
#include "index/flash/root_filter.h"

namespace ashlar::index::detail {

class EdgeTable {
 public:
  EdgeTable(EraDomain& domain, const TableSeed& seed) noexcept : seed_(seed), domain_(domain) {}
  EdgeTable(const EdgeTable&) = delete;
  EdgeTable& operator=(const EdgeTable&) = delete;
  // Requires: no readers.
  ~EdgeTable();

  struct Found {
    Node* node = nullptr;
    bool era_over = false;  // the reader must start again
  };
  Found find(std::uint32_t parent, std::uint64_t local, const EraDomain::Guard& guard) const noexcept;
  // False: the root has no child that begins with this hash. For readers, inside the domain or not.
  bool may_have_root(std::uint64_t local) const noexcept { return roots_.may_have(hash_of(kRootId, local)); }
  // The same for the writer.
  Node* find(std::uint32_t parent, std::uint64_t local) const noexcept;

  // Allocates memory for the next `inserts` calls of insert(), which then cannot fail, and grows the table if
  // growth is due and memory permits. Throws std::bad_alloc with nothing else changed.
  void prepare(std::uint32_t inserts);
  // Requires: no entry with the node's parent and first hash. Throws std::bad_alloc, with nothing changed,
  // unless prepared.
  void insert(Node* node);
  // Requires: an entry for the node, and room for a retirement. free_some() returns the memory left by the
  // last one.
  void erase(Node* node);
  // `fresh` has the same parent and first hash.
  void replace(Node* old, Node* fresh) noexcept;

  // Retires up to `most` pieces of a table that became empty; true when none is left.
  bool free_some(std::size_t most) noexcept;

  std::size_t size() const noexcept { return size_; }
  // Buckets examined by the longest search: for tests, walks everything.
  std::size_t longest_search() const noexcept;
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::size_t kCells = 7;
  static constexpr std::uint32_t kBuckets = 64;  // per segment
  static constexpr std::uint32_t kSegments = 1024;
  static constexpr std::uint32_t kGroups = 1024;
  static constexpr std::uint32_t kMaxBuckets = kBuckets * kSegments * kGroups;
  static constexpr std::size_t kMeanFill = 5;
  static constexpr std::uint64_t kAddress = (std::uint64_t{1} << 48) - 1;

  struct alignas(64) Bucket {
    std::array<std::atomic<std::uint64_t>, kCells> cells{};
    std::atomic<Bucket*> more{nullptr};
  };
  struct Overflow : Bucket {
    std::uint64_t birth = 0;
  };
  struct Segment {
    std::array<Bucket, kBuckets> buckets;
    std::uint64_t birth = 0;
  };
  struct Group {
    std::array<std::atomic<Segment*>, kSegments> segments{};
    std::uint64_t birth = 0;
    Group* next = nullptr;  // next group out of use
  };

  std::uint64_t hash_of(std::uint32_t parent, std::uint64_t local) const noexcept {
    return seed_.hash(local, parent);
  }
  std::uint64_t hash_of(const Node* node) const noexcept { return hash_of(node->parent, node->hashes()[0]); }
  static std::uint64_t cell_of(const Node* node, std::uint64_t hash) noexcept {
    return reinterpret_cast<std::uintptr_t>(node) | (hash >> 48) << 48;
  }
  static Node* node_of(std::uint64_t cell) noexcept { return reinterpret_cast<Node*>(cell & kAddress); }
  static std::uint32_t bucket_of(std::uint64_t hash, std::uint32_t buckets) noexcept {
    const std::uint32_t level = std::bit_floor(buckets);
    const auto wide = static_cast<std::uint32_t>(hash) & (2 * level - 1);
    // Without a branch, which no processor could predict.
    return wide - (level & (0u - static_cast<std::uint32_t>(wide >= buckets)));
  }
  static std::uint32_t buckets_in(std::uint64_t state) noexcept { return static_cast<std::uint32_t>(state); }

  std::uint32_t buckets() const noexcept { return buckets_in(state_.load(std::memory_order_relaxed)); }
  Bucket* bucket_at(std::uint32_t b) const noexcept;
  // Allocates memory for one more bucket.
  void make_bucket();
  bool add_bucket() noexcept;
  void add_spares(std::size_t wanted);
  void free_spares() noexcept;
  void put(Bucket* bucket, std::uint64_t cell) noexcept;
  bool clear_cell(Bucket* first, Bucket* bucket, std::size_t i);
  std::atomic<std::uint64_t>* cell_for(const Node* node, Bucket** first, Bucket** bucket) const noexcept;
  void publish(std::uint32_t buckets) noexcept;
  void unlink_all() noexcept;
  template <class T>
  T* create();
  template <class T>
  void retire(T* object);
  template <class T>
  void destroy(T* object) noexcept;

  // Fields that readers load are kept apart from fields that every change writes.
  alignas(kApart) std::atomic<std::uint64_t> state_{0};  // version << 32 | buckets
  const TableSeed seed_;
  std::array<std::atomic<Group*>, kGroups> groups_{};
  RootFilter roots_;
  alignas(kApart) EraDomain& domain_;
  std::size_t size_ = 0;
  std::size_t bytes_ = 0;
  Group* old_ = nullptr;        // out of use; unreachable for new readers
  std::uint32_t old_kept_ = 0;  // segments that the first of them may still own
  // Overflow buckets that no reader has seen; a prepared insert may take one.
  Overflow* spares_ = nullptr;
  std::size_t spare_count_ = 0;
  std::uint32_t prepared_ = 0;  // inserts
};

}  // namespace ashlar::index::detail
