// Dumps of another router, as they are read.
#include "service/gateway/snapshot.h"

#include <gtest/gtest.h>

#include <string>

namespace ashlar::service {
namespace {

// A dump of one worker with one sequence.
std::string dump_of(std::size_t blocks) {
  std::string text =
      R"({"m:default":{"block_size":16,"events":[{"worker_id":1,"storage_tier":"device","event":{)"
      R"("event_id":0,"dp_rank":0,"data":{"stored":{"parent_hash":null,"blocks":[)";
  for (std::size_t i = 0; i < blocks; ++i)
    text += (i == 0 ? "" : ",") + (R"({"block_hash":)" + std::to_string(i + 1)) + R"(,"tokens_hash":)" +
            std::to_string(i * 7919 + 13) + "}";
  return text + R"(]}}}}],"workers":{"1":"gpu1"},"states":{}}})";
}

TEST(Snapshot, ASequenceMayBeAsLongAsItLikes) {
  for (const std::size_t blocks : {std::size_t{3}, std::size_t{400'000}}) {
    const Result<Snapshot> snapshot = read_snapshot(dump_of(blocks));
    ASSERT_TRUE(snapshot) << snapshot.error();
    ASSERT_EQ(snapshot->workers.size(), 1u);
    const auto& held = snapshot->workers.at("gpu1");
    ASSERT_EQ(held.size(), 1u);
    ASSERT_EQ(held[0].locals.size(), blocks);
    EXPECT_EQ(held[0].locals.front(), tokens::LocalHash(13));
    EXPECT_EQ(held[0].locals.back(), tokens::LocalHash((blocks - 1) * 7919 + 13));
  }
}

}  // namespace
}  // namespace ashlar::service
