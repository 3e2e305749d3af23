// KvReady: the proof that the KV of a block exists.
//
// A block may be registered only when its KV has been computed or copied. Every way to a CompleteBlock takes
// this proof or creates it: InflightBlock::compute_done() creates it from a fence that has passed, a transfer
// creates it from its completion, and a caller who knows by other means says so by name.
//
// Thread safety: immutable value.
#pragma once

namespace ashlar::block {

class KvReady {
 public:
  // "I, the caller, vouch that the KV of this block is complete in its memory."
  static constexpr KvReady asserted_by_caller() noexcept { return KvReady(); }

 private:
  constexpr KvReady() = default;
};

}  // namespace ashlar::block
