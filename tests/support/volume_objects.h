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

// As ==, which compares byte by byte: of large objects a matter of seconds under a sanitizer.
inline bool same_bytes(const Bytes& one, const Bytes& other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

// Objects to write, with all they refer to. Bytes are given in three parts, one of them empty.
class Writes {
 public:
  void add(std::string key, Bytes bytes) {
    const std::size_t size = bytes.size();
    add(std::move(key), std::move(bytes), {size / 3, 0, size - size / 3});
  }
  // In parts of these sizes, which are those of all bytes.
  void add(std::string key, Bytes bytes, const std::vector<std::size_t>& sizes) {
    items_.push_back(
        std::make_unique<Item>(Item{.key = std::move(key), .bytes = std::move(bytes), .parts = {}}));
    Item& item = *items_.back();
    std::span<const std::byte> left(item.bytes);
    for (const std::size_t size : sizes) {
      item.parts.push_back(left.first(size));
      left = left.subspan(size);
    }
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
    std::vector<std::span<const std::byte>> parts;
  };
  std::vector<std::unique_ptr<Item>> items_;
  std::vector<ObjectWrite> objects_;
};

// Places to read to: in three parts, one of them empty, with bytes before, between and behind them that
// nobody may touch.
class Reads {
 public:
  void add(std::string key, std::size_t size) { add(std::move(key), {size / 3, 0, size - size / 3}); }
  // In parts of these sizes.
  void add(std::string key, const std::vector<std::size_t>& sizes) {
    std::size_t sum = kGuard;
    for (const std::size_t size : sizes) sum += size + kGuard;
    items_.push_back(
        std::make_unique<Item>(Item{.key = std::move(key), .memory = Bytes(sum, kUntouched), .parts = {}}));
    Item& item = *items_.back();
    std::size_t at = kGuard;
    for (const std::size_t size : sizes) {
      item.parts.push_back(std::span(item.memory).subspan(at, size));
      at += size + kGuard;
    }
    objects_.push_back({.key = item.key, .parts = item.parts});
  }
  std::span<const ObjectRead> objects() const { return objects_; }
  // Of all parts.
  Bytes bytes(std::size_t i) const {
    Bytes all;
    for (const std::span<std::byte>& part : items_[i]->parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }
  bool is_guard_untouched(std::size_t i) const {
    const Item& item = *items_[i];
    std::size_t at = 0;
    const auto untouched = [&] {
      const std::span guard = std::span(item.memory).subspan(at, kGuard);
      at += kGuard;
      return std::ranges::all_of(guard, [](std::byte byte) { return byte == kUntouched; });
    };
    for (const std::span<std::byte>& part : item.parts) {
      if (!untouched()) return false;
      at += part.size();
    }
    return untouched();
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kUntouched{0xa5};
  struct Item {
    std::string key;
    Bytes memory;
    std::vector<std::span<std::byte>> parts;
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

// After a server died in the middle: every object has its bytes, or is unavailable; nothing was written
// beyond its place. Returns how many have their bytes.
inline std::size_t count_whole_or_unavailable(const Reads& reads, const Writes& writes,
                                              const std::vector<Result<void>>& results) {
  std::size_t good = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i]) {
      EXPECT_TRUE(same_bytes(reads.bytes(i), writes.bytes(i))) << i;
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
