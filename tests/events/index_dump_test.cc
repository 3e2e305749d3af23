// Bytes that are no dump, or a damaged one: a clear error, and an index that is unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ashlar/events/event_codec.h"
#include "ashlar/events/router_event_json.h"
#include "ashlar/testing/index_calls.h"
#include "ashlar/testing/index_oracle.h"
#include "events/dump_check.h"

namespace ashlar::events {
namespace {

using ::testing::HasSubstr;
using testing::IndexOracle;
using testing::RecordedCalls;

constexpr Worker kOne{WorkerId(1), 0};
constexpr Worker kTwo{WorkerId(1), 3};

StoredBlock block_at(std::uint64_t i) {
  return {tokens::LocalHash(500 + i), BlockName(100 + i)};
}

// Two workers, a branch, two tiers.
template <class Sink>
void fill(Sink& sink) {
  const std::vector<StoredBlock> stem = {block_at(0), block_at(1), block_at(2)};
  const std::vector<StoredBlock> branch = {block_at(7), block_at(8)};
  sink.store({kOne, StorageTier::kDevice, std::nullopt, 0, stem});
  sink.store({kOne, StorageTier::kDisk, BlockName(101), 2, branch});
  sink.store({kTwo, StorageTier::kHost, std::nullopt, 0, stem});
  sink.store({kTwo, StorageTier::kDevice, std::nullopt, 0, std::span(stem).first(2)});
}

std::vector<std::byte> stream_dump() {
  DumpWriter writer;
  fill(writer);
  return std::move(writer).finish().value();
}
std::string json_dump() {
  RouterDumpWriter writer("m:g", 16);
  fill(writer);
  return std::move(writer).finish().value();
}
IndexOracle filled() {
  IndexOracle oracle;
  fill(oracle);
  return oracle;
}

// The error of reading; the index must not have been called.
Error stream_error(std::span<const std::byte> bytes) {
  RecordedCalls calls;
  const Result<DumpCounts> read = read_dump(bytes, calls);
  EXPECT_FALSE(read);
  EXPECT_TRUE(calls.calls().empty());
  return read ? Error(ErrorCode::kCancelled, "it was read") : read.error();
}
Error json_error(std::string_view json, std::string_view key = {}) {
  RecordedCalls calls;
  const Result<DumpCounts> read = read_router_dump(json, calls, key);
  EXPECT_FALSE(read) << json;
  EXPECT_TRUE(calls.calls().empty());
  return read ? Error(ErrorCode::kCancelled, "it was read") : read.error();
}
// The same for a dump of these calls.
template <class Fill>
std::pair<Error, Error> errors_of(Fill&& fill_it) {
  DumpWriter stream;
  RouterDumpWriter json;
  fill_it(stream);
  fill_it(json);
  return {stream_error(std::move(stream).finish().value()), json_error(std::move(json).finish().value())};
}

TEST(IndexDumpTest, BothFormsAreReadBack) {
  IndexOracle from_stream;
  IndexOracle from_json;
  const DumpCounts read = read_dump(stream_dump(), from_stream).value();
  EXPECT_EQ(read, (DumpCounts{.workers = 2, .stored = 10, .removed = 0, .block_size = 0}));
  EXPECT_EQ(read_router_dump(json_dump(), from_json)->block_size, 16u);
  EXPECT_EQ(difference(from_stream, filled()), "");
  EXPECT_EQ(difference(from_json, filled()), "");
  EXPECT_THAT(json_dump(), HasSubstr(R"({"m:g":{"block_size":16,"events":[{"worker_id":1,"storage_tier")"
                                     R"(:"device","residency_domain":"worker","event":{"event_id":0,"data":)"
                                     R"({"stored":{"parent_hash":null,"start_position":0,"blocks":[{"block)"
                                     R"(_hash":100,"tokens_hash":500,"mm_extra_info":null})"));
}

TEST(IndexDumpTest, EveryTruncationIsAnError) {
  const std::vector<std::byte> stream = stream_dump();
  for (std::size_t size = 0; size < stream.size(); ++size) {
    const Error error = stream_error(std::span(stream).first(size));
    EXPECT_EQ(error.code(), ErrorCode::kCorruption) << size;
    EXPECT_THAT(error.message(), size < 16 ? HasSubstr("do not begin as a dump") : HasSubstr("truncated"));
  }
  const std::string json = json_dump();
  for (std::size_t size = 0; size < json.size(); ++size)
    EXPECT_EQ(json_error(std::string_view(json).substr(0, size)).code(), ErrorCode::kCorruption) << size;
}

TEST(IndexDumpTest, EveryChangedByteOfABatchIsAnError) {
  const std::vector<std::byte> stream = stream_dump();
  for (std::size_t at = 0; at < stream.size(); ++at) {
    std::vector<std::byte> changed = stream;
    changed[at] ^= std::byte{0x20};
    EXPECT_NE(stream_error(changed).code(), ErrorCode::kCancelled) << at;
  }
}

TEST(IndexDumpTest, ErrorsSayWhatIsWrong) {
  std::vector<std::byte> stream = stream_dump();
  stream.push_back(std::byte{0});
  EXPECT_THAT(stream_error(stream).message(), HasSubstr("1 bytes after the last batch"));
  stream = stream_dump();
  stream[8] = std::byte{9};
  EXPECT_EQ(stream_error(stream).code(), ErrorCode::kUnsupported);
  EXPECT_THAT(stream_error(stream).message(), HasSubstr("version 9; this library reads version 1"));
  stream = stream_dump();
  std::memset(stream.data() + 12, 0, 4);
  EXPECT_THAT(stream_error(stream).message(), HasSubstr("a recording of events, not a dump"));
  stream = stream_dump();
  // The first batch once more: its part is there already.
  std::uint32_t length = 0;
  std::memcpy(&length, stream.data() + 16, sizeof length);
  stream.insert(stream.end(), stream.begin() + 16, stream.begin() + 20 + length);
  stream[12] = std::byte{3};
  EXPECT_THAT(stream_error(stream).message(), HasSubstr("part 0 of 1 of worker 1/0, where part 1 of 1"));

  EXPECT_THAT(json_error("[]").message(), HasSubstr("a dump must be an object"));
  EXPECT_THAT(json_error(json_dump() + "x").message(), HasSubstr("more text after the dump"));
  EXPECT_THAT(json_error("{}").message(), HasSubstr("0 indexes"));
  EXPECT_THAT(json_error(R"({"a":{"events":[]},"b":{"events":[]}})").message(), HasSubstr("name the key"));
  EXPECT_EQ(json_error(json_dump(), "n:g").code(), ErrorCode::kNotFound);
  EXPECT_THAT(json_error(R"({"a":{"block_size":16}})").message(), HasSubstr("without events"));
  std::string json = json_dump();
  json.replace(json.find("host_pinned"), 11, "host_petted");
  EXPECT_EQ(json_error(json).code(), ErrorCode::kUnsupported);
  EXPECT_THAT(json_error(json).message(), HasSubstr("\"host_petted\""));
}

TEST(IndexDumpTest, ParentsAndNamesMustAgree) {
  const StoredBlock first[] = {block_at(0)};
  const StoredBlock second[] = {block_at(1)};
  const auto expect = [](const std::pair<Error, Error>& errors, const char* what) {
    for (const Error& error : {errors.first, errors.second}) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruption);
      EXPECT_THAT(error.message(), HasSubstr(what));
    }
  };
  expect(errors_of([&](IndexSink& sink) { sink.store({kOne, {}, BlockName(100), 1, second}); }),
         "block 101 of worker 1/0 has a parent that the dump has not stored");
  expect(errors_of([&](IndexSink& sink) {
           sink.store({kTwo, {}, std::nullopt, 0, first});
           sink.store({kOne, {}, BlockName(100), 1, second});
         }),
         "has a parent that the dump has not stored");
  expect(errors_of([&](IndexSink& sink) {
           sink.store({kOne, {}, std::nullopt, 0, first});
           sink.store({kOne, {}, std::nullopt, 0, first});
         }),
         "block 100 of worker 1/0 is stored twice in one tier");
  expect(errors_of([&](IndexSink& sink) {
           sink.store({kOne, {}, std::nullopt, 0, first});
           sink.store({kOne, {}, BlockName(100), 2, second});
         }),
         "is not at the position behind its parent");
  expect(errors_of([&](IndexSink& sink) {
           const StoredBlock other[] = {{tokens::LocalHash(7), BlockName(100)}};
           sink.store({kOne, {}, std::nullopt, 0, first});
           sink.store({kOne, StorageTier::kHost, std::nullopt, 0, other});
         }),
         "means two contents");
  expect(errors_of([&](IndexSink& sink) {
           sink.store({kOne, {}, std::nullopt, 0, first});
           sink.remove(kOne, StorageTier::kHost, std::vector{BlockName(100)});
         }),
         "block 100 of worker 1/0 is removed and was not stored");
}

TEST(IndexDumpTest, ARefusalLeavesNothingOfTheDump) {
  class Small final : public IndexSink {
   public:
    StoreVerdict store(const BlocksStored& event) override {
      return ++stores == 3 ? StoreVerdict::kFull : oracle.store(event);
    }
    std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) override {
      return oracle.remove(worker, tier, names);
    }
    void clear(const Worker& worker) override { oracle.clear(worker); }
    void remove_worker(WorkerId worker) override { oracle.remove_worker(worker); }

    int stores = 0;
    IndexOracle oracle;
  };
  Small small;
  const StoredBlock other[] = {block_at(40)};
  small.oracle.store({{WorkerId(9), 0}, {}, std::nullopt, 0, other});
  const Result<DumpCounts> read = read_dump(stream_dump(), small);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kCapacity);
  EXPECT_THAT(read.error().message(), HasSubstr("full"));
  EXPECT_EQ(small.oracle.sizes().blocks, 1u);
  small.stores = 0;
  EXPECT_EQ(read_router_dump(json_dump(), small).error().code(), ErrorCode::kCapacity);
  EXPECT_EQ(small.oracle.sizes().blocks, 1u);
}

// What is written can be read, whatever the options say: a reader refuses larger batches than these.
TEST(IndexDumpTest, NoBatchIsLargerThanItsReaderAllows) {
  std::vector<StoredBlock> chain;
  for (std::uint64_t i = 0; i < 500; ++i) chain.push_back(block_at(i));
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{40000}}) {
    SCOPED_TRACE(bytes);
    DumpWriter writer({.keys = {}, .position = {}, .batch_events = SIZE_MAX, .batch_bytes = bytes});
    writer.store({kOne, StorageTier::kDevice, std::nullopt, 0, chain});
    for (const StoredBlock& block : chain)  // runs of one
      writer.remove(kOne, StorageTier::kDevice, std::span(&block.name, 1));
    writer.store({kTwo, StorageTier::kHost, std::nullopt, 0, chain});
    const std::vector<std::byte> dump = std::move(writer).finish().value();
    IndexOracle read;
    EXPECT_EQ(read_dump(dump, read)->stored, 1000u);
    std::uint32_t batches = 0;
    std::memcpy(&batches, dump.data() + 12, sizeof batches);
    EXPECT_GE(batches, 2u);
    std::size_t at = 16;
    for (std::uint32_t i = 0; i < batches; ++i) {
      std::uint32_t length = 0;
      std::memcpy(&length, dump.data() + at, sizeof length);
      OwnedBatch batch;
      const auto one = std::span(dump).subspan(at + sizeof length, length);
      // One event is the least; of more, none is above the limit.
      ASSERT_TRUE(decode_batch(one, batch));
      if (batch.events.size() > 1) {
        ASSERT_TRUE(decode_batch(one, batch, bytes)) << "batch " << i << " of " << batches;
      }
      at += sizeof length + length;
    }
    EXPECT_EQ(at, dump.size());
  }
  // No option exceeds the limit of all readers.
  EXPECT_EQ(most_events_within(kMaxDecodedBytes) * sizeof(KvEvent) / kMaxDecodedBytes, 0u);
  DumpWriter unlimited({.keys = {}, .position = {}, .batch_events = SIZE_MAX, .batch_bytes = SIZE_MAX});
  EXPECT_EQ(unlimited.batch_events(), most_events_within(kMaxDecodedBytes));
}

TEST(IndexDumpTest, WritersRefuseWhatHasNoForm) {
  DumpWriter removes;
  removes.remove_worker(WorkerId(4));
  EXPECT_EQ(std::move(removes).finish().error().code(), ErrorCode::kUnsupported);
  RouterDumpWriter json;
  json.remove_worker(WorkerId(4));
  EXPECT_EQ(std::move(json).finish().error().code(), ErrorCode::kUnsupported);
  const StoredBlock second[] = {block_at(1)};
  DumpWriter placeless;
  placeless.store({kOne, {}, BlockName(100), std::nullopt, second});
  EXPECT_THAT(std::move(placeless).finish().error().message(), HasSubstr("without a position"));
  DumpWriter deep;
  deep.store({kOne, {}, BlockName(100), tokens::SequenceHash::kMaxPosition + 1, second});
  EXPECT_EQ(std::move(deep).finish().error().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace ashlar::events
