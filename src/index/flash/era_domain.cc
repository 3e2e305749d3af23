// The writer's side. Objects retire into a batch. A scan begins an era, reads the announced eras, and frees
// each object of the batch or holds it under the oldest announced era within its life. Held objects lie in
// one chain per such era and cost nothing until no reader is in that era; then the chain is reviewed, some
// objects per scan, and an object that another reader still holds moves to that reader's chain. Only readers
// inside when an object retired can hold it, so it is reviewed at most once for each of them.
//
// Memory. A scan allocates all it may need before it moves an object: the list of eras, a place for each
// among the held ones, and spare chunks. Chunks it empties become spares, so it needs at most one per era,
// and one more because batch and reviews are two chains. Without the memory there is no scan; the next
// retirement retries.
#include "index/flash/era_domain.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace ashlar::index::detail {

EraDomain::EraDomain() {
  add_spare();
}

EraDomain::~EraDomain() {
  ASHLAR_CHECK(active_eras().empty(), "a domain ends with a reader inside, in era %llu",
               static_cast<unsigned long long>(active_eras().front()));
  flush();
  ASHLAR_CHECK(waiting_count() == 0, "%zu objects wait although no reader is inside", waiting_count());
  drop_spares(0);
  for (const std::atomic<Line*>& lines : more_lines_) delete[] lines.load();
}

EraDomain::Line* EraDomain::add_line(std::uint32_t number) const noexcept {
  if (number >= ThreadNumber::kLimit) return nullptr;
  if (number >= kFirstLines) {
    const std::uint32_t array = array_of(number);
    if (more_lines_[array].load(kOrderLines) == nullptr) {
      Line* const lines = new (std::nothrow) Line[kFirstLines << array];
      if (lines == nullptr) return nullptr;
      Line* none = nullptr;
      if (!more_lines_[array].compare_exchange_strong(none, lines, kOrderLines)) delete[] lines;
    }
  }
  std::uint32_t known = lines_.load(kOrderLines);
  while (known <= number && !lines_.compare_exchange_weak(known, number + 1, kOrderLines)) {
  }
  return line_of(number);
}

void EraDomain::retire(void* object, std::size_t bytes, std::uint64_t birth, Free free, void* context) {
  // relaxed: only the writer stores, and this is the writer.
  const std::uint64_t now = era_.load(std::memory_order_relaxed);
  ASHLAR_DCHECK(birth <= now, "an object of era %llu retires in era %llu",
                static_cast<unsigned long long>(birth), static_cast<unsigned long long>(now));
  push(batch_, {object, bytes, birth, now, free, context});
  if (reserved_ != 0) --reserved_;
  count_waiting(1, bytes);
  ++work_.retired;
  ++batch_count_;
  batch_bytes_ += bytes;
  if ((batch_count_ >= batch_limit() || batch_bytes_ >= kBatchBytes) && !scanning_) scan(kReviews);
}

bool EraDomain::flush() {
  ASHLAR_CHECK(!scanning_, "flush() within a free function");
  reserved_ = 0;
  // Objects retired by the free functions are examined in the next round.
  do {
    if (!scan(std::numeric_limits<std::size_t>::max())) return false;
  } while (batch_count_ != 0);
  return true;
}

bool EraDomain::collect() {
  ASHLAR_CHECK(!scanning_, "collect() within a free function");
  return !scan(kReviews) || reviews_.first == nullptr;
}

void EraDomain::add_spare() {
  auto* const chunk = new Chunk;
  ++chunks_;
  chunk->next = spares_;
  spares_ = chunk;
  ++spare_count_;
}

void EraDomain::drop_spares(std::size_t kept) noexcept {
  for (; spare_count_ > kept; --spare_count_, --chunks_) delete std::exchange(spares_, spares_->next);
}

void EraDomain::make_room(std::size_t n) {
  const std::size_t left = batch_.first == nullptr ? 0 : kChunk - batch_.first->size;
  while (left + spare_count_ * kChunk < n) add_spare();
  reserved_ = n;
}

bool EraDomain::try_reserve(std::size_t n) noexcept {
  try {
    reserve(n);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool EraDomain::scan(std::size_t reviews) {
  advance();
  std::vector<std::uint64_t> active;
  std::size_t needed = 0;
  try {
    active = active_eras();
    // Every held object has an announced era.
    held_.reserve(active.size());
    needed = active.empty() ? 0 : active.size() + 1 + chunks_for(reserved_);
    while (spare_count_ < needed) add_spare();
  } catch (const std::bad_alloc&) {
    return false;
  }
  scanning_ = true;
  ++work_.scans;
  let_go(active);
  Chain batch = std::exchange(batch_, {});
  batch_count_ = 0;
  batch_bytes_ = 0;
  examine(batch, std::numeric_limits<std::size_t>::max(), active);
  examine(reviews_, reviews, active);
  scanning_ = false;
  if (held_.empty()) held_.shrink_to_fit();
  // While readers hold objects back, the next scan needs as many again.
  const std::size_t kept = std::max<std::size_t>(1, chunks_for(reserved_));
  drop_spares(waiting_count() == 0 ? kept : std::max(kept, needed));
  return true;
}

std::vector<std::uint64_t> EraDomain::active_eras() const {
  std::vector<std::uint64_t> active;
  const std::uint32_t lines = lines_.load(kOrderLines);
  for (std::uint32_t number = 0; number < lines; ++number) {
    const Line* const line = line_of(number);
    if (line == nullptr) continue;
    if (const std::uint64_t era = line->active.load(kOrderScan); era != 0) active.push_back(era);
  }
  std::sort(active.begin(), active.end());
  active.erase(std::unique(active.begin(), active.end()), active.end());
  return active;
}

void EraDomain::let_go(const std::vector<std::uint64_t>& active) {
  const auto gone = [&](const Held& held) {
    if (std::binary_search(active.begin(), active.end(), held.era)) return false;
    append(reviews_, held.objects);
    return true;
  };
  held_.erase(std::remove_if(held_.begin(), held_.end(), gone), held_.end());
}

void EraDomain::examine(Chain& chain, std::size_t limit, const std::vector<std::uint64_t>& active) {
  for (; chain.first != nullptr && limit != 0; --limit) {
    const Retired retired = pop(chain);
    ++work_.examined;
    const auto oldest = std::lower_bound(active.begin(), active.end(), retired.birth);
    if (oldest != active.end() && *oldest <= retired.retired) {
      hold(retired, *oldest);
      continue;
    }
    count_waiting(std::size_t{0} - 1, std::size_t{0} - retired.bytes);
    retired.free(retired.object, retired.context);
  }
}

void EraDomain::hold(const Retired& retired, std::uint64_t era) {
  auto held = std::lower_bound(held_.begin(), held_.end(), era,
                               [](const Held& h, std::uint64_t wanted) { return h.era < wanted; });
  if (held == held_.end() || held->era != era) held = held_.insert(held, {era, {}});
  push(held->objects, retired);
}

void EraDomain::push(Chain& chain, const Retired& retired) {
  if (chain.first == nullptr || chain.first->size == kChunk) {
    if (spares_ == nullptr) add_spare();
    Chunk* const chunk = std::exchange(spares_, spares_->next);
    --spare_count_;
    chunk->size = 0;
    chunk->next = chain.first;
    if (chain.first == nullptr) chain.last = chunk;
    chain.first = chunk;
  }
  chain.first->objects[chain.first->size++] = retired;
}

EraDomain::Retired EraDomain::pop(Chain& chain) {
  Chunk* const chunk = chain.first;
  const Retired retired = chunk->objects[--chunk->size];
  if (chunk->size == 0) {
    chain.first = chunk->next;
    chunk->next = spares_;
    spares_ = chunk;
    ++spare_count_;
  }
  return retired;
}

void EraDomain::append(Chain& chain, const Chain& other) noexcept {
  if (chain.first == nullptr) {
    chain = other;
  } else if (other.first != nullptr) {
    chain.last->next = other.first;
    chain.last = other.last;
  }
}

std::size_t EraDomain::batch_limit() const noexcept {
  return std::max<std::size_t>(kBatch, lines_.load());
}

std::size_t EraDomain::heap_bytes() const noexcept {
  std::size_t bytes = chunks_ * sizeof(Chunk) + held_.capacity() * sizeof(Held);
  for (std::uint32_t array = 0; array < kMoreLines; ++array)
    if (more_lines_[array].load() != nullptr) bytes += (kFirstLines << array) * sizeof(Line);
  return bytes;
}

}  // namespace ashlar::index::detail
