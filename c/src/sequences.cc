// Sequences of the C interface.
#include "ashlar/block/sequence_manager.h"

#include <memory>
#include <optional>
#include <vector>

#include "c/src/objects.h"

namespace ashlar::c_interface {
namespace {

using Sequence = block::Sequence<events::G1>;

struct SequencesObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kSequences;
  SequencesObject(PoolTicket its_ticket, block::SequenceManagerOptions options)
      : ticket(std::move(its_ticket)), sequences(ticket.life().manager(), std::move(options)) {}
  const PoolTicket ticket;
  const block::SequenceManager<events::G1> sequences;
};

struct SequenceObject final : HandleObject {
  static constexpr HandleKind kKind = HandleKind::kSequence;
  SequenceObject(std::shared_ptr<SequencesObject> its_maker, PoolTicket its_ticket, Sequence its)
      : maker(std::move(its_maker)), ticket(std::move(its_ticket)), sequence(std::move(its)) {}
  const std::shared_ptr<SequencesObject> maker;
  const PoolTicket ticket;
  Mutex mu;
  bool gone ASHLAR_GUARDED_BY(mu) = false;  // its handle was taken away
  std::optional<block::Fence> written_after ASHLAR_GUARDED_BY(mu);
  Sequence sequence ASHLAR_GUARDED_BY(mu);
};

// body(sequences, sequence) while no other call uses the sequence.
template <class F>
ashlar_status with_sequence(ashlar_sequence handle, F&& body) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<SequenceObject>(handle.id));
    const MutexLock lock(object->mu);
    if (object->gone) return invalid_handle(HandleKind::kSequence, handle.id);
    return body(object->maker->sequences, object->sequence);
  });
}

Outcome<block::SequenceManagerOptions> sequence_options(const PoolLife& life,
                                                        const ashlar_sequences_options& given) {
  block::SequenceManagerOptions options;
  ASHLAR_TRY(options.hasher, hasher_of(given.hasher, life));
  if (given.register_at_once != 0) options.register_blocks = block::RegisterBlocks::kAtOnce;
  options.reuse_last_token = given.reuse_last_token != 0;
  options.metadata = given.metadata;
  if (given.set_priority != 0) {
    options.retention = retention_plan(given.priority, given.priority_ns);
    ASHLAR_RETURN_IF_ERROR(options.retention.validate());
  }
  ASHLAR_TRY(options.onboard,
             prefix_budget(given.onboard_max_blocks, given.onboard_ns, given.compute_tokens_per_second));
  options.onboard.by_layer = given.onboard_by_layer != 0;
  return options;
}

Outcome<> tell_room(Result<void, block::AllocationRefusal> room) {
  if (!room) return Refusal(room.error());
  return {};
}

}  // namespace
}  // namespace ashlar::c_interface

using namespace ashlar::c_interface;

ashlar_status ashlar_sequences_create(ashlar_manager manager, const ashlar_sequences_options* options,
                                      ashlar_sequences* sequences) {
  return call([&]() -> Outcome<> {
    if (sequences == nullptr) return null_pointer("sequences");
    ASHLAR_TRY(const auto given, options_of(options, "ashlar_sequences_options"));
    ASHLAR_TRY(auto ticket, ticket_of(manager));
    ASHLAR_TRY(auto its, sequence_options(ticket.life(), given));
    sequences->id = open_handle(std::make_shared<SequencesObject>(std::move(ticket), std::move(its)));
    return {};
  });
}

ashlar_status ashlar_sequences_destroy(ashlar_sequences sequences) {
  return waiting_call([&] { return close_handle<SequencesObject>(sequences.id); });
}

ashlar_status ashlar_sequence_create(ashlar_sequences sequences, const uint32_t* tokens, size_t n,
                                     ashlar_sequence* sequence) {
  return call([&]() -> Outcome<> {
    if (sequence == nullptr) return null_pointer("sequence");
    ASHLAR_TRY(const auto given, elements<const ashlar::tokens::Token>(tokens, n, "tokens"));
    ASHLAR_TRY(auto maker, object_of<SequencesObject>(sequences.id));
    if (!maker->ticket.life().enter()) return invalid_handle(HandleKind::kSequences, sequences.id);
    PoolTicket ticket(maker->ticket.shared());
    ASHLAR_TRY(auto made, maker->sequences.make_sequence({given.begin(), given.end()}));
    sequence->id =
        open_handle(std::make_shared<SequenceObject>(std::move(maker), std::move(ticket), std::move(made)));
    return {};
  });
}

ashlar_status ashlar_sequence_destroy(ashlar_sequence sequence) {
  return waiting_call([&]() -> Outcome<> {
    // Its blocks go with the object: after the lock.
    ASHLAR_TRY(const auto object, object_of<SequenceObject>(sequence.id));
    const ashlar::MutexLock lock(object->mu);
    if (object->gone) return invalid_handle(HandleKind::kSequence, sequence.id);
    if (object->written_after && !object->written_after->ended()) keep_until(*object->written_after, object);
    object->gone = true;
    return close_handle<SequenceObject>(sequence.id);
  });
}

ashlar_status ashlar_sequence_can_allocate(ashlar_sequence sequence) {
  return with_sequence(sequence,
                       [](const auto& all, Sequence& its) { return tell_room(all.can_allocate(its)); });
}

ashlar_status ashlar_sequence_allocate(ashlar_sequence sequence, size_t* cached) {
  const NoCancellation held;
  return with_sequence(sequence, [&](const auto& all, Sequence& its) -> Outcome<> {
    const auto found = all.allocate(its);
    if (!found) return Refusal(found.error());
    if (cached != nullptr) *cached = *found;
    return {};
  });
}

ashlar_status ashlar_sequence_begin_allocate(ashlar_sequence sequence, size_t* cached, int* pending) {
  const NoCancellation held;
  return with_sequence(sequence, [&](const auto& all, Sequence& its) -> Outcome<> {
    if (pending == nullptr) return null_pointer("pending");
    const auto start = all.begin_allocate(its, [] {});
    if (!start) return Refusal(start.error());
    if (cached != nullptr) *cached = start->cached;
    *pending = start->pending ? 1 : 0;
    return {};
  });
}

ashlar_status ashlar_sequence_arrived(ashlar_sequence sequence, int* arrived) {
  return with_sequence(sequence, [&](const auto&, Sequence& its) -> Outcome<> {
    if (arrived == nullptr) return null_pointer("arrived");
    *arrived = its.arrived() ? 1 : 0;
    return {};
  });
}

ashlar_status ashlar_sequence_wait_layer(ashlar_sequence sequence, uint32_t layer, uint64_t timeout_ns,
                                         uint32_t* out, size_t capacity, size_t* count) {
  const NoCancellation held;
  return with_sequence(sequence, [&](const auto&, Sequence& its) -> Outcome<> {
    ASHLAR_RETURN_IF_ERROR(check_list(out, capacity, count));
    ASHLAR_TRY(const auto ids, its.wait_layer(layer, deadline_of(timeout_ns)));
    return write_list(std::span<const ashlar::block::BlockId>(ids), out, capacity, count);
  });
}

ashlar_status ashlar_sequence_finish_allocate(ashlar_sequence sequence, size_t* cached) {
  const NoCancellation held;
  return with_sequence(sequence, [&](const auto& all, Sequence& its) -> Outcome<> {
    const auto found = all.finish_allocate(its);
    if (!found) return Refusal(found.error());
    if (cached != nullptr) *cached = *found;
    return {};
  });
}

ashlar_status ashlar_sequence_deallocate(ashlar_sequence sequence) {
  const NoCancellation held;
  return with_sequence(sequence, [](const auto& all, Sequence& its) -> Outcome<> {
    if (const auto done = all.deallocate(its); !done) return Refusal(done.error());
    return {};
  });
}

ashlar_status ashlar_sequence_append(ashlar_sequence sequence, uint32_t token) {
  return with_sequence(sequence, [&](const auto&, Sequence& its) -> Outcome<> {
    its.append(ashlar::tokens::Token(token));
    return {};
  });
}

ashlar_status ashlar_sequence_can_append(ashlar_sequence sequence) {
  return with_sequence(sequence,
                       [](const auto& all, Sequence& its) { return tell_room(all.can_append(its)); });
}

ashlar_status ashlar_sequence_may_append(ashlar_sequence sequence, int* new_block, int* block_full) {
  return with_sequence(sequence, [&](const auto& all, Sequence& its) -> Outcome<> {
    const auto done = all.may_append(its);
    if (!done) return Refusal(done.error());
    if (new_block != nullptr) *new_block = done->new_block ? 1 : 0;
    if (block_full != nullptr) *block_full = done->block_full ? 1 : 0;
    return {};
  });
}

ashlar_status ashlar_sequence_computed(ashlar_sequence sequence, size_t tokens, const ashlar_fence* after,
                                       size_t* registered) {
  return call([&]() -> Outcome<> {
    ASHLAR_TRY(const auto object, object_of<SequenceObject>(sequence.id));
    std::optional<ashlar::block::Fence> fence;
    std::unique_ptr<ashlar::block::Fence::Waiting> pool;
    if (after != nullptr) {
      ASHLAR_TRY(fence, fence_of(*after));
      pool = pool_until_fence(object->ticket);
    }
    const ashlar::MutexLock lock(object->mu);
    if (object->gone) return invalid_handle(HandleKind::kSequence, sequence.id);
    const auto count = object->maker->sequences.computed(object->sequence, tokens, fence);
    if (!count) return Refusal(count.error());
    object->written_after = fence;
    if (fence) fence->keep(std::move(pool));
    if (registered != nullptr) *registered = *count;
    return {};
  });
}

ashlar_status ashlar_sequence_get_info(ashlar_sequence sequence, ashlar_sequence_info* info) {
  return with_sequence(sequence, [&](const auto&, Sequence& its) {
    ashlar_sequence_info told = {};
    told.tokens = its.size();
    told.block_count = its.block_count();
    told.cached_tokens = its.cached_tokens();
    told.computed_tokens = its.computed_tokens();
    return write_answer(told, info, "ashlar_sequence_info");
  });
}

ashlar_status ashlar_sequence_block_table(ashlar_sequence sequence, uint32_t* out, size_t capacity,
                                          size_t* count) {
  return with_sequence(sequence, [&](const auto&, Sequence& its) {
    return write_list(its.block_table(), out, capacity, count);
  });
}

ashlar_status ashlar_sequence_tokens(ashlar_sequence sequence, uint32_t* out, size_t capacity,
                                     size_t* count) {
  return with_sequence(
      sequence, [&](const auto&, Sequence& its) { return write_list(its.tokens(), out, capacity, count); });
}

ashlar_status ashlar_sequence_hashes(ashlar_sequence sequence, ashlar_hash* out, size_t capacity,
                                     size_t* count) {
  return with_sequence(sequence, [&](const auto&, Sequence& its) {
    return write_list(its.sequence_hashes(), out, capacity, count);
  });
}
