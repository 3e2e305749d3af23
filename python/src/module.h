// The parts of the extension module ashlar._native: one function per file, called in the order of layers.
#pragma once

#include <nanobind/nanobind.h>

namespace ashlar::python {

void bind_errors(nanobind::module_& module);
void bind_hashes(nanobind::module_& module);
void bind_tokens(nanobind::module_& module);
void bind_token_sequence(nanobind::module_& module);
void bind_engine_hashes(nanobind::module_& module);
void bind_guards(nanobind::module_& module);
void bind_block_lists(nanobind::module_& module);
void bind_blocks(nanobind::module_& module);
void bind_requests(nanobind::module_& module);
void bind_batches(nanobind::module_& module);
void bind_overhead(nanobind::module_& module);
void bind_events(nanobind::module_& module);
void bind_tiers(nanobind::module_& module);
void bind_host_store(nanobind::module_& module);
void bind_index(nanobind::module_& module);
void bind_feed(nanobind::module_& module);
void bind_replay(nanobind::module_& module);

}  // namespace ashlar::python
