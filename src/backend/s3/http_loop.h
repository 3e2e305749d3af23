// HttpLoop: runs HTTP requests over a bounded number of persistent connections, with retries.
//
// The thread that calls run() does the work and sleeps in poll() until a socket is ready or a retry is due. A
// request that fails transiently backs off exponentially with jitter and restarts, until its retries or its
// deadline are exhausted. The limits of a call end everything: transfers are aborted, and pending requests
// complete without a response.
//
// Thread safety: confined to one thread at a time.
// Complexity:    at most S3Options::requests transfers at once; memory is their buffers and the queue.
#pragma once

#include <curl/curl.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"
#include "backend/s3/http.h"
#include "backend/s3/options.h"

namespace ashlar::backend::s3 {

class HttpLoop {
 public:
  // Errors: kInternal: libcurl has no memory. Requires: options outlive this.
  static Result<std::unique_ptr<HttpLoop>> create(const S3Options& options);
  ~HttpLoop();
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;

  // Appends to the queue. Data that the request refers to must live until it is done.
  void submit(Request request);
  // Queues before requests not yet started: for objects already in progress.
  void submit_first(Request request);
  // Runs until the queue is empty or the limits are reached. Every request is done on return.
  void run(const tiers::CallLimits& limits);

 private:
  struct Attempt;
  struct Waiting {
    Request request;
    Response last = {};
    TimePoint began = {};
    TimePoint not_before = {};
    std::uint64_t attempts = 0;
  };

  explicit HttpLoop(const S3Options& options);
  void begin_what_fits(TimePoint now);
  void begin(Attempt& attempt, Waiting waiting, TimePoint now);
  bool set_up(Attempt& attempt, TimePoint now);
  void end(Attempt& attempt, CURLcode code);
  void finish(Waiting waiting);
  void stop(const Error& why);
  bool may_retry(const Waiting& waiting) const;
  int milliseconds_to_next(TimePoint now, const tiers::CallLimits& limits) const;

  static std::size_t on_read(char* into, std::size_t unit, std::size_t count, void* attempt);
  static int on_seek(void* attempt, curl_off_t offset, int origin);
  static std::size_t on_write(char* from, std::size_t unit, std::size_t count, void* attempt);
  static std::size_t on_header(char* from, std::size_t unit, std::size_t count, void* attempt);

  const S3Options& options_;
  CURLM* multi_ = nullptr;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  std::deque<Waiting> queue_;     // in order
  std::vector<Waiting> retries_;  // each at its due time
  std::size_t running_ = 0;
  TimePoint last_answer_;
  bool silent_ = false;  // no response: queued requests are not tried
  Random random_;
};

}  // namespace ashlar::backend::s3
