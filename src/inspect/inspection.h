// Inspection: what a file, a folder or a running service of Ashlar holds, described for people and programs.
//
//   const auto seen = inspect::inspect_path("/nvme0/kv", {.verify = true});
//   if (seen) std::fputs(seen->to_text().c_str(), stdout);
//
// The kind is found by the first bytes: G3 file, file volume, volume object, event file, dump of an index,
// recording of an engine, journal, block set, layout descriptor; a folder is a volume, or holds journals.
// Nothing is written and no lock is taken, so a file in use may be inspected: what its writer changes
// meanwhile may then be counted as damage. The bytes are untrusted.
//
// Thread safety: plain values; the functions may be called from any thread.
// Complexity:    one pass over headers and tables; with `verify`, over all bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar::inspect {

// A value by its name. Names are in snake_case; those that end in `bytes` are shown with a unit too.
struct InspectedField {
  std::string name;
  std::variant<std::uint64_t, bool, std::string> value;
};

// Things of one kind: planes, streams, runs, workers.
struct InspectedList {
  static constexpr std::size_t kMostItems = 1000;  // later ones are counted only

  std::string name;
  std::vector<std::vector<InspectedField>> items = {};
  std::uint64_t left_out = 0;

  void add(std::vector<InspectedField> item) {
    if (items.size() < kMostItems) {
      items.push_back(std::move(item));
    } else {
      ++left_out;
    }
  }
};

struct Inspection {
  static constexpr std::size_t kMostProblems = 20;  // told one by one; all are counted

  std::string kind;  // "G3 file", …
  std::string path;
  std::vector<InspectedField> fields = {};
  std::vector<InspectedList> lists = {};
  std::vector<std::string> notes = {};     // worth knowing; not damage
  std::vector<std::string> problems = {};  // what is damaged
  std::uint64_t damaged = 0;               // damaged blocks, headers, records or places
  bool has_checksums = true;               // of its content
  bool is_verified = false;                // the content too was compared with them

  void add(std::string name, std::uint64_t number) { fields.push_back({std::move(name), number}); }
  void add(std::string name, std::string text) { fields.push_back({std::move(name), std::move(text)}); }
  void add_flag(std::string name, bool flag) { fields.push_back({std::move(name), flag}); }
  // Counts damage, and keeps the sentence about it while there are few.
  void damage(std::string problem, std::uint64_t count = 1);

  // Several lines; safe for a terminal.
  std::string to_text() const;
  // One object: kind, path, the fields, the lists, notes, problems, damaged, verified.
  std::string to_json() const;
};

struct InspectOptions {
  bool verify = false;           // compare the content with its checksums
  std::string journal_key = {};  // file of a journal's key; empty: `key` beside it
};

// Errors: kNotFound; kInvalidArgument: of no kind that is known, or one that does not hold together;
// kCorruption: damaged where its description begins; kUnsupported: another version, or neither file nor
// folder; kIo.
Result<Inspection> inspect_path(const std::string& path, const InspectOptions& options = {});

// A running `ashlar serve`, from what it answers: `fleet` to GET /fleet, `metrics` to GET /metrics. `url` is
// shown as it stands. Errors: kCorruption: an answer that is not the service's.
Result<Inspection> inspect_service(const std::string& url, std::string_view fleet, std::string_view metrics);

}  // namespace ashlar::inspect
