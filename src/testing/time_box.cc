#include "ashlar/testing/time_box.h"

#include <cstdlib>

namespace ashlar::testing {

namespace {

// Of a loop's own default, in a run of all tests. `make test-long` gives every loop its time.
constexpr double kShare = 0.25;

}  // namespace

TimeBox::TimeBox(double default_seconds) : seconds_(default_seconds * kShare) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing sets it
  if (const char* given = std::getenv("ASHLAR_TEST_SECONDS"); given != nullptr) {
    char* end = nullptr;
    const double parsed = std::strtod(given, &end);
    if (end != given && parsed >= 0) seconds_ = parsed;
  }
  end_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                std::chrono::duration<double>(seconds_));
}

}  // namespace ashlar::testing
