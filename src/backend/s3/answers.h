// Translates responses of an object store into results.
//
// Messages hold only the status and the name of the store's error: the rest of the text may repeat access
// keys and signed data.
//
// Thread safety: immutable.
#pragma once

#include <string>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"
#include "backend/s3/http.h"
#include "backend/s3/options.h"

namespace ashlar::backend::s3 {

// The store's name for its error, e.g. "SlowDown"; empty without one.
std::string error_name(const Response& response);

// The error of a failed request. `what` is a verb: "put".
Error error_of(const S3Options& options, const char* what, std::string_view key, const Response& response);

// The result of a put's last request: 412 means that the object exists already.
Result<void> put_result(const S3Options& options, std::string_view key, const Response& response);
Result<void> get_result(const S3Options& options, const tiers::ObjectRead& object, const Response& response);
Result<bool> contains_result(const S3Options& options, std::string_view key, const Response& response);
Result<void> remove_result(const S3Options& options, std::string_view key, const Response& response);

}  // namespace ashlar::backend::s3
