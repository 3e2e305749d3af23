// ashlar relay: publishes the events of one feed on others.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/feed_address.h"
#include "apps/ashlar/feed_kinds.h"
#include "apps/ashlar/feed_report.h"
#include "apps/ashlar/incarnation.h"
#include "apps/ashlar/key_file.h"
#include "apps/ashlar/stop_signal.h"
#include "ashlar/base/mutex.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/stream_relay.h"
#include "service/gateway/json_text.h"

namespace ashlar::apps {
namespace {

constexpr std::size_t kRefusedSaid = 8;  // refused streams named in messages

struct RelaySettings {
  std::string from;
  std::vector<std::string> to;
  std::uint64_t worker = 1;
  std::string scheme = "xxh3_chain";
  std::string key_file;
  std::uint32_t block_size = 0;
  std::string profile = "router";
  std::uint64_t incarnation = 0;
  std::string incarnation_file;
  std::uint32_t ranks = 64;
  std::size_t workers = 1024;
  double status_every = 10;
  std::size_t memory_mib = 256;
  bool json = false;
};

Result<tokens::HashScheme> scheme_of(const RelaySettings& settings) {
  if (settings.key_file.empty()) return tokens::HashScheme::by_name(settings.scheme, {});
  ASHLAR_TRY(const std::vector<std::uint8_t> key, read_key_file(settings.key_file));
  return tokens::HashScheme::by_name(settings.scheme, key);
}

// Also for files that do not exist yet.
bool is_same_path(const FeedAddress& one, const FeedAddress& other) {
  if (one.kind() != "file" || other.kind() != "file") return false;
  std::error_code none;
  const auto path = std::filesystem::weakly_canonical(one.place(), none);
  return !path.empty() && path == std::filesystem::weakly_canonical(other.place(), none);
}

// The incarnation number. A clock that was set back does not lower it.
std::uint64_t incarnation_of(const RelaySettings& settings) {
  if (settings.incarnation != 0) return settings.incarnation;
  const auto now = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                                  std::chrono::system_clock::now().time_since_epoch())
                                                  .count());
  const std::optional<std::string> file =
      settings.incarnation_file.empty() ? incarnation_file() : std::optional(settings.incarnation_file);
  const Result<std::uint64_t> next =
      file
          ? next_incarnation(*file, now)
          : Result<std::uint64_t>(make_error(ErrorCode::kNotFound, "neither XDG_STATE_HOME nor HOME is set"));
  if (next) return *next;
  say("ashlar relay: warning: the incarnation is the current time, and receivers drop it if the clock was "
      "set "
      "back since the last start: " +
      next.error().message() + " (--incarnation-file, --incarnation)");
  return now;
}

// A sink shared by the streams of several workers.
class SharedSink final : public events::BatchSink {
 public:
  explicit SharedSink(std::shared_ptr<events::BatchSink> sink) : sink_(std::move(sink)) {}
  Result<void> publish(const events::EventBatch& batch) override {
    const MutexLock lock(mu_);
    return sink_->publish(batch);
  }
  std::string describe() const override { return sink_->describe(); }

 private:
  Mutex mu_;
  const std::shared_ptr<events::BatchSink> sink_;
};

class Relaying {
 public:
  explicit Relaying(const RelaySettings& settings) : settings_(settings) {}

  int run() {
    const Result<tokens::HashScheme> scheme = scheme_of(settings_);
    if (!scheme) return fail(scheme.error());
    for (const std::string& address : settings_.to)
      if (const Result<void> good = check_target(address); !good) return fail(good.error());
    if (const Result<void> good = check_targets_differ(); !good) return fail(good.error());
    feed::StreamRelay::Options options;
    options.profile =
        settings_.profile == "coarse" ? events::BatchProfile::coarse() : events::BatchProfile::router();
    options.keys = {.scheme = scheme->fingerprint(), .name_space = {}, .block_size = settings_.block_size};
    options.incarnation = incarnation_of(settings_);
    options.max_workers = settings_.workers;
    options.ranks = settings_.ranks;
    options.sinks = [this](const events::StreamId& stream, events::SnapshotSource& state)
        -> Result<std::vector<std::shared_ptr<events::BatchSink>>, feed::StreamRelay::SinkFailure> {
      std::vector<std::shared_ptr<events::BatchSink>> sinks;
      for (const std::string& address : settings_.to) {
        if (const auto known = files_.find(address); known != files_.end()) {
          sinks.push_back(known->second);
          continue;
        }
        auto sink = kinds_.open_sink(address, stream, state);
        if (!sink) {
          const bool is_of_stream = kinds_.is_of_stream(address, sink.error());
          if (is_of_stream) say_refused(stream.worker, sink.error());
          return feed::StreamRelay::SinkFailure{sink.error(), is_of_stream};
        }
        sinks.push_back(*std::move(sink));
        if (address.starts_with("file:"))
          files_[address] = sinks.back() = std::make_shared<SharedSink>(std::move(sinks.back()));
      }
      return sinks;
    };
    Result<OpenedSource> opened = kinds_.open_source(settings_.from);
    if (!opened) return fail(opened.error());
    feed::StreamRelay relay(std::move(options));
    const Result<void> done = opened->engine != nullptr
                                  ? follow_engine(relay, std::move(opened->engine), *scheme)
                                  : follow_stream(relay, *opened->stream);
    if (!done) return fail(done.error());
    if (const Result<void> flushed = relay.flush(Clock::real().now() + std::chrono::seconds(10)); !flushed)
      return fail(flushed.error());
    if (!settings_.json) {
      tell(relay);
    } else {
      std::puts(final_json(relay).c_str());
      flush_output();  // before what standard error says of it
    }
    if (is_complete(relay)) return kExitDone;
    say("ashlar relay: not everything that came was relayed");
    return kExitIncomplete;
  }

 private:
  bool is_complete(const feed::StreamRelay& relay) const {
    return !report_.is_incomplete && relay.refused().empty() && relay.left_out().all() == 0;
  }
  std::string final_json(const feed::StreamRelay& relay) const {
    service::JsonText out;
    out.object([&] {
      out.field("relayed", relay.relayed());
      out.field("complete", is_complete(relay));
      out.field("not_relayed", relay.left_out().all());
      if (const std::string& last = relay.left_out().last; !last.empty())
        out.field("not_relayed_reason", without_secrets(last));
      out.field("source", [&] {
        out.object([&] {
          for (const auto& [key, count] : report_.counts) out.field(key, count);
          if (!report_.reason.empty()) out.field("reason", without_secrets(report_.reason));
        });
      });
      out.field("refused_streams", [&] {
        out.array([&] {
          for (const auto& [worker, error] : relay.refused())
            out.object([&] {
              out.field("worker", worker.id.value());
              out.field("rank", worker.rank);
              out.field("error", without_secrets(error.message()));
            });
        });
      });
    });
    return out.take();
  }

  Result<void> check_target(const std::string& address) const {
    ASHLAR_RETURN_IF_ERROR(kinds_.check_sink(address));
    ASHLAR_TRY(const FeedAddress from, FeedAddress::parse(settings_.from));
    if (kinds_.is_same_place(from, *FeedAddress::parse(address)))
      return make_error(ErrorCode::kInvalidArgument,
                        "%s is read and written; relayed events would come back forever",
                        from.shown().c_str());
    return {};
  }

  Result<void> check_targets_differ() const {
    for (std::size_t i = 0; i < settings_.to.size(); ++i) {
      const FeedAddress one = FeedAddress::parse(settings_.to[i]).value();
      for (std::size_t j = 0; j < i; ++j)
        if (const FeedAddress other = FeedAddress::parse(settings_.to[j]).value();
            (kinds_.is_same_place(one, other) && one.text("replay") == other.text("replay")) ||
            is_same_path(one, other))
          return make_error(ErrorCode::kInvalidArgument,
                            "%s is named twice; every event would be written twice", one.shown().c_str());
    }
    return {};
  }

  std::string without_secrets(std::string message) const {
    hide_secrets(message, settings_.from);
    for (const std::string& address : settings_.to) hide_secrets(message, address);
    return message;
  }

  int fail(const Error& error) const {
    say("ashlar relay: " + without_secrets(error.message()));
    // Being told to end while waiting is success.
    return error.code() == ErrorCode::kCancelled && StopSignal::received() ? kExitDone : kExitFailed;
  }

  // True when a status line is due.
  bool is_time() {
    if (settings_.status_every <= 0) return false;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return false;
    next_ = now + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                      std::chrono::duration<double>(settings_.status_every));
    return true;
  }
  void tell(const feed::StreamRelay& relay) const {
    std::string text = "relayed " + std::to_string(relay.relayed()) + " events; " + report_.text;
    for (const events::EventCounters& stream : relay.counters())
      for (const events::SinkCounters& sink : stream.sinks)
        if (!sink.last_error.empty() && sink.waiting != 0)
          text += "\n  " + std::to_string(sink.waiting) + " events wait for " + sink.sink + ": " +
                  sink.last_error;
    std::size_t said = 0;
    for (const auto& [worker, error] : relay.refused()) {
      if (said++ == kRefusedSaid) {
        text += "\n  and " + std::to_string(relay.refused().size() - kRefusedSaid) + " more are not relayed";
        break;
      }
      text += "\n  " + refusal(worker, error);
    }
    const feed::StreamRelay::LeftOut& left_out = relay.left_out();
    if (left_out.all() != 0)
      text += "\n  " + std::to_string(left_out.all()) + " events are not relayed" +
              (left_out.last.empty() ? "" : ": " + left_out.last + " (--ranks, --workers)");
    say(without_secrets(std::move(text)));
  }

  static std::string refusal(const events::Worker& worker, const Error& error) {
    return "worker " + std::to_string(worker.id.value()) + ", rank " + std::to_string(worker.rank) +
           " is not relayed: " + error.message();
  }
  // At once, even without --status-every.
  void say_refused(const events::Worker& worker, const Error& error) {
    if (++refusals_ <= kRefusedSaid) say(without_secrets("ashlar relay: warning: " + refusal(worker, error)));
  }

  Result<void> follow_engine(feed::StreamRelay& relay, std::unique_ptr<feed::EngineSource> source,
                             const tokens::HashScheme& scheme) {
    feed::EngineSessionOptions options;
    options.ingest.worker = events::WorkerId(settings_.worker);
    options.ingest.scheme = scheme;
    options.ingest.block_size = settings_.block_size;
    for (std::uint32_t rank = 0; rank < settings_.ranks; ++rank) options.ingest.ranks.push_back(rank);
    options.ingest.max_waiting_bytes = settings_.memory_mib << 20;
    ASHLAR_TRY(feed::EngineSession session, feed::EngineSession::create(std::move(source), options));
    std::vector<events::KvEvent> events;
    while (!StopSignal::received()) {
      events.clear();
      const Result<std::size_t> stepped = session.step(std::chrono::milliseconds(200), events);
      hand_on(relay, events);
      report_ = report_of(session);
      ASHLAR_RETURN_IF_ERROR(relay.status());
      if (!stepped && stepped.error().code() == ErrorCode::kUnavailable)
        report_.text += "; " + stepped.error().message();
      if (is_time()) tell(relay);
      if (stepped || stepped.error().code() == ErrorCode::kUnavailable) continue;
      if (stepped.error().code() == ErrorCode::kNotFound) break;
      return stepped.error();
    }
    return {};
  }

  // An engine has a stream for each of its ranks. Sliding-window groups of layers are not prefixes of a
  // sequence.
  void hand_on(feed::StreamRelay& relay, std::vector<events::KvEvent>& events) const {
    std::map<std::uint32_t, std::vector<events::KvEvent>> by_rank;
    for (events::KvEvent& event : events) {
      if (!feed::EngineIngest::for_index(event)) continue;
      const std::uint32_t rank = feed::EngineIngest::rank_of(event);
      event.metadata = 0;
      by_rank[rank].push_back(event);
    }
    for (const auto& [rank, its] : by_rank) relay.relay({events::WorkerId(settings_.worker), rank}, its);
  }

  Result<void> follow_stream(feed::StreamRelay& relay, feed::FeedSource& source) {
    feed::StreamReceiver receiver(
        source, relay,
        {.max_waiting_bytes = settings_.memory_mib << 20,
         .is_own = [&relay](const events::StreamId& stream) { return relay.publishes(stream); }});
    while (!StopSignal::received()) {
      const Result<std::size_t> came = receiver.poll(std::chrono::milliseconds(200));
      report_ = report_of(receiver, source);
      ASHLAR_RETURN_IF_ERROR(relay.status());
      if (!came && came.error().code() == ErrorCode::kUnavailable)
        report_.text += "; " + came.error().message();
      if (is_time()) tell(relay);
      if (came || came.error().code() == ErrorCode::kUnavailable) continue;
      if (came.error().code() == ErrorCode::kNotFound) break;
      return came.error();
    }
    return {};
  }

  const RelaySettings settings_;
  const FeedKinds kinds_ = FeedKinds::built();
  std::map<std::string, std::shared_ptr<events::BatchSink>> files_;
  std::size_t refusals_ = 0;
  FeedReport report_ = {.text = "nothing came"};
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now();
};

}  // namespace

void add_relay_command(CLI::App& program, Run& run) {
  auto settings = std::make_shared<RelaySettings>();
  CLI::App* command = program.add_subcommand("relay", "read events from one feed and publish them on others");
  command->add_option("--from", settings->from, "feed to read")->required();
  command->add_option("--to", settings->to, "feed to write; several may be given")->required();
  command->add_option("--worker", settings->worker, "worker number of the engine in the published streams")
      ->check(whole_number())
      ->capture_default_str();
  command->add_option("--ranks", settings->ranks, "number of ranks to relay, from rank 0")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  command->add_option("--workers", settings->workers, "most streams to relay, one for each rank of a worker")
      ->check(whole_number(1, 65'536))
      ->capture_default_str();
  command
      ->add_option("--scheme", settings->scheme,
                   "hashes of an engine's blocks: xxh3_chain, xxh64_int64 or keyed128")
      ->capture_default_str();
  command->add_option("--key-file", settings->key_file, "16 bytes, for keyed128");
  command->add_option("--block-size", settings->block_size, "tokens; 0: taken from the engine's first event")
      ->check(whole_number(0, std::numeric_limits<std::uint32_t>::max()))
      ->capture_default_str();
  command->add_option("--profile", settings->profile, "batches: router (milliseconds) or coarse (10 s)")
      ->check(CLI::IsMember({"router", "coarse"}))
      ->capture_default_str();
  command
      ->add_option(
          "--incarnation", settings->incarnation,
          "of the streams, larger at each start; 0: the current time, or more if the last one was later")
      ->check(whole_number());
  command->add_option(
      "--incarnation-file", settings->incarnation_file,
      "file that keeps the last incarnation; default: below XDG_STATE_HOME or ~/.local/state");
  command
      ->add_option("--status-every", settings->status_every,
                   "seconds between status lines on standard error; 0: none")
      ->check(real_number(0, 86400))
      ->capture_default_str();
  command
      ->add_option("--memory", settings->memory_mib,
                   "MiB for waiting events: behind gaps, in unfinished snapshots, without a parent")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--json", settings->json, "the final report as a JSON object on standard output");
  end_help(command,
           {"ashlar relay --from kvrec:engine.kvrec --to file:/tmp/events",
            "ashlar relay --from 'engine://127.0.0.1:5557?replay=127.0.0.1:5558' --to nats://bus:4222"},
           FeedKinds::built().help());
  command->callback([settings, &run] { run = [settings] { return Relaying(*settings).run(); }; });
}

}  // namespace ashlar::apps
