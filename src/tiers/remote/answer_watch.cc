#include "tiers/remote/answer_watch.h"

#include <utility>

namespace ashlar::tiers {

void AnswerWatch::Question::answered() const {
  const MutexLock lock(state_->mu);
  *answered_ = true;
  state_->silent_since.erase(peer_);
}

transfer::LateAnswer AnswerWatch::Question::late(transfer::LateAnswer next) const {
  return [question = *this, next = std::move(next)](std::span<const std::byte> answer) {
    question.answered();
    if (next) next(answer);
  };
}

AnswerWatch::Question AnswerWatch::ask(const transfer::AgentIdentity& peer) const {
  Question question;
  question.state_ = state_;
  question.peer_ = peer;
  question.sent_ = clock_.now();
  return question;
}

bool AnswerWatch::left(const Question& question) {
  const Clock::TimePoint now = clock_.now();
  const MutexLock lock(state_->mu);
  if (*question.answered_) return false;  // between the end of the call and this one
  auto& silent_since = state_->silent_since;
  if (silent_since.size() >= kMostPeers) silent_since.erase(silent_since.begin());
  Clock::TimePoint& since = silent_since.try_emplace(question.peer_, question.sent_).first->second;
  if (now - since < limit_) return false;
  since = now;
  return true;
}

bool AnswerWatch::owes(const transfer::AgentIdentity& peer) const {
  const MutexLock lock(state_->mu);
  return state_->silent_since.contains(peer);
}

void AnswerWatch::forget(const transfer::AgentIdentity& peer) {
  const MutexLock lock(state_->mu);
  state_->silent_since.erase(peer);
}

}  // namespace ashlar::tiers
