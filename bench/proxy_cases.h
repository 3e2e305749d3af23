// The loads of proxy_bench: what they are called, and their requests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "http_load.h"

namespace ashlar::bench {

struct Case {
  std::string name;
  bool is_chat = true;
  std::size_t body = 2048;
  std::size_t connections = 1;
  double rate = 0;
  bool is_stream = false;
  bool is_new = false;
  enum class Events : std::uint8_t { kNone, kSiblings, kFollowUps } events = Events::kNone;
  bool is_saturated() const { return connections > 1 && rate == 0; }
  // Prompts that were never seen, whose tokens ours asks a worker for first. Where everything is busy that
  // question says nothing by itself.
  bool asks_first() const { return (is_new || events == Events::kSiblings) && !is_saturated(); }
};

std::vector<Case> all_cases();
// Bodies of about that many bytes, most of them prompt.
RequestSet requests_of(const Case& one, int max_tokens = 16);
// What ours asks a worker before it can choose. Requires: asks_first().
RequestSet questions_of(const Case& one);

}  // namespace ashlar::bench
