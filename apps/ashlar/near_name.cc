// Distances between words: optimal string alignment, three rows of the table at a time.
#include "apps/ashlar/near_name.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace ashlar::apps {
namespace {

std::size_t changes_between(std::string_view one, std::string_view other) {
  std::vector<std::size_t> before(other.size() + 1);
  std::vector<std::size_t> last(other.size() + 1);
  std::vector<std::size_t> row(other.size() + 1);
  for (std::size_t j = 0; j <= other.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= one.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= other.size(); ++j) {
      const bool same = one[i - 1] == other[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[other.size()];
}

}  // namespace

std::string near_name(std::string_view word, std::span<const std::string> candidates) {
  constexpr std::size_t kLongest = 64;  // nobody mistypes more
  constexpr std::size_t kShortestBeginning = 3;
  std::string best;
  std::size_t fewest = std::max<std::size_t>(word.size() / 3, 1) + 1;
  if (word.empty() || word.size() > kLongest) return best;
  for (const std::string& candidate : candidates) {
    const std::size_t changes = word.size() >= kShortestBeginning && candidate.starts_with(word)
                                    ? 1
                                    : changes_between(word, candidate);
    if (changes < fewest) {
      fewest = changes;
      best = candidate;
    }
  }
  return best;
}

}  // namespace ashlar::apps
