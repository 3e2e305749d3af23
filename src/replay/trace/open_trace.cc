#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "ashlar/replay/trace.h"
#include "replay/trace/json_fields.h"
#include "replay/trace/trace_forms.h"

namespace ashlar::replay {
namespace {

constexpr std::array<std::pair<TraceFormat, std::string_view>, 8> kFormatNames = {{
    {TraceFormat::kDetect, "detect"},
    {TraceFormat::kMooncake, "mooncake"},
    {TraceFormat::kBailian, "bailian"},
    {TraceFormat::kWeka, "weka"},
    {TraceFormat::kAzure, "azure"},
    {TraceFormat::kBurstGpt, "burstgpt"},
    {TraceFormat::kJournal, "journal"},
    {TraceFormat::kGenerated, "generated"},
}};

// The form by the keys of an object, as far as it can be read.
std::optional<TraceFormat> format_of_object(std::string_view text) {
  TraceFields fields(text);
  bool has_chat = false;
  bool has_requests = false;
  bool has_lengths = false;
  bool more = false;
  if (!fields.in().begin_object("")) return std::nullopt;
  while (fields.next_key(more) && more) {
    const std::string& key = fields.key();
    has_chat |= key == "chat_id";
    has_requests |= key == "requests" || key == "hash_id_scope";
    has_lengths |= key == "input_length" || key == "input_tokens" || key == "hash_ids" ||
                   key == "text_input" || key == "messages" || key == "payload";
    if (!fields.in().skip()) break;
  }
  if (has_chat) return TraceFormat::kBailian;
  if (has_requests) return TraceFormat::kWeka;
  if (has_lengths) return TraceFormat::kMooncake;
  return std::nullopt;
}

Error not_recognised(const std::string& path, const char* why) {
  return make_error(ErrorCode::kInvalidArgument, "%s: %s", path.c_str(), why);
}

Result<TraceFormat> detect(const std::string& path, std::string_view head) {
  if (head.starts_with("\xEF\xBB\xBF")) head.remove_prefix(3);
  if (head.starts_with("ASHLARJ")) return TraceFormat::kJournal;
  if (head.starts_with("ASHLFEED"))
    return not_recognised(path,
                          "these are events of blocks, not requests; `ashlar serve --record FILE` and "
                          "`--journal DIR` write traces of requests");
  if (head.starts_with("\x1F\x8B"))
    return not_recognised(path,
                          "compressed; unpack it, or pipe it through zcat and give `-` as the trace (not "
                          "Weka sessions and journals, which are read from files)");
  if (head.starts_with("PAR1")) return not_recognised(path, "a Parquet file; write it as JSON lines first");
  const std::size_t begin = head.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return not_recognised(path, "the trace is empty");
  head.remove_prefix(begin);
  if (head.front() == '{') {
    if (const auto format = format_of_object(head)) return *format;
  } else {
    const std::string_view first = head.substr(0, head.find('\n'));
    if (first.find("ContextTokens") != std::string_view::npos) return TraceFormat::kAzure;
    if (first.find("Request tokens") != std::string_view::npos) return TraceFormat::kBurstGpt;
  }
  return not_recognised(
      path,
      "not recognised as a trace; the forms are mooncake, bailian, weka, azure, burstgpt and "
      "journal (--format)");
}

bool has_suffix(const std::filesystem::path& path, std::string_view suffix) {
  return path.extension() == suffix;
}

// A size that the form would not use is refused.
Result<void> check_block_size(TraceFormat format, const TraceOptions& options) {
  if (options.block_size == 0 || format == TraceFormat::kMooncake || format == TraceFormat::kBailian)
    return {};
  const bool has_blocks = format == TraceFormat::kWeka || format == TraceFormat::kJournal;
  return make_error(ErrorCode::kInvalidArgument,
                    "a block size of %u is given, but a trace of the form %s %s; leave it out",
                    options.block_size, std::string(to_string(format)).c_str(),
                    has_blocks ? "says its own" : "has no blocks");
}

Result<std::unique_ptr<TraceSource>> open_folder(const std::string& path, const TraceOptions& options) {
  std::vector<std::string> sessions;
  bool has_journal = false;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(path, failed)) {
    has_journal |= has_suffix(entry.path(), ".journal");
    if (has_suffix(entry.path(), ".json") || has_suffix(entry.path(), ".jsonl"))
      sessions.push_back(entry.path().string());
  }
  if (failed)
    return make_error(ErrorCode::kIo, "cannot list the folder %s: %s", path.c_str(),
                      failed.message().c_str());
  const TraceFormat format = options.format;
  if (format == TraceFormat::kJournal || (format == TraceFormat::kDetect && has_journal)) {
    ASHLAR_RETURN_IF_ERROR(check_block_size(TraceFormat::kJournal, options));
    return open_journal(path, options);
  }
  if ((format != TraceFormat::kDetect && format != TraceFormat::kWeka) || sessions.empty())
    return not_recognised(path,
                          "a folder holds a journal, or Weka sessions in .json files; this one does not");
  ASHLAR_RETURN_IF_ERROR(check_block_size(TraceFormat::kWeka, options));
  std::ranges::sort(sessions);
  return open_weka(std::move(sessions), options);
}

}  // namespace

Error no_requests(const TraceFacts& facts) {
  if (facts.skipped_lines == 0) return Error(ErrorCode::kInvalidArgument, "the trace has no requests");
  return make_error(ErrorCode::kInvalidArgument,
                    "none of the trace's %llu lines could be read; the first: %s",
                    static_cast<unsigned long long>(facts.skipped_lines), facts.first_skipped.c_str());
}

std::string_view to_string(TraceFormat format) noexcept {
  for (const auto& [known, name] : kFormatNames)
    if (known == format) return name;
  return "unknown";
}

std::vector<std::string> trace_format_names() {
  std::vector<std::string> names;
  for (const auto& [format, known] : kFormatNames)
    if (format != TraceFormat::kGenerated) names.emplace_back(known);
  return names;
}

Result<TraceFormat> parse_trace_format(std::string_view name) {
  for (const auto& [format, known] : kFormatNames)
    if (format != TraceFormat::kGenerated && known == name) return format;
  std::string names;
  for (const std::string& known : trace_format_names()) names += (names.empty() ? "" : ", ") + known;
  return Error(ErrorCode::kInvalidArgument,
               "there is no trace format \"" + std::string(name) + "\"; the formats are " + names);
}

Result<std::unique_ptr<TraceSource>> open_trace(const std::string& path, const TraceOptions& options) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) return open_folder(path, options);
  ASHLAR_TRY(LineSource lines, LineSource::open(path));
  TraceFormat format = options.format;
  if (format == TraceFormat::kDetect) {
    ASHLAR_TRY(const std::string_view head, lines.peek());
    ASHLAR_TRY(format, detect(path, head));
  }
  ASHLAR_RETURN_IF_ERROR(check_block_size(format, options));
  switch (format) {
    case TraceFormat::kMooncake:
      return open_mooncake(std::move(lines), options);
    case TraceFormat::kBailian:
      return open_bailian(std::move(lines), options);
    case TraceFormat::kWeka:
      if (path == "-")
        return not_recognised(path,
                              "Weka sessions are read from a file or a folder, as they are read twice; "
                              "write the input into a file");
      return open_weka({path}, options);
    case TraceFormat::kAzure:
      return open_azure(std::move(lines), options);
    case TraceFormat::kBurstGpt:
      return open_burst_gpt(std::move(lines), options);
    case TraceFormat::kJournal:
      if (path == "-") return not_recognised(path, "a journal is read from its file or folder");
      return open_journal(path, options);
    case TraceFormat::kDetect:
    case TraceFormat::kGenerated:
      break;
  }
  return not_recognised(path, "this is no form of a file");
}

}  // namespace ashlar::replay
