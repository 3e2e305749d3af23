#include "index/concurrent/history.h"

#include <algorithm>
#include <numeric>

#include "ashlar/base/check.h"

namespace ashlar::index::concurrent {

History::History(const Paths& paths, std::span<const Worker> workers)
    : paths_(paths),
      workers_(workers.begin(), workers.end()),
      spells_(workers.size() * paths.contents() * kStorageTiers) {
  for (std::size_t i = 0; i < workers_.size(); ++i) numbers_.emplace(workers_[i], i);
}

void History::add(const Span& call, std::span<const Change> changes) {
  for (const Change& change : changes) {
    std::vector<Spell>& all = spells(change.worker, change.content, change.tier);
    if (change.held) {
      all.push_back({call});
    } else {
      ASHLAR_CHECK(!all.empty() && all.back().end.before == kOpen, "a presence ends that has not begun");
      all.back().end = call;
    }
  }
}

bool History::possible(std::size_t worker, Content content, StorageTier tier, const Span& when) {
  // Spells come in order: the first that can reach the query is the only one to look at.
  const std::vector<Spell>& all = spells(worker, content, tier);
  const auto first =
      std::ranges::lower_bound(all, when.before, {}, [](const Spell& s) { return s.end.after; });
  return first != all.end() && first->begin.before < when.after;
}

bool History::possible(std::size_t worker, Content content, const Span& when) {
  return std::ranges::any_of(kAllStorageTiers,
                             [&](StorageTier tier) { return possible(worker, content, tier, when); });
}

Stamp History::covered(std::size_t worker, Content content, StorageTier tier, Stamp from) {
  const std::vector<Spell>& all = spells(worker, content, tier);
  const auto first = std::ranges::upper_bound(all, from, {}, [](const Spell& s) { return s.end.before; });
  return first != all.end() && first->begin.after <= from ? first->end.before : from;
}

bool History::certain(std::size_t worker, Content content, StorageTier tier, const Span& when) {
  return covered(worker, content, tier, when.before) > when.after;
}

bool History::certain(std::size_t worker, Content content, const Span& when) {
  Stamp reached = when.before;
  while (reached <= when.after) {
    Stamp next = reached;
    for (const StorageTier tier : kAllStorageTiers)
      next = std::max(next, covered(worker, content, tier, reached));
    if (next == reached) return false;
    reached = next;
  }
  return true;
}

std::string History::check(const Answer& answer) {
  std::vector<Score> scores(workers_.size());
  std::vector<bool> told(workers_.size());
  std::uint32_t longest = 0;
  for (const auto& [worker, score] : answer.scores) {
    const auto number = numbers_.find(worker);
    if (number == numbers_.end()) return "an answer names a worker that never was";
    if (told[number->second]) return "an answer names a worker twice";
    told[number->second] = true;
    scores[number->second] = score;
    longest = std::max(longest, score.depth);
  }
  if (!answer.exact && !answer.early_exit) return "an answer is not exact without early_exit";
  for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
    std::string problem = check_worker(worker, scores[worker], answer, longest);
    if (!problem.empty()) return problem;
  }
  return {};
}

std::string History::check_worker(std::size_t worker, const Score& score, const Answer& answer,
                                  std::uint32_t longest) {
  const Path& query = paths_.queries()[answer.query];
  const Span& when = answer.when;
  const auto wrong = [&](std::size_t position, const char* what) {
    return describe(worker, answer, position, what, score);
  };
  if (score.depth > query.size()) return wrong(query.size(), "the depth is greater than the query");
  if (score.device_depth > score.depth)
    return wrong(score.depth, "the device depth is greater than the depth");
  if (std::accumulate(score.blocks.begin(), score.blocks.end(), std::uint32_t{0}) != score.depth)
    return wrong(score.depth, "the blocks of the tiers do not add up to the depth");

  std::array<std::uint32_t, kStorageTiers> most{};
  for (std::size_t i = 0; i < score.depth; ++i) {
    const Content content = query.contents[i];
    if (content == kNever || !possible(worker, content, when))
      return wrong(i, "a block is counted that was not held");
    if (i < score.device_depth && !possible(worker, content, StorageTier::kDevice, when))
      return wrong(i, "a block is counted in the device that was not there");
    for (const StorageTier tier : kAllStorageTiers)
      if (possible(worker, content, tier, when)) ++most[static_cast<std::size_t>(tier)];
  }
  for (std::size_t tier = 0; tier < kStorageTiers; ++tier)
    if (score.blocks[tier] > most[tier])
      return wrong(score.depth, "more blocks are counted in a tier than were there");

  // Where early_exit ended the walk nobody is counted further.
  const std::size_t end = answer.exact ? query.size() : longest;
  std::size_t depth = 0;
  while (depth < end && query.contents[depth] != kNever && certain(worker, query.contents[depth], when))
    ++depth;
  std::size_t device = 0;
  while (device < depth && certain(worker, query.contents[device], StorageTier::kDevice, when)) ++device;
  required_ += depth;
  if (score.depth < depth) return wrong(score.depth, "a block that was held throughout is not counted");
  if (score.device_depth < device)
    return wrong(score.device_depth, "a block in the device throughout is not counted");
  return {};
}

std::string History::describe(std::size_t worker, const Answer& answer, std::size_t position,
                              const char* what, const Score& score) {
  const auto stamp = [](Stamp s) { return s == kOpen ? std::string("...") : std::to_string(s); };
  const auto span = [&](const Span& s) { return "[" + stamp(s.before) + ", " + stamp(s.after) + "]"; };
  const Path& query = paths_.queries()[answer.query];
  std::string text = std::string(what) + ": worker " + std::to_string(workers_[worker].id.value()) + "." +
                     std::to_string(workers_[worker].rank) + ", query " + std::to_string(answer.query) +
                     " of " + std::to_string(query.size()) + " blocks at " + span(answer.when) +
                     (answer.early_exit ? ", early exit" : "") + ", position " + std::to_string(position) +
                     "; told depth " + std::to_string(score.depth) + ", device " +
                     std::to_string(score.device_depth);
  if (position >= query.size() || query.contents[position] == kNever) return text;
  for (const StorageTier tier : kAllStorageTiers) {
    for (const Spell& s : spells(worker, query.contents[position], tier)) {
      if (s.end.after < answer.when.before || s.begin.before > answer.when.after) continue;
      text += "\n  in " + std::string(to_string(tier)) + " from " + span(s.begin) + " to " + span(s.end);
    }
  }
  return text;
}

}  // namespace ashlar::index::concurrent
