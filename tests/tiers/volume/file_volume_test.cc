// FileVolume: what only slots in one file do; builtin_volumes_test.cc has the suite of all volumes.
#include "tiers/volume/file_volume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "tiers/volume/file_volume_fixture.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tiers {
namespace {

using ::testing::HasSubstr;

VolumeDescriptor file_volume_at(const std::string& path, std::map<std::string, std::string> options = {}) {
  return {.name = "test", .kind = "file", .location = path, .options = std::move(options)};
}

class FileVolumeTest : public FileVolumeFixture {
 protected:
  void expect_refused(ErrorCode code, const char* says) const {
    const auto volume = FileVolume::attach(file_volume_at(path_));
    ASSERT_FALSE(volume);
    EXPECT_EQ(volume.error().code(), code) << volume.error();
    EXPECT_THAT(volume.error().message(), HasSubstr(says));
  }
  void expect_not_provisioned(const ProvisionOptions& options, ErrorCode code, const char* says) const {
    const auto shape = provision_file_volume(path_, options);
    ASSERT_FALSE(shape);
    EXPECT_EQ(shape.error().code(), code) << shape.error();
    EXPECT_THAT(shape.error().message(), HasSubstr(says));
  }
};

TEST_F(FileVolumeTest, ObjectsAreThereAfterARestart) {
  provision();
  {
    const auto volume = open();
    EXPECT_EQ(volume->free_slots(), kSlots);
    ASSERT_TRUE(put_one(*volume, "a/b", make_bytes(5000, 1)));
    ASSERT_TRUE(put_one(*volume, "empty", {}));
    ASSERT_TRUE(put_one(*volume, "full", make_bytes(kSlotBytes, 2)));
    ASSERT_TRUE(put_one(*volume, "gone", make_bytes(100, 3)));
    const std::string_view gone = "gone";
    ASSERT_TRUE(volume->remove(std::span(&gone, 1))[0]);
  }
  const auto volume = open();
  EXPECT_EQ(volume->free_slots(), kSlots - 3);
  EXPECT_TRUE(get_one(*volume, "a/b", 5000).value() == make_bytes(5000, 1));
  EXPECT_TRUE(get_one(*volume, "empty", 0));
  EXPECT_TRUE(get_one(*volume, "full", kSlotBytes).value() == make_bytes(kSlotBytes, 2));
  EXPECT_FALSE(contains_one(*volume, "gone").value());
  EXPECT_EQ(code_of(get_one(*volume, "gone", 100)), ErrorCode::kNotFound);
}

TEST_F(FileVolumeTest, HasTheDocumentedBytes) {
  provision();
  {
    const auto volume = open();
    ASSERT_TRUE(put_one(*volume, "first", make_bytes(10, 1)));
    ASSERT_TRUE(put_one(*volume, "a/key", make_bytes(5000, 2)));
  }
  const Image bytes = image();
  const auto number = [&](std::size_t at, std::size_t count) {
    std::uint64_t value = 0;
    for (std::size_t i = count; i-- > 0;) value = value << 8 | bytes[at + i];
    return value;
  };
  const auto text = [&](std::size_t at, std::size_t count) {
    return std::string(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                       bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
  };
  const auto is_zero = [&](std::size_t from, std::size_t to) {
    return std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                       bytes.begin() + static_cast<std::ptrdiff_t>(to), [](auto byte) { return byte == 0; });
  };
  EXPECT_EQ(text(0, 8), "ASHLARFV");
  EXPECT_EQ(number(8, 4), 1u);
  EXPECT_EQ(number(12, 4), 256u);
  EXPECT_EQ(number(16, 8), 8192u);
  EXPECT_EQ(number(24, 8), 12u);
  EXPECT_TRUE(is_zero(32, 504));
  EXPECT_EQ(number(504, 8), XXH3_64bits(bytes.data(), 504));
  EXPECT_TRUE(is_zero(512, 4096));
  EXPECT_EQ(text(4352, 4), "Vobj");
  EXPECT_EQ(number(4356, 4), 1u);
  EXPECT_EQ(number(4360, 8), 2u);
  EXPECT_EQ(number(4368, 8), 5000u);
  EXPECT_EQ(number(4376, 8), XXH3_64bits(bytes.data() + 8192 + 8192, 5000));
  EXPECT_EQ(number(4384, 4), 5u);
  EXPECT_EQ(text(4388, 5), "a/key");
  EXPECT_TRUE(is_zero(4393, 4600));
  EXPECT_EQ(number(4600, 8), XXH3_64bits(bytes.data() + 4352, 248));
  EXPECT_TRUE(is_zero(4608, 8192));
  const Bytes object = make_bytes(5000, 2);
  EXPECT_EQ(std::memcmp(bytes.data() + 8192 + 8192, object.data(), object.size()), 0);
}

TEST_F(FileVolumeTest, AFullVolumeIsCapacityWithNumbersUntilSomethingIsRemoved) {
  provision();
  const auto volume = open();
  Writes writes;
  for (std::size_t i = 0; i < kSlots + 2; ++i) writes.add("k" + std::to_string(i), make_bytes(100, i));
  writes.add("large", make_bytes(kSlotBytes + 1, 99));
  const std::vector<Result<void>> results = volume->put(writes.objects());
  for (std::size_t i = 0; i < kSlots; ++i) EXPECT_TRUE(results[i]) << results[i].error();
  for (const std::size_t i : {kSlots, kSlots + 1}) {
    ASSERT_EQ(code_of(results[i]), ErrorCode::kCapacity);
    EXPECT_THAT(results[i].error().message(), HasSubstr("all 12 slots of 8192 bytes are used"));
  }
  ASSERT_EQ(code_of(results.back()), ErrorCode::kCapacity);
  EXPECT_THAT(results.back().error().message(), HasSubstr("has 8193 bytes, a slot has 8192"));
  // Without a slot for the new one, the old one is kept.
  EXPECT_EQ(code_of(put_one(*volume, "k0", make_bytes(100, 50))), ErrorCode::kCapacity);
  EXPECT_TRUE(get_one(*volume, "k0", 100).value() == make_bytes(100, 0));
  const std::string_view gone = "k3";
  ASSERT_TRUE(volume->remove(std::span(&gone, 1))[0]);
  EXPECT_TRUE(put_one(*volume, "k0", make_bytes(100, 50)));
  EXPECT_TRUE(put_one(*volume, "k20", make_bytes(100, 51)));
  EXPECT_EQ(volume->free_slots(), 0u);
}

TEST_F(FileVolumeTest, OfOneKeyTwiceInABatchTheLastStays) {
  provision();
  {
    const auto volume = open();
    Writes writes;
    for (std::size_t i = 0; i < 3; ++i) writes.add("k", make_bytes(100 + i, i));
    for (const Result<void>& result : volume->put(writes.objects())) EXPECT_TRUE(result) << result.error();
    EXPECT_TRUE(get_one(*volume, "k", 102).value() == make_bytes(102, 2));
    EXPECT_EQ(volume->free_slots(), kSlots - 1);
  }
  EXPECT_TRUE(get_one(*open(), "k", 102).value() == make_bytes(102, 2));
}

TEST_F(FileVolumeTest, KeysThatDoNotFitAreRefused) {
  provision();
  const auto volume = open();
  const std::string longest(FileVolume::kLongestKey, 'k');
  const std::string longer = longest + "k";
  EXPECT_TRUE(put_one(*volume, longest, make_bytes(100, 1)));
  const Result<void> refused = put_one(*volume, longer, make_bytes(100, 1));
  ASSERT_EQ(code_of(refused), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("has 193 characters, 192 are allowed"));
  EXPECT_EQ(code_of(get_one(*volume, longer, 100)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(contains_one(*volume, longer)), ErrorCode::kInvalidArgument);
}

TEST_F(FileVolumeTest, ProvisionTakesWhatIsEmptyAndNothingElse) {
  const ProvisionOptions options{.slot_bytes = kSlotBytes};
  expect_not_provisioned(options, ErrorCode::kNotFound, "create the file at its final size");
  make_file(0);
  expect_not_provisioned(options, ErrorCode::kInvalidArgument, "no file with bytes");
  make_file(kBytes);
  expect_not_provisioned({}, ErrorCode::kInvalidArgument, "slot_bytes is 0");
  expect_not_provisioned({.slot_bytes = ~std::uint64_t{0}}, ErrorCode::kInvalidArgument, "slot_bytes is");
  expect_not_provisioned({.slot_bytes = kSlotBytes, .slots = kSlots + 1}, ErrorCode::kCapacity,
                         "has 106496 bytes: room for 12 slots of 8192 bytes, not 13");
  expect_not_provisioned({.slot_bytes = kBytes}, ErrorCode::kCapacity, "room for 0 slots");
  EXPECT_EQ(image(), Image(kBytes, 0));
  // Things that others have written, also behind the first page: some file systems begin there.
  for (const std::size_t at : {0u, 511u, 4095u, 4096u, 65'600u}) {
    Image others(kBytes, 0);
    others[at] = 1;
    store(others);
    expect_not_provisioned(options, ErrorCode::kAlreadyExists,
                           ("byte " + std::to_string(at) + " is not zero").c_str());
    EXPECT_EQ(image(), others);
  }
  provision();
  const Image before = image();
  expect_not_provisioned(options, ErrorCode::kAlreadyExists, "is not empty");
  EXPECT_EQ(image(), before);
}

TEST_F(FileVolumeTest, ProvisionUsesWholePagesAndTheWholeFile) {
  for (const std::uint64_t bytes : {12'288u, 16'383u, 16'384u, 100'000u, 1'000'000u, 40'000'000u}) {
    for (const std::uint64_t slot_bytes : {1u, 4096u, 4097u, 100'000u}) {
      make_file(bytes);
      const auto shape = provision_file_volume(path_, {.slot_bytes = slot_bytes});
      const std::uint64_t page = (slot_bytes + 4095) / 4096 * 4096;
      const auto end_of = [&](std::uint64_t slots) {
        return 4096 + (slots * 256 + 4095) / 4096 * 4096 + slots * page;
      };
      if (!shape) {
        EXPECT_EQ(shape.error().code(), ErrorCode::kCapacity);
        EXPECT_GT(end_of(1), bytes);
        continue;
      }
      EXPECT_EQ(shape->slot_bytes, page);
      EXPECT_LE(end_of(shape->slots), bytes);
      EXPECT_GT(end_of(shape->slots + 1), bytes);
      EXPECT_EQ(open()->shape(), *shape);
      EXPECT_EQ(std::filesystem::file_size(path_), bytes);
    }
  }
  make_file();
  EXPECT_EQ(provision_file_volume(path_, {.slot_bytes = 1, .slots = 3}).value(),
            (FileVolumeShape{.slot_bytes = 4096, .slots = 3}));
}

TEST_F(FileVolumeTest, AttachNeverFormats) {
  expect_refused(ErrorCode::kNotFound, "No such file");
  for (const Image& others : {Image(kBytes, 0), Image(kBytes, 'x'), Image(10, 'x'), Image(511, 0)}) {
    store(others);
    expect_refused(ErrorCode::kInvalidArgument, "call provision_file_volume() once");
    EXPECT_EQ(image(), others);
  }
  path_ = folder_.path();
  expect_refused(ErrorCode::kInvalidArgument, "");
}

TEST_F(FileVolumeTest, ADamagedSuperblockOrACutFileIsRefusedAndLeftAlone) {
  provision();
  ASSERT_TRUE(put_one(*open(), "k", make_bytes(100, 1)));
  const Image good = image();
  for (const std::size_t at : {8u, 12u, 16u, 24u, 40u, 503u, 504u, 511u}) {
    Image bad = good;
    bad[at] ^= 1;
    store(bad);
    expect_refused(ErrorCode::kCorruption, "is damaged");
    EXPECT_EQ(image(), bad);
  }
  for (const std::size_t size : {std::size_t{512}, std::size_t{9000}, good.size() - 1}) {
    const Image cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    store(cut);
    expect_refused(ErrorCode::kCorruption, "it was truncated");
    EXPECT_EQ(image(), cut);
  }
  store(good);
  EXPECT_TRUE(get_one(*open(), "k", 100));
  EXPECT_EQ(image(), good) << "attaching and reading write nothing";
}

TEST_F(FileVolumeTest, OnlyOneMayHaveItAtATime) {
  provision();
  const auto volume = open();
  expect_refused(ErrorCode::kNotReady, "is in use");
  expect_not_provisioned({.slot_bytes = 4096}, ErrorCode::kNotReady, "is in use");
  EXPECT_TRUE(put_one(*volume, "k", make_bytes(100, 1)));
}

TEST_F(FileVolumeTest, OptionsThatNobodyKnowsAreRefused) {
  provision();
  EXPECT_EQ(code_of(FileVolume::attach(file_volume_at(path_, {{"format", "true"}}))),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(FileVolume::attach(file_volume_at(path_, {{"sync", "1"}}))), ErrorCode::kInvalidArgument);
  const auto volume = FileVolume::attach(file_volume_at(path_, {{"sync", "false"}})).value();
  EXPECT_EQ(volume->describe(), "file " + path_);
}

TEST_F(FileVolumeTest, DamagedBytesAreCorruptAndMayBeReplaced) {
  provision();
  Writes writes;
  for (std::size_t i = 0; i < 4; ++i) writes.add("k" + std::to_string(i), make_bytes(5000, i));
  for (const Result<void>& result : open()->put(writes.objects())) ASSERT_TRUE(result) << result.error();
  Image bad = image();
  bad[slot_at(2) + 4999] ^= 1;
  bad[slot_at(1) + 5000] ^= 1;  // behind its object
  store(bad);
  const auto volume = open();
  for (std::size_t i = 0; i < 4; ++i) {
    const Result<Bytes> got = get_one(*volume, "k" + std::to_string(i), 5000);
    if (i != 2) {
      EXPECT_TRUE(got.value() == make_bytes(5000, i));
    } else {
      ASSERT_EQ(code_of(got), ErrorCode::kCorruption);
      EXPECT_THAT(got.error().message(), HasSubstr("get 'k2': the bytes in slot 2 do not match"));
    }
  }
  ASSERT_TRUE(put_one(*volume, "k2", make_bytes(6000, 9)));
  EXPECT_TRUE(get_one(*volume, "k2", 6000).value() == make_bytes(6000, 9));
}

TEST_F(FileVolumeTest, AHeaderThatDoesNotCheckOutMeansAFreeSlot) {
  provision();
  Writes writes;
  for (std::size_t i = 0; i < kSlots; ++i) writes.add("k" + std::to_string(i), make_bytes(50, i));
  for (const Result<void>& result : open()->put(writes.objects())) ASSERT_TRUE(result) << result.error();
  Image bad = image();
  bad[header_at(4) + 40] ^= 1;
  std::copy_n(bad.begin() + static_cast<std::ptrdiff_t>(header_at(5)), kHeader,
              bad.begin() + static_cast<std::ptrdiff_t>(header_at(6)));  // a header in another slot's place
  store(bad);
  const auto volume = open();
  EXPECT_EQ(volume->free_slots(), 2u);
  for (std::size_t i = 0; i < kSlots; ++i)
    EXPECT_EQ(contains_one(*volume, "k" + std::to_string(i)).value(), i != 4 && i != 6) << i;
  EXPECT_TRUE(put_one(*volume, "new", make_bytes(50, 77)));
}

TEST_F(FileVolumeTest, OfTwoHeadersWithOneKeyTheNewerCountsAndTheOlderNeverComesBack) {
  provision();
  Image both;
  {
    const auto volume = open();
    ASSERT_TRUE(put_one(*volume, "k", make_bytes(500, 1)));
    const Image first = image();
    ASSERT_TRUE(put_one(*volume, "k", make_bytes(600, 2)));
    both = image();
    // As if the power had failed before the first header was cleared.
    std::copy_n(first.begin() + static_cast<std::ptrdiff_t>(header_at(0)), kHeader,
                both.begin() + static_cast<std::ptrdiff_t>(header_at(0)));
  }
  ASSERT_NE(both, image());
  store(both);
  {
    const auto volume = open();
    EXPECT_TRUE(get_one(*volume, "k", 600).value() == make_bytes(600, 2));
    EXPECT_EQ(volume->free_slots(), kSlots - 2);
    const std::string_view key = "k";
    ASSERT_TRUE(volume->remove(std::span(&key, 1))[0]);
    EXPECT_EQ(volume->free_slots(), kSlots);
  }
  EXPECT_FALSE(contains_one(*open(), "k").value());
  // The slot is taken back when it is needed, too.
  store(both);
  const auto volume = open();
  for (std::size_t i = 0; i < kSlots - 1; ++i)
    EXPECT_TRUE(put_one(*volume, "new" + std::to_string(i), make_bytes(10, i)));
  EXPECT_TRUE(get_one(*volume, "k", 600).value() == make_bytes(600, 2));
}

// Few slots and fewer keys, so that slots change their owner while they are read.
TEST_F(FileVolumeTest, ThreadsPutGetAndRemoveAtOnce) {
  provision();
  constexpr std::uint64_t kKeys = 5;
  constexpr std::size_t kSize = 3000;
  {
    const auto volume = FileVolume::open({.path = path_, .sync = false}).value();
    std::atomic<int> found{0};
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        Random random(t);
        for (int step = 0; step < 400; ++step) {
          const std::uint64_t number = random.below(kKeys);
          const std::string key = "k" + std::to_string(number);
          const std::uint64_t what = random.below(8);
          if (what < 3) {
            const Result<void> put = put_one(*volume, key, make_bytes(kSize, number * 10 + random.below(10)));
            EXPECT_TRUE(put || put.error().code() == ErrorCode::kCapacity) << put.error();
          } else if (what == 3) {
            const std::string_view view = key;
            EXPECT_TRUE(volume->remove(std::span(&view, 1))[0]);
          } else {
            const Result<Bytes> got = get_one(*volume, key, kSize);
            if (!got) {
              EXPECT_EQ(code_of(got), ErrorCode::kNotFound) << got.error();
              continue;
            }
            bool known = false;
            for (std::uint64_t i = 0; i < 10; ++i)
              known = known || *got == make_bytes(kSize, number * 10 + i);
            EXPECT_TRUE(known);
            ++found;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(found, 0);
    std::uint64_t left = 0;
    for (std::uint64_t i = 0; i < kKeys; ++i)
      left += contains_one(*volume, "k" + std::to_string(i)).value() ? 1 : 0;
    EXPECT_EQ(volume->free_slots() + left, kSlots) << "no slot is lost";
  }
  const auto volume = open();
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const std::string key = "k" + std::to_string(i);
    EXPECT_EQ(get_one(*volume, key, kSize).has_value(), contains_one(*volume, key).value());
  }
}

}  // namespace
}  // namespace ashlar::tiers
