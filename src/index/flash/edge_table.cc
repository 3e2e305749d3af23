#include "index/flash/edge_table.h"

#include <algorithm>
#include <new>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::index::detail {

template <class T>
T* EdgeTable::create() {
  T* const object = new T;
  bytes_ += sizeof(T);
  object->birth = domain_.birth(sizeof(T));
  return object;
}

template <class T>
void EdgeTable::destroy(T* object) noexcept {
  bytes_ -= sizeof(T);
  delete object;
}

template <class T>
void EdgeTable::retire(T* object) {
  domain_.retire(
      object, sizeof(T), object->birth,
      [](void* memory, void* table) { static_cast<EdgeTable*>(table)->destroy(static_cast<T*>(memory)); },
      this);
}

EdgeTable::~EdgeTable() {
  unlink_all();
  while (old_ != nullptr) {
    for (const std::atomic<Segment*>& held : old_->segments) {
      Segment* const segment = held.load(std::memory_order_relaxed);
      if (segment == nullptr) continue;
      for (const Bucket& bucket : segment->buckets)
        for (Bucket* more = bucket.more.load(std::memory_order_relaxed); more != nullptr;) {
          Bucket* const next = more->more.load(std::memory_order_relaxed);
          destroy(static_cast<Overflow*>(more));
          more = next;
        }
      destroy(segment);
    }
    destroy(std::exchange(old_, old_->next));
  }
  free_spares();
}

void EdgeTable::add_spares(std::size_t wanted) {
  for (; spare_count_ < wanted; ++spare_count_) {
    auto* const spare = create<Overflow>();
    spare->more.store(spares_, std::memory_order_relaxed);
    spares_ = spare;
  }
}

void EdgeTable::free_spares() noexcept {
  for (; spare_count_ != 0; --spare_count_)
    destroy(std::exchange(spares_, static_cast<Overflow*>(spares_->more.load(std::memory_order_relaxed))));
  prepared_ = 0;
}

EdgeTable::Bucket* EdgeTable::bucket_at(std::uint32_t b) const noexcept {
  // acquire: pairs with the releases in add_bucket(); redundant, as the number of buckets already orders
  // them.
  Group* const group = groups_[b / (kBuckets * kSegments)].load(std::memory_order_acquire);
  if (group == nullptr) return nullptr;
  Segment* const segment = group->segments[b / kBuckets % kSegments].load(std::memory_order_acquire);
  return segment == nullptr ? nullptr : &segment->buckets[b % kBuckets];
}

EdgeTable::Found EdgeTable::find(std::uint32_t parent, std::uint64_t local,
                                 const EraDomain::Guard& guard) const noexcept {
  const std::uint64_t hash = hash_of(parent, local);
  for (;;) {
    // acquire: pairs with publish(); the entries covered by the number are visible.
    const std::uint64_t state = state_.load(std::memory_order_acquire);
    if (buckets_in(state) == 0) return {};
    const std::uint32_t b = bucket_of(hash, buckets_in(state));
    const Group* const group = groups_[b / (kBuckets * kSegments)].load(std::memory_order_acquire);
    if (!guard.still()) return {nullptr, true};
    const Segment* segment = nullptr;
    if (group != nullptr) segment = group->segments[b / kBuckets % kSegments].load(std::memory_order_acquire);
    if (!guard.still()) return {nullptr, true};
    const Bucket* bucket = segment == nullptr ? nullptr : &segment->buckets[b % kBuckets];
    while (bucket != nullptr) {
      for (const std::atomic<std::uint64_t>& atom : bucket->cells) {
        // acquire: pairs with the release in put() and replace() (the node is complete) and in clear_cell()
        // (the later number is seen below).
        const std::uint64_t cell = atom.load(std::memory_order_acquire);
        // In this order: which cells are free is no pattern that a processor could predict.
        if (cell >> 48 != hash >> 48 || cell == 0) continue;
        Node* const node = node_of(cell);
        // Most likely a match: prefetch its lines while the first one is compared.
        for (std::size_t line = 0; line < 18; ++line)
          __builtin_prefetch(reinterpret_cast<const char*>(node) + 64 * line);
        if (!guard.still()) return {nullptr, true};
        if (node->hashes()[0] == local && node->parent == parent) return {node, false};
      }
      bucket = bucket->more.load(std::memory_order_acquire);
      if (bucket != nullptr && !guard.still()) return {nullptr, true};
    }
    if (state_.load(std::memory_order_acquire) == state) return {};
  }
}

Node* EdgeTable::find(std::uint32_t parent, std::uint64_t local) const noexcept {
  const std::uint32_t buckets = buckets_in(state_.load(std::memory_order_relaxed));
  if (buckets == 0) return nullptr;
  const std::uint64_t hash = hash_of(parent, local);
  for (Bucket* bucket = bucket_at(bucket_of(hash, buckets)); bucket != nullptr;
       bucket = bucket->more.load(std::memory_order_relaxed))
    for (const std::atomic<std::uint64_t>& atom : bucket->cells) {
      const std::uint64_t cell = atom.load(std::memory_order_relaxed);
      if (cell >> 48 != hash >> 48 || cell == 0) continue;
      Node* const node = node_of(cell);
      if (node->hashes()[0] == local && node->parent == parent) return node;
    }
  return nullptr;
}

std::size_t EdgeTable::longest_search() const noexcept {
  std::size_t longest = 0;
  const std::uint32_t buckets = buckets_in(state_.load(std::memory_order_relaxed));
  for (std::uint32_t b = 0; b < buckets; ++b) {
    std::size_t chain = 0;
    for (const Bucket* bucket = bucket_at(b); bucket != nullptr;
         bucket = bucket->more.load(std::memory_order_relaxed))
      ++chain;
    longest = std::max(longest, chain);
  }
  return longest;
}

void EdgeTable::publish(std::uint32_t buckets) noexcept {
  // relaxed: only the writer stores. release: pairs with the acquires in find().
  const std::uint64_t version = (state_.load(std::memory_order_relaxed) >> 32) + 1;
  state_.store(version << 32 | buckets, std::memory_order_release);
}

// Requires: a spare overflow bucket.
void EdgeTable::put(Bucket* bucket, std::uint64_t cell) noexcept {
  for (;; bucket = bucket->more.load(std::memory_order_relaxed)) {
    for (std::atomic<std::uint64_t>& atom : bucket->cells)
      if (atom.load(std::memory_order_relaxed) == 0) {
        // release: pairs with the acquire in find().
        atom.store(cell, std::memory_order_release);
        return;
      }
    if (bucket->more.load(std::memory_order_relaxed) == nullptr) {
      Overflow* const spare = spares_;
      spares_ = static_cast<Overflow*>(spare->more.load(std::memory_order_relaxed));
      --spare_count_;
      spare->more.store(nullptr, std::memory_order_relaxed);
      bucket->more.store(spare, std::memory_order_release);
    }
  }
}

std::atomic<std::uint64_t>* EdgeTable::cell_for(const Node* node, Bucket** first,
                                                Bucket** bucket) const noexcept {
  const std::uint64_t hash = hash_of(node);
  const std::uint64_t wanted = cell_of(node, hash);
  *first = bucket_at(bucket_of(hash, buckets_in(state_.load(std::memory_order_relaxed))));
  for (*bucket = *first; *bucket != nullptr; *bucket = (*bucket)->more.load(std::memory_order_relaxed))
    for (std::atomic<std::uint64_t>& atom : (*bucket)->cells)
      if (atom.load(std::memory_order_relaxed) == wanted) return &atom;
  ASHLAR_CHECK(false, "node %u is not in the edge table", node->id);
  return nullptr;
}

// Clears a cell. True when the overflow bucket became empty and left its chain: it may be freed by now.
bool EdgeTable::clear_cell(Bucket* first, Bucket* bucket, std::size_t i) {
  // release: pairs with the acquire in find(): a reader that sees the cell cleared sees the number published
  // before.
  bucket->cells[i].store(0, std::memory_order_release);
  if (bucket == first) return false;
  for (const std::atomic<std::uint64_t>& atom : bucket->cells)
    if (atom.load(std::memory_order_relaxed) != 0) return false;
  Bucket* before = first;
  while (before->more.load(std::memory_order_relaxed) != bucket)
    before = before->more.load(std::memory_order_relaxed);
  before->more.store(bucket->more.load(std::memory_order_relaxed), std::memory_order_release);
  retire(static_cast<Overflow*>(bucket));
  return true;
}

void EdgeTable::prepare(std::uint32_t inserts) {
  prepared_ = 0;
  if (buckets() == 0) {
    make_bucket();
    publish(1);
  }
  for (std::uint32_t i = 0; i < inserts; ++i)
    if (size_ + i >= kMeanFill * buckets() && buckets() < kMaxBuckets && !add_bucket()) break;
  add_spares(inserts);
  prepared_ = inserts;
}

void EdgeTable::insert(Node* node) {
  if (prepared_ == 0) prepare(1);
  --prepared_;
  const std::uint64_t hash = hash_of(node);
  if (node->parent == kRootId) roots_.add(hash);
  put(bucket_at(bucket_of(hash, buckets())), cell_of(node, hash));
  ++size_;
}

void EdgeTable::erase(Node* node) {
  Bucket* first = nullptr;
  Bucket* bucket = nullptr;
  std::atomic<std::uint64_t>* const cell = cell_for(node, &first, &bucket);
  clear_cell(first, bucket, static_cast<std::size_t>(cell - bucket->cells.data()));
  if (node->parent == kRootId) roots_.remove(hash_of(node));
  if (--size_ == 0) unlink_all();
}

void EdgeTable::replace(Node* old, Node* fresh) noexcept {
  Bucket* first = nullptr;
  Bucket* bucket = nullptr;
  // release: pairs with the acquire in find().
  cell_for(old, &first, &bucket)->store(cell_of(fresh, hash_of(fresh)), std::memory_order_release);
}

void EdgeTable::make_bucket() {
  const std::uint32_t next = buckets();
  std::atomic<Group*>& group = groups_[next / (kBuckets * kSegments)];
  if (group.load(std::memory_order_relaxed) == nullptr)
    group.store(create<Group>(), std::memory_order_release);
  std::atomic<Segment*>& segment =
      group.load(std::memory_order_relaxed)->segments[next / kBuckets % kSegments];
  if (segment.load(std::memory_order_relaxed) == nullptr)
    segment.store(create<Segment>(), std::memory_order_release);
}

// False without memory for it: the existing buckets then take more entries.
bool EdgeTable::add_bucket() noexcept {
  const std::uint32_t buckets = this->buckets();
  Bucket* const from = bucket_at(buckets - std::bit_floor(buckets));
  const auto moves = [&](std::uint64_t cell) {
    return cell != 0 && bucket_of(hash_of(node_of(cell)), buckets + 1) == buckets;
  };
  // Allocate everything first: overflow buckets of the new bucket, and room to retire those of the old one.
  try {
    std::size_t moving = 0;
    std::size_t chain = 0;
    for (Bucket* bucket = from; bucket != nullptr; bucket = bucket->more.load(std::memory_order_relaxed)) {
      for (const std::atomic<std::uint64_t>& atom : bucket->cells)
        moving += moves(atom.load(std::memory_order_relaxed)) ? 1 : 0;
      ++chain;
    }
    make_bucket();
    add_spares(moving <= kCells ? 0 : (moving - 1) / kCells);
    domain_.reserve(chain);
  } catch (const std::bad_alloc&) {
    return false;
  }
  Bucket* const to = bucket_at(buckets);
  for (Bucket* bucket = from; bucket != nullptr; bucket = bucket->more.load(std::memory_order_relaxed))
    for (const std::atomic<std::uint64_t>& atom : bucket->cells)
      if (const std::uint64_t cell = atom.load(std::memory_order_relaxed); moves(cell)) put(to, cell);
  publish(buckets + 1);
  for (Bucket* bucket = from; bucket != nullptr;) {
    Bucket* const more = bucket->more.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < kCells; ++i)
      if (moves(bucket->cells[i].load(std::memory_order_relaxed)) && clear_cell(from, bucket, i)) break;
    bucket = more;
  }
  return true;
}

// Takes the groups out of use: a reader inside one finds that the number of buckets has changed.
void EdgeTable::unlink_all() noexcept {
  publish(0);
  prepared_ = 0;
  for (std::atomic<Group*>& entry : groups_) {
    // relaxed: only the writer stores. release: pairs with the acquires in find().
    Group* const group = entry.load(std::memory_order_relaxed);
    if (group == nullptr) break;
    entry.store(nullptr, std::memory_order_release);
    // The first group is being freed; the others queue behind it.
    if (old_ == nullptr) {
      old_ = group;
      old_kept_ = kSegments;
      continue;
    }
    group->next = old_->next;
    old_->next = group;
  }
}

bool EdgeTable::free_some(std::size_t most) noexcept {
  if (size_ == 0) {
    // Prepared but unused buckets.
    free_spares();
    if (groups_[0].load(std::memory_order_relaxed) != nullptr) unlink_all();
  }
  while (old_ != nullptr) {
    // Segments fill a group from its front, and an empty table has no overflow buckets.
    while (old_kept_ != 0) {
      std::atomic<Segment*>& last = old_->segments[--old_kept_];
      Segment* const segment = last.load(std::memory_order_relaxed);
      if (segment == nullptr) continue;
      if (most-- == 0 || !domain_.try_reserve(1)) {
        ++old_kept_;
        return false;
      }
      last.store(nullptr, std::memory_order_release);
      retire(segment);
    }
    if (!domain_.try_reserve(1)) return false;
    retire(std::exchange(old_, old_->next));
    old_kept_ = kSegments;
  }
  return true;
}

}  // namespace ashlar::index::detail
