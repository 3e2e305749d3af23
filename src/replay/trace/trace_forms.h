// The forms of traces: one function each, and how to tell them apart.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ashlar/replay/trace.h"
#include "replay/trace/line_source.h"

namespace ashlar::replay {

Result<std::unique_ptr<TraceSource>> open_mooncake(LineSource lines, const TraceOptions& options);
Result<std::unique_ptr<TraceSource>> open_bailian(LineSource lines, const TraceOptions& options);
// Requires: at least one file. All of them are read in turn.
Result<std::unique_ptr<TraceSource>> open_weka(std::vector<std::string> files, const TraceOptions& options);
Result<std::unique_ptr<TraceSource>> open_azure(LineSource lines, const TraceOptions& options);
Result<std::unique_ptr<TraceSource>> open_burst_gpt(LineSource lines, const TraceOptions& options);
// Reads the whole journal: a record tells at its end only whether it is genuine.
Result<std::unique_ptr<TraceSource>> open_journal(const std::string& path, const TraceOptions& options);

// The error of a trace in which there was nothing, for those that read it to its end.
Error no_requests(const TraceFacts& facts);

}  // namespace ashlar::replay
