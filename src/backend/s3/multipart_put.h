// MultipartPut: writes a large object in parts, several at a time; readers see it when the last step
// succeeds, or never.
//
//   look whether it is there ─▶ create the upload ─▶ parts ─▶ complete
//                                                      └─ one fails ─▶ wait for those on their way ─▶ abort
//
// One that gives up aborts the upload, so that its parts cost nothing. Where even that fails, or the process
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
  // Requires: all outlive the run of the loop, and so does this. `result` is written once.
  MultipartPut(HttpLoop& loop, const S3Options& options, const tiers::ObjectWrite& object,
               Result<void>& result);
  MultipartPut(const MultipartPut&) = delete;
  MultipartPut& operator=(const MultipartPut&) = delete;

  // Puts the first request at the end of the queue.
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
  std::string upload_;  // as it stands in a query
  std::vector<std::string> etags_;
  std::size_t next_ = 0;
  std::size_t running_ = 0;
  std::string document_;
  std::span<const std::byte> document_bytes_;
};

}  // namespace ashlar::backend::s3
