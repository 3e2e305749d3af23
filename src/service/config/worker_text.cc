#include "service/config/worker_text.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "ashlar/base/log.h"
#include "ashlar/tokens/hash_scheme.h"
#include "ashlar/tokens/token.h"
#include "events/json_writer.h"
#include "service/config/setting_values.h"

namespace ashlar::service {
namespace {

constexpr std::uint32_t kMaxRanks = 1024;
constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kMaxTopicBytes = 256;
constexpr std::size_t kMaxSaltBytes = 256;

// What stands behind the commas of a worker, in the order in which it is written again.
struct WorkerOption {
  std::string_view name;
  std::string WorkerOptions::* text;
  std::uint32_t WorkerOptions::* number;
};

constexpr std::array<WorkerOption, 14> kWorkerOptions = {{
    {"name", &WorkerOptions::name, nullptr},
    {"events", &WorkerOptions::events, nullptr},
    {"replay", &WorkerOptions::replay, nullptr},
    {"topic", &WorkerOptions::topic, nullptr},
    {"dp", nullptr, &WorkerOptions::dp},
    {"model", &WorkerOptions::model, nullptr},
    {"block_size", nullptr, &WorkerOptions::block_size},
    {"scheme", &WorkerOptions::scheme, nullptr},
    {"salt", &WorkerOptions::salt, nullptr},
    {"g1", nullptr, &WorkerOptions::g1},
    {"g2", nullptr, &WorkerOptions::g2},
    {"g3", nullptr, &WorkerOptions::g3},
    {"key_file", &WorkerOptions::key_file, nullptr},
    {"key_env", &WorkerOptions::key_env, nullptr},
}};

// A worker's text for a message: nothing of it where it may have a password or a key.
std::string shown_worker(std::string_view text) {
  if (text.find('@') != std::string_view::npos || text.find("key=") != std::string_view::npos)
    return "(hidden)";
  return "'" + printable(text.substr(0, 200)) + "'";
}

Error worker_error(std::string_view text, std::string_view what) {
  return make_error(ErrorCode::kInvalidArgument, "the worker %s is not understood: %s",
                    shown_worker(text).c_str(), std::string(what).c_str());
}

// host, host:port, [v6], [v6]:port.
std::optional<std::string_view> split_authority(std::string_view text, HttpAddress& out) {
  std::string_view port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return "the bracket of its IPv6 address does not close";
    out.host = text.substr(1, end - 1);
    if (out.host.find_first_not_of("0123456789abcdefABCDEF:.%") != std::string::npos)
      return "only an IPv6 address stands in brackets";
    port = text.substr(end + 1);
    has_port = !port.empty();
    if (has_port && port[0] != ':') return "a port stands behind a colon";
    if (has_port) port.remove_prefix(1);
  } else {
    const std::size_t colon = text.find(':');
    out.host = text.substr(0, colon);
    has_port = colon != std::string_view::npos;
    if (has_port) port = text.substr(colon + 1);
    if (port.find(':') != std::string_view::npos) return "an IPv6 address stands in brackets";
  }
  const auto is_visible = [](char c) { return c > ' ' && c < 0x7F; };
  if (out.host.empty() || !std::ranges::all_of(out.host, is_visible)) return "it has no host";
  if (!has_port) return std::nullopt;
  const std::optional<std::uint64_t> number = read_number(port, 65'535);
  if (!number || *number == 0) return "its port should be a number from 1 to 65535";
  out.port = static_cast<std::uint16_t>(*number);
  return std::nullopt;
}

// Returns what is wrong, if anything is.
std::optional<std::string_view> read_worker_url(std::string_view url, HttpAddress& out) {
  if (url.starts_with("http://")) {
    url.remove_prefix(7);
    out.port = 80;
  } else if (url.starts_with("https://")) {
    url.remove_prefix(8);
    out.port = 443;
    out.tls = true;
  } else {
    return "it should begin with http:// or https://";
  }
  if (url.find('@') != std::string_view::npos) return "a URL of a worker has no user or password";
  if (url.ends_with('/')) url.remove_suffix(1);
  if (url.find_first_of("/?#") != std::string_view::npos)
    return "a URL of a worker ends with its port; it has no path";
  return split_authority(url, out);
}

std::string worker_option_names() {
  std::string out;
  for (const WorkerOption& option : kWorkerOptions) {
    if (!out.empty()) out += ", ";
    out += option.name;
  }
  return out;
}

const WorkerOption* find_worker_option(std::string_view name) {
  const auto found = std::ranges::find(kWorkerOptions, name, &WorkerOption::name);
  return found == kWorkerOptions.end() ? nullptr : &*found;
}

// The port of tcp://host:port; nullopt for other endpoints.
std::optional<std::uint64_t> port_of_endpoint(std::string_view endpoint) {
  if (!endpoint.starts_with("tcp://")) return std::nullopt;
  const std::optional<std::uint64_t> port = read_number(endpoint.substr(endpoint.rfind(':') + 1), 65'535);
  return port && *port != 0 && endpoint.rfind(':') > 6 ? port : std::nullopt;
}

bool is_endpoint(std::string_view endpoint, std::uint32_t ranks) {
  if (endpoint.find_first_of(" ,@") != std::string_view::npos) return false;
  if (endpoint.starts_with("ipc://")) return endpoint.size() > 6 && ranks == 1;
  const std::optional<std::uint64_t> port = port_of_endpoint(endpoint);
  return port && *port + ranks - 1 <= 65'535;
}

}  // namespace

Result<WorkerOptions> parse_worker(std::string_view text) {
  WorkerOptions worker;
  std::string_view rest = text;
  const auto next = [&rest] {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    return part;
  };
  if (text.ends_with(',')) return worker_error(text, "it ends with a comma");
  if (const auto wrong = read_worker_url(next(), worker.address)) return worker_error(text, *wrong);
  std::array<bool, kWorkerOptions.size()> seen = {};
  while (!rest.empty()) {
    const std::string_view part = next();
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) return worker_error(text, "options are written name=value");
    const WorkerOption* const option = find_worker_option(part.substr(0, equals));
    if (option == nullptr) return worker_error(text, "its options are " + worker_option_names());
    bool& is_seen = seen[static_cast<std::size_t>(option - kWorkerOptions.data())];
    if (std::exchange(is_seen, true)) return worker_error(text, "an option stands twice");
    const std::string_view value = part.substr(equals + 1);
    if (option->text != nullptr) {
      worker.*option->text = value;
      continue;
    }
    const std::optional<std::uint64_t> number = read_number(value, UINT32_MAX);
    if (!number) return worker_error(text, std::string(option->name) + " should be a number");
    worker.*option->number = static_cast<std::uint32_t>(*number);
  }
  if (worker.name.empty()) worker.name = worker.address.authority();
  ASHLAR_RETURN_IF_ERROR(validate_worker(worker));
  return worker;
}

Result<void> validate_worker(const WorkerOptions& worker) {
  const auto refuse = [&](const char* what) {
    return make_error(ErrorCode::kInvalidArgument, "the worker %s is not allowed: %s",
                      shown_worker(worker.name).c_str(), what);
  };
  const auto is_visible = [](char c) { return c > ' ' && c < 0x7F && c != ',' && c != '"' && c != '\\'; };
  if (worker.name.empty() || worker.name.size() > kMaxNameBytes ||
      !std::ranges::all_of(worker.name, is_visible))
    return refuse("its name should be 1 to 128 visible characters, without comma, quote and backslash");
  if (worker.address.host.empty() || worker.address.port == 0) return refuse("it has no host or no port");
  if (worker.dp == 0 || worker.dp > kMaxRanks) return refuse("dp should be from 1 to 1024");
  if (!worker.events.empty() && !is_endpoint(worker.events, worker.dp))
    return refuse("events should be tcp://host:port, with a port for every rank, or with dp=1 ipc://path");
  if (!worker.replay.empty() && !is_endpoint(worker.replay, worker.dp))
    return refuse("replay should be tcp://host:port, with a port for every rank, or with dp=1 ipc://path");
  if (!worker.replay.empty() && worker.events.empty()) return refuse("replay needs events");
  if (!worker.topic.empty() && worker.events.empty()) return refuse("topic needs events");
  if (worker.topic.size() > kMaxTopicBytes) return refuse("topic should have at most 256 bytes");
  if (worker.block_size > tokens::kMaxBlockSize) return refuse("block_size should be at most 65536 tokens");
  if (!worker.scheme.empty() && !tokens::HashScheme::by_name(worker.scheme))
    return refuse("scheme should be xxh3_chain or xxh64_int64");
  if (worker.salt.size() > kMaxSaltBytes || !std::ranges::all_of(worker.salt, is_visible))
    return refuse("salt should be at most 256 visible characters, without comma, quote and backslash");
  if (!worker.key_file.empty() && !worker.key_env.empty())
    return refuse("its key is in a file or in a variable: keep one of key_file and key_env");
  if (worker.model.empty() && !(worker.scheme.empty() && worker.salt.empty()))
    return refuse("scheme and salt are of a model: name it with model=");
  return {};
}

Result<WorkerOptions> read_worker_table(std::string_view file, const TomlTable& table) {
  WorkerOptions worker;
  bool has_url = false;
  for (const TomlEntry& entry : table.entries) {
    const auto wrong = [&](const std::string& what) {
      return toml_error(file, entry.value.place, entry.key + " " + what);
    };
    const auto* const text = std::get_if<std::string>(&entry.value.value);
    const WorkerOption* const option = find_worker_option(entry.key);
    if (entry.key == "url") {
      if (text == nullptr) return wrong("should be a text, not " + std::string(entry.value.kind()));
      if (const auto what = read_worker_url(*text, worker.address))
        return wrong(shown_worker(*text) + " is not understood: " + std::string(*what));
      has_url = true;
    } else if (option == nullptr) {
      return toml_error(file, entry.place,
                        "this key is not known; a worker has url, " + worker_option_names());
    } else if (option->text != nullptr) {
      if (text == nullptr) return wrong("should be a text, not " + std::string(entry.value.kind()));
      worker.*option->text = *text;
    } else {
      const auto* const number = std::get_if<std::int64_t>(&entry.value.value);
      if (number == nullptr || *number < 0 || *number > UINT32_MAX)
        return wrong("should be a number from 0 to 4294967295");
      worker.*option->number = static_cast<std::uint32_t>(*number);
    }
  }
  if (!has_url) return toml_error(file, table.place, "a worker needs url = \"http://host:port\"");
  if (worker.name.empty()) worker.name = worker.address.authority();
  if (const Result<void> valid = validate_worker(worker); !valid)
    return toml_error(file, table.place, valid.error().message());
  return worker;
}

std::string quote_toml(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\u00";
      out += "0123456789abcdef"[byte >> 4];
      out += "0123456789abcdef"[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string show_worker_table(const WorkerOptions& worker, std::string_view note) {
  std::string out = "[[worker]]  # " + std::string(note) + "\n";
  out += "url = " + quote_toml((worker.address.tls ? "https://" : "http://") + worker.address.authority()) +
         "\n";
  for (const WorkerOption& option : kWorkerOptions) {
    const std::string name(option.name);
    if (option.text != nullptr && !(worker.*option.text).empty())
      out += name + " = " + quote_toml(worker.*option.text) + "\n";
    if (option.number != nullptr) out += name + " = " + std::to_string(worker.*option.number) + "\n";
  }
  return out;
}

std::string show_worker_json(const WorkerOptions& worker, std::string_view source) {
  std::string out = R"({"source":)";
  events::append_quoted(out, source);
  out += R"(,"url":)";
  events::append_quoted(out, (worker.address.tls ? "https://" : "http://") + worker.address.authority());
  for (const WorkerOption& option : kWorkerOptions) {
    const std::string key = ",\"" + std::string(option.name) + "\":";
    if (option.text != nullptr && !(worker.*option.text).empty())
      events::append_quoted(out += key, worker.*option.text);
    if (option.number != nullptr) out += key + std::to_string(worker.*option.number);
  }
  return out + "}";
}

}  // namespace ashlar::service
