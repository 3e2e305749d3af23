// A client that loads a server of HTTP/1.1 with requests and measures its answers: one thread, epoll, nothing
// between the clock and the sockets.
//
// Thread safety: thread-compatible; one thread may run each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::bench {

// Finds the end of an answer in the bytes of a connection, as they come.
class AnswerScan {
 public:
  explicit AnswerScan(bool keeps_body = false) : keeps_body_(keeps_body) {}

  // Takes bytes of one answer. True: it is complete. Answers must come one at a time.
  bool feed(std::string_view bytes);
  void reset();

  bool is_broken() const noexcept { return is_broken_; }
  int status() const noexcept { return status_; }
  std::size_t body_bytes() const noexcept { return body_bytes_; }  // without framing
  const std::string& body() const noexcept { return body_; }
  // A header of the answer, by its name in any case; empty: none.
  std::string_view header(std::string_view name) const;

 private:
  enum class Part : std::uint8_t { kHead, kSized, kChunkSize, kChunk, kChunkEnd, kTrailer, kDone };
  void read_head();
  void take_body(std::string_view bytes);

  const bool keeps_body_;
  Part part_ = Part::kHead;
  bool is_broken_ = false;
  int status_ = 0;
  std::string head_;
  std::string line_;
  std::string body_;
  std::size_t left_ = 0;
  std::size_t body_bytes_ = 0;
};

// Requests of one kind, ready to send.
struct RequestSet {
  std::vector<std::string> requests;  // taken in turn
  // Where digits stand that make every request a new one; 0: nowhere.
  std::size_t number_at = 0;
  std::size_t number_digits = 0;
  // The requests are the turns of a conversation, which has one number; so many run side by side. 0: none do.
  std::size_t conversations = 0;
  std::size_t answer_bytes = 0;  // of the body of a right answer; 0: any

  // The bytes of the next request.
  std::string_view next(std::uint64_t turn);
  // The next one that begins conversations.
  std::uint64_t aligned(std::uint64_t turn) const;
};

std::string http_post(std::string_view path, std::string_view body);

struct HttpLoad {
  std::uint16_t port = 0;
  std::size_t connections = 1;
  double rate = 0;  // requests per second of all connections, at random times; 0: each sends when it can
  double seconds = 0.6;
  double warm_seconds = 0.1;  // before, not measured
  std::uint64_t first_turn = 0;
};

struct MeasuredLoad {
  std::vector<float> whole;  // microseconds from its time to the end of the answer
  std::vector<float> first;  // to the first byte of the body
  std::uint64_t wrong = 0;   // answers that were not as expected
  double seconds = 0;
};

// `on_start` is called when the warm-up is over, `on_end` when the measured time is.
template <class OnStart, class OnEnd>
MeasuredLoad run_load(const HttpLoad& load, RequestSet& set, OnStart on_start, OnEnd on_end);

double mean_of(const std::vector<float>& values);
double quantile_of(std::vector<float> values, double share);

// A connection for single requests; each waits for its answer.
class HttpSession {
 public:
  explicit HttpSession(std::uint16_t port) : port_(port) {}
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;
  ~HttpSession() { close(); }

  // Status 0: no answer. The answer is valid until the next request.
  const AnswerScan& post(std::string_view path, std::string_view body);
  const AnswerScan& get(std::string_view path);

 private:
  const AnswerScan& exchange(std::string_view request);
  bool try_exchange(std::string_view request);
  void close();

  const std::uint16_t port_;
  int fd_ = -1;
  AnswerScan answer_{true};
};

// A connected socket to a port of loopback, without delays; -1: nobody there.
int connect_to_loopback(std::uint16_t port);

// The load with its sockets, behind run_load().
class LoadRun {
 public:
  LoadRun(const HttpLoad& load, RequestSet& set);
  LoadRun(const LoadRun&) = delete;
  LoadRun& operator=(const LoadRun&) = delete;
  ~LoadRun();
  // Runs so long; keeps measurements where asked.
  void run(double seconds, bool measures);
  MeasuredLoad take() { return std::move(measured_); }

 private:
  struct Link {
    int fd = -1;
    AnswerScan scan{};
    double due = 0;    // seconds
    double first = 0;  // 0: no byte of the body yet
    bool is_busy = false;
  };
  void send_on(std::size_t link, double due);
  void receive_on(std::size_t link);
  void start_due(double now);

  const HttpLoad load_;
  RequestSet& set_;
  int epoll_ = -1;
  std::vector<Link> links_;
  std::vector<std::size_t> idle_;
  std::vector<char> buffer_;
  std::uint64_t turn_ = 0;
  std::uint64_t random_;
  double next_arrival_ = 0;
  bool measures_ = false;
  bool is_ending_ = false;
  MeasuredLoad measured_;
};

template <class OnStart, class OnEnd>
MeasuredLoad run_load(const HttpLoad& load, RequestSet& set, OnStart on_start, OnEnd on_end) {
  LoadRun run(load, set);
  run.run(load.warm_seconds, false);
  on_start();
  run.run(load.seconds, true);
  on_end();
  return run.take();
}

}  // namespace ashlar::bench
