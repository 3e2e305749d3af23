// FakeTransport: a transport for tests of agents: paths that only remember whether they are open, and storage
// that moves no bytes. It counts what is registered and connected, and fails on request.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "ashlar/transfer/host_executors.h"
#include "ashlar/transfer/remote_transport.h"

namespace ashlar::testing {

class FakeTransport final : public transfer::RemoteTransport {
 public:
  class Path final : public transfer::RemotePath {
   public:
    Path(const transfer::AgentIdentity& peer, std::function<void()> on_open)
        : peer_(peer), on_open_(std::move(on_open)) {}

    Result<std::shared_ptr<storage::RemoteStorage>> open(storage::RemoteMemory memory) override {
      if (on_open_) on_open_();
      if (const std::optional<Error> why = failure()) return Unexpected(*why);
      if (memory.agent != peer_.agent || memory.incarnation != peer_.incarnation || memory.key.size() != 4)
        return make_error(ErrorCode::kInvalidArgument, "not a key of this path");
      return storage::RemoteStorage::create(std::move(memory), std::make_shared<storage::RemoteAccess>());
    }
    void close(const Error& why) override {
      MutexLock lock(mu_);
      if (!failure_) failure_ = why;
    }
    std::optional<Error> failure() const override {
      MutexLock lock(mu_);
      return failure_;
    }

   private:
    const transfer::AgentIdentity peer_;
    const std::function<void()> on_open_;
    mutable Mutex mu_;
    std::optional<Error> failure_ ASHLAR_GUARDED_BY(mu_);
  };

  explicit FakeTransport(std::string name = "fake") : name_(std::move(name)) {}

  std::string_view name() const noexcept override { return name_; }
  std::vector<std::byte> address() const override { return std::vector<std::byte>(5, std::byte{9}); }
  Result<std::unique_ptr<transfer::MemoryRegistration>> register_memory(
      std::shared_ptr<storage::Storage> storage, storage::AccessMode /*mode*/) override {
    class Registration final : public transfer::MemoryRegistration {
     public:
      Registration(std::shared_ptr<storage::Storage> held, std::shared_ptr<std::atomic<int>> count)
          : storage_(std::move(held)), count_(std::move(count)) {
        ++*count_;
      }
      ~Registration() override { --*count_; }
      std::span<const std::byte> key() const noexcept override { return key_; }

     private:
      std::shared_ptr<storage::Storage> storage_;
      std::shared_ptr<std::atomic<int>> count_;
      std::vector<std::byte> key_ = std::vector<std::byte>(4, std::byte{7});
    };
    return std::unique_ptr<transfer::MemoryRegistration>(
        std::make_unique<Registration>(std::move(storage), registered));
  }
  Result<std::shared_ptr<transfer::RemotePath>> connect(
      const transfer::AgentIdentity& peer, std::span<const std::byte> /*address*/,
      std::function<void(const Error&)> on_failure,
      Clock::TimePoint deadline = Clock::TimePoint::max()) override {
    if (on_connect) on_connect(peer, deadline);
    if (unreachable) return make_error(ErrorCode::kUnavailable, "no way");
    MutexLock lock(mu_);
    failures_.push_back(std::move(on_failure));
    return std::shared_ptr<transfer::RemotePath>(std::make_shared<Path>(peer, on_open));
  }
  transfer::Executor& executor() noexcept override { return *executor_; }

  // Tells the users of all paths so far that they failed.
  void fail_paths(const Error& why) {
    std::vector<std::function<void(const Error&)>> failures;
    {
      MutexLock lock(mu_);
      failures.swap(failures_);
    }
    for (const auto& failure : failures) failure(why);
  }

  std::shared_ptr<std::atomic<int>> registered = std::make_shared<std::atomic<int>>(0);
  std::atomic<bool> unreachable = false;
  // Set before use.
  std::function<void(const transfer::AgentIdentity& peer, Clock::TimePoint deadline)> on_connect = {};
  std::function<void()> on_open = {};  // memory of a peer is about to be opened

 private:
  std::string name_;
  std::unique_ptr<transfer::MemcpyExecutor> executor_ = transfer::MemcpyExecutor::create().value();
  Mutex mu_;
  std::vector<std::function<void(const Error&)>> failures_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::testing
