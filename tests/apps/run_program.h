// The program `ashlar` as a person runs it, and something for it to read.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "ashlar/feed/feed_source.h"
#include "support/scratch_folder.h"

namespace ashlar {

struct Ended {
  int status = -1;
  std::string output;  // both streams
};

inline Ended run(const std::string& arguments) {
  static const ScratchFolder state;  // nothing is written below anybody's home
  setenv("XDG_STATE_HOME", state.path().c_str(), 1);
  Ended ended;
  FILE* pipe = popen((std::string("'") + ASHLAR_PROGRAM + "' " + arguments + " 2>&1").c_str(), "r");
  std::array<char, 4096> some{};
  while (std::size_t n = std::fread(some.data(), 1, some.size(), pipe)) ended.output.append(some.data(), n);
  const int status = pclose(pipe);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

inline std::string recording(const std::string& name) {
  return std::string("kvrec:") + ASHLAR_TEST_DATA + "/vllm/" + name + ".kvrec";
}

inline bool says(const Ended& ended, const std::string& text) {
  return ended.output.find(text) != std::string::npos;
}

// A stream of a block in each of two places.
inline bool write_two_places(const std::string& path, const std::string& one, const std::string& other) {
  auto sink = feed::FileSink::create({.path = path}).value();
  events::OwnedBatch batch;
  batch.head.stream = {{events::WorkerId(1), 0}, 1};
  batch.locations = {{1, one}, {2, other}};
  for (std::uint64_t i = 0; i < 2; ++i) {
    events::KvEvent event;
    event.hash = tokens::SequenceHash::root(i + 1);
    event.tier = events::kTierId<events::G4>;
    event.location = static_cast<std::uint16_t>(i + 1);
    event.bytes = 1 << 22;
    batch.events.push_back(event);
  }
  return sink->publish(batch.view()).has_value();
}

}  // namespace ashlar
