// Heads, bodies and requests as bytes, without sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "backend/http/answer_reader.h"
#include "backend/http/body_scanner.h"
#include "backend/http/message_head.h"
#include "backend/http/raw_client.h"
#include "backend/http/request_reader.h"

namespace ashlar::backend::http {
namespace {

using State = RequestReader::State;

// The status that a server refuses the text with; 0: a complete request; 1: more is wanted.
unsigned verdict(const std::string& text, const HttpLimits& limits = {}) {
  RequestReader reader({.limits = limits});
  reader.feed(text);
  if (reader.state() == State::kRefused) return reader.refusal();
  return reader.state() == State::kComplete ? 0 : 1;
}
unsigned verdict_of_headers(const std::string& headers) {
  return verdict("POST / HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n");
}

TEST(HttpMessage, RefusesWhatTwoReadersCouldReadDifferently) {
  EXPECT_EQ(verdict_of_headers("X: 1\r\n"), 0u);
  EXPECT_EQ(verdict_of_headers("Content-Length: 0\r\n"), 0u);
  EXPECT_EQ(verdict_of_headers("Content-Length: 0\r\nContent-Length: 0\r\n"), 0u);
  EXPECT_EQ(verdict_of_headers("Content-Length: 0\r\nContent-Length: 1\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Content-Length: 3, 3\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Content-Length: +1\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Content-Length: -1\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Content-Length: 0x1\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Content-Length:\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Content-Length: 99999999999999999999\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 501u);
  EXPECT_EQ(verdict_of_headers("Transfer-Encoding: gzip, chunked\r\n"), 501u);
  EXPECT_EQ(verdict_of_headers("Transfer-Encoding: xchunked\r\n"), 501u);
  EXPECT_EQ(verdict_of_headers("Transfer-Encoding : chunked\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("X : 1\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("X\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers(": 1\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("X: 1\r\n folded\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers(" X: 1\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("X: a\rb\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("X: a\nY: b\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers(std::string("X: a\0b\r\n", 8)), 400u);
  EXPECT_EQ(verdict_of_headers("X: a\x7F\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Host: b\r\n"), 400u);
  EXPECT_EQ(verdict_of_headers("Connection: " + std::string(2000, 'x') + "\r\n"), 400u);
  EXPECT_EQ(verdict("GET / HTTP/1.1\r\n\r\n"), 400u) << "no Host";
  EXPECT_EQ(verdict("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400u);
  EXPECT_EQ(verdict("GET / HTTP/1.1\nHost: a\n\n"), 400u);
  EXPECT_EQ(verdict("GET /\n"), 400u) << "before more is waited for";
}

TEST(HttpMessage, ReadsRequestLines) {
  const std::string end = "\r\nHost: a\r\n\r\n";
  EXPECT_EQ(verdict("GET / HTTP/1.1" + end), 0u);
  EXPECT_EQ(verdict("\r\n\r\nGET / HTTP/1.1" + end), 0u) << "empty lines before it";
  EXPECT_EQ(verdict("GET / HTTP/2.0" + end), 505u);
  EXPECT_EQ(verdict("GET / HTTP/1.2" + end), 505u);
  EXPECT_EQ(verdict("GET / http/1.1" + end), 400u);
  EXPECT_EQ(verdict("GET /" + end), 400u);
  EXPECT_EQ(verdict("GET  HTTP/1.1" + end), 400u);
  EXPECT_EQ(verdict("GET /a b HTTP/1.1" + end), 400u);
  EXPECT_EQ(verdict("GET /\x01 HTTP/1.1" + end), 400u);
  EXPECT_EQ(verdict("G(T / HTTP/1.1" + end), 400u);
  EXPECT_EQ(verdict("GET a HTTP/1.1" + end), 400u);
  EXPECT_EQ(verdict("CONNECT a:1 HTTP/1.1" + end), 501u);
  EXPECT_EQ(verdict("OPTIONS * HTTP/1.1" + end), 0u);
  EXPECT_EQ(verdict(get("/", "Connection: Upgrade\r\nUpgrade: websocket\r\n")), 501u);
  EXPECT_EQ(verdict(get("/", "Connection: Upgrade\r\nUpgrade: h2c\r\n")), 0u) << "an offer";
  EXPECT_EQ(verdict("\x16\x03\x01"), 400u) << "TLS where there is none";
  const HttpLimits limits;
  RequestReader reader({.limits = limits});
  reader.feed("GET http://host:1/path?q HTTP/1.1" + end);
  EXPECT_EQ(reader.request().head.target, "/path?q");
}

TEST(HttpMessage, ReadsAnswers) {
  const auto status = [](const std::string& text) {
    AnswerReader reader(false);
    reader.feed(text);
    return reader.is_invalid() ? 1u : reader.has_head() ? reader.head().status : 0u;
  };
  EXPECT_EQ(status("HTTP/1.1 200 OK\r\n\r\n"), 200u);
  EXPECT_EQ(status("HTTP/1.1 200\r\n\r\n"), 200u);
  EXPECT_EQ(status("HTTP/1.0 200 \r\nX: 1\r\n\r\n"), 200u);
  EXPECT_EQ(status("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\n\r\n"), 404u);
  EXPECT_EQ(status("HTTP/1.1 101 Switching\r\n\r\n"), 1u);
  EXPECT_EQ(status("HTTP/1.1 2000 OK\r\n\r\n"), 1u);
  EXPECT_EQ(status("HTTP/1.1 -20 OK\r\n\r\n"), 1u);
  EXPECT_EQ(status("HTTP/1.1 200 O\x01K\r\n\r\n"), 1u);
  EXPECT_EQ(status("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), 1u);
  EXPECT_EQ(status("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), 1u);
  EXPECT_EQ(status("HTTP/2 200"), 1u);
  EXPECT_EQ(status("HTTP/1.1 200 OK\r\nX: 1"), 0u);
  EXPECT_EQ(status("HTTP/1.1 200 OK\r\n" + std::string(300 << 10, 'x')), 1u);
}

TEST(HttpMessage, FindsTheEndOfChunksInAnyPieces) {
  const std::string text = "5\r\nhello\r\nB ; x=\"y\"\r\n wide world\r\n0\r\nTrailer: 1\r\nOther: 2\r\n\r\n";
  const std::string next = "GET / HTTP/1.1";
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    BodyScanner scanner = BodyScanner::chunked();
    std::string payload;
    std::size_t taken = 0;
    const std::string all = text + next;
    for (std::size_t at = 0; at < all.size() && !scanner.is_done(); at += piece)
      taken += scanner.scan(std::string_view(all).substr(at, piece),
                            [&](std::string_view part) { payload.append(part); });
    ASSERT_TRUE(scanner.is_done());
    ASSERT_EQ(payload, "hello wide world");
    ASSERT_EQ(taken, text.size());
  }
}

TEST(HttpMessage, RefusesBrokenChunks) {
  const auto is_broken = [](const std::string& text) {
    BodyScanner scanner = BodyScanner::chunked();
    scanner.scan(text, [](std::string_view) {});
    return scanner.is_broken();
  };
  EXPECT_TRUE(is_broken("\r\n"));
  EXPECT_TRUE(is_broken("g\r\n"));
  EXPECT_TRUE(is_broken("-1\r\n"));
  EXPECT_TRUE(is_broken("1\n"));
  EXPECT_TRUE(is_broken("1\r\nab"));
  EXPECT_TRUE(is_broken("1\r\na\n"));
  EXPECT_TRUE(is_broken("0\r\n\n"));
  EXPECT_TRUE(is_broken("1;\x01\r\n"));
  EXPECT_TRUE(is_broken("fffffffffffffffff\r\n"));
  EXPECT_TRUE(is_broken("1;" + std::string(5000, 'x')));
  EXPECT_TRUE(is_broken("0\r\n" + std::string(20'000, 'x')));
  EXPECT_FALSE(is_broken("00000000000000000000001\r\na\r\n"));
}

TEST(HttpMessage, KeepsWhatBelongsToTheNextRequest) {
  const HttpLimits limits;
  const std::string text = post("/1", "one") +
                           "POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" +
                           as_chunks("two", 1) + get("/3");
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    RequestReader reader({.limits = limits});
    std::string seen;
    std::string left;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      left += text.substr(at, piece);
      for (;;) {
        left.erase(0, reader.feed(left));
        if (!reader.is_over()) break;
        ASSERT_EQ(reader.state(), State::kComplete);
        seen += std::string(reader.request().head.target) + reader.request().body + ";";
        reader.restart();
      }
    }
    ASSERT_EQ(seen, "/1one;/2two;/3;") << piece;
  }
}

TEST(HttpMessage, KnowsHeadersOfOneHop) {
  MessageHead head;
  const std::string text = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-A\r\nConnection: x-b\r\n\r\n";
  ASSERT_EQ(parse_request_head(text, head), 0u);
  for (const char* name : {"Connection", "keep-alive", "TE", "Trailer", "Transfer-Encoding", "UPGRADE",
                           "Proxy-Authenticate", "proxy-connection", "x-a", "X-B"})
    EXPECT_TRUE(is_hop_by_hop(head, name)) << name;
  for (const char* name : {"Host", "X-C", "Proxy", "Close-", "Content-Length"})
    EXPECT_FALSE(is_hop_by_hop(head, name)) << name;
}

// Whatever comes: a verdict, never more memory than the limits allow.
TEST(HttpMessage, SurvivesAnyBytes) {
  HttpLimits limits;
  limits.head_bytes = 2000;
  limits.body_bytes = 1000;
  const std::string seeds[] = {
      post("/v1/completions", "{\"prompt\":[1,2]}", "X-A: b\r\nConnection: keep-alive\r\n"),
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + as_chunks("some text", 3),
      get("/") + get("/")};
  std::mt19937 random(7);
  int complete = 0;
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = seeds[random() % std::size(seeds)];
    const std::size_t changes = random() % 4;
    for (std::size_t i = 0; i < changes; ++i) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.insert(at, 1, "\r\n :;,0aZ\t"[random() % 10]);
          break;
        case 2:
          text.erase(at, 1 + random() % 5);
          break;
        default:
          text.insert(at, text.substr(at / 2, random() % 30));
          break;
      }
      if (text.empty()) text = " ";
    }
    RequestReader reader({.limits = limits});
    AnswerReader answer(false);
    std::string_view left = text;
    while (!left.empty() && !reader.is_over()) {
      const std::size_t piece = 1 + random() % left.size();
      const std::size_t taken = reader.feed(left.substr(0, piece));
      ASSERT_LE(taken, piece);
      ASSERT_LE(reader.request().body.size(), limits.body_bytes);
      if (taken == 0) break;
      left.remove_prefix(taken);
    }
    answer.feed("HTTP/1.1 " + text);
    complete += reader.state() == State::kComplete ? 1 : 0;
    refused += reader.state() == State::kRefused ? 1 : 0;
  }
  EXPECT_GT(complete, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace ashlar::backend::http
