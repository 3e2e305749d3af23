#include "service/request/usage_scanner.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"

namespace ashlar::service {

static std::ostream& operator<<(std::ostream& out, const Usage& usage) {
  const auto show = [](const std::optional<std::uint64_t>& n) { return n ? std::to_string(*n) : "none"; };
  return out << show(usage.prompt_tokens) << " in, " << show(usage.completion_tokens) << " out, "
             << show(usage.cached_tokens) << " cached";
}

namespace {

constexpr const char* kJsonType = "application/json";
constexpr const char* kStreamType = "text/event-stream; charset=utf-8";

struct Scanned {
  Usage usage;
  std::uint64_t events = 0;
  friend bool operator==(const Scanned&, const Scanned&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Scanned& s) {
    return out << s.usage << ", " << s.events << " events";
  }
};

Scanned scan(std::string_view type, const std::vector<std::string_view>& pieces) {
  UsageScanner scanner(type);
  UsageScanner without_id(type, false);
  for (const std::string_view piece : pieces) {
    scanner.feed(piece);
    without_id.feed(piece);
  }
  scanner.finish();
  without_id.finish();
  EXPECT_EQ(without_id.usage(), scanner.usage());
  EXPECT_EQ(without_id.events(), scanner.events());
  EXPECT_EQ(without_id.id(), "");
  return {scanner.usage(), scanner.events()};
}

Scanned scan(std::string_view type, std::string_view text) {
  return scan(type, std::vector{text});
}

// The same answer in two pieces, in every way, and byte by byte.
void expect_every_split(std::string_view type, std::string_view text) {
  const Scanned whole = scan(type, text);
  std::vector<std::string_view> bytes;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    ASSERT_EQ(scan(type, {text.substr(0, at), text.substr(at)}), whole) << text << " at " << at;
    if (at < text.size()) bytes.push_back(text.substr(at, 1));
  }
  ASSERT_EQ(scan(type, bytes), whole) << text;
}

TEST(UsageScanner, ReadsAJsonAnswer) {
  const std::string_view answer =
      R"({"id":"x","choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":1}"},
      "usage":{"prompt_tokens":2}}],
      "usage": {"prompt_tokens": 17, "total_tokens":20,"completion_tokens":3,
      "prompt_tokens_details":{"cached_tokens":16,"other":{"cached_tokens":5}}},"kv":null})";
  EXPECT_EQ(scan(kJsonType, answer).usage, (Usage{17, 3, 16}));
  EXPECT_EQ(scan("Application/JSON ; charset=utf-8", answer).usage, (Usage{17, 3, 16}));
  EXPECT_EQ(scan("application/problem+json", answer).usage, (Usage{17, 3, 16}));
  EXPECT_EQ(scan("text/html", answer).usage, Usage{});
  EXPECT_EQ(scan("", answer).usage, Usage{});
  expect_every_split(kJsonType, answer);
}

TEST(UsageScanner, KnowsTheNamesOfOtherApis) {
  EXPECT_EQ(scan(kJsonType, R"({"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":4},
      "output_tokens":2}})")
                .usage,
            (Usage{5, 2, 4}));
  EXPECT_EQ(
      scan(kJsonType, R"({"usage":{"input_tokens":5,"cache_read_input_tokens":3,"output_tokens":2}})").usage,
      (Usage{8, 2, 3}));
  EXPECT_EQ(scan(kJsonType, R"({"usage":{"cache_creation_input_tokens":7,"input_tokens":5,
      "cache_read_input_tokens":3,"output_tokens":2}})")
                .usage,
            (Usage{15, 2, 3}));
  EXPECT_EQ(scan(kJsonType, R"({"usage":{"prompt_tokens":5,"cache_read_input_tokens":3}})").usage,
            (Usage{5, {}, 3}));
  EXPECT_EQ(scan(kJsonType, R"({"us\u0061ge":{"input\u005ftokens":5}})").usage, (Usage{5, {}, {}}));
}

TEST(UsageScanner, OnlyWhatIsAUsageCounts) {
  for (const char* text : {R"({"usage":null})",
                           R"({"usage":[{"prompt_tokens":1}]})",
                           R"([{"usage":{"prompt_tokens":1}}])",
                           R"({"a":{"usage":{"prompt_tokens":1}}})",
                           R"({"message":{"usage":{"prompt_tokens":1}}})",
                           R"({"usage":{"usage":{"prompt_tokens":1}}})",
                           R"({"usage":{"prompt_tokens":"1"}})",
                           R"({"usage":{"prompt_tokens":-1}})",
                           R"({"usage":{"prompt_tokens":1.0}})",
                           R"({"usage":{"prompt_tokens":1e3}})",
                           R"({"usage":{"prompt_tokens":99999999999999999999}})",
                           R"({"usage":{"prompt_tokens":null}})",
                           R"({"usage":{"prompt_tokens":[1]}})",
                           R"({"usage":{"cached_tokens":1}})",
                           R"({"usage":{"a":{"cached_tokens":1}}})",
                           R"({"prompt_tokens":1})",
                           R"("usage")",
                           R"({"usage\n":{"prompt_tokens":1}})",
                           R"({"x":"usage","y":{"prompt_tokens":1}})",
                           R"({"usage":{"x":"prompt_tokens","y":1}})",
                           "",
                           R"({"usage":{"prompt_tokens":1})",
                           R"({"usage":{"prompt_tokens_and_a_name_that_is_very_long":1}})",
                           R"({"\u0175sage":{"prompt_tokens":1}})"}) {
    EXPECT_EQ(scan(kJsonType, text).usage, Usage{}) << text;
    expect_every_split(kJsonType, text);
  }
  EXPECT_EQ(scan(kJsonType, R"({"usage":{"prompt_tokens":18446744073709551615}})").usage,
            (Usage{UINT64_MAX, {}, {}}));
}

TEST(UsageScanner, ReadsAStreamOfChunks) {
  const std::string stream =
      "data: {\"choices\":[{\"delta\":{\"content\":\"data: [DONE]\"}}],\"usage\":null}\n\n"
      ": a comment {\"usage\":{\"prompt_tokens\":1}}\n\n"
      "event: x\ndata:{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n"
      "data: {\"choices\":[],\n"
      "data: \"usage\":{\"prompt_tokens\":10,\"completion_tokens\":4,"
      "\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n"
      "data: [DONE]\n\n";
  EXPECT_EQ(scan(kStreamType, stream), (Scanned{{10, 4, 8}, 3}));
  expect_every_split(kStreamType, stream);
  std::string returns;
  for (const char c : stream) returns += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(scan(kStreamType, returns), (Scanned{{10, 4, 8}, 3}));
  expect_every_split(kStreamType, returns);
  std::string bare;
  for (const char c : stream) bare += c == '\n' ? '\r' : c;
  EXPECT_EQ(scan(kStreamType, bare), (Scanned{{10, 4, 8}, 3}));
  expect_every_split(kStreamType, bare);
}

TEST(UsageScanner, ReadsTheStreamsOfMessagesAndResponses) {
  const std::string_view anthropic =
      "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],"
      "\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":16,\"output_tokens\":1}}}\n\n"
      "event: content_block_delta\ndata: {\"delta\":{\"usage\":{\"input_tokens\":1}}}\n\n"
      "event: message_delta\ndata: {\"usage\":{\"output_tokens\":15}}\n\n"
      "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
  EXPECT_EQ(scan(kStreamType, anthropic), (Scanned{{41, 15, 16}, 4}));
  expect_every_split(kStreamType, anthropic);
  // An engine that knows what it found only at the end says the sum first.
  const std::string_view late =
      "data: {\"message\":{\"usage\":{\"input_tokens\":41,\"output_tokens\":0}}}\n\n"
      "data: {\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":16,\"output_tokens\":15}}\n\n";
  EXPECT_EQ(scan(kStreamType, late), (Scanned{{41, 15, 16}, 2}));
  const std::string_view responses =
      "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n"
      "data: {\"response\":{\"output\":[{\"usage\":{\"input_tokens\":1}}],\"usage\":{\"input_tokens\":7,"
      "\"input_tokens_details\":{\"cached_tokens\":6},\"output_tokens\":2}}}";
  EXPECT_EQ(scan(kStreamType, responses), (Scanned{{7, 2, 6}, 2}));
  expect_every_split(kStreamType, responses);
}

TEST(UsageScanner, AnEventThatIsCutOffChangesNothing) {
  const std::string_view stream =
      "data: {\"usage\":{\"prompt_tokens\":5}}\n\ndata: {\"usage\":{\"prompt_tokens\":66,\"completion";
  EXPECT_EQ(scan(kStreamType, stream).usage, (Usage{5, {}, {}}));
  // Nor does it spoil the next one.
  EXPECT_EQ(scan(kStreamType, "data: {\"a\":\"\n\ndata: {\"usage\":{\"prompt_tokens\":5}}\n\n").usage,
            (Usage{5, {}, {}}));
}

// Random answers, with the words that could mislead in every place, and what should be found in them.
class Answers {
 public:
  explicit Answers(std::uint64_t seed) : random_(seed) {}

  // An answer in JSON; `expected` is changed to what it reports. `in_events`: envelopes count too.
  std::string answer(bool in_events, Usage& expected) {
    std::string out = space() + "{";
    std::string comma;
    for (std::uint64_t n = random_.below(6); n > 0; --n) {
      out += comma + space();
      comma = ",";
      switch (random_.below(in_events ? 5 : 4)) {
        case 0:
        case 1:
          out += quoted(word() + "x") + space() + ":" + value(3);
          break;
        case 2:
          out += quoted("usage") + space() + ":" + space() + usage(expected);
          break;
        case 3:
          out += quoted("usage") + ":" + no_object();
          break;
        default: {
          const bool reports = random_.below(2) == 0;
          out += quoted(random_.below(2) == 0 ? "message" : "response") + ":{" + quoted("a") + ":" + value(2);
          if (reports) out += "," + quoted("usage") + space() + ":" + usage(expected);
          out += space() + "}";
        }
      }
    }
    return out + space() + "}";
  }

  std::size_t below(std::size_t n) { return random_.below(n); }

 private:
  std::string space() {
    constexpr std::string_view kSpaces[] = {"", "", " ", "\t "};
    return std::string(kSpaces[random_.below(4)]);
  }
  std::string word() {
    constexpr std::string_view kWords[] = {
        "usage", "message", "response", "prompt_tokens", "cached_tokens", "output_tokens",
        "{\"",   "\\",      "}",        "\":{\"usage\"", "data:",         "\xc3\xa9"};
    return std::string(kWords[random_.below(std::size(kWords))]);
  }
  // Some characters as escapes.
  std::string quoted(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        out += '\\';
        out += c;
      } else if (c > 0 && random_.below(12) == 0) {
        out += "\\u00";
        out += "0123456789ABCDEF"[c >> 4];
        out += "0123456789abcdef"[c & 15];
      } else {
        out += c;
      }
    }
    return out + '"';
  }
  std::string no_object() {
    switch (random_.below(4)) {
      case 0:
        return "null";
      case 1:
        return quoted(R"({"prompt_tokens":1})");
      case 2:
        return R"([{"prompt_tokens":1}])";
      default:
        return " 17 ";
    }
  }
  std::string value(int depth) {
    switch (random_.below(depth == 0 ? 3 : 5)) {
      case 0:
        return quoted(word() + word());
      case 1:
        return std::to_string(random_.below(1000)) + (random_.below(2) == 0 ? ".5e-3" : "");
      case 2:
        return random_.below(2) == 0 ? "true" : "null";
      case 3: {
        std::string out = "[" + value(depth - 1);
        for (std::uint64_t n = random_.below(3); n > 0; --n) out += space() + "," + value(depth - 1);
        return out + "]";
      }
      default: {
        std::string out = "{" + quoted(word()) + ":" + value(depth - 1);
        for (std::uint64_t n = random_.below(3); n > 0; --n)
          out += "," + space() + quoted(word()) + space() + ":" + value(depth - 1);
        return out + "}";
      }
    }
  }
  std::string usage(Usage& expected) {
    std::string out = "{" + quoted("total") + ":" + value(2);
    const auto number = [&](const char* name, std::optional<std::uint64_t>& field) {
      if (random_.below(2) == 0) return;
      const std::uint64_t n = random_.next() >> random_.below(64);
      field = n;
      out += "," + space() + quoted(name) + space() + ":" + space() + std::to_string(n) + space();
    };
    const bool is_input = random_.below(2) == 0;
    Usage own;
    number(is_input ? "input_tokens" : "prompt_tokens", own.prompt_tokens);
    number("cache_read_input_tokens", own.cached_tokens);
    if (own.prompt_tokens) expected.prompt_tokens = *own.prompt_tokens;
    if (own.prompt_tokens && is_input) *expected.prompt_tokens += own.cached_tokens.value_or(0);
    if (own.cached_tokens) expected.cached_tokens = own.cached_tokens;
    if (random_.below(2) == 0) {
      out += "," + quoted(random_.below(2) == 0 ? "prompt_tokens_details" : "input_tokens_details") + ":{" +
             quoted("b") + ":" + value(1);
      number("cached_tokens", expected.cached_tokens);
      out += "}";
    }
    number(random_.below(2) == 0 ? "completion_tokens" : "output_tokens", expected.completion_tokens);
    return out + "}";
  }

  Random random_;
};

TEST(UsageScanner, FindsTheUsageOfRandomAnswersInAnySplit) {
  Answers answers(1);
  std::size_t with_usage = 0;
  const testing::TimeBox box(0.5);
  for (int round = 0; round < 50 || with_usage < 20 || !box.over(); ++round) {
    Usage expected;
    const std::string json = answers.answer(false, expected);
    ASSERT_EQ(scan(kJsonType, json).usage, expected) << json;
    expect_every_split(kJsonType, json);
    if (expected != Usage{}) ++with_usage;

    Scanned streamed;
    std::string stream;
    for (std::size_t n = answers.below(4); n > 0; --n) {
      stream += "data: " + answers.answer(true, streamed.usage) + "\n\n";
      ++streamed.events;
    }
    ASSERT_EQ(scan(kStreamType, stream), streamed) << stream;
    if (stream.size() < 600) expect_every_split(kStreamType, stream);
  }
}

TEST(UsageScanner, DamagedAnswersReadTheSameInAnySplit) {
  Answers answers(2);
  const testing::TimeBox box(0.3);
  for (int round = 0; round < 20 || !box.over(); ++round) {
    Usage unused;
    std::string text = "data: " + answers.answer(true, unused) + "\n\ndata: [DONE]\n\n";
    for (int n = 0; n < 3; ++n) {
      const std::size_t at = answers.below(text.size());
      constexpr std::string_view kBytes = "\"\\{}[],:\n\r0u ";
      switch (answers.below(3)) {
        case 0:
          text[at] = kBytes[answers.below(kBytes.size())];
          break;
        case 1:
          text.erase(at, answers.below(5));
          if (text.empty()) text = "{";
          break;
        default:
          text.insert(at, 1, kBytes[answers.below(kBytes.size())]);
      }
    }
    expect_every_split(kStreamType, text);
    expect_every_split(kJsonType, std::string_view(text).substr(6));
  }
}

TEST(UsageScanner, EventsThatArePassedOverAreReadAsAnyOther) {
  const std::string stream =
      "data: {\"choices\":[{\"delta\":{\"content\":\"usage\"}}],\"usage\":null}\n\n"
      "data: {\"choices\":[],\"usage\": null}\n\n"
      "data: {\"us\\u0061ge\":{\"prompt_tokens\":7}}\n\n"
      "data: {\"a\":[{}],\ndata: \"usage\":{\"completion_tokens\":3}}\n\n"
      "data: {\"x\":\"\r\ndata: \"}\n\n"
      "data: {\"message\":{\"usage\":null,\"usage\":{\"cache_read_input_tokens\":5}}}\n\n"
      "data: [DONE]\n\n"
      "data: {\"usage\":{\"prompt_tokens\":9}}\n\r\n"
      "data: {}\n";
  const Scanned whole = scan(kStreamType, stream);
  EXPECT_EQ(whole.usage, (Usage{.prompt_tokens = 9, .completion_tokens = 3, .cached_tokens = 5}));
  EXPECT_EQ(whole.events, 8u);
  expect_every_split(kStreamType, stream);
}

TEST(UsageScanner, FindsTheIdOfAnAnswer) {
  const auto id_of = [](std::string_view type, std::string_view text, std::size_t piece) {
    UsageScanner scanner(type);
    for (std::size_t at = 0; at < text.size(); at += piece) scanner.feed(text.substr(at, piece));
    return std::string(scanner.id());
  };
  constexpr std::string_view kStream = "text/event-stream";
  constexpr std::string_view kJsonType = "application/json";
  for (const std::size_t piece : {1, 3, 1000}) {
    EXPECT_EQ(id_of(kJsonType, R"({"output":[{"id":"no"}],"text":"id","id":"resp_1","id":"late")", piece),
              "resp_1");
    EXPECT_EQ(id_of(kStream, "data: {\"id\":\"no\",\"response\":{\"x\":1,\"id\":\"resp_2\"", piece),
              "resp_2");
    EXPECT_EQ(id_of(kJsonType, R"({"id":"resp)", piece), "") << "not whole";
    EXPECT_EQ(id_of(kJsonType, R"({"id":7,"x":{"id":"y"}})", piece), "");
    EXPECT_EQ(id_of(kJsonType, R"({"id":"a\n"})", piece), "");
    EXPECT_EQ(id_of(kJsonType, "{\"id\":\"" + std::string(129, 'x') + "\"}", piece), "");
    EXPECT_EQ(id_of(kJsonType, "{\"id\":\"" + std::string(128, 'x') + "\"}", piece).size(), 128u);
  }
}

}  // namespace
}  // namespace ashlar::service
