// TraceSource: the requests of a workload one by one, out of a file of any known form or a generator.
//
//   form       files                                        reuse    tokens per block
//   mooncake   JSONL; AIPerf's and Dynamo's further fields;
//              what `ashlar serve --record` writes          yes      512, or as the lengths show
//   bailian    JSONL of Qwen-Bailian                        yes      16
//   weka       agent sessions, a JSON object each: a file,
//              lines of a file, or the files of a folder    yes      as the session says
//   azure      CSV                                          none     -
//   burstgpt   CSV                                          none     -
//   journal    what `ashlar serve --journal` writes         yes      as written
//
// A block's name stands for the block with everything before it: equal names are equal prefixes. Lines are
// read as they are needed, and only the requests of one session or journal are held at a time.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes); memory: the longest line, and an entry per session where the form needs one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar::replay {

enum class TraceFormat : std::uint8_t {
  kDetect,  // by the first bytes
  kMooncake,
  kBailian,
  kWeka,
  kAzure,
  kBurstGpt,
  kJournal,
  kGenerated,  // no file
};
// "detect", "mooncake", "bailian", "weka", "azure", "burstgpt", "journal", "generated".
std::string_view to_string(TraceFormat format) noexcept;
// Errors: kInvalidArgument, with the names; kGenerated is none of them.
Result<TraceFormat> parse_trace_format(std::string_view name);
// What parse_trace_format() takes.
std::vector<std::string> trace_format_names();

struct TraceRequest {
  std::uint64_t arrival_ms = 0;  // by the clock of the trace, which need not begin at 0
  std::uint64_t session = 0;     // 0: none
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::uint64_t delay_ms = 0;    // between the answer before in its session and this request; 0: not said
  std::uint32_t block_size = 0;  // tokens; 0: a form without blocks
  std::vector<std::uint64_t> blocks = {};  // of the prompt, in order; the last may be part-filled

  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

struct TraceOptions {
  TraceFormat format = TraceFormat::kDetect;
  std::uint32_t block_size = 0;  // tokens; 0: as the trace shows
  // Lines that cannot be read are skipped and counted.
  bool is_lenient = false;
  // Weka sessions have clocks of their own: the k-th begins this many milliseconds after the one before.
  std::uint64_t session_interval_ms = 1'000;
  std::string journal_key = {};  // file; empty: `key` beside the journal
};

// What is known of a trace so far; complete when next() has returned false.
struct TraceFacts {
  TraceFormat format = TraceFormat::kDetect;
  std::uint32_t block_size = 0;  // tokens; 0: no blocks
  bool has_reuse = true;         // the form names blocks
  std::uint64_t requests = 0;
  std::uint64_t without_blocks = 0;    // requests that name none, in a form that could
  std::uint64_t other_size = 0;        // requests whose blocks are of another size, and were left out
  std::uint64_t contradicting = 0;     // requests with more or fewer blocks than their length has
  std::uint64_t from_text = 0;         // requests whose tokens were estimated, from text at 4 bytes per token
  std::uint64_t skipped_lines = 0;     // is_lenient
  std::string first_skipped = {};      // why, and where
  std::uint64_t unfinished_bytes = 0;  // of a journal's last record
};

class TraceSource {
 public:
  virtual ~TraceSource() = default;
  // Fills `out`, whose memory is reused. False: there are no more.
  // Errors: kCorruption, with file, line and what was expected; kIo. Nothing comes after an error.
  virtual Result<bool> next(TraceRequest& out) = 0;
  virtual const TraceFacts& facts() const noexcept = 0;
};

// Opens a file, "-" for standard input, or a folder (of a journal, or of Weka sessions).
// Errors: kNotFound; kInvalidArgument: a form that is not recognised, or one without requests; kCorruption.
Result<std::unique_ptr<TraceSource>> open_trace(const std::string& path, const TraceOptions& options = {});

}  // namespace ashlar::replay
