// The fleet of a service: workers whose events and answers do not fit together, and registered ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <thread>

#include "ashlar/tokens/sequence_hasher.h"
#include "service/gateway/fake_workers.h"
#include "service/gateway/fleet.h"
#include "service/route/fake_engine.h"
#include "support/scratch_folder.h"
#include "support/until_seen.h"

namespace ashlar::service {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

class FleetTest : public ::testing::Test {
 protected:
  // Workers of the model "m" whose events are those of engine(0), engine(1) and so on.
  static ServeOptions options_with_events(std::size_t workers) {
    ServeOptions options = ServiceUnderTest::options_of(workers);
    for (std::size_t i = 0; i < workers; ++i)
      options.workers[i].events = "tcp://127.0.0.1:" + std::to_string(6000 + i);
    options.late_after = std::chrono::hours(1);  // a busy machine is slow, and its workers stay EXACT
    return options;
  }
  FakeEngine& engine(int number) { return *of_endpoint("tcp://127.0.0.1:" + std::to_string(6000 + number)); }
  EngineSourceFactory sources() {
    return [this](const EngineEndpoint& endpoint) -> Result<std::unique_ptr<feed::EngineSource>> {
      if (endpoint.events == broken_) return Error(ErrorCode::kUnavailable, "no socket is left");
      return std::unique_ptr<feed::EngineSource>(
          std::make_unique<FakeEngine::Source>(of_endpoint(endpoint.events)));
    };
  }
  std::shared_ptr<FakeEngine> of_endpoint(const std::string& endpoint) {
    std::shared_ptr<FakeEngine>& engine = engines_[endpoint];
    if (engine == nullptr) engine = std::make_shared<FakeEngine>();
    return engine;
  }
  // Reads GET /fleet until it has the text so often. `answers`: to errands of the service meanwhile.
  static void wait_for(ServiceUnderTest& service, const std::string& text, int times = 1,
                       bool answers = false) {
    const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    std::string seen;
    do {
      if (answers) service.answer_errands();
      seen = service.get("/fleet").body;
      int found = 0;
      for (std::size_t at = seen.find(text); at != std::string::npos; at = seen.find(text, at + 1)) ++found;
      if (found >= times) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (std::chrono::steady_clock::now() < last);
    ADD_FAILURE() << text << " is not in " << seen;
  }

  // GET /workers without what the threads that read events change in their own time.
  static std::string workers_of(ServiceUnderTest& service) {
    static const std::regex state(R"x("(status|last_error)":"[^"]*")x");
    return std::regex_replace(service.get("/workers").body, state, "");
  }

  std::string broken_;  // endpoint
  std::map<std::string, std::shared_ptr<FakeEngine>> engines_;
};

TEST_F(FleetTest, WorkersWithOtherBlocksAreNeverExact) {
  ServiceUnderTest service(options_with_events(2), {}, sources());
  engine(0).send(stored_message(0, 0));
  wait_for(service, R"("state":"EXACT")");
  engine(1).send(stored_message(0, 0, 1, "GPU", 8));
  wait_for(service, "its blocks have 8 tokens, those of the model's other workers 4");
  // The one that set the size is restarted with the other's: then both fit.
  engine(0).restart();
  engine(0).send(stored_message(0, 0, 2, "GPU", 8));
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (service.metric(R"(ashlar_serve_workers{state="EXACT"})") != 2 &&
         std::chrono::steady_clock::now() < last)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(service.metric(R"(ashlar_serve_workers{state="EXACT"})"), 2);
}

// The size of a model's blocks is a guess until its first event. A request that waits for the events of the
// one before is cut into the blocks that they tell of.
TEST_F(FleetTest, ARequestThatWaitsLearnsTheSizeOfBlocks) {
  ServeOptions options = options_with_events(2);
  options.event_patience = std::chrono::hours(1);
  ServiceUnderTest service(options, {}, sources());
  for (const int i : {0, 1}) engine(i).set_looked_back(true);
  wait_for(service, R"("state":"EXACT")", 2);
  // Four blocks as the engines have them, one as it is guessed.
  const std::string prompt = R"({"model":"m","prompt":[1,1,1,1,2,2,2,2,3,3,3,3,4,4,4,4,9]})";
  const auto first = service.begin("/v1/completions", prompt);
  const int chosen = std::get<Forward>(first->step).address.port - 9001;
  first->passage->head(200, kJsonHead);
  first->passage->bytes(usage_answer(17, 0));
  first->passage->ended(PassageEnd::kComplete);
  const auto again = service.begin("/v1/completions", prompt);
  ASSERT_TRUE(std::holds_alternative<Wait>(again->step));
  for (std::uint32_t block = 0; block < 4; ++block) engine(chosen).send(stored_message(block, block));
  const auto latest = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (std::holds_alternative<Wait>(again->step) && std::chrono::steady_clock::now() < latest) {
    if (again->wakes->exchange(0) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    else
      again->step = again->passage->resumed();
  }
  ASSERT_TRUE(std::holds_alternative<Forward>(again->step)) << "it waits for blocks of another size";
  EXPECT_EQ(std::get<Forward>(again->step).address.port, 9001 + chosen);
  // At the first message; the others may have come too.
  EXPECT_THAT(again->passage->head(200, kJsonHead).added,
              Contains(Pair("x-ashlar-cached-tokens", AnyOf("4", "8", "12", "16"))));
  again->passage->bytes(usage_answer(17, 16));
  again->passage->ended(PassageEnd::kComplete);
  wait_for(service, R"("blocks":4,)");
  const auto last = service.begin("/v1/completions", prompt);
  EXPECT_THAT(last->passage->head(200, kJsonHead).added, Contains(Pair("x-ashlar-cached-tokens", "16")));
}

TEST_F(FleetTest, AConfiguredSizeIsComparedAtTheStart) {
  ServeOptions options = options_with_events(2);
  options.workers[0].block_size = 4;
  options.workers[1].block_size = 8;
  ServiceUnderTest service(options, {}, sources());
  wait_for(service, "its blocks have 8 tokens, those of the model's other workers 4");
}

TEST_F(FleetTest, TheSizeOfAWorkerThatIsTakenOutIsForgotten) {
  ServeOptions options = options_with_events(3);
  for (WorkerOptions& worker : options.workers) worker.block_size = 8;
  options.workers[0].block_size = 4;
  const WorkerOptions last = options.workers.back();
  options.workers.pop_back();
  ServiceUnderTest service(options, {}, sources());
  wait_for(service, "its blocks have 8 tokens, those of the model's other workers 4");
  options.workers.erase(options.workers.begin());
  ASSERT_TRUE(service->set_workers(options.workers));
  wait_for(service, "no message yet");
  // All at once too.
  ASSERT_TRUE(service->set_workers(std::span(&last, 1)));
  WorkerOptions other = last;
  other.block_size = 4;
  ASSERT_TRUE(service->set_workers(std::span(&other, 1)));
  wait_for(service, "no message yet");
}

TEST_F(FleetTest, AnAnswerOfNoWholeBlocksShowsAnotherSize) {
  ServiceUnderTest service(options_with_events(1), {}, sources());
  engine(0).send(stored_message(0, 0));
  wait_for(service, R"("state":"EXACT")");
  const auto ask = [&](std::uint64_t found, std::uint64_t prompt = 10) {
    const auto open = service.begin("/v1/completions", tokens_body(10, static_cast<int>(found)));
    open->passage->head(200, kJsonHead);
    open->passage->bytes(usage_answer(prompt, found));
    open->passage->ended(PassageEnd::kComplete);
  };
  ask(8);
  ask(9);       // all but the last token
  ask(10, 11);  // as the engine counts them
  engine(0).send(stored_message(1, 1));
  wait_for(service, R"("messages":2)");
  EXPECT_THAT(service.get("/fleet").body, Not(HasSubstr("whole blocks")));
  ask(6);
  wait_for(service, "it found 6 cached tokens, which is no number of whole blocks of 4");
  engine(0).restart();
  engine(0).send(stored_message(0, 0, 2));
  wait_for(service, R"("state":"EXACT")");
}

// Before the first event the size of blocks is a guess, and what was stored meanwhile has another one.
TEST_F(FleetTest, WhatWasStoredMeanwhileIsSeenAlsoInBlocksOfAnotherSize) {
  for (const bool is_heard_first : {true, false}) {
    engines_.clear();
    ServiceUnderTest service(options_with_events(1), {}, sources());
    engine(0).send(cleared_message(0));
    wait_for(service, R"("state":"EXACT")");
    const auto open = service.begin("/v1/completions", R"({"model":"m","prompt":[1,1,1,1,5,6]})");
    service.finish(*open);
    open->passage->head(200, kJsonHead);
    const auto hear = [&] {
      engine(0).send(stored_message(1, 0));
      wait_for(service, R"("block_size":4)");
    };
    if (is_heard_first) hear();
    open->passage->bytes(usage_answer(6, 4));
    open->passage->ended(PassageEnd::kComplete);
    if (!is_heard_first) hear();
    const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    const std::string counter = R"(ashlar_serve_misroute_total{reason="stored_meanwhile"})";
    while (service.metric(counter) != 1 && std::chrono::steady_clock::now() < last) {
      service.answer_errands();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(service.metric(counter), 1) << is_heard_first;
  }
}

// An engine tells of a second copy and of a block that a request found in the same words.
TEST_F(FleetTest, CopiesAreCountedUntilARequestAsksForAReport) {
  ServeOptions options = options_with_events(1);
  options.event_patience = {};  // nobody waits for events of the request before
  ServiceUnderTest service(options, {}, sources());
  const auto until_heard = [&](std::uint64_t messages) {
    const std::string line = "ashlar_serve_event_messages_total{worker=\"w0\"} ";
    const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (service->metrics().prometheus_text().find(line + std::to_string(messages) + "\n") ==
           std::string::npos) {
      ASSERT_LT(std::chrono::steady_clock::now(), last) << service->metrics().prometheus_text();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  // What is claimed for a prompt whose first block is block 0.
  const auto claimed = [&](const std::string& more) -> std::string {
    const auto open = service.begin("/v1/completions", R"({"model":"m","prompt":[1,1,1,1,5,6])" + more + "}");
    service.finish(*open);
    if (const auto* reply = std::get_if<Reply>(&open->step)) return reply->body;
    const HeadVerdict verdict = open->passage->head(200, kJsonHead);
    open->passage->bytes(usage_answer(6, 4));
    open->passage->ended(PassageEnd::kComplete);
    for (const auto& [name, value] : verdict.added)
      if (name == "x-ashlar-cached-tokens") return value;
    return "none";
  };
  engine(0).send(stored_message(0, 0));
  engine(0).send(stored_message(1, 0));
  engine(0).send(removed_message(2, 0));
  until_heard(3);
  EXPECT_EQ(claimed(""), "4");  // a copy is left
  EXPECT_EQ(claimed(R"(,"vllm_xargs":{"kv_cache_report_mode":"full"})"), "4");
  engine(0).send(stored_message(3, 0));
  engine(0).send(removed_message(4, 0));
  until_heard(5);
  EXPECT_EQ(claimed(""), "0");
}

TEST_F(FleetTest, AWorkerThatServesAnotherModelIsFollowedAnew) {
  ServeOptions options = options_with_events(1);
  options.workers[0].model.clear();
  options.health_interval = std::chrono::milliseconds(1);
  ServiceUnderTest service(options, R"({"data":[{"id":"a"}]})", sources());
  engine(0).send(stored_message(0, 0));
  wait_for(service, R"("state":"EXACT")");
  service.down[9001] = true;
  wait_for(service, "its /health cannot be reached", 1, true);
  service.down.clear();
  service.models = R"({"data":[{"id":"b"}]})";
  wait_for(service, "no message yet", 1, true);
  engine(0).send(stored_message(1, 1));
  wait_for(service, R"("state":"EXACT")");
  std::vector<tokens::LocalHash> locals;
  for (const std::uint32_t i : {0u, 1u})
    locals.push_back(tokens::SequenceHasher().local_hash(tokens_of_block(i)));
  EXPECT_EQ(service->router().look_up("b", locals).at(0).depth, 2u);
  EXPECT_EQ(service->router().loads().at(0).state, WorkerState::kExact);
}

std::string query_by_hash(const tokens::SequenceHasher& hasher) {
  return R"({"model_name":"m","block_hashes":[)" +
         std::to_string(hasher.local_hash(tokens_of_block(0)).value()) + "]}";
}

TEST_F(FleetTest, AModelHasItsOwnSchemeAndSalt) {
  ServeOptions options = options_with_events(2);
  options.workers[0].scheme = "xxh64_int64";
  options.workers[0].salt = "pepper";
  options.event_patience = {};
  ServiceUnderTest service(options, {}, sources());
  for (const int i : {0, 1}) engine(i).send(stored_message(0, 0));
  const auto ask = [&](const std::string& path, const std::string& body) {
    return service.post(path, body).body;
  };
  const tokens::HashScheme scheme = tokens::HashScheme::xxh64_int64();
  const std::string own = query_by_hash({scheme, tokens::Salt({}, "pepper")});
  wait_for(service, R"("state":"EXACT")", 2);  // both are heard, and the size of blocks is known
  // Both workers of the model, though only one says it.
  EXPECT_THAT(ask("/query_by_hash", own), HasSubstr(R"("frequencies":[2])"));
  EXPECT_THAT(ask("/query_by_hash", query_by_hash({scheme, tokens::Salt()})),
              HasSubstr(R"("frequencies":[])"));
  EXPECT_THAT(ask("/query_by_hash", query_by_hash(tokens::SequenceHasher(tokens::Salt({}, "pepper")))),
              HasSubstr(R"("frequencies":[])"));
  EXPECT_THAT(ask("/query", R"({"model_name":"m","token_ids":[1,1,1,1]})"),
              HasSubstr(R"("frequencies":[2])"));
  EXPECT_THAT(ask("/query", R"({"model_name":"m","token_ids":[1,1,1,1],"cache_salt":"x"})"),
              HasSubstr(R"("frequencies":[])"));
  // A request is routed by the same hashes.
  const auto open = service.begin("/v1/completions", R"({"model":"m","prompt":[1,1,1,1,9]})");
  EXPECT_THAT(open->passage->head(200, kJsonHead).added, Contains(Pair("x-ashlar-cached-tokens", "4")));

  // It cannot change below a worker that stays, nor be taken out.
  std::vector<WorkerOptions> plain = options.workers;
  plain[0].scheme.clear();
  plain[0].salt.clear();
  EXPECT_FALSE(service->set_workers(plain));
  options.workers[0].salt = "salt";
  EXPECT_FALSE(service->set_workers(options.workers));
  options.workers[1].salt = "other";
  EXPECT_FALSE(service->set_workers(options.workers)) << "two of one model";
  options.workers[1].salt = "salt";
  options.workers[1].scheme = options.workers[0].scheme;
  EXPECT_TRUE(service->set_workers(options.workers));
}

TEST_F(FleetTest, ARegistrationMayBringASalt) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1), {}, sources());
  const auto ask = [&](const std::string& path, const std::string& body) { return service.post(path, body); };
  const auto body = [](int instance, const std::string& salt) {
    return R"({"instance_id":)" + std::to_string(instance) +
           R"(,"endpoint":"tcp://127.0.0.1:6000","model_name":"r","block_size":4,"additional_salt":")" +
           salt + "\"}";
  };
  EXPECT_EQ(ask("/register", body(7, "pepper")).status, 201u);
  EXPECT_EQ(ask("/register", body(8, "salt")).status, 409u);
  engine(0).send(stored_message(0, 0));
  const std::string query = R"({"model_name":"r","token_ids":[1,1,1,1]})";
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (ask("/query", query).body.find(R"("7":)") == std::string::npos &&
         std::chrono::steady_clock::now() < last)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::string hash = std::to_string(
      tokens::SequenceHasher(tokens::Salt({}, "pepper")).local_hash(tokens_of_block(0)).value());
  EXPECT_THAT(ask("/query_by_hash", R"({"model_name":"r","block_hashes":[)" + hash + "]}").body,
              HasSubstr(R"("7":)"));
}

TEST_F(FleetTest, InstancesMayHaveAnyNumber) {
  ServiceUnderTest service(ServiceUnderTest::options_of(2), {}, sources());
  const auto status_of_registration = [&](int instance) {
    return service
        .post("/register", R"({"instance_id":)" + std::to_string(instance) +
                               R"(,"endpoint":"tcp://127.0.0.1:6000",)"
                               R"("model_name":"m","block_size":4})")
        .status;
  };
  for (const int instance : {0, 1, 2, 3}) EXPECT_EQ(status_of_registration(instance), 201u) << instance;
  EXPECT_EQ(status_of_registration(1), 409u) << "that one is there";
}

TEST_F(FleetTest, AFailedRegistrationLeavesNothingBehind) {
  ServiceUnderTest service(ServiceUnderTest::options_of(1), {}, sources());
  const auto post = [&](const std::string& path, int rank, int block_size) {
    return service
        .post(path, R"({"instance_id":7,"endpoint":"tcp://127.0.0.1:600)" + std::to_string(rank) +
                        R"(","model_name":"r","additional_salt":"s","dp_rank":)" + std::to_string(rank) +
                        R"(,"block_size":)" + std::to_string(block_size) + "}")
        .status;
  };
  const std::string workers = workers_of(service);
  broken_ = "tcp://127.0.0.1:6000";
  EXPECT_EQ(post("/register", 0, 8), 400u);
  EXPECT_EQ(workers_of(service), workers);
  EXPECT_EQ(service->router().loads().size(), 1u);
  EXPECT_EQ(post("/unregister", 0, 8), 404u);
  broken_ = "tcp://127.0.0.1:6002";
  EXPECT_EQ(post("/register", 0, 4), 201u) << "another size than the one that failed";
  const std::string registered = workers_of(service);
  EXPECT_THAT(registered, HasSubstr("tcp://127.0.0.1:6000"));
  EXPECT_EQ(post("/register", 2, 4), 400u) << "a rank of a worker that stays";
  EXPECT_EQ(workers_of(service), registered);
  EXPECT_EQ(service->router().loads().size(), 2u);
  broken_.clear();
  EXPECT_EQ(post("/register", 2, 4), 201u);
  EXPECT_EQ(post("/unregister", 0, 4), 200u);
  EXPECT_EQ(post("/unregister", 2, 4), 200u);
  EXPECT_EQ(post("/register", 0, 8), 201u) << "nobody has blocks of 4 any more";
}

TEST_F(FleetTest, RegistrationsMakeNoMoreGroupsThanAreKept) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  Router router;
  Fleet fleet(options, router, sources(), Clock::real());
  std::vector<WorkerOptions> workers(kMostGroups - 1, options.workers[0]);
  for (std::size_t i = 0; i < workers.size(); ++i) workers[i].name = workers[i].model = std::to_string(i);
  ASSERT_TRUE(fleet.set_workers(workers));
  const auto code_of = [&](std::uint64_t instance, const std::string& model) {
    Fleet::Registration worker;
    worker.instance = instance;
    worker.endpoint = "tcp://127.0.0.1:6000";
    worker.model = model;
    worker.block_size = 4;
    const Result<void> registered = fleet.register_worker(worker);
    return registered ? std::string("ok") : std::string(to_string(registered.error().code()));
  };
  broken_ = "tcp://127.0.0.1:6000";
  for (const char* model : {"a", "b", "c"}) EXPECT_EQ(code_of(1, model), "unavailable");
  broken_.clear();
  EXPECT_EQ(code_of(1, "d"), "ok") << "those that failed do not count";
  EXPECT_EQ(code_of(2, "e"), "capacity");
  EXPECT_TRUE(fleet.unregister_worker(1, "d", {}));
  EXPECT_EQ(code_of(2, "e"), "capacity") << "the router keeps the group";
  EXPECT_EQ(code_of(2, "d"), "ok");
  EXPECT_EQ(code_of(3, "7"), "ok");
}

// A prompt of the first blocks of the sequence that engines of these tests store.
std::string body_of_blocks(std::uint32_t blocks) {
  std::string body = R"({"model":"m","prompt":[)";
  for (std::uint32_t i = 0; i < blocks * kFakeBlockSize; ++i)
    body += std::to_string(i / kFakeBlockSize + 1) + ",";
  return body + "99]}";
}

TEST_F(FleetTest, ASnapshotIsReadAgainWhenEventsAreLost) {
  const ScratchFolder folder;
  ServeOptions options = options_with_events(2);
  std::string dump;
  {
    ServiceUnderTest peer(options, {}, sources());
    for (std::uint32_t i = 0; i < 4; ++i)
      for (const int worker : {0, 1}) engine(worker).send(stored_message(i, i));
    wait_for(peer, R"("messages":4)", 2);
    dump = peer.get("/dump").body;
  }
  engines_.clear();
  options.snapshot = folder.file("dump.json");
  options.event_patience = {};
  std::ofstream(options.snapshot) << "{}";
  ServiceUnderTest service(options, {}, sources());
  engine(0).send(stored_message(0, 0));
  wait_for(service, R"("state":"EXACT")");
  service->due();
  // Messages 1 to 3 are lost, and nobody keeps them.
  std::ofstream(options.snapshot) << dump;
  engine(0).send(stored_message(4, 0), false, false);
  wait_for(service, "3 messages were lost for good");
  const auto predicted = [&] {
    const auto open = service.begin("/v1/completions", body_of_blocks(4));
    EXPECT_TRUE(std::holds_alternative<Forward>(open->step));
    const HeadVerdict verdict = open->passage->head(200, kJsonHead);
    std::string id;
    for (const auto& [name, value] : verdict.added)
      if (name == "x-ashlar-decision-id") id = value;
    EXPECT_THAT(verdict.added, Contains(Pair("x-ashlar-cached-tokens", "4"))) << "only reports are claimed";
    EXPECT_THAT(verdict.added, Contains(Pair("x-ashlar-state", "DEGRADED")));
    return service.get("/decisions/" + id).body;
  };
  service->due();
  service.get("/dump");  // after the snapshot was read, on the same thread
  const std::string decision = predicted();
  EXPECT_THAT(decision, HasSubstr(R"("predicted_depth":4)"));
  EXPECT_THAT(decision, HasSubstr(R"("predicted_depth":0)")) << "of the other, which has lost nothing";
}

TEST_F(FleetTest, AQuestionThatIsNeverAnsweredIsAskedAgain) {
  const ServeOptions options = ServiceUnderTest::options_of(1);
  ManualClock clock;
  Router router({}, nullptr, clock);
  Fleet fleet(options, router, {}, clock);
  ASSERT_TRUE(fleet.set_workers(options.workers));
  EXPECT_EQ(fleet.due().errands.size(), 1u);
  EXPECT_EQ(fleet.due().errands.size(), 0u) << "it is on its way";
  clock.advance(std::chrono::minutes(1));
  EXPECT_EQ(fleet.due().errands.size(), 1u);
}

TEST_F(FleetTest, ExpectationsEndWithoutAnotherRequest) {
  ServeOptions options = ServiceUnderTest::options_of(1);
  options.fallback_ttl = std::chrono::milliseconds(1);
  ServiceUnderTest service(options);
  {
    const auto open = service.begin("/v1/completions", tokens_body(80));
    ASSERT_TRUE(std::holds_alternative<Forward>(open->step));
    open->passage->ended(PassageEnd::kComplete);
  }
  ASSERT_GT(service->router().sizes("m").predicted, 0u);
  // As soon as that time and a step of its clock are over.
  const testing::UntilSeen until(0.1);
  std::size_t left = 1;
  while (left != 0 && !until.over([] { return false; })) {
    service->due();
    service.get("/dump");  // after the chore, on the same thread
    left = service->router().sizes("m").predicted;
  }
  EXPECT_EQ(left, 0u);
}

TEST_F(FleetTest, APeerIsAskedAgainWhenEventsAreLost) {
  ServeOptions options = options_with_events(1);
  options.snapshot = "http://127.0.0.1:9999/dump";
  ServiceUnderTest service(options, {}, sources());  // answers the first question, and others of the start
  const auto asks = [&] {
    int count = 0;
    for (const Errand& errand : service->due().errands) count += errand.ask.target == "/dump";
    return count;
  };
  engine(0).send(stored_message(0, 0));
  wait_for(service, R"("state":"EXACT")");
  EXPECT_EQ(asks(), 0);
  engine(0).send(stored_message(2, 0), false, false);
  wait_for(service, "1 messages were lost for good");
  service.get("/dump");  // after the first answer was read, on the same thread
  EXPECT_EQ(asks(), 1);
  EXPECT_EQ(asks(), 0) << "it was asked, and has not answered";
}

TEST(FleetKeys, AreSentWithOurOwnQuestionsAlone) {
  ServeOptions options = ServiceUnderTest::options_of(2);
  options.health_interval = std::chrono::milliseconds(1);
  options.workers[0].key.text = "sesame";
  ServiceUnderTest service(options);
  const auto keys = [&] {
    std::map<std::uint16_t, std::set<std::string>> seen;
    while (seen.size() < 2) {
      for (const Errand& errand : service->due().errands) {
        std::string key;
        for (const auto& [name, value] : errand.ask.headers)
          if (name == "Authorization") key = value;
        seen[errand.ask.address.port].insert(key);
        service->told(errand.number, Answer{.status = 200, .body = {}});
      }
    }
    return seen;
  };
  auto seen = keys();
  EXPECT_EQ(seen[9001], (std::set<std::string>{"Bearer sesame"}));
  EXPECT_EQ(seen[9002], (std::set<std::string>{""}));
  // Another key is read again, and the worker stays.
  options.workers[0].key.text = "rotated";
  ASSERT_TRUE(service->set_workers(options.workers));
  EXPECT_EQ(service.metric("ashlar_serve_workers_up"), 2);
  EXPECT_EQ(keys()[9001], (std::set<std::string>{"Bearer rotated"}));
  // Tokens are asked for with the worker's key, or else the client's; the request itself has the client's.
  for (int i = 0; i < 4; ++i) {
    auto open = service.begin("/v1/completions", R"({"model":"m","prompt":")" + std::to_string(i) + "\"}",
                              {{"Authorization", "Bearer client"}});
    const Ask* ask = std::get_if<Ask>(&open->step);
    ASSERT_NE(ask, nullptr);
    const char* const key = ask->address.port == 9001 ? "Bearer rotated" : "Bearer client";
    EXPECT_THAT(ask->headers, Contains(Pair("Authorization", key)));
    open->step = open->passage->answered(Answer{.status = 404, .body = {}});
    while (std::holds_alternative<Ask>(open->step))
      open->step = open->passage->answered(Answer{.status = 400, .body = "{}"});
    const auto* const forward = std::get_if<Forward>(&open->step);
    ASSERT_NE(forward, nullptr);
    for (const auto& [name, value] : forward->added) EXPECT_NE(name, "Authorization");
  }
  for (const char* page : {"/fleet", "/metrics", "/live", "/workers"})
    EXPECT_EQ(service.get(page).body.find("rotated"), std::string::npos) << page;
}

}  // namespace
}  // namespace ashlar::service
