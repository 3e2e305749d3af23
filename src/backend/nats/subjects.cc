#include "backend/nats/subjects.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>

#include "ashlar/base/check.h"

namespace ashlar::backend::nats {
namespace {

constexpr std::size_t kMaxName = 128;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

void append(std::string& out, std::uint64_t number) {
  std::array<char, 20> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  out.append(digits.data(), static_cast<std::size_t>(end - digits.data()));
}

std::string_view tier_token(events::TierId tier) {
  constexpr std::array<std::string_view, events::kMaxTiers> kNames = {events::G1::kName,
                                                                      events::G2::kName,
                                                                      events::G3::kName,
                                                                      events::G4::kName,
                                                                      events::Remote::kName,
                                                                      "t5",
                                                                      "t6",
                                                                      "t7"};
  return tier.value() < kNames.size() ? kNames[tier.value()] : "mixed";
}

std::string_view last_token(const events::EventBatch& batch) {
  if (batch.kind == events::BatchKind::kSnapshot) return "snapshot";
  if (batch.events.empty()) return "mixed";
  const events::TierId tier = batch.events.front().tier;
  const bool alike =
      std::ranges::all_of(batch.events, [&](const events::KvEvent& event) { return event.tier == tier; });
  return alike ? tier_token(tier) : "mixed";
}

}  // namespace

Result<void> check_prefix(std::string_view prefix) {
  bool good = !prefix.empty() && prefix.size() <= kMaxName && prefix.front() != '.' && prefix.back() != '.' &&
              prefix.front() != '$' && prefix.find("..") == std::string_view::npos;
  good = good && std::ranges::all_of(prefix, [](char c) { return is_name_character(c) || c == '.'; });
  if (good) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "prefix '%.*s' is not a prefix of subjects: use tokens of letters, digits, - and _, with "
                    "single dots between them, like ashlar.kv",
                    static_cast<int>(std::min(prefix.size(), kMaxName)), prefix.data());
}

Result<void> check_name(std::string_view what, std::string_view name) {
  if (!name.empty() && name.size() <= kMaxName && std::ranges::all_of(name, is_name_character)) return {};
  return make_error(ErrorCode::kInvalidArgument, "%.*s '%.*s' is not a name: use letters, digits, - and _",
                    static_cast<int>(what.size()), what.data(),
                    static_cast<int>(std::min(name.size(), kMaxName)), name.data());
}

void batch_subject(std::string_view prefix, const events::EventBatch& batch, std::string& out) {
  out.assign(prefix);
  out += '.';
  append(out, batch.stream.worker.id.value());
  out += '.';
  append(out, batch.stream.worker.rank);
  out += '.';
  out += last_token(batch);
  ASHLAR_DCHECK(is_subject_of(out, prefix, batch.stream.worker), "listeners refuse a batch under %s",
                out.c_str());
}

std::string batch_filter(std::string_view prefix, const std::optional<events::Worker>& worker) {
  return std::string(prefix) + "." + (worker ? worker_token(*worker) : "*.*") + ".*";
}

bool is_subject_of(std::string_view subject, std::string_view prefix, const events::Worker& worker) {
  if (!subject.starts_with(prefix)) return false;
  subject.remove_prefix(prefix.size());
  const std::string token = "." + worker_token(worker) + ".";
  return subject.starts_with(token) && subject.find('.', token.size()) == std::string_view::npos;
}

std::string request_subject(std::string_view prefix, const events::Worker& worker) {
  return std::string(prefix) + ".snapshot." + worker_token(worker) + ".get";
}

std::string roll_call_subject(std::string_view prefix) {
  return std::string(prefix) + ".snapshot.all.workers.call";
}

void batch_id(const events::EventBatch& batch, std::string& out) {
  out.clear();
  append(out, batch.stream.worker.id.value());
  out += '.';
  append(out, batch.stream.worker.rank);
  out += '.';
  append(out, batch.stream.incarnation);
  out += '.';
  append(out, batch.first);
  if (batch.kind == events::BatchKind::kSnapshot) {
    // Two snapshots of one moment may be split differently.
    out += ".s";
    append(out, static_cast<std::uint64_t>(batch.published_ns));
    out += '.';
    append(out, batch.part);
    out += '.';
    append(out, batch.parts);
  } else {
    out += '-';
    append(out, batch.end());
  }
}

std::string worker_token(const events::Worker& worker) {
  return std::to_string(worker.id.value()) + "." + std::to_string(worker.rank);
}

}  // namespace ashlar::backend::nats
