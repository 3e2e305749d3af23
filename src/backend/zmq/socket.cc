#include "backend/zmq/socket.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"

namespace ashlar::backend::zmq {
namespace {

constexpr auto kBindPatience = std::chrono::seconds(2);
constexpr int kUnbindPatienceMs = 1000;

}  // namespace

Frame Frame::of(std::span<const std::byte> bytes) {
  Frame frame;
  if (zmq_msg_init_size(&frame.message_, bytes.size()) != 0) {
    zmq_msg_init(&frame.message_);
    throw std::bad_alloc();
  }
  if (!bytes.empty()) std::memcpy(zmq_msg_data(&frame.message_), bytes.data(), bytes.size());
  return frame;
}

Frame Frame::of(std::vector<std::byte> bytes, std::shared_ptr<ByteBudget> budget) {
  struct Owner {
    std::vector<std::byte> bytes;
    std::shared_ptr<ByteBudget> budget;
  };
  auto owner = std::make_unique<Owner>(Owner{.bytes = std::move(bytes), .budget = std::move(budget)});
  // Possibly called by a library thread.
  const auto release = [](void*, void* hint) {
    const std::unique_ptr<Owner> last(static_cast<Owner*>(hint));
    last->budget->give_back(last->bytes.size());
  };
  Frame frame;
  if (zmq_msg_init_data(&frame.message_, owner->bytes.data(), owner->bytes.size(), release, owner.get()) !=
      0) {
    zmq_msg_init(&frame.message_);
    throw std::bad_alloc();
  }
  Owner* const held = owner.release();  // by the frame
  held->budget->take(held->bytes.size());
  return frame;
}

Frame Frame::of_number(std::uint64_t number) {
  std::array<std::byte, 8> bytes{};
  for (std::size_t i = bytes.size(); i-- > 0; number >>= 8) bytes[i] = static_cast<std::byte>(number & 0xFF);
  return of(bytes);
}

Frame Frame::shared() const noexcept {
  Frame frame;
  zmq_msg_copy(&frame.message_, &message_);
  return frame;
}

Result<std::shared_ptr<Context>> Context::shared() {
  static Mutex mutex;
  static std::weak_ptr<Context> current;
  const MutexLock lock(mutex);
  if (std::shared_ptr<Context> existing = current.lock()) return existing;
  void* context = zmq_ctx_new();
  if (context == nullptr)
    return make_error(ErrorCode::kCapacity, "no context of ZeroMQ: %s", zmq_strerror(zmq_errno()));
  auto made = std::make_shared<Context>(context);
  current = made;
  return made;
}

Context::~Context() {
  while (zmq_ctx_term(context_) != 0 && zmq_errno() == EINTR) {
  }
}

Result<Socket> Socket::create(std::shared_ptr<Context> context, int type) {
  void* socket = zmq_socket(context->get(), type);
  if (socket == nullptr) {
    return make_error(ErrorCode::kCapacity,
                      "no socket of ZeroMQ: %s; raise the limit of open files, or use fewer sockets",
                      zmq_strerror(zmq_errno()));
  }
  Socket out(std::move(context), socket);
  out.set(ZMQ_LINGER, 0);
  return out;
}

Socket::~Socket() {
  if (socket_ != nullptr) zmq_close(socket_);
}

void Socket::set(int option, int value) noexcept {
  const int status = zmq_setsockopt(socket_, option, &value, sizeof value);
  ASHLAR_CHECK(status == 0, "ZeroMQ refuses the validated value %d for option %d", value, option);
}

void Socket::set(int option, std::int64_t value) noexcept {
  const int status = zmq_setsockopt(socket_, option, &value, sizeof value);
  ASHLAR_CHECK(status == 0, "ZeroMQ refuses the validated value %lld for option %d",
               static_cast<long long>(value), option);
}

void Socket::set(int option, std::string_view value) noexcept {
  const int status = zmq_setsockopt(socket_, option, value.data(), value.size());
  ASHLAR_CHECK(status == 0, "ZeroMQ refuses the validated value '%.*s' for option %d",
               static_cast<int>(value.size()), value.data(), option);
}

Result<std::string> Socket::bind(const std::string& endpoint) {
  const auto give_up = std::chrono::steady_clock::now() + kBindPatience;
  while (zmq_bind(socket_, endpoint.c_str()) != 0) {
    if (zmq_errno() != EADDRINUSE || std::chrono::steady_clock::now() >= give_up)
      return socket_error("zmq_bind", endpoint);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::array<char, 1024> name{};
  std::size_t length = name.size();
  if (zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, name.data(), &length) != 0) return endpoint;
  return std::string(name.data());
}

Result<void> Socket::connect(const std::string& endpoint) {
  if (zmq_connect(socket_, endpoint.c_str()) != 0) return socket_error("zmq_connect", endpoint);
  return {};
}

// The I/O thread releases the address some time after the call, and reports that only to a monitor.
void Socket::unbind(const std::string& endpoint) noexcept {
  const std::string where = unique_inproc("unbind");
  void* watcher = zmq_socket(context_->get(), ZMQ_PAIR);
  const bool watched =
      watcher != nullptr &&
      zmq_socket_monitor(socket_, where.c_str(), ZMQ_EVENT_CLOSED | ZMQ_EVENT_CLOSE_FAILED) == 0 &&
      zmq_connect(watcher, where.c_str()) == 0;
  const bool asked = zmq_unbind(socket_, endpoint.c_str()) == 0;
  if (watched && asked && !endpoint.starts_with("inproc:")) {
    zmq_pollitem_t item{.socket = watcher, .fd = -1, .events = ZMQ_POLLIN, .revents = 0};
    zmq_poll(&item, 1, kUnbindPatienceMs);
  }
  zmq_socket_monitor(socket_, nullptr, 0);
  if (watcher != nullptr) {
    const int linger = 0;
    zmq_setsockopt(watcher, ZMQ_LINGER, &linger, sizeof linger);
    zmq_close(watcher);
  }
}

bool Socket::send(Frame& frame, int flags) noexcept {
  for (;;) {
    if (zmq_msg_send(frame.get(), socket_, flags) >= 0) return true;
    if (zmq_errno() != EINTR) return false;
  }
}

bool Socket::receive(Frame& frame) noexcept {
  for (;;) {
    if (zmq_msg_recv(frame.get(), socket_, ZMQ_DONTWAIT) >= 0) return true;
    if (zmq_errno() != EINTR) return false;
  }
}

std::size_t Socket::receive(std::vector<Frame>& frames, std::size_t limit) noexcept {
  frames.clear();
  std::size_t count = 0;
  for (;;) {
    Frame frame;
    if (!receive(frame)) return count;  // only before the first frame: a message arrives whole
    ++count;
    const bool more = frame.more();
    if (count <= limit) frames.push_back(std::move(frame));
    if (!more) return count;
  }
}

int poll_items(std::span<zmq_pollitem_t> items, Clock::Duration timeout) noexcept {
  using std::chrono::milliseconds;
  const auto wait = std::chrono::ceil<milliseconds>(std::max(timeout, Clock::Duration::zero()));
  const long longest = 1L << 30;
  const int ready = zmq_poll(items.data(), static_cast<int>(items.size()),
                             static_cast<long>(std::min<std::int64_t>(wait.count(), longest)));
  return std::max(ready, 0);
}

Error socket_error(const char* call, const std::string& endpoint) {
  const int number = zmq_errno();
  const bool theirs = number == EINVAL || number == EPROTONOSUPPORT || number == ENOCOMPATPROTO ||
                      number == ENODEV || number == ENAMETOOLONG;
  return make_error(theirs ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable, "%s %s: %s", call,
                    endpoint.c_str(), zmq_strerror(number));
}

Result<void> check_endpoint(const char* option, const std::string& endpoint) {
  if (endpoint.find("://") == std::string::npos)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s is not an address of ZeroMQ; write tcp://host:port, ipc://path or inproc://name",
                      option);
  if (!endpoint.starts_with("tcp://")) return {};
  if (endpoint.find('@') != std::string::npos)
    return make_error(ErrorCode::kInvalidArgument, "%s holds a '@'; ZeroMQ takes no user and no password",
                      option);
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  if (port == "*") return {};
  const bool digits = !port.empty() && port.size() <= 5 &&
                      std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
  if (digits && std::stoul(port) <= 65'535) return {};
  return make_error(ErrorCode::kInvalidArgument, "%s %s must end in a port from 0 to 65535", option,
                    endpoint.c_str());
}

std::string unique_inproc(const char* purpose) {
  static std::atomic<std::uint64_t> next{0};
  return std::string("inproc://ashlar-") + purpose + "-" + std::to_string(next.fetch_add(1));
}

}  // namespace ashlar::backend::zmq
