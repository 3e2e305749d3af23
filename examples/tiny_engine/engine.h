// Engine: a small inference engine over Ashlar: continuous batching, chunked prefill, prefix caching,
// preemption, parallel samples by fork, tensor parallelism, and every tier. docs/guide/engine_integration.md
// walks through it.
//
//   submit ─▶ waiting ─▶ arriving ─▶ running ─▶ replies
//                │   blocks come from    │
//                │   tiers below         │
//                └───────────◀───────────┘ preempted
//
// A step schedules what runs: one token of every request that decodes, then chunks of prompts, up to
// `step_tokens`. If G1 has no room for a step, the youngest request is preempted. Each rank has a
// KvBlockManager and a RequestSequence per request of its own; a rank that found more of a prefix than
// another has less to compute.
//
// Thread safety: thread-compatible; tokens_of_block() and tenant_of_block() are thread-safe.
// Complexity:    a step is O(step_tokens x context).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_batch.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "tiny_engine/model.h"

namespace tiny_engine {

using ashlar::Result;
using ashlar::block::G1;

// The KV memory of one rank, as engines allocate it: a tensor per layer, (blocks, 2, tokens, heads, dim) of
// bf16. It belongs to the engine; Ashlar hands out its blocks and copies them.
struct KvTensors {
  KvTensors(const ModelShape& model, std::uint32_t ranks, std::size_t blocks, std::size_t tokens)
      : block_size(tokens), heads(model.heads / ranks), head_dim(model.head_dim) {
    layers.assign(model.layers, std::vector<std::uint16_t>(blocks * block_elements()));
  }
  std::size_t block_elements() const { return 2 * block_size * heads * head_dim; }
  std::uint16_t* row(std::uint32_t layer, std::size_t block, std::size_t outer = 0, std::size_t token = 0,
                     std::size_t head = 0) {
    return &layers[layer][(((block * 2 + outer) * block_size + token) * heads + head) * head_dim];
  }

  std::size_t block_size;
  std::size_t heads;  // of the rank
  std::size_t head_dim;
  std::vector<std::vector<std::uint16_t>> layers;
};

struct EngineOptions {
  ModelShape model = {};
  std::uint32_t block_size = 8;  // tokens
  std::uint32_t ranks = 1;       // tensor parallelism: each has an equal share of the heads
  std::size_t step_tokens = 64;  // computed in one step, over all requests
  std::size_t max_running = 8;
  bool prefix_caching = true;
  // What a request may bring from the tiers below.
  ashlar::block::PrefixBudget onboard = {};
  // The tiers, of every rank. The engine fills in the model, its keys and the shard; the files of G3 get the
  // rank as a suffix.
  ashlar::tiers::KvOptions kv = {};
};

struct Request {
  std::vector<Token> prompt;
  std::size_t new_tokens = 32;
  // Replies that begin with the best first token, the second best, and so on.
  std::size_t samples = 1;
  std::string tenant = {};  // requests of different tenants share nothing
  std::uint8_t priority = ashlar::block::BlockRetention::kDefaultPriority;
};

struct Reply {
  std::vector<Token> tokens;
  std::uint64_t logits = 0;       // as TinyModel::Speech
  std::size_t cached_tokens = 0;  // found when the request was admitted first
  std::size_t preemptions = 0;
  std::string error = {};  // why it ended early
};

// A token of a reply, as soon as it is computed.
struct NewToken {
  std::uint64_t request;
  std::size_t sample;
  Token token;
  std::size_t cached_tokens;  // as Reply
};

struct EngineCounters {
  std::uint64_t steps = 0;
  std::uint64_t computed_tokens = 0;
  std::uint64_t cached_tokens = 0;  // not computed, also after a preemption
  std::uint64_t preemptions = 0;
  std::uint64_t block_copies = 0;  // of forks
};

class Engine {
 public:
  using RequestId = std::uint64_t;

  // Errors: kInvalidArgument: options that do not fit; those of KvBlockManager::create().
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  ~Engine();

  // Errors: kInvalidArgument: an empty prompt, a token beyond the vocabulary, nothing to generate.
  Result<RequestId> submit(const Request& request);
  // Computes one step. False when no request is left.
  bool step();
  void run() {
    while (step()) continue;
  }
  // What the last step said.
  const std::vector<NewToken>& new_tokens() const noexcept { return new_tokens_; }
  // The finished replies of a request, by sample; empty until all are. Forgets them.
  std::vector<Reply> take(RequestId id);
  // Ends a request whose client has left: its blocks are free for others, and there is no reply.
  void abort(RequestId id);
  // Empties G1 of every rank. False, with nothing changed, while requests have blocks there; with `preempt`
  // they give them back first, and go on later.
  bool reset_prefix_cache(bool preempt = false);

  const TinyModel& model() const noexcept { return model_; }
  const EngineCounters& counters() const noexcept { return counters_; }
  std::uint32_t block_size() const noexcept { return options_.block_size; }
  std::size_t running() const noexcept { return running_.size(); }
  std::size_t waiting() const noexcept { return waiting_.size() + arriving_.size(); }
  std::uint32_t rank_count() const noexcept { return static_cast<std::uint32_t>(ranks_.size()); }
  ashlar::tiers::KvBlockManager& kv(std::uint32_t rank = 0) { return *ranks_[rank].kv; }
  KvTensors& tensors(std::uint32_t rank = 0) { return *ranks_[rank].tensors; }
  // The tokens of a block that a request here has named, and its tenant, for events in the format of engines.
  std::optional<std::vector<Token>> tokens_of_block(const ashlar::tokens::SequenceHash& hash) const;
  std::string tenant_of_block(const ashlar::tokens::SequenceHash& hash) const;

 private:
  struct Rank {
    std::shared_ptr<KvTensors> tensors;
    std::unique_ptr<ashlar::tiers::KvBlockManager> kv;
    ashlar::block::SequenceBatch<G1> decodes;
  };
  struct NotedBlock {
    std::vector<Token> tokens;
    std::string tenant;
  };
  struct Job;
  struct Chunk;
  class PagedRows;
  struct Arrivals;

  Engine(const EngineOptions& options, std::vector<Rank> ranks);
  void admit();
  void start(std::unique_ptr<Job> job);
  void finish_arrivals();
  void note_cached(Job& job);
  std::vector<Chunk> schedule();
  void schedule_decodes(std::vector<Chunk>& chunks);
  bool schedule_prefill(Job& job, std::size_t end);
  bool make_room(Job* keep);
  void preempt(std::vector<std::unique_ptr<Job>>& from, std::size_t at);
  void compute(Chunk& chunk);
  void copy_block(std::size_t rank, const ashlar::block::BlockCopy& copy);
  void apply(const std::vector<Chunk>& chunks);
  void fork_samples(Job& job, const std::vector<float>& logits);
  void note_blocks(const Job& job, std::size_t begin, std::size_t end);
  void end(Job& job, std::string error = {});

  const EngineOptions options_;
  const TinyModel model_;
  std::vector<Rank> ranks_;
  std::deque<std::unique_ptr<Job>> waiting_;
  std::vector<std::unique_ptr<Job>> arriving_;
  std::vector<std::unique_ptr<Job>> running_;  // the oldest first
  std::map<RequestId, std::vector<Reply>> replies_;
  std::map<RequestId, std::size_t> unfinished_;  // replies that are still to come
  std::vector<NewToken> new_tokens_;             // of the last step
  std::shared_ptr<Arrivals> arrivals_;
  EngineCounters counters_;
  RequestId next_id_ = 1;

  mutable std::mutex book_mu_;
  std::unordered_map<ashlar::tokens::SequenceHash, NotedBlock> book_;
  std::deque<ashlar::tokens::SequenceHash> book_order_;
};

}  // namespace tiny_engine
