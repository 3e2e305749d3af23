// Workers as text and as tables of a file.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/service/serve_options.h"
#include "service/config/toml_reader.h"

namespace ashlar::service {

// Errors: kInvalidArgument, as ServeOptions::validate().
Result<void> validate_worker(const WorkerOptions& worker);
// `file`: its name, for refusals.
Result<WorkerOptions> read_worker_table(std::string_view file, const TomlTable& table);
// A [[worker]] table; `note` stands behind its header as a comment.
std::string show_worker_table(const WorkerOptions& worker, std::string_view note);
// The same as a JSON object, with `source`.
std::string show_worker_json(const WorkerOptions& worker, std::string_view source);
// A text of TOML, in quotes.
std::string quote_toml(std::string_view text);

}  // namespace ashlar::service
