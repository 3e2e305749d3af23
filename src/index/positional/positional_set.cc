#include "index/positional/positional_set.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "ashlar/base/check.h"

namespace ashlar::index::detail {

using events::kStorageTiers;

// An item is slot << kTierBits | tiers. Items ascend.
struct WorkerSet::List {
  std::uint32_t count;
  std::uint32_t capacity;

  std::uint32_t* items() noexcept { return reinterpret_cast<std::uint32_t*>(this + 1); }
  // The item of the slot, or the place where it belongs.
  std::uint32_t* place_of(std::uint32_t slot) noexcept {
    return std::lower_bound(items(), items() + count, slot << kTierBits);
  }
  bool is_of(const std::uint32_t* item, std::uint32_t slot) noexcept {
    return item != items() + count && *item >> kTierBits == slot;
  }

  static std::size_t size_of(std::uint32_t capacity) noexcept {
    return sizeof(List) + capacity * sizeof(std::uint32_t);
  }
  static List* create(std::uint32_t capacity, std::size_t& bytes) {
    return made_of(::operator new(size_of(capacity)), capacity, bytes);
  }
  // Null without memory.
  static List* try_create(std::uint32_t capacity, std::size_t& bytes) noexcept {
    void* memory = ::operator new(size_of(capacity), std::nothrow);
    return memory == nullptr ? nullptr : made_of(memory, capacity, bytes);
  }
  static List* made_of(void* memory, std::uint32_t capacity, std::size_t& bytes) noexcept {
    bytes += size_of(capacity);
    return new (memory) List{0, capacity};
  }
  static void destroy(List* list, std::size_t& bytes) noexcept {
    bytes -= size_of(list->capacity);
    ::operator delete(list);
  }
};

// Plane after plane of `words` words. One plane: the device tier. kStorageTiers: all tiers.
struct WorkerSet::Bits {
  std::uint32_t count;  // workers
  std::uint32_t lower;  // bits in the planes of lower tiers
  std::uint32_t words;
  std::uint32_t planes;

  std::uint64_t* data() noexcept { return reinterpret_cast<std::uint64_t*>(this + 1); }
  std::uint64_t* plane(std::size_t tier) noexcept { return data() + tier * words; }
  TierMask tiers_of(std::uint32_t slot) noexcept {
    if (slot / 64 >= words) return 0;
    TierMask tiers = 0;
    for (std::size_t tier = 0; tier < planes; ++tier)
      tiers = static_cast<TierMask>(tiers | (plane(tier)[slot / 64] >> (slot % 64) & 1) << tier);
    return tiers;
  }

  static std::size_t size_of(std::uint32_t words, std::uint32_t planes) noexcept {
    return sizeof(Bits) + std::size_t{words} * planes * sizeof(std::uint64_t);
  }
  static Bits* create(std::uint32_t words, std::uint32_t planes, std::size_t& bytes) {
    return made_of(::operator new(size_of(words, planes)), words, planes, bytes);
  }
  // Null without memory.
  static Bits* try_create(std::uint32_t words, std::uint32_t planes, std::size_t& bytes) noexcept {
    void* memory = ::operator new(size_of(words, planes), std::nothrow);
    return memory == nullptr ? nullptr : made_of(memory, words, planes, bytes);
  }
  static Bits* made_of(void* memory, std::uint32_t words, std::uint32_t planes, std::size_t& bytes) noexcept {
    const std::size_t size = size_of(words, planes);
    bytes += size;
    std::memset(memory, 0, size);
    return new (memory) Bits{0, 0, words, planes};
  }
  static void destroy(Bits* bits, std::size_t& bytes) noexcept {
    bytes -= size_of(bits->words, bits->planes);
    ::operator delete(bits);
  }
};

WorkerSet::List* WorkerSet::list() const noexcept {
  return reinterpret_cast<List*>(word_ & ~kFormMask);
}
WorkerSet::Bits* WorkerSet::bits() const noexcept {
  return reinterpret_cast<Bits*>(word_ & ~kFormMask);
}
void WorkerSet::hold(List* list) noexcept {
  word_ = reinterpret_cast<std::uint64_t>(list) | kList;
}
void WorkerSet::hold(Bits* bits) noexcept {
  word_ = reinterpret_cast<std::uint64_t>(bits) | kBits;
}

std::uint32_t WorkerSet::longest_list(std::size_t words) noexcept {
  return std::max(kMinList, static_cast<std::uint32_t>(2 * words));
}

std::size_t WorkerSet::count() const noexcept {
  switch (form()) {
    case kOne:
      return 1;
    case kList:
      return list()->count;
    case kBits:
      return bits()->count;
    default:
      return 0;
  }
}

TierMask WorkerSet::tiers_of(std::uint32_t slot) const noexcept {
  switch (form()) {
    case kOne:
      return slot_of_one(word_) == slot ? tiers_of_one(word_) : TierMask{0};
    case kList: {
      const std::uint32_t* item = list()->place_of(slot);
      return list()->is_of(item, slot) ? static_cast<TierMask>(*item & kEveryTier) : TierMask{0};
    }
    case kBits:
      return bits()->tiers_of(slot);
    default:
      return 0;
  }
}

TierMask WorkerSet::add(std::uint32_t slot, TierMask tiers, std::size_t slots, std::size_t& bytes) {
  ASHLAR_DCHECK(slot < slots && tiers != 0, "slot %u of %zu, tiers %u", slot, slots, unsigned{tiers});
  switch (form()) {
    case kOne: {
      if (slot_of_one(word_) == slot) {
        const TierMask before = tiers_of_one(word_);
        word_ = one(slot, before | tiers);
        return before;
      }
      List* list = List::create(4, bytes);
      const std::uint32_t first = slot_of_one(word_) << kTierBits | tiers_of_one(word_);
      const std::uint32_t second = slot << kTierBits | tiers;
      list->items()[0] = std::min(first, second);
      list->items()[1] = std::max(first, second);
      list->count = 2;
      hold(list);
      return 0;
    }
    case kList:
      return add_to_list(slot, tiers, slots, bytes);
    case kBits:
      return add_to_bits(slot, tiers, slots, bytes);
    default:
      word_ = one(slot, tiers);
      return 0;
  }
}

TierMask WorkerSet::add_to_list(std::uint32_t slot, TierMask tiers, std::size_t slots, std::size_t& bytes) {
  List* old = list();
  std::uint32_t* item = old->place_of(slot);
  if (old->is_of(item, slot)) {
    const auto before = static_cast<TierMask>(*item & kEveryTier);
    *item |= tiers;
    return before;
  }
  if (old->count == old->capacity) {
    if (old->count >= longest_list((slots + 63) / 64)) {
      list_to_bits(tiers, slots, bytes);
      return add_to_bits(slot, tiers, slots, bytes);
    }
    List* longer = List::create(2 * old->capacity + 4, bytes);
    std::copy_n(old->items(), old->count, longer->items());
    longer->count = old->count;
    List::destroy(old, bytes);
    hold(longer);
    item = longer->place_of(slot);
  }
  std::uint32_t* end = list()->items() + list()->count++;
  std::move_backward(item, end, end + 1);
  *item = slot << kTierBits | tiers;
  return 0;
}

TierMask WorkerSet::add_to_bits(std::uint32_t slot, TierMask tiers, std::size_t slots, std::size_t& bytes) {
  const std::uint32_t planes = (tiers & ~kDeviceMask) != 0 ? kStorageTiers : bits()->planes;
  if (slot / 64 >= bits()->words || planes > bits()->planes) {
    const auto words = static_cast<std::uint32_t>((slots + 63) / 64);
    reshape_bits(std::max(words, bits()->words), planes, bytes);
  }
  Bits* set = bits();
  const TierMask before = set->tiers_of(slot);
  const auto news = static_cast<unsigned>(tiers & ~before);
  for (unsigned left = news; left != 0; left &= left - 1)
    set->plane(static_cast<std::size_t>(std::countr_zero(left)))[slot / 64] |= std::uint64_t{1}
                                                                               << (slot % 64);
  set->lower += static_cast<std::uint32_t>(std::popcount(news & ~unsigned{kDeviceMask}));
  set->count += before == 0 ? 1 : 0;
  return before;
}

TierMask WorkerSet::remove(std::uint32_t slot, TierMask tiers, std::size_t& bytes) noexcept {
  switch (form()) {
    case kOne: {
      if (slot_of_one(word_) != slot) return 0;
      const TierMask before = tiers_of_one(word_);
      const auto left = static_cast<TierMask>(before & ~tiers);
      word_ = left == 0 ? 0 : one(slot, left);
      return before;
    }
    case kList:
      return remove_from_list(slot, tiers, bytes);
    case kBits:
      return remove_from_bits(slot, tiers, bytes);
    default:
      return 0;
  }
}

TierMask WorkerSet::remove_from_list(std::uint32_t slot, TierMask tiers, std::size_t& bytes) noexcept {
  List* set = list();
  std::uint32_t* item = set->place_of(slot);
  if (!set->is_of(item, slot)) return 0;
  const auto before = static_cast<TierMask>(*item & kEveryTier);
  *item &= ~std::uint32_t{tiers};
  if ((*item & kEveryTier) != 0) return before;
  std::move(item + 1, set->items() + set->count, item);
  --set->count;
  if (set->count == 1) {
    const std::uint32_t last = set->items()[0];
    List::destroy(set, bytes);
    word_ = one(last >> kTierBits, static_cast<TierMask>(last & kEveryTier));
  } else if (set->capacity > 4 && set->count <= (set->capacity - 4) / 4) {
    List* shorter = List::try_create((set->capacity - 4) / 2, bytes);
    if (shorter == nullptr) return before;
    std::copy_n(set->items(), set->count, shorter->items());
    shorter->count = set->count;
    List::destroy(set, bytes);
    hold(shorter);
  }
  return before;
}

TierMask WorkerSet::remove_from_bits(std::uint32_t slot, TierMask tiers, std::size_t& bytes) noexcept {
  Bits* set = bits();
  const TierMask before = set->tiers_of(slot);
  const auto gone = static_cast<unsigned>(before & tiers);
  for (unsigned left = gone; left != 0; left &= left - 1)
    set->plane(static_cast<std::size_t>(std::countr_zero(left)))[slot / 64] &=
        ~(std::uint64_t{1} << (slot % 64));
  set->lower -= static_cast<std::uint32_t>(std::popcount(gone & ~unsigned{kDeviceMask}));
  if (gone != 0 && gone == before) {
    --set->count;
    if (set->count <= longest_list(set->words) / 3) {
      // At most one worker is left after an earlier shortage of memory.
      if (set->count <= 1) [[unlikely]]
        bits_to_one(bytes);
      else
        bits_to_list(bytes);
      return before;
    }
  }
  if (set->lower == 0 && set->planes > 1)
    if (Bits* fresh = Bits::try_create(set->words, 1, bytes)) reshape_bits(fresh, bytes);
  return before;
}

void WorkerSet::list_to_bits(TierMask tiers, std::size_t slots, std::size_t& bytes) {
  List* old = list();
  const std::uint32_t* items = old->items();
  const auto is_lower = [](std::uint32_t mask) {
    return (mask & kEveryTier & ~std::uint32_t{kDeviceMask}) != 0;
  };
  const bool lower = is_lower(tiers) || std::any_of(items, items + old->count, is_lower);
  hold(Bits::create(static_cast<std::uint32_t>((slots + 63) / 64), lower ? kStorageTiers : 1, bytes));
  for (std::uint32_t i = 0; i < old->count; ++i)
    add_to_bits(items[i] >> kTierBits, static_cast<TierMask>(items[i] & kEveryTier), slots, bytes);
  List::destroy(old, bytes);
}

// Requires: at most one worker is left.
void WorkerSet::bits_to_one(std::size_t& bytes) noexcept {
  Bits* old = bits();
  word_ = 0;
  for (std::size_t tier = 0; tier < old->planes; ++tier) {
    for (std::uint32_t word = 0; word < old->words; ++word) {
      const std::uint64_t member = old->plane(tier)[word];
      if (member == 0) continue;
      const std::uint32_t slot = word * 64 + static_cast<std::uint32_t>(std::countr_zero(member));
      word_ = one(slot, old->tiers_of(slot));
    }
  }
  Bits::destroy(old, bytes);
}

// Requires: at least two workers are left.
void WorkerSet::bits_to_list(std::size_t& bytes) noexcept {
  static_assert(kMinList / 3 >= 2);
  Bits* old = bits();
  std::uint32_t capacity = 4;
  while (capacity < old->count) capacity = 2 * capacity + 4;
  List* list = List::try_create(capacity, bytes);
  if (list == nullptr) return;
  for (std::uint32_t word = 0; word < old->words; ++word) {
    std::uint64_t members = 0;
    for (std::size_t tier = 0; tier < old->planes; ++tier) members |= old->plane(tier)[word];
    for (; members != 0; members &= members - 1) {
      const std::uint32_t slot = word * 64 + static_cast<std::uint32_t>(std::countr_zero(members));
      list->items()[list->count++] = slot << kTierBits | old->tiers_of(slot);
    }
  }
  Bits::destroy(old, bytes);
  hold(list);
}

void WorkerSet::reshape_bits(std::uint32_t words, std::uint32_t planes, std::size_t& bytes) {
  reshape_bits(Bits::create(words, planes, bytes), bytes);
}

void WorkerSet::reshape_bits(Bits* fresh, std::size_t& bytes) noexcept {
  Bits* old = bits();
  fresh->count = old->count;
  fresh->lower = old->lower;
  for (std::size_t tier = 0; tier < std::min(fresh->planes, old->planes); ++tier)
    std::copy_n(old->plane(tier), std::min(fresh->words, old->words), fresh->plane(tier));
  Bits::destroy(old, bytes);
  hold(fresh);
}

void WorkerSet::reset(std::size_t& bytes) noexcept {
  if (form() == kList) List::destroy(list(), bytes);
  if (form() == kBits) Bits::destroy(bits(), bytes);
  word_ = 0;
}

void WorkerSet::intersect_device(const std::uint64_t* among, std::uint64_t* out, std::size_t first,
                                 std::size_t words) const noexcept {
  if (form() == kBits) {
    const std::size_t there =
        bits()->words <= first ? 0 : std::min<std::size_t>(words, bits()->words - first);
    for (std::size_t i = 0; i < there; ++i) out[i] = among[i] & bits()->data()[first + i];
    std::fill(out + there, out + words, 0);
    return;
  }
  std::fill_n(out, words, 0);
  const auto take = [&](std::uint32_t slot, unsigned tiers) {
    const std::size_t word = slot / 64 - first;  // wraps around when below `first`
    if (word < words && (tiers & kDeviceMask) != 0)
      out[word] |= among[word] & std::uint64_t{1} << (slot % 64);
  };
  if (form() == kOne) take(slot_of_one(word_), tiers_of_one(word_));
  if (form() == kList) {
    const std::uint32_t* items = list()->items();
    for (std::uint32_t i = 0; i < list()->count; ++i) take(items[i] >> kTierBits, items[i] & kEveryTier);
  }
}

void WorkerSet::copy_planes(std::uint64_t* out, std::size_t first, std::size_t words) const noexcept {
  std::fill_n(out, kStorageTiers * words, 0);
  if (form() == kBits) {
    const std::size_t there =
        bits()->words <= first ? 0 : std::min<std::size_t>(words, bits()->words - first);
    for (std::size_t tier = 0; tier < bits()->planes && there != 0; ++tier)
      std::copy_n(bits()->plane(tier) + first, there, out + tier * words);
    return;
  }
  const auto put = [&](std::uint32_t slot, unsigned tiers) {
    const std::size_t word = slot / 64 - first;  // wraps around when below `first`
    if (word >= words) return;
    for (; tiers != 0; tiers &= tiers - 1)
      out[static_cast<std::size_t>(std::countr_zero(tiers)) * words + word] |= std::uint64_t{1}
                                                                               << (slot % 64);
  };
  if (form() == kOne) put(slot_of_one(word_), tiers_of_one(word_));
  if (form() == kList) {
    const std::uint32_t* items = list()->items();
    for (std::uint32_t i = 0; i < list()->count; ++i) put(items[i] >> kTierBits, items[i] & kEveryTier);
  }
}

}  // namespace ashlar::index::detail
