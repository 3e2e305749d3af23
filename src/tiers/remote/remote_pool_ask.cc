// Asks peers which blocks they have.
//
// A round asks several peers at once, and those that must be connected first as soon as they are. The caller
// waits, and other threads ask. Who has no answer yet is passed over when the round can do without:
//
//   the answers cover every block      peers that were asked get `patience` more, because those that have the
//                                      blocks share the work of reading; connections get none
//   they cover some, with a deadline   half of the time is left for reading
//   somebody has answered              peers that owe an answer of an earlier round, and addresses whose last
//                                      attempt failed, are not waited for
//
// A peer that was passed over may answer late: then it owes nothing (AnswerWatch).
#include <algorithm>
#include <deque>
#include <set>
#include <thread>
#include <utility>

#include "ashlar/base/check.h"
#include "base/start_thread.h"
#include "tiers/remote/remote_pool.h"

namespace ashlar::tiers {

using events::Remote;
using tokens::SequenceHash;
using transfer::RemotePeer;

namespace {

// Asked for at a time: a prompt of a million tokens.
constexpr std::size_t kMostHashes = FindRequest::kMaxHashes;
// Threads that wait for peers: so many, and as many again whenever all of them have waited for `patience`.
constexpr std::size_t kThreads = 16;
constexpr std::size_t kMostThreads = 256;

}  // namespace

// Shared with attempts to connect, which may end after the round.
struct RemotePool::Round {
  enum class Attempt : std::uint8_t { kOver, kTrying, kDoubtful };
  struct Heard {
    std::shared_ptr<Source> source;
    FindAnswer answer;
  };
  // Of a block: what peers said of it, and who has it.
  struct Holding {
    TierRecord record;
    Sources sources;
  };

  Round(const RemotePool& its, std::span<const SequenceHash> wanted, const Limits& its_limits)
      : pool(its), hashes(wanted), limits{its_limits.deadline, passed_over.get_token()} {}

  // Asks all that can be asked, and waits until it is over. ask(peer) runs on several threads.
  template <class Ask>
  void run(Ask&& ask) ASHLAR_EXCLUDES(mu);
  void did_not_answer() ASHLAR_EXCLUDES(mu);
  void heard_from(Heard one) ASHLAR_EXCLUDES(mu);
  void add(const std::shared_ptr<RemotePeer>& peer) ASHLAR_REQUIRES(mu) {
    if (!met.insert(peer).second) return;
    (pool.answers_.owes(peer->identity()) ? ready.doubtful : ready.sound).push_back(peer);
  }
  // The caller has left.
  void end() ASHLAR_EXCLUDES(mu);
  Holding holding(std::size_t i) const ASHLAR_REQUIRES(mu);

  const RemotePool& pool;
  const std::span<const SequenceHash> hashes;  // while the round lasts
  std::stop_source passed_over;                // ends the questions that are open
  const Limits limits;                         // of a question
  Mutex mu;                                    // before the pool's
  CondVar changed;
  std::set<std::shared_ptr<RemotePeer>> met ASHLAR_GUARDED_BY(mu);
  struct {
    std::deque<std::shared_ptr<RemotePeer>> sound;
    std::deque<std::shared_ptr<RemotePeer>> doubtful;  // they owe answers
    bool empty() const { return sound.empty() && doubtful.empty(); }
  } ready ASHLAR_GUARDED_BY(mu);
  std::vector<Attempt> attempts ASHLAR_GUARDED_BY(mu);  // by address
  struct {
    std::size_t sound = 0;
    std::size_t doubtful = 0;
    std::size_t all() const { return sound + doubtful; }
  } asking ASHLAR_GUARDED_BY(mu);
  std::vector<Heard> heard ASHLAR_GUARDED_BY(mu);
  std::size_t covered ASHLAR_GUARDED_BY(mu) = 0;                     // leading blocks that those heard have
  std::optional<Clock::TimePoint> covered_at ASHLAR_GUARDED_BY(mu);  // all of them
  bool silent ASHLAR_GUARDED_BY(mu) = false;  // a peer did not answer, or cannot be reached
  bool over ASHLAR_GUARDED_BY(mu) = false;

 private:
  // The span of a round.
  struct Times {
    Clock::TimePoint start;
    Clock::TimePoint half;      // of the time that the caller has; never, without a deadline
    Clock::TimePoint deadline;  // never, without one
  };
  static constexpr Clock::TimePoint kNever = Clock::TimePoint::max();
  Times times() const;
  // Until when the round waits for peers, as far as is known by now.
  Clock::TimePoint ends(const Times& its) const ASHLAR_REQUIRES(mu);
  template <class Ask>
  void work(Ask& ask) ASHLAR_EXCLUDES(mu);
  // Asks the peer without the lock.
  template <class Ask>
  void ask_one(Ask& ask) ASHLAR_REQUIRES(mu);
};

RemotePool::Round::Times RemotePool::Round::times() const {
  const Clock::TimePoint now = Clock::real().now();
  if (!limits.deadline) return {now, kNever, kNever};
  const Clock::Duration left =
      std::min<Clock::Duration>(*limits.deadline - pool.clock_.now(), std::chrono::hours(24 * 365));
  return {now, now + left / 2, now + left};
}

Clock::TimePoint RemotePool::Round::ends(const Times& its) const {
  constexpr Clock::TimePoint kNow = Clock::TimePoint::min();
  if (over) return kNow;
  const bool connecting = std::ranges::find(attempts, Attempt::kTrying) != attempts.end();
  const bool sound = !ready.sound.empty() || asking.sound != 0;
  if (covered == hashes.size())
    return sound ? std::min(its.deadline, *covered_at + pool.options_.patience) : kNow;
  const bool doubtful = !ready.doubtful.empty() || asking.doubtful != 0 ||
                        std::ranges::find(attempts, Attempt::kDoubtful) != attempts.end();
  if (!sound && !connecting && (!doubtful || !heard.empty())) return kNow;
  Clock::TimePoint end = covered != 0 ? its.half : its.deadline;
  // Questions end by themselves.
  if (asking.all() == 0 && ready.empty()) end = std::min(end, its.start + pool.options_.call_limit);
  return end;
}

template <class Ask>
void RemotePool::Round::ask_one(Ask& ask) {
  const bool doubtful = ready.sound.empty();
  auto& from = doubtful ? ready.doubtful : ready.sound;
  const std::shared_ptr<RemotePeer> peer = std::move(from.front());
  from.pop_front();
  std::size_t& count = doubtful ? asking.doubtful : asking.sound;
  ++count;
  mu.unlock();
  ask(peer);
  mu.lock();
  --count;
  changed.notify_all();
}

template <class Ask>
void RemotePool::Round::work(Ask& ask) {
  const MutexLock lock(mu);
  for (;;) {
    while (!over && ready.empty()) changed.wait(mu);
    if (over) return;
    ask_one(ask);
  }
}

template <class Ask>
void RemotePool::Round::run(Ask&& ask) {
  const Times its = times();
  std::vector<std::thread> threads;
  std::size_t most = kThreads;
  Clock::TimePoint stuck = kNever;  // since when there are more peers than threads
  {
    const MutexLock lock(mu);
    for (;;) {
      const Clock::TimePoint now = Clock::real().now();
      Clock::TimePoint until = ends(its);
      if (now >= until) break;
      const bool pending = std::ranges::any_of(attempts, [](Attempt one) { return one != Attempt::kOver; });
      const std::size_t waiting = ready.sound.size() + ready.doubtful.size();
      // Alone, it is asked without a thread: there is nobody to turn to meanwhile.
      if (threads.empty() && waiting == 1 && !pending) {
        ask_one(ask);
        continue;
      }
      while (threads.size() < std::min(most, asking.all() + waiting)) {
        std::thread thread;
        if (!start_thread(&thread, [this, &ask] { work(ask); })) break;
        threads.push_back(std::move(thread));
      }
      if (threads.empty() && waiting != 0) {  // none can be started
        ask_one(ask);
        continue;
      }
      if (threads.size() == most && asking.all() + waiting > most && most < kMostThreads) {
        if (stuck == kNever) stuck = now;
        if (now >= stuck + pool.options_.patience) {
          most += kThreads;
          stuck = kNever;
          continue;
        }
        until = std::min(until, stuck + pool.options_.patience);
      } else {
        stuck = kNever;
      }
      if (until == kNever) {
        changed.wait(mu);
      } else {
        Clock::real().wait_until(changed, mu, until);
      }
    }
    over = true;  // attempts that end later have nothing to add
    changed.notify_all();
  }
  passed_over.request_stop();
  for (std::thread& thread : threads) thread.join();
}

void RemotePool::Round::did_not_answer() {
  const MutexLock lock(mu);
  silent = true;
}

void RemotePool::Round::end() {
  {
    const MutexLock lock(mu);
    over = true;
    changed.notify_all();
  }
  passed_over.request_stop();
}

// Those that agree in the text with the first and with each other; where peers disagree, the first such group
// that has all of the block.
RemotePool::Round::Holding RemotePool::Round::holding(std::size_t i) const {
  std::vector<const Heard*> left;
  for (const Heard& one : heard)
    if (one.answer.blocks[i].miss == Miss::kNone) left.push_back(&one);
  Holding out;
  std::vector<bool> placed(left.size());
  for (std::size_t first = 0; first < left.size(); ++first) {
    if (placed[first]) continue;
    Holding some;
    some.record = left[first]->answer.blocks[i].record;
    for (std::size_t k = 0; k < left.size(); ++k) {
      const BlockText text = left[k]->answer.blocks[i].record.text();
      if (!some.record.text().agrees_with(text)) continue;
      some.record.learn_text(text);
      some.sources.push_back(left[k]->source);
      placed[k] = true;
    }
    if (some.sources.size() == left.size() || pool.recipe(some.sources)) return some;
    if (out.sources.empty()) out = std::move(some);
  }
  return out;
}

void RemotePool::Round::heard_from(Heard one) {
  const MutexLock lock(mu);
  heard.push_back(std::move(one));
  while (covered < hashes.size() && pool.recipe(holding(covered).sources)) ++covered;
  if (covered == hashes.size() && !covered_at) covered_at = Clock::real().now();
  changed.notify_all();
}

// The rounds of one probe.
struct RemotePool::Asked {
  std::span<const SequenceHash> hashes;
  const Limits& limits;
  const BlockLineage& first;
  Miss* why;
  std::set<std::shared_ptr<RemotePeer>> peers = {};  // that were asked
  std::size_t found = 0;                             // in the last round
  bool answered = false;                             // somebody has, in any round
};

bool RemotePool::probes() const {
  if (options_.directory != nullptr) return true;
  if (!options_.ask_peers) return false;
  if (finder_ != nullptr) return true;
  return !options_.peers.empty() || !agent_->peers().empty();
}

std::size_t RemotePool::probe(const Question& question, const Limits& limits, Miss* why) {
  const RemoteQuery& whole = question.whole;
  ASHLAR_DCHECK(whole.first <= whole.hashes.size(), "block %zu is asked for, of %zu", whole.first,
                whole.hashes.size());
  std::span<const SequenceHash> hashes = whole.hashes.subspan(whole.first);
  hashes = hashes.first(std::min(hashes.size(), kMostHashes));
  Asked asked{.hashes = hashes, .limits = limits, .first = question.first, .why = why};
  ask(question.sources, {}, asked);
  if (asked.found != 0 || question.only_sources) return asked.found;
  if (options_.directory != nullptr) {
    ask(options_.directory->find(whole), {}, asked);
    if (asked.found != 0) return asked.found;
  }
  if (!options_.ask_peers) return 0;
  std::uint64_t seen = finder_ == nullptr ? 0 : finder_->met();
  ask(options_.peers, agent_->peers(), asked);
  std::size_t found = asked.found;
  while (found < hashes.size() && finder_ != nullptr &&
         finder_->look(call_limits(limits), seen, asked.answered)) {
    // All of them: parts of a block may be with peers that were asked before and with new ones.
    asked.peers.clear();
    ask(options_.peers, agent_->peers(), asked);
    found = std::max(found, asked.found);
  }
  return found;
}

void RemotePool::ask(std::span<const std::string> addresses,
                     std::span<const std::shared_ptr<RemotePeer>> peers, Asked& asked) {
  asked.found = 0;
  if (asked.hashes.empty() || (addresses.empty() && peers.empty())) return;
  struct Asking {
    RemotePool& pool;
    std::uint64_t since = 0;
    explicit Asking(RemotePool& its) : pool(its) {
      const MutexLock lock(pool.mu_);
      since = pool.withdrawals_;
      pool.asking_.insert(since);
    }
    ~Asking() {
      const MutexLock lock(pool.mu_);
      pool.asking_.erase(pool.asking_.find(since));
      const std::uint64_t oldest = pool.asking_.empty() ? pool.withdrawals_ : *pool.asking_.begin();
      std::erase_if(pool.withdrawn_, [oldest](const auto& one) { return one.second <= oldest; });
    }
  } const asking(*this);

  const auto round = std::make_shared<Round>(*this, asked.hashes, asked.limits);
  const std::stop_callback on_stop(asked.limits.stop, [round] { round->end(); });
  {
    const MutexLock lock(round->mu);
    round->met = asked.peers;
    round->attempts.assign(addresses.size(), Round::Attempt::kTrying);
    for (const std::shared_ptr<RemotePeer>& peer : peers) round->add(peer);
  }
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const PeerReacher::Start start =
        reacher_.reach(addresses[i], [round, i](const PeerReacher::Outcome& outcome) {
          const MutexLock lock(round->mu);
          round->attempts[i] = Round::Attempt::kOver;
          if (outcome) {
            round->add(*outcome);
          } else if (outcome.error().code() != ErrorCode::kAlreadyExists) {  // this agent itself
            round->silent = true;
          }
          round->changed.notify_all();
        });
    const MutexLock lock(round->mu);
    if (start == PeerReacher::Start::kDoubtful && round->attempts[i] != Round::Attempt::kOver)
      round->attempts[i] = Round::Attempt::kDoubtful;
  }
  const FindRequest request{.hashes = {asked.hashes.begin(), asked.hashes.end()}};
  const std::vector<std::byte> bytes = request.encode();
  round->run([&](const std::shared_ptr<RemotePeer>& peer) { ask_peer(*round, peer, bytes); });

  std::vector<TierRecord> records;
  std::vector<Sources> has;
  {
    const MutexLock lock(round->mu);
    asked.peers = round->met;
    for (const auto* const left : {&round->ready.sound, &round->ready.doubtful})
      for (const std::shared_ptr<RemotePeer>& late : *left) asked.peers.erase(late);
    asked.answered = asked.answered || !round->heard.empty();
    // Not in the order in which they answered: who is named as the place of a block does not depend on it.
    std::ranges::sort(round->heard, {}, [](const Round::Heard& one) { return one.source->number; });
    for (std::size_t i = 0; i < asked.hashes.size(); ++i) {
      auto [record, sources] = round->holding(i);
      if (!recipe(sources)) break;
      if (record.parent == SequenceHash() && asked.hashes[i].position() != 0)
        record.parent = i != 0 ? asked.hashes[i - 1] : asked.first.parent.value_or(SequenceHash());
      if (!record.root) record.root = asked.first.root;
      if (!record.local && i < asked.first.locals.size()) record.local = asked.first.locals[i];
      records.push_back(record);
      has.push_back(std::move(sources));
    }
    const bool unreached = std::ranges::any_of(
        round->attempts, [](Round::Attempt attempt) { return attempt != Round::Attempt::kOver; });
    if (records.size() < asked.hashes.size() && (round->silent || unreached) && asked.why != nullptr)
      *asked.why = Miss::kUnreachable;
  }
  asked.found = learn(std::move(records), has, asking.since);
}

void RemotePool::ask_peer(Round& round, const std::shared_ptr<RemotePeer>& peer,
                          std::span<const std::byte> request) {
  bool silent = false;
  const std::shared_ptr<Source> source = meet(peer, round.limits, &silent);
  if (source == nullptr) {
    if (silent) round.did_not_answer();
    return;
  }
  if (rests(*source) || !source->peer->alive()) return round.did_not_answer();
  const AnswerWatch::Question question = answers_.ask(peer->identity());
  const auto said = peer->call(static_cast<std::uint16_t>(RemoteMethod::kFind), request,
                               call_limits(round.limits), question.late());
  if (said) {
    question.answered();
    if (Result<FindAnswer> answer = FindAnswer::decode(*said, round.hashes)) {
      source->load = answer->load;
      return round.heard_from({source, *std::move(answer)});
    }
  }
  round.did_not_answer();
  if (!said && is_its_fault(said.error(), question)) source->rests_until = clock_.now() + options_.rest;
}

// Makes blocks known that peers have. Returns how many leading ones are.
std::size_t RemotePool::learn(std::vector<TierRecord> records, const std::vector<Sources>& has,
                              std::uint64_t asked) {
  std::vector<std::size_t> fresh;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::optional<block::Hold> held = hold(records[i].hash);
    if (!held) {
      fresh.push_back(i);
      continue;
    }
    const MutexLock lock(mu_);
    Known& known = known_[held->block_id().value()];
    const BlockText text = records[i].text();
    if (!known.text.agrees_with(text)) continue;  // they have another block of this name
    known.text.learn(text);
    for (const auto& source : has[i])
      if (std::ranges::find(known.holders, source->number) == known.holders.end())
        known.holders.push_back(source->number);
  }
  // A tier smaller than the prefix knows its beginning.
  if (fresh.size() > manager_.available_blocks()) fresh.resize(manager_.available_blocks());
  if (!fresh.empty()) {
    Result<ReservedBlocks<Remote>> taken = ReservedBlocks<Remote>::take(manager_, fresh.size());
    if (taken) {
      std::vector<TierRecord> known;
      for (std::size_t k = 0; k < fresh.size(); ++k) {
        known.push_back(records[fresh[k]]);
        known.back().checksum.reset();
        const MutexLock lock(mu_);
        Known& one = known_[taken->ids()[k].value()];
        one = {.holders = {}, .text = known.back().text()};
        for (const auto& source : has[fresh[k]]) one.holders.push_back(source->number);
      }
      taken->publish(manager_, records_, known, block::KvReady::asserted_by_caller(),
                     [&](std::size_t k) { return EventLocation::peer(has[fresh[k]][0]->number); });
    }
  }
  // A peer that died or withdrew meanwhile was not among the holders yet.
  std::vector<std::pair<std::size_t, std::shared_ptr<Source>>> gone;
  {
    const MutexLock lock(mu_);
    for (std::size_t i = 0; i < records.size() && !withdrawn_.empty(); ++i)
      for (const auto& source : has[i])
        if (const auto found = withdrawn_.find({source->number, records[i].hash});
            found != withdrawn_.end() && found->second > asked)
          gone.emplace_back(i, source);
  }
  for (const auto& [i, source] : gone) not_there(records[i].hash, *source);
  std::size_t count = 0;
  bool leading = true;
  for (const TierRecord& record : records) {
    const bool is_there = recipe(holders(record.hash)).has_value();
    if (!is_there) static_cast<void>(remove(record.hash));
    leading = leading && is_there;
    if (leading) ++count;
  }
  return count;
}

}  // namespace ashlar::tiers
