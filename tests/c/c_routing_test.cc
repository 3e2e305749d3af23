// Index, feed and client handles under random calls; and how the client treats names: addresses that do not
// answer, and resolvers that do not return.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar_c.h"

namespace ashlar::testing {
namespace {

// Names under .test are answered here: "two.test" has an address that takes no connection before one that
// does; "stuck.test" has none, and is not told so before the gate opens.
struct Resolver {
  std::mutex mutex;
  std::condition_variable opened;
  bool open = false;

  void wait() {
    std::unique_lock lock(mutex);
    opened.wait(lock, [&] { return open; });
  }
  void set_open() {
    const std::lock_guard lock(mutex);
    open = true;
    opened.notify_all();
  }
};
Resolver& resolver() {
  static auto* const kept = new Resolver;  // threads that were left behind use it to the end
  return *kept;
}

using Lookup = int (*)(const char*, const char*, const addrinfo*, addrinfo**);

int look_up(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  static const auto real = reinterpret_cast<Lookup>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const std::string_view name = host == nullptr ? "" : host;
  const bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (numeric || !name.ends_with(".test")) return real(host, port, hints, found);
  if (name == "stuck.test") {
    resolver().wait();
    return EAI_NONAME;
  }
  if (const int failed = real("127.0.0.2", port, hints, found); failed != 0) return failed;
  addrinfo* last = *found;
  while (last->ai_next != nullptr) last = last->ai_next;
  return real("127.0.0.1", port, hints, &last->ai_next);
}

}  // namespace
}  // namespace ashlar::testing

// In place of the C library's, for the shared library too.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  return ashlar::testing::look_up(host, port, hints, found);
}

namespace ashlar::testing {
namespace {

ashlar_client make_client(const std::string& url, std::uint32_t timeout_ms) {
  ashlar_client_options options = {};
  options.struct_size = sizeof options;
  options.url = url.c_str();
  options.timeout_ms = timeout_ms;
  ashlar_client client = {};
  EXPECT_EQ(ashlar_client_create(&options, &client), ASHLAR_OK) << ashlar_last_error();
  return client;
}

class LocalSocket {
 public:
  LocalSocket() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  LocalSocket(LocalSocket&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  LocalSocket& operator=(LocalSocket&&) = delete;
  ~LocalSocket() {
    if (socket_ >= 0) close(socket_);
  }
  int get() const { return socket_; }
  bool listen_at(const char* host, std::uint16_t port, int backlog) const {
    sockaddr_in address = address_of(host, port);
    return bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
           listen(socket_, backlog) == 0;
  }
  std::uint16_t port() const {
    sockaddr_in address = {};
    socklen_t size = sizeof address;
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    return ntohs(address.sin_port);
  }
  static sockaddr_in address_of(const char* host, std::uint16_t port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    EXPECT_EQ(inet_pton(AF_INET, host, &address.sin_addr), 1);
    return address;
  }

 private:
  int socket_;
};

TEST(CClient, AnAddressThatTakesNoConnectionLeavesTimeForTheNext) {
  LocalSocket answers;
  ASSERT_TRUE(answers.listen_at("127.0.0.1", 0, 16));
  const std::uint16_t port = answers.port();
  LocalSocket full;
  if (!full.listen_at("127.0.0.2", port, 0)) GTEST_SKIP() << "127.0.0.2 is no address of this machine";
  // With its queue full, it does not answer those who connect.
  std::vector<LocalSocket> queued;
  for (int i = 0; i < 8; ++i) {
    LocalSocket& one = queued.emplace_back();
    sockaddr_in address = LocalSocket::address_of("127.0.0.2", port);
    ASSERT_EQ(fcntl(one.get(), F_SETFL, O_NONBLOCK), 0);
    static_cast<void>(connect(one.get(), reinterpret_cast<sockaddr*>(&address), sizeof address));
  }
  std::thread service([&] {
    const int accepted = accept(answers.get(), nullptr, nullptr);
    std::string request;
    for (char byte = 0; !request.ends_with("\r\n\r\n") && read(accepted, &byte, 1) == 1;) request += byte;
    constexpr std::string_view kAnswer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    EXPECT_EQ(write(accepted, kAnswer.data(), kAnswer.size()), static_cast<ssize_t>(kAnswer.size()));
    close(accepted);
  });
  const ashlar_client client = make_client("http://two.test:" + std::to_string(port), 8000);
  EXPECT_EQ(ashlar_client_health(client), ASHLAR_OK) << ashlar_last_error();
  shutdown(answers.get(), SHUT_RDWR);
  service.join();
  EXPECT_EQ(ashlar_client_destroy(client), ASHLAR_OK);
}

TEST(CClient, FewNamesAreLookedUpAtOnce) {
  const ashlar_client hasty = make_client("http://stuck.test:1", 1);
  int late = 0;
  ashlar_status status = ASHLAR_OK;
  while ((status = ashlar_client_health(hasty)) == ASHLAR_TIMEOUT) ASSERT_LT(++late, 100);
  EXPECT_EQ(status, ASHLAR_CAPACITY) << ashlar_last_error();
  EXPECT_EQ(late, 4);
  // Numbers need no look-up; and a client that is destroyed leaves its look-up behind.
  const ashlar_client numbers = make_client("http://127.0.0.1:1", 5000);
  EXPECT_EQ(ashlar_client_health(numbers), ASHLAR_UNAVAILABLE) << ashlar_last_error();
  EXPECT_EQ(ashlar_client_destroy(numbers), ASHLAR_OK);
  EXPECT_EQ(ashlar_client_destroy(hasty), ASHLAR_OK);
  resolver().set_open();
  const ashlar_client patient = make_client("http://stuck.test:1", 60'000);
  while ((status = ashlar_client_health(patient)) == ASHLAR_CAPACITY) std::this_thread::yield();
  EXPECT_EQ(status, ASHLAR_UNAVAILABLE) << ashlar_last_error();
  EXPECT_EQ(ashlar_client_destroy(patient), ASHLAR_OK);
}

// Random calls over indexes, feeds and clients, some with handles that are none. What each worker holds of
// one chain of blocks is modelled; a destroyed index lives on in its feeds.
class RoutingFuzzer {
 public:
  explicit RoutingFuzzer(std::uint64_t seed) : random_(seed) {}

  void step() {
    switch (below(10)) {
      case 0:
        return create_index();
      case 1:
        return end(indexes_, ashlar_index_destroy, ashlar_index{});
      case 2:
        return create_feed();
      case 3:
        return end(feeds_, ashlar_feed_destroy, ashlar_feed{});
      case 4:
      case 5:
        return store();
      case 6:
        return remove();
      case 7:
        return feed_call();
      case 8:
        return client_call();
      default:
        return find();
    }
  }
  void finish() {
    for (const auto& [id, model] : feeds_) EXPECT_EQ(ashlar_feed_destroy({id}), ASHLAR_OK);
    for (const auto& [id, model] : indexes_) EXPECT_EQ(ashlar_index_destroy({id}), ASHLAR_OK);
    for (const auto& [id, url] : clients_) EXPECT_EQ(ashlar_client_destroy({id}), ASHLAR_OK);
  }

 private:
  static constexpr std::uint64_t kChain = 6;  // blocks 1 to 6: names and local hashes
  struct IndexModel {
    std::map<std::uint64_t, std::uint64_t> depth;  // of a worker: leading blocks of the chain that it holds
  };

  std::size_t below(std::size_t n) { return random_() % n; }
  template <class Live>
  std::uint64_t pick(const Live& live) {
    if (!live.empty() && below(6) != 0)
      return std::next(live.begin(), static_cast<long>(below(live.size())))->first;
    const std::size_t which = below(3);
    if (which == 0 || dead_.empty()) return 0;
    return which == 1 ? ~std::uint64_t{0} : dead_[below(dead_.size())];
  }
  template <class Live, class Handle>
  void end(Live& live, ashlar_status (*destroy)(Handle), Handle handle) {
    handle.id = pick(live);
    ASSERT_EQ(destroy(handle), live.contains(handle.id) ? ASHLAR_OK : ASHLAR_INVALID_HANDLE);
    if (live.erase(handle.id) != 0) dead_.push_back(handle.id);
  }

  void create_index() {
    if (indexes_.size() > 4) return;
    static constexpr std::array<const char*, 4> kKinds = {"flash", "positional", "concurrent_radix_tree",
                                                          "radix_tree"};
    ashlar_index_options options = {};
    options.struct_size = sizeof options;
    options.kind = kKinds[below(kKinds.size())];
    ashlar_index index = {};
    ASSERT_EQ(ashlar_index_create(&options, &index), ASHLAR_OK) << ashlar_last_error();
    indexes_.emplace(index.id, std::make_shared<IndexModel>());
  }
  void create_feed() {
    const std::uint64_t index = pick(indexes_);
    ashlar_feed_options options = {};
    options.struct_size = sizeof options;
    options.worker = next_worker_;  // a feed is the only writer of its worker
    ashlar_feed feed = {};
    const ashlar_status done = ashlar_feed_create({index}, &options, &feed);
    ASSERT_EQ(done, indexes_.contains(index) ? ASHLAR_OK : ASHLAR_INVALID_HANDLE) << ashlar_last_error();
    if (done == ASHLAR_OK) feeds_.emplace(feed.id, std::pair(indexes_.at(index), next_worker_++));
  }

  // The chain from its start, up to `depth`: repeated blocks change nothing.
  void store() {
    const std::uint64_t id = pick(indexes_);
    const ashlar_worker worker = {below(4), 0, 0};
    const std::size_t depth = 1 + below(kChain);
    std::vector<ashlar_stored_block> blocks;
    for (std::uint64_t i = 1; i <= depth; ++i) blocks.push_back({i, i});
    const ashlar_status done = ashlar_index_store({id}, &worker, 0, nullptr, blocks.data(), depth);
    const auto known = indexes_.find(id);
    ASSERT_EQ(done, known == indexes_.end() ? ASHLAR_INVALID_HANDLE : ASHLAR_OK) << ashlar_last_error();
    if (known == indexes_.end()) return;
    std::uint64_t& held = known->second->depth[worker.id];
    held = std::max<std::uint64_t>(held, depth);
  }
  void remove() {
    const std::uint64_t id = pick(indexes_);
    const std::uint64_t worker = below(4);
    const bool known = indexes_.contains(id);
    const ashlar_worker rank = {worker, 0, 0};
    const ashlar_status done =
        below(2) == 0 ? ashlar_index_clear({id}, &rank) : ashlar_index_remove_worker({id}, worker);
    ASSERT_EQ(done, known ? ASHLAR_OK : ASHLAR_INVALID_HANDLE);
    if (known) indexes_.at(id)->depth.erase(worker);
  }
  void feed_call() {
    const std::uint64_t id = pick(feeds_);
    const auto known = feeds_.find(id);
    ashlar_status done = ASHLAR_OK;
    if (below(2) == 0) {
      done = ashlar_feed_resync({id});
      if (known != feeds_.end()) known->second.first->depth.erase(known->second.second);
    } else {
      ashlar_event event = {};
      event.kind = ASHLAR_EVENT_STORED;
      event.hash = {0, 1};
      event.name = event.local = 1;
      event.has_name = event.has_local = 1;
      done = ashlar_feed_apply_events({id}, 0, &event, 1);
      if (known != feeds_.end()) known->second.first->depth[known->second.second] = 1;
    }
    ASSERT_EQ(done, known == feeds_.end() ? ASHLAR_INVALID_HANDLE : ASHLAR_OK) << ashlar_last_error();
  }
  void client_call() {
    if (clients_.size() < 3) clients_.emplace(make_client("http://127.0.0.1:1", 1000).id, 0);
    const std::uint64_t id = pick(clients_);
    int ready = 0;
    ashlar_answer answer = {};
    const ashlar_status expected = clients_.contains(id) ? ASHLAR_UNAVAILABLE : ASHLAR_INVALID_HANDLE;
    switch (below(5)) {
      case 0:
        ASSERT_EQ(ashlar_client_health({id}), expected) << ashlar_last_error();
        break;
      case 1:
        ASSERT_EQ(ashlar_client_ready({id}, &ready), expected);
        break;
      case 2:
        ASSERT_EQ(ashlar_client_workers({id}, nullptr, &answer), expected);
        break;
      case 3:
        ASSERT_EQ(ashlar_client_request({id}, "GET", "/", nullptr, 0, &answer), expected);
        break;
      default:
        end(clients_, ashlar_client_destroy, ashlar_client{});
    }
    ASSERT_EQ(ashlar_answer_destroy(answer), ASHLAR_INVALID_HANDLE);
  }
  void find() {
    const std::uint64_t id = pick(indexes_);
    std::uint64_t locals[kChain];
    for (std::uint64_t i = 0; i < kChain; ++i) locals[i] = i + 1;
    std::array<ashlar_match, 64> matches = {};
    std::size_t count = 0;
    const ashlar_status done =
        ashlar_index_find({id}, locals, kChain, matches.data(), matches.size(), &count);
    const auto known = indexes_.find(id);
    if (known == indexes_.end()) {
      ASSERT_EQ(done, ASHLAR_INVALID_HANDLE);
      return;
    }
    if (known->second->depth.size() > matches.size()) {
      ASSERT_EQ(done, ASHLAR_CAPACITY);
      return;
    }
    ASSERT_EQ(done, ASHLAR_OK) << ashlar_last_error();
    std::map<std::uint64_t, std::uint64_t> seen;
    for (std::size_t i = 0; i < count; ++i) seen[matches[i].worker.id] = matches[i].depth;
    ASSERT_EQ(seen, known->second->depth);
  }

  std::mt19937_64 random_;
  std::uint64_t next_worker_ = 100;
  std::map<std::uint64_t, std::shared_ptr<IndexModel>> indexes_;
  std::map<std::uint64_t, std::pair<std::shared_ptr<IndexModel>, std::uint64_t>> feeds_;
  std::map<std::uint64_t, int> clients_;
  std::vector<std::uint64_t> dead_;
};

TEST(CRouting, RandomCallsOverIndexesFeedsAndClients) {
  std::size_t before = 0, after = 0;
  ASSERT_EQ(ashlar_open_handles(&before), ASHLAR_OK);
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    RoutingFuzzer fuzzer(seed);
    for (int i = 0; i < 1000; ++i) {
      fuzzer.step();
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", step " << i;
    }
    fuzzer.finish();
    ASSERT_EQ(ashlar_open_handles(&after), ASHLAR_OK);
    ASSERT_EQ(after, before) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ashlar::testing
