// A mapping is zeroed and committed page by page. For an alignment beyond a page it is longer by the
// alignment, and the memory starts at the first boundary inside; untouched pages cost nothing. A file is
// mapped over the part of such a mapping that holds the memory.
#include "storage/mapped_memory.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <memory>

#include "ashlar/base/check.h"
#include "base/checked_math.h"
#include "base/wide.h"

namespace ashlar::storage {
namespace {

constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 30;
constexpr std::uint32_t kMaxNode = 1023;
static_assert(kMaxAlignment >= kHugePage, "memory may be aligned to a huge page");

// Bytes that the system can still provide; unlimited where it does not report it.
std::uint64_t available_memory() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/meminfo", "re"), &std::fclose);
  if (file == nullptr) return ~std::uint64_t{0};
  std::array<char, 128> line{};
  unsigned long long kib = 0;
  while (std::fgets(line.data(), static_cast<int>(line.size()), file.get()) != nullptr)
    if (std::sscanf(line.data(), "MemAvailable: %llu kB", &kib) == 1)  // NOLINT(cert-err34-c): one number
      return std::uint64_t{kib} * 1024;
  return ~std::uint64_t{0};
}

Result<void> bind_to_node(void* address, std::uint64_t bytes, std::uint32_t node) {
  constexpr std::uint32_t kBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, (kMaxNode + 1) / kBits> mask{};
  mask[node / kBits] = 1ul << (node % kBits);
  if (syscall(SYS_mbind, address, bytes, MPOL_BIND, mask.data(), kMaxNode + 2, 0) != 0)
    return make_error(
        ErrorCode::kUnsupported,
        "NUMA node %u was refused (errno %d); leave numa_node out where the system has one node", node,
        errno);
  return {};
}

}  // namespace

Result<void> MemoryOptions::validate() const {
  if (bytes == 0) return make_error(ErrorCode::kInvalidArgument, "bytes is 0; storage has at least one");
  if (!std::has_single_bit(alignment) || alignment > kMaxAlignment)
    return make_error(ErrorCode::kInvalidArgument, "alignment is %llu; it is a power of two up to %llu",
                      wide(alignment), wide(kMaxAlignment));
  if (numa_node && *numa_node > kMaxNode)
    return make_error(ErrorCode::kInvalidArgument, "numa_node is %u; the largest is %u", *numa_node,
                      kMaxNode);
  return {};
}

Result<MappedMemory> MappedMemory::create(const MemoryOptions& options) {
  return map(options, -1);
}

Result<MappedMemory> MappedMemory::share(const MemoryOptions& options, int descriptor) {
  return map(options, descriptor);
}

Result<MappedMemory> MappedMemory::map(const MemoryOptions& options, int descriptor) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  const std::uint64_t page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const bool huge = options.huge_pages && options.bytes >= kHugePage;
  const std::uint64_t alignment =
      huge && options.alignment < kHugePage ? kHugePage : std::max(options.alignment, page);
  std::uint64_t mapped = 0;
  if (!align_up(options.bytes, page, &mapped) || !add(mapped, alignment - page, &mapped))
    return make_error(ErrorCode::kInvalidArgument, "bytes is %llu; no address space is that large",
                      wide(options.bytes));
  // The system overcommits and then kills processes, so check the available memory ourselves.
  const std::uint64_t there = available_memory();
  if (options.bytes > there)
    return make_error(ErrorCode::kCapacity,
                      "%llu bytes of memory were requested, the system has %llu available",
                      wide(options.bytes), wide(there));
  const auto refused = [&] {
    return make_error(ErrorCode::kCapacity,
                      "%llu bytes of memory were requested and refused (errno %d); %llu are available",
                      wide(options.bytes), errno, wide(there));
  };
  void* mapping = mmap(nullptr, mapped, descriptor < 0 ? PROT_READ | PROT_WRITE : PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return refused();
  const std::uint64_t past = reinterpret_cast<std::uintptr_t>(mapping) % alignment;
  auto* start = static_cast<std::byte*>(mapping) + (past == 0 ? 0 : alignment - past);
  ASHLAR_CHECK(start + options.bytes <= static_cast<std::byte*>(mapping) + mapped,
               "%llu bytes aligned to %llu pass the end of their mapping", wide(options.bytes),
               wide(alignment));
  MappedMemory memory(mapping, mapped, start, options.bytes);
  if (descriptor >= 0 &&
      mmap(start, options.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0) == MAP_FAILED)
    return refused();
  if (huge) madvise(start, options.bytes, MADV_HUGEPAGE);  // a hint
  if (options.numa_node) ASHLAR_RETURN_IF_ERROR(bind_to_node(start, options.bytes, *options.numa_node));
  if (options.touch_pages)
    for (std::uint64_t at = 0; at < options.bytes; at += page) {
      volatile std::byte* byte = start + at;
      *byte = std::byte{0};
    }
  return memory;
}

MappedMemory::~MappedMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

}  // namespace ashlar::storage
