// What every Rendezvous does. `here` and `there` are two clients of one place.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/rendezvous.h"

namespace ashlar::testing {

inline std::vector<std::byte> record_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
inline Clock::TimePoint soon() {
  return Clock::real().now() + std::chrono::seconds(60);
}

inline void expect_records_come_and_go(Rendezvous& here, Rendezvous& there) {
  EXPECT_GT(here.lease(), Clock::Duration(0));
  EXPECT_EQ(there.find("group.a", soon()).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(there.list("group", soon()).value(), std::vector<RendezvousRecord>());
  std::optional<RendezvousOffer> a = here.publish("group.a", record_of("one")).value();
  const RendezvousOffer b = here.publish("group.b", record_of("two")).value();
  const RendezvousOffer deeper = here.publish("group.b.c", record_of("deeper")).value();
  const RendezvousOffer other = here.publish("groups.b", record_of("of another group")).value();
  EXPECT_EQ(there.find("group.a", soon()).value(), record_of("one"));
  EXPECT_EQ(there.list("group", soon()).value(),
            (std::vector<RendezvousRecord>{{"group.a", record_of("one")}, {"group.b", record_of("two")}}));
  // Another process takes the name; the end of the first record does not take it away.
  std::optional<RendezvousOffer> again = there.publish("group.a", record_of("three")).value();
  EXPECT_EQ(here.find("group.a", soon()).value(), record_of("three"));
  a.reset();
  EXPECT_EQ(here.find("group.a", soon()).value(), record_of("three"));
  again.reset();
  EXPECT_EQ(here.find("group.a", soon()).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(here.list("group", soon()).value(),
            (std::vector<RendezvousRecord>{{"group.b", record_of("two")}}));
}

inline void expect_requests_are_answered(Rendezvous& here, Rendezvous& there) {
  EXPECT_EQ(there.ask("group.a", record_of("?"), soon()).error().code(), ErrorCode::kNotFound);
  std::optional<RendezvousOffer> serving =
      here.answer("group.a",
                  [](std::span<const std::byte> request) -> Result<std::vector<std::byte>> {
                    if (request.empty()) return make_error(ErrorCode::kNotReady, "nothing was asked");
                    return std::vector<std::byte>(request.rbegin(), request.rend());
                  })
          .value();
  EXPECT_EQ(there.ask("group.a", record_of("abc"), soon()).value(), record_of("cba"));
  EXPECT_EQ(here.ask("group.a", record_of("here"), soon()).value(), record_of("ereh"));
  const auto refused = there.ask("group.a", {}, soon());
  EXPECT_EQ(refused.error().code(), ErrorCode::kNotReady);
  EXPECT_EQ(refused.error().message(), "nothing was asked");
  serving.reset();
  EXPECT_EQ(there.ask("group.a", record_of("?"), soon()).error().code(), ErrorCode::kNotFound);
}

inline void expect_bad_names_are_refused(Rendezvous& place) {
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a..b"), std::string(".a"), std::string("a."),
        std::string("*"), std::string("a.>"), std::string(201, 'x'), std::string("a\nb")}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(place.publish(name, {}).error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(place.find(name, soon()).error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(place.list(name, soon()).error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(place.ask(name, {}, soon()).error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(place.answer(name, {}).error().code(), ErrorCode::kInvalidArgument);
  }
}

}  // namespace ashlar::testing
