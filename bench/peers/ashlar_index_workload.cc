// Writes an index workload (index_workload.md) that the peer programs read.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "index_workload.h"

namespace {

constexpr const char* kUsage =
    "usage: ashlar_index_workload --load shared25|disjoint|broad -o FILE [--sequences N] [--added N] "
    "[--workers N]";

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "ashlar_index_workload: %s\n", message.c_str());
  std::exit(2);
}

std::uint32_t number(std::string_view option, const std::string& text) {
  std::size_t read = 0;
  unsigned long value = 0;
  if (!text.empty() && text[0] >= '0' && text[0] <= '9') value = std::stoul(text, &read);
  if (read == 0 || read != text.size() || value > 1'000'000) {
    fail(std::string(option) + " takes a number up to 1000000, not " + text);
  }
  return static_cast<std::uint32_t>(value);
}

}  // namespace

int main(int argc, char** argv) {
  using ashlar::bench::IndexLoad;
  std::string path;
  auto load = IndexLoad::named("shared25");
  std::uint32_t sequences = load->sequences, workers = load->workers;
  long added = -1;  // half of the sequences
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    if (i + 1 == argc) fail(std::string(option) + " needs a value\n" + kUsage);
    const std::string value = argv[i + 1];
    if (option == "--load") {
      load = IndexLoad::named(value);
      if (!load) fail(load.error().to_string());
    } else if (option == "--sequences") {
      sequences = number(option, value);
    } else if (option == "--added") {
      added = number(option, value);
    } else if (option == "--workers") {
      workers = number(option, value);
    } else if (option == "-o") {
      path = value;
    } else {
      fail("unknown option " + std::string(option) + "\n" + kUsage);
    }
  }
  if (path.empty()) fail(std::string("-o is missing\n") + kUsage);
  if (sequences < 2 || workers < 1) fail("a workload needs two sequences and one worker");
  load->sequences = sequences;
  load->added = added < 0 ? sequences / 2 : static_cast<std::uint32_t>(added);
  load->workers = workers;
  if (auto written = ashlar::bench::IndexWorkload::generate(*load).write(path); !written) {
    fail(written.error().to_string());
  }
  return 0;
}
