#include "http_load.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "processes.h"

namespace ashlar::bench {

namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool same_text(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno != EAGAIN) return;  // the answer will be missing
    pollfd about{.fd = fd, .events = POLLOUT, .revents = 0};
    poll(&about, 1, 1000);
  }
}

}  // namespace

// ---- AnswerScan

void AnswerScan::reset() {
  part_ = Part::kHead;
  is_broken_ = false;
  status_ = 0;
  head_.clear();
  line_.clear();
  body_.clear();
  left_ = body_bytes_ = 0;
}

std::string_view AnswerScan::header(std::string_view name) const {
  std::string_view rest = head_;
  for (std::size_t end = rest.find("\r\n"); end != std::string_view::npos; end = rest.find("\r\n")) {
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 2);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !same_text(line.substr(0, colon), name)) continue;
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    return value;
  }
  return {};
}

void AnswerScan::read_head() {
  status_ = head_.size() > 12 ? std::atoi(head_.c_str() + 9) : 0;
  if (const std::string_view length = header("content-length"); !length.empty()) {
    left_ = static_cast<std::size_t>(std::strtoull(std::string(length).c_str(), nullptr, 10));
    part_ = left_ == 0 ? Part::kDone : Part::kSized;
  } else if (same_text(header("transfer-encoding"), "chunked")) {
    part_ = Part::kChunkSize;
  } else {
    is_broken_ = status_ != 204;
    part_ = Part::kDone;
  }
}

void AnswerScan::take_body(std::string_view bytes) {
  body_bytes_ += bytes.size();
  if (keeps_body_) body_.append(bytes);
}

bool AnswerScan::feed(std::string_view bytes) {
  while (!bytes.empty() && part_ != Part::kDone) {
    switch (part_) {
      case Part::kHead: {
        const std::size_t before = head_.size();
        head_.append(bytes);
        const std::size_t end = head_.find("\r\n\r\n", before < 3 ? 0 : before - 3);
        if (end == std::string::npos) return false;
        bytes.remove_prefix(end + 4 - before);
        head_.resize(end + 2);
        read_head();
        break;
      }
      case Part::kSized:
      case Part::kChunk: {
        const std::size_t taken = std::min(left_, bytes.size());
        take_body(bytes.substr(0, taken));
        bytes.remove_prefix(taken);
        left_ -= taken;
        if (left_ == 0) {
          part_ = part_ == Part::kSized ? Part::kDone : Part::kChunkEnd;
          left_ = 2;
        }
        break;
      }
      case Part::kChunkEnd: {
        const std::size_t taken = std::min(left_, bytes.size());
        bytes.remove_prefix(taken);
        left_ -= taken;
        if (left_ == 0) part_ = Part::kChunkSize;
        break;
      }
      case Part::kChunkSize:
      case Part::kTrailer: {
        const std::size_t end = bytes.find('\n');
        line_.append(bytes.substr(0, end));
        bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end + 1);
        if (end == std::string_view::npos) break;
        if (part_ == Part::kTrailer) {
          if (line_ == "\r") part_ = Part::kDone;
        } else {
          left_ = static_cast<std::size_t>(std::strtoull(line_.c_str(), nullptr, 16));
          part_ = left_ == 0 ? Part::kTrailer : Part::kChunk;
        }
        line_.clear();
        break;
      }
      case Part::kDone:
        break;
    }
  }
  if (!bytes.empty()) is_broken_ = true;  // more than one answer
  return part_ == Part::kDone;
}

// ---- requests

std::string http_post(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

std::string_view RequestSet::next(std::uint64_t turn) {
  std::string& request = requests[turn / std::max<std::size_t>(1, conversations) % requests.size()];
  if (conversations > 0)
    turn = turn / (conversations * requests.size()) * conversations + turn % conversations;
  for (std::size_t i = 0; i < number_digits; ++i, turn /= 10)
    request[number_at + number_digits - 1 - i] = static_cast<char>('0' + turn % 10);
  return request;
}

std::uint64_t RequestSet::aligned(std::uint64_t turn) const {
  const std::uint64_t step = std::max<std::uint64_t>(1, conversations * requests.size());
  return (turn + step - 1) / step * step;
}

int connect_to_loopback(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    return -1;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

// ---- LoadRun

LoadRun::LoadRun(const HttpLoad& load, RequestSet& set)
    : load_(load), set_(set), buffer_(256 << 10), turn_(load.first_turn), random_(load.first_turn + 1) {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  links_.resize(load.connections);
  for (std::size_t i = 0; i < links_.size(); ++i) {
    links_[i].fd = connect_to_loopback(load.port);
    if (links_[i].fd < 0) fail("nobody listens on port " + std::to_string(load.port));
    epoll_event about{};
    about.events = EPOLLIN;
    about.data.u64 = i;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, links_[i].fd, &about);
    idle_.push_back(i);
  }
}

LoadRun::~LoadRun() {
  for (const Link& link : links_) close(link.fd);
  close(epoll_);
}

void LoadRun::send_on(std::size_t link, double due) {
  Link& one = links_[link];
  one.scan.reset();
  one.due = due;
  one.first = 0;
  one.is_busy = true;
  send_all(one.fd, set_.next(turn_++));
}

void LoadRun::receive_on(std::size_t link) {
  Link& one = links_[link];
  const ssize_t got = recv(one.fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return;
  if (got <= 0 || !one.is_busy)
    fail("port " + std::to_string(load_.port) + " ended a connection in the middle of a measurement");
  const bool is_over = one.scan.feed({buffer_.data(), static_cast<std::size_t>(got)});
  const double now = now_seconds();
  if (one.first == 0 && one.scan.body_bytes() > 0) one.first = now;
  if (!is_over) return;
  one.is_busy = false;
  const bool is_right = !one.scan.is_broken() && one.scan.status() == 200 &&
                        (set_.answer_bytes == 0 || one.scan.body_bytes() == set_.answer_bytes);
  if (measures_ && !is_ending_) {
    measured_.whole.push_back(static_cast<float>((now - one.due) * 1e6));
    measured_.first.push_back(static_cast<float>((one.first - one.due) * 1e6));
    if (!is_right) ++measured_.wrong;
  }
  if (load_.rate == 0 && !is_ending_) {
    send_on(link, now_seconds());
  } else {
    idle_.push_back(link);
  }
}

void LoadRun::start_due(double now) {
  while (!idle_.empty() && (load_.rate == 0 || next_arrival_ <= now)) {
    const std::size_t link = idle_.back();
    idle_.pop_back();
    // An arrival that finds no connection free waits, and its time counts from when it was due.
    send_on(link, load_.rate == 0 ? now_seconds() : next_arrival_);
    if (load_.rate == 0) continue;
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    const double uniform = (static_cast<double>(random_ >> 11) + 0.5) / 9007199254740992.0;
    next_arrival_ -= std::log(uniform) / load_.rate;
  }
}

void LoadRun::run(double seconds, bool measures) {
  measures_ = measures;
  is_ending_ = false;
  const double start = now_seconds();
  const double end = start + seconds;
  next_arrival_ = start;
  std::array<epoll_event, 256> ready{};
  for (double now = start; now < end || idle_.size() < links_.size(); now = now_seconds()) {
    if (now >= end && !is_ending_) {
      is_ending_ = true;
      measured_.seconds = now - start;
    }
    if (now > end + 30) fail("port " + std::to_string(load_.port) + " owes answers after 30 s");
    if (!is_ending_) start_due(now);
    double pause = is_ending_ ? 1.0 : end - now;
    if (!is_ending_ && load_.rate > 0 && !idle_.empty()) pause = std::min(pause, next_arrival_ - now);
    pause = std::max(pause, 0.0);
    timespec limit{};
    limit.tv_sec = static_cast<time_t>(pause);
    limit.tv_nsec = static_cast<long>((pause - std::floor(pause)) * 1e9);
    const int count = epoll_pwait2(epoll_, ready.data(), ready.size(), &limit, nullptr);
    for (int i = 0; i < count; ++i) receive_on(ready[static_cast<std::size_t>(i)].data.u64);
  }
  if (!is_ending_) measured_.seconds = now_seconds() - start;
}

double mean_of(const std::vector<float>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double quantile_of(std::vector<float> values, double share) {
  if (values.empty()) return 0;
  const std::size_t at =
      std::min(values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return static_cast<double>(values[at]);
}

// ---- HttpSession

void HttpSession::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

bool HttpSession::try_exchange(std::string_view request) {
  answer_.reset();
  if (fd_ < 0) fd_ = connect_to_loopback(port_);
  if (fd_ < 0) return false;
  send_all(fd_, request);
  std::array<char, 16 << 10> buffer;
  for (;;) {
    const ssize_t got = recv(fd_, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    if (answer_.feed({buffer.data(), static_cast<std::size_t>(got)})) {
      if (same_text(answer_.header("connection"), "close")) close();
      return true;
    }
  }
  close();
  answer_.reset();
  return false;
}

const AnswerScan& HttpSession::exchange(std::string_view request) {
  // A connection that was kept may have ended in between.
  const bool was_kept = fd_ >= 0;
  if (!try_exchange(request) && was_kept) try_exchange(request);
  return answer_;
}

const AnswerScan& HttpSession::post(std::string_view path, std::string_view body) {
  return exchange(http_post(path, body));
}

const AnswerScan& HttpSession::get(std::string_view path) {
  return exchange("GET " + std::string(path) + " HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
}

}  // namespace ashlar::bench
