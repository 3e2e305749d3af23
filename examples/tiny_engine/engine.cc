#include "tiny_engine/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ashlar/base/check.h"

namespace tiny_engine {
namespace {

using namespace ashlar;
using Sequence = block::RequestSequence<G1>;

// How long a request waits for copies that still read the blocks it needs.
constexpr auto kCopiesEnd = std::chrono::seconds(30);
// Blocks whose tokens are remembered for events.
constexpr std::size_t kBookBlocks = 1 << 16;

// What one rank holds of the model, over the tensors of the engine.
Result<tiers::KvOptions> options_of_rank(const EngineOptions& engine, std::uint32_t rank,
                                         const std::shared_ptr<KvTensors>& tensors) {
  tiers::KvOptions options = engine.kv;
  const ModelShape& model = engine.model;
  ASHLAR_TRY(options.shard, layout::Shard::tensor_rank(rank, engine.ranks, model.heads, {0, model.layers}));
  options.block_size = engine.block_size;
  options.model = {.num_layers = model.layers,
                   .outer_dim = 2,
                   .block_size = engine.block_size,
                   .num_heads = options.shard.heads.count,
                   .head_dim = model.head_dim,
                   .inner_dim = options.shard.heads.count * model.head_dim,
                   .dtype = layout::Dtype::kBF16};
  options.keys = tokens::NamespaceFingerprint(
      {"tiny-" + std::to_string(model.vocabulary) + "-" + std::to_string(model.seed), "bf16", "nhd",
       engine.block_size});
  tiers::PlaneMemory memory;
  for (std::vector<std::uint16_t>& layer : tensors->layers)
    memory.regions.push_back({.address = reinterpret_cast<std::byte*>(layer.data()),
                              .bytes = layer.size() * sizeof(std::uint16_t),
                              .owner = tensors});
  options.g1.memory = {memory};
  if (options.g3)
    for (std::string& path : options.g3->paths) path += ".rank" + std::to_string(rank);
  return options;
}

}  // namespace

// Wakes the engine when blocks that it waits for have come; callbacks may outlive the engine.
struct Engine::Arrivals {
  std::mutex mu;
  std::condition_variable changed;
  bool any = false;

  void raise() {
    {
      const std::lock_guard lock(mu);
      any = true;
    }
    changed.notify_one();
  }
  void wait() {
    std::unique_lock lock(mu);
    changed.wait(lock, [&] { return any; });
    any = false;
  }
};

// A reply in the making.
struct Engine::Job {
  RequestId id = 0;
  std::size_t sample = 0;
  std::size_t samples_to_fork = 0;  // when its first token is known
  std::size_t new_tokens = 0;
  std::string tenant;
  bool preempted = false;
  bool waited = false;  // for copies, since its last step
  std::vector<Sequence> ranks;
  Reply reply;

  std::span<const Token> tokens() const { return ranks[0].tokens(); }
  // Of the rank that has the fewest.
  std::size_t computed() const {
    std::size_t least = ranks[0].computed_tokens();
    for (const Sequence& sequence : ranks) least = std::min(least, sequence.computed_tokens());
    return least;
  }
  bool decodes() const { return computed() + 1 == tokens().size(); }
};

// What a step computes of a job: the tokens [begin, end).
struct Engine::Chunk {
  Job* job;
  std::size_t begin;
  std::size_t end;
  bool decode;
  bool yields;  // a token: it ends with the last one
  std::vector<float> logits = {};
};

// The keys and values of a job: the block table says where they are in the tensors of each rank.
class Engine::PagedRows final : public KvRows {
 public:
  PagedRows(const Engine& engine, const Job& job) : engine_(engine), job_(job) {}

  void store(std::uint32_t layer, std::uint32_t head, std::size_t position,
             std::span<const std::uint16_t> key, std::span<const std::uint16_t> value) override {
    // A rank that found more of the prefix than the others has these; others may be reading them.
    if (position < job_.ranks[rank_of(head)].computed_tokens()) return;
    std::memcpy(at(layer, 0, head, position), key.data(), key.size_bytes());
    std::memcpy(at(layer, 1, head, position), value.data(), value.size_bytes());
  }
  const std::uint16_t* key(std::uint32_t layer, std::uint32_t head, std::size_t position) const override {
    return at(layer, 0, head, position);
  }
  const std::uint16_t* value(std::uint32_t layer, std::uint32_t head, std::size_t position) const override {
    return at(layer, 1, head, position);
  }

 private:
  std::uint32_t heads_per_rank() const { return engine_.options_.model.heads / engine_.rank_count(); }
  std::uint32_t rank_of(std::uint32_t head) const { return head / heads_per_rank(); }
  std::uint16_t* at(std::uint32_t layer, std::uint32_t outer, std::uint32_t head,
                    std::size_t position) const {
    const std::uint32_t rank = rank_of(head);
    const std::uint32_t block_size = engine_.options_.block_size;
    const block::BlockId block = job_.ranks[rank].block_table()[position / block_size];
    return engine_.ranks_[rank].tensors->row(layer, block.value(), outer, position % block_size,
                                             head % heads_per_rank());
  }

  const Engine& engine_;
  const Job& job_;
};

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) {
  if (options.ranks == 0 || options.model.heads % options.ranks != 0)
    return Error(ErrorCode::kInvalidArgument,
                 std::to_string(options.model.heads) + " heads cannot be shared by " +
                     std::to_string(options.ranks) + " ranks; choose a divisor of the heads");
  if (options.step_tokens == 0 || options.max_running == 0)
    return Error(ErrorCode::kInvalidArgument, "step_tokens and max_running must be at least 1");
  if (options.model.say_begin >= options.model.say_end || options.model.say_end > options.model.vocabulary)
    return Error(ErrorCode::kInvalidArgument, "the model must have a token that it may say");
  std::vector<Rank> ranks(options.ranks);
  for (std::uint32_t i = 0; i < options.ranks; ++i) {
    ranks[i].tensors = std::make_shared<KvTensors>(options.model, options.ranks, options.kv.g1.block_count,
                                                   options.block_size);
    ASHLAR_TRY(tiers::KvOptions rank, options_of_rank(options, i, ranks[i].tensors));
    ASHLAR_TRY(ranks[i].kv, tiers::KvBlockManager::create(std::move(rank)));
  }
  return std::unique_ptr<Engine>(new Engine(options, std::move(ranks)));
}

Engine::Engine(const EngineOptions& options, std::vector<Rank> ranks)
    : options_(options),
      model_(options.model),
      ranks_(std::move(ranks)),
      arrivals_(std::make_shared<Arrivals>()) {}

Engine::~Engine() = default;

// ---- requests

Result<Engine::RequestId> Engine::submit(const Request& request) {
  const ModelShape& model = options_.model;
  if (request.new_tokens == 0 || request.samples == 0 || request.samples > model.say_end - model.say_begin)
    return Error(ErrorCode::kInvalidArgument, "a request needs at least 1 new token, and 1 to " +
                                                  std::to_string(model.say_end - model.say_begin) +
                                                  " samples");
  for (const Token token : request.prompt)
    if (token.value() >= model.vocabulary)
      return Error(ErrorCode::kInvalidArgument, "token " + std::to_string(token.value()) +
                                                    " is beyond the vocabulary of " +
                                                    std::to_string(model.vocabulary));
  auto job = std::make_unique<Job>();
  job->id = next_id_;
  job->samples_to_fork = request.samples - 1;
  job->new_tokens = request.new_tokens;
  job->tenant = request.tenant;
  for (Rank& rank : ranks_) {
    // The priority counts where G1 evicts and where the tiers below queue.
    const block::RetentionPlan retention{.prompt = {{.priority = request.priority}},
                                         .decode_priority = request.priority};
    ASHLAR_TRY(auto sequence,
               Sequence::create(rank.kv->g1(), request.prompt,
                                {.hasher = tokens::SequenceHasher(tokens::Salt("", request.tenant)),
                                 .max_tokens = request.prompt.size() + request.new_tokens,
                                 .retention = retention,
                                 .onboard = options_.onboard}));
    job->ranks.push_back(std::move(sequence));
  }
  replies_[next_id_].resize(request.samples);
  unfinished_[next_id_] = request.samples;
  waiting_.push_back(std::move(job));
  return next_id_++;
}

std::vector<Reply> Engine::take(RequestId id) {
  const auto found = replies_.find(id);
  if (found == replies_.end() || unfinished_.contains(id)) return {};
  std::vector<Reply> taken = std::move(found->second);
  replies_.erase(found);
  return taken;
}

void Engine::abort(RequestId id) {
  const auto is_its = [id](const std::unique_ptr<Job>& job) { return job->id == id; };
  std::erase_if(waiting_, is_its);
  std::erase_if(arriving_, is_its);
  std::erase_if(running_, is_its);
  replies_.erase(id);
  unfinished_.erase(id);
}

bool Engine::reset_prefix_cache(bool preempt_all) {
  if (!preempt_all && !(running_.empty() && arriving_.empty())) return false;
  // The youngest first, so that the oldest is admitted first again.
  while (!arriving_.empty()) preempt(arriving_, arriving_.size() - 1);
  while (!running_.empty()) preempt(running_, running_.size() - 1);
  for (const Rank& rank : ranks_) {
    rank.kv->drain(Clock::real().now() + kCopiesEnd);
    rank.kv->reset(events::kTierId<G1>).value();
  }
  return true;
}

void Engine::end(Job& job, std::string error) {
  const std::span<const Token> tokens = job.tokens();
  for (std::size_t i = job.ranks[0].prompt_size(); i < tokens.size(); ++i)
    job.reply.tokens.push_back(tokens[i]);
  job.reply.error = std::move(error);
  for (std::size_t i = 1; i <= job.samples_to_fork; ++i) replies_[job.id][i].error = job.reply.error;
  replies_[job.id][job.sample] = std::move(job.reply);
  std::size_t& left = unfinished_[job.id];
  left -= 1 + job.samples_to_fork;  // samples that it has not forked end with it
  if (left == 0) unfinished_.erase(job.id);
  std::erase_if(running_, [&](const auto& running) { return running.get() == &job; });
}

// ---- a step

bool Engine::step() {
  new_tokens_.clear();
  finish_arrivals();
  admit();
  if (running_.empty()) {
    if (arriving_.empty()) return !waiting_.empty();
    arrivals_->wait();
    return true;
  }
  std::vector<Chunk> chunks = schedule();
  for (Chunk& chunk : chunks) compute(chunk);
  apply(chunks);
  ++counters_.steps;
  return true;
}

// Admits requests while there is room for what they bring and compute; the first one always.
void Engine::admit() {
  while (!waiting_.empty() && running_.size() + arriving_.size() < options_.max_running) {
    const std::size_t blocks = waiting_.front()->tokens().size() / options_.block_size + 2;
    const bool alone = running_.empty() && arriving_.empty();
    for (const Rank& rank : ranks_)
      if (!alone && rank.kv->g1().status().available() < blocks) return;
    std::unique_ptr<Job> job = std::move(waiting_.front());
    waiting_.pop_front();
    start(std::move(job));
  }
}

// Looks for the longest prefix that any tier has. What is in G1 is shared at once; the rest is on its way
// while others compute.
void Engine::start(std::unique_ptr<Job> job) {
  note_blocks(*job, 0, job->tokens().size());
  bool arriving = false;
  for (Sequence& sequence : job->ranks) {
    if (!options_.prefix_caching) {
      if (job->preempted) sequence.resume().value();
      continue;
    }
    arriving |= sequence.begin_match([arrivals = arrivals_] { arrivals->raise(); }).value().pending;
  }
  (arriving ? arriving_ : running_).push_back(std::move(job));
  if (!arriving) note_cached(*running_.back());
}

void Engine::finish_arrivals() {
  const auto ready = [](const std::unique_ptr<Job>& job) {
    return std::all_of(job->ranks.begin(), job->ranks.end(), [](const Sequence& sequence) {
      return sequence.state() != block::RequestState::kOnboarding || sequence.match_ready();
    });
  };
  for (std::unique_ptr<Job>& job : arriving_) {
    if (!ready(job)) continue;
    for (Sequence& sequence : job->ranks)
      if (sequence.state() == block::RequestState::kOnboarding) sequence.finish_match().value();
    note_cached(*job);
    running_.push_back(std::move(job));
  }
  std::erase(arriving_, nullptr);
}

void Engine::note_cached(Job& job) {
  counters_.cached_tokens += job.computed();
  if (!job.preempted) job.reply.cached_tokens = job.computed();
}

// ---- schedule

std::vector<Engine::Chunk> Engine::schedule() {
  std::vector<Chunk> chunks;
  schedule_decodes(chunks);
  std::size_t budget = options_.step_tokens - std::min(options_.step_tokens, chunks.size());
  // A request may be preempted, or end, meanwhile: those that are left are looked at in order.
  for (std::size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Job& job = *running_[i];
    if (job.decodes()) continue;
    const std::size_t begin = job.computed();
    const std::size_t end = std::min(job.tokens().size(), begin + budget);
    while (!schedule_prefill(job, end)) {
      if (!chunks.empty()) return chunks;  // others end, or are preempted, first
      if (!make_room(&job)) return chunks;
    }
    budget -= end - begin;
    chunks.push_back({&job, begin, end, false, end == job.tokens().size()});
  }
  return chunks;
}

// One token for every request that decodes, in one visit to each rank's manager.
void Engine::schedule_decodes(std::vector<Chunk>& chunks) {
  for (;;) {
    chunks.clear();
    for (const auto& job : running_)
      if (job->decodes() && chunks.size() < options_.step_tokens)
        chunks.push_back({job.get(), job->computed(), job->computed() + 1, true, true});
    if (chunks.empty()) return;
    std::size_t scheduled = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].decodes.clear();
      for (const Chunk& chunk : chunks) ranks_[i].decodes.add(chunk.job->ranks[i]);
      const auto plan = ranks_[i].decodes.schedule_decode();
      if (!plan) break;
      ++scheduled;
    }
    if (scheduled == ranks_.size()) return;
    for (std::size_t i = 0; i < scheduled; ++i) ranks_[i].decodes.revert().value();
    if (!make_room(chunks.front().job)) return chunks.clear();
  }
}

// All ranks, or none. A rank that has these tokens already has nothing to do.
bool Engine::schedule_prefill(Job& job, std::size_t end) {
  for (std::size_t i = 0; i < job.ranks.size(); ++i) {
    Sequence& sequence = job.ranks[i];
    if (sequence.computed_tokens() >= end) continue;
    if (sequence.schedule_prefill(end - sequence.computed_tokens())) continue;
    for (Sequence& before : std::span(job.ranks).first(i))
      if (before.state() == block::RequestState::kPrefillScheduled) before.revert().value();
    return false;
  }
  return true;
}

// Preempts the youngest request but `keep`. Alone, `keep` waits for blocks that are still coming or being
// copied; when there are none it is too long for G1 and ends. False: schedule anew.
bool Engine::make_room(Job* keep) {
  if (running_.size() == 1) {
    if (!arriving_.empty()) {
      arrivals_->wait();
      return false;
    }
    if (!std::exchange(keep->waited, true)) {
      for (const Rank& rank : ranks_) rank.kv->drain(Clock::real().now() + kCopiesEnd);
      return true;
    }
    end(*keep, "the request needs more blocks than G1 has; give G1 more, or ask for fewer tokens");
    return false;
  }
  preempt(running_, running_.size() - (running_.back().get() == keep ? 2 : 1));
  return true;
}

// It keeps its tokens, and waits before all others.
void Engine::preempt(std::vector<std::unique_ptr<Job>>& from, std::size_t at) {
  std::unique_ptr<Job> job = std::move(from[at]);
  from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
  for (Sequence& sequence : job->ranks) sequence.preempt().value();
  job->preempted = true;
  ++job->reply.preemptions;
  ++counters_.preemptions;
  waiting_.push_front(std::move(job));
}

// ---- compute and apply

void Engine::compute(Chunk& chunk) {
  Job& job = *chunk.job;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    for (const block::BlockCopy& copy : job.ranks[rank].copies()) copy_block(rank, copy);
  PagedRows rows(*this, job);
  for (std::size_t at = chunk.begin; at < chunk.end; ++at)
    chunk.logits = model_.forward(job.tokens()[at], at, rows);
  counters_.computed_tokens += chunk.end - chunk.begin;
}

// A fork is about to write into a block that it shares.
void Engine::copy_block(std::size_t rank, const block::BlockCopy& copy) {
  KvTensors& tensors = *ranks_[rank].tensors;
  for (std::uint32_t layer = 0; layer < options_.model.layers; ++layer)
    std::memcpy(tensors.row(layer, copy.destination.value()), tensors.row(layer, copy.source.value()),
                tensors.block_elements() * sizeof(std::uint16_t));
  ++counters_.block_copies;
}

// The KV of the step exists: blocks that it filled are registered, offered to the tiers below, and announced.
void Engine::apply(const std::vector<Chunk>& chunks) {
  std::vector<Token> decoded;
  for (const Chunk& chunk : chunks) {
    note_blocks(*chunk.job, chunk.begin, chunk.end);
    if (chunk.decode) decoded.push_back(choose(chunk.logits, 0));
  }
  if (!decoded.empty())
    for (Rank& rank : ranks_) rank.decodes.apply_decode(decoded).value();
  for (const Chunk& chunk : chunks) {
    if (chunk.decode) continue;
    std::optional<Token> next;
    if (chunk.yields) next = choose(chunk.logits, 0);
    for (Sequence& sequence : chunk.job->ranks)
      if (sequence.state() == block::RequestState::kPrefillScheduled) sequence.apply_prefill(next).value();
  }
  for (const Chunk& chunk : chunks) {
    Job& job = *chunk.job;
    job.waited = false;
    if (!chunk.yields) continue;
    job.reply.logits = mix_logits(job.reply.logits, chunk.logits);
    new_tokens_.push_back({job.id, job.sample, job.tokens().back(), job.reply.cached_tokens});
    fork_samples(job, chunk.logits);
    if (job.tokens().size() == job.ranks[0].prompt_size() + job.new_tokens) end(job);
  }
}

// The other samples share every block so far, and begin with another token.
void Engine::fork_samples(Job& job, const std::vector<float>& logits) {
  for (; job.samples_to_fork > 0; --job.samples_to_fork) {
    auto fork = std::make_unique<Job>();
    fork->id = job.id;
    fork->sample = job.samples_to_fork;
    fork->new_tokens = job.new_tokens;
    fork->tenant = job.tenant;
    fork->reply = job.reply;
    for (Sequence& sequence : job.ranks)
      fork->ranks.push_back(sequence.fork(choose(logits, fork->sample)).value());
    new_tokens_.push_back({fork->id, fork->sample, fork->tokens().back(), fork->reply.cached_tokens});
    running_.push_back(std::move(fork));
    if (job.new_tokens == 1) end(*running_.back());
  }
}

// ---- tokens of blocks

// Before the blocks are registered or come up: an event may be on its way as soon as they are.
void Engine::note_blocks(const Job& job, std::size_t begin, std::size_t end) {
  const std::size_t size = options_.block_size;
  const std::span<const tokens::SequenceHash> hashes = job.ranks[0].sequence_hashes();
  const std::lock_guard lock(book_mu_);
  for (std::size_t i = begin / size; i < end / size; ++i) {
    const std::span<const Token> tokens = job.tokens().subspan(i * size, size);
    if (!book_.try_emplace(hashes[i], NotedBlock{{tokens.begin(), tokens.end()}, job.tenant}).second)
      continue;
    book_order_.push_back(hashes[i]);
    if (book_order_.size() <= kBookBlocks) continue;
    book_.erase(book_order_.front());
    book_order_.pop_front();
  }
}

std::optional<std::vector<Token>> Engine::tokens_of_block(const tokens::SequenceHash& hash) const {
  const std::lock_guard lock(book_mu_);
  const auto found = book_.find(hash);
  return found == book_.end() ? std::nullopt : std::optional(found->second.tokens);
}

std::string Engine::tenant_of_block(const tokens::SequenceHash& hash) const {
  const std::lock_guard lock(book_mu_);
  const auto found = book_.find(hash);
  return found == book_.end() ? std::string() : found->second.tenant;
}

}  // namespace tiny_engine
