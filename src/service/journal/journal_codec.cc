#include "service/journal/journal_codec.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace ashlar::service {

namespace {

constexpr std::string_view kJournalEnd = ".journal";

// How many items a list may have: no more than its bytes can hold.
std::size_t get_count(ByteReader& in, std::size_t bytes_each) {
  return std::min<std::size_t>(in.get<std::uint32_t>(), in.left() / bytes_each);
}

void put_weights(ByteWriter& out, const CostWeights& weights) {
  for (const std::int32_t credit : weights.credit) out.put(credit);
  for (const std::int32_t weight :
       {weights.prefill, weights.decode, weights.request, weights.session, weights.temperature})
    out.put(weight);
}

CostWeights get_weights(ByteReader& in) {
  CostWeights weights;
  for (std::int32_t& credit : weights.credit) credit = in.get<std::int32_t>();
  for (std::int32_t* weight :
       {&weights.prefill, &weights.decode, &weights.request, &weights.session, &weights.temperature})
    *weight = in.get<std::int32_t>();
  return weights;
}

void put_candidate(ByteWriter& out, const Candidate& candidate) {
  put_worker(out, candidate.worker);
  out.put(static_cast<std::uint8_t>(candidate.state));
  out.put(static_cast<std::uint8_t>(candidate.exclusion));
  for (const std::uint32_t blocks : candidate.blocks) out.put(blocks);
  out.put(candidate.depth);
  out.put(candidate.device_depth);
  out.put(candidate.predicted);
  out.put(candidate.requests);
  out.put(candidate.prefill_tokens);
  out.put(candidate.decode_blocks);
  for (const std::int64_t cost : {candidate.prefill_cost, candidate.decode_cost, candidate.request_cost,
                                  candidate.session_cost, candidate.cost})
    out.put(cost);
}

constexpr std::size_t kCandidateBytes = 12 + 2 + 4 * events::kStorageTiers + 16 + 16 + 40;

Candidate get_candidate(ByteReader& in) {
  Candidate candidate;
  candidate.worker = get_worker(in);
  candidate.state = static_cast<WorkerState>(in.get<std::uint8_t>());
  candidate.exclusion = static_cast<Exclusion>(in.get<std::uint8_t>());
  for (std::uint32_t& blocks : candidate.blocks) blocks = in.get<std::uint32_t>();
  candidate.depth = in.get<std::uint32_t>();
  candidate.device_depth = in.get<std::uint32_t>();
  candidate.predicted = in.get<std::uint32_t>();
  candidate.requests = in.get<std::uint32_t>();
  candidate.prefill_tokens = in.get<std::uint64_t>();
  candidate.decode_blocks = in.get<std::uint64_t>();
  for (std::int64_t* cost : {&candidate.prefill_cost, &candidate.decode_cost, &candidate.request_cost,
                             &candidate.session_cost, &candidate.cost})
    *cost = in.get<std::int64_t>();
  return candidate;
}

}  // namespace

void put_time(ByteWriter& out, Clock::TimePoint time) {
  out.put(time.time_since_epoch().count());
}
Clock::TimePoint get_time(ByteReader& in) {
  return Clock::TimePoint(Clock::Duration(in.get<Clock::Duration::rep>()));
}

std::vector<std::byte> write_head(const JournalHead& head, const JournalCipher& cipher,
                                  std::uint64_t& check) {
  ByteWriter out;
  // The last byte of the magic is the version too.
  out.put((kJournalMagic << 8 >> 8) | std::uint64_t{'0' + head.version} << 56);
  out.put(head.version);
  out.put(head.run);
  out.put(head.number);
  out.put(head.previous);
  out.put(head.next_decision);
  put_options(out, head.options, head.version);
  check = cipher.check(head.previous, out.bytes());
  out.put(check);
  return std::move(out.bytes());
}

std::string journal_file_name(const std::string& path, std::uint32_t number) {
  if (number == 0) return path;
  const bool has_end = path.ends_with(kJournalEnd);
  char text[16];
  std::snprintf(text, sizeof text, ".%06u", number);
  return path.substr(0, path.size() - (has_end ? kJournalEnd.size() : 0)) + text + std::string(kJournalEnd);
}

std::optional<std::pair<std::string, std::uint32_t>> parse_journal_file_name(std::string_view file_name) {
  if (!file_name.ends_with(kJournalEnd)) return std::nullopt;
  file_name.remove_suffix(kJournalEnd.size());
  const std::size_t dot = file_name.rfind('.');
  std::uint32_t number = 0;
  if (dot != std::string_view::npos && file_name.size() - dot >= 7) {
    const std::string_view digits = file_name.substr(dot + 1);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (read.ec == std::errc() && read.ptr == digits.data() + digits.size() && number > 0)
      return std::pair(std::string(file_name.substr(0, dot)), number);
  }
  return std::pair(std::string(file_name), std::uint32_t{0});
}

void put_text(ByteWriter& out, std::string_view text) {
  out.put(static_cast<std::uint32_t>(text.size()));
  out.put_bytes(std::as_bytes(std::span(text)));
}

std::string get_text(ByteReader& in) {
  const auto bytes = in.get_bytes(in.get<std::uint32_t>());
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<std::uint32_t> read_journal_version(std::span<const std::byte> start) {
  ByteReader in(start);
  const auto magic = in.get<std::uint64_t>();
  const auto version = in.get<std::uint32_t>();
  if (start.size() < kJournalMagicBytes || magic << 8 != kJournalMagic << 8)
    return Error(ErrorCode::kCorruption, "this is no journal of Ashlar");
  if (version < kOldestJournalVersion || version > kJournalVersion || magic >> 56 != '0' + version)
    return Error(ErrorCode::kUnsupported, "a journal of another version");
  return version;
}

void put_options(ByteWriter& out, const RouterOptions& options, std::uint32_t version) {
  out.put(options.prediction_ttl.count());
  out.put(options.fallback_ttl.count());
  out.put(options.seed);
  out.put(static_cast<std::uint64_t>(options.max_sessions));
  if (version < 4) return;
  out.put(static_cast<std::uint64_t>(options.max_predicted_blocks));
  out.put(static_cast<std::uint64_t>(options.max_predictions));
}

RouterOptions get_options(ByteReader& in, std::uint32_t version) {
  RouterOptions options;
  options.prediction_ttl = Clock::Duration(in.get<Clock::Duration::rep>());
  options.fallback_ttl = Clock::Duration(in.get<Clock::Duration::rep>());
  options.seed = in.get<std::uint64_t>();
  options.max_sessions = static_cast<std::size_t>(in.get<std::uint64_t>());
  // Version 3 has no limits.
  options.max_predicted_blocks = options.max_predictions = SIZE_MAX;
  if (version < 4) return options;
  options.max_predicted_blocks = static_cast<std::size_t>(in.get<std::uint64_t>());
  options.max_predictions = static_cast<std::size_t>(in.get<std::uint64_t>());
  return options;
}

void put_spec(ByteWriter& out, const WorkerSpec& spec) {
  out.put(spec.id.value());
  put_text(out, spec.group);
  out.put(spec.ranks);
  out.put(spec.max_running);
  out.put(static_cast<std::uint8_t>(spec.has_events));
  out.put(static_cast<std::uint8_t>(spec.is_asked_about));
  put_text(out, spec.name);
}

WorkerSpec get_spec(ByteReader& in, std::uint32_t version) {
  WorkerSpec spec;
  spec.id = events::WorkerId(in.get<std::uint64_t>());
  spec.group = get_text(in);
  spec.ranks = in.get<std::uint32_t>();
  spec.max_running = in.get<std::uint32_t>();
  spec.has_events = in.get<std::uint8_t>() != 0;
  spec.is_asked_about = in.get<std::uint8_t>() != 0;
  if (version >= 4) spec.name = get_text(in);
  return spec;
}

void put_worker(ByteWriter& out, const events::Worker& worker) {
  out.put(worker.id.value());
  out.put(worker.rank);
}

events::Worker get_worker(ByteReader& in) {
  const auto id = events::WorkerId(in.get<std::uint64_t>());
  return {.id = id, .rank = in.get<std::uint32_t>()};
}

void put_store(ByteWriter& out, const events::BlocksStored& event, const JournalCipher& cipher) {
  put_worker(out, event.worker);
  out.put(static_cast<std::uint8_t>(event.tier));
  out.put(static_cast<std::uint8_t>(event.parent.has_value()));
  out.put(event.parent ? cipher.name(event.parent->value()) : std::uint64_t{0});
  out.put(static_cast<std::uint8_t>(event.start_position.has_value()));
  out.put(event.start_position.value_or(0));
  out.put(static_cast<std::uint32_t>(event.blocks.size()));
  for (const events::StoredBlock& block : event.blocks) {
    out.put(cipher.name(block.name.value()));
    out.put(cipher.block(block.local.value()));
  }
}

void get_store(ByteReader& in, ReadStore& out) {
  out.event.worker = get_worker(in);
  out.event.tier = static_cast<events::StorageTier>(in.get<std::uint8_t>());
  const bool has_parent = in.get<std::uint8_t>() != 0;
  const auto parent = events::BlockName(in.get<std::uint64_t>());
  if (has_parent) out.event.parent = parent;
  const bool has_position = in.get<std::uint8_t>() != 0;
  const auto position = in.get<std::uint32_t>();
  if (has_position) out.event.start_position = position;
  for (auto left = in.get<std::uint32_t>(); left > 0 && in.ok(); --left) {
    const auto name = events::BlockName(in.get<std::uint64_t>());
    out.blocks.push_back({.local = tokens::LocalHash(in.get<std::uint64_t>()), .name = name});
  }
  out.event.blocks = out.blocks;
}

void put_removal(ByteWriter& out, const events::Worker& worker, events::StorageTier tier,
                 std::span<const events::BlockName> names, const JournalCipher& cipher) {
  put_worker(out, worker);
  out.put(static_cast<std::uint8_t>(tier));
  out.put(static_cast<std::uint32_t>(names.size()));
  for (const events::BlockName name : names) out.put(cipher.name(name.value()));
}

void get_removal(ByteReader& in, ReadRemoval& out) {
  out.worker = get_worker(in);
  out.tier = static_cast<events::StorageTier>(in.get<std::uint8_t>());
  for (auto left = in.get<std::uint32_t>(); left > 0 && in.ok(); --left)
    out.names.emplace_back(in.get<std::uint64_t>());
}

void put_request(ByteWriter& out, const RouteRequest& request, std::span<const tokens::LocalHash> locals,
                 const JournalCipher& cipher) {
  put_text(out, request.group);
  out.put(request.prompt_tokens);
  out.put(static_cast<std::uint8_t>(request.is_estimate));
  out.put(static_cast<std::uint8_t>(request.hesitates));
  out.put(request.block_size);
  out.put(cipher.session(request.session));
  out.put(static_cast<std::uint8_t>(request.policy));
  put_weights(out, request.weights);
  out.put(static_cast<std::uint8_t>(request.rank.has_value()));
  out.put(request.rank.value_or(0));
  out.put(static_cast<std::uint32_t>(request.tried.size()));
  for (const events::Worker& worker : request.tried) put_worker(out, worker);
  out.put(static_cast<std::uint32_t>(locals.size()));
  for (const tokens::LocalHash local : locals) out.put(local.value());
}

void get_request(ByteReader& in, ReadRequest& out) {
  out.group = get_text(in);
  RouteRequest& request = out.request;
  request.group = out.group;
  request.prompt_tokens = in.get<std::uint64_t>();
  request.is_estimate = in.get<std::uint8_t>() != 0;
  request.hesitates = in.get<std::uint8_t>() != 0;
  request.block_size = in.get<std::uint32_t>();
  request.session = in.get<std::uint64_t>();
  request.policy = static_cast<Policy>(in.get<std::uint8_t>());
  request.weights = get_weights(in);
  const bool has_rank = in.get<std::uint8_t>() != 0;
  const auto rank = in.get<std::uint32_t>();
  request.rank = has_rank ? std::optional(rank) : std::nullopt;
  out.tried.clear();
  for (std::size_t left = get_count(in, 12); left > 0; --left) out.tried.push_back(get_worker(in));
  request.tried = out.tried;
  out.locals.clear();
  for (std::size_t left = get_count(in, 8); left > 0; --left)
    out.locals.emplace_back(in.get<std::uint64_t>());
  request.locals = out.locals;
}

void put_decision(ByteWriter& out, const Result<Decision>& decision) {
  out.put(static_cast<std::uint8_t>(decision.has_value()));
  if (!decision) {
    out.put(static_cast<std::uint8_t>(decision.error().code()));
    return;
  }
  out.put(decision->id.value());
  put_time(out, decision->time);
  out.put(static_cast<std::uint8_t>(decision->policy));
  out.put(decision->prompt_tokens);
  out.put(static_cast<std::uint8_t>(decision->is_estimate));
  out.put(decision->block_size);
  out.put(static_cast<std::uint32_t>(decision->chosen));
  out.put(decision->cached_tokens);
  out.put(decision->available_tokens);
  out.put(decision->draw);
  for (const std::uint64_t count :
       {decision->changes.stored, decision->changes.removed, decision->changes.cleared})
    out.put(count);
  out.put(static_cast<std::uint32_t>(decision->candidates.size()));
  for (const Candidate& candidate : decision->candidates) put_candidate(out, candidate);
}

Result<Decision> get_decision(ByteReader& in) {
  if (in.get<std::uint8_t>() == 0)
    return Error(static_cast<ErrorCode>(in.get<std::uint8_t>()), "no worker was chosen");
  Decision decision;
  decision.id = DecisionId(in.get<std::uint64_t>());
  decision.time = get_time(in);
  decision.policy = static_cast<Policy>(in.get<std::uint8_t>());
  decision.prompt_tokens = in.get<std::uint64_t>();
  decision.is_estimate = in.get<std::uint8_t>() != 0;
  decision.block_size = in.get<std::uint32_t>();
  decision.chosen = in.get<std::uint32_t>();
  decision.cached_tokens = in.get<std::uint64_t>();
  decision.available_tokens = in.get<std::uint64_t>();
  decision.draw = in.get<std::uint64_t>();
  for (std::uint64_t* count :
       {&decision.changes.stored, &decision.changes.removed, &decision.changes.cleared})
    *count = in.get<std::uint64_t>();
  for (std::size_t left = get_count(in, kCandidateBytes); left > 0; --left)
    decision.candidates.push_back(get_candidate(in));
  if (!in.ok() || decision.chosen >= decision.candidates.size())
    return Error(ErrorCode::kCorruption, "a decision without its candidates");
  return decision;
}

std::string decision_name(std::uint64_t run, DecisionId decision) {
  char text[48];
  std::snprintf(text, sizeof text, "%016llx-%llu", static_cast<unsigned long long>(run),
                static_cast<unsigned long long>(decision.value()));
  return text;
}

Result<DecisionName> parse_decision_name(std::string_view text) {
  const auto bad = [&] {
    return Error(
        ErrorCode::kInvalidArgument,
        "a decision is named by 16 hexadecimal digits, '-' and a number, as in x-ashlar-decision-id");
  };
  DecisionName name;
  if (text.size() < 18 || text[16] != '-') return bad();
  const auto run = std::from_chars(text.data(), text.data() + 16, name.run, 16);
  std::uint64_t number = 0;
  const auto end = std::from_chars(text.data() + 17, text.data() + text.size(), number);
  if (run.ec != std::errc() || run.ptr != text.data() + 16 || end.ec != std::errc() ||
      end.ptr != text.data() + text.size())
    return bad();
  name.decision = DecisionId(number);
  return name;
}

}  // namespace ashlar::service
