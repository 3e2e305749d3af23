// The operator's options of an S3 volume, parsed and validated. ashlar/backend/s3/s3_volume.h lists them.
//
// Thread safety: immutable after read().
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume_registry.h"

namespace ashlar::backend::s3 {

struct S3Options {
  std::string endpoint;  // scheme, host and port
  std::string bucket;
  std::string prefix;  // empty, or without leading and trailing '/'
  std::string region;
  std::string access_key;
  std::string secret_key;
  std::string session_token;
  std::string ca_file;
  bool host_style = false;
  bool verify_tls = true;
  bool if_none_match = true;
  std::uint64_t requests = 0;
  std::uint64_t multipart_bytes = 0;
  std::uint64_t part_bytes = 0;
  std::uint64_t part_requests = 0;
  std::uint64_t retries = 0;
  std::chrono::milliseconds backoff{};
  std::chrono::milliseconds connect_timeout{};
  std::chrono::seconds stall{};
  std::chrono::milliseconds deadline{};

  static Result<S3Options> read(const tiers::VolumeDescriptor& descriptor);

  bool sign() const { return !access_key.empty(); }
  // The URL of an object.
  std::string url(std::string_view key) const;
  // "s3 https://host bucket/prefix".
  std::string describe() const;
};

}  // namespace ashlar::backend::s3
