#include "module.h"

#include "events.h"
#include "fork.h"
#include "gil.h"
#include "interrupts.h"
#include "kv.h"

namespace ashlar::python {
namespace {

// While Python can still be called: ends whatever calls it.
void end_callbacks() {
  constexpr auto kPatience = std::chrono::seconds(2);
  const bool all_ended = end_living_kvs();
  close_open_streams();
  const bool calls_ended = without_gil([&] { return wait_for_calls_elsewhere(kPatience); });
  // Threads that are left keep what they use for ever: that is no leak.
  const nanobind::object count = nanobind::module_::import_("threading").attr("active_count")();
  if (!all_ended || !calls_ended || nanobind::cast<int>(count) > 1) nanobind::set_leak_warnings(false);
  without_gil([&] { wait_for_destruction(kPatience); });
  end_python();
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "Ashlar's library, as the package `ashlar` shows it.";
  module.attr("__version__") = ASHLAR_PYTHON_VERSION;
  nanobind::set_leak_warnings(true);
  bind_errors(module);
  bind_fork();
  bind_hashes(module);
  bind_tokens(module);
  bind_token_sequence(module);
  bind_engine_hashes(module);
  bind_guards(module);
  bind_block_lists(module);
  bind_events(module);
  bind_blocks(module);
  bind_requests(module);
  bind_batches(module);
  bind_overhead(module);
  bind_tiers(module);
  bind_host_store(module);
  bind_index(module);
  bind_feed(module);
  bind_replay(module);
  nanobind::module_::import_("atexit").attr("register")(nanobind::cpp_function(&end_callbacks));
}

}  // namespace ashlar::python
