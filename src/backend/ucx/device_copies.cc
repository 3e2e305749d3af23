#include "backend/ucx/device_copies.h"

#include <algorithm>
#include <cstring>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/layout/layout.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/transfer/transfer_plan.h"
#include "base/wide.h"

namespace ashlar::backend::ucx {
namespace {

// Of all peers together; a peer has at most its window of operations in flight.
constexpr std::size_t kMostWaiting = std::size_t{1} << 14;
constexpr std::uint64_t kMostWaitingBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kBufferAlignment = 4096;
// How often an executor that was full is tried again, unless a copy has ended.
constexpr Clock::Duration kRetryEvery = std::chrono::milliseconds(1);

// `bytes` of a storage from `offset` on, as a set with one block.
Result<std::shared_ptr<const transfer::BlockSet>> plain_bytes(std::shared_ptr<storage::Storage> storage,
                                                              std::uint64_t offset, std::uint32_t bytes) {
  ASHLAR_TRY(const layout::Layout layout, layout::Layout::create({.block_count = 1,
                                                                  .num_layers = 1,
                                                                  .outer_dim = 1,
                                                                  .block_size = 1,
                                                                  .num_heads = 1,
                                                                  .head_dim = bytes,
                                                                  .inner_dim = bytes,
                                                                  .dtype = layout::Dtype::kU8},
                                                                 layout::order::kFullyContiguousNhd));
  std::vector<transfer::Plane> planes;
  planes.push_back({layout, layout::Shard::whole(layout.config()), {{std::move(storage), offset}}});
  return transfer::BlockSet::create(std::move(planes));
}

}  // namespace

DeviceCopies::DeviceCopies(std::shared_ptr<transfer::Executor> executor, std::shared_ptr<RegionTable> table,
                           std::function<void()> wake)
    : executor_(std::move(executor)), table_(std::move(table)) {
  const MutexLock lock(ends_->mu);
  ends_->wake = std::move(wake);
}

Result<std::unique_ptr<DeviceCopies>> DeviceCopies::create(const UcxOptions& options,
                                                           std::uint64_t buffer_bytes,
                                                           std::shared_ptr<RegionTable> table,
                                                           std::function<void()> wake) {
  std::unique_ptr<DeviceCopies> out(
      new DeviceCopies(options.device_executor, std::move(table), std::move(wake)));
  storage::SystemAllocator pageable;
  storage::Allocator& allocator = options.bounce_memory == nullptr ? pageable : *options.bounce_memory;
  for (std::uint32_t i = 0; i < options.bounce_buffers; ++i) {
    ASHLAR_TRY(std::shared_ptr<storage::Storage> buffer, allocator.allocate(buffer_bytes, kBufferAlignment));
    if (!buffer->host_accessible())
      return make_error(ErrorCode::kInvalidArgument, "bounce_memory makes '%s'; buffers are host memory",
                        buffer->describe().c_str());
    out->free_.push_back(std::move(buffer));
  }
  out->buffer_bytes_ = buffer_bytes;
  return out;
}

DeviceCopies::~DeviceCopies() {
  const MutexLock lock(ends_->mu);
  ends_->wake = nullptr;
}

bool DeviceCopies::add(Copy copy) {
  if (waiting_ >= kMostWaiting || copy.bytes.size() > kMostWaitingBytes - waiting_bytes_) return false;
  ++waiting_;
  waiting_bytes_ += copy.bytes.size();
  std::shared_ptr<Asker>& asker = askers_[copy.endpoint];
  if (asker == nullptr) asker = std::make_shared<Asker>();
  if (asker->waiting.empty()) turns_.push_back(asker);
  asker->waiting.push_back(std::move(copy));
  start_waiting();
  return true;
}

void DeviceCopies::give_back(Buffer buffer) {
  free_buffer(buffer);
  start_waiting();
}

void DeviceCopies::free_buffer(Buffer& buffer) {
  ASHLAR_DCHECK(buffer.memory->size() >= buffer_bytes_, "a buffer of %llu bytes comes back with %llu",
                wide(buffer_bytes_), wide(buffer.memory->size()));
  ASHLAR_CHECK(buffer.asker->buffers != 0, "a buffer comes back twice");
  --buffer.asker->buffers;
  free_.push_back(std::move(buffer.memory));
  buffer = {};
}

void DeviceCopies::forget(ucp_ep_h endpoint) {
  std::erase_if(refused_, [&](const Copy& copy) { return copy.endpoint == endpoint; });
  for (auto& [id, copy] : running_)
    if (copy.endpoint == endpoint) copy.endpoint = nullptr;
  const auto found = askers_.find(endpoint);
  if (found == askers_.end()) return;
  waiting_ -= found->second->waiting.size();
  for (const Copy& copy : found->second->waiting) waiting_bytes_ -= copy.bytes.size();
  found->second->waiting.clear();
  std::erase(turns_, found->second);
  askers_.erase(found);
}

void DeviceCopies::start_waiting() {
  if (full_ && Clock::real().now() < retry_at_) return;
  full_ = false;
  // Until all that wait have as many buffers as they may.
  for (std::size_t passed = 0; passed < turns_.size() && !free_.empty();) {
    const std::shared_ptr<Asker> asker = turns_.front();
    const bool may = asker->buffers < free_.size();
    if (may && !start_next(asker)) return;
    turns_.pop_front();
    if (!asker->waiting.empty()) turns_.push_back(asker);
    passed = may ? 0 : passed + 1;
  }
}

bool DeviceCopies::start_next(const std::shared_ptr<Asker>& asker) {
  Copy copy = std::move(asker->waiting.front());
  asker->waiting.pop_front();
  const std::uint64_t put_bytes = copy.bytes.size();
  --waiting_;
  waiting_bytes_ -= put_bytes;
  const std::shared_ptr<storage::Storage> memory =
      copy.puts ? table_->begin_device_write(copy.request) : table_->find(copy.request);
  if (memory == nullptr) {
    copy.verdict = Verdict::kNotOffered;
    refused_.push_back(std::move(copy));
    return true;
  }
  copy.buffer = {std::move(free_.back()), asker};
  free_.pop_back();
  ++asker->buffers;
  const std::uint64_t id = next_++;
  Copy& running = running_.emplace(id, std::move(copy)).first->second;
  const Result<void> started = start(id, running, memory);
  if (started) return true;
  copy = std::move(running);
  running_.erase(id);
  if (copy.puts) table_->end_device_write(copy.request.region);
  free_buffer(copy.buffer);
  if (started.error().code() == ErrorCode::kCapacity) {
    full_ = true;
    retry_at_ = Clock::real().now() + kRetryEvery;
    ++waiting_;
    waiting_bytes_ += put_bytes;
    asker->waiting.push_front(std::move(copy));
    return false;
  }
  ASHLAR_LOG(LogLevel::kWarn, "ucx", "device memory was not copied for a peer: %s",
             started.error().message().c_str());
  copy.verdict = Verdict::kNotCopied;
  refused_.push_back(std::move(copy));
  return true;
}

Result<void> DeviceCopies::start(std::uint64_t id, Copy& copy,
                                 const std::shared_ptr<storage::Storage>& memory) {
  const RequestHeader& request = copy.request;
  if (request.bytes > copy.buffer.memory->size())
    return make_error(ErrorCode::kInvalidArgument,
                      "a request for %llu bytes, and buffers of %llu; give both sides the same segment_bytes",
                      wide(request.bytes), wide(copy.buffer.memory->size()));
  if (copy.puts) std::memcpy(copy.buffer.memory->address(), copy.bytes.data(), copy.bytes.size());
  const auto bytes = static_cast<std::uint32_t>(request.bytes);
  ASHLAR_TRY(std::shared_ptr<const transfer::BlockSet> there, plain_bytes(memory, request.offset, bytes));
  ASHLAR_TRY(std::shared_ptr<const transfer::BlockSet> here, plain_bytes(copy.buffer.memory, 0, bytes));
  if (copy.puts) std::swap(there, here);
  const std::uint32_t block = 0;
  ASHLAR_TRY(transfer::TransferPlan plan,
             transfer::plan(std::move(there), {&block, 1}, std::move(here), {&block, 1}));
  const auto ended = [ends = ends_, table = table_, region = request.region, puts = copy.puts,
                      id](const transfer::TransferResult& result) {
    if (puts) table->end_device_write(region);
    const MutexLock lock(ends->mu);
    ends->list.emplace_back(id, result.has_value());
    if (ends->wake) ends->wake();
  };
  const Result<transfer::Transfer> transfer =
      executor_->submit({.plan = std::move(plan), .wait_for_room = false, .on_done = ended});
  if (!transfer) return transfer.error();
  copy.bytes = {};
  return {};
}

std::vector<DeviceCopies::Copy> DeviceCopies::take_ended() {
  std::vector<std::pair<std::uint64_t, bool>> list;
  {
    const MutexLock lock(ends_->mu);
    list.swap(ends_->list);
  }
  if (!list.empty()) retry_at_ = {};
  std::vector<Copy> out;
  for (const auto& [id, succeeded] : list) {
    const auto found = running_.find(id);
    ASHLAR_CHECK(found != running_.end(), "a device copy ends twice");
    Copy copy = std::move(found->second);
    running_.erase(found);
    copy.verdict = succeeded ? Verdict::kGranted : Verdict::kNotCopied;
    // Only the bytes of a get are still needed.
    if (copy.puts || !succeeded || copy.endpoint == nullptr) free_buffer(copy.buffer);
    if (copy.endpoint != nullptr) out.push_back(std::move(copy));
  }
  start_waiting();
  std::ranges::move(refused_, std::back_inserter(out));
  refused_.clear();
  return out;
}

}  // namespace ashlar::backend::ucx
