// UcxPerftest: runs ucx_perftest, server and client, with the transports and segments of UcxTransport.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ashlar::bench {

struct PerftestResult {
  double microseconds = 0;  // median of one message
  double gigabytes_per_second = 0;
};

class UcxPerftest {
 public:
  UcxPerftest(std::string transports, std::uint32_t segment_bytes);

  // Whether the program is installed.
  static bool present();
  // `test` is one of its tests. Empty, with a line on stderr, when it failed.
  std::optional<PerftestResult> run(const std::string& test, std::uint64_t bytes, std::uint64_t messages,
                                    std::uint32_t window) const;

 private:
  std::string transports_;
  std::string segment_;
};

}  // namespace ashlar::bench
