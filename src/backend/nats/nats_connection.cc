#include "backend/nats/nats_connection.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/log.h"
#include "backend/nats/nats_error.h"
#include "base/start_thread.h"

namespace ashlar::backend::nats {
namespace {

Result<void> check_file(const char* option, const std::string& path) {
  if (path.empty() || access(path.c_str(), R_OK) == 0) return {};
  return make_error(
      ErrorCode::kInvalidArgument,
      "connection to NATS: %s '%s' cannot be read; give the path of a file that this user may read", option,
      path.c_str());
}

// The text of a file with secrets, in one buffer, wiped afterwards.
class SecretFile {
 public:
  explicit SecretFile(const std::string& path) noexcept {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    while (size_ < kMost) {
      const ssize_t got = ::read(file, text_.data() + size_, kMost - size_);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      size_ += static_cast<std::size_t>(got);
    }
    ::close(file);
  }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;
  ~SecretFile() { explicit_bzero(text_.data(), text_.size()); }

  // The next line, zero-terminated, or null.
  const char* next_line() noexcept {
    if (at_ >= size_) return nullptr;
    char* const line = text_.data() + at_;
    char* end = std::find(line, text_.data() + size_, '\n');
    at_ = static_cast<std::size_t>(end - text_.data()) + 1;
    while (end > line && (end[-1] == '\r' || end[-1] == ' ')) --end;
    *end = '\0';
    return line;
  }

 private:
  static constexpr std::size_t kMost = std::size_t{64} << 10;  // a JWT with its seed has a few thousand bytes
  std::array<char, kMost + 1> text_ = {};
  std::size_t size_ = 0;
  std::size_t at_ = 0;
};

// Whether the file has a line with a user's seed. The client checks only when it connects, and names neither
// file nor option.
Result<void> check_seed(const char* option, const std::string& path) {
  if (path.empty()) return {};
  nats_Open(-1);  // signing is not ready before
  SecretFile file(path);
  bool good = false;
  for (const char* line = file.next_line(); !good && line != nullptr; line = file.next_line()) {
    if (std::strncmp(line, "SU", 2) != 0) continue;
    unsigned char* signature = nullptr;
    int length = 0;
    good = nats_Sign(line, "?", &signature, &length) == NATS_OK;
    std::free(signature);  // NOLINT(cppcoreguidelines-no-malloc): the client's
  }
  if (good) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "connection to NATS: %s '%s' has no line with the whole seed of a user (SU...); write it "
                    "anew, as nsc does",
                    option, path.c_str());
}

// Sets options of one kind; keeps the first failure.
class Setter {
 public:
  Setter& operator()(natsStatus status, const char* what) {
    if (status_ == NATS_OK && status != NATS_OK) {
      status_ = status;
      error_ = nats_error(status, what);
    }
    return *this;
  }
  Result<void> result() const {
    if (status_ == NATS_OK) return {};
    // Bad options fail before any connection attempt.
    return Error(ErrorCode::kInvalidArgument, error_.message());
  }

 private:
  natsStatus status_ = NATS_OK;
  Error error_{ErrorCode::kInternal, ""};
};

// A hint on what to check when the server refuses us. It may name public keys and paths, never seeds or
// passwords.
std::string login_advice(const NatsConnectionOptions& options) {
  if (!options.nkey.empty())
    return "; check that the server has a user with nkey " + options.nkey + ", and that nkey_seed_file '" +
           options.nkey_seed_file + "' holds the seed of that key";
  if (!options.credentials_file.empty())
    return "; check that credentials_file '" + options.credentials_file +
           "' is of a user of an account that the server knows, and has not expired";
  if (!options.token.empty()) return "; check token";
  if (!options.user.empty()) return "; check user and password";
  return "; the server asks who we are: give user and password, token, credentials_file or nkey";
}

Error connect_error(natsStatus status, const NatsConnectionOptions& options) {
  std::string advice;
  switch (status) {
    case NATS_CONNECTION_AUTH_FAILED:
      advice = login_advice(options);
      break;
    case NATS_SSL_ERROR:
      advice =
          "; check tls.ca_file and tls.server_name against the certificate of the server, and "
          "tls.certificate_file where it asks for one";
      break;
    case NATS_SECURE_CONNECTION_REQUIRED:
      advice = "; set tls.enabled";
      break;
    case NATS_SECURE_CONNECTION_WANTED:
      advice = "; the server has no TLS: clear tls.enabled, or configure it";
      break;
    case NATS_NO_SERVER:
    case NATS_TIMEOUT:
      advice = "; is nats-server running there, and is the port right?";
      break;
    default:
      break;
  }
  const Error error = nats_error(status, ("NATS at " + options.describe()).c_str());
  const ErrorCode code = status == NATS_TIMEOUT ? ErrorCode::kUnavailable : error.code();
  return Error(code, error.message() + advice);
}

// Detects a ping that the socket did not accept: the client's flush then returns NATS_OK, and only this
// thread's last error changes.
natsStatus ping(natsConnection* connection, std::chrono::milliseconds timeout) {
  const natsStatus before = natsConnection_FlushTimeout(nullptr, 1);
  const natsStatus status =
      natsConnection_FlushTimeout(connection, std::max<std::int64_t>(1, timeout.count()));
  natsStatus after = before;
  nats_GetLastError(&after);
  return status == NATS_OK && after != before ? NATS_CONNECTION_DISCONNECTED : status;
}

// cnats 3.4 leaves the signature out of about one login in a hundred ("Signature missing" in the server's
// log).
constexpr int kLogins = 4;
constexpr std::chrono::milliseconds kStopStep(20);
constexpr int kMostLeftBehind = 8;  // each keeps a core busy
constexpr std::chrono::seconds kWaitLine(30);

// Milliseconds until the next attempt.
std::int64_t wait_after(const NatsConnectionOptions& options, int attempts, std::minstd_rand& random) {
  std::int64_t wait = options.reconnect_min.count();
  const std::int64_t most = options.reconnect_max.count();
  for (int i = 1; i < attempts && wait < most; ++i) wait *= 2;
  wait = std::min(wait, most);
  const double chance = std::uniform_real_distribution<double>(0, options.jitter)(random);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(wait) * (1 - chance)));
}

}  // namespace

Result<ClientOptions> NatsConnection::client_options(const NatsConnectionOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  for (const auto& [option, path] : std::initializer_list<std::pair<const char*, const std::string&>>{
           {"tls.ca_file", options.tls.ca_file},
           {"tls.certificate_file", options.tls.certificate_file},
           {"tls.key_file", options.tls.key_file},
           {"credentials_file", options.credentials_file},
           {"nkey_seed_file", options.nkey_seed_file}}) {
    ASHLAR_RETURN_IF_ERROR(check_file(option, path));
  }
  for (const auto& [option, path] : std::initializer_list<std::pair<const char*, const std::string&>>{
           {"credentials_file", options.credentials_file}, {"nkey_seed_file", options.nkey_seed_file}}) {
    ASHLAR_RETURN_IF_ERROR(check_seed(option, path));
  }
  ClientOptions client;
  if (const natsStatus status = natsOptions_Create(Out(client)); status != NATS_OK)
    return nats_error(status, "options of NATS");
  natsOptions* raw = client.get();
  std::vector<const char*> urls;
  urls.reserve(options.urls.size());
  for (const std::string& url : options.urls) urls.push_back(url.c_str());
  Setter set;
  set(natsOptions_SetServers(raw, urls.data(), static_cast<int>(urls.size())), "URLs of NATS");
  set(natsOptions_SetName(raw, options.name.c_str()), "name");
  set(natsOptions_SetTimeout(raw, options.connect_timeout.count()), "connect_timeout");
  set(natsOptions_SetWriteDeadline(raw, options.write_timeout.count()), "write_timeout");
  set(natsOptions_SetMaxReconnect(raw, -1), "reconnect");
  set(natsOptions_SetReconnectBufSize(raw, static_cast<int>(options.pending_bytes)), "pending_bytes");
  set(natsOptions_SetFailRequestsOnDisconnect(raw, true), "requests");
  if (!options.user.empty())
    set(natsOptions_SetUserInfo(raw, options.user.c_str(), options.password.c_str()), "user");
  if (!options.token.empty()) set(natsOptions_SetToken(raw, options.token.c_str()), "token");
  if (!options.credentials_file.empty())
    set(natsOptions_SetUserCredentialsFromFiles(raw, options.credentials_file.c_str(), nullptr),
        "credentials_file");
  if (!options.nkey.empty())
    set(natsOptions_SetNKeyFromSeed(raw, options.nkey.c_str(), options.nkey_seed_file.c_str()), "nkey");
  const NatsTls& tls = options.tls;
  if (tls.enabled ||
      std::ranges::any_of(options.urls, [](const auto& url) { return url.starts_with("tls"); })) {
    set(natsOptions_SetSecure(raw, true), "tls");
    if (!tls.ca_file.empty())
      set(natsOptions_LoadCATrustedCertificates(raw, tls.ca_file.c_str()), "tls.ca_file");
    if (!tls.certificate_file.empty())
      set(natsOptions_LoadCertificatesChain(raw, tls.certificate_file.c_str(), tls.key_file.c_str()),
          "tls.certificate_file");
    if (!tls.server_name.empty())
      set(natsOptions_SetExpectedHostname(raw, tls.server_name.c_str()), "tls.server_name");
    if (!tls.verify) set(natsOptions_SkipServerVerification(raw, true), "tls.verify");
  }
  ASHLAR_RETURN_IF_ERROR(set.result());
  return client;
}

Result<std::unique_ptr<NatsConnection>> NatsConnection::create(const NatsConnectionOptions& options) {
  using Time = std::chrono::steady_clock::time_point;
  const Time begin = std::chrono::steady_clock::now();
  const std::string where = options.describe();
  std::minstd_rand random{std::random_device{}()};
  Time next_line = begin;
  const bool signs = !options.nkey.empty() || !options.credentials_file.empty();
  for (int attempt = 1;; ++attempt) {
    natsStatus status = NATS_OK;
    Result<std::unique_ptr<NatsConnection>> made = connect_once(options, status);
    for (int login = 1; signs && status == NATS_CONNECTION_AUTH_FAILED && login < kLogins; ++login)
      made = connect_once(options, status);
    Time now = std::chrono::steady_clock::now();
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - begin);
    if (made && attempt > 1)
      ASHLAR_LOG(LogLevel::kInfo, "nats", "connected to %s after %lld ms", where.c_str(),
                 static_cast<long long>(waited.count()));
    if (made || made.error().code() != ErrorCode::kUnavailable || options.connect_wait.count() == 0)
      return made;
    if (waited >= options.connect_wait)
      return make_error(ErrorCode::kUnavailable, "%s (it was waited for, %lld ms)",
                        made.error().message().c_str(), static_cast<long long>(waited.count()));
    if (now >= next_line) {
      ASHLAR_LOG(LogLevel::kWarn, "nats", "waiting for a server at %s: %s", where.c_str(),
                 made.error().message().c_str());
      next_line = now + kWaitLine;
    }
    const auto left = options.connect_wait - waited;
    const Time next = now + std::min(left, std::chrono::milliseconds(wait_after(options, attempt, random)));
    for (; now < next; now = std::chrono::steady_clock::now()) {
      if (options.stop_waiting && options.stop_waiting())
        return make_error(ErrorCode::kCancelled,
                          "the wait for NATS at %s was cancelled before a server answered", where.c_str());
      std::this_thread::sleep_until(std::min(next, now + kStopStep));
    }
  }
}

// One attempt, on its own thread: cnats 3.4 takes a timeout for an answer to its first ping and reads on,
// busily and into a growing buffer, until the server closes the connection. Nothing else ends that. The
// thread or its waiter, whichever finishes last, destroys the attempt's objects.
struct NatsConnection::Attempt {
  static inline std::atomic<int> left_behind{0};  // abandoned attempts in this process

  Mutex mu;
  CondVar changed;
  bool has_ended ASHLAR_GUARDED_BY(mu) = false;
  bool is_left_behind ASHLAR_GUARDED_BY(mu) = false;
  natsStatus status ASHLAR_GUARDED_BY(mu) = NATS_OK;
  Result<std::unique_ptr<NatsConnection>> made ASHLAR_GUARDED_BY(mu) = std::unique_ptr<NatsConnection>();

  void end(Result<std::unique_ptr<NatsConnection>> result, natsStatus how) {
    const MutexLock lock(mu);
    made = std::move(result);
    status = how;
    has_ended = true;
    if (is_left_behind) left_behind.fetch_sub(1);
    changed.notify_all();
  }
  bool wait_until(std::chrono::steady_clock::time_point time) {
    const MutexLock lock(mu);
    if (!has_ended) changed.wait_until(mu, time);
    return has_ended;
  }
  void leave_behind() {
    const MutexLock lock(mu);
    if (!has_ended && !std::exchange(is_left_behind, true)) left_behind.fetch_add(1);
  }
};

Result<std::unique_ptr<NatsConnection>> NatsConnection::connect_once(const NatsConnectionOptions& options,
                                                                     natsStatus& status) {
  ASHLAR_TRY(ClientOptions client, client_options(options));
  if (Attempt::left_behind.load() >= kMostLeftBehind)
    return make_error(ErrorCode::kUnavailable,
                      "NATS at %s: %d attempts to connect still wait for servers that do not answer",
                      options.describe().c_str(), kMostLeftBehind);
  const auto attempt = std::make_shared<Attempt>();
  std::thread thread;
  ASHLAR_RETURN_IF_ERROR(start_thread(&thread, [attempt, options, client = std::move(client)]() mutable {
    natsStatus how = NATS_OK;
    Result<std::unique_ptr<NatsConnection>> made = connect_with(std::move(client), options, how);
    attempt->end(std::move(made), how);
  }));
  thread.detach();
  const auto now = [] { return std::chrono::steady_clock::now(); };
  // Each server gets its own connect time, and the last one the same again for its answer.
  const auto deadline = now() + options.connect_timeout * static_cast<int>(options.urls.size() + 1);
  while (!attempt->wait_until(std::min(deadline, now() + kStopStep))) {
    const bool is_late = now() >= deadline;
    const bool is_stopped = options.stop_waiting && options.stop_waiting();
    if (!is_late && !is_stopped) continue;
    attempt->leave_behind();
    status = NATS_TIMEOUT;
    if (is_stopped)
      return make_error(ErrorCode::kCancelled, "the wait for NATS at %s was ended before it answered",
                        options.describe().c_str());
    return make_error(ErrorCode::kUnavailable,
                      "NATS at %s did not answer in time (connect_timeout is %lld ms); is it a nats-server?",
                      options.describe().c_str(), static_cast<long long>(options.connect_timeout.count()));
  }
  const MutexLock lock(attempt->mu);
  status = attempt->status;
  return std::move(attempt->made);
}

Result<std::unique_ptr<NatsConnection>> NatsConnection::connect_with(ClientOptions client,
                                                                     const NatsConnectionOptions& options,
                                                                     natsStatus& status) {
  std::unique_ptr<NatsConnection> self(new NatsConnection(options));
  natsOptions* raw = client.get();
  status = natsOptions_SetReconnectedCB(raw, on_reconnected, self.get());
  if (status == NATS_OK) status = natsOptions_SetClosedCB(raw, on_closed, self.get());
  if (status == NATS_OK) status = natsOptions_SetCustomReconnectDelay(raw, reconnect_delay, self.get());
  // The default writes to stderr. Callers see failures in the counters: dropped messages, lost connections.
  if (status == NATS_OK)
    status = natsOptions_SetErrorHandler(
        raw, [](natsConnection*, natsSubscription*, natsStatus, void*) {}, nullptr);
  if (status != NATS_OK) return nats_error(status, "options of NATS");
  status = natsConnection_Connect(&self->connection_, raw);
  if (status != NATS_OK) {
    self->connection_ = nullptr;
    return connect_error(status, options);
  }
  self->max_payload_.store(static_cast<std::size_t>(natsConnection_GetMaxPayload(self->connection_)));
  return self;
}

NatsConnection::~NatsConnection() {
  if (connection_ == nullptr) return;
  natsConnection_Close(connection_);
  {
    // Wait for its last callback.
    const MutexLock lock(mu_);
    while (!closed_) changed_.wait(mu_);
  }
  natsConnection_Destroy(connection_);
  // Each keeps the part of the connection it needs.
  for (natsSubscription* subscription : retired_) natsSubscription_Destroy(subscription);
}

void RetireSubscription::operator()(natsSubscription* subscription) const noexcept {
  connection->retire(subscription);
}

void NatsConnection::retire(natsSubscription* subscription) noexcept {
  // From here on the reading thread no longer finds it. Fails on a closed connection, which has the same
  // effect.
  natsSubscription_Unsubscribe(subscription);
  const MutexLock lock(mu_);
  retired_.push_back(subscription);
}

std::size_t NatsConnection::retired() const {
  const MutexLock lock(mu_);
  return retired_.size();
}

natsStatus NatsConnection::flush(std::chrono::milliseconds timeout) {
  std::vector<natsSubscription*> passed;
  {
    const MutexLock lock(mu_);
    passed.swap(retired_);
  }
  const natsStatus status = ping(connection_, timeout);
  if (status == NATS_OK) {
    for (natsSubscription* subscription : passed) natsSubscription_Destroy(subscription);
  } else {
    const MutexLock lock(mu_);
    retired_.insert(retired_.end(), passed.begin(), passed.end());
  }
  return status;
}

void NatsConnection::sweep() {
  if (retired() > 0 && is_connected()) static_cast<void>(flush(options_.connect_timeout));
}

natsStatus NatsConnection::subscribe(const std::string& subject, Subscription& out) {
  sweep();
  if (retired() >= kMostRetired) return NATS_TIMEOUT;
  natsSubscription* made = nullptr;
  const natsStatus status = natsConnection_SubscribeSync(&made, connection_, subject.c_str());
  if (status == NATS_OK) out = Subscription(made, RetireSubscription{this});
  return status;
}

bool NatsConnection::is_new(std::chrono::milliseconds age) const {
  const MutexLock lock(mu_);
  return reconnects() > 0 && std::chrono::steady_clock::now() - reconnected_at_ < age;
}

std::uint64_t NatsConnection::generation() const {
  Statistics statistics;
  std::uint64_t reconnects = 0;
  if (natsStatistics_Create(Out(statistics)) == NATS_OK &&
      natsConnection_GetStats(connection_, statistics.get()) == NATS_OK)
    natsStatistics_GetCounts(statistics.get(), nullptr, nullptr, nullptr, nullptr, &reconnects);
  return reconnects;
}

bool NatsConnection::wait_until_connected(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const MutexLock lock(mu_);
  while (!is_connected()) {
    if (closed_ || !changed_.wait_until(mu_, deadline)) break;
  }
  return is_connected();
}

Error NatsConnection::unavailable() const {
  if (!natsConnection_IsClosed(connection_))
    return make_error(ErrorCode::kUnavailable, "NATS at %s is not connected now; it is tried again",
                      options_.describe().c_str());
  return make_error(
      ErrorCode::kUnavailable,
      "NATS at %s has closed the connection permanently, as it does after refusing the credentials twice; "
      "check them and reconnect",
      options_.describe().c_str());
}

void NatsConnection::on_reconnected(natsConnection* connection, void* self) {
  auto* me = static_cast<NatsConnection*>(self);
  me->max_payload_.store(static_cast<std::size_t>(natsConnection_GetMaxPayload(connection)));
  const MutexLock lock(me->mu_);
  me->reconnects_.fetch_add(1);
  me->reconnected_at_ = std::chrono::steady_clock::now();
  me->changed_.notify_all();
}

void NatsConnection::on_closed(natsConnection* /*connection*/, void* self) {
  auto* me = static_cast<NatsConnection*>(self);
  const MutexLock lock(me->mu_);
  me->closed_ = true;
  me->changed_.notify_all();
}

std::int64_t NatsConnection::reconnect_delay(natsConnection* /*connection*/, int attempts, void* self) {
  auto* me = static_cast<NatsConnection*>(self);
  return wait_after(me->options_, attempts, me->random_);
}

}  // namespace ashlar::backend::nats
