// Questions about prefixes in the forms of two indexers of the field, so that their clients can ask here.
// Both forms are told apart by the names of their fields: model_name, or model and modelname.
#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/events/router_event_json.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "events/json_reader.h"
#include "service/gateway/api.h"
#include "service/gateway/json_text.h"
#include "service/gateway/snapshot.h"
#include "service/request/request_view.h"

namespace ashlar::service {

namespace {

using events::JsonReader;

Reply error_reply(unsigned status, std::string_view message) {
  JsonText out;
  out.object([&] { out.field("error", message); });
  return json_reply(status, out.take());
}

Reply error_reply(const Error& error) {
  unsigned status = 400;
  if (error.code() == ErrorCode::kNotFound) status = 404;
  if (error.code() == ErrorCode::kAlreadyExists) status = 409;
  if (error.code() == ErrorCode::kUnsupported) status = 501;
  return error_reply(status, error.message());
}

// Everything that any of these requests may say.
struct IndexerRequest {
  std::string model;
  bool has_other_form = false;  // model or modelname in place of model_name
  std::string routing_group;
  std::string tenant;
  std::string lora;
  std::string salt;
  std::string model_salt;
  std::string endpoint;
  std::string replay;
  std::string instance;  // a number, or any text
  std::uint64_t block_size = 0;
  std::optional<std::uint64_t> rank;
  std::optional<std::vector<tokens::Token>> tokens;
  std::optional<std::vector<tokens::LocalHash>> hashes;
};

bool read_scalar(JsonReader& in, std::string& out) {
  if (in.take_null()) return true;
  if (in.peek() == JsonReader::Type::kText) return in.read_text(out, "a text");
  std::uint64_t number = 0;
  if (!in.read_unsigned(number, UINT64_MAX, "a text or a number")) return false;
  out = std::to_string(number);
  return true;
}

bool read_tokens(JsonReader& in, std::vector<tokens::Token>& out) {
  bool more = false;
  if (!in.begin_array("a list of token ids")) return false;
  while (in.next_item(more) && more) {
    std::uint64_t token = 0;
    if (!in.read_unsigned(token, UINT32_MAX, "a token id")) return false;
    if (out.size() == kMostTokenIds) return in.fail("more tokens than any prompt has");
    out.emplace_back(static_cast<std::uint32_t>(token));
  }
  return in.fault() == nullptr;
}

bool read_hashes(JsonReader& in, std::vector<tokens::LocalHash>& out) {
  bool more = false;
  if (!in.begin_array("a list of hashes")) return false;
  while (in.next_item(more) && more) {
    std::uint64_t hash = 0;
    if (!in.read_bits(hash, "a 64-bit hash")) return false;
    if (out.size() == kMostPromptBlocks) return in.fail("more blocks than any prompt has");
    out.emplace_back(hash);
  }
  return in.fault() == nullptr;
}

bool read_field(JsonReader& in, const std::string& key, IndexerRequest& request) {
  if (key == "model_name") return in.read_text(request.model, "model_name");
  if (key == "model" || key == "modelname") {
    request.has_other_form = true;
    return in.read_text(request.model, "a model");
  }
  if (key == "routing_group") return read_scalar(in, request.routing_group);
  if (key == "tenant_id") return read_scalar(in, request.tenant);
  if (key == "lora_name") return read_scalar(in, request.lora);
  if (key == "cache_salt") return read_scalar(in, request.salt);
  if (key == "additional_salt" || key == "additionalsalt") return read_scalar(in, request.model_salt);
  if (key == "endpoint") return in.read_text(request.endpoint, "endpoint");
  if (key == "replay_endpoint") return read_scalar(in, request.replay);
  if (key == "instance_id") return read_scalar(in, request.instance);
  if (key == "block_size") return in.read_unsigned(request.block_size, 65'536, "block_size");
  if (key == "dp_rank") {
    if (in.take_null()) return true;
    return in.read_unsigned(request.rank.emplace(0), 1023, "dp_rank");
  }
  if (key == "token_ids") return read_tokens(in, request.tokens.emplace());
  if (key == "block_hashes" || key == "block_hash") return read_hashes(in, request.hashes.emplace());
  return in.skip();
}

Result<IndexerRequest> read_indexer_request(std::string_view body) {
  JsonReader in(body);
  IndexerRequest request;
  std::string key;
  bool more = false;
  if (in.begin_object("an object"))
    while (in.next_key(key, more) && more)
      if (!read_field(in, key, request)) break;
  if (in.fault() == nullptr && !in.at_end()) in.fail("something follows the object");
  if (in.fault() != nullptr)
    return make_error(ErrorCode::kInvalidArgument, "the body cannot be read: %s at byte %zu", in.fault(),
                      in.fault_offset());
  if (request.model.empty())
    return Error(ErrorCode::kInvalidArgument, "the body names no model (model_name)");
  return request;
}

// The number of an instance: its own, or one made of its name.
std::uint64_t instance_number(const std::string& instance) {
  std::uint64_t number = 0;
  const char* const end = instance.data() + instance.size();
  if (const auto read = std::from_chars(instance.data(), end, number);
      read.ec == std::errc() && read.ptr == end)
    return number;
  number = 0xCBF2'9CE4'8422'2325u;
  for (const char c : instance) number = (number ^ static_cast<unsigned char>(c)) * 0x100'0000'01B3u;
  return number;
}

// As indexers of the field tell it, the better ones first.
enum class ListenerStatus : std::uint8_t { kPaused, kActive, kPending, kFailed };

ListenerStatus listener_status(const RankStatus& rank) {
  if (rank.endpoint.empty()) return ListenerStatus::kPaused;
  if (rank.follower.state == WorkerState::kExact) return ListenerStatus::kActive;
  const StateReason why = rank.follower.why;
  // Nothing of it is known until somebody does something about it.
  const bool is_failed = why == StateReason::kUnreachable || why == StateReason::kBlockSize;
  return is_failed ? ListenerStatus::kFailed : ListenerStatus::kPending;
}

std::string_view to_text(ListenerStatus status) {
  switch (status) {
    case ListenerStatus::kPaused:
      return "paused";
    case ListenerStatus::kActive:
      return "active";
    case ListenerStatus::kPending:
      return "pending";
    case ListenerStatus::kFailed:
      return "failed";
  }
  return "unknown";
}

struct InstanceScore {
  std::uint64_t longest = 0;
  std::uint64_t device = 0;
  std::uint64_t host = 0;
  std::uint64_t disk = 0;
  std::map<std::uint32_t, std::uint64_t> ranks;  // tokens in the device tier
};

std::map<std::uint64_t, InstanceScore> scores_of(const std::vector<Candidate>& candidates,
                                                 std::uint64_t block_size) {
  std::map<std::uint64_t, InstanceScore> scores;
  for (const Candidate& candidate : candidates) {
    if (candidate.depth == 0) continue;
    InstanceScore& score = scores[candidate.worker.id.value()];
    const std::uint64_t host = std::max<std::uint64_t>(
        candidate.device_depth,
        std::uint64_t{candidate.blocks[static_cast<std::size_t>(events::StorageTier::kDevice)]} +
            candidate.blocks[static_cast<std::size_t>(events::StorageTier::kHost)]);
    score.longest = std::max(score.longest, candidate.depth * block_size);
    score.device = std::max(score.device, candidate.device_depth * block_size);
    score.host = std::max(score.host, host * block_size);
    score.disk = std::max(score.disk, candidate.depth * block_size);
    score.ranks[candidate.worker.rank] = candidate.device_depth * block_size;
  }
  return scores;
}

void write_ranks(JsonText& out, const InstanceScore& score) {
  out.object([&] {
    for (const auto& [rank, tokens] : score.ranks) out.field(std::to_string(rank), tokens);
  });
}

std::string scores_json(const std::vector<Candidate>& candidates, std::uint64_t block_size) {
  const auto scores = scores_of(candidates, block_size);
  std::vector<std::uint64_t> frequencies;
  for (const Candidate& candidate : candidates) {
    if (candidate.device_depth > frequencies.size()) frequencies.resize(candidate.device_depth);
    for (std::uint32_t i = 0; i < candidate.device_depth; ++i) ++frequencies[i];
  }
  JsonText out;
  out.object([&] {
    out.field("scores", [&] {
      out.object([&] {
        for (const auto& [instance, score] : scores)
          out.field(std::to_string(instance), [&] { write_ranks(out, score); });
      });
    });
    out.field("frequencies", [&] {
      out.array([&] {
        for (const std::uint64_t count : frequencies) out.value(count);
      });
    });
    out.field("instances", [&] {
      out.object([&] {
        for (const auto& [instance, score] : scores)
          out.field(std::to_string(instance), [&] {
            out.object([&] {
              out.field("longest_matched", score.longest);
              out.field("gpu", score.device);
              out.field("dp", [&] { write_ranks(out, score); });
              out.field("cpu", score.host);
              out.field("disk", score.disk);
            });
          });
      });
    });
  });
  return out.take();
}

std::string other_scores_json(ServiceParts& parts, const IndexerRequest& request,
                              const std::vector<Candidate>& candidates, std::uint64_t block_size) {
  std::map<std::uint64_t, std::string> names;
  for (const MemberStatus& member : parts.fleet->status()) names[member.id.value()] = member.name;
  JsonText out;
  out.object([&] {
    out.field(request.tenant.empty() ? "default" : std::string_view(request.tenant), [&] {
      out.object([&] {
        for (const auto& [instance, score] : scores_of(candidates, block_size)) {
          if (!request.instance.empty() && instance != instance_number(request.instance)) continue;
          out.field(names[instance], [&] {
            out.object([&] {
              out.field("longest_matched", score.longest);
              out.field("GPU", score.device);
              out.field("DP", [&] { write_ranks(out, score); });
              out.field("CPU", score.host);
              out.field("DISK", score.disk);
            });
          });
        }
      });
    });
  });
  return out.take();
}

}  // namespace

Reply answer_query(ServiceParts& parts, std::string_view path, std::string_view body) {
  auto request = read_indexer_request(body);
  if (!request) return error_reply(request.error());
  const bool by_hash = path == "/query_by_hash";
  if (by_hash && !request->salt.empty())
    return error_reply(400, "hashes have their salt in them: cache_salt belongs to /query");
  if (by_hash ? !request->hashes : !request->tokens)
    return error_reply(
        400, by_hash ? "block_hashes is missing: the local hashes of the blocks" : "token_ids is missing");
  const std::string group = group_name(request->model, request->routing_group);
  const std::optional<std::uint32_t> block_size = parts.fleet->block_size_of(group);
  if (!block_size) return error_reply(404, "no worker is known for the model '" + request->model + "'");
  std::vector<tokens::LocalHash> locals;
  if (by_hash) {
    locals = *std::move(request->hashes);
  } else {
    const tokens::SequenceHasher hasher = parts.fleet->hashing_of(group).hasher(request->lora, request->salt);
    const std::span<const tokens::Token> all = *request->tokens;
    if (all.size() / *block_size > kMostPromptBlocks)
      return error_reply(400, "token_ids has " + std::to_string(all.size() / *block_size) +
                                  " blocks; a prompt has at most " + std::to_string(kMostPromptBlocks));
    for (std::size_t i = 0; (i + 1) * *block_size <= all.size(); ++i)
      locals.push_back(hasher.local_hash(all.subspan(i * *block_size, *block_size)));
  }
  const std::vector<Candidate> candidates = parts.router->look_up(group, locals);
  return json_reply(200, request->has_other_form ? other_scores_json(parts, *request, candidates, *block_size)
                                                 : scores_json(candidates, *block_size));
}

Reply answer_register(ServiceParts& parts, std::string_view body) {
  const auto request = read_indexer_request(body);
  if (!request) return error_reply(request.error());
  if (request->instance.empty()) return error_reply(400, "instance_id is missing");
  const Result<void> registered =
      parts.fleet->register_worker({.instance = instance_number(request->instance),
                                    .name = request->instance,
                                    .endpoint = request->endpoint,
                                    .replay = request->replay,
                                    .model = request->model,
                                    .routing_group = request->routing_group,
                                    .block_size = static_cast<std::uint32_t>(request->block_size),
                                    .rank = static_cast<std::uint32_t>(request->rank.value_or(0)),
                                    .salt = request->model_salt});
  if (!registered) return error_reply(registered.error());
  if (!request->has_other_form) return json_reply(201, R"({"status":"ok"})");
  JsonText out;
  out.object([&] {
    out.field("status", "registered successfully");
    out.field("instance_id", request->instance);
  });
  return json_reply(200, out.take());
}

Reply answer_unregister(ServiceParts& parts, std::string_view body) {
  const auto request = read_indexer_request(body);
  if (!request) return error_reply(request.error());
  if (request->instance.empty()) return error_reply(400, "instance_id is missing");
  std::optional<std::uint32_t> rank;
  if (request->rank) rank = static_cast<std::uint32_t>(*request->rank);
  const Result<void> removed = parts.fleet->unregister_worker(
      instance_number(request->instance), group_name(request->model, request->routing_group), rank);
  if (!removed) return error_reply(removed.error());
  if (!request->has_other_form) return json_reply(200, R"({"status":"ok"})");
  JsonText out;
  out.object([&] {
    out.field("status", "unregistered successfully");
    out.field("removed_instances", [&] {
      out.array([&] {
        out.value(request->instance + "|" + (request->tenant.empty() ? "default" : request->tenant) + "|" +
                  std::to_string(rank.value_or(0)));
      });
    });
  });
  return json_reply(200, out.take());
}

Reply answer_workers(ServiceParts& parts, std::string_view query) {
  const std::string model = query_value(query, "model_name");
  const std::string routing_group = query_value(query, "routing_group");
  JsonText out;
  out.array([&] {
    for (const MemberStatus& member : parts.fleet->status()) {
      if (!model.empty() && member.group != group_name(model, routing_group)) continue;
      // The worst of its listeners; without one nothing is heard.
      ListenerStatus worst = ListenerStatus::kPaused;
      std::uint32_t block_size = 0;
      for (const RankStatus& rank : member.ranks) {
        worst = std::max(worst, listener_status(rank));
        block_size = std::max(block_size, rank.follower.block_size);
      }
      out.object([&] {
        out.field("instance_id", member.id.value());
        out.field("source", "zmq");
        out.field("status", to_text(worst));
        out.field("model_name", member.group);
        out.field("routing_group",
                  member.routing_group.empty() ? "default" : std::string_view(member.routing_group));
        out.field("block_size", block_size);
        out.field("endpoints", [&] {
          out.object([&] {
            for (const RankStatus& rank : member.ranks)
              if (!rank.endpoint.empty()) out.field(std::to_string(rank.rank), rank.endpoint);
          });
        });
        out.field("listeners", [&] {
          out.object([&] {
            for (const RankStatus& rank : member.ranks) {
              if (rank.endpoint.empty()) continue;
              out.field(std::to_string(rank.rank), [&] {
                out.object([&] {
                  out.field("endpoint", rank.endpoint);
                  out.field("status", to_text(listener_status(rank)));
                  if (!rank.follower.reason.empty()) out.field("last_error", rank.follower.reason);
                });
              });
            }
          });
        });
      });
    }
  });
  return json_reply(200, out.take());
}

Reply answer_dump(ServiceParts& parts) {
  std::map<std::string, std::string> groups;
  std::map<std::string, std::map<std::uint64_t, std::string>> names;
  for (const MemberStatus& member : parts.fleet->status()) {
    if (member.group.empty()) continue;
    groups[member.group] = member.routing_group;
    names[member.group][member.id.value()] = member.name;
  }
  const std::map<events::WorkerId, SavedRanks> saved = parts.fleet->save();
  std::string body = "{";
  for (const auto& [group, routing_group] : groups) {
    const std::string key = routing_group.empty() || group.ends_with(":" + routing_group)
                                ? (routing_group.empty() ? group + ":default" : group)
                                : group + ":" + routing_group;
    events::RouterDumpWriter writer(key, parts.fleet->block_size_of(group).value_or(kGuessedBlockSize));
    parts.router->dump(group, writer);
    const auto json = std::move(writer).finish();
    if (!json) return error_reply(json.error());
    // Each is an object of one key, whose value is an object that gets two more.
    body.append(body.size() > 1 ? "," : "").append(std::string_view(*json).substr(1, json->size() - 3));
    std::map<std::uint64_t, SavedRanks> states;
    for (const auto& [number, name] : names[group])
      if (const auto found = saved.find(events::WorkerId(number)); found != saved.end())
        states.emplace(number, found->second);
    body.append(worker_names_json(names[group])).append(states_json(states)).append("}");
  }
  return json_reply(200, body + "}");
}

}  // namespace ashlar::service
