#include "backend/s3/http_loop.h"

#include <algorithm>
#include <array>
#include <span>
#include <stop_token>
#include <string>
#include <utility>

#include "ashlar/base/check.h"
#include "storage/parts_cursor.h"

namespace ashlar::backend::s3 {
namespace {

using std::chrono::milliseconds;

constexpr long kBufferBytes = 512L * 1024;
constexpr std::size_t kMaxText = 65'536;
constexpr int kMaxSleep = 60'000;

bool is_passing(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL:  // curl's code for a response that is not HTTP
    case CURLE_SSL_CONNECT_ERROR:
      return true;
    default:
      return false;
  }
}

// 409: conflicting conditional writes; 501 and 507 are permanent.
bool is_passing(long status) {
  return status == 408 || status == 409 || status == 429 || status == 500 || status == 502 || status == 503 ||
         status == 504;
}

const char* name_of(Method method) {
  switch (method) {
    case Method::kGet:
      return "GET";
    case Method::kHead:
      return "HEAD";
    case Method::kPut:
      return "PUT";
    case Method::kPost:
      return "POST";
    case Method::kDelete:
      return "DELETE";
  }
  return "";
}

}  // namespace

// A transfer, or an idle handle for one.
struct HttpLoop::Attempt {
  CURL* easy = nullptr;
  curl_slist* headers = nullptr;
  bool busy = false;
  Waiting waiting;
  Response response;
  std::uint64_t received = 0;
  storage::PartsCursor<std::byte> place;  // where the next bytes go
  std::array<char, CURL_ERROR_SIZE> failure{};

  Attempt() : easy(curl_easy_init()) {}
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  ~Attempt() {
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
  }
  bool add_header(const std::string& line) {
    curl_slist* const longer = curl_slist_append(headers, line.c_str());
    if (longer != nullptr) headers = longer;
    return longer != nullptr;
  }
};

HttpLoop::HttpLoop(const S3Options& options)
    : options_(options),
      random_(static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())) {}

Result<std::unique_ptr<HttpLoop>> HttpLoop::create(const S3Options& options) {
  std::unique_ptr<HttpLoop> loop(new HttpLoop(options));
  loop->multi_ = curl_multi_init();
  if (loop->multi_ == nullptr)
    return make_error(ErrorCode::kInternal, "libcurl cannot create a multi handle");
  curl_multi_setopt(loop->multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(options.requests));
  return loop;
}

HttpLoop::~HttpLoop() {
  for (const std::unique_ptr<Attempt>& attempt : attempts_)
    if (attempt->busy) curl_multi_remove_handle(multi_, attempt->easy);
  attempts_.clear();
  curl_multi_cleanup(multi_);
}

void HttpLoop::submit(Request request) {
  queue_.push_back({.request = std::move(request)});
}

void HttpLoop::submit_first(Request request) {
  queue_.push_front({.request = std::move(request)});
}

void HttpLoop::run(const tiers::CallLimits& limits) {
  const std::stop_callback wake(limits.stop, [this] { curl_multi_wakeup(multi_); });
  silent_ = false;
  while (true) {
    if (const Result<void> wanted = limits.check(); !wanted) return stop(wanted.error());
    begin_what_fits(std::chrono::steady_clock::now());
    if (running_ == 0 && retries_.empty() && queue_.empty()) return;
    int still = 0;
    curl_multi_perform(multi_, &still);
    int left = 0;
    bool ended = false;
    while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      void* owner = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &owner);
      end(*static_cast<Attempt*>(owner), message->data.result);
      ended = true;
    }
    if (ended) continue;
    // Wakes for sockets, for libcurl's own time limits, for a stop, and for the next retry.
    curl_multi_poll(multi_, nullptr, 0, milliseconds_to_next(std::chrono::steady_clock::now(), limits),
                    nullptr);
  }
}

// Completions may queue new requests: those complete without being tried.
void HttpLoop::stop(const Error& why) {
  const TimePoint now = std::chrono::steady_clock::now();
  const auto finish_stopped = [&](Waiting waiting) {
    if (waiting.attempts == 0) waiting.began = now;
    waiting.last = {};
    waiting.last.stopped = why;
    waiting.last.attempts = waiting.attempts;
    waiting.last.took = std::chrono::duration_cast<milliseconds>(now - waiting.began);
    waiting.last.deadline = waiting.request.deadline.value_or(now);
    finish(std::move(waiting));
  };
  for (const std::unique_ptr<Attempt>& attempt : attempts_) {
    if (!attempt->busy) continue;
    curl_multi_remove_handle(multi_, attempt->easy);
    attempt->busy = false;
    --running_;
    finish_stopped(std::move(attempt->waiting));
  }
  while (!queue_.empty() || !retries_.empty()) {
    Waiting waiting;
    if (retries_.empty()) {
      waiting = std::move(queue_.front());
      queue_.pop_front();
    } else {
      waiting = std::move(retries_.back());
      retries_.pop_back();
    }
    finish_stopped(std::move(waiting));
  }
}

int HttpLoop::milliseconds_to_next(TimePoint now, const tiers::CallLimits& limits) const {
  int wait = kMaxSleep;
  const auto wake_at = [&](TimePoint when) {
    const auto until = std::chrono::ceil<milliseconds>(when - now).count();
    wait = static_cast<int>(std::clamp<std::int64_t>(until, 0, wait));
  };
  if (limits.deadline) wake_at(*limits.deadline);
  if (running_ < options_.requests)
    for (const Waiting& waiting : retries_) wake_at(waiting.not_before);
  return wait;
}

void HttpLoop::begin_what_fits(TimePoint now) {
  // Completions may queue new requests; the loop handles them in turn.
  while (silent_ && (!queue_.empty() || !retries_.empty())) {
    Waiting waiting;
    if (retries_.empty()) {
      waiting = std::move(queue_.front());
      queue_.pop_front();
      waiting.last.failure = "not tried, because the service does not respond";
      waiting.last.deadline = waiting.request.deadline.value_or(now + options_.deadline);
    } else {
      waiting = std::move(retries_.back());
      retries_.pop_back();
    }
    finish(std::move(waiting));
  }
  while (running_ < options_.requests) {
    Waiting next;
    const auto due =
        std::ranges::find_if(retries_, [&](const Waiting& waiting) { return waiting.not_before <= now; });
    if (due != retries_.end()) {
      next = std::move(*due);
      retries_.erase(due);
    } else if (!queue_.empty()) {
      next = std::move(queue_.front());
      queue_.pop_front();
    } else {
      return;
    }
    auto idle = std::ranges::find_if(attempts_, [](const auto& attempt) { return !attempt->busy; });
    if (idle == attempts_.end()) {
      attempts_.push_back(std::make_unique<Attempt>());
      idle = std::prev(attempts_.end());
    }
    begin(**idle, std::move(next), now);
  }
}

void HttpLoop::begin(Attempt& attempt, Waiting waiting, TimePoint now) {
  if (waiting.attempts == 0) waiting.began = now;
  if (!waiting.request.deadline) waiting.request.deadline = now + options_.deadline;
  ++waiting.attempts;
  attempt.waiting = std::move(waiting);
  attempt.response = {};
  attempt.received = 0;
  attempt.place = storage::PartsCursor<std::byte>(attempt.waiting.request.parts);
  ASHLAR_CHECK(!attempt.busy && running_ < options_.requests,
               "a request begins beside %zu others; %zu may run", std::size_t{running_},
               std::size_t{options_.requests});
  attempt.busy = true;
  ++running_;
  if (attempt.easy == nullptr || !set_up(attempt, now)) {
    end(attempt, CURLE_OUT_OF_MEMORY);
  } else if (curl_multi_add_handle(multi_, attempt.easy) != CURLM_OK) {
    end(attempt, CURLE_FAILED_INIT);
  }
}

bool HttpLoop::set_up(Attempt& attempt, TimePoint now) {
  CURL* const easy = attempt.easy;
  Request& request = attempt.waiting.request;
  curl_easy_reset(easy);
  curl_slist_free_all(std::exchange(attempt.headers, nullptr));
  attempt.failure.fill(0);
  bool good = true;
  const auto set = [&](CURLoption option, auto value) {
    good = good && curl_easy_setopt(easy, option, value) == CURLE_OK;
  };
  const std::string url = options_.url(request.key) + (request.query.empty() ? "" : "?" + request.query);
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_PROXY, "");  // ignores proxies set in the environment
  set(CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
  set(CURLOPT_QUICK_EXIT, 1L);  // an aborted transfer does not wait for name resolution
#endif
  set(CURLOPT_PRIVATE, static_cast<void*>(&attempt));
  set(CURLOPT_ERRORBUFFER, attempt.failure.data());
  set(CURLOPT_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_SSL_VERIFYPEER, options_.verify_tls ? 1L : 0L);
  set(CURLOPT_SSL_VERIFYHOST, options_.verify_tls ? 2L : 0L);
  if (!options_.ca_file.empty()) set(CURLOPT_CAINFO, options_.ca_file.c_str());
  const auto left = std::chrono::ceil<milliseconds>(*request.deadline - now).count();
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<std::int64_t>(left, 1)));
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_timeout.count()));
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stall.count()));
  set(CURLOPT_WRITEFUNCTION, &HttpLoop::on_write);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&attempt));
  set(CURLOPT_HEADERFUNCTION, &HttpLoop::on_header);
  set(CURLOPT_HEADERDATA, static_cast<void*>(&attempt));
  if (options_.sign()) {
    set(CURLOPT_AWS_SIGV4, ("aws:amz:" + options_.region + ":s3").c_str());
    set(CURLOPT_USERNAME, options_.access_key.c_str());
    set(CURLOPT_PASSWORD, options_.secret_key.c_str());
    good = good && attempt.add_header("x-amz-content-sha256: UNSIGNED-PAYLOAD");
    if (!options_.session_token.empty())
      good = good && attempt.add_header("x-amz-security-token: " + options_.session_token);
  }
  if (request.if_none_match) good = good && attempt.add_header("If-None-Match: *");
  if (request.method == Method::kHead) {
    set(CURLOPT_NOBODY, 1L);
  } else if (request.method == Method::kPut || request.method == Method::kPost) {
    request.body.seek(0);
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_CUSTOMREQUEST, name_of(request.method));
    set(CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_READFUNCTION, &HttpLoop::on_read);
    set(CURLOPT_READDATA, static_cast<void*>(&attempt));
    set(CURLOPT_SEEKFUNCTION, &HttpLoop::on_seek);
    set(CURLOPT_SEEKDATA, static_cast<void*>(&attempt));
  } else if (request.method == Method::kDelete) {
    set(CURLOPT_CUSTOMREQUEST, "DELETE");
  }
  set(CURLOPT_HTTPHEADER, attempt.headers);
  return good;
}

std::size_t HttpLoop::on_read(char* into, std::size_t unit, std::size_t count, void* attempt) {
  return static_cast<Attempt*>(attempt)->waiting.request.body.read(into, unit * count);
}

int HttpLoop::on_seek(void* attempt, curl_off_t offset, int origin) {
  Body& body = static_cast<Attempt*>(attempt)->waiting.request.body;
  if (origin != SEEK_SET || offset < 0 || static_cast<std::uint64_t>(offset) > body.size())
    return CURL_SEEKFUNC_CANTSEEK;
  body.seek(static_cast<std::uint64_t>(offset));
  return CURL_SEEKFUNC_OK;
}

// A return value below the given size aborts the transfer.
std::size_t HttpLoop::on_write(char* from, std::size_t unit, std::size_t count, void* attempt) {
  auto& self = *static_cast<Attempt*>(attempt);
  const std::size_t bytes = unit * count;
  long status = 0;
  curl_easy_getinfo(self.easy, CURLINFO_RESPONSE_CODE, &status);
  const Request& request = self.waiting.request;
  if (request.method != Method::kGet || status != 200) {
    self.response.text.append(from, std::min(bytes, kMaxText - self.response.text.size()));
    return bytes;
  }
  curl_off_t announced = -1;
  curl_easy_getinfo(self.easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &announced);
  const std::uint64_t expected = self.received + self.place.left();
  const bool other = announced >= 0 && static_cast<std::uint64_t>(announced) != expected;
  if (other || bytes > self.place.left()) {
    self.response.other_size = true;
    return 0;
  }
  self.place.copy(std::as_bytes(std::span(from, bytes)));
  self.received += bytes;
  ASHLAR_DCHECK(self.received + self.place.left() == expected, "%llu bytes of an object of %llu were placed",
                static_cast<unsigned long long>(self.received), static_cast<unsigned long long>(expected));
  return bytes;
}

std::size_t HttpLoop::on_header(char* from, std::size_t unit, std::size_t count, void* attempt) {
  constexpr std::string_view kName = "etag:";
  const std::string_view line(from, unit * count);
  const bool is_etag = line.size() > kName.size() &&
                       std::ranges::equal(line.substr(0, kName.size()), kName, [](char a, char b) {
                         return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b;
                       });
  if (is_etag) {
    std::string_view value = line.substr(kName.size());
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    while (!value.empty() && static_cast<unsigned char>(value.back()) <= ' ') value.remove_suffix(1);
    static_cast<Attempt*>(attempt)->response.etag = value;
  }
  return line.size();
}

void HttpLoop::end(Attempt& attempt, CURLcode code) {
  ASHLAR_CHECK(attempt.busy && running_ != 0, "a request ends that is not running");
  const TimePoint now = std::chrono::steady_clock::now();
  Response response = std::move(attempt.response);
  Waiting waiting = std::move(attempt.waiting);
  long status = 0;
  if (attempt.easy != nullptr) {
    curl_easy_getinfo(attempt.easy, CURLINFO_RESPONSE_CODE, &status);
    curl_off_t size = -1;
    curl_easy_getinfo(attempt.easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &size);
    response.size = size;
    curl_multi_remove_handle(multi_, attempt.easy);
  }
  attempt.busy = false;
  --running_;
  if (code == CURLE_OK || response.other_size) response.status = status;
  if (!response.answered()) {
    response.failure = attempt.failure[0] != 0 ? attempt.failure.data() : curl_easy_strerror(code);
  } else {
    last_answer_ = now;
    if (waiting.request.method == Method::kGet && status == 200 && attempt.place.left() > 0) {
      response.other_size = true;
      if (response.size < 0) response.size = static_cast<std::int64_t>(attempt.received);
    }
    if (waiting.request.error_in_body && status == 200 && !xml_text(response.text, "Code").empty())
      response.status = 500;
  }
  response.attempts = waiting.attempts;
  response.took = std::chrono::duration_cast<milliseconds>(now - waiting.began);
  response.deadline = *waiting.request.deadline;
  const bool passing = response.answered() ? is_passing(response.status) : is_passing(code);
  waiting.last = std::move(response);
  if (passing && may_retry(waiting)) {
    milliseconds pause = options_.backoff * (1 << std::min<std::uint64_t>(waiting.attempts - 1, 6));
    pause = pause / 2 + milliseconds(random_.below(static_cast<std::uint64_t>(pause.count() / 2) + 1));
    waiting.not_before = now + pause;
    if (waiting.not_before < *waiting.request.deadline) {
      retries_.push_back(std::move(waiting));
      return;
    }
  }
  if (!waiting.last.answered() && last_answer_ < waiting.began) silent_ = true;
  finish(std::move(waiting));
}

bool HttpLoop::may_retry(const Waiting& waiting) const {
  return !silent_ && waiting.attempts <= options_.retries;
}

void HttpLoop::finish(Waiting waiting) {
  if (waiting.request.done) waiting.request.done(waiting.last);
}

}  // namespace ashlar::backend::s3
