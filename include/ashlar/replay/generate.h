// A generated workload, and traces as files.
//
//   chat       conversations that share system prompts and return after seconds or minutes; a prompt is all
//              that was said before and a question
//   prompts    single requests behind few, long, shared system prompts
//   agents     long shared tool prompts, many steps; between steps a tool runs, shortly or for minutes
//   documents  questions about documents, few of which many ask about
//   mix        all of them
//
// One seed gives the same requests on every machine: no floating point decides anything. Requests come in the
// order of their arrival. System prompts, tools and documents are popular as 1/k.
//
// Thread safety: functions; the source is thread-compatible.
// Complexity:    O(blocks of its prompt) per request; memory: the running sessions.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/replay/trace.h"

namespace ashlar::replay {

enum class WorkloadKind : std::uint8_t { kChat, kPrompts, kAgents, kDocuments, kMix };
// "chat", "prompts", "agents", "documents", "mix".
std::string_view to_string(WorkloadKind kind) noexcept;

struct GeneratorOptions {
  WorkloadKind kind = WorkloadKind::kChat;
  std::uint64_t seed = 1;
  std::uint64_t requests = 10'000;
  std::uint32_t block_size = 16;  // tokens
  std::uint32_t rate = 4;         // requests per second, about

  // Errors: kInvalidArgument, with the value.
  Result<void> validate() const;
};

// "chat,seed=1,requests=10000,block=16,rate=4": a kind, then any of these.
// Errors: kInvalidArgument, with what is known.
Result<GeneratorOptions> parse_generator(std::string_view text);

// Requires: options.validate().
std::unique_ptr<TraceSource> generate_trace(const GeneratorOptions& options);

// Writes what is left of a trace as JSON lines in Mooncake's form, as replay tools read them. Blocks are
// numbered in order of appearance. Returns the number of requests. The file takes its name when it is whole,
// so `path` may be the trace that is read; after an error nothing has changed. `progress` is called every 64
// requests with the number so far; false stops.
// Errors: those of the source; kInvalidArgument: there is no request; kIo; kCancelled.
Result<std::uint64_t> write_trace(TraceSource& source, const std::string& path,
                                  const std::function<bool(std::uint64_t requests)>& progress = {});

}  // namespace ashlar::replay
