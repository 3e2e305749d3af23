// RawSocket: a socket of ZeroMQ without anything of ours, for the other side of a test.
#pragma once

#include <gtest/gtest.h>
#include <zmq.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/backend/zmq/engine_publisher.h"

namespace ashlar::backend::zmq {

inline constexpr const char* kAnyPort = "tcp://127.0.0.1:*";

using Frames = std::vector<std::string>;

class RawSocket {
 public:
  explicit RawSocket(int type) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    const int none = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket_, ZMQ_RCVHWM, &none, sizeof none);
    zmq_setsockopt(socket_, ZMQ_SNDHWM, &none, sizeof none);
  }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;
  ~RawSocket() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  // With the port that the system chose.
  std::string bind(const std::string& endpoint) {
    EXPECT_EQ(zmq_bind(socket_, endpoint.c_str()), 0) << endpoint << ": " << zmq_strerror(zmq_errno());
    char name[256] = {};
    std::size_t length = sizeof name;
    zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, name, &length);
    return name;
  }
  void connect(const std::string& endpoint) {
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0) << endpoint << ": " << zmq_strerror(zmq_errno());
  }
  void subscribe(const std::string& topic) {
    zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, topic.data(), topic.size());
  }
  void set(int option, int value) { zmq_setsockopt(socket_, option, &value, sizeof value); }
  void send(const Frames& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const int flags = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      EXPECT_GE(zmq_send(socket_, frames[i].data(), frames[i].size(), flags), 0) << zmq_strerror(zmq_errno());
    }
  }
  std::optional<Frames> receive(std::chrono::milliseconds timeout = std::chrono::seconds(100)) {
    zmq_pollitem_t item{.socket = socket_, .fd = -1, .events = ZMQ_POLLIN, .revents = 0};
    if (zmq_poll(&item, 1, timeout.count()) <= 0) return std::nullopt;
    Frames out;
    int more = 1;
    while (more != 0) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, 0) < 0) return std::nullopt;
      out.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return out;
  }
  void* get() { return socket_; }

 private:
  void* context_;
  void* socket_;
};

inline std::string number_frame(std::uint64_t number) {
  std::string out(8, '\0');
  for (std::size_t i = 8; i-- > 0; number >>= 8) out[i] = static_cast<char>(number & 0xFF);
  return out;
}
inline const Frames kEndMarker = {"", "", std::string(8, '\xFF'), ""};

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
inline std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Asks a replay socket, and reads up to the end marker.
inline std::vector<Frames> ask_replay(const std::string& endpoint, const Frames& request) {
  RawSocket dealer(ZMQ_DEALER);
  dealer.set(ZMQ_RCVHWM, 0);
  dealer.connect(endpoint);
  dealer.send(request);
  std::vector<Frames> out;
  while (std::optional<Frames> reply = dealer.receive()) {
    out.push_back(*reply);
    if (reply->size() == 4 && (*reply)[2] == kEndMarker[2]) return out;
  }
  ADD_FAILURE() << "no end marker from " << endpoint;
  return out;
}

// True when `condition` holds within two minutes.
inline bool eventually(const std::function<bool()>& condition) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A publisher whose thread gets no processor for a while is slow, not stuck: unless the test says otherwise,
// it is waited for.
inline EnginePublisherOptions patient(EnginePublisherOptions options) {
  if (options.publish_wait == EnginePublisherOptions().publish_wait)
    options.publish_wait = std::chrono::seconds(60);
  return options;
}
inline std::unique_ptr<EnginePublisher> make_publisher(EnginePublisherOptions options) {
  auto made = EnginePublisher::create(patient(std::move(options)));
  EXPECT_TRUE(made.has_value()) << made.error();
  return std::move(*made);
}
inline std::uint64_t publish(EnginePublisher& publisher, const std::string& topic,
                             const std::string& payload) {
  const Result<std::uint64_t> number = publisher.publish(topic, bytes_of(payload));
  EXPECT_TRUE(number.has_value()) << number.error();
  return number.value_or(~std::uint64_t{0});
}
inline bool is_heard(EnginePublisher& publisher, std::uint64_t subscriptions = 1) {
  return eventually([&] { return publisher.stats().subscriptions == subscriptions; });
}

}  // namespace ashlar::backend::zmq
