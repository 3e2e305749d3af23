// vllm_check: follows a running vLLM and says how much of a prompt it believes the engine to hold.
//
//   vllm_check ENDPOINT REPLAY_ENDPOINT BLOCK_SIZE
//
// Reads lines from standard input and answers each with one line:
//   query TOKEN TOKEN ...   "depth BLOCKS", after everything that the engine has published was heard
//   counters                "applied N replayed N ..."
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "ashlar/backend/zmq/zmq_engine_source.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/index/make_index.h"
#include "ashlar/tokens/sequence_hasher.h"

namespace ashlar {
namespace {

using namespace std::chrono_literals;
using backend::zmq::SubscriberOptions;
using backend::zmq::ZmqEngineSource;

constexpr events::WorkerId kWorker{1};
// An engine that was silent for so long has said what it had to say of its last step.
constexpr auto kQuiet = 300ms;

class Check {
 public:
  // `source` is the session's.
  Check(std::unique_ptr<ZmqEngineSource> probe, const ZmqEngineSource& source, feed::EngineSession session,
        std::unique_ptr<index::AnyIndex> index, std::uint32_t block_size)
      : probe_(std::move(probe)),
        source_(source),
        session_(std::move(session)),
        index_(std::move(index)),
        feeder_(*index_, kWorker),
        block_size_(block_size) {}

  // Whether something was heard.
  bool step(Clock::Duration timeout) {
    events_.clear();
    const Result<std::size_t> applied = session_.step(timeout, events_);
    feeder_.apply(events_);
    is_away_ = !applied && applied.error().code() == ErrorCode::kUnavailable;
    return applied.value_or(0) > 0;
  }

  // Until the engine is quiet and keeps nothing that was not heard.
  void catch_up() {
    for (int round = 0; round < 100; ++round) {
      while (step(kQuiet)) {
      }
      if (is_away_) continue;  // it is being started
      if (!session_.next()) return;
      const auto unheard = probe_->replay(*session_.next());
      if (unheard && unheard->messages.empty()) return;
    }
  }

  std::uint32_t depth(const std::vector<tokens::Token>& prompt) {
    const tokens::SequenceHasher hasher{tokens::Salt()};
    std::vector<tokens::BlockHashes> hashes(prompt.size() / block_size_);
    if (!hasher.hash_blocks(std::nullopt, prompt, block_size_, hashes)) return 0;
    std::vector<tokens::LocalHash> locals;
    for (const tokens::BlockHashes& hash : hashes) locals.push_back(hash.local);
    index::MatchScores scores;
    index_->find_matches(locals, scores);
    return scores.of({kWorker, 0}).value_or(index::Score{}).depth;
  }

  std::string counters() const {
    const feed::EngineSessionCounters& session = session_.counters();
    const feed::EngineIngestCounters& ingest = session_.ingest().counters();
    std::ostringstream out;
    out << "applied " << session.applied << " replayed " << session.replayed << " lost " << session.lost
        << " undecodable " << session.undecodable << " gaps " << session.gaps << " resyncs "
        << session.resyncs << " restarts " << session.restarts << " stored " << ingest.stored << " removed "
        << ingest.removed << " clears " << ingest.clears << " collisions " << ingest.collisions
        << " unknown_removals " << ingest.unknown_removals << " refused " << feeder_.counters().refused()
        << " damaged " << source_.damaged() << " source_replays " << source_.stats().replays << " connects "
        << source_.stats().connects;
    return out.str();
  }

 private:
  std::unique_ptr<ZmqEngineSource> probe_;
  const ZmqEngineSource& source_;
  feed::EngineSession session_;
  std::unique_ptr<index::AnyIndex> index_;
  feed::IndexFeeder feeder_;
  const std::uint32_t block_size_;
  std::vector<events::KvEvent> events_;
  bool is_away_ = false;
};

template <class T>
T value_of(Result<T> result) {
  if (!result) {
    std::cerr << "vllm_check: " << result.error().to_string() << "\n";
    std::exit(1);  // NOLINT(concurrency-mt-unsafe): one thread
  }
  return std::move(*result);
}

std::string answer(Check& check, const std::string& line) {
  std::istringstream words(line);
  std::string command;
  words >> command;
  if (command == "counters") return check.counters();
  if (command != "query") return "what is '" + command + "'?";
  std::vector<tokens::Token> prompt;
  for (std::uint32_t token = 0; words >> token;) prompt.emplace_back(token);
  check.catch_up();
  return "depth " + std::to_string(check.depth(prompt));
}

int run(const std::string& endpoint, const std::string& replay, std::uint32_t block_size) {
  SubscriberOptions options{.endpoint = endpoint, .replay_endpoint = replay, .topic = "kv"};
  feed::EngineSessionOptions session;
  session.ingest.worker = kWorker;
  session.ingest.block_size = block_size;
  auto source = value_of(ZmqEngineSource::create(options));
  const ZmqEngineSource& heard = *source;
  options.replay_on_connect = false;
  Check check(value_of(ZmqEngineSource::create(options)), heard,
              value_of(feed::EngineSession::create(std::move(source), session)),
              value_of(index::make_index({.kind = "flash"})), block_size);
  std::cout << "ready" << std::endl;
  std::string pending;
  for (;;) {
    check.step(10ms);
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, 0) <= 0) continue;
    char bytes[65536];
    const ssize_t got = read(STDIN_FILENO, bytes, sizeof bytes);
    if (got <= 0) return 0;
    pending.append(bytes, static_cast<std::size_t>(got));
    for (std::size_t end = 0; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1))
      std::cout << answer(check, pending.substr(0, end)) << std::endl;
  }
}

}  // namespace
}  // namespace ashlar

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: vllm_check ENDPOINT REPLAY_ENDPOINT BLOCK_SIZE\n";
    return 2;
  }
  return ashlar::run(arguments[1], arguments[2],
                     static_cast<std::uint32_t>(std::strtoul(arguments[3], nullptr, 10)));
}
