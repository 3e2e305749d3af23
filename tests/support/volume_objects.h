// Objects for tests of volumes: bytes to write, places to read to, one object at a time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/tiers/volume.h"

namespace ashlar::tiers {

using Bytes = std::vector<std::byte>;

inline Bytes make_bytes(std::size_t size, std::uint64_t seed) {
  Bytes bytes(size);
  Random random(seed + 1);
  for (std::size_t i = 0; i < size; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + i, &word, std::min(size - i, sizeof word));
  }
  return bytes;
}

// Objects to write, with all they refer to. Bytes are given in three parts, one of them empty.
class Writes {
 public:
  void add(std::string key, Bytes bytes) {
    items_.push_back(std::make_unique<Item>(Item{.key = std::move(key), .bytes = std::move(bytes)}));
    Item& item = *items_.back();
    const std::span<const std::byte> all(item.bytes);
    item.parts = {all.first(all.size() / 3), {}, all.subspan(all.size() / 3)};
    objects_.push_back({.key = item.key, .parts = item.parts});
  }
  std::span<const ObjectWrite> objects() const { return objects_; }
  const Bytes& bytes(std::size_t i) const { return items_[i]->bytes; }
  std::string_view key(std::size_t i) const { return items_[i]->key; }
  std::size_t size() const { return items_.size(); }

 private:
  struct Item {
    std::string key;
    Bytes bytes;
    std::vector<std::span<const std::byte>> parts = {};
  };
  std::vector<std::unique_ptr<Item>> items_;
  std::vector<ObjectWrite> objects_;
};

// Places to read to, each with bytes behind it that nobody may touch.
class Reads {
 public:
  void add(std::string key, std::size_t size) {
    items_.push_back(std::make_unique<Item>(
        Item{.key = std::move(key), .bytes = Bytes(size + kGuard, kUntouched), .size = size}));
    Item& item = *items_.back();
    objects_.push_back({.key = item.key, .into = std::span(item.bytes).first(size)});
  }
  std::span<const ObjectRead> objects() const { return objects_; }
  Bytes bytes(std::size_t i) const {
    return {items_[i]->bytes.begin(),
            items_[i]->bytes.begin() + static_cast<std::ptrdiff_t>(items_[i]->size)};
  }
  bool is_guard_untouched(std::size_t i) const {
    return std::all_of(items_[i]->bytes.begin() + static_cast<std::ptrdiff_t>(items_[i]->size),
                       items_[i]->bytes.end(), [](std::byte byte) { return byte == kUntouched; });
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kUntouched{0xa5};
  struct Item {
    std::string key;
    Bytes bytes;
    std::size_t size = 0;
  };
  std::vector<std::unique_ptr<Item>> items_;
  std::vector<ObjectRead> objects_;
};

template <class R>
std::optional<ErrorCode> code_of(const R& result) {
  return result ? std::nullopt : std::optional(result.error().code());
}

inline Result<void> put_one(Volume& volume, std::string key, Bytes bytes) {
  Writes writes;
  writes.add(std::move(key), std::move(bytes));
  return volume.put(writes.objects()).at(0);
}

inline Result<Bytes> get_one(Volume& volume, std::string key, std::size_t size) {
  Reads reads;
  reads.add(std::move(key), size);
  const Result<void> result = volume.get(reads.objects()).at(0);
  EXPECT_TRUE(reads.is_guard_untouched(0));
  if (!result) return result.error();
  return reads.bytes(0);
}

// After a server died in the middle: every object has its bytes, or is unavailable; nothing was written beyond its place.
// Returns how many have their bytes.
inline std::size_t count_whole_or_unavailable(const Reads& reads, const Writes& writes,
                                              const std::vector<Result<void>>& results) {
  std::size_t good = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i]) {
      EXPECT_TRUE(reads.bytes(i) == writes.bytes(i)) << i;
      ++good;
    } else {
      EXPECT_EQ(code_of(results[i]), ErrorCode::kUnavailable) << results[i].error();
    }
    EXPECT_TRUE(reads.is_guard_untouched(i));
  }
  return good;
}

inline Result<bool> contains_one(Volume& volume, std::string_view key) {
  return volume.contains(std::span(&key, 1)).at(0);
}

}  // namespace ashlar::tiers
