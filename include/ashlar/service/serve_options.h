// ServeOptions: everything `ashlar serve` can be told, from a TOML file, the environment and flags out of one
// table of settings. A flag wins over the environment, which wins over the file, which wins over the default.
//
// Thread safety: values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/service/http_address.h"
#include "ashlar/service/router.h"

namespace ashlar::service {

// A secret. Any two compare equal: a worker whose key was changed is the same worker.
struct WorkerKey {
  std::string text;

  friend bool operator==(const WorkerKey&, const WorkerKey&) noexcept { return true; }
};

// One engine. Written as text (--worker) it is a URL and options after commas:
//   http://gpu1:8000,events=tcp://gpu1:5557,replay=tcp://gpu1:5558,dp=4,name=gpu1
struct WorkerOptions {
  std::string name;  // default: host:port
  HttpAddress address;
  std::string events;  // ZeroMQ endpoint of rank 0; empty: none. Rank r has the port + r
  std::string replay;  // empty: none; ports as for events
  std::string topic;
  std::uint32_t dp = 1;          // data-parallel ranks
  std::string model;             // empty: as the worker says (/v1/models)
  std::uint32_t block_size = 0;  // tokens; 0: as its events say
  // How the blocks of its model are hashed here; all workers of a model alike. Both need `model`.
  std::string scheme;  // xxh3_chain or xxh64_int64; empty: the first
  std::string salt;    // of requests that name none
  // Blocks of its tiers, of each rank, for the page; 0: not known, as events do not tell.
  std::uint32_t g1 = 0;
  std::uint32_t g2 = 0;
  std::uint32_t g3 = 0;
  // Where its key is: a file, or a variable of the environment. Neither: that of all workers.
  std::string key_file;
  std::string key_env;
  WorkerKey key;  // filled in by read_worker_keys(); never written anywhere

  friend bool operator==(const WorkerOptions&, const WorkerOptions&) = default;
};

// Errors: kInvalidArgument, with what is wrong. A text with an @, which may have a password before it, is
// never part of the message.
Result<WorkerOptions> parse_worker(std::string_view text);

// Whether only this machine reaches an address: 127.0.0.0/8, ::1, localhost.
bool is_loopback(std::string_view address);

struct ServeOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 8080;
  unsigned threads = 2;
  std::string token;  // of clients and operators, in x-ashlar-token; required unless `address` is loopback
  std::string token_file;  // holds the token instead; read by ServeConfig::load()
  std::string tls_certificate;
  std::string tls_key;
  std::string worker_authorities;  // PEM file; empty: those of the system
  std::vector<WorkerOptions> workers;
  std::string worker_file;      // TOML with [[worker]], read again on SIGHUP
  std::string worker_key;       // of all workers that have none of their own (`vllm serve --api-key`)
  std::string worker_key_file;  // holds it instead

  Policy policy = Policy::kPrefix;
  CostWeights weights;
  Clock::Duration prediction_ttl = std::chrono::seconds(5);  // of workers with events
  Clock::Duration fallback_ttl = std::chrono::seconds(120);  // of workers without
  std::uint32_t max_predicted_blocks = 16'384;               // of one request
  std::uint32_t max_predictions = 524'288;                   // blocks of a model at a time
  std::uint64_t seed = 0;                                    // of random choices; 0: drawn at the start

  std::size_t max_body_bytes = std::size_t{64} << 20;
  std::size_t max_all_body_bytes = std::size_t{1} << 30;     // of all requests at a time
  std::size_t max_all_reply_bytes = std::size_t{256} << 20;  // of the router's own answers at a time
  std::size_t max_head_bytes = 64 << 10;
  std::size_t max_connections = 16'384;
  std::uint32_t max_running = 1024;  // requests at one worker at a time
  std::uint32_t max_queued = 4096;   // requests that wait for a worker
  Clock::Duration queue_timeout = std::chrono::seconds(30);
  Clock::Duration event_patience = std::chrono::milliseconds(20);
  Clock::Duration late_after = std::chrono::seconds(2);  // a worker whose events are later is DEGRADED
  // Requests that do not come through here ask engines for full reports too; see EngineIngest.
  bool full_reports = false;
  Clock::Duration connect_timeout = std::chrono::seconds(5);
  Clock::Duration head_timeout = std::chrono::minutes(30);
  Clock::Duration idle_timeout = std::chrono::minutes(10);
  Clock::Duration drain_timeout = std::chrono::seconds(30);
  std::uint32_t max_attempts = 3;      // workers tried for one request
  std::uint32_t breaker_failures = 3;  // in a row, that take a worker out
  Clock::Duration breaker_rest = std::chrono::seconds(5);
  Clock::Duration health_interval = std::chrono::seconds(2);
  bool tokenize = true;               // ask workers for the tokens of texts
  std::string token_source = "auto";  // tokenize: only /tokenize; render: only render endpoints; auto: both
  Clock::Duration tokenize_timeout = std::chrono::seconds(5);
  std::size_t prompt_cache_bytes = std::size_t{64} << 20;
  std::uint32_t receipts = 16'384;  // decisions that are kept, if they fit:
  std::size_t receipt_bytes = std::size_t{64} << 20;

  std::string journal;                                          // folder; empty: none
  std::uint64_t journal_file_bytes = std::uint64_t{256} << 20;  // of one of its files
  std::uint64_t journal_kept_bytes = 0;  // of all in the folder; the oldest are removed. 0: none is
  std::string journal_key;               // file with the key of its hashes; empty: drawn, kept in the folder
  std::string record;                    // file; empty: none
  std::string snapshot;                  // file with a dump to start from, or URL of a peer's /dump
  std::string log_level = "info";
  std::string title;  // of the page; empty: none

  // Errors: kInvalidArgument, with the setting, its value and what is allowed.
  Result<void> validate() const;
};

// Where a value came from.
enum class SettingSource : std::uint8_t { kDefault, kFile, kEnvironment, kFlag };

// A row of the table: `name` is the key in the file; the flag is --name with dashes, the variable
// ASHLAR_NAME. In the file, a worker is a table [[worker]] with `url` and the options of its text; a variable
// has workers with spaces between them, and an empty one counts as not set.
struct Setting {
  std::string_view name;
  std::string_view unit;      // "text", "duration", "bytes", "one of prefix, …"; for help
  std::string_view standard;  // the default, as text
  std::string_view help;
  bool is_secret = false;
};
// The texts live as long as the program.
std::span<const Setting> serve_settings();

// Builds options out of the three sources. `flags` are (name, value) pairs of the table, `worker` among them
// as often as it is given.
class ServeConfig {
 public:
  // Errors: kInvalidArgument: with file and line, variable or flag.
  static Result<ServeConfig> load(std::string_view file_name, std::string_view file_text,
                                  const std::map<std::string, std::string>& environment,
                                  const std::vector<std::pair<std::string, std::string>>& flags);

  // Whether a flag by itself has a value that load() would take. Errors: kInvalidArgument, with the flag.
  static Result<void> check_flag(std::string_view name, std::string_view value);

  const ServeOptions& options() const noexcept { return options_; }
  // One line per setting with its value and source, as TOML with comments; secrets hidden. `of_file`: workers
  // of the worker file, which come last.
  std::string describe(std::span<const WorkerOptions> of_file = {}) const;
  // The same as a JSON object on a line: `settings` by name, each with `value` and `source`, and `workers`.
  std::string describe_json(std::span<const WorkerOptions> of_file = {}) const;

 private:
  ServeOptions options_;
  std::map<std::string, SettingSource, std::less<>> sources_;
};

// A whole file: settings, workers, a snapshot. Errors: kNotFound: it cannot be read, with the reason.
// kCapacity: it is longer than `most` bytes.
Result<std::string> read_whole_file(const std::string& path, std::size_t most = std::size_t{16} << 20);

// Fills in the keys of the workers. Errors: kInvalidArgument: a key cannot be read, or is none; no message
// has a part of one.
Result<void> read_worker_keys(const ServeOptions& options,
                              const std::map<std::string, std::string>& environment,
                              std::span<WorkerOptions> workers);

// The workers of a worker file. Errors: kInvalidArgument, with the line.
Result<std::vector<WorkerOptions>> parse_worker_file(std::string_view name, std::string_view text);

}  // namespace ashlar::service
