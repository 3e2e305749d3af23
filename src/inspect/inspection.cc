#include "inspect/inspection.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "service/gateway/json_text.h"

namespace ashlar::inspect {
namespace {

using InspectedItem = std::vector<InspectedField>;

std::string as_words(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string with_unit(std::uint64_t bytes) {
  constexpr std::array<const char*, 7> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double size = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (size >= 1024 && unit + 1 < kUnits.size()) {
    size /= 1024;
    ++unit;
  }
  if (unit == 0) return std::to_string(bytes);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%llu (%.1f %s)", static_cast<unsigned long long>(bytes), size,
                kUnits[unit]);
  return text.data();
}

std::string shown(const InspectedField& field) {
  if (const auto* text = std::get_if<std::string>(&field.value)) return printable(*text);
  if (const auto* flag = std::get_if<bool>(&field.value)) return *flag ? "yes" : "no";
  const std::uint64_t number = std::get<std::uint64_t>(field.value);
  return field.name.ends_with("bytes") ? with_unit(number) : std::to_string(number);
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string space(width > text.size() ? width - text.size() : 0, ' ');
  return right ? space + text : text + space;
}

// A column for each name, in the order in which the items bring them.
std::string table_of(const InspectedList& list) {
  struct Column {
    std::string name;
    std::size_t width = 0;
    bool is_number = true;
  };
  std::vector<Column> columns;
  for (const InspectedItem& item : list.items)
    for (const InspectedField& field : item) {
      auto column = std::ranges::find(columns, field.name, &Column::name);
      if (column == columns.end()) column = columns.insert(columns.end(), {field.name, field.name.size()});
      column->width = std::max(column->width, shown(field).size());
      column->is_number &= std::holds_alternative<std::uint64_t>(field.value);
    }
  const auto end_line = [](std::string& line) {
    line.erase(line.find_last_not_of(' ') + 1);
    line += '\n';
  };
  std::string out = "  " + as_words(list.name) + "\n";
  std::string line = "   ";
  for (const Column& column : columns)
    line += " " + padded(as_words(column.name), column.width, column.is_number) + " ";
  end_line(line);
  out += line;
  for (const InspectedItem& item : list.items) {
    line = "   ";
    for (const Column& column : columns) {
      const auto field = std::ranges::find(item, column.name, &InspectedField::name);
      line += " " + padded(field == item.end() ? "" : shown(*field), column.width, column.is_number) + " ";
    }
    end_line(line);
    out += line;
  }
  if (list.left_out != 0) out += "    and " + std::to_string(list.left_out) + " more\n";
  return out;
}

void write_fields(service::JsonText& out, const InspectedItem& fields) {
  for (const InspectedField& field : fields)
    std::visit([&](const auto& value) { out.field(field.name, value); }, field.value);
}

void write_texts(service::JsonText& out, const char* name, const std::vector<std::string>& texts) {
  out.field(name, [&] {
    out.array([&] {
      for (const std::string& text : texts) out.value(text);
    });
  });
}

}  // namespace

void Inspection::damage(std::string problem, std::uint64_t count) {
  ASHLAR_DCHECK(count != 0, "damage of nothing: %s", problem.c_str());
  damaged += count;
  if (problems.size() < kMostProblems) problems.push_back(std::move(problem));
}

std::string Inspection::to_text() const {
  std::string out = printable(path) + ": " + kind + "\n";
  std::size_t width = 0;
  for (const InspectedField& field : fields) width = std::max(width, field.name.size());
  for (const InspectedField& field : fields)
    out += "  " + padded(as_words(field.name), width, false) + "  " + shown(field) + "\n";
  for (const InspectedList& list : lists)
    if (!list.items.empty()) out += table_of(list);
  for (const std::string& note : notes) out += "  note: " + printable(note) + "\n";
  for (const std::string& problem : problems) out += "  damaged: " + printable(problem) + "\n";
  if (problems.size() == kMostProblems && damaged > kMostProblems)
    out += "  damaged: these are the first of " + std::to_string(damaged) + "\n";
  if (damaged == 0 && is_verified) out += "  verified: every checksum agrees\n";
  if (damaged == 0 && has_checksums && !is_verified)
    out += "  no damage seen; --verify compares the content with its checksums too\n";
  return out;
}

std::string Inspection::to_json() const {
  service::JsonText out;
  out.object([&] {
    out.field("kind", kind);
    out.field("path", path);
    write_fields(out, fields);
    for (const InspectedList& list : lists) {
      out.field(list.name, [&] {
        out.array([&] {
          for (const InspectedItem& item : list.items) out.object([&] { write_fields(out, item); });
        });
      });
      if (list.left_out != 0) out.field(list.name + "_left_out", list.left_out);
    }
    write_texts(out, "notes", notes);
    write_texts(out, "problems", problems);
    out.field("damaged", damaged);
    out.field("verified", is_verified);
  });
  return out.text() + "\n";
}

}  // namespace ashlar::inspect
