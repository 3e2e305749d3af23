// Every call in every state: what is allowed, what is refused and why, and that a refusal changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "block/sequence/request_fixture.h"

namespace ashlar::block::support {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPrompt = 10;  // two blocks and a half

// What was refused, with the state that the error names; nothing for a success.
struct Answer {
  std::optional<SequenceError> error;

  template <class T>
  Answer(Result<T, SequenceError> result)  // NOLINT(google-explicit-constructor)
      : error(result ? std::nullopt : std::optional(std::move(result).error())) {}
};

struct Call {
  const char* name;
  std::function<Answer(Request&)> run;
};

const std::vector<Call>& calls() {
  static const std::vector<Call> all = {
      {"match_prefix", [](Request& r) -> Answer { return r.match_prefix(); }},
      {"begin_match", [](Request& r) -> Answer { return r.begin_match([] {}); }},
      {"finish_match", [](Request& r) -> Answer { return r.finish_match(); }},
      {"schedule_prefill", [](Request& r) -> Answer { return r.schedule_prefill(1); }},
      {"apply_prefill without a token", [](Request& r) -> Answer { return r.apply_prefill(); }},
      {"apply_prefill with a token", [](Request& r) -> Answer { return r.apply_prefill(Token(1)); }},
      {"schedule_decode", [](Request& r) -> Answer { return r.schedule_decode(); }},
      {"apply_decode", [](Request& r) -> Answer { return r.apply_decode(Token(1)); }},
      {"schedule_speculative", [](Request& r) -> Answer { return r.schedule_speculative(2); }},
      {"apply_speculative", [](Request& r) -> Answer { return r.apply_speculative(tokens_from(1, 1)); }},
      {"revert", [](Request& r) -> Answer { return r.revert(); }},
      {"preempt", [](Request& r) -> Answer { return r.preempt(); }},
      {"resume", [](Request& r) -> Answer { return r.resume(); }},
      {"fork", [](Request& r) -> Answer { return r.fork(); }},
      {"fork with another last token", [](Request& r) -> Answer { return r.fork(Token(77)); }},
  };
  return all;
}

constexpr auto kOk = std::optional<Refused>();
constexpr auto kWrong = std::optional(Refused::kWrongState);
constexpr auto kIncomplete = std::optional(Refused::kPrefillIncomplete);
constexpr auto kMissing = std::optional(Refused::kTokenMissing);
constexpr auto kNotExpected = std::optional(Refused::kTokenNotExpected);

// A state, the way into it, and the answer to each call in the order of calls().
struct Row {
  const char* name;
  RequestState state;
  std::function<void(RequestTest&, Request&)> reach;
  std::array<std::optional<Refused>, 15> answers;
};
std::ostream& operator<<(std::ostream& out, const Row& row) {
  return out << row.name;
}

// A tier below that has nothing, and takes its time to say so.
class SlowSource final : public PrefixSource {
 public:
  bool has(const tokens::SequenceHash&) override { return true; }
  std::unique_ptr<Arrival> bring(const Wanted&, const PrefixBudget&, std::function<void()> on_done) override {
    struct Nothing final : Arrival {
      bool done() const override { return false; }
      std::size_t wait() override { return 0; }
      Result<std::vector<BlockId>> wait_layer(std::uint32_t, std::optional<Clock::TimePoint>) override {
        return std::vector<BlockId>();
      }
    };
    return on_done == nullptr ? nullptr : std::make_unique<Nothing>();
  }
  void leaving(std::span<const tokens::SequenceHash>) noexcept override {}
};

class RequestStateTest : public RequestTest, public ::testing::WithParamInterface<Row> {
 public:
  static void prefill_some(RequestTest& test, Request& request) { self(test).prefill(request, 5); }
  static void prefill_everything(RequestTest& test, Request& request) {
    self(test).prefill_all(request, 500);
  }
  static void match(RequestTest& test, Request& request) {
    self(test).cache(tokens_from(0, 8));
    EXPECT_EQ(value_of(request.match_prefix()), 8u);
  }
  static void begin_match(RequestTest& test, Request& request) {
    self(test).manager_.set_prefix_source(self(test).slow_);
    EXPECT_TRUE(value_of(request.begin_match([] {})).pending);
    EXPECT_FALSE(request.match_ready());
  }

 private:
  SlowSource slow_;
  static RequestStateTest& self(RequestTest& test) { return static_cast<RequestStateTest&>(test); }
};

const std::vector<Row>& rows() {
  using T = RequestStateTest;
  // match, begin, finish, prefill, apply, apply with token, decode, apply, speculative, apply, revert,
  // preempt, resume, fork, fork(last)
  static const std::vector<Row> all = {
      {"IdleFresh",
       RequestState::kIdle,
       [](RequestTest&, Request&) {},
       {kOk, kOk, kWrong, kOk, kWrong, kWrong, kIncomplete, kWrong, kIncomplete, kWrong, kWrong, kOk, kWrong,
        kOk, kIncomplete}},
      {"IdleMatched",
       RequestState::kIdle,
       T::match,
       {kWrong, kWrong, kWrong, kOk, kWrong, kWrong, kIncomplete, kWrong, kIncomplete, kWrong, kWrong, kOk,
        kWrong, kOk, kIncomplete}},
      {"IdleBetweenChunks",
       RequestState::kIdle,
       T::prefill_some,
       {kWrong, kWrong, kWrong, kOk, kWrong, kWrong, kIncomplete, kWrong, kIncomplete, kWrong, kWrong, kOk,
        kWrong, kOk, kIncomplete}},
      {"IdleAfterPrefill",
       RequestState::kIdle,
       T::prefill_everything,
       {kWrong, kWrong, kWrong, kOk, kWrong, kWrong, kOk, kWrong, kOk, kWrong, kWrong, kOk, kWrong, kOk,
        kOk}},
      {"PrefillScheduled",
       RequestState::kPrefillScheduled,
       [](RequestTest&, Request& request) { value_of(request.schedule_prefill(5)); },
       {kWrong, kWrong, kWrong, kWrong, kOk, kNotExpected, kWrong, kWrong, kWrong, kWrong, kOk, kWrong,
        kWrong, kWrong, kWrong}},
      {"LastPrefillScheduled",
       RequestState::kPrefillScheduled,
       [](RequestTest&, Request& request) { value_of(request.schedule_prefill(kPrompt)); },
       {kWrong, kWrong, kWrong, kWrong, kMissing, kOk, kWrong, kWrong, kWrong, kWrong, kOk, kWrong, kWrong,
        kWrong, kWrong}},
      {"DecodeScheduled",
       RequestState::kDecodeScheduled,
       [](RequestTest& test, Request& request) {
         T::prefill_everything(test, request);
         value_of(request.schedule_decode());
       },
       {kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kOk, kWrong, kWrong, kOk, kWrong, kWrong,
        kWrong, kWrong}},
      {"SpeculativeScheduled",
       RequestState::kSpeculativeScheduled,
       [](RequestTest& test, Request& request) {
         T::prefill_everything(test, request);
         value_of(request.schedule_speculative(2));
       },
       {kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kOk, kOk, kWrong, kWrong,
        kWrong, kWrong}},
      {"Onboarding",
       RequestState::kOnboarding,
       T::begin_match,
       {kWrong, kWrong, kOk, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kOk, kWrong,
        kWrong, kWrong}},
      {"Preempted",
       RequestState::kPreempted,
       [](RequestTest& test, Request& request) {
         T::prefill_everything(test, request);
         request.preempt().value();
       },
       {kWrong, kOk, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kOk,
        kWrong, kWrong}},
      {"Released",
       RequestState::kReleased,
       [](RequestTest& test, Request& request) {
         T::prefill_everything(test, request);
         request.release();
       },
       {kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong, kWrong,
        kWrong, kWrong, kWrong}},
  };
  return all;
}

TEST_P(RequestStateTest, EveryCallIsAllowedOrRefusedWithoutAChange) {
  const Row& row = GetParam();
  ASSERT_EQ(calls().size(), row.answers.size());
  for (std::size_t i = 0; i < calls().size(); ++i) {
    SCOPED_TRACE(calls()[i].name);
    Request request = request_of(0, kPrompt);
    row.reach(*this, request);
    ASSERT_EQ(request.state(), row.state);
    const Snapshot before(request);
    const Places places_before = at();
    const auto registered_before = registered();

    const Answer answer = calls()[i].run(request);

    if (!row.answers[i]) {
      EXPECT_FALSE(answer.error) << answer.error->to_error();
    } else {
      ASSERT_TRUE(answer.error) << "allowed";
      EXPECT_EQ(to_string(answer.error->reason), to_string(*row.answers[i]));
      EXPECT_EQ(answer.error->state, to_string(row.state));
      EXPECT_FALSE(answer.error->refusal);
      EXPECT_FALSE(answer.error->to_error().message().empty());
      EXPECT_EQ(Snapshot(request), before);
      EXPECT_EQ(at(), places_before);
      EXPECT_EQ(registered(), registered_before);
    }
    request.release();
    EXPECT_EQ(available(), manager_.total_blocks());
    manager_.reset_inactive_pool();
  }
}

TEST_P(RequestStateTest, ReleaseIsAllowedAlwaysAndGivesEverythingBack) {
  Request request = request_of(0, kPrompt);
  GetParam().reach(*this, request);
  const std::vector<Token> tokens = tokens_of(request);
  for (int twice = 0; twice < 2; ++twice) {
    request.release();
    EXPECT_EQ(request.state(), RequestState::kReleased);
    EXPECT_EQ(tokens_of(request), tokens);
    EXPECT_TRUE(request.block_table().empty());
    EXPECT_TRUE(request.copies().empty());
    EXPECT_EQ(at().active + at().owned, 0u);
  }
}

TEST_P(RequestStateTest, DroppingARequestGivesEverythingBack) {
  {
    Request request = request_of(0, kPrompt);
    GetParam().reach(*this, request);
    Request moved = std::move(request);
    EXPECT_EQ(moved.state(), GetParam().state);
  }
  EXPECT_EQ(at().active + at().owned, 0u);
}

INSTANTIATE_TEST_SUITE_P(States, RequestStateTest, ::testing::ValuesIn(rows()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(RequestNamesTest, StatesAndReasonsHaveNamesOfTheirOwn) {
  std::set<std::string_view> states;
  for (const RequestState state :
       {RequestState::kIdle, RequestState::kPrefillScheduled, RequestState::kDecodeScheduled,
        RequestState::kSpeculativeScheduled, RequestState::kPreempted, RequestState::kReleased}) {
    EXPECT_FALSE(to_string(state).empty());
    EXPECT_TRUE(states.insert(to_string(state)).second);
  }
  std::set<std::string_view> reasons;
  for (auto reason = Refused::kWrongState; reason <= Refused::kOtherManager;
       reason = static_cast<Refused>(static_cast<int>(reason) + 1)) {
    EXPECT_FALSE(to_string(reason).empty());
    EXPECT_TRUE(reasons.insert(to_string(reason)).second);
    const SequenceError error{reason, "idle", 7, 3, std::nullopt};
    EXPECT_FALSE(error.to_error().message().empty()) << to_string(reason);
  }
}

// ---- arguments

class RequestArgumentsTest : public RequestTest {
 protected:
  RequestArgumentsTest() : RequestTest(8) {}

  // Runs the call, which must be refused for this reason, and proves that nothing changed.
  template <class F>
  const SequenceError& refused(Request& request, Refused reason, F&& call) {
    const Snapshot before(request);
    const Places places_before = at();
    const auto registered_before = registered();
    const auto result = call();
    EXPECT_FALSE(result.has_value()) << "not refused";
    error_ =
        result ? SequenceError{Refused::kOtherManager, "not refused", 0, 0, std::nullopt} : result.error();
    EXPECT_EQ(to_string(error_->reason), to_string(reason));
    EXPECT_EQ(error_->state, to_string(before.state));
    EXPECT_EQ(Snapshot(request), before);
    EXPECT_EQ(at(), places_before);
    EXPECT_EQ(registered(), registered_before);
    return *error_;
  }

 private:
  std::optional<SequenceError> error_;
};

TEST_F(RequestArgumentsTest, AChunkHasAtLeastOneTokenAndNotMoreThanAreLeft) {
  Request request = request_of(0, 10);
  refused(request, Refused::kNothingToCompute, [&] { return request.schedule_prefill(0); });
  const SequenceError error =
      refused(request, Refused::kPrefillOverrun, [&] { return request.schedule_prefill(11); });
  EXPECT_EQ(error.asked, 11u);
  EXPECT_EQ(error.limit, 10u);
  EXPECT_THAT(error.to_error().message(), HasSubstr("11"));
  EXPECT_THAT(error.to_error().message(), HasSubstr("10"));
  EXPECT_EQ(error.to_error().code(), ErrorCode::kInvalidArgument);

  prefill(request, 6);
  refused(request, Refused::kPrefillOverrun, [&] { return request.schedule_prefill(5); });
  refused(request, Refused::kNothingToCompute, [&] { return request.schedule_prefill(0); });
  refused(request, Refused::kPrefillOverrun,
          [&] { return request.schedule_prefill(std::size_t{0} - 1); });  // no overflow on the way
  prefill(request, 4, Token(1));
}

TEST_F(RequestArgumentsTest, OnlyTheLastChunkYieldsAToken) {
  Request request = request_of(0, 10);
  value_of(request.schedule_prefill(9));
  const SequenceError early =
      refused(request, Refused::kWrongState, [&] { return request.schedule_decode(); });
  EXPECT_THAT(early.to_string(), HasSubstr("is prefill scheduled; this call is for one that is idle"));
  refused(request, Refused::kTokenNotExpected, [&] { return request.apply_prefill(Token(1)); });
  value_of(request.apply_prefill());
  value_of(request.schedule_prefill(1));
  refused(request, Refused::kTokenMissing, [&] { return request.apply_prefill(); });
  value_of(request.apply_prefill(Token(1)));
  EXPECT_EQ(request.size(), 11u);
  EXPECT_EQ(request.prompt_size(), 10u);
}

TEST_F(RequestArgumentsTest, AcceptedTokensAreOneToDraftsPlusOne) {
  Request request = request_of(0, 6);
  prefill_all(request, 1);
  value_of(request.schedule_speculative(3));
  refused(request, Refused::kTooManyAccepted, [&] { return request.apply_speculative({}); });
  const SequenceError error = refused(request, Refused::kTooManyAccepted,
                                      [&] { return request.apply_speculative(tokens_from(50, 5)); });
  EXPECT_EQ(error.asked, 5u);
  EXPECT_EQ(error.limit, 4u);
  value_of(request.apply_speculative(tokens_from(50, 4)));
  EXPECT_EQ(request.size(), 11u);
  EXPECT_EQ(request.computed_tokens(), 10u);
}

TEST_F(RequestArgumentsTest, DecodeNeedsExactlyOneTokenWithoutKv) {
  RequestOptions options;
  options.reuse_last_token = true;
  cache(tokens_from(0, 8));
  Request request = request_of(0, 8, std::move(options));
  EXPECT_EQ(value_of(request.match_prefix()), 8u);
  EXPECT_EQ(request.tokens_to_compute(), 0u);
  refused(request, Refused::kPrefillIncomplete, [&] { return request.schedule_decode(); });
  refused(request, Refused::kPrefillIncomplete, [&] { return request.schedule_speculative(1); });
  refused(request, Refused::kPrefillIncomplete, [&] { return request.fork(Token(1)); });
  refused(request, Refused::kPrefillOverrun, [&] { return request.schedule_prefill(1); });
  EXPECT_EQ(value_of(request.fork()).computed_tokens(), 8u);
}

TEST_F(RequestArgumentsTest, APromptOfOneTokenIsReadyToDecode) {
  Request request = request_of(5, 1);
  decode(request, 6);
  EXPECT_EQ(tokens_of(request), tokens_from(5, 2));
  EXPECT_EQ(request.computed_tokens(), 1u);
}

TEST_F(RequestArgumentsTest, NothingIsGeneratedPastTheLimit) {
  RequestOptions options;
  options.max_tokens = 6;
  Request request = request_of(0, 4, options);
  EXPECT_EQ(request.tokens_left(), 2u);
  EXPECT_FALSE(prefill_all(request, 1).at_limit);
  EXPECT_EQ(request.tokens_left(), 1u);
  EXPECT_TRUE(decode(request, 2).at_limit);
  EXPECT_EQ(request.tokens_left(), 0u);
  refused(request, Refused::kTooLong, [&] { return request.schedule_decode(); });
  refused(request, Refused::kTooLong, [&] { return request.schedule_speculative(1); });
  refused(request, Refused::kTooLong, [&] { return request.schedule_prefill(1); });
  EXPECT_EQ(request_of(0, 4).tokens_left(), std::nullopt);
}

TEST_F(RequestArgumentsTest, APromptAsLongAsTheLimitYieldsNoToken) {
  RequestOptions options;
  options.max_tokens = 6;
  Request request = request_of(0, 6, options);
  EXPECT_EQ(request.tokens_left(), 0u);
  refused(request, Refused::kTooLong, [&] { return request.schedule_prefill(6); });
  prefill(request, 5);  // not the last chunk
  refused(request, Refused::kTooLong, [&] { return request.schedule_prefill(1); });
  refused(request, Refused::kTooLong, [&] { return request.schedule_decode(); });
}

TEST_F(RequestArgumentsTest, SpeculationEndsAtTheLimit) {
  RequestOptions options;
  options.max_tokens = 7;
  Request request = request_of(0, 4, options);
  prefill_all(request, 1);
  EXPECT_EQ(request.tokens_left(), 2u);
  value_of(request.schedule_speculative(2));  // up to three tokens could be accepted
  refused(request, Refused::kTooLong, [&] { return request.apply_speculative(tokens_from(2, 3)); });
  const StepOutcome outcome = value_of(request.apply_speculative(tokens_from(2, 2)));
  EXPECT_TRUE(outcome.at_limit);
  EXPECT_EQ(request.tokens_left(), 0u);
  EXPECT_EQ(request.size(), 7u);
}

TEST_F(RequestArgumentsTest, NoRoomSaysWhyAndTakesNothing) {
  Request holder = request_of(1'000, 20);
  prefill(holder, 20, Token(1));  // 5 of 8 blocks
  Request request = request_of(0, 40);
  const SequenceError now = refused(request, Refused::kNoRoom, [&] { return request.schedule_prefill(13); });
  ASSERT_TRUE(now.refusal);
  EXPECT_EQ(now.refusal->reason, Reason::kNoRoom);
  EXPECT_EQ(now.refusal->requested, 4u);
  EXPECT_EQ(now.refusal->status.available(), 3u);
  EXPECT_EQ(now.to_error().code(), ErrorCode::kCapacity);
  const SequenceError never =
      refused(request, Refused::kNoRoom, [&] { return request.schedule_prefill(40); });
  ASSERT_TRUE(never.refusal);
  EXPECT_EQ(never.refusal->reason, Reason::kTooMany);

  prefill(request, 12);
  refused(holder, Refused::kNoRoom, [&] { return holder.schedule_decode(); });
}

TEST_F(RequestArgumentsTest, EveryKindOfStepIsRefusedWithoutRoom) {
  Request request = request_of(0, 8);
  prefill_all(request, 1);
  auto rest = value_of(manager_.allocate_blocks(6));
  for (const auto& call : std::vector<std::function<std::optional<Refused>()>>{
           [&] { return reason_of(request.schedule_decode()); },
           [&] { return reason_of(request.schedule_speculative(2)); },
           [&] { return reason_of(request.schedule_prefill(1)); }}) {
    const Snapshot before(request);
    const Places places_before = at();
    EXPECT_EQ(call(), Refused::kNoRoom);
    EXPECT_EQ(Snapshot(request), before);
    EXPECT_EQ(at(), places_before);
  }
  rest.truncate(5);
  refused(request, Refused::kNoRoom, [&] { return request.schedule_speculative(4); });  // two blocks
  decode(request, 2);
  decode(request, 3);  // in the block that is there
}

TEST_F(RequestArgumentsTest, MoreDraftsThanThereAreBlocksFindNoRoom) {
  Request request = request_of(0, 6);
  prefill_all(request, 1);
  for (const std::size_t drafts : {std::size_t{100}, SIZE_MAX / 2, SIZE_MAX - 8, SIZE_MAX - 1, SIZE_MAX}) {
    SCOPED_TRACE(drafts);
    const SequenceError& error =
        refused(request, Refused::kNoRoom, [&] { return request.schedule_speculative(drafts); });
    ASSERT_TRUE(error.refusal);
    EXPECT_EQ(error.refusal->reason, Reason::kTooMany);
  }
  decode(request, 2);
}

TEST_F(RequestArgumentsTest, ALimitThatIsNoLimitIsServedOrRefused) {
  for (const std::size_t limit : {std::size_t{1} << 40, SIZE_MAX / 2, SIZE_MAX}) {
    SCOPED_TRACE(limit);
    RequestOptions options;
    options.max_tokens = limit;
    auto request = Request::create(manager_, tokens_from(0, 6), options);  // throws nothing
    if (!request) {
      EXPECT_EQ(request.error().code(), ErrorCode::kInvalidArgument);
      continue;
    }
    prefill_all(*request, 1);
    EXPECT_EQ(request->tokens_left(), limit - 7);
  }
}

TEST_F(RequestArgumentsTest, CreateRefusesWhatCannotBeServed) {
  const auto refusal = [&](std::vector<Token> prompt, std::vector<SequenceHash> hashes,
                           RequestOptions options) {
    auto request = Request::create(manager_, std::move(prompt), std::move(hashes), std::move(options));
    EXPECT_FALSE(request.has_value());
    if (request) return std::string();
    EXPECT_EQ(request.error().code(), ErrorCode::kInvalidArgument);
    return request.error().message();
  };
  const auto names = sequence_of(3).sequence_hashes();

  EXPECT_THAT(refusal({}, {}, {}), HasSubstr("prompt"));
  RequestOptions limited;
  limited.max_tokens = 9;
  EXPECT_THAT(refusal(tokens_from(0, 10), {}, limited), AllOf(HasSubstr("10"), HasSubstr("9")));
  EXPECT_THAT(refusal(tokens_from(0, 10), names, {}),
              AllOf(HasSubstr("3"), HasSubstr("2")));                           // two full blocks
  EXPECT_FALSE(refusal(tokens_from(0, 12), {names[0], names[2]}, {}).empty());  // a position is left out
  EXPECT_FALSE(refusal(tokens_from(0, 12), {names[1]}, {}).empty());            // not from the start
  RequestOptions keyed;
  keyed.hasher = tokens::SequenceHasher(tokens::HashScheme::keyed128({1, 2, 3}), {});
  EXPECT_FALSE(refusal(tokens_from(0, 12), names, keyed).empty());  // of another scheme

  RequestOptions with_run;
  with_run.runs = {{7, 8, 4}};
  EXPECT_FALSE(refusal(tokens_from(0, 10), {}, with_run).empty());  // ends after the prompt
  with_run.runs = {{7, 2, 0}};
  EXPECT_FALSE(refusal(tokens_from(0, 10), {}, with_run).empty());  // empty
  with_run.runs = {{7, 2, 3}, {8, 4, 2}};
  EXPECT_FALSE(refusal(tokens_from(0, 10), {}, with_run).empty());  // overlapping

  RequestOptions windows;
  windows.groups = {CacheGroup::full_attention(), CacheGroup::sliding_window(0)};
  EXPECT_THAT(refusal(tokens_from(0, 10), {}, windows), HasSubstr("window"));

  RequestOptions retained;
  retained.retention.prompt = {{0, std::nullopt, 101, std::nullopt}};
  EXPECT_THAT(refusal(tokens_from(0, 10), {}, retained), HasSubstr("101"));
  retained.retention.prompt = {{5, 5, 50, std::nullopt}};
  EXPECT_FALSE(refusal(tokens_from(0, 10), {}, retained).empty());
  retained.retention.prompt = {{0, 5, 50, Clock::Duration::zero()}};
  EXPECT_FALSE(refusal(tokens_from(0, 10), {}, retained).empty());

  EXPECT_EQ(at(), (Places{.reset = 8}));
}

TEST_F(RequestArgumentsTest, AFreshRequestShowsItsPrompt) {
  const Request request =
      value_of(Request::create(manager_, tokens_from(3, 10), sequence_of(1, 3).sequence_hashes(), {}));
  EXPECT_EQ(request.state(), RequestState::kIdle);
  EXPECT_EQ(tokens_of(request), tokens_from(3, 10));
  EXPECT_EQ(request.size(), 10u);
  EXPECT_EQ(request.prompt_size(), 10u);
  EXPECT_EQ(request.computed_tokens(), 0u);
  EXPECT_EQ(request.cached_tokens(), 0u);
  EXPECT_EQ(request.tokens_to_compute(), 10u);
  EXPECT_EQ(request.group_count(), 1u);
  EXPECT_TRUE(request.block_table().empty());
  EXPECT_TRUE(request.copies().empty());
  const auto names = sequence_of(2, 3).sequence_hashes();
  EXPECT_TRUE(std::ranges::equal(request.sequence_hashes(), names));
}

}  // namespace
}  // namespace ashlar::block::support
