// SlabPool and Shelf: memory in slabs of 64 KiB, and objects of one size in slabs.
//
// Randomly accessed tables cost an address translation per access unless they lie in huge pages. So slabs are
// cut from 2 MiB regions that request huge pages, once there is enough for a first region; before that, or
// without memory for a region, they are allocated one by one. Free regions and slabs are returned at once.
//
// A shelf hands out objects of one size, in address order where possible: objects made together are adjacent.
//
// Thread safety: thread-compatible.
// Complexity:    O(1), except for a bitmap of at most 8 words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ashlar {

inline constexpr std::size_t kSlabBytes = std::size_t{64} << 10;
inline constexpr std::size_t kSlabHeader = 128;

class SlabPool {
 public:
  SlabPool() = default;
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;
  ~SlabPool();

  // Returns kSlabBytes, aligned to their size, not zeroed. Throws std::bad_alloc with nothing changed.
  void* allocate();
  void free(void* slab) noexcept;
  // Allocates and touches regions for that many bytes, but for what fills less than half of one, and keeps as
  // many from now on. Throws std::bad_alloc with some of them kept.
  void keep(std::size_t bytes);
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr std::size_t kRegionBytes = std::size_t{2} << 20;
  static constexpr std::size_t kSlabsPerRegion = kRegionBytes / kSlabBytes;

  struct Region {
    std::uintptr_t base = 0;
    std::uint32_t free = ~0u;  // bit per slab
    Region* next = nullptr;
    Region* previous = nullptr;
  };
  static_assert(kSlabsPerRegion == 32);
  Region* region_of(std::uintptr_t address) const noexcept;
  void unlink(Region* region) noexcept;

  Region* with_room_ = nullptr;
  // Regions by address, for free(): open addressing, a power of two.
  Region** table_ = nullptr;
  std::size_t table_size_ = 0;
  std::size_t regions_ = 0;
  std::size_t kept_ = 0;     // regions that stay when they are free
  std::size_t singles_ = 0;  // slabs outside regions
  std::size_t bytes_ = 0;

  // Adds a region; false without memory for one.
  bool add_region() noexcept;
  void insert(Region* region) noexcept;
  void grow_table();
  void free_table() noexcept;
  void erase(Region* region) noexcept;
  void release(Region* region) noexcept;
};

class Shelf {
 public:
  // `count` objects of `bytes` bytes, a multiple of 64, lie behind the header of each slab.
  Shelf(SlabPool& pool, std::uint32_t bytes, std::uint32_t count) noexcept
      : pool_(pool), bytes_(bytes), count_(count) {}
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;
  ~Shelf();

  void* allocate();
  void free(void* object) noexcept;
  static constexpr std::uint32_t fit(std::uint32_t bytes) noexcept {
    return static_cast<std::uint32_t>((kSlabBytes - kSlabHeader) / bytes);
  }

 private:
  struct Slab;
  void unlink(Slab* slab) noexcept;
  void push(Slab* slab) noexcept;

  SlabPool& pool_;
  const std::uint32_t bytes_;
  const std::uint32_t count_;
  Slab* first_ = nullptr;  // slabs with room, the current one first
};

}  // namespace ashlar
