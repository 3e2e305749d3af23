// RedisConnection: a command pipeline to one server.
//
// hiredis connects; replies are parsed here, and object bytes move directly between the socket and the
// caller's memory. No memory is allocated from sizes announced by the server. Commands are written and
// replies read concurrently, as the socket allows, so the two sides cannot deadlock on full buffers.
//
// All waits are in poll(), for the socket, a deadline and a stop (limits.h). Only name resolution cannot be
// interrupted.
//
// Destroy a connection that failed: its next bytes belong to no command.
//
// Thread safety: confined to one thread at a time.
// Complexity:    a fixed buffer of 16 KiB; the thread sleeps in poll().
#pragma once

#include <hiredis/hiredis.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ashlar/base/result.h"
#include "backend/redis/command.h"
#include "backend/redis/limits.h"
#include "backend/redis/options.h"
#include "storage/parts_cursor.h"

namespace ashlar::backend::redis {

class RedisConnection {
 public:
  // Connects, authenticates and selects the database. Errors: kUnavailable; kIo: the server refuses us; those
  // of the limits.
  static Result<std::unique_ptr<RedisConnection>> connect(const RedisOptions& options, const Limits& limits);
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // False when the server has closed the connection or sent unsolicited data.
  bool is_quiet() const;

  // Fills in the replies. Errors: kUnavailable: the connection broke; those of the limits. After an error,
  // commands answered before have their replies, and the memory of the first unanswered one may be partly
  // written. Requires: no command is answered.
  Result<void> exchange(std::span<Command* const> commands, const Limits& limits);

 private:
  struct FreeContext {
    void operator()(redisContext* context) const noexcept { redisFree(context); }
  };
  // Write position in the commands: piece 0 is the head, then the spans of the value, then the tail.
  struct Cursor {
    std::size_t command = 0;
    std::size_t piece = 0;
    std::size_t byte = 0;
  };
  enum class Phase : std::uint8_t { kLine, kValue, kValueEnd };

  RedisConnection(const RedisOptions& options, redisContext* context) noexcept;
  Result<void> finish_connecting(const Limits& limits);
  Result<void> introduce(const Limits& limits);
  Error broken(const char* what) const;
  bool may_write() const;
  std::span<const std::byte> piece(const Cursor& cursor) const;
  void advance(Cursor& cursor, std::size_t bytes) const;
  Result<void> write_some();
  Result<void> read_some();
  Result<void> parse();
  Result<bool> parse_line();
  Result<void> begin_value(std::int64_t size);
  Result<void> read_plain(std::string_view line);
  void answered();

  const RedisOptions& options_;
  std::unique_ptr<redisContext, FreeContext> context_;

  std::span<Command* const> commands_;
  Cursor cursor_;
  std::size_t reading_ = 0;     // the command whose reply is next
  std::uint64_t expected_ = 0;  // bytes of values in flight
  std::chrono::steady_clock::time_point last_answer_;

  Phase phase_ = Phase::kLine;
  std::uint64_t value_left_ = 0;
  storage::PartsCursor<std::byte> place_;  // rest of its destination; empty when the value is discarded
  std::size_t begin_ = 0;                  // unread part of buffer_
  std::size_t end_ = 0;
  std::array<char, 16'384> buffer_{};
};

}  // namespace ashlar::backend::redis
