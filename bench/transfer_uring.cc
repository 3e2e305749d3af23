// Disk: UringExecutor beside a plain loop over io_uring with the same depth, size, file flags and registered
// buffers.
#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/backend/uring/uring_executor.h"
#include "ashlar/transfer/host_executors.h"
#include "transfer_measure.h"
#include "transfer_parts.h"

namespace ashlar::bench {
namespace {

using transfer::BlockSet;

constexpr std::uint64_t kTotal = std::uint64_t{512} << 20;
constexpr std::uint32_t kDepth = 16;
constexpr double kTarget = 0.9;

void check_call(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(1);
}

// What io_uring does without us: the same blocks, in the same order, `kDepth` at a time.
class PlainRing {
 public:
  PlainRing(const BlockSet& memory, const BlockSet& disk)
      : memory_(memory.planes()[0].regions[0].storage->address()),
        file_(disk.planes()[0].regions[0].storage->file()->direct) {
    io_uring_params params{};
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    check_call(io_uring_queue_init_params(kDepth, &ring_, &params) == 0, "io_uring_queue_init_params");
    const iovec vector{memory_, memory.planes()[0].layout.region_bytes()};
    registered_ = io_uring_register_buffers(&ring_, &vector, 1) == 0;
    if (file_ < 0) file_ = disk.planes()[0].regions[0].storage->file()->buffered;
    check_call(io_uring_register_files(&ring_, &file_, 1) == 0, "io_uring_register_files");
  }
  PlainRing(const PlainRing&) = delete;
  PlainRing& operator=(const PlainRing&) = delete;
  ~PlainRing() { io_uring_queue_exit(&ring_); }

  void run(const std::vector<std::uint32_t>& memory_blocks, const std::vector<std::uint32_t>& disk_blocks,
           std::uint64_t bytes, bool writes) {
    std::size_t next = 0;
    std::size_t in_flight = 0;
    while (next < memory_blocks.size() || in_flight > 0) {
      while (next < memory_blocks.size() && in_flight < kDepth) {
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        std::byte* at = memory_ + memory_blocks[next] * bytes;
        const std::uint64_t offset = disk_blocks[next] * bytes;
        const auto length = static_cast<unsigned>(bytes);
        if (registered_ && writes) io_uring_prep_write_fixed(entry, 0, at, length, offset, 0);
        if (registered_ && !writes) io_uring_prep_read_fixed(entry, 0, at, length, offset, 0);
        if (!registered_ && writes) io_uring_prep_write(entry, 0, at, length, offset);
        if (!registered_ && !writes) io_uring_prep_read(entry, 0, at, length, offset);
        io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
        ++next;
        ++in_flight;
      }
      check_call(io_uring_submit_and_wait(&ring_, 1) >= 0, "io_uring_submit_and_wait");
      io_uring_cqe* entry = nullptr;
      while (io_uring_peek_cqe(&ring_, &entry) == 0) {
        check_call(entry->res == static_cast<int>(bytes), "a whole block");
        io_uring_cqe_seen(&ring_, entry);
        --in_flight;
      }
    }
  }

 private:
  io_uring ring_{};
  std::byte* memory_;
  int file_;
  bool registered_ = false;
};

}  // namespace

bool run_uring_transfers(const std::string& folder) {
  std::printf(
      "disk, %llu MiB in blocks at random places, direct, depth %u; the limit is a bare io_uring loop\n",
      static_cast<unsigned long long>(kTotal >> 20), kDepth);
  bool met = true;
  storage::SystemAllocator memory_allocator({.touch_pages = true});
  for (const std::uint64_t bytes :
       {std::uint64_t{256} << 10, std::uint64_t{1} << 20, std::uint64_t{4} << 20}) {
    const auto blocks = static_cast<std::uint32_t>(kTotal / bytes);
    storage::DiskAllocator disk_allocator({.path = folder + "/transfer_bench", .remove = true});
    const auto memory = BlockSet::allocate(block_pieces(bytes, blocks), memory_allocator).value();
    const auto allocated = BlockSet::allocate(block_pieces(bytes, blocks), disk_allocator);
    if (!allocated) {
      std::fprintf(stderr, "%s\n", allocated.error().to_string().c_str());
      return false;
    }
    const auto& disk = *allocated;
    auto made = backend::uring::UringExecutor::create({.depth = kDepth, .strip_bytes = bytes});
    if (!made) {
      std::printf("  %s\n", made.error().to_string().c_str());
      return true;
    }
    backend::uring::UringExecutor& executor = **made;
    std::vector<backend::uring::Registration> registrations;
    for (const auto& set : {memory, disk}) {
      auto registration = executor.register_set(set);
      if (registration) {
        registrations.push_back(*std::move(registration));
      } else {
        std::printf("  not registered: %s\n", registration.error().to_string().c_str());
      }
    }
    PlainRing plain(*memory, *disk);
    const std::vector<std::uint32_t> here = shuffled(blocks, 1);
    const std::vector<std::uint32_t> there = shuffled(blocks, 2);
    const auto both = [&](const std::string& what, bool writes) {
      const auto ours = [&] {
        writes ? move(executor, memory, here, disk, there) : move(executor, disk, there, memory, here);
      };
      const auto rival = [&] { plain.run(here, there, bytes, writes); };
      met &= print_duel(what + " " + size_text(bytes), duel(kTotal, ours, rival), kTarget);
    };
    both("write", true);
    both("read", false);
  }
  return met;
}

}  // namespace ashlar::bench
