#include "base/slab_pool.h"

#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <memory>
#include <new>

#include "ashlar/base/check.h"

namespace ashlar {

// --- SlabPool. ---

SlabPool::~SlabPool() {
  while (with_room_ != nullptr && with_room_->free == ~0u) release(with_room_);
  ASHLAR_DCHECK(bytes_ == 0, "%zu bytes of slabs left", bytes_);
}

namespace {

std::size_t slot_of(std::uintptr_t base, std::size_t size) noexcept {
  return static_cast<std::size_t>((base >> 21) * 0x9E3779B97F4A7C15u >> 32) & (size - 1);
}

}  // namespace

void SlabPool::grow_table() {
  const std::size_t size = table_size_ == 0 ? 16 : 2 * table_size_;
  auto** const table = new Region*[size]();
  for (std::size_t i = 0; i < table_size_; ++i)
    if (table_[i] != nullptr) {
      std::size_t slot = slot_of(table_[i]->base, size);
      while (table[slot] != nullptr) slot = (slot + 1) & (size - 1);
      table[slot] = table_[i];
    }
  delete[] table_;
  table_ = table;
  table_size_ = size;
}

// Requires: room in the table.
void SlabPool::insert(Region* region) noexcept {
  std::size_t slot = slot_of(region->base, table_size_);
  while (table_[slot] != nullptr) slot = (slot + 1) & (table_size_ - 1);
  table_[slot] = region;
  ++regions_;
}

void SlabPool::erase(Region* region) noexcept {
  std::size_t hole = slot_of(region->base, table_size_);
  while (table_[hole] != region) hole = (hole + 1) & (table_size_ - 1);
  for (std::size_t i = (hole + 1) & (table_size_ - 1); table_[i] != nullptr;
       i = (i + 1) & (table_size_ - 1)) {
    const std::size_t home = slot_of(table_[i]->base, table_size_);
    if (((i - home) & (table_size_ - 1)) < ((i - hole) & (table_size_ - 1))) continue;
    table_[hole] = table_[i];
    hole = i;
  }
  table_[hole] = nullptr;
  if (--regions_ == 0) free_table();
}

void SlabPool::free_table() noexcept {
  delete[] table_;
  table_ = nullptr;
  table_size_ = 0;
}

SlabPool::Region* SlabPool::region_of(std::uintptr_t address) const noexcept {
  if (table_size_ == 0) return nullptr;
  const std::uintptr_t base = address & ~(kRegionBytes - 1);
  for (std::size_t slot = slot_of(base, table_size_); table_[slot] != nullptr;
       slot = (slot + 1) & (table_size_ - 1))
    if (table_[slot]->base == base) return table_[slot];
  return nullptr;
}

void SlabPool::unlink(Region* region) noexcept {
  if (region->previous != nullptr) region->previous->next = region->next;
  if (region->next != nullptr) region->next->previous = region->previous;
  if (with_room_ == region) with_room_ = region->next;
  region->next = region->previous = nullptr;
}

bool SlabPool::add_region() noexcept {
  try {
    auto region = std::make_unique<Region>();
    if ((regions_ + 1) * 2 > table_size_) grow_table();
    void* const memory = ::operator new(kRegionBytes, std::align_val_t{kRegionBytes});
    // A hint; without huge pages the memory is only slower.
    (void)::madvise(memory, kRegionBytes, MADV_HUGEPAGE);
    region->base = reinterpret_cast<std::uintptr_t>(memory);
    bytes_ += kRegionBytes;
    insert(region.get());
    with_room_ = region.release();
    return true;
  } catch (const std::bad_alloc&) {
    if (regions_ == 0) free_table();
    return false;
  }
}

void* SlabPool::allocate() {
  if (with_room_ == nullptr && (singles_ < kSlabsPerRegion || !add_region())) {
    void* const slab = ::operator new(kSlabBytes, std::align_val_t{kSlabBytes});
    ++singles_;
    bytes_ += kSlabBytes;
    return slab;
  }
  Region* const region = with_room_;
  const auto i = static_cast<unsigned>(std::countr_zero(region->free));
  region->free &= region->free - 1;
  if (region->free == 0) unlink(region);
  return reinterpret_cast<void*>(region->base + i * kSlabBytes);
}

void SlabPool::free(void* slab) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(slab);
  Region* const region = region_of(address);
  if (region == nullptr) {
    ASHLAR_DCHECK(singles_ != 0, "a slab is freed that no region holds, and all single ones are");
    --singles_;
    bytes_ -= kSlabBytes;
    ::operator delete(slab, std::align_val_t{kSlabBytes});
    return;
  }
  if (region->free == 0) {
    region->next = with_room_;
    if (with_room_ != nullptr) with_room_->previous = region;
    with_room_ = region;
  }
  ASHLAR_DCHECK((region->free >> ((address - region->base) / kSlabBytes) & 1) == 0, "a slab is freed twice");
  region->free |= 1u << ((address - region->base) / kSlabBytes);
  if (region->free == ~0u && regions_ > kept_) release(region);
}

void SlabPool::keep(std::size_t bytes) {
  const std::size_t wanted = (bytes + kRegionBytes / 2) / kRegionBytes;
  for (; kept_ < wanted; ++kept_) {
    if (regions_ > kept_) continue;
    Region* const others = with_room_;
    if (!add_region()) throw std::bad_alloc();
    std::memset(reinterpret_cast<void*>(with_room_->base), 0, kRegionBytes);
    with_room_->next = others;
    if (others != nullptr) others->previous = with_room_;
  }
}

// Requires: the region is free.
void SlabPool::release(Region* region) noexcept {
  unlink(region);
  erase(region);
  bytes_ -= kRegionBytes;
  ::operator delete(reinterpret_cast<void*>(region->base), std::align_val_t{kRegionBytes});
  delete region;
}

// --- Shelf. ---

// Placed at the start of its memory.
struct alignas(64) Shelf::Slab {
  static constexpr std::size_t kWords = 8;

  Slab* next = nullptr;
  Slab* previous = nullptr;
  std::uint32_t used = 0;
  std::uint32_t cursor = 0;  // word of `free` where the search starts
  bool shelved = false;
  std::array<std::uint64_t, kWords> free{};
};

Shelf::~Shelf() {
  ASHLAR_DCHECK(first_ == nullptr, "objects left on a shelf");
}

void Shelf::unlink(Slab* slab) noexcept {
  if (slab->previous != nullptr) slab->previous->next = slab->next;
  if (slab->next != nullptr) slab->next->previous = slab->previous;
  if (first_ == slab) first_ = slab->next;
  slab->next = slab->previous = nullptr;
  slab->shelved = false;
}

void Shelf::push(Slab* slab) noexcept {
  slab->next = first_;
  if (first_ != nullptr) first_->previous = slab;
  first_ = slab;
  slab->shelved = true;
}

void* Shelf::allocate() {
  static_assert(sizeof(Slab) == kSlabHeader);
  if (first_ == nullptr) {
    auto* const slab = new (pool_.allocate()) Slab;
    for (std::uint32_t i = 0; i < count_; ++i) slab->free[i / 64] |= std::uint64_t{1} << (i % 64);
    push(slab);
  }
  Slab* const slab = first_;
  while (slab->free[slab->cursor] == 0) slab->cursor = (slab->cursor + 1) % Slab::kWords;
  std::uint64_t& word = slab->free[slab->cursor];
  const auto i = slab->cursor * 64 + static_cast<std::uint32_t>(std::countr_zero(word));
  word &= word - 1;
  if (++slab->used == count_) unlink(slab);
  return reinterpret_cast<std::byte*>(slab + 1) + std::size_t{i} * bytes_;
}

void Shelf::free(void* object) noexcept {
  auto* const slab = reinterpret_cast<Slab*>(reinterpret_cast<std::uintptr_t>(object) & ~(kSlabBytes - 1));
  const auto i =
      static_cast<std::uint32_t>((static_cast<std::byte*>(object) - reinterpret_cast<std::byte*>(slab + 1)) /
                                 static_cast<std::ptrdiff_t>(bytes_));
  ASHLAR_DCHECK((slab->free[i / 64] >> (i % 64) & 1) == 0, "object %u of a slab is freed twice", i);
  slab->free[i / 64] |= std::uint64_t{1} << (i % 64);
  if (--slab->used == 0) {
    if (slab->shelved) unlink(slab);
    slab->~Slab();
    pool_.free(slab);
    return;
  }
  if (!slab->shelved) push(slab);
}

}  // namespace ashlar
