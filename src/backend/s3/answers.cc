#include "backend/s3/answers.h"

#include <algorithm>

namespace ashlar::backend::s3 {
namespace {

bool is_full(const Response& response, std::string_view name) {
  return response.status == 507 || response.status == 413 || name == "EntityTooLarge" ||
         name == "QuotaExceeded" || name == "InsufficientStorage" || name == "XMinioStorageFull" ||
         name == "XMinioAdminBucketQuotaExceeded";
}

const char* advice(long status, std::string_view name) {
  if (status >= 300 && status < 400) return "; check the options endpoint, region and addressing";
  if (status == 403 || status == 401 || name == "InvalidToken" || name == "ExpiredToken")
    return "; check the credentials, the region and the machine's clock";
  if (status == 501) return "; a store without conditional writes needs if_none_match=false";
  if (name == "NoSuchBucket") return "; the operator must create the bucket";
  return "";
}

}  // namespace

std::string error_name(const Response& response) {
  const std::string_view name = xml_text(response.text, "Code");
  const bool plain = name.size() <= 64 && std::ranges::all_of(name, [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
                     });
  return plain ? std::string(name) : std::string();
}

Error error_of(const S3Options& options, const char* what, std::string_view key, const Response& response) {
  const std::string place = options.describe() + ": " + what + " '" + std::string(key) + "'";
  const auto took = static_cast<long long>(response.took.count());
  const auto attempts = static_cast<unsigned long long>(response.attempts);
  if (response.stopped)
    return make_error(response.stopped->code(), "%s: %s, after %llu attempts and %lld ms", place.c_str(),
                      response.stopped->message().c_str(), attempts, took);
  if (!response.answered())
    return make_error(ErrorCode::kUnavailable, "%s: no answer in %llu attempts and %lld ms: %s",
                      place.c_str(), attempts, took, response.failure.c_str());
  const std::string name = error_name(response);
  ErrorCode code = ErrorCode::kIo;
  if (is_full(response, name)) {
    code = ErrorCode::kCapacity;
  } else if (response.status == 501) {
    code = ErrorCode::kIo;
  } else if (response.status >= 500 || response.status == 408 || response.status == 409 ||
             response.status == 429) {
    code = ErrorCode::kUnavailable;
  } else if (response.status == 404 && name != "NoSuchBucket") {
    code = ErrorCode::kNotFound;
  }
  return make_error(code, "%s: the store answered %ld%s%s in %llu attempts and %lld ms%s", place.c_str(),
                    response.status, name.empty() ? "" : " ", name.c_str(), attempts, took,
                    advice(response.status, name));
}

Result<void> put_result(const S3Options& options, std::string_view key, const Response& response) {
  if (response.ok() || (options.if_none_match && response.status == 412)) return {};
  Error error = error_of(options, "put", key, response);
  // A missing target of a write means that more than an object is lost.
  if (error.code() == ErrorCode::kNotFound) return Error(ErrorCode::kIo, error.message());
  return error;
}

Result<void> get_result(const S3Options& options, const tiers::ObjectRead& object, const Response& response) {
  if (response.other_size)
    return make_error(ErrorCode::kCorruption, "%s: get '%s': the object has %lld bytes, %llu are expected",
                      options.describe().c_str(), std::string(object.key).c_str(),
                      static_cast<long long>(response.size), static_cast<unsigned long long>(object.size()));
  if (response.status == 200) return {};
  return error_of(options, "get", object.key, response);
}

Result<bool> contains_result(const S3Options& options, std::string_view key, const Response& response) {
  if (response.ok()) return true;
  if (response.status == 404) return false;
  return error_of(options, "contains", key, response);
}

Result<void> remove_result(const S3Options& options, std::string_view key, const Response& response) {
  if (response.ok() || (response.status == 404 && error_name(response) != "NoSuchBucket")) return {};
  return error_of(options, "remove", key, response);
}

}  // namespace ashlar::backend::s3
