#include "ashlar/backend/nats/nats_rendezvous.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "ashlar/base/mutex.h"
#include "backend/nats/handles.h"
#include "backend/nats/jet_stream.h"
#include "backend/nats/nats_connection.h"
#include "backend/nats/nats_error.h"
#include "backend/nats/request_thread.h"
#include "backend/nats/subjects.h"
#include "base/start_thread.h"

namespace ashlar::backend::nats {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeastLease(100);
constexpr milliseconds kMostLease = std::chrono::hours(24);
constexpr std::string_view kReplyText = "a reply";

std::span<const std::byte> value_of(kvEntry* entry) {
  return {static_cast<const std::byte*>(kvEntry_Value(entry)),
          static_cast<std::size_t>(kvEntry_ValueLen(entry))};
}

milliseconds time_left(Clock::TimePoint until) {
  return std::chrono::ceil<milliseconds>(until - Clock::real().now());
}

Error too_late(std::string_view what) {
  return make_error(ErrorCode::kTimeout, "the deadline passed before %s came from NATS",
                    std::string(what).c_str());
}

// A reply is a byte, 0 or an error's code + 1, and the bytes or the error's message.
std::vector<std::byte> encode_reply(const Result<std::vector<std::byte>>& answer) {
  const std::span<const std::byte> body =
      answer ? std::span<const std::byte>(*answer) : std::as_bytes(std::span(answer.error().message()));
  std::vector<std::byte> out(body.size() + 1);
  if (!answer) out[0] = static_cast<std::byte>(static_cast<unsigned>(answer.error().code()) + 1);
  std::ranges::copy(body, out.begin() + 1);
  return out;
}

Result<std::vector<std::byte>> decode_reply(std::span<const std::byte> reply) {
  if (reply.empty()) return make_error(ErrorCode::kCorruption, "an empty reply");
  const std::span<const std::byte> rest = reply.subspan(1);
  const auto code = std::to_integer<unsigned>(reply[0]);
  if (code == 0) return std::vector<std::byte>(rest.begin(), rest.end());
  const std::string_view message(reinterpret_cast<const char*>(rest.data()), rest.size());
  constexpr unsigned kLast = static_cast<unsigned>(ErrorCode::kInternal);
  return Error(code - 1 <= kLast ? static_cast<ErrorCode>(code - 1) : ErrorCode::kInternal,
               printable(message.substr(0, 1000)));
}

}  // namespace

Result<void> NatsRendezvousOptions::validate() const {
  ASHLAR_RETURN_IF_ERROR(connection.validate());
  ASHLAR_RETURN_IF_ERROR(check_name("bucket", bucket));
  if (const Result<void> good = Rendezvous::check_name(prefix); !good)
    return make_error(ErrorCode::kInvalidArgument, "prefix: %s", good.error().message().c_str());
  const char* problem = nullptr;
  if (lease < kLeastLease || lease > kMostLease) {
    problem = "lease is from 100 ms to a day";
  } else if (replicas < 1 || replicas > 5) {
    problem = "replicas are 1 to 5";
  } else if (timeout.count() < 1 || timeout > kMostLease) {
    problem = "timeout is from 1 ms to a day";
  }
  if (problem != nullptr)
    return make_error(ErrorCode::kInvalidArgument, "bucket '%s': %s", bucket.c_str(), problem);
  return {};
}

// Connection, bucket and the thread that renews. Offers share it.
class NatsRendezvous::Parts {
 public:
  explicit Parts(NatsRendezvousOptions given) : options(std::move(given)) {}
  ~Parts() {
    {
      const MutexLock lock(mu_);
      ASHLAR_DCHECK(records_.empty(), "%zu offers of a rendezvous that is gone", records_.size());
      stop_ = true;
      wake_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  Result<void> open() {
    ASHLAR_TRY(connection, NatsConnection::create(options.connection));
    ASHLAR_TRY(JetStream made, JetStream::create(*connection, options.timeout));
    jet_stream.emplace(std::move(made));
    ASHLAR_RETURN_IF_ERROR(open_bucket());
    return start_thread(&thread_, [this] { renew(); });
  }

  // A record that this process keeps.
  struct Record {
    std::string name;
    std::vector<std::byte> bytes;
    Mutex mu;
    std::uint64_t revision ASHLAR_GUARDED_BY(mu) = 0;
    bool kept ASHLAR_GUARDED_BY(mu) = true;
  };

  Result<std::shared_ptr<Record>> add(std::string_view name, std::span<const std::byte> bytes) {
    if (bytes.size() + 1024 > connection->max_payload())
      return make_error(ErrorCode::kCapacity, "a record of %zu bytes; a message of NATS has at most %zu",
                        bytes.size(), connection->max_payload());
    auto record = std::make_shared<Record>();
    record->name = name;
    record->bytes.assign(bytes.begin(), bytes.end());
    {
      const MutexLock lock(record->mu);
      const natsStatus status = kvStore_Put(&record->revision, bucket().get(), record->name.c_str(),
                                            record->bytes.data(), static_cast<int>(record->bytes.size()));
      if (status != NATS_OK) return nats_error(status, record->name.c_str());
    }
    const MutexLock lock(mu_);
    records_.push_back(record);
    wake_.notify_all();
    return record;
  }

  void remove(const std::shared_ptr<Record>& record) {
    {
      const MutexLock lock(mu_);
      std::erase(records_, record);
    }
    const MutexLock lock(record->mu);
    if (!std::exchange(record->kept, false) || !connection->is_connected()) return;
    // Only what this process wrote. Whoever writes between the two calls writes again within a third of the
    // lease.
    BucketEntry entry;
    const natsStatus status = kvStore_Get(Out(entry), bucket().get(), record->name.c_str());
    if (status == NATS_OK && kvEntry_Revision(entry.get()) == record->revision)
      static_cast<void>(kvStore_Delete(bucket().get(), record->name.c_str()));
  }

  std::shared_ptr<kvStore> bucket() const {
    const MutexLock lock(mu_);
    ASHLAR_DCHECK(bucket_ != nullptr, "a rendezvous has its bucket from the start");
    return bucket_;
  }
  Clock::Duration lease() const { return lease_.load(); }

  const NatsRendezvousOptions options;
  std::unique_ptr<NatsConnection> connection;
  std::optional<JetStream> jet_stream;
  std::atomic<std::uint64_t> renewed{0};
  std::atomic<std::uint64_t> not_renewed{0};
  std::atomic<std::uint64_t> lost{0};
  std::atomic<std::uint64_t> answered{0};

 private:
  Result<void> open_bucket() {
    Bucket made;
    const std::string what = "bucket '" + options.bucket + "'";
    natsStatus status = js_KeyValue(Out(made), jet_stream->get(), options.bucket.c_str());
    if (status == NATS_NOT_FOUND) {
      kvConfig config;
      kvConfig_Init(&config);
      config.Bucket = options.bucket.c_str();
      config.History = 1;
      config.TTL = std::chrono::nanoseconds(options.lease).count();
      config.StorageType = options.in_memory ? js_MemoryStorage : js_FileStorage;
      config.Replicas = static_cast<int>(options.replicas);
      status = js_CreateKeyValue(Out(made), jet_stream->get(), &config);
      // Another process may have created it meanwhile.
      if (status != NATS_OK && js_KeyValue(Out(made), jet_stream->get(), options.bucket.c_str()) == NATS_OK)
        status = NATS_OK;
    }
    if (status != NATS_OK) return JetStream::error(status, static_cast<jsErrCode>(0), what);
    Handle<kvStatus, kvStatus_Destroy> described;
    status = kvStore_Status(Out(described), made.get());
    if (status != NATS_OK) return nats_error(status, what.c_str());
    const Clock::Duration ttl(kvStatus_TTL(described.get()));
    if (ttl <= Clock::Duration(0))
      return make_error(ErrorCode::kInvalidArgument,
                        "%s keeps its entries forever, so records of dead processes would stay; name another "
                        "one, or delete it",
                        what.c_str());
    lease_ = ttl;
    const MutexLock lock(mu_);
    bucket_ = std::shared_ptr<kvStore>(made.release(), kvStore_Destroy);
    return {};
  }

  void renew() {
    std::uint64_t generation = connection->generation();
    for (;;) {
      std::vector<std::shared_ptr<Record>> records;
      {
        const MutexLock lock(mu_);
        const auto next = std::chrono::steady_clock::now() + lease_.load() / 3;
        while (!stop_ && std::chrono::steady_clock::now() < next) wake_.wait_until(mu_, next);
        if (stop_) return;
        records = records_;
      }
      if (records.empty() || !connection->is_connected()) continue;
      // A server that kept nothing has neither bucket nor records.
      if (const std::uint64_t now = connection->generation(); now != generation) {
        if (!open_bucket()) continue;
        generation = now;
      }
      for (const std::shared_ptr<Record>& record : records)
        if (!renew(*record)) generation = ~std::uint64_t{0};  // the bucket may be gone: look at it again
    }
  }

  bool renew(Record& record) {
    const MutexLock lock(record.mu);
    if (!record.kept) return true;
    ASHLAR_DCHECK(record.revision != 0, "record '%s' is renewed before it was written", record.name.c_str());
    const std::shared_ptr<kvStore> store = bucket();
    const char* const name = record.name.c_str();
    const auto size = static_cast<int>(record.bytes.size());
    natsStatus status =
        kvStore_Update(&record.revision, store.get(), name, record.bytes.data(), size, record.revision);
    if (status != NATS_OK && status != NATS_TIMEOUT) {
      BucketEntry entry;
      const natsStatus looked = kvStore_Get(Out(entry), store.get(), name);
      if (looked == NATS_NOT_FOUND) {  // it expired
        status = kvStore_Create(&record.revision, store.get(), name, record.bytes.data(), size);
      } else if (looked == NATS_OK && std::ranges::equal(value_of(entry.get()), record.bytes)) {
        // Written by an attempt whose answer was lost.
        record.revision = kvEntry_Revision(entry.get());
        status = NATS_OK;
      } else if (looked == NATS_OK) {
        record.kept = false;
        lost.fetch_add(1);
        ASHLAR_LOG(LogLevel::kWarn, "nats",
                   "somebody else has written under '%s' in bucket '%s'; are two nodes given one id?", name,
                   options.bucket.c_str());
        return true;
      }
    }
    (status == NATS_OK ? renewed : not_renewed).fetch_add(1);
    return status == NATS_OK;
  }

  mutable Mutex mu_;
  CondVar wake_;
  bool stop_ ASHLAR_GUARDED_BY(mu_) = false;
  std::shared_ptr<kvStore> bucket_ ASHLAR_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Record>> records_ ASHLAR_GUARDED_BY(mu_);
  std::atomic<Clock::Duration> lease_{};
  std::thread thread_;
};

// The thread goes before the connection, and the server hears of it: whoever asks later is told at once.
class NatsRendezvous::Serving {
 public:
  Serving(std::shared_ptr<Parts> parts, std::unique_ptr<RequestThread> thread)
      : parts_(std::move(parts)), thread_(std::move(thread)) {}
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving() {
    thread_.reset();
    if (parts_->connection->is_connected())
      static_cast<void>(parts_->connection->flush(parts_->options.timeout));
  }

 private:
  const std::shared_ptr<Parts> parts_;
  std::unique_ptr<RequestThread> thread_;
};

NatsRendezvous::NatsRendezvous(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}
NatsRendezvous::~NatsRendezvous() = default;

Result<std::shared_ptr<NatsRendezvous>> NatsRendezvous::create(NatsRendezvousOptions options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  auto parts = std::make_shared<Parts>(std::move(options));
  ASHLAR_RETURN_IF_ERROR(parts->open());
  return std::shared_ptr<NatsRendezvous>(new NatsRendezvous(std::move(parts)));
}

Clock::Duration NatsRendezvous::lease() const {
  return parts_->lease();
}

Result<RendezvousOffer> NatsRendezvous::publish(std::string_view name, std::span<const std::byte> bytes) {
  ASHLAR_RETURN_IF_ERROR(check_name(name));
  if (!parts_->connection->is_connected()) return parts_->connection->unavailable();
  ASHLAR_TRY(const std::shared_ptr<Parts::Record> record, parts_->add(name, bytes));
  return RendezvousOffer(
      std::shared_ptr<void>(record.get(), [parts = parts_, record](void*) { parts->remove(record); }));
}

Result<std::vector<std::byte>> NatsRendezvous::find(std::string_view name, Clock::TimePoint until) {
  ASHLAR_RETURN_IF_ERROR(check_name(name));
  if (time_left(until).count() <= 0) return too_late("a record");
  if (!parts_->connection->is_connected()) return parts_->connection->unavailable();
  BucketEntry entry;
  const std::string key(name);
  const natsStatus status = kvStore_Get(Out(entry), parts_->bucket().get(), key.c_str());
  if (status == NATS_NOT_FOUND)
    return make_error(ErrorCode::kNotFound, "bucket '%s' has no record '%s'", parts_->options.bucket.c_str(),
                      key.c_str());
  if (status != NATS_OK) return nats_error(status, key.c_str());
  const std::span<const std::byte> bytes = value_of(entry.get());
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

// Without a subscription: the names come with the state of the stream.
Result<std::vector<RendezvousRecord>> NatsRendezvous::list(std::string_view prefix, Clock::TimePoint until) {
  ASHLAR_RETURN_IF_ERROR(check_name(prefix));
  if (time_left(until).count() <= 0) return too_late("the names");
  if (!parts_->connection->is_connected()) return parts_->connection->unavailable();
  const std::string head = "$KV." + parts_->options.bucket + ".";
  const std::string filter = head + std::string(prefix) + ".*";
  const std::string stream = "KV_" + parts_->options.bucket;
  jsOptions asking;
  jsOptions_Init(&asking);
  asking.Wait = std::min(parts_->options.timeout, time_left(until)).count();
  asking.Stream.Info.SubjectsFilter = filter.c_str();
  StreamInfo info;
  jsErrCode code = static_cast<jsErrCode>(0);
  const natsStatus status =
      js_GetStreamInfo(Out(info), parts_->jet_stream->get(), stream.c_str(), &asking, &code);
  if (status == NATS_NOT_FOUND) return std::vector<RendezvousRecord>();
  if (status != NATS_OK) return JetStream::error(status, code, "bucket '" + parts_->options.bucket + "'");
  std::vector<RendezvousRecord> records;
  if (info->State.Subjects == nullptr) return records;
  for (const jsStreamStateSubject& one :
       std::span(info->State.Subjects->List, static_cast<std::size_t>(info->State.Subjects->Count))) {
    const std::string name = std::string(one.Subject).substr(head.size());
    if (!check_name(name)) continue;  // not written through here
    Result<std::vector<std::byte>> bytes = find(name, until);
    if (bytes) {
      records.push_back({name, *std::move(bytes)});
    } else if (bytes.error().code() != ErrorCode::kNotFound) {  // deleted, or expired meanwhile
      return bytes.error();
    }
  }
  std::ranges::sort(records, {}, &RendezvousRecord::name);
  return records;
}

Result<RendezvousOffer> NatsRendezvous::answer(std::string_view name, RendezvousHandler handler) {
  ASHLAR_RETURN_IF_ERROR(check_name(name));
  const std::string subject = parts_->options.prefix + "." + std::string(name);
  Parts* const parts = parts_.get();
  ASHLAR_TRY(
      std::unique_ptr<RequestThread> thread,
      RequestThread::create(
          *parts->connection, subject,
          [parts, handler = std::move(handler)](const char* reply, std::span<const std::byte> request) {
            if (reply == nullptr) return;
            std::vector<std::byte> bytes = encode_reply(handler(request));
            if (bytes.size() > parts->connection->max_payload())
              bytes = encode_reply(make_error(ErrorCode::kCapacity,
                                              "a reply of %zu bytes; a message of NATS has at most %zu",
                                              bytes.size(), parts->connection->max_payload()));
            if (natsConnection_Publish(parts->connection->get(), reply, bytes.data(),
                                       static_cast<int>(bytes.size())) == NATS_OK)
              parts->answered.fetch_add(1);
          }));
  // From here on requests are answered.
  const natsStatus status = parts->connection->flush(parts->options.connection.connect_timeout);
  if (status != NATS_OK) return nats_error(status, subject.c_str());
  return RendezvousOffer(std::make_shared<Serving>(parts_, std::move(thread)));
}

Result<std::vector<std::byte>> NatsRendezvous::ask(std::string_view name, std::span<const std::byte> request,
                                                   Clock::TimePoint until) {
  ASHLAR_RETURN_IF_ERROR(check_name(name));
  NatsConnection& connection = *parts_->connection;
  const milliseconds left = time_left(until);
  if (left.count() <= 0) return too_late(kReplyText);
  if (!connection.is_connected()) return connection.unavailable();
  if (request.size() > connection.max_payload())
    return make_error(ErrorCode::kCapacity, "a request of %zu bytes; a message of NATS has at most %zu",
                      request.size(), connection.max_payload());
  const std::string subject = parts_->options.prefix + "." + std::string(name);
  Message reply;
  const natsStatus status =
      natsConnection_Request(Out(reply), connection.get(), subject.c_str(), request.data(),
                             static_cast<int>(request.size()), left.count());
  if (status == NATS_NO_RESPONDERS)
    return make_error(ErrorCode::kNotFound, "nobody answers to '%s'", subject.c_str());
  if (status == NATS_TIMEOUT) return too_late(kReplyText);
  if (status != NATS_OK) return nats_error(status, subject.c_str());
  return decode_reply({reinterpret_cast<const std::byte*>(natsMsg_GetData(reply.get())),
                       static_cast<std::size_t>(natsMsg_GetDataLength(reply.get()))});
}

NatsRendezvousCounters NatsRendezvous::counters() const {
  return {.renewed = parts_->renewed.load(),
          .not_renewed = parts_->not_renewed.load(),
          .lost = parts_->lost.load(),
          .answered = parts_->answered.load()};
}

}  // namespace ashlar::backend::nats
