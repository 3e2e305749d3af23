// IndexCase: one structure, set up one way, as the suites over all indexes see it.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "ashlar/index/indexer.h"
#include "ashlar/index/make_index.h"

namespace ashlar::index::conformance {

struct IndexCase {
  std::string name;                                 // of letters and digits
  std::function<std::unique_ptr<AnyIndex>()> make;  // empty, each time alike
  MidChainRemoval mid_chain = MidChainRemoval::kRetain;
  // Verdicts and numbers of removed names come back from the call. Otherwise only counters() has them, after
  // settle().
  bool answers_at_once = true;
};

// A case whose index is made from these arguments by its constructor or by create(), each time from copies.
template <Indexer T, class... Args>
IndexCase index_case(std::string name, Args... args) {
  const auto make = [name, args...]() -> std::unique_ptr<AnyIndex> {
    if constexpr (std::constructible_from<T, Args...>) {
      return std::make_unique<IndexOf<T>>(name, args...);
    } else {
      return std::make_unique<IndexOf<T>>(name, T::create(args...).value());
    }
  };
  return {name, make};
}

inline IndexCase with(IndexCase one, MidChainRemoval mid_chain) {
  one.mid_chain = mid_chain;
  return one;
}

inline IndexCase answering_later(IndexCase one) {
  one.answers_at_once = false;
  return one;
}

inline std::ostream& operator<<(std::ostream& out, const IndexCase& one) {
  return out << one.name;
}

}  // namespace ashlar::index::conformance
