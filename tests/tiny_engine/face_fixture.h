// What the tests of tiny_server share: requests and their answers as JSON, the same from the model alone, and
// a router that listens.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/backend/zmq/zmq_engine_source.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token_sequence.h"
#include "support/http_client.h"
#include "tiny_engine/byte_tokens.h"
#include "tiny_engine/engine_process.h"

namespace tiny_engine::testing {

using namespace ashlar;
using ashlar::testing::events_of;
using ashlar::testing::HttpAnswer;
using ashlar::testing::HttpClient;

constexpr std::size_t kBlock = 8;  // tokens of a block, as tiny_server has it

inline Json parsed(std::string_view text) {
  Result<Json> json = Json::parse(text);
  EXPECT_TRUE(json) << text;
  return json ? *std::move(json) : Json();
}

// The answer must be JSON, with this status.
inline Json answered(const HttpAnswer& answer, int status = 200) {
  EXPECT_EQ(answer.status, status) << answer.body;
  EXPECT_TRUE(answer.is_complete);
  return parsed(answer.body);
}

inline std::uint64_t number(const Json& json) {
  EXPECT_TRUE(json.whole_number().has_value());
  return json.whole_number().value_or(0);
}

// All full blocks but the last token.
inline std::size_t reusable(std::size_t prompt_tokens) {
  return (prompt_tokens - 1) / kBlock * kBlock;
}

// What the model says without a cache.
inline std::string oracle(const std::vector<Token>& prompt, std::size_t count, std::size_t choice = 0) {
  static const TinyModel kModel(byte_model());
  return byte_text(kModel.say(prompt, count, choice).tokens);
}

inline std::string completion_body(std::string_view prompt, std::size_t count, std::string_view more = {}) {
  return "{\"model\":\"tiny\",\"prompt\":" + json_quoted(prompt) +
         ",\"max_tokens\":" + std::to_string(count) + std::string(more) + "}";
}

// A completion, whose text must be the model's. Returns its cached tokens.
inline std::size_t complete(HttpClient& client, std::string_view prompt, std::size_t count = 4,
                            std::string_view more = {}, const HttpClient::Headers& headers = {}) {
  const Json json = answered(client.post("/v1/completions", completion_body(prompt, count, more), headers));
  if (json["choices"].items.empty()) return 0;
  EXPECT_EQ(json["choices"].items[0]["text"].text, oracle(byte_tokens(prompt), count));
  return number(json["usage"]["prompt_tokens_details"]["cached_tokens"]);
}

// The number at the end of the metric's first line that has all of `labels`.
inline std::uint64_t metric(HttpClient& client, const std::string& name, const std::string& labels = {}) {
  const HttpAnswer answer = client.get("/metrics");
  EXPECT_EQ(answer.status, 200);
  for (std::size_t at = 0; (at = answer.body.find("\n" + name + "{", at)) != std::string::npos; ++at) {
    const std::string line = answer.body.substr(at + 1, answer.body.find('\n', at + 1) - at - 1);
    if (line.find(labels) != std::string::npos) return std::stoull(line.substr(line.rfind(' ')));
  }
  ADD_FAILURE() << name << " is not among the metrics:\n" << answer.body;
  return 0;
}

// A router that listens to one rank, and begins when it is made.
class FaceRouter {
 public:
  explicit FaceRouter(const EngineProcess& engine, int rank = 0)
      : sockets_{.endpoint = engine.events(rank),
                 .replay_endpoint = engine.replay(rank),
                 .replay_timeout = std::chrono::seconds(100),  // a busy machine answers late
                 .replay_deadline = std::chrono::seconds(100)},
        session_(feed::EngineSession::create(backend::zmq::ZmqEngineSource::create(sockets_).value(),
                                             {.ingest = {.worker = kWorker}})
                     .value()) {}

  // Listens until it has everything that was published before the call.
  void catch_up() {
    const std::uint64_t end = published();
    const auto last = Clock::real().now() + std::chrono::minutes(2);
    while (session_.next().value_or(0) < end) {
      ASSERT_LT(Clock::real().now(), last) << "number " << session_.next().value_or(0) << " of " << end;
      listen();
    }
  }
  void listen() {
    std::vector<events::KvEvent> events;
    (void)session_.step(std::chrono::milliseconds(10), events);  // not connected yet, perhaps
    feeder_.apply(events);
  }
  // The full blocks of a prompt that the engine holds, in tokens.
  std::size_t depth(std::string_view prompt, const std::string& salt = {}) {
    const auto text = tokens::TokenSequence::create(byte_tokens(prompt), kBlock,
                                                    tokens::SequenceHasher(tokens::Salt("", salt)))
                          .value();
    std::vector<tokens::LocalHash> locals;
    for (const tokens::TokenBlock& block : text.blocks()) locals.push_back(block.local_hash());
    index::MatchScores scores;
    index_.find_matches(locals, scores);
    std::size_t found = 0;
    scores.for_each([&](const events::Worker&, const index::Score& score) {
      for (const std::uint32_t blocks : score.blocks) found += blocks * kBlock;
    });
    return found;
  }
  std::size_t predicted(std::string_view prompt) { return std::min(depth(prompt), reusable(prompt.size())); }
  const feed::EngineSession& session() const noexcept { return session_; }
  // How many messages the engine has published, as its replay socket knows.
  std::uint64_t published() {
    const auto source = backend::zmq::ZmqEngineSource::create(sockets_).value();
    for (const auto last = Clock::real().now() + std::chrono::minutes(2); Clock::real().now() < last;)
      if (const auto kept = source->replay(0))
        return kept->messages.empty() ? 0 : kept->messages.back().sequence + 1;
    ADD_FAILURE() << "no replay from " << sockets_.replay_endpoint;
    return 0;
  }

 private:
  static constexpr events::WorkerId kWorker{7};
  const backend::zmq::SubscriberOptions sockets_;
  feed::EngineSession session_;
  index::FlashIndex index_;
  index::SinkOf<index::FlashIndex> sink_{index_};
  feed::IndexFeeder feeder_{sink_, kWorker};
};

}  // namespace tiny_engine::testing
