#include "base/sort_by_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace ashlar {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Every key grows with every read, as a counter of another thread may.
TEST(SortByKeyTest, KeysThatChangeWhileTheyAreSortedAreReadOnce) {
  constexpr std::size_t kElements = 200;
  std::vector<std::size_t> elements;
  for (std::size_t i = 0; i < kElements; ++i) elements.push_back((i * 37) % kElements);
  std::vector<std::size_t> reads(kElements);
  sort_by_key(elements, [&](std::size_t element) { return element + 1000 * reads[element]++; });
  EXPECT_THAT(reads, Each(1u));
  for (std::size_t i = 0; i < kElements; ++i) EXPECT_EQ(elements[i], i);
}

TEST(SortByKeyTest, EqualKeysKeepTheirOrder) {
  std::vector<std::string> words = {"three", "a", "seven", "b", "eight", "to"};
  sort_by_key(words, &std::string::size);
  EXPECT_THAT(words, ElementsAre("a", "b", "to", "three", "seven", "eight"));
}

TEST(SortByKeyTest, ElementsThatCannotBeCopiedAreMoved) {
  std::vector<std::unique_ptr<int>> numbers;
  for (const int number : {3, 1, 2}) numbers.push_back(std::make_unique<int>(number));
  sort_by_key(numbers, [](const std::unique_ptr<int>& number) { return *number; });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*numbers[static_cast<std::size_t>(i)], i + 1);
  std::vector<std::unique_ptr<int>> none;
  sort_by_key(none, [](const std::unique_ptr<int>& number) { return *number; });
}

}  // namespace
}  // namespace ashlar
