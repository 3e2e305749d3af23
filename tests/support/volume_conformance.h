// What every volume promises (ashlar/tiers/volume.h), as one suite.
//
//   INSTANTIATE_TEST_SUITE_P(Directory, VolumeTest, ::testing::Values(VolumeCase{"directory", [] { … }}),
//   volume_case_name);
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ashlar/tiers/volume.h"
#include "support/server.h"
#include "support/volume_objects.h"

namespace ashlar::tiers {

// A volume that is empty, or whose keys nobody else uses; keeps what it needs, a server or a folder.
struct VolumeInTest {
  virtual ~VolumeInTest() = default;
  virtual Volume& volume() = 0;
};

struct VolumeCase {
  std::string name;
  // Null where its server is missing.
  std::function<std::unique_ptr<VolumeInTest>()> make;
  std::size_t longest_key = Volume::kMaxKey;

  friend void PrintTo(const VolumeCase& shown, std::ostream* out) { *out << shown.name; }
};

inline std::string volume_case_name(const ::testing::TestParamInfo<VolumeCase>& info) {
  return info.param.name;
}

class VolumeTest : public ::testing::TestWithParam<VolumeCase> {
 protected:
  void SetUp() override {
    held_ = GetParam().make();
    ASHLAR_NEEDS_SERVER(held_ != nullptr, "the server of " + GetParam().name + " volumes is missing");
  }
  Volume& volume() { return held_->volume(); }
  void expect_object(const std::string& key, const Bytes& bytes) {
    const Result<Bytes> got = get_one(volume(), key, bytes.size());
    ASSERT_TRUE(got) << got.error();
    EXPECT_TRUE(*got == bytes) << key;
  }

  std::unique_ptr<VolumeInTest> held_;
};

TEST_P(VolumeTest, ObjectsOfManySizesComeBackAsTheyWere) {
  const std::vector<std::size_t> sizes{0, 1, 2, 4095, 4096, 65537, 1 << 20, 9 << 20};
  Writes writes;
  Reads reads;
  for (const std::size_t size : sizes) {
    writes.add("sizes/" + std::to_string(size), make_bytes(size, size));
    reads.add("sizes/" + std::to_string(size), size);
  }
  for (const Result<void>& result : volume().put(writes.objects())) EXPECT_TRUE(result) << result.error();
  const std::vector<Result<void>> results = volume().get(reads.objects());
  ASSERT_EQ(results.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_TRUE(results[i]) << results[i].error();
    EXPECT_TRUE(reads.bytes(i) == writes.bytes(i)) << sizes[i];
    EXPECT_TRUE(reads.is_guard_untouched(i)) << sizes[i];
  }
}

// More parts than a system call takes at once, cut differently on both sides.
TEST_P(VolumeTest, ObjectsMayHaveThousandsOfParts) {
  std::vector<std::size_t> written(3000, 7);
  std::vector<std::size_t> read(2500, 8);
  for (std::size_t i = 0; i < written.size(); i += 4) written[i] = i % 8 == 0 ? 0 : 14;
  read.insert(read.begin() + 100, 3, 0);
  read.push_back(1000);
  Writes writes;
  Reads reads;
  writes.add("parts", make_bytes(21'000, 12), written);
  reads.add("parts", read);
  const Result<void> put = volume().put(writes.objects()).at(0);
  ASSERT_TRUE(put) << put.error();
  const Result<void> got = volume().get(reads.objects()).at(0);
  ASSERT_TRUE(got) << got.error();
  EXPECT_TRUE(reads.bytes(0) == writes.bytes(0));
  EXPECT_TRUE(reads.is_guard_untouched(0));
}

TEST_P(VolumeTest, BatchesOfHundredsAnswerEveryObject) {
  constexpr std::size_t kObjects = 200;
  Writes writes;
  Reads reads;
  std::vector<std::string_view> keys;
  for (std::size_t i = 0; i < kObjects; ++i) writes.add("many/" + std::to_string(i), make_bytes(i * 7, i));
  for (const Result<void>& result : volume().put(writes.objects())) EXPECT_TRUE(result) << result.error();
  // Every third is asked for under a key that nobody wrote.
  for (std::size_t i = 0; i < kObjects; ++i) {
    reads.add((i % 3 == 0 ? "none/" : "many/") + std::to_string(i), i * 7);
    keys.push_back(reads.objects()[i].key);
  }
  const std::vector<Result<void>> results = volume().get(reads.objects());
  const std::vector<Result<bool>> there = volume().contains(keys);
  for (std::size_t i = 0; i < kObjects; ++i) {
    ASSERT_TRUE(there[i]) << there[i].error();
    EXPECT_EQ(*there[i], i % 3 != 0);
    if (i % 3 == 0) {
      EXPECT_EQ(code_of(results[i]), ErrorCode::kNotFound);
    } else {
      EXPECT_TRUE(results[i]) << results[i].error();
      EXPECT_TRUE(reads.bytes(i) == writes.bytes(i)) << i;
    }
  }
}

TEST_P(VolumeTest, EmptyBatchesHaveNoAnswers) {
  EXPECT_TRUE(volume().put({}).empty());
  EXPECT_TRUE(volume().get({}).empty());
  EXPECT_TRUE(volume().contains({}).empty());
  EXPECT_TRUE(volume().remove({}).empty());
}

TEST_P(VolumeTest, ASecondPutKeepsOrReplacesAndNeverMixes) {
  const Bytes first = make_bytes(10'000, 1);
  const Bytes second = make_bytes(10'000, 2);
  ASSERT_TRUE(put_one(volume(), "twice", first));
  ASSERT_TRUE(put_one(volume(), "twice", second));
  const Result<Bytes> got = get_one(volume(), "twice", first.size());
  ASSERT_TRUE(got) << got.error();
  EXPECT_TRUE(*got == first || *got == second);
}

TEST_P(VolumeTest, WhatIsNotThereIsNotFound) {
  EXPECT_EQ(code_of(get_one(volume(), "missing/key", 100)), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(get_one(volume(), "missing", 0)), ErrorCode::kNotFound);
  EXPECT_FALSE(contains_one(volume(), "missing").value());
}

TEST_P(VolumeTest, AnObjectOfAnotherSizeIsCorruptAndOverflowsNothing) {
  const Bytes small = make_bytes(5000, 3);
  const Bytes large = make_bytes(20 << 20, 4);
  ASSERT_TRUE(put_one(volume(), "small", small));
  ASSERT_TRUE(put_one(volume(), "large", large));
  Reads reads;
  for (const std::size_t size : {0, 1, 4999, 5001, 100'000})
    reads.add("small", static_cast<std::size_t>(size));
  for (const std::size_t size : {0, 5000, (20 << 20) - 1}) reads.add("large", static_cast<std::size_t>(size));
  reads.add("small", 5000);
  const std::vector<Result<void>> results = volume().get(reads.objects());
  for (std::size_t i = 0; i + 1 < results.size(); ++i) {
    EXPECT_EQ(code_of(results[i]), ErrorCode::kCorruption) << i;
    EXPECT_TRUE(reads.is_guard_untouched(i)) << i;
  }
  ASSERT_TRUE(results.back()) << results.back().error();
  EXPECT_TRUE(reads.bytes(results.size() - 1) == small);
}

TEST_P(VolumeTest, KeysThatAreNoneAreRefusedOneByOne) {
  const std::vector<std::string> bad{"",
                                     "/a",
                                     "a/",
                                     "a//b",
                                     "..",
                                     "a/../b",
                                     "a b",
                                     "a\nb",
                                     "k?x=1",
                                     "k%2e",
                                     "\xc3\xa4",
                                     std::string("a\0b", 3),
                                     "a/./b",
                                     "*",
                                     "k#f",
                                     "$5\r\nhello",
                                     std::string(Volume::kMaxKey + 1, 'k')};
  const Bytes bytes = make_bytes(100, 5);
  Writes writes;
  Reads reads;
  std::vector<std::string_view> keys;
  for (const std::string& key : bad) {
    writes.add(key, bytes);
    reads.add(key, bytes.size());
    keys.push_back(key);
  }
  writes.add("good", bytes);
  reads.add("good", bytes.size());
  keys.emplace_back("good");
  const std::vector<Result<void>> put = volume().put(writes.objects());
  const std::vector<Result<void>> got = volume().get(reads.objects());
  const std::vector<Result<bool>> there = volume().contains(keys);
  const std::vector<Result<void>> removed = volume().remove(keys);
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(code_of(put[i]), ErrorCode::kInvalidArgument) << i;
    EXPECT_EQ(code_of(got[i]), ErrorCode::kInvalidArgument) << i;
    EXPECT_EQ(code_of(there[i]), ErrorCode::kInvalidArgument) << i;
    EXPECT_EQ(code_of(removed[i]), ErrorCode::kInvalidArgument) << i;
  }
  EXPECT_TRUE(put.back());
  EXPECT_TRUE(got.back());
  EXPECT_TRUE(there.back().value());
  EXPECT_TRUE(removed.back());
  EXPECT_TRUE(reads.bytes(bad.size()) == bytes);
}

TEST_P(VolumeTest, KeysMayHavePartsAndTheirFullLength) {
  const std::vector<std::string> keys{"a",     "a/b",     "a/b/c/d/e", "A.b_c-9/..x", "...",
                                      "a.tmp", ".hidden", "-x",        "a~b/c"};
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) {
    ASSERT_TRUE(put_one(volume(), keys[i], make_bytes(100, i))) << keys[i];
  }
  const std::string longest = std::string(100, 'x') + "/" + std::string(GetParam().longest_key - 101, 'y');
  const Result<void> put = put_one(volume(), longest, make_bytes(100, 99));
  ASSERT_TRUE(put) << put.error();
  expect_object(longest, make_bytes(100, 99));
  for (std::size_t i = 0; i + 1 < keys.size(); ++i) expect_object(keys[i], make_bytes(100, i));
  EXPECT_EQ(code_of(put_one(volume(), keys.back(), {})), ErrorCode::kInvalidArgument);
}

TEST_P(VolumeTest, RemovedObjectsAreGoneAndRemovingAgainIsNoError) {
  ASSERT_TRUE(put_one(volume(), "gone", make_bytes(100, 6)));
  ASSERT_TRUE(put_one(volume(), "stays", make_bytes(100, 7)));
  const std::vector<std::string_view> keys{"gone", "never/was"};
  for (int round = 0; round < 2; ++round)
    for (const Result<void>& result : volume().remove(keys)) EXPECT_TRUE(result) << result.error();
  EXPECT_EQ(code_of(get_one(volume(), "gone", 100)), ErrorCode::kNotFound);
  EXPECT_FALSE(contains_one(volume(), "gone").value());
  expect_object("stays", make_bytes(100, 7));
  // And may be written anew.
  ASSERT_TRUE(put_one(volume(), "gone", make_bytes(50, 8)));
  expect_object("gone", make_bytes(50, 8));
}

TEST_P(VolumeTest, OneKeyMayBeReadSeveralTimesInABatch) {
  const Bytes bytes = make_bytes(70'000, 9);
  ASSERT_TRUE(put_one(volume(), "popular", bytes));
  Reads reads;
  for (int i = 0; i < 40; ++i) reads.add("popular", bytes.size());
  const std::vector<Result<void>> results = volume().get(reads.objects());
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_TRUE(results[i]) << results[i].error();
    EXPECT_TRUE(reads.bytes(i) == bytes);
  }
}

TEST_P(VolumeTest, ThreadsRunBatchesAtOnce) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kObjects = 25;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t round = 0; round < 2; ++round) {
        // Keys are half one's own, half everybody's, with the same bytes from all.
        Writes writes;
        Reads reads;
        for (std::size_t i = 0; i < kObjects; ++i) {
          const bool shared = i % 2 == 0;
          const std::string key = (shared ? "shared" : "thread" + std::to_string(t)) + "/" +
                                  std::to_string(round) + "/" + std::to_string(i);
          const std::size_t size = 100 + i * 1000;
          writes.add(key, make_bytes(size, shared ? i : i + t * 1000));
          reads.add(key, size);
        }
        for (const Result<void>& result : volume().put(writes.objects()))
          EXPECT_TRUE(result) << result.error();
        const std::vector<Result<void>> results = volume().get(reads.objects());
        for (std::size_t i = 0; i < results.size(); ++i) {
          EXPECT_TRUE(results[i]) << results[i].error();
          EXPECT_TRUE(reads.bytes(i) == writes.bytes(i)) << writes.key(i);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(VolumeTest, ReadersNeverSeeAMixtureWhileOthersWrite) {
  const Bytes one = make_bytes(300'000, 10);
  const Bytes other = make_bytes(300'000, 11);
  ASSERT_TRUE(put_one(volume(), "contended", one));
  std::thread writer([&] {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(put_one(volume(), "contended", i % 2 == 0 ? other : one));
  });
  for (int i = 0; i < 20; ++i) {
    const Result<Bytes> got = get_one(volume(), "contended", one.size());
    EXPECT_TRUE(got) << got.error();
    EXPECT_TRUE(got && (*got == one || *got == other));
  }
  writer.join();
}

// ---- limits

// What all four calls say of an object that is there, and one that is not.
inline std::vector<std::optional<ErrorCode>> codes_of_calls(Volume& volume, const CallLimits& limits) {
  Writes writes;
  Reads reads;
  writes.add("limits/new", make_bytes(100, 1));
  reads.add("limits/there", 5000);
  const std::vector<std::string_view> keys{"limits/there"};
  return {code_of(volume.put(writes.objects(), limits).at(0)),
          code_of(volume.get(reads.objects(), limits).at(0)), code_of(volume.contains(keys, limits).at(0)),
          code_of(volume.remove(keys, limits).at(0))};
}

TEST_P(VolumeTest, ACallWhoseDeadlineHasComeDoesNothingAndSaysSo) {
  ASSERT_TRUE(put_one(volume(), "limits/there", make_bytes(5000, 2)));
  EXPECT_EQ(codes_of_calls(volume(), {.deadline = Clock::real().now()}),
            std::vector<std::optional<ErrorCode>>(4, ErrorCode::kTimeout));
  EXPECT_FALSE(contains_one(volume(), "limits/new").value());
  expect_object("limits/there", make_bytes(5000, 2));
}

TEST_P(VolumeTest, ACancelledCallDoesNothingAndSaysSo) {
  ASSERT_TRUE(put_one(volume(), "limits/there", make_bytes(5000, 2)));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(codes_of_calls(volume(), {.stop = stop.get_token()}),
            std::vector<std::optional<ErrorCode>>(4, ErrorCode::kCancelled));
  EXPECT_FALSE(contains_one(volume(), "limits/new").value());
  expect_object("limits/there", make_bytes(5000, 2));
}

TEST_P(VolumeTest, LimitsThatDoNotComeChangeNothing) {
  ASSERT_TRUE(put_one(volume(), "limits/there", make_bytes(5000, 2)));
  const std::stop_source stop;
  const CallLimits limits{.deadline = Clock::real().now() + std::chrono::hours(1), .stop = stop.get_token()};
  EXPECT_EQ(codes_of_calls(volume(), limits), std::vector<std::optional<ErrorCode>>(4));
  EXPECT_FALSE(contains_one(volume(), "limits/there").value());
  expect_object("limits/new", make_bytes(100, 1));
}

// Whoever cancels comes at any moment; what is answered as done is done, and memory beside the parts stays as
// it was.
TEST_P(VolumeTest, ACallMayBeCancelledAtAnyMoment) {
  for (std::uint64_t round = 0; round < 4; ++round) {
    Writes writes;
    Reads reads;
    for (std::size_t i = 0; i < 20; ++i) {
      const std::string key = "cancel/" + std::to_string(round) + "/" + std::to_string(i);
      writes.add(key, make_bytes(20'000, round * 100 + i));
      reads.add(key, 20'000);
    }
    std::stop_source stop;
    std::thread canceller([&] { stop.request_stop(); });
    const std::vector<Result<void>> put = volume().put(writes.objects(), {.stop = stop.get_token()});
    canceller.join();
    const std::vector<Result<void>> got = volume().get(reads.objects());
    for (std::size_t i = 0; i < put.size(); ++i) {
      if (put[i]) {
        EXPECT_TRUE(got[i]) << got[i].error();
      } else {
        EXPECT_EQ(put[i].error().code(), ErrorCode::kCancelled);
      }
      EXPECT_TRUE(!got[i] || reads.bytes(i) == writes.bytes(i));
      EXPECT_TRUE(reads.is_guard_untouched(i));
    }
  }
}

}  // namespace ashlar::tiers
