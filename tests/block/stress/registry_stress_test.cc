// Handles, attachments and touch callbacks from many threads while entries come and go; the frequency
// tracker.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/blocks.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/sequence_builder.h"
#include "ashlar/testing/time_box.h"
#include "block/registry/tiny_lfu.h"

namespace ashlar::block::stress {
namespace {

using events::G1;
using testing::numbered_hash;

std::atomic<std::int64_t> g_notes = 0;

// An attachment that counts itself; `about` says whose it is.
struct Note {
  explicit Note(tokens::SequenceHash hash) : about(hash) { g_notes.fetch_add(1); }
  Note(const Note& other) : about(other.about), read(other.read) { g_notes.fetch_add(1); }
  Note& operator=(const Note&) = default;
  ~Note() { g_notes.fetch_sub(1); }
  tokens::SequenceHash about;
  std::uint64_t read = 0;  // plain: written under the attachment's lock
};
struct Mark : Note {
  using Note::Note;
};

class RegistryStress {
 public:
  explicit RegistryStress(std::uint32_t hashes)
      : registry_(testing::make_counting_registry()), hashes_(hashes) {}

  void run(std::size_t threads, std::size_t operations, std::uint64_t seed) {
    ManagerOptions options = testing::manager_options(4);
    options.registry = registry_;
    auto manager = testing::make_manager<G1>(options);
    {
      Random random(seed);
      std::vector<std::jthread> running;
      for (std::size_t t = 0; t < threads; ++t) {
        running.emplace_back([&, own = random.fork()]() mutable { work(manager, own, operations); });
      }
    }
    EXPECT_EQ(wrong_.load(), 0u);
    manager.check_invariants();
    manager.reset_inactive_pool();
    EXPECT_EQ(registry_.registered_count(), 0u);
    EXPECT_EQ(g_notes.load(), 0);
  }

 private:
  void expect(bool right) {
    if (!right) wrong_.fetch_add(1);
  }

  void work(BlockManager<G1>& manager, Random& random, std::size_t operations) {
    std::vector<RegistrationHandle> held;
    for (std::size_t i = 0; i < operations; ++i) {
      const auto hash = numbered_hash(static_cast<std::uint32_t>(random.below(hashes_)), 3);
      switch (random.below(8)) {
        case 0:
          held.push_back(registry_.register_sequence_hash(hash));
          break;
        case 1:
          if (auto handle = registry_.match_sequence_hash(hash, random.chance(0.5)))
            held.push_back(*std::move(handle));
          break;
        case 2: {
          const auto handle = registry_.transfer_registration(hash);
          expect(handle.sequence_hash() == hash);
          expect(handle.attach_unique(Note(hash)).has_value());
          expect(handle.attach(Mark(hash)).has_value());
          break;
        }
        case 3:
          if (held.empty()) break;
          held[random.below(held.size())].on_touch([this](const RegistrationHandle& touched) {
            touched.get<Note>().with_unique(
                [&](const Note& note) { expect(note.about == touched.sequence_hash()); });
          });
          break;
        case 4:
          registry_.touch(hash);
          break;
        case 5: {
          // A block of the hash keeps its entry, and evicts another's.
          auto block = manager.allocate_blocks(1);
          if (!block) break;
          auto staged = block->take_back().stage(hash, KvReady::asserted_by_caller());
          const auto registered = manager.register_block(std::move(staged));
          expect(registered.has_value() && registered->registration_handle().sequence_hash() == hash);
          expect(registered->registration_handle().has_block<G1>());
          break;
        }
        case 6:
          if (held.empty()) break;
          {
            const RegistrationHandle& handle = held[random.below(held.size())];
            auto notes = handle.get<Note>();
            notes.with_unique_mut([&](Note& note) {
              ++note.read;
              expect(note.about == handle.sequence_hash());
            });
            handle.get<Mark>().with_multiple([&](std::span<const Mark> marks) {
              for (const Mark& mark : marks) expect(mark.about == handle.sequence_hash());
            });
          }
          break;
        default:
          if (!held.empty())
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(random.below(held.size())));
          break;
      }
      if (held.size() > 3) held.erase(held.begin());
    }
  }

  BlockRegistry registry_;
  std::uint32_t hashes_;
  std::atomic<std::size_t> wrong_ = 0;
};

TEST(RegistryStressTest, EntriesComeAndGoWithTheirAttachmentsAndCallbacks) {
  const testing::TimeBox box(1);
  std::uint64_t seed = 0;
  do {
    // Few hashes: every entry dies and is born again all the time.
    RegistryStress(seed % 2 == 0 ? 2 : 24).run(2 + seed % 5, 800, seed + 1);
    ++seed;
  } while (!box.over() && !HasFailure());
}

TEST(TinyLfuStressTest, TouchesOfManyThreadsAreCountedExactlyUntilACounterIsFull) {
  const testing::TimeBox box(1);
  do {
    TinyLfu tracker({std::size_t{1} << 12, TinyLfuOptions::kNever});
    constexpr std::uint32_t kHashes = 64;
    {
      std::vector<std::jthread> threads;
      for (std::uint32_t t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
          // Hash h is touched h / 8 times by each thread, of which all together make h / 8 * 4.
          for (std::uint32_t h = 0; h < kHashes; ++h) {
            for (std::uint32_t i = 0; i < h / 8; ++i) tracker.touch(numbered_hash(h));
          }
        });
      }
    }
    for (std::uint32_t h = 0; h < kHashes; ++h) {
      bool alone = true;
      for (std::uint32_t other = 0; other < kHashes; ++other) {
        alone = alone && (other == h || tracker.cell(numbered_hash(other), 0).word !=
                                            tracker.cell(numbered_hash(h), 0).word);
      }
      const unsigned expected = std::min(h / 8 * 4, TinyLfu::kMaxCount);
      EXPECT_GE(tracker.count(numbered_hash(h)), expected);
      EXPECT_TRUE(!alone || tracker.count(numbered_hash(h)) == expected) << "hash " << h;
    }
  } while (!box.over() && !HasFailure());
}

TEST(TinyLfuStressTest, DecayUnderTouchesKeepsCountsInBounds) {
  const testing::TimeBox box(1);
  TinyLfu tracker({64, 500});
  const auto names = testing::numbered_hashes(200);
  do {
    {
      std::vector<std::jthread> threads;
      for (std::size_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, own = Random(t + 1)]() mutable {
          for (int i = 0; i < 200; ++i) {
            const std::size_t first = own.below(names.size());
            tracker.touch_all(std::span(names).subspan(first, own.below(names.size() - first + 1)));
            EXPECT_LE(tracker.count(names[first]), TinyLfu::kMaxCount);
          }
        });
      }
    }
    // Nobody touches these any more: after enough decays they are forgotten.
    for (int i = 0; i < 6; ++i) {
      for (int j = 0; j < 500; ++j) tracker.touch(names[0]);
    }
    std::size_t forgotten = 0;
    for (const auto& name : names) forgotten += tracker.count(name) == 0 ? 1u : 0u;
    EXPECT_GT(forgotten, names.size() / 2);
  } while (!box.over() && !HasFailure());
}

}  // namespace
}  // namespace ashlar::block::stress
