// Frame, Context, Socket: RAII owners and errors around ZeroMQ's C calls.
//
// A process has one context, so that all inproc endpoints can connect; it ends with the last socket.
//
// Thread safety: Context: thread-safe. Frame: thread-compatible. Socket: confined to one thread at a time.
#pragma once

#include <zmq.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/byte_budget.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"

namespace ashlar::backend::zmq {

// One frame of a message. Copies of a long one share its bytes.
class Frame {
 public:
  Frame() noexcept { zmq_msg_init(&message_); }
  Frame(Frame&& other) noexcept : Frame() { zmq_msg_move(&message_, &other.message_); }
  Frame& operator=(Frame&& other) noexcept {
    if (this != &other) zmq_msg_move(&message_, &other.message_);
    return *this;
  }
  ~Frame() { zmq_msg_close(&message_); }

  // Throws std::bad_alloc.
  static Frame of(std::span<const std::byte> bytes);
  static Frame of(std::string_view text) { return of(std::as_bytes(std::span(text))); }
  // Takes ownership of the bytes. They count against the budget until the last copy of the frame is gone,
  // including copies queued in the library. Throws std::bad_alloc.
  static Frame of(std::vector<std::byte> bytes, std::shared_ptr<ByteBudget> budget);
  // Eight bytes, most significant first.
  static Frame of_number(std::uint64_t number);
  Frame shared() const noexcept;

  std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  std::string_view text() const noexcept {
    return {static_cast<const char*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  std::size_t size() const noexcept { return zmq_msg_size(&message_); }
  bool empty() const noexcept { return size() == 0; }
  bool more() const noexcept { return zmq_msg_more(&message_) != 0; }
  zmq_msg_t* get() noexcept { return &message_; }

 private:
  mutable zmq_msg_t message_;  // read-only C calls take it as non-const
};

class Context {
 public:
  // Errors: kCapacity: the system has no descriptors or threads left.
  static Result<std::shared_ptr<Context>> shared();
  explicit Context(void* context) noexcept : context_(context) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();
  void* get() const noexcept { return context_; }

 private:
  void* context_;
};

class Socket {
 public:
  static Result<Socket> create(std::shared_ptr<Context> context, int type);
  Socket(Socket&& other) noexcept
      : context_(std::move(other.context_)), socket_(std::exchange(other.socket_, nullptr)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(socket_, other.socket_);
    return *this;
  }
  ~Socket();

  // Requires: validated values; the library accepts all of them.
  void set(int option, int value) noexcept;
  void set(int option, std::int64_t value) noexcept;
  void set(int option, std::string_view value) noexcept;

  // Returns the endpoint with the port that the system chose. Waits briefly for an address that is being
  // released.
  Result<std::string> bind(const std::string& endpoint);
  Result<void> connect(const std::string& endpoint);
  // Returns once the address is free for another socket.
  void unbind(const std::string& endpoint) noexcept;

  // Consumes the frame when it is sent. False: would block (with ZMQ_DONTWAIT), or errno says why.
  bool send(Frame& frame, int flags) noexcept;
  bool send(Frame&& frame, int flags) noexcept { return send(frame, flags); }
  // Receives a whole message; frames beyond `limit` are dropped but counted. Returns the number of frames; 0:
  // no message is waiting.
  std::size_t receive(std::vector<Frame>& frames, std::size_t limit) noexcept;

  // Receives one frame. False: none is waiting.
  bool receive(Frame& frame) noexcept;

  zmq_pollitem_t item(short events) const noexcept {
    return {.socket = socket_, .fd = -1, .events = events, .revents = 0};
  }
  void* get() const noexcept { return socket_; }
  const std::shared_ptr<Context>& context() const noexcept { return context_; }

 private:
  Socket(std::shared_ptr<Context> context, void* socket) noexcept
      : context_(std::move(context)), socket_(socket) {}

  std::shared_ptr<Context> context_;
  void* socket_;
};

// Waits until an item is ready or `timeout` has passed. Returns how many are ready.
int poll_items(std::span<zmq_pollitem_t> items, Clock::Duration timeout) noexcept;

// "zmq_bind tcp://…: Address already in use", as kUnavailable, or kInvalidArgument for a bad endpoint.
Error socket_error(const char* call, const std::string& endpoint);

// Errors: kInvalidArgument: not an address of ZeroMQ, an invalid TCP port (ZeroMQ itself takes it modulo
// 65536), or a user and password, which ZeroMQ does not support; the message does not contain them.
Result<void> check_endpoint(const char* option, const std::string& endpoint);

// An endpoint unique in the process.
std::string unique_inproc(const char* purpose);

}  // namespace ashlar::backend::zmq
