// Volumes in an object store that speaks S3: AWS, Ceph, MinIO, Garage, … through libcurl.
//
//   registry.add("s3", backend::s3::attach);
//   auto volume = registry.attach(
//       {.name = "cold", .kind = "s3", .location = "bucket/prefix", .options = {…}});
//
// The location is a bucket, with a prefix or without. Credentials come only from options, never from the
// environment or a file, and appear in no message. Nothing is sent before the first call.
//
// | option | default | |
// |---|---|---|
// | endpoint | https://s3.REGION.amazonaws.com | http:// or https://, a host, perhaps a port |
// | region | us-east-1 | as the store's signatures name it |
// | access_key, secret_key | none: requests are not signed | both or neither |
// | session_token | | of temporary credentials |
// | addressing | path | path: endpoint/bucket/key; host: bucket.endpoint/key |
// | ca_file | the system's | certificates to trust, PEM |
// | verify_tls | true | false is for tests |
// | requests | 16 | at once, per batch |
// | multipart_bytes | 33554432 | larger objects go up in parts |
// | part_bytes | 16777216 | of a part, at least 5 MiB; grows if 10,000 parts would not suffice |
// | part_requests | 4 | parts of one object at once, within `requests` |
// | if_none_match | true | put() keeps an existing object, without an upload; false: replaces it |
// |               |      | (for stores without conditional writes) |
// | retries | 4 | of a request after 5xx, 429, a timeout or a broken connection |
// | backoff_ms | 50 | before the first retry; doubles up to 64 times, half of it random |
// | connect_timeout_ms | 3000 | |
// | stall_seconds | 10 | an attempt without traffic for this long is abandoned |
// | deadline_ms | 120000 | for an object, from its first request, with all retries |
//
// A store that does not answer ends a batch early: once an object has used up its retries without any answer,
// objects not yet begun are answered kUnavailable without an attempt.
//
// Thread safety: of the volume: thread-safe; every batch has its own connections, kept for the next one. The
// calling thread does the work and waits in poll().
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tiers/volume_registry.h"

namespace ashlar::backend::s3 {

// Errors: kInvalidArgument: the location or an option, never with an option's value.
Result<std::unique_ptr<tiers::Volume>> attach(const tiers::VolumeDescriptor& descriptor);

}  // namespace ashlar::backend::s3
