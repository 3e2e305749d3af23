#include "module.h"

#include "events.h"
#include "gil.h"
#include "kv.h"

namespace ashlar::python {
namespace {

// While Python can still be called: ends whatever calls it.
void end_callbacks() {
  constexpr auto kPatience = std::chrono::seconds(2);
  end_living_kvs();
  close_open_streams();
  without_gil([&] { wait_for_destruction(kPatience); });
  end_python();
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "Ashlar's library, as the package `ashlar` shows it.";
  module.attr("__version__") = ASHLAR_PYTHON_VERSION;
  nanobind::set_leak_warnings(true);
  bind_errors(module);
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
  bind_index(module);
  bind_feed(module);
  bind_replay(module);
  nanobind::module_::import_("atexit").attr("register")(nanobind::cpp_function(&end_callbacks));
}

}  // namespace ashlar::python
