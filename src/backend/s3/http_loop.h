// HttpLoop: runs HTTP requests over a bounded number of connections that stay open, and retries what may be
// retried.
//
// The thread that calls run() does the work and sleeps in poll() in between, until a socket has something to
// say or a retry is due. A request that fails for a passing reason waits, twice as long each time and in part
// by chance, and goes again from its start, until its retries or its deadline are used up. The limits of a
// call end all of it: transfers are cut, and what was not answered is done without an answer.
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

  // To the end of the queue. What the request refers to must live until it is done.
  void submit(Request request);
  // Before those that were not begun: what an object needs that has begun.
  void submit_first(Request request);
  // Until nothing is left, or the limits have come. Every request is done then.
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
  std::vector<Waiting> retries_;  // each at its time
  std::size_t running_ = 0;
  TimePoint last_answer_;
  bool silent_ = false;  // nobody answers: what was not begun is not tried
  Random random_;
};

}  // namespace ashlar::backend::s3
