// Forks: everything is shared; the last block, partly filled, until one of the sharers writes to it.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "block/sequence/request_fixture.h"

namespace ashlar::block::support {
namespace {

class RequestForkTest : public RequestTest {
 protected:
  RequestForkTest() : RequestTest(32) {}

  // One full block and one that is half filled; the last token has no KV.
  Request running() {
    Request request = request_of(0, 6);
    prefill_all(request, 100);
    return request;
  }
  std::size_t held() const { return at().active + at().owned; }
};

TEST_F(RequestForkTest, AForkHasTheSameTokensAndBlocks) {
  Request request = request_of(0, 10);
  prefill_all(request, 100);
  decode(request, 101);
  const Places before = at();
  const Request fork = value_of(request.fork());
  EXPECT_EQ(Snapshot(fork), Snapshot(request));
  EXPECT_EQ(fork.prompt_size(), 10u);
  EXPECT_EQ(at(), before);  // a fork costs no block
  EXPECT_EQ(engine_.check(fork), "");
  auto shared = manager_.match_blocks(request.sequence_hashes());
  ASSERT_EQ(shared.size(), 2u);
  for (const Immutable& block : shared) EXPECT_EQ(block.use_count(), 3u);  // two requests and this test
}

TEST_F(RequestForkTest, AForkOutlivesItsOrigin) {
  std::optional<Request> request = running();
  const Request fork = value_of(request->fork());
  request.reset();
  overwrite_available_blocks();
  EXPECT_EQ(engine_.check(fork), "");
  EXPECT_EQ(held(), 2u);
}

TEST_F(RequestForkTest, AFreshRequestMayBeForked) {
  Request request = request_of(0, 10);
  Request fork = value_of(request.fork());
  prefill_all(request, 1);
  EXPECT_EQ(value_of(fork.match_prefix()), 8u);
  prefill_all(fork, 2);
  for (const std::size_t i : {0u, 1u}) EXPECT_EQ(table_of(fork)[i], table_of(request)[i]);
  EXPECT_EQ(engine_.check(request), "");
}

TEST_F(RequestForkTest, AForkMayHaveAnotherLastToken) {
  Request request = running();
  Request fork = value_of(request.fork(Token(200)));
  EXPECT_EQ(tokens_of(request), tokens_of({0, 1, 2, 3, 4, 5, 100}));
  EXPECT_EQ(tokens_of(fork), tokens_of({0, 1, 2, 3, 4, 5, 200}));
  EXPECT_EQ(table_of(fork), table_of(request));
  decode(request, 101);
  decode(fork, 201);
  decode(fork, 202);
  EXPECT_EQ(tokens_of(fork), tokens_of({0, 1, 2, 3, 4, 5, 200, 201, 202}));
  EXPECT_EQ(engine_.check(request), "");
  expect_visible(request);
  expect_visible(fork);
}

TEST_F(RequestForkTest, AnotherLastTokenIsAnotherName) {
  Request request = request_of(0, 7);
  prefill_all(request, 100);                        // fills block 1
  ASSERT_EQ(request.sequence_hashes().size(), 2u);  // its name is known before it is computed
  Request fork = value_of(request.fork(Token(200)));
  ASSERT_EQ(fork.sequence_hashes().size(), 2u);
  EXPECT_EQ(fork.sequence_hashes()[0], request.sequence_hashes()[0]);
  EXPECT_NE(fork.sequence_hashes()[1], request.sequence_hashes()[1]);
  EXPECT_EQ(decode(request, 101).registered, 1u);
  EXPECT_EQ(decode(fork, 201).registered, 1u);
  EXPECT_EQ(registered().size(), 3u);
  expect_visible(request);
  expect_visible(fork);
}

TEST_F(RequestForkTest, ATrustedNameDoesNotOutliveItsTokens) {
  Request request =
      value_of(Request::create(manager_, tokens_from(0, 8), sequence_of(2).sequence_hashes(), {}));
  prefill(request, 7);
  Request fork = value_of(request.fork(Token(200)));  // replaces a token of the prompt
  EXPECT_EQ(decode(request, 8).registered, 1u);
  EXPECT_EQ(decode(fork, 201).registered, 1u);
  EXPECT_EQ(registered().size(), 3u);
  EXPECT_EQ(manager_.counters().collisions, 0u);
  expect_visible(request);
  expect_visible(fork);
}

// ---- copy on write

TEST_F(RequestForkTest, TheFirstWriterCopiesAndTheOtherKeepsTheBlock) {
  Request request = running();
  Request fork = value_of(request.fork());
  const Ids shared = table_of(request);

  const StepPlan plan = value_of(fork.schedule_decode());
  ASSERT_EQ(plan.copies.size(), 1u);
  EXPECT_EQ(plan.new_blocks, 1u);
  EXPECT_EQ(plan.copies[0].group, 0u);
  EXPECT_EQ(plan.copies[0].source.value(), shared[1]);
  EXPECT_EQ(plan.copies[0].destination, fork.block_table()[1]);
  EXPECT_EQ(fork.copies().data(), plan.copies.data());
  EXPECT_EQ(table_of(fork)[0], shared[0]);
  EXPECT_NE(table_of(fork)[1], shared[1]);
  EXPECT_EQ(table_of(request), shared);
  EXPECT_EQ(held(), 3u);
  EXPECT_EQ(engine_.run(fork, 1), "");
  value_of(fork.apply_decode(Token(7)));
  EXPECT_TRUE(fork.copies().empty());
  EXPECT_EQ(engine_.check(fork), "");

  EXPECT_TRUE(value_of(request.schedule_decode()).copies.empty());
  EXPECT_EQ(engine_.run(request, 1), "");
  value_of(request.apply_decode(Token(8)));
  EXPECT_EQ(table_of(request), shared);
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(engine_.check(fork), "");
  EXPECT_EQ(held(), 3u);
}

TEST_F(RequestForkTest, ThreeSharersMakeTwoCopies) {
  Request a = running();
  Request b = value_of(a.fork());
  Request c = value_of(b.fork());
  std::size_t copies = 0;
  for (Request* request : {&a, &b, &c}) {
    copies += value_of(request->schedule_decode()).copies.size();
    EXPECT_EQ(engine_.run(*request, 1), "");
    value_of(request->apply_decode(Token(7)));
  }
  EXPECT_EQ(copies, 2u);
  for (Request* request : {&a, &b, &c}) EXPECT_EQ(engine_.check(*request), "");
  EXPECT_EQ(held(), 4u);
}

TEST_F(RequestForkTest, OneOfThreeSharersIsGone) {
  Request a = running();
  Request b = value_of(a.fork());
  {
    const Request c = value_of(a.fork());
  }
  EXPECT_EQ(value_of(a.schedule_decode()).copies.size(), 1u);
  EXPECT_EQ(engine_.run(a, 1), "");
  value_of(a.apply_decode(Token(7)));
  EXPECT_TRUE(value_of(b.schedule_decode()).copies.empty());
}

TEST_F(RequestForkTest, ASharerThatIsAloneAgainDoesNotCopy) {
  Request request = running();
  const Ids before = table_of(request);
  {
    const Request fork = value_of(request.fork());
  }
  EXPECT_TRUE(value_of(request.schedule_decode()).copies.empty());
  EXPECT_EQ(table_of(request), before);
  request.revert().value();
  Request fork = value_of(request.fork());
  fork.preempt().value();
  EXPECT_TRUE(value_of(request.schedule_decode()).copies.empty());
}

TEST_F(RequestForkTest, FullBlocksAreNeverCopied) {
  Request request = request_of(0, 8);
  prefill_all(request, 100);
  Request fork = value_of(request.fork());
  for (Request* each : {&request, &fork}) {
    const StepPlan plan = value_of(each->schedule_decode());
    EXPECT_EQ(plan.new_blocks, 1u);
    EXPECT_TRUE(plan.copies.empty());
    EXPECT_EQ(engine_.run(*each, 1), "");
    value_of(each->apply_decode(Token(7)));
  }
  EXPECT_EQ(table_of(request)[1], table_of(fork)[1]);
  EXPECT_NE(table_of(request)[2], table_of(fork)[2]);
  EXPECT_EQ(held(), 4u);
}

TEST_F(RequestForkTest, TheSourceIsKeptUntilTheStepIsApplied) {
  std::optional<Request> request = running();
  Request fork = value_of(request->fork());
  const std::uint32_t source = table_of(fork)[1];
  ASSERT_EQ(value_of(fork.schedule_decode()).copies.size(), 1u);
  request.reset();
  EXPECT_EQ(held(), 3u);
  overwrite_available_blocks();  // not the source
  EXPECT_EQ(fork.copies()[0].source.value(), source);
  EXPECT_EQ(engine_.run(fork, 1), "");
  EXPECT_EQ(held(), 3u);
  value_of(fork.apply_decode(Token(7)));
  EXPECT_EQ(engine_.check(fork), "");
  EXPECT_EQ(held(), 2u);
  EXPECT_EQ(at().reset, 30u);
}

TEST_F(RequestForkTest, ARevertedStepSharesAgain) {
  Request request = running();
  Request fork = value_of(request.fork());
  const Snapshot before(fork);
  const Places places_before = at();
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_EQ(value_of(fork.schedule_decode()).copies.size(), 1u);
    fork.revert().value();
    EXPECT_EQ(Snapshot(fork), before);
    EXPECT_EQ(at(), places_before);
    EXPECT_EQ(value_of(fork.schedule_speculative(9)).copies.size(), 1u);
    fork.revert().value();
    EXPECT_EQ(Snapshot(fork), before);
    EXPECT_EQ(at(), places_before);
  }
  EXPECT_EQ(table_of(fork), table_of(request));
  decode(fork, 1);
  EXPECT_TRUE(value_of(request.schedule_decode()).copies.empty());
}

TEST_F(RequestForkTest, ARevertedStepIsAloneWhenTheOthersAreGone) {
  std::optional<Request> request = running();
  Request fork = value_of(request->fork());
  const Ids shared = table_of(fork);
  value_of(fork.schedule_decode());
  request.reset();
  fork.revert().value();
  EXPECT_EQ(table_of(fork), shared);
  EXPECT_EQ(held(), 2u);
  EXPECT_TRUE(value_of(fork.schedule_decode()).copies.empty());
}

TEST_F(RequestForkTest, BothSharersMayBeInFlightAtOnce) {
  Request request = running();
  Request fork = value_of(request.fork(Token(200)));
  value_of(fork.schedule_decode());
  value_of(request.schedule_decode());
  EXPECT_NE(table_of(request)[1], table_of(fork)[1]);
  EXPECT_EQ(engine_.run(request, 1), "");
  EXPECT_EQ(engine_.run(fork, 1), "");
  value_of(request.apply_decode(Token(1)));
  value_of(fork.apply_decode(Token(2)));
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(engine_.check(fork), "");
  EXPECT_EQ(held(), 3u);
}

TEST_F(RequestForkTest, AChunkOrDraftsCopyToo) {
  Request request = request_of(0, 14);
  prefill(request, 6);
  Request fork = value_of(request.fork());
  const StepPlan chunk = value_of(fork.schedule_prefill(8));
  EXPECT_EQ(chunk.copies.size(), 1u);
  EXPECT_EQ(chunk.new_blocks, 3u);
  EXPECT_EQ(engine_.run(fork, 8), "");
  value_of(fork.apply_prefill(Token(14)));
  EXPECT_EQ(engine_.check(fork), "");
  EXPECT_EQ(engine_.check(request), "");

  Request third = value_of(fork.fork());
  EXPECT_EQ(value_of(third.schedule_speculative(3)).copies.size(), 1u);
  EXPECT_EQ(engine_.run_with_drafts(third, tokens_from(50, 3)), "");
  value_of(third.apply_speculative(tokens_of({50, 60})));
  EXPECT_EQ(engine_.check(third), "");
  EXPECT_EQ(engine_.check(fork), "");
}

TEST_F(RequestForkTest, AStepWithoutRoomForTheCopyIsRefused) {
  Request request = running();
  Request fork = value_of(request.fork());
  const auto rest = value_of(manager_.allocate_blocks(available()));
  const Snapshot before(fork);
  const Places places_before = at();
  EXPECT_EQ(reason_of(fork.schedule_decode()), Refused::kNoRoom);
  EXPECT_EQ(Snapshot(fork), before);
  EXPECT_EQ(at(), places_before);
  request.release();
  decode(fork, 1);  // alone now
}

TEST_F(RequestForkTest, SharersThatFillTheBlockAlikeRegisterOnePrimary) {
  Request request = running();
  Request fork = value_of(request.fork());
  decode(request, 101);
  decode(fork, 101);
  EXPECT_EQ(decode(request, 102).registered, 1u);
  decode(fork, 102);
  EXPECT_EQ(registered().size(), 2u);
  expect_visible(fork);
}

TEST_F(RequestForkTest, AForkMayBePreemptedAndResumedAlone) {
  Request request = request_of(0, 10);
  prefill_all(request, 100);
  Request fork = value_of(request.fork(Token(200)));
  const Ids table = table_of(request);
  fork.preempt().value();
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(value_of(fork.resume()), 8u);
  EXPECT_EQ(table_of(fork), Ids(table.begin(), table.begin() + 2));
  prefill_all(fork, 201);
  decode(request, 101);
  EXPECT_EQ(engine_.check(fork), "");
}

// ---- beam search

// Keeps `width` beams; after each step two of them are dropped and the best is forked in their place.
TEST_F(RequestForkTest, BeamSearchSharesWhatTheBeamsHaveInCommon) {
  constexpr std::size_t kWidth = 4;
  std::vector<Request> beams;
  {
    Request root = request_of(0, 6);
    prefill_all(root, 100);
    for (std::uint32_t i = 0; i < kWidth; ++i) beams.push_back(value_of(root.fork(Token(100 + i))));
  }
  EXPECT_EQ(held(), 2u);
  std::uint32_t next = 1'000;
  std::size_t copies = 0;
  for (std::size_t step = 0; step < 20; ++step) {
    SCOPED_TRACE(step);
    Batch batch;
    for (Request& beam : beams) batch.add(beam);
    copies += value_of(batch.schedule_decode()).copies;
    std::vector<Token> tokens;
    for (Request& beam : beams) {
      EXPECT_EQ(engine_.run(beam, 1), "");
      tokens.emplace_back(next++);
    }
    value_of(batch.apply_decode(tokens));
    for (const Request& beam : beams) ASSERT_EQ(engine_.check(beam), "");

    // The two worst go; the best is continued with other tokens.
    const std::size_t best = step % kWidth;
    std::swap(beams[0], beams[best]);
    beams.erase(beams.begin() + 2, beams.end());
    for (std::size_t i = 0; i < 2; ++i) beams.push_back(value_of(beams[i].fork(Token(next++))));
    for (const Request& beam : beams) ASSERT_EQ(engine_.check(beam), "");
    overwrite_available_blocks();
    for (const Request& beam : beams) ASSERT_EQ(engine_.check(beam), "");
  }
  EXPECT_GT(copies, 20u);
  std::set<std::uint32_t> distinct;
  for (const Request& beam : beams) {
    for (const std::uint32_t id : table_of(beam)) distinct.insert(id);
  }
  EXPECT_EQ(held(), distinct.size());
  EXPECT_LT(distinct.size(), kWidth * beams[0].block_table().size());
  beams.clear();
  EXPECT_EQ(held(), 0u);
}

}  // namespace
}  // namespace ashlar::block::support
