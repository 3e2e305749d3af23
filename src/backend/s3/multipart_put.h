// MultipartPut: writes a large object in parts, several at a time; readers see it only once the last step
// succeeds.
//
//   check whether it exists ─▶ create the upload ─▶ parts ─▶ complete
//                                                      └─ one fails ─▶ wait for those in flight ─▶ abort
//
// On failure the upload is aborted, so that its parts cost nothing. If the abort fails too, or the process
// dies, the parts stay until the bucket's rule for incomplete uploads removes them.
//
// Thread safety: confined to the thread of its loop.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"
#include "backend/s3/http_loop.h"

namespace ashlar::backend::s3 {

class MultipartPut {
 public:
  // Requires: all arguments and this object outlive the run of the loop. `result` is written once.
  MultipartPut(HttpLoop& loop, const S3Options& options, const tiers::ObjectWrite& object,
               Result<void>& result);
  MultipartPut(const MultipartPut&) = delete;
  MultipartPut& operator=(const MultipartPut&) = delete;

  // Appends the first request to the queue.
  void start();

 private:
  Request request(Method method, std::string query) const;
  Request create();
  void submit_parts();
  void part_done(std::size_t number, Response& response);
  void complete();
  void completed(Response& response);
  void look_after_lost_upload(const Response& response);
  void abort();

  HttpLoop& loop_;
  const S3Options& options_;
  const tiers::ObjectWrite& object_;
  Result<void>& result_;
  const std::uint64_t size_;
  const std::uint64_t part_bytes_;
  std::optional<TimePoint> deadline_;
  std::string upload_;  // upload id, query-encoded
  std::vector<std::string> etags_;
  std::size_t next_ = 0;
  std::size_t running_ = 0;
  std::string document_;
  std::span<const std::byte> document_bytes_;
};

}  // namespace ashlar::backend::s3
