#include "ashlar/backend/redis/redis_volume.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/random.h"
#include "backend/redis/connection.h"
#include "backend/redis/options.h"

namespace ashlar::backend::redis {
namespace {

using std::chrono::milliseconds;

// Transient errors: the command is retried.
bool is_passing(const RedisReply& reply) {
  if (reply.kind != RedisReply::Kind::kError) return false;
  return reply.text == "LOADING" || reply.text == "BUSY" || reply.text == "MASTERDOWN" ||
         reply.text == "TRYAGAIN" || reply.text == "CLUSTERDOWN";
}

class RedisVolume final : public tiers::Volume {
 public:
  explicit RedisVolume(RedisOptions options) : options_(std::move(options)) {}

  std::string describe() const override { return options_.describe(); }
  std::vector<Result<void>> put(std::span<const tiers::ObjectWrite> objects,
                                const tiers::CallLimits& limits) override;
  std::vector<Result<void>> get(std::span<const tiers::ObjectRead> objects,
                                const tiers::CallLimits& limits) override;
  std::vector<Result<bool>> contains(std::span<const std::string_view> keys,
                                     const tiers::CallLimits& limits) override;
  std::vector<Result<void>> remove(std::span<const std::string_view> keys,
                                   const tiers::CallLimits& limits) override;

 private:
  // Runs the commands with retries. Errors: why some remained unanswered.
  Result<void> run(std::span<Command> commands, const Limits& limits);
  Result<std::unique_ptr<RedisConnection>> take(bool& fresh, const Limits& limits);
  void give_back(std::unique_ptr<RedisConnection> connection);
  void forget_idle();

  // run() over the objects with a valid key; to_result(i, reply) makes an answer.
  template <class R, class Key, class Make, class ToResult>
  void batch(const tiers::CallLimits& limits, std::vector<R>& results, const Key& key, const Make& make,
             const ToResult& to_result);
  Error error_of(const char* what, std::string_view key, const RedisReply& reply) const;

  const RedisOptions options_;
  Mutex mu_;
  std::vector<std::unique_ptr<RedisConnection>> idle_ ASHLAR_GUARDED_BY(mu_);
};

Result<std::unique_ptr<RedisConnection>> RedisVolume::take(bool& fresh, const Limits& limits) {
  fresh = false;
  while (true) {
    std::unique_ptr<RedisConnection> found;
    {
      const MutexLock lock(mu_);
      if (idle_.empty()) break;
      found = std::move(idle_.back());
      idle_.pop_back();
    }
    if (found->is_quiet()) return found;
  }
  fresh = true;
  return RedisConnection::connect(options_, limits);
}

void RedisVolume::give_back(std::unique_ptr<RedisConnection> connection) {
  const MutexLock lock(mu_);
  if (idle_.size() < options_.idle_connections) idle_.push_back(std::move(connection));
}

void RedisVolume::forget_idle() {
  std::vector<std::unique_ptr<RedisConnection>> closed;  // outside the lock
  const MutexLock lock(mu_);
  closed.swap(idle_);
}

Result<void> RedisVolume::run(std::span<Command> commands, const Limits& limits) {
  std::vector<Command*> left;
  left.reserve(commands.size());
  for (Command& command : commands) left.push_back(&command);
  Random random(static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  for (std::uint64_t failures = 0; !left.empty();) {
    bool fresh = false;
    Result<std::unique_ptr<RedisConnection>> connection = take(fresh, limits);
    Result<void> done;
    const std::size_t before = left.size();
    if (connection) {
      done = (*connection)->exchange(left, limits);
      if (done) give_back(std::move(*connection));
      for (Command* const command : left) {
        if (!is_passing(command->reply)) continue;
        done = make_error(ErrorCode::kUnavailable, "%s: the server answered %s", options_.describe().c_str(),
                          command->reply.text.c_str());
        command->reply = {};
      }
      std::erase_if(left, [](const Command* command) { return command->answered(); });
    } else {
      done = connection.error();
    }
    if (left.empty()) break;
    if (done.error().code() != ErrorCode::kUnavailable) return done;  // not transient: no retry
    if (left.size() < before) {
      failures = 0;
    } else if (connection && !fresh) {
      // The server was lost since this connection was last used; so were the other idle ones.
      forget_idle();
      continue;
    } else if (++failures > options_.retries) {
      return make_error(ErrorCode::kUnavailable, "%s; abandoned after %llu attempts",
                        done.error().message().c_str(), static_cast<unsigned long long>(failures));
    }
    milliseconds pause = options_.backoff * (1 << std::min<std::uint64_t>(failures, 6));
    pause = pause / 2 + milliseconds(random.below(static_cast<std::uint64_t>(pause.count() / 2) + 1));
    pollfd nothing{.fd = -1, .events = 0, .revents = 0};
    limits.wait(nothing, pause);
    ASHLAR_RETURN_IF_ERROR(limits.check());
  }
  return {};
}

Error RedisVolume::error_of(const char* what, std::string_view key, const RedisReply& reply) const {
  const bool full = reply.text == "OOM" || reply.text == kTooLarge;
  const ErrorCode code = full                        ? ErrorCode::kCapacity
                         : reply.text == "WRONGTYPE" ? ErrorCode::kCorruption
                                                     : ErrorCode::kIo;
  const char* advice = "";
  if (reply.text == "OOM") advice = "; its maxmemory is used up, and its policy evicts nothing";
  if (reply.text == kTooLarge) advice = "; it is more than its proto-max-bulk-len";
  if (reply.text == "NOAUTH" || reply.text == "NOPERM") advice = "; check the options username and password";
  if (reply.text == "MOVED" || reply.text == "ASK") advice = "; clusters need a proxy in front of them";
  return make_error(code, "%s: %s '%s': the server answered %s%s", options_.describe().c_str(), what,
                    std::string(key).c_str(),
                    reply.kind == RedisReply::Kind::kError ? reply.text.c_str() : "an unexpected reply",
                    advice);
}

template <class R, class Key, class Make, class ToResult>
void RedisVolume::batch(const tiers::CallLimits& limits, std::vector<R>& results, const Key& key,
                        const Make& make, const ToResult& to_result) {
  std::vector<Command> commands;
  std::vector<std::size_t> objects;
  commands.reserve(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (const Result<void> good = tiers::check_key(key(i)); !good) {
      results[i] = good.error();
    } else if (Result<Command> command = make(i, options_.prefix + std::string(key(i))); !command) {
      results[i] = command.error();
    } else {
      commands.push_back(std::move(*command));
      objects.push_back(i);
    }
  }
  const Result<void> done = run(commands, Limits(limits));
  for (std::size_t at = 0; at < commands.size(); ++at) {
    const std::size_t i = objects[at];
    if (commands[at].answered()) {
      results[i] = to_result(i, commands[at].reply);
    } else {
      ASHLAR_CHECK(!done, "the command for object %zu was neither answered nor refused", i);
      results[i] = done.error();
    }
  }
}

std::vector<Result<void>> RedisVolume::put(std::span<const tiers::ObjectWrite> objects,
                                           const tiers::CallLimits& limits) {
  std::vector<Result<void>> results(objects.size());
  batch(
      limits, results, [&](std::size_t i) { return objects[i].key; },
      [&](std::size_t i, const std::string& name) -> Result<Command> {
        const std::uint64_t size = objects[i].size();
        if (size <= options_.max_object_bytes)
          return set_command(name, objects[i].parts, size, options_.ttl_seconds);
        return make_error(ErrorCode::kCapacity, "%s: put '%s': the object has %llu bytes, %llu are allowed",
                          options_.describe().c_str(), std::string(objects[i].key).c_str(),
                          static_cast<unsigned long long>(size),
                          static_cast<unsigned long long>(options_.max_object_bytes));
      },
      [&](std::size_t i, const RedisReply& reply) -> Result<void> {
        if (reply.kind == RedisReply::Kind::kStatus) return {};
        return error_of("put", objects[i].key, reply);
      });
  return results;
}

std::vector<Result<void>> RedisVolume::get(std::span<const tiers::ObjectRead> objects,
                                           const tiers::CallLimits& limits) {
  std::vector<Result<void>> results(objects.size());
  batch(
      limits, results, [&](std::size_t i) { return objects[i].key; },
      [&](std::size_t i, const std::string& name) -> Result<Command> {
        return Command{.head = encode({"GET", name}),
                       .expects_value = true,
                       .parts = objects[i].parts,
                       .expected = objects[i].size()};
      },
      [&](std::size_t i, const RedisReply& reply) -> Result<void> {
        if (reply.kind == RedisReply::Kind::kValue) return {};
        const std::string place = options_.describe() + ": get '" + std::string(objects[i].key) + "'";
        if (reply.kind == RedisReply::Kind::kNothing)
          return make_error(ErrorCode::kNotFound, "%s: there is no such object", place.c_str());
        if (reply.kind == RedisReply::Kind::kOtherSize)
          return make_error(ErrorCode::kCorruption, "%s: the object has %lld bytes, %llu are expected",
                            place.c_str(), static_cast<long long>(reply.number),
                            static_cast<unsigned long long>(objects[i].size()));
        return error_of("get", objects[i].key, reply);
      });
  return results;
}

std::vector<Result<bool>> RedisVolume::contains(std::span<const std::string_view> keys,
                                                const tiers::CallLimits& limits) {
  std::vector<Result<bool>> results(keys.size(), false);
  batch(
      limits, results, [&](std::size_t i) { return keys[i]; },
      [&](std::size_t, const std::string& name) -> Result<Command> {
        return Command{.head = encode({"EXISTS", name})};
      },
      [&](std::size_t i, const RedisReply& reply) -> Result<bool> {
        if (reply.kind == RedisReply::Kind::kInteger) return reply.number != 0;
        return error_of("contains", keys[i], reply);
      });
  return results;
}

std::vector<Result<void>> RedisVolume::remove(std::span<const std::string_view> keys,
                                              const tiers::CallLimits& limits) {
  std::vector<Result<void>> results(keys.size());
  batch(
      limits, results, [&](std::size_t i) { return keys[i]; },
      [&](std::size_t, const std::string& name) -> Result<Command> {
        return Command{.head = encode({"UNLINK", name})};  // frees large values in the background
      },
      [&](std::size_t i, const RedisReply& reply) -> Result<void> {
        if (reply.kind == RedisReply::Kind::kInteger) return {};
        return error_of("remove", keys[i], reply);
      });
  return results;
}

}  // namespace

Result<std::unique_ptr<tiers::Volume>> attach(const tiers::VolumeDescriptor& descriptor) {
  ASHLAR_TRY(RedisOptions options, RedisOptions::read(descriptor));
  return std::unique_ptr<tiers::Volume>(new RedisVolume(std::move(options)));
}

}  // namespace ashlar::backend::redis
