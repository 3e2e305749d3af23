#include "backend/nats/snapshot_bucket.h"

#include <cstdint>
#include <span>
#include <utility>

#include "ashlar/events/event_codec.h"
#include "backend/nats/batch_pieces.h"
#include "backend/nats/nats_error.h"
#include "backend/nats/snapshot_head.h"
#include "backend/nats/snapshot_parts.h"
#include "backend/nats/subjects.h"

namespace ashlar::backend::nats {
namespace {

constexpr int kAttempts = 8;

std::span<const std::byte> bytes_of(kvEntry* entry) {
  return {static_cast<const std::byte*>(kvEntry_Value(entry)),
          static_cast<std::size_t>(kvEntry_ValueLen(entry))};
}

std::string part_key(const std::string& worker, std::uint8_t place, std::size_t part) {
  return worker + (place == 0 ? ".a." : ".b.") + std::to_string(part);
}

}  // namespace

Result<std::optional<SnapshotBucket>> SnapshotBucket::open(const JetStream& jet_stream,
                                                           const std::string& name,
                                                           const NatsStreamOptions* storage) {
  Bucket bucket;
  const std::string what = "bucket '" + name + "'";
  natsStatus status = js_KeyValue(Out(bucket), jet_stream.get(), name.c_str());
  if (status == NATS_NOT_FOUND) {
    if (storage == nullptr) return std::optional<SnapshotBucket>();
    kvConfig config;
    kvConfig_Init(&config);
    config.Bucket = name.c_str();
    config.History = 1;
    config.StorageType = storage->in_memory ? js_MemoryStorage : js_FileStorage;
    config.Replicas = static_cast<int>(storage->replicas);
    status = js_CreateKeyValue(Out(bucket), jet_stream.get(), &config);
    // Another process may have created it meanwhile.
    if (status != NATS_OK && js_KeyValue(Out(bucket), jet_stream.get(), name.c_str()) == NATS_OK)
      status = NATS_OK;
  }
  if (status != NATS_OK) return JetStream::error(status, static_cast<jsErrCode>(0), what);
  return std::optional(SnapshotBucket(std::move(bucket)));
}

Result<std::optional<SnapshotHead>> SnapshotBucket::read_head(const std::string& worker) {
  BucketEntry entry;
  const natsStatus status = kvStore_Get(Out(entry), bucket_.get(), (worker + ".head").c_str());
  if (status == NATS_NOT_FOUND) return std::optional<SnapshotHead>();
  if (status != NATS_OK) return nats_error(status, "the head of a snapshot");
  std::optional<SnapshotHead> head = SnapshotHead::read(bytes_of(entry.get()));
  if (!head)
    return make_error(ErrorCode::kCorruption,
                      "the head of worker %s in the bucket of snapshots is not ours; delete the key or "
                      "name another bucket",
                      worker.c_str());
  head->revision = kvEntry_Revision(entry.get());
  return head;
}

Result<void> SnapshotBucket::write(const events::EventBatch& snapshot, std::size_t limit) {
  if (snapshot.kind != events::BatchKind::kSnapshot || snapshot.parts != 1)
    return Error(ErrorCode::kInvalidArgument, "the bucket takes one whole snapshot");
  const std::string worker = worker_token(snapshot.stream.worker);
  Result<std::optional<SnapshotHead>> last = read_head(worker);
  // Replace what cannot be read.
  if (!last && last.error().code() != ErrorCode::kCorruption) return last.error();
  const bool known = last.has_value() && last->has_value();
  if (known && (*last)->incarnation > snapshot.stream.incarnation)
    return make_error(ErrorCode::kAlreadyExists, "a later incarnation of worker %s has written its snapshot",
                      worker.c_str());
  SnapshotHead head{.place = static_cast<std::uint8_t>(known ? 1 - (*last)->place : 0),
                    .parts = 0,
                    .incarnation = snapshot.stream.incarnation,
                    .first = snapshot.first,
                    .published_ns = snapshot.published_ns};
  std::vector<std::byte> buffer;
  Result<void> written =
      for_each_piece(snapshot, limit, buffer,
                     [&](const events::EventBatch& piece, std::span<const std::byte> bytes) -> Result<void> {
                       const std::string key = part_key(worker, head.place, piece.part);
                       const natsStatus status = kvStore_Put(nullptr, bucket_.get(), key.c_str(),
                                                             bytes.data(), static_cast<int>(bytes.size()));
                       head.parts = piece.parts;
                       if (status != NATS_OK) return nats_error(status, "a part of a snapshot");
                       return {};
                     });
  if (!written) return written;
  const std::vector<std::byte> bytes = head.bytes();
  const std::string key = worker + ".head";
  const auto size = static_cast<int>(bytes.size());
  natsStatus status = NATS_OK;
  if (known) {
    status = kvStore_Update(nullptr, bucket_.get(), key.c_str(), bytes.data(), size, (*last)->revision);
  } else if (last) {
    status = kvStore_Create(nullptr, bucket_.get(), key.c_str(), bytes.data(), size);
  } else {
    status = kvStore_Put(nullptr, bucket_.get(), key.c_str(), bytes.data(), size);
  }
  if (status == NATS_OK) return {};
  const Result<std::optional<SnapshotHead>> now = read_head(worker);
  if (now && *now && known && (*now)->revision != (*last)->revision)
    return make_error(ErrorCode::kAlreadyExists, "another sink wrote a snapshot of worker %s meanwhile",
                      worker.c_str());
  return nats_error(status, "the head of a snapshot");
}

Result<std::optional<std::vector<events::OwnedBatch>>> SnapshotBucket::read_once(const std::string& worker,
                                                                                 std::size_t max_bytes) {
  ASHLAR_TRY(std::optional<SnapshotHead> head, read_head(worker));
  if (!head) return std::optional<std::vector<events::OwnedBatch>>();
  SnapshotParts parts(max_bytes);
  for (std::uint32_t i = 0; i < head->parts; ++i) {
    BucketEntry entry;
    const natsStatus status =
        kvStore_Get(Out(entry), bucket_.get(), part_key(worker, head->place, i).c_str());
    events::OwnedBatch batch;
    const bool good = status == NATS_OK && events::decode_batch(bytes_of(entry.get()), batch, max_bytes) &&
                      head->has_part(batch.head, i) && worker_token(batch.head.stream.worker) == worker;
    if (status != NATS_OK && status != NATS_NOT_FOUND) return nats_error(status, "a part of a snapshot");
    const bool added = good && parts.add(std::move(batch));
    if (parts.is_too_large()) return parts.too_large_error();
    if (!added)
      return make_error(ErrorCode::kCorruption,
                        "part %u of the snapshot of worker %s does not belong to its head", i,
                        worker.c_str());
  }
  return std::optional(parts.take());
}

Result<std::optional<std::vector<events::OwnedBatch>>> SnapshotBucket::read(const events::Worker& worker,
                                                                            std::size_t max_bytes) {
  const std::string token = worker_token(worker);
  for (int attempt = 1;; ++attempt) {
    Result<std::optional<std::vector<events::OwnedBatch>>> got = read_once(token, max_bytes);
    if (got || got.error().code() != ErrorCode::kCorruption || attempt == kAttempts) return got;
  }
}

}  // namespace ashlar::backend::nats
