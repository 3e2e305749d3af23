// What an answer of an object store means for an object.
//
// Messages hold the status and the name of the store's error, no more: stores repeat access keys and what was
// signed in the rest of their text.
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

// The name that the store gives its error, "SlowDown"; empty where it says none.
std::string error_name(const Response& response);

// Of a request that did not do what it should. `what` is a verb: "put".
Error error_of(const S3Options& options, const char* what, std::string_view key, const Response& response);

// Of the last request of a put: 412 says that the object is there already.
Result<void> put_result(const S3Options& options, std::string_view key, const Response& response);
Result<void> get_result(const S3Options& options, const tiers::ObjectRead& object, const Response& response);
Result<bool> contains_result(const S3Options& options, std::string_view key, const Response& response);
Result<void> remove_result(const S3Options& options, std::string_view key, const Response& response);

}  // namespace ashlar::backend::s3
