// What eviction backends say about their memory, measured: the bytes that making one takes, and that it takes
// no more afterwards.
//
// This file replaces the global operator new of its program, and the allocation of LargeArray, by ones that
// count. The facts that a backend asks for are made before, so that only its own memory is measured.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/large_array.h"
#include "support/counted_new.h"
#include "support/eviction_cases.h"

namespace ashlar::detail {

void* allocate_large(std::size_t bytes) {
  void* const memory = counted(bytes, 64);
  std::memset(memory, 0, bytes);
  return memory;
}
void free_large(void* memory, std::size_t) noexcept {
  std::free(memory);
}

}  // namespace ashlar::detail

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace): the cases

constexpr std::uint32_t kBlocks = 100'000;
constexpr std::size_t kSlack = 1024;  // what does not grow with the pool

template <class F>
std::size_t bytes_of(F&& f) {
  const std::size_t before = g_allocated_bytes.load(std::memory_order_relaxed);
  f();
  return g_allocated_bytes.load(std::memory_order_relaxed) - before;
}

template <class Case>
class BytesPerBlockTest : public ::testing::Test {
 protected:
  BytesPerBlockTest() {
    world_.facts->keep_retentions();
    world_.facts->keep_hits();
    world_.facts->keep_acquisitions();
    world_.facts->keep_parents();
  }
  EvictionWorld world_{kBlocks};
};

struct CaseNames {
  template <class Case>
  static std::string GetName(int) {
    return Case::kName;
  }
};
using Cases =
    ::testing::Types<LruCase, FifoCase, LifoCase, LruReuseCase, PriorityCase, LineageCase, RegisteredFifoCase,
                     LfuCase, S3FifoCase, MultiLruCase<3, 8, 15>, RetentionCase<UsualRetention>>;
TYPED_TEST_SUITE(BytesPerBlockTest, Cases, CaseNames);

TYPED_TEST(BytesPerBlockTest, ABackendTakesTheMemoryItNames) {
  constexpr std::size_t kNamed = TypeParam::Backend::kBytesPerBlock * kBlocks;
  const std::size_t taken = bytes_of([&] { const auto backend = TypeParam::make(this->world_.context); });
  EXPECT_GE(taken, kNamed);
  EXPECT_LE(taken, kNamed + kSlack);
  this->RecordProperty("bytes_per_block", std::to_string(static_cast<double>(taken) / kBlocks));
}

TYPED_TEST(BytesPerBlockTest, ABackendTakesNoMoreOnceItIsMade) {
  auto backend = TypeParam::make(this->world_.context);
  for (std::uint32_t id = 0; id < kBlocks; id += 3) {
    this->world_.facts->set_retention(
        BlockId(id),
        {static_cast<std::uint8_t>(id % 101), this->world_.clock.now() + std::chrono::seconds(id % 90)});
  }
  EXPECT_EQ(bytes_of([&] {
              for (std::uint32_t id = 0; id < kBlocks; ++id) backend.insert(BlockId(id), name_of(0, id));
              this->world_.clock.advance(std::chrono::seconds(70));
              for (std::uint32_t id = 0; id < kBlocks; id += 7) backend.touch(BlockId(id));
              for (std::uint32_t id = 0; id < kBlocks; id += 5) backend.remove(BlockId(id));
              for (std::uint32_t n = 0; n < kBlocks / 2; ++n) ASSERT_TRUE(backend.pop());
              this->world_.clock.advance(std::chrono::hours(1));
              while (backend.pop()) {
              }
            }),
            0u);
}

TEST(LargeArrayTest, IsCountedToo) {
  EXPECT_EQ(bytes_of([] { const LargeArray<std::uint64_t> array(1000); }), 8000u);
}

}  // namespace
}  // namespace ashlar::block
