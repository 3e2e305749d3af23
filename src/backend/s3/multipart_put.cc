#include "backend/s3/multipart_put.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "backend/s3/answers.h"

namespace ashlar::backend::s3 {
namespace {

constexpr std::uint64_t kMaxParts = 10'000;
constexpr std::chrono::seconds kAbortDeadline{10};

std::string percent_encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
      continue;
    }
    std::array<char, 4> code{};
    std::snprintf(code.data(), code.size(), "%%%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    out += code.data();
  }
  return out;
}

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

MultipartPut::MultipartPut(HttpLoop& loop, const S3Options& options, const tiers::ObjectWrite& object,
                           Result<void>& result)
    : loop_(loop),
      options_(options),
      object_(object),
      result_(result),
      size_(object.size()),
      part_bytes_(std::max(options.part_bytes, (size_ + kMaxParts - 1) / kMaxParts)),
      etags_(static_cast<std::size_t>((size_ + part_bytes_ - 1) / part_bytes_)) {
  ASHLAR_CHECK(!etags_.empty() && etags_.size() <= kMaxParts, "an upload of %llu bytes in %zu parts",
               static_cast<unsigned long long>(size_), etags_.size());
}

Request MultipartPut::request(Method method, std::string query) const {
  return {.method = method, .key = object_.key, .query = std::move(query), .deadline = deadline_};
}

void MultipartPut::start() {
  if (!options_.if_none_match) return loop_.submit(create());
  // A HEAD costs less than an upload refused at its end.
  Request look = request(Method::kHead, "");
  look.done = [this](Response& response) {
    deadline_ = response.deadline;
    if (response.ok()) return;
    if (!response.answered() || response.status >= 500) {
      result_ = put_result(options_, object_.key, response);
    } else {
      loop_.submit_first(create());
    }
  };
  loop_.submit(std::move(look));
}

Request MultipartPut::create() {
  Request create = request(Method::kPost, "uploads=");
  create.done = [this](Response& response) {
    deadline_ = response.deadline;
    upload_ = percent_encoded(xml_text(response.text, "UploadId"));
    if (response.ok() && !upload_.empty()) return submit_parts();
    result_ = put_result(options_, object_.key, response);
    if (result_)
      result_ = make_error(ErrorCode::kIo, "%s: put '%s': the store named no upload",
                           options_.describe().c_str(), std::string(object_.key).c_str());
  };
  return create;
}

void MultipartPut::submit_parts() {
  while (result_ && next_ < etags_.size() && running_ < options_.part_requests) {
    const std::size_t number = next_++;
    const std::uint64_t from = number * part_bytes_;
    Request part = request(Method::kPut, "partNumber=" + std::to_string(number + 1) + "&uploadId=" + upload_);
    part.body = Body(object_.parts, from, std::min(part_bytes_, size_ - from));
    part.done = [this, number](Response& response) { part_done(number, response); };
    ++running_;
    loop_.submit_first(std::move(part));
  }
  if (running_ > 0) return;
  if (result_) {
    complete();
  } else {
    abort();
  }
}

void MultipartPut::part_done(std::size_t number, Response& response) {
  ASHLAR_CHECK(running_ != 0 && etags_[number].empty(), "part %zu of an upload ends twice", number + 1);
  --running_;
  if (response.ok() && !response.etag.empty()) {
    etags_[number] = std::move(response.etag);
  } else if (result_) {
    result_ = error_of(options_, "put a part of", object_.key, response);
  }
  submit_parts();
}

void MultipartPut::complete() {
  ASHLAR_CHECK(next_ == etags_.size(), "an upload is completed after %zu of %zu parts", next_, etags_.size());
  for (const std::string& etag : etags_)
    ASHLAR_CHECK(!etag.empty(), "a part of a complete upload has no ETag");
  document_ = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (std::size_t number = 0; number < etags_.size(); ++number)
    document_ += "<Part><PartNumber>" + std::to_string(number + 1) + "</PartNumber><ETag>" +
                 xml_escaped(etags_[number]) + "</ETag></Part>";
  document_ += "</CompleteMultipartUpload>";
  document_bytes_ = std::as_bytes(std::span(document_));
  Request complete = request(Method::kPost, "uploadId=" + upload_);
  complete.body = Body(std::span(&document_bytes_, 1), 0, document_.size());
  complete.if_none_match = options_.if_none_match;
  complete.error_in_body = true;
  complete.done = [this](Response& response) { completed(response); };
  loop_.submit_first(std::move(complete));
}

void MultipartPut::completed(Response& response) {
  if (response.ok()) return;
  if (response.status == 404) return look_after_lost_upload(response);
  result_ = put_result(options_, object_.key, response);
  abort();
}

// The upload may be missing because it succeeded and the response was lost. The attempt count does not tell:
// libcurl itself repeats a request when a reused connection breaks without a response.
void MultipartPut::look_after_lost_upload(const Response& response) {
  Request look = request(Method::kHead, "");
  look.done = [this, first = put_result(options_, object_.key, response)](Response& found) {
    if (!found.ok() || static_cast<std::uint64_t>(found.size) != size_) result_ = first;
  };
  loop_.submit_first(std::move(look));
}

void MultipartPut::abort() {
  Request abort = request(Method::kDelete, "uploadId=" + upload_);
  abort.deadline = std::chrono::steady_clock::now() + kAbortDeadline;
  abort.done = [this](Response& response) {
    if (response.ok() || response.status == 404) return;
    ASHLAR_LOG(LogLevel::kWarn, "s3", "%s; parts of it stay in the bucket",
               error_of(options_, "abort the upload of", object_.key, response).message().c_str());
  };
  loop_.submit_first(std::move(abort));
}

}  // namespace ashlar::backend::s3
