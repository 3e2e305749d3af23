#include "proxy_cases.h"

#include <string_view>
#include <utility>

#include "dummy_cache.h"
#include "dummy_worker.h"
#include "processes.h"

namespace ashlar::bench {

namespace {

constexpr std::size_t kPrompts = 64;  // distinct ones
constexpr double kOpenRate = 1000;

constexpr std::string_view kWords = " the mason lays one stone upon another and looks along the line;";

// A text of that many bytes, which begins with another one.
std::string text_of(std::string begin, std::size_t bytes) {
  while (begin.size() < bytes) begin += kWords.substr(0, bytes - begin.size());
  return begin;
}

// Requests of several messages; where all of them have a number, it stands in the same place.
RequestSet conversations_of(const Case& one) {
  constexpr std::size_t kSystems = 8;
  constexpr std::size_t kTurns = 8;
  const std::string number = std::to_string(1'000'000'000'000);
  const auto message = [](std::string_view role, const std::string& content) {
    return R"({"role":")" + std::string(role) + R"(","content":")" + content + R"("})";
  };
  RequestSet set;
  set.answer_bytes = DummyWorker::kAnswerBytes;
  set.number_digits = number.size();
  const bool is_sibling = one.events == Case::Events::kSiblings;
  if (!is_sibling) set.conversations = kPrompts;
  // The head says the length of the body: with as many digits in all of them.
  const std::string first = is_sibling ? "" : message("system", text_of(number, one.body / 2));
  std::string turns = first;
  for (std::size_t i = 0; i < (is_sibling ? kSystems : kTurns); ++i) {
    if (is_sibling) {
      turns = message("system", text_of(std::to_string(i), one.body * 3 / 4)) + "," +
              message("user", text_of(number, one.body / 4 - 150));
    } else {
      if (i > 0)
        turns += "," + message("assistant", std::string(DummyWorker::kReplyBytes, DummyWorker::kReplyByte));
      turns += "," + message("user", text_of(std::to_string(i), one.body / 16));
    }
    set.requests.push_back(
        http_post("/v1/chat/completions", R"({"model":"dummy","max_tokens":16,"messages":[)" + turns + "]}"));
    const std::size_t at = set.requests.back().rfind(number);
    if (set.number_at != 0 && set.number_at != at) fail("the numbers of a case stand in different places");
    set.number_at = at;
  }
  return set;
}

}  // namespace

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const std::pair<std::string, std::size_t> sizes[] = {{"200 B", 200}, {"2 KiB", 2048}, {"16 KiB", 16384}};
  const auto add = [&](const std::string& what, Case one) {
    one.name = what + ", c1";
    cases.push_back(one);
    one.connections = 64;
    one.rate = kOpenRate;
    one.name = what + ", c64 1k/s";
    cases.push_back(one);
    one.rate = 0;
    one.name = what + ", c64 closed";
    cases.push_back(one);
  };
  for (const auto& [text, bytes] : sizes) add("chat " + text, {.name = {}, .body = bytes});
  cases.push_back({.name = "chat 2 KiB new, c1", .is_new = true});
  add("completions 2 KiB", {.name = {}, .is_chat = false});
  cases.push_back({.name = "completions 2 KiB new, c1", .is_chat = false, .is_new = true});
  add("chat stream 2 KiB", {.name = {}, .is_stream = true});
  add("completions stream 2 KiB", {.name = {}, .is_chat = false, .is_stream = true});
  if (DummyCache::is_there()) {
    add("chat 2 KiB sibling, events", {.name = {}, .events = Case::Events::kSiblings});
    add("chat 2 KiB follow-up, events", {.name = {}, .events = Case::Events::kFollowUps});
  }
  return cases;
}

// A body of that many bytes whose prompt begins with a number.
RequestSet requests_of(const Case& one, int max_tokens) {
  if (one.events != Case::Events::kNone) return conversations_of(one);
  const std::string path = one.is_chat ? "/v1/chat/completions" : "/v1/completions";
  const std::string before = R"({"model":"dummy","max_tokens":)" + std::to_string(max_tokens) +
                             (one.is_stream ? R"(,"stream":true)" : "") +
                             (one.is_chat ? R"(,"messages":[{"role":"user","content":")" : R"(,"prompt":")");
  const std::string after = one.is_chat ? "\"}]}" : "\"}";
  RequestSet set;
  for (std::size_t i = 0; i < (one.is_new ? 1 : kPrompts); ++i) {
    const std::string number = std::to_string(1'000'000'000'000 + i);
    const std::string body = before + text_of(number, one.body - before.size() - after.size()) + after;
    set.requests.push_back(http_post(path, body));
    if (!one.is_new) continue;
    set.number_at = set.requests.back().size() - body.size() + before.size();
    set.number_digits = 13;
  }
  set.answer_bytes = one.is_stream ? DummyWorker::stream_bytes(one.is_chat) : DummyWorker::kAnswerBytes;
  return set;
}

RequestSet questions_of(const Case& one) {
  RequestSet set = requests_of(one);
  set.answer_bytes = 0;
  for (std::string& request : set.requests) {
    const std::string number = request.substr(set.number_at, set.number_digits);
    request = http_post("/tokenize", request.substr(request.find("\r\n\r\n") + 4));
    set.number_at = request.rfind(number);
  }
  return set;
}

}  // namespace ashlar::bench
