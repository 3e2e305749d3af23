// LocalRendezvous: a Rendezvous between the threads of one test, and one that repeats old replies.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/rendezvous.h"

namespace ashlar::testing {

// Records go with their offers; nothing expires.
class LocalRendezvous final : public Rendezvous {
 public:
  Clock::Duration lease() const override { return std::chrono::seconds(1); }
  Result<RendezvousOffer> publish(std::string_view name, std::span<const std::byte> bytes) override {
    ASHLAR_RETURN_IF_ERROR(check_name(name));
    return offer(name, std::make_shared<Entry>(Entry{.bytes = {bytes.begin(), bytes.end()}}),
                 &State::records);
  }
  Result<std::vector<std::byte>> find(std::string_view name, Clock::TimePoint /*until*/) override {
    ASHLAR_RETURN_IF_ERROR(check_name(name));
    const MutexLock lock(state_->mu);
    const auto found = state_->records.find(std::string(name));
    if (found == state_->records.end()) return make_error(ErrorCode::kNotFound, "no record");
    return found->second->bytes;
  }
  Result<std::vector<RendezvousRecord>> list(std::string_view prefix, Clock::TimePoint /*until*/) override {
    ASHLAR_RETURN_IF_ERROR(check_name(prefix));
    const std::string head = std::string(prefix) + ".";
    std::vector<RendezvousRecord> out;
    const MutexLock lock(state_->mu);
    for (const auto& [name, entry] : state_->records)
      if (name.starts_with(head) && name.find('.', head.size()) == std::string::npos)
        out.push_back({name, entry->bytes});
    return out;
  }
  Result<RendezvousOffer> answer(std::string_view name, RendezvousHandler handler) override {
    ASHLAR_RETURN_IF_ERROR(check_name(name));
    return offer(name, std::make_shared<Entry>(Entry{.handler = std::move(handler)}), &State::handlers);
  }
  // The handler runs on the asker's thread, under a lock that dropping the offer takes too.
  Result<std::vector<std::byte>> ask(std::string_view name, std::span<const std::byte> request,
                                     Clock::TimePoint /*until*/) override {
    ASHLAR_RETURN_IF_ERROR(check_name(name));
    const MutexLock lock(state_->mu);
    const auto found = state_->handlers.find(std::string(name));
    if (found == state_->handlers.end()) return make_error(ErrorCode::kNotFound, "nobody answers");
    return found->second->handler(request);
  }

 private:
  struct Entry {
    std::vector<std::byte> bytes = {};
    RendezvousHandler handler = {};
  };
  using Entries = std::map<std::string, std::shared_ptr<Entry>>;
  struct State {
    Mutex mu;
    Entries records ASHLAR_GUARDED_BY(mu);
    Entries handlers ASHLAR_GUARDED_BY(mu);
  };
  RendezvousOffer offer(std::string_view name, const std::shared_ptr<Entry>& entry, Entries State::* where) {
    const MutexLock lock(state_->mu);
    ((*state_).*where)[std::string(name)] = entry;
    return RendezvousOffer(
        std::shared_ptr<void>(entry.get(), [state = state_, entry, where, name = std::string(name)](void*) {
          const MutexLock inside(state->mu);
          const auto found = ((*state).*where).find(name);
          if (found != ((*state).*where).end() && found->second == entry) ((*state).*where).erase(found);
        }));
  }

  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Another place whose replies somebody records, and plays to later askers.
class ReplayingRendezvous final : public Rendezvous {
 public:
  explicit ReplayingRendezvous(std::shared_ptr<Rendezvous> place) : place_(std::move(place)) {}
  void replay() {
    const MutexLock lock(mu_);
    replays_ = true;
  }
  bool has_reply() const {
    const MutexLock lock(mu_);
    return reply_.has_value();
  }
  Clock::Duration lease() const override { return place_->lease(); }
  Result<RendezvousOffer> publish(std::string_view name, std::span<const std::byte> bytes) override {
    return place_->publish(name, bytes);
  }
  Result<std::vector<std::byte>> find(std::string_view name, Clock::TimePoint until) override {
    return place_->find(name, until);
  }
  Result<std::vector<RendezvousRecord>> list(std::string_view prefix, Clock::TimePoint until) override {
    return place_->list(prefix, until);
  }
  Result<RendezvousOffer> answer(std::string_view name, RendezvousHandler handler) override {
    return place_->answer(name, std::move(handler));
  }
  Result<std::vector<std::byte>> ask(std::string_view name, std::span<const std::byte> request,
                                     Clock::TimePoint until) override {
    {
      const MutexLock lock(mu_);
      if (replays_) return *reply_;
    }
    Result<std::vector<std::byte>> said = place_->ask(name, request, until);
    const MutexLock lock(mu_);
    if (said) reply_ = *said;
    return said;
  }

 private:
  const std::shared_ptr<Rendezvous> place_;
  mutable Mutex mu_;
  bool replays_ ASHLAR_GUARDED_BY(mu_) = false;
  std::optional<std::vector<std::byte>> reply_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::testing
