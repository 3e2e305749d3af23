// Volumes in an object store that speaks S3: AWS, Ceph, MinIO, Garage, … through libcurl.
//
//   registry.add("s3", backend::s3::attach);
//   auto volume = registry.attach({.name = "cold", .kind = "s3", .location = "bucket/prefix", .options =
//   {…}});
//
// The location is a bucket, with a prefix or without. Credentials are values of options; no environment and
// no file is read for them, and they appear in no message. Nothing is sent before the first call.
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
// | part_bytes | 16777216 | of a part, at least 5 MiB; grows where 10,000 parts would not do |
// | part_requests | 4 | parts of one object at once, within `requests` |
// | if_none_match | true | put() leaves an object that is there alone, and saves its upload. false: it
// replaces it, for
// |               |      | stores without conditional writes |
// | retries | 4 | of a request that met 5xx, 429, a time limit or a broken connection |
// | backoff_ms | 50 | before the first retry; doubles to 64 times that, half of it by chance |
// | connect_timeout_ms | 3000 | |
// | stall_seconds | 10 | an attempt in which no byte moves for so long is given up |
// | deadline_ms | 120000 | for an object, from its first request, with all retries |
//
// A store that answers nobody ends a batch early: when an object has used up its retries and nothing was
// heard meanwhile, objects that were not begun are answered kUnavailable without a try.
//
// Thread safety: of the volume: thread-safe; every batch has connections of its own, kept for the next one.
// The calling thread does the work and waits in poll().
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"
#include "ashlar/tiers/volume_registry.h"

namespace ashlar::backend::s3 {

// Errors: kInvalidArgument: the location or an option, never with the value of one.
Result<std::unique_ptr<tiers::Volume>> attach(const tiers::VolumeDescriptor& descriptor);

}  // namespace ashlar::backend::s3
