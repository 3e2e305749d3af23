#include "block/sequence/block_tables.h"

#include <algorithm>
#include <array>

#include "ashlar/base/check.h"
#include "ashlar/block/detail/store_calls.h"
#include "block/store/thread_scratch.h"

namespace ashlar::block::detail {

BlockTables::BlockTables(std::shared_ptr<BlockStore> store, std::span<const CacheGroup> groups,
                         std::shared_ptr<const BlockWorth> worth)
    : store_(std::move(store)), tables_(std::max<std::size_t>(groups.size(), 1)) {
  // Retention matters only where the eviction backend keeps it.
  if (worth != nullptr && store_->facts().keeps_retentions()) worth_ = std::move(worth);
  for (std::size_t g = 0; g < groups.size(); ++g) tables_[g].group = groups[g];
}

namespace {

// Room for n elements, at least doubled where there is not enough: growing step by step stays linear.
template <class T>
void grow(std::vector<T>& vector, std::size_t n) {
  if (n > vector.capacity()) vector.reserve(std::max(n, 2 * vector.capacity()));
}

}  // namespace

SequenceBlock BlockTables::block(SequenceText& text, std::size_t group, std::size_t i) const {
  const std::size_t begin = i * block_size();
  ASHLAR_CHECK(group < tables_.size() && begin < text.tokens.size(),
               "block %zu of group %zu; the sequence has %zu tokens in blocks of %u, and %zu groups", i,
               group, text.tokens.size(), block_size(), tables_.size());
  const Table& table = tables_[group];
  SequenceBlock out;
  out.tokens =
      std::span(text.tokens).subspan(begin, std::min<std::size_t>(block_size(), text.tokens.size() - begin));
  if (i < text.full_blocks() && text.names(i + 1).size() > i)
    out.hash = text.identity(i, static_cast<std::uint32_t>(group)).hash;
  if (i < table.ids.size()) out.id = table.ids[i];
  out.registered = out.id != kNoBlock && i < table.registered;
  return out;
}

std::size_t BlockTables::use_count(std::size_t group, std::size_t i) const noexcept {
  const Table& table = tables_[group];
  if (i >= table.slots.size() || table.slots[i].store == nullptr) return 0;
  if (i < table.registered) return use_count_of(table.slots[i]);
  return i < table.shares.size() && table.shares[i] ? table.shares[i].count() : 1;
}

void BlockTables::reserve(std::size_t blocks) {
  for (Table& table : tables_) {
    table.slots.reserve(blocks);
    table.ids.reserve(blocks);
  }
}

// ---- growing

std::size_t BlockTables::shared_tails(std::size_t computed) const noexcept {
  if (computed % block_size() == 0) return 0;
  const std::size_t tail = computed / block_size();
  return static_cast<std::size_t>(std::count_if(tables_.begin(), tables_.end(), [&](const Table& table) {
    return tail < table.shares.size() && table.shares[tail];
  }));
}

std::size_t BlockTables::places(std::size_t computed, std::size_t blocks) const noexcept {
  return tables_.size() * (blocks - std::min(blocks, size())) + shared_tails(computed);
}

std::size_t BlockTables::wanted(std::size_t computed, std::size_t blocks) {
  const std::size_t tail = computed / block_size();
  for (Table& table : tables_) {
    const bool shared = computed % block_size() != 0 && tail < table.shares.size() && table.shares[tail];
    if (shared && table.shares[tail].sole()) {
      std::move(table.shares[tail]).take();  // the slot is this table's alone again
    }
  }
  return places(computed, blocks);
}

void BlockTables::make_room(std::size_t computed, std::size_t blocks) {
  if (const std::size_t copies = shared_tails(computed); copies != 0) {
    copies_.reserve(copies_.size() + copies);
    sources_.reserve(sources_.size() + copies);
  }
  for (Table& table : tables_) {
    grow(table.slots, blocks);
    grow(table.ids, blocks);
    if (!table.shares.empty()) grow(table.shares, blocks);
  }
}

void BlockTables::place(std::size_t computed, std::size_t blocks, std::span<const SlotRef> fresh) {
  ASHLAR_CHECK(fresh.size() == places(computed, blocks),
               "%zu blocks came for %zu places: a callback changed a sequence that was being scheduled",
               fresh.size(), places(computed, blocks));
  std::size_t next = 0;
  if (computed % block_size() != 0) {
    const std::size_t tail = computed / block_size();
    for (std::size_t g = 0; g < tables_.size(); ++g) {
      Table& table = tables_[g];
      if (table.shares.empty() || !table.shares[tail]) continue;
      const SlotRef& slot = fresh[next++];
      copies_.push_back({g, table.ids[tail], BlockId(slot.id)});
      sources_.push_back(std::move(table.shares[tail]));
      table.slots[tail] = slot;
      table.ids[tail] = BlockId(slot.id);
    }
  }
  for (Table& table : tables_) {
    const std::size_t before = table.slots.size();
    if (before >= blocks) continue;
    const std::span<const SlotRef> added = fresh.subspan(next, blocks - before);
    table.slots.insert(table.slots.end(), added.begin(), added.end());
    table.ids.resize(blocks);
    for (std::size_t i = 0; i < added.size(); ++i) table.ids[before + i] = BlockId(added[i].id);
    if (!table.shares.empty()) table.shares.resize(blocks);
    next += added.size();
  }
  ASHLAR_DCHECK(next == fresh.size(), "%zu of %zu fresh blocks found a place", next, fresh.size());
}

Result<std::size_t, AllocationRefusal> BlockTables::extend(std::size_t computed, std::size_t blocks) {
  const std::size_t count = wanted(computed, blocks);
  if (count == 0) return count;
  if (count > store_->options().block_count) return store_->can_allocate(count).error();
  make_room(computed, blocks);
  ThreadScratch<SlotRef> fresh;
  fresh->reserve(count);
  ASHLAR_RETURN_IF_ERROR(store_->allocate(count, nullptr, [&](std::size_t, std::span<const SlotRef> slots) {
    fresh->insert(fresh->end(), slots.begin(), slots.end());
  }));
  place(computed, blocks, *fresh);
  return count;
}

// ---- blocks of running steps

class BlockTables::Departed final : public Fence::Waiting {
 public:
  explicit Departed(BlockTables empty) : tables(std::move(empty)) {}
  void settled(FenceEnd end) noexcept override {
    if (end == FenceEnd::kAbandoned) {
      tables.abandon();
    } else {
      tables.release();
    }
  }
  BlockTables tables;
};

void BlockTables::make_waiting() {
  if (waiting_ == nullptr) waiting_ = std::make_unique<Departed>(empty_copy());
}

void BlockTables::set_written_after(std::optional<Fence> fence) {
  if (fence) {
    make_waiting();
  } else {
    waiting_.reset();
  }
  written_after_ = std::move(fence);
}

void BlockTables::settle(std::size_t blocks, std::size_t computed) noexcept {
  if (in_flight()) return settle_later(blocks, computed);
  copied();
  truncate(blocks, nullptr);
  leave_windows(computed, nullptr);
}

void BlockTables::settle_later(std::size_t blocks, std::size_t computed) noexcept {
  copies_.clear();
  std::unique_ptr<Departed> departed;
  try {
    if (!sources_.empty()) departed = std::make_unique<Departed>(empty_copy());
    for (std::size_t g = 0; g < tables_.size(); ++g) {
      const Table& table = tables_[g];
      const std::size_t leaving = table.slots.size() - std::min(blocks, table.slots.size()) +
                                  outside(table, computed) - std::min(outside(table, computed), table.live);
      if (leaving == 0) continue;
      if (departed == nullptr) departed = std::make_unique<Departed>(empty_copy());
      Table& later = departed->tables.tables_[g];
      later.slots.reserve(leaving);
      if (!table.shares.empty()) later.shares.reserve(leaving);
    }
  } catch (const std::bad_alloc&) {
    return;
  }
  if (departed == nullptr) return;
  departed->tables.sources_.swap(sources_);
  leave_windows(computed, &departed->tables);  // first: the registered ones
  truncate(blocks, &departed->tables);
  written_after_->keep(std::move(departed));
}

void BlockTables::hand_over(Table& table, std::size_t from, std::size_t to, Table& later) noexcept {
  for (std::size_t i = from; i < to; ++i) {
    if (table.slots[i].store == nullptr) continue;
    later.slots.push_back(table.slots[i]);
    if (!table.shares.empty()) later.shares.push_back(std::move(table.shares[i]));
    if (i < table.registered) ++later.registered;
  }
}

void BlockTables::release_after(const Fence& fence) {
  auto all = std::make_unique<Departed>(empty_copy());
  all->tables.swap(*this);
  all->tables.written_after_ = written_after_;
  all->tables.waiting_ = std::move(waiting_);
  fence.keep(std::move(all));
}

void BlockTables::copied() noexcept {
  copies_.clear();
  sources_.clear();
}

void BlockTables::undo_copies(std::size_t computed) noexcept {
  const std::size_t tail = computed / block_size();
  ASHLAR_DCHECK(copies_.size() <= sources_.size(), "%zu copies of %zu sources", copies_.size(),
                sources_.size());
  while (!copies_.empty()) {
    Table& table = tables_[copies_.back().group];
    const SlotRef unused = table.slots[tail];
    table.ids[tail] = copies_.back().source;
    table.shares[tail] = std::move(sources_.back());
    table.slots[tail] = table.shares[tail].slot();
    copies_.pop_back();
    sources_.pop_back();
    store_->drop_owned({&unused, 1});
  }
}

void BlockTables::truncate(std::size_t blocks, BlockTables* later) noexcept {
  if (size() <= blocks) return;
  for (std::size_t g = tables_.size(); g-- > 0;) {
    Table& table = tables_[g];
    ASHLAR_DCHECK(table.registered <= blocks, "a cut to %zu blocks through %zu registered ones", blocks,
                  table.registered);
    if (later != nullptr) {
      hand_over(table, blocks, table.slots.size(), later->tables_[g]);
    } else {
      drop(table, blocks, table.slots.size());
    }
    table.slots.resize(blocks);
    table.ids.resize(blocks);
    if (!table.shares.empty()) table.shares.resize(blocks);
  }
}

void BlockTables::drop(Table& table, std::size_t from, std::size_t to) noexcept {
  constexpr std::size_t kRoom = 64;
  SlotBuffer<kRoom> owned;
  std::size_t count = 0;
  const std::size_t unregistered = std::max(from, table.registered);
  for (std::size_t i = to; i > unregistered;) {
    --i;
    if (!table.shares.empty() && table.shares[i]) {
      table.shares[i] = SlotShare();  // the last share returns the slot
      continue;
    }
    owned[count++] = table.slots[i];
    if (count == kRoom) store_->drop_owned({owned.data(), std::exchange(count, 0)});
  }
  if (count != 0) store_->drop_owned({owned.data(), count});
  Dropper dropper;
  for (std::size_t i = std::min(to, table.registered); i-- > from;) {
    if (table.slots[i].store != nullptr) dropper.drop(table.slots[i]);
  }
}

// ---- registering

void BlockTables::collect(SequenceText& text, std::size_t full, std::vector<Publication>& out) {
  if (private_from_ != kShared) return;
  const std::size_t named = text.names(full).size();
  grow(out, out.size() + tables_.size());
  for (std::uint32_t g = 0; g < tables_.size(); ++g) {
    Table& table = tables_[g];
    if (table.registered >= named) continue;
    for (std::size_t i = table.registered; i < named; ++i) {
      if (store_->keeps_ancestry()) {
        complete(table.slots[i], text.identity(i, g), text.block(i));
      } else {
        store_->complete(table.slots[i], g == 0 ? text.hashes[i] : text.hashes[i].in_group(g),
                         text.prefixes[i], text.block(i));
      }
    }
    if (!store_->keeps_ancestry()) store_->count_staging(named - table.registered);
    out.push_back({this, g, table.registered, named - table.registered});
  }
}

void BlockTables::uncollect(std::span<const Publication> publications) noexcept {
  for (const Publication& each : publications) {
    const Table& table = each.tables->tables_[each.group];
    for (std::size_t i = std::max(each.from, table.registered); i < each.from + each.count; ++i) {
      reset(table.slots[i]);
    }
  }
}

// Walks the blocks of a list of publications in order, by their number.
class BlockTables::Walk {
 public:
  explicit Walk(std::span<const Publication> list) : list_(list) {}
  // visit(table, index of the first, how many) for the blocks [first, first + count) of the list.
  template <class Visit>
  void operator()(std::size_t first, std::size_t count, Visit&& visit) {
    if (first < start_) at_ = start_ = 0;
    while (count != 0) {
      const Publication& each = list_[at_];
      if (first >= start_ + each.count) {
        start_ += each.count;
        ++at_;
        continue;
      }
      const std::size_t skip = first - start_;
      const std::size_t n = std::min(count, each.count - skip);
      visit(each.tables->tables_[each.group], each.from + skip, n);
      first += n;
      count -= n;
    }
  }

  // Of the last visit.
  const BlockTables& tables() const { return *list_[at_].tables; }

 private:
  std::span<const Publication> list_;
  std::size_t at_ = 0;
  std::size_t start_ = 0;  // number of the first block of list_[at_]
};

Result<void> BlockTables::register_all(std::span<const Publication> publications, bool tentative,
                                       OnTwin on_twin, Published& published) {
  std::size_t n = 0;
  for (const Publication& each : publications) n += each.count;
  Walk in(publications);
  Walk out(publications);
  Walk about(publications);
  BlockStore& store = *publications.front().tables->store_;
  Writers writers(store, n);
  std::size_t before = 0;
  for (const Publication& each : publications) {
    if (each.tables->written_after_) writers.expect(before, each.count, *each.tables->written_after_);
    before += each.count;
  }
  return store.register_slots(
      n,
      [&](std::size_t first, std::span<SlotRef> slots) {
        SlotRef* next = slots.data();
        in(first, slots.size(), [&](const Table& table, std::size_t from, std::size_t count) {
          next = std::copy_n(&table.slots[from], count, next);
        });
      },
      [&](std::size_t first, std::span<const SlotRef> slots) {
        const SlotRef* next = slots.data();
        published.registered += slots.size();
        out(first, slots.size(), [&](Table& table, std::size_t from, std::size_t count) {
          for (std::size_t i = from; i < from + count; ++i, ++next) {
            if (next->id != table.slots[i].id) ++published.replaced;
            table.slots[i] = *next;
            table.ids[i] = BlockId(next->id);
          }
          table.registered = from + count;
        });
      },
      [&](std::size_t i, RegisteredBlock& block) {
        about(i, 1, [&](const Table&, std::size_t at, std::size_t) { about.tables().describe(at, block); });
      },
      tentative, on_twin, &writers);
}

// What an observer hears of block i beyond its name.
void BlockTables::describe(std::size_t i, RegisteredBlock& block) const {
  if (worth_ != nullptr) {
    const std::size_t size = block_size();
    const auto asked = worth_->plan.of_block(i * size, (i + 1) * size, worth_->prompt_tokens,
                                             store_->options().clock->now());
    if (asked) block.retention = *asked;
  }
  if (written_after_ && !written_after_->passed()) block.after = written_after_;
}

BlockTables::Published BlockTables::publish(std::span<const Publication> publications, OnTwin on_twin) {
  Published published;
  if (publications.empty()) return published;
  if (!register_all(publications, /*tentative=*/true, on_twin, published)) {
    // One block collides, so none is registered; retry one by one. A collision in one group ends the blocks
    // of all groups at the same position, since a hit needs every group.
    for (const Publication& each : publications) {
      std::size_t& end = each.tables->private_from_;
      for (std::size_t i = each.from; i < std::min(each.from + each.count, end); ++i) {
        const Publication one{each.tables, each.group, i, 1};
        try {
          if (!register_all({&one, 1}, /*tentative=*/false, on_twin, published)) end = i;
        } catch (const std::bad_alloc&) {
          uncollect(publications);
          return published;
        }
      }
    }
  }
  for (const Publication& each : publications) {
    if (each.tables->worth_ == nullptr) continue;
    const Table& table = each.tables->tables_[each.group];
    each.tables->set_worth(table, each.from, std::min(each.from + each.count, table.registered));
  }
  return published;
}

// ---- leaving

std::size_t BlockTables::outside(const Table& table, std::size_t computed) const noexcept {
  return std::min(table.group.tokens_outside(computed) / block_size(), table.slots.size());
}

void BlockTables::leave_windows(std::size_t computed, BlockTables* later) noexcept {
  for (std::size_t g = 0; g < tables_.size(); ++g) {
    Table& table = tables_[g];
    const std::size_t live = outside(table, computed);
    if (live <= table.live) continue;
    if (later != nullptr) {
      hand_over(table, table.live, live, later->tables_[g]);
    } else {
      drop(table, table.live, live);
    }
    for (std::size_t i = table.live; i < live; ++i) {
      table.slots[i] = SlotRef();
      table.ids[i] = kNoBlock;
    }
    table.live = live;
    table.registered = std::max(table.registered, live);
  }
}

std::size_t BlockTables::next_leaving() const noexcept {
  std::size_t next = SIZE_MAX;
  for (const Table& table : tables_) {
    if (!table.group.window) continue;
    // tokens_outside(computed) == (live + 1) * block_size
    next = std::min(next, (table.live + 1) * block_size() + *table.group.window - 1);
  }
  return next;
}

void BlockTables::release() noexcept {
  if (in_flight()) {
    std::unique_ptr<Fence::Waiting> waiting = std::move(waiting_);
    static_cast<Departed&>(*waiting).tables.swap(*this);
    written_after_->keep(std::move(waiting));
    return;
  }
  copied();
  if (tables_.size() <= 1) {
    for (Table& table : tables_) drop(table, table.live, table.slots.size());
  } else {
    // By position: a hit needs all groups, so all should lose the same blocks. A failed match leaves tables
    // of different lengths.
    std::size_t longest = 0;
    for (const Table& table : tables_) longest = std::max(longest, table.slots.size());
    Dropper dropper;
    for (std::size_t i = longest; i-- > 0;) {
      for (std::size_t g = tables_.size(); g-- > 0;) {
        Table& table = tables_[g];
        if (i < table.live || i >= table.slots.size()) continue;
        if (i < table.registered) {
          dropper.drop(table.slots[i]);
        } else {
          drop(table, i, i + 1);
        }
      }
    }
  }
  clear();
}

void BlockTables::clear() noexcept {
  for (Table& table : tables_) {
    table.slots.clear();
    table.ids.clear();
    table.shares.clear();
    table.live = 0;
    table.registered = 0;
  }
  private_from_ = kShared;
  copied();
}

void BlockTables::abandon() noexcept {
  const auto keep = [](SlotShare& share) { std::move(share).abandon(); };
  for (Table& table : tables_) std::for_each(table.shares.begin(), table.shares.end(), keep);
  std::for_each(sources_.begin(), sources_.end(), keep);
  clear();
}

BlockTables BlockTables::empty_copy() const {
  BlockTables other(store_, {}, worth_);
  other.tables_.resize(tables_.size());
  for (std::size_t g = 0; g < tables_.size(); ++g) other.tables_[g].group = tables_[g].group;
  return other;
}

void BlockTables::swap(BlockTables& other) noexcept {
  tables_.swap(other.tables_);
  copies_.swap(other.copies_);
  sources_.swap(other.sources_);
  std::swap(private_from_, other.private_from_);
}

BlockTables BlockTables::fork() {
  BlockTables other = empty_copy();
  for (Table& table : tables_) {
    if (table.registered == table.slots.size()) continue;
    table.shares.resize(table.slots.size());
    for (std::size_t i = table.registered; i < table.slots.size(); ++i) {
      if (!table.shares[i]) table.shares[i] = SlotShare(table.slots[i]);
    }
  }
  std::vector<Table> copies = tables_;
  for (const Table& table : copies) {
    for (std::size_t i = table.live; i < table.registered; ++i) add_reference(table.slots[i]);
  }
  other.tables_ = std::move(copies);
  other.private_from_ = private_from_;
  return other;
}

void BlockTables::take_back_shares() noexcept {
  for (Table& table : tables_) {
    for (SlotShare& share : table.shares) {
      if (share && share.sole()) std::move(share).take();
    }
  }
}

}  // namespace ashlar::block::detail
