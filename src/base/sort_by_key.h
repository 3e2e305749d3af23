// sort_by_key: a stable sort by keys that are read once. std::ranges::sort reads a projection again and
// again, and leaves the range where two reads of one element differ, as those of counters of other threads.
//
// Thread safety: free function.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

namespace ashlar {

// Calls key(element) once for each.
template <class T, class Key>
void sort_by_key(std::vector<T>& elements, Key&& key) {
  std::vector<std::decay_t<std::invoke_result_t<Key&, const T&>>> keys;
  keys.reserve(elements.size());
  for (const T& element : elements) keys.push_back(std::invoke(key, element));
  std::vector<std::size_t> order(elements.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&keys](std::size_t a, std::size_t b) {
    return keys[a] < keys[b] || (!(keys[b] < keys[a]) && a < b);
  });
  std::vector<T> sorted;
  sorted.reserve(elements.size());
  for (const std::size_t at : order) sorted.push_back(std::move(elements[at]));
  elements = std::move(sorted);
}

}  // namespace ashlar
