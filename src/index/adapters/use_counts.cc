#include "index/adapters/use_counts.h"

#include <algorithm>
#include <new>

#include "ashlar/base/check.h"

namespace ashlar::index::detail {

UseCounts::UseCounts(std::uint32_t buckets, std::size_t max_contents)
    : max_contents_(max_contents), heads_(buckets, kEnd) {}

bool UseCounts::advance(Bucket now, std::size_t most) {
  const auto buckets = static_cast<Bucket>(heads_.size());
  if (!started_) {
    started_ = true;
    first_ = now_ = now;
    return true;
  }
  if (now <= now_) return true;
  // No bucket after now_ has contents.
  for (const Bucket end = std::min(now - buckets, now_); first_ <= end; ++first_)
    if (!forget_bucket(first_, most)) return false;
  now_ = now;
  first_ = std::max(first_, now - buckets + 1);
  ASHLAR_DCHECK(first_ <= now_ && now_ - first_ < buckets, "the window spans more buckets than there are");
  return true;
}

std::size_t UseCounts::use(std::span<const LocalHash> locals) {
  Content content = ContentTrie::kRoot;
  for (std::size_t i = 0; i < locals.size(); ++i) {
    Content child = trie_.find(content, locals[i]);
    if (child == ContentTrie::kNone) child = add(content, locals[i]);
    if (child == ContentTrie::kNone) return locals.size() - i;
    content = child;
    touch(content);
    std::uint32_t& uses = count(content, now_);
    if (uses != UINT32_MAX) ++uses;
  }
  return 0;
}

std::size_t UseCounts::read(std::span<const LocalHash> locals, std::span<std::uint32_t> uses) const {
  Content content = ContentTrie::kRoot;
  std::size_t used = 0;
  for (; used < locals.size(); ++used) {
    content = trie_.find(content, locals[used]);
    if (content == ContentTrie::kNone) break;
    std::uint64_t sum = 0;
    for (Bucket bucket = first_; bucket <= rows_[content].last; ++bucket)
      sum += counts_[content * heads_.size() + column(bucket)];
    uses[used] = static_cast<std::uint32_t>(std::min<std::uint64_t>(sum, UINT32_MAX));
  }
  std::ranges::fill(uses.subspan(used, locals.size() - used), 0u);
  return used;
}

UseCounts::Content UseCounts::add(Content parent, LocalHash local) {
  // The parent was used just now, so it is not evicted.
  if (trie_.size() >= max_contents_ && !make_room()) return ContentTrie::kNone;
  Content content = ContentTrie::kRoot;
  try {
    content = trie_.find_or_add(parent, local);
    if (content >= rows_.size()) {
      counts_.resize((std::size_t{content} + 1) * heads_.size());
      rows_.resize(std::size_t{content} + 1);
    }
  } catch (const std::bad_alloc&) {
    trie_.trim(content);
    free_if_empty();
    return ContentTrie::kNone;
  }
  trie_.hold(content);
  ASHLAR_DCHECK(trie_.size() <= max_contents_, "%zu contents are counted, %zu may be", trie_.size(),
                max_contents_);
  std::fill_n(counts_.begin() + static_cast<std::ptrdiff_t>(content * heads_.size()), heads_.size(), 0u);
  rows_[content].last = now_;
  link(content);
  return content;
}

bool UseCounts::make_room() {
  while (trie_.size() >= max_contents_) {
    if (first_ == now_) return false;
    std::size_t all = SIZE_MAX;
    forget_bucket(first_, all);
    ++first_;
    ++shortened_;
  }
  return true;
}

// Sets the content's last use to now.
void UseCounts::touch(Content content) {
  const Bucket last = rows_[content].last;
  if (last == now_) return;
  ASHLAR_DCHECK(last >= first_, "a content outlived the bucket of its last use");
  unlink(content);
  for (Bucket bucket = last + 1; bucket <= now_; ++bucket) count(content, bucket) = 0;
  rows_[content].last = now_;
  link(content);
}

void UseCounts::link(Content content) {
  Content& head = heads_[column(rows_[content].last)];
  rows_[content].before = kEnd;
  rows_[content].after = head;
  if (head != kEnd) rows_[head].before = content;
  head = content;
}

void UseCounts::unlink(Content content) noexcept {
  const Row& row = rows_[content];
  (row.before != kEnd ? rows_[row.before].after : heads_[column(row.last)]) = row.after;
  if (row.after != kEnd) rows_[row.after].before = row.before;
}

bool UseCounts::forget_bucket(Bucket bucket, std::size_t& most) {
  const Content& head = heads_[column(bucket)];  // unlink() moves it on
  for (; head != kEnd; --most) {
    if (most == 0) return false;
    const Content content = head;
    unlink(content);
    trie_.release(content);
  }
  free_if_empty();
  return true;
}

void UseCounts::free_if_empty() noexcept {
  if (trie_.size() != 0) return;
  std::vector<Row>().swap(rows_);
  std::vector<std::uint32_t>().swap(counts_);
}

}  // namespace ashlar::index::detail
