// Sources are applied from the weakest to the strongest; each remembers itself in `sources_`. What a message
// says of a value depends on the setting: of a secret, nothing.
#include <arpa/inet.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <system_error>

#include "ashlar/base/log.h"
#include "ashlar/service/serve_options.h"
#include "base/owned_fd.h"
#include "events/json_writer.h"
#include "service/config/setting_table.h"
#include "service/config/toml_reader.h"
#include "service/config/worker_text.h"

namespace ashlar::service {
namespace {

constexpr std::size_t kMaxTokenFile = 8192;
constexpr std::string_view kOfWorkerFile = "worker_file";  // as the source of a worker

std::string_view source_name(SettingSource source) {
  switch (source) {
    case SettingSource::kDefault:
      return "default";
    case SettingSource::kFile:
      return "file";
    case SettingSource::kEnvironment:
      return "environment";
    case SettingSource::kFlag:
      return "flag";
  }
  return "unknown";
}

// "origin: what, not 'value'"; without the value if it is a secret, or could have one in it.
Error setting_error(const std::string& origin, const SettingRow& row, const std::string& what,
                    std::optional<std::string_view> value) {
  const bool is_shown =
      value && row.form != SettingForm::kSecret && value->find('@') == std::string_view::npos;
  const std::string shown = is_shown ? ", not '" + printable(value->substr(0, 200)) + "'" : "";
  return make_error(ErrorCode::kInvalidArgument, "%s: %s%s", origin.c_str(), what.c_str(), shown.c_str());
}

std::string variable_of(std::string_view name) {
  std::string out = "ASHLAR_";
  for (const char c : name) out += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

std::string flag_of(std::string_view name) {
  std::string out = "--" + std::string(name);
  std::ranges::replace(out, '_', '-');
  return out;
}

// What the three sources are put together in.
struct Assembly {
  ServeOptions options;
  std::map<std::string, SettingSource, std::less<>> sources;

  Result<void> add_file(std::string_view name, std::string_view text);
  Result<void> add_table(std::string_view file, const TomlTable& table);
  Result<void> add_text(const SettingRow& row, std::string_view value, const std::string& origin,
                        SettingSource source);
  Result<void> add_flag(std::string_view name, std::string_view value);
  Result<void> add_worker(std::string_view value, const std::string& origin, SettingSource source);
  Result<void> read_token();

  SettingSource source_of(std::string_view name) const {
    const auto found = sources.find(name);
    return found == sources.end() ? SettingSource::kDefault : found->second;
  }
  // The first worker of a source replaces those of a weaker one.
  void push_worker(WorkerOptions worker, SettingSource source) {
    if (source_of("worker") != source) options.workers.clear();
    sources["worker"] = source;
    options.workers.push_back(std::move(worker));
  }
};

Result<void> Assembly::add_file(std::string_view name, std::string_view text) {
  ASHLAR_TRY(const std::vector<TomlTable> tables, read_toml(name, text));
  for (const TomlTable& table : tables) {
    if (table.is_item && table.name == "worker") {
      ASHLAR_TRY(WorkerOptions worker, read_worker_table(name, table));
      push_worker(std::move(worker), SettingSource::kFile);
      continue;
    }
    if (!table.name.empty())
      return toml_error(name, table.place,
                        "the only tables are [[worker]]; settings stand before the first of them");
    ASHLAR_RETURN_IF_ERROR(add_table(name, table));
  }
  return {};
}

// The keys before the first table.
Result<void> Assembly::add_table(std::string_view file, const TomlTable& table) {
  for (const TomlEntry& entry : table.entries) {
    const SettingRow* const row = find_setting(entry.key);
    if (row == nullptr)
      return toml_error(file, entry.place,
                        "no setting is called '" + printable(entry.key.substr(0, 64)) + "'");
    if (row->form == SettingForm::kWorkers) {
      const auto* const list = std::get_if<TomlArray>(&entry.value.value);
      if (list == nullptr) return toml_error(file, entry.value.place, "worker should be a list of texts");
      for (const TomlValue& item : *list) {
        const auto* const text = std::get_if<std::string>(&item.value);
        if (text == nullptr) return toml_error(file, item.place, "worker should be a list of texts");
        const Result<WorkerOptions> worker = parse_worker(*text);
        if (!worker) return toml_error(file, item.place, worker.error().message());
        push_worker(*worker, SettingSource::kFile);
      }
      continue;
    }
    if (const auto complaint = set_value(*row, options, entry.value)) {
      const auto* const text = std::get_if<std::string>(&entry.value.value);
      const std::optional<std::string_view> shown =
          text == nullptr ? std::nullopt : std::optional<std::string_view>(*text);
      const Error error = setting_error(entry.key, *row, *complaint, shown);
      return toml_error(file, entry.value.place, error.message());
    }
    sources.insert_or_assign(entry.key, SettingSource::kFile);
  }
  return {};
}

Result<void> Assembly::add_worker(std::string_view value, const std::string& origin, SettingSource source) {
  Result<WorkerOptions> worker = parse_worker(value);
  if (!worker)
    return make_error(ErrorCode::kInvalidArgument, "%s: %s", origin.c_str(),
                      worker.error().message().c_str());
  push_worker(std::move(*worker), source);
  return {};
}

Result<void> Assembly::add_text(const SettingRow& row, std::string_view value, const std::string& origin,
                                SettingSource source) {
  if (row.form == SettingForm::kWorkers) {
    while (!value.empty()) {
      const std::string_view word = value.substr(0, value.find_first_of(" \t\n\r"));
      value.remove_prefix(std::min(value.size(), word.size() + 1));
      if (word.empty()) continue;
      ASHLAR_RETURN_IF_ERROR(add_worker(word, origin, source));
    }
    return {};
  }
  if (const auto complaint = set_value(row, options, value))
    return setting_error(origin, row, *complaint, value);
  sources.insert_or_assign(std::string(row.name), source);
  return {};
}

Result<void> Assembly::add_flag(std::string_view name, std::string_view value) {
  std::string key(name);
  std::ranges::replace(key, '-', '_');
  const SettingRow* const row = find_setting(key);
  if (row == nullptr)
    return make_error(ErrorCode::kInvalidArgument, "no flag is called '--%s'",
                      printable(name.substr(0, 64)).c_str());
  return add_text(*row, value, flag_of(key), SettingSource::kFlag);
}

// The token comes from the stronger source of `token` and `token_file`.
Result<void> Assembly::read_token() {
  const SettingSource of_file = source_of("token_file");
  if (options.token_file.empty() || source_of("token") > of_file) return {};
  if (source_of("token") == of_file)
    return make_error(ErrorCode::kInvalidArgument,
                      "token and token_file are both given by the %s: keep one of them",
                      std::string(source_name(of_file)).c_str());
  const auto refuse = [&](const std::string& what) {
    return make_error(ErrorCode::kInvalidArgument, "token_file: '%s' %s",
                      printable(options.token_file).c_str(), what.c_str());
  };
  const OwnedFd file(open(options.token_file.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(kMaxTokenFile, '\0');
  ssize_t size = -1;
  if (file.valid()) {
    do {
      size = read(file.get(), text.data(), text.size());
    } while (size < 0 && errno == EINTR);
  }
  if (size < 0) return refuse("cannot be read: " + std::generic_category().message(errno));
  text.resize(static_cast<std::size_t>(size));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty()) return refuse("holds no token");
  const SettingRow* const row = find_setting("token");
  ServeOptions changed;
  if (const auto complaint = set_value(*row, changed, text))
    return refuse("holds a token that " + *complaint);
  options.token = std::move(changed.token);
  sources.insert_or_assign("token", of_file);
  return {};
}

}  // namespace

bool is_loopback(std::string_view address) {
  const std::string text(address);
  if (text == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  return std::memcmp(&v6, &in6addr_loopback, sizeof(v6)) == 0 ||
         (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

Result<void> ServeOptions::validate() const {
  const auto refuse = [](const std::string& what) {
    return make_error(ErrorCode::kInvalidArgument, "%s", what.c_str());
  };
  for (const SettingRow& row : setting_rows())
    if (const auto complaint = complaint_about(row, *this))
      return setting_error(std::string(row.name), row, *complaint, show_value(row, *this));
  if (address.empty() || address.find_first_of(" \t\n[]@/") != std::string::npos)
    return refuse("address should be an IP address or a name of this machine, not '" + printable(address) +
                  "'");
  if (token.empty() && !is_loopback(address))
    return refuse("address '" + printable(address) +
                  "' can be reached from other machines: set a token, or listen on 127.0.0.1");
  if (tls_certificate.empty() != tls_key.empty())
    return refuse("tls_certificate and tls_key belong together: set both or none");
  if (!journal_key.empty() && journal.empty()) return refuse("journal_key needs journal");
  if (journal_kept_bytes != 0 && journal_kept_bytes < journal_file_bytes)
    return refuse("journal_kept_bytes should be 0, or at least journal_file_bytes");
  std::set<std::string_view> names;
  for (const WorkerOptions& worker : workers) {
    ASHLAR_RETURN_IF_ERROR(validate_worker(worker));
    if (!names.insert(worker.name).second)
      return refuse("worker: two are called '" + printable(worker.name) +
                    "'; give each a name of its own, name=…");
  }
  return {};
}

Result<void> ServeConfig::check_flag(std::string_view name, std::string_view value) {
  return Assembly().add_flag(name, value);
}

Result<ServeConfig> ServeConfig::load(std::string_view file_name, std::string_view file_text,
                                      const std::map<std::string, std::string>& environment,
                                      const std::vector<std::pair<std::string, std::string>>& flags) {
  Assembly assembly;
  ASHLAR_RETURN_IF_ERROR(assembly.add_file(file_name, file_text));
  for (const SettingRow& row : setting_rows()) {
    const std::string name = variable_of(row.name);
    const auto found = environment.find(name);
    if (found == environment.end() || found->second.empty()) continue;
    ASHLAR_RETURN_IF_ERROR(assembly.add_text(row, found->second, name, SettingSource::kEnvironment));
  }
  for (const auto& [name, value] : flags) ASHLAR_RETURN_IF_ERROR(assembly.add_flag(name, value));
  ASHLAR_RETURN_IF_ERROR(assembly.read_token());
  ASHLAR_RETURN_IF_ERROR(assembly.options.validate());
  ServeConfig config;
  config.options_ = std::move(assembly.options);
  config.sources_ = std::move(assembly.sources);
  return config;
}

std::string ServeConfig::describe(std::span<const WorkerOptions> of_file) const {
  const auto source_of = [this](std::string_view name) {
    const auto found = sources_.find(name);
    return source_name(found == sources_.end() ? SettingSource::kDefault : found->second);
  };
  std::string out;
  for (const SettingRow& row : setting_rows()) {
    if (row.form == SettingForm::kWorkers) continue;
    out += std::string(row.name) + " = " + show_toml_value(row, options_) + "  # " +
           std::string(source_of(row.name)) + "\n";
  }
  for (const WorkerOptions& worker : options_.workers)
    out += "\n" + show_worker_table(worker, source_of("worker"));
  for (const WorkerOptions& worker : of_file) out += "\n" + show_worker_table(worker, kOfWorkerFile);
  return out;
}

std::string ServeConfig::describe_json(std::span<const WorkerOptions> of_file) const {
  const auto source_of = [this](std::string_view name) {
    const auto found = sources_.find(name);
    return source_name(found == sources_.end() ? SettingSource::kDefault : found->second);
  };
  std::string out = R"({"settings":{)";
  for (const SettingRow& row : setting_rows()) {
    if (row.form == SettingForm::kWorkers) continue;
    if (out.back() != '{') out += ',';
    events::append_quoted(out, row.name);
    out += R"(:{"value":)";
    // What needs no quotes in TOML, numbers and truths, needs none here.
    const std::string value = show_toml_value(row, options_);
    if (value.starts_with('"')) {
      events::append_quoted(out, show_value(row, options_));
    } else {
      out += value;
    }
    out += R"(,"source":)";
    events::append_quoted(out, source_of(row.name));
    out += '}';
  }
  out += R"(},"workers":[)";
  for (const WorkerOptions& worker : options_.workers) {
    if (out.back() != '[') out += ',';
    out += show_worker_json(worker, source_of("worker"));
  }
  for (const WorkerOptions& worker : of_file) {
    if (out.back() != '[') out += ',';
    out += show_worker_json(worker, kOfWorkerFile);
  }
  return out + "]}\n";
}

Result<std::string> read_whole_file(const std::string& path, std::size_t most) {
  constexpr std::size_t kPiece = 64 << 10;
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  for (;;) {
    const std::size_t size = text.size();
    text.resize(size + kPiece);
    const ssize_t got = file.valid() ? read(file.get(), text.data() + size, kPiece) : -1;
    const int reason = errno;
    if (got < 0 && file.valid() && reason == EINTR) {
      text.resize(size);
      continue;
    }
    if (got < 0)
      return make_error(ErrorCode::kNotFound, "cannot read %s: %s", printable(path).c_str(),
                        std::generic_category().message(reason).c_str());
    text.resize(size + static_cast<std::size_t>(got));
    if (got == 0) return text;
    if (text.size() > most)
      return make_error(ErrorCode::kCapacity, "%s is longer than %zu bytes; nothing of the kind is",
                        printable(path).c_str(), most);
  }
}

Result<std::vector<WorkerOptions>> parse_worker_file(std::string_view name, std::string_view text) {
  ASHLAR_TRY(const std::vector<TomlTable> tables, read_toml(name, text));
  std::vector<WorkerOptions> workers;
  std::set<std::string> names;
  for (const TomlTable& table : tables) {
    if (table.name.empty() && table.entries.empty()) continue;
    if (!table.is_item || table.name != "worker") {
      const TomlPlace& place = table.name.empty() ? table.entries.front().place : table.place;
      return toml_error(name, place, "a worker file has [[worker]] tables and nothing else");
    }
    ASHLAR_TRY(WorkerOptions worker, read_worker_table(name, table));
    if (!names.insert(worker.name).second)
      return toml_error(name, table.place, "two workers are called '" + printable(worker.name) + "'");
    workers.push_back(std::move(worker));
  }
  return workers;
}

}  // namespace ashlar::service
