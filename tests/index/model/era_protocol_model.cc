#include "index/model/era_protocol_model.h"

#include <utility>

namespace ashlar::index::model {
namespace {

// Where things lie in memory.
constexpr int kEra = 0;
constexpr int kRoot = 3;
constexpr int kLines = 8;
constexpr int line_of(int reader) {
  return 1 + reader;
}
// Object 2 is the first child and has no link.
constexpr int link_of(int node) {
  return node == 1 ? 4 : node + 2;
}
static_assert(link_of(EraProtocol::kObjects) < kLines && kLines < EraProtocol::kLimits.locations);

enum Content : Value { kNothing, kWhole, kFreed };

constexpr Value announcement(int first, int last) {
  return static_cast<Value>(first | last << 8);
}

}  // namespace

EraProtocol::EraProtocol(Scenario scenario, Orders orders, Rules rules)
    : scenario_(std::move(scenario)), orders_(orders), rules_(rules) {}

EraProtocol::State EraProtocol::initial() const {
  State state;
  for (int location = 0; location < kLimits.locations; ++location) state.memory.set_initial(location, 0);
  state.memory.set_initial(kEra, state.writer.era);
  state.memory.set_initial(kRoot, state.writer.node);
  state.memory.set_initial(link_of(state.writer.node), state.writer.child);
  state.memory.set_initial(kLines, scenario_.new_lines ? 0 : kReaders);
  for (int object = 1; object <= state.writer.made; ++object)
    state.memory.set_initial_plain(object - 1, kWhole);
  begin(state.writer);
  for (int r = 0; r < kReaders; ++r) {
    Reader& reader = state.readers[r];
    reader.walks = static_cast<std::uint8_t>(scenario_.walks[r]);
    if (!scenario_.new_lines) reader.lines = kReaders;
    begin_walk(reader, r);
  }
  return state;
}

bool EraProtocol::done(const State& state, int thread) const {
  return thread == 0 ? state.writer.phase == WriterPhase::kEnd
                     : state.readers[thread - 1].phase == ReaderPhase::kEnd;
}

bool EraProtocol::is_local(const State& state, int thread) const {
  if (thread == 0)
    return state.writer.phase == WriterPhase::kMake || state.writer.phase == WriterPhase::kFree;
  return state.readers[thread - 1].unnoticed;
}

void EraProtocol::step(State& state, Access& access) const {
  if (access.thread() == 0) {
    step_writer(state.writer, access);
  } else {
    step_reader(state.readers[access.thread() - 1], state.writer, access);
  }
}

// The writer.

void EraProtocol::begin(Writer& writer) const {
  if (writer.write == scenario_.writes.size()) {
    writer.phase = WriterPhase::kEnd;
    return;
  }
  switch (scenario_.writes[writer.write]) {
    case Write::kReplaceNode:
    case Write::kReplaceChild:
    case Write::kLinkChild:
      writer.phase = WriterPhase::kMake;
      return;
    case Write::kUnlinkChild:
      writer.phase = WriterPhase::kLink;
      return;
    case Write::kAdvance:
      writer.phase = WriterPhase::kAdvance;
      return;
    case Write::kScan:
      writer.phase = rules_.advances_before_scan ? WriterPhase::kAdvance : WriterPhase::kLines;
      return;
  }
}

void EraProtocol::step_writer(Writer& writer, Access& access) const {
  const auto end_write = [&] {
    ++writer.write;
    begin(writer);
  };
  const bool scans = scenario_.writes[writer.write] == Write::kScan;
  switch (writer.phase) {
    case WriterPhase::kMake:
      access.at("make");
      make(writer, access);
      writer.phase = WriterPhase::kLink;
      return;
    case WriterPhase::kLink:
      access.at("link");
      link(writer, access);
      return end_write();
    case WriterPhase::kAdvance:
      access.at("advance");
      access.store(kEra, ++writer.era, orders_.advance);
      if (!scans || !rules_.advances_before_scan) return end_write();
      writer.phase = WriterPhase::kLines;
      return;
    case WriterPhase::kLines:
      access.at("scan lines");
      writer.lines = static_cast<std::uint8_t>(access.load(kLines, orders_.read_lines));
      writer.line = 0;
      writer.phase = writer.lines == 0 ? WriterPhase::kFree : WriterPhase::kLine;
      return;
    case WriterPhase::kLine: {
      access.at("scan line");
      const Value eras = access.load(line_of(writer.line), orders_.scan);
      writer.first[writer.line] = static_cast<std::uint8_t>(eras & 0xff);
      writer.last[writer.line] = static_cast<std::uint8_t>(eras >> 8);
      if (++writer.line == writer.lines) writer.phase = WriterPhase::kFree;
      return;
    }
    case WriterPhase::kFree:
      access.at("free");
      free(writer, access);
      writer.first = writer.last = {};
      writer.line = writer.lines = 0;
      if (rules_.advances_before_scan) return end_write();
      writer.phase = WriterPhase::kAdvance;
      return;
    case WriterPhase::kEnd:
      return;
  }
}

void EraProtocol::make(Writer& writer, Access& access) const {
  const int object = ++writer.made;
  writer.birth[object - 1] = writer.era;
  access.write(object - 1, kWhole);
  // Nobody sees the link before the node is linked, so that it needs no step of its own.
  if (scenario_.writes[writer.write] == Write::kReplaceNode)
    access.store(link_of(object), writer.child, std::memory_order_relaxed);
}

void EraProtocol::link(Writer& writer, Access& access) const {
  const auto retire = [&](std::uint8_t object) { writer.retired[object - 1] = writer.era; };
  switch (scenario_.writes[writer.write]) {
    case Write::kReplaceNode:
      access.store(kRoot, writer.made, orders_.link);
      retire(std::exchange(writer.node, writer.made));
      return;
    case Write::kReplaceChild:
      access.store(link_of(writer.node), writer.made, orders_.link);
      retire(std::exchange(writer.child, writer.made));
      return;
    case Write::kLinkChild:
      access.store(link_of(writer.node), writer.made, orders_.link);
      writer.child = writer.made;
      return;
    case Write::kUnlinkChild:
      access.store(link_of(writer.node), 0, orders_.link);
      retire(std::exchange(writer.child, std::uint8_t{0}));
      writer.unlinked = true;
      return;
    case Write::kAdvance:
    case Write::kScan:
      return;
  }
}

void EraProtocol::free(Writer& writer, Access& access) const {
  for (int object = 1; object <= writer.made; ++object) {
    if (writer.retired[object - 1] == 0 || writer.freed[object - 1] != 0 || held(writer, object)) continue;
    access.write(object - 1, kFreed);
    writer.freed[object - 1] = 1;
  }
}

bool EraProtocol::held(const Writer& writer, int object) const {
  const int from = writer.birth[object - 1] + (rules_.birth_era_holds ? 0 : 1);
  const int to = writer.retired[object - 1] - (rules_.retire_era_holds ? 0 : 1);
  for (int r = 0; r < kReaders; ++r)
    if (writer.first[r] != 0 && from <= writer.last[r] && writer.first[r] <= to) return true;
  return false;
}

// A reader.

void EraProtocol::begin_walk(Reader& reader, int number) const {
  reader.first = reader.era = reader.node = reader.child = 0;
  if (reader.walks == 0) {
    reader.phase = ReaderPhase::kEnd;
  } else if (reader.lines <= number && rules_.raises_lines_first) {
    reader.phase = ReaderPhase::kRaise;
  } else {
    reader.phase = ReaderPhase::kGuess;
  }
}

bool EraProtocol::is_unnoticed(ReaderPhase phase) const {
  constexpr auto kConsistent = std::memory_order_seq_cst;
  switch (phase) {
    case ReaderPhase::kGuess:
      return orders_.guess != kConsistent;
    case ReaderPhase::kConfirm:
      return orders_.confirm != kConsistent;
    case ReaderPhase::kRoot:
    case ReaderPhase::kLink:
      return orders_.follow != kConsistent;
    case ReaderPhase::kRootStill:
    case ReaderPhase::kLinkStill:
      return orders_.still != kConsistent;
    case ReaderPhase::kNode:
    case ReaderPhase::kChild:
      return true;
    default:
      return false;
  }
}

EraProtocol::ReaderPhase EraProtocol::after_confirm(const Reader& reader, int number) const {
  if (reader.lines <= number) return ReaderPhase::kRaise;
  return reader.node != 0 ? ReaderPhase::kLink : ReaderPhase::kRoot;
}

void EraProtocol::step_reader(Reader& reader, const Writer& writer, Access& access) const {
  const int number = access.thread() - 1;
  reader.unnoticed = is_unnoticed(reader.phase);
  switch (reader.phase) {
    case ReaderPhase::kRaise:
      access.at("raise lines");
      return raise_lines(reader, access);
    case ReaderPhase::kGuess:
      access.at("guess");
      reader.era = static_cast<std::uint8_t>(access.load(kEra, orders_.guess));
      reader.phase = ReaderPhase::kAnnounce;
      return;
    case ReaderPhase::kAnnounce:
      access.at("announce");
      if (reader.first == 0 || rules_.era_over != Rules::EraOver::kExtends) reader.first = reader.era;
      access.store(line_of(number), announcement(reader.first, reader.era), orders_.announce);
      reader.phase = rules_.confirms ? ReaderPhase::kConfirm : after_confirm(reader, number);
      return;
    case ReaderPhase::kConfirm:
      access.at("confirm");
      reader.phase = access.load(kEra, orders_.confirm) == reader.era ? after_confirm(reader, number)
                                                                      : ReaderPhase::kGuess;
      return;
    case ReaderPhase::kRoot:
      access.at("root");
      reader.node = static_cast<std::uint8_t>(access.load(kRoot, orders_.follow));
      reader.phase = rules_.still_after_root ? ReaderPhase::kRootStill : ReaderPhase::kNode;
      return;
    case ReaderPhase::kRootStill:
      access.at("still after root");
      // Nothing is held yet that one could go on from.
      if (access.load(kEra, orders_.still) == reader.era) {
        reader.phase = ReaderPhase::kNode;
      } else {
        begin_walk(reader, number);
      }
      return;
    case ReaderPhase::kNode:
      access.at("node");
      if (access.read(reader.node - 1) == kFreed) access.fail("a reader read a freed node");
      reader.phase = ReaderPhase::kLink;
      return;
    case ReaderPhase::kLink:
      access.at("link");
      reader.child = static_cast<std::uint8_t>(access.load(link_of(reader.node), orders_.follow));
      reader.phase = reader.child == 0         ? ReaderPhase::kLeave
                     : rules_.still_after_link ? ReaderPhase::kLinkStill
                     : rules_.leaves_last      ? ReaderPhase::kChild
                                               : ReaderPhase::kLeave;
      return;
    case ReaderPhase::kLinkStill:
      access.at("still after link");
      if (access.load(kEra, orders_.still) == reader.era) {
        reader.phase = rules_.leaves_last ? ReaderPhase::kChild : ReaderPhase::kLeave;
      } else if (rules_.era_over == Rules::EraOver::kStartsAgain) {
        begin_walk(reader, number);
      } else {
        reader.child = 0;
        reader.phase = ReaderPhase::kGuess;
      }
      return;
    case ReaderPhase::kChild:
      access.at("child");
      if (access.read(reader.child - 1) == kFreed) access.fail("a reader read a freed child");
      if (rules_.leaves_last) {
        reader.phase = ReaderPhase::kLeave;
      } else {
        end_walk(reader, writer, access);
      }
      return;
    case ReaderPhase::kLeave:
      access.at("leave");
      access.store(line_of(number), 0, orders_.leave);
      if (rules_.leaves_last || reader.child == 0) {
        end_walk(reader, writer, access);
      } else {
        reader.phase = ReaderPhase::kChild;
      }
      return;
    case ReaderPhase::kEnd:
      return;
  }
}

void EraProtocol::raise_lines(Reader& reader, Access& access) const {
  const int number = access.thread() - 1;
  const auto wanted = static_cast<Value>(number + 1);
  const Access::Exchanged result =
      access.compare_exchange(kLines, reader.lines, wanted, orders_.raise_lines, orders_.raise_lines);
  reader.lines = static_cast<std::uint8_t>(result.done ? wanted : result.seen);
  if (reader.lines <= number) return;
  reader.phase = rules_.raises_lines_first ? ReaderPhase::kGuess : after_confirm(reader, number);
}

void EraProtocol::end_walk(Reader& reader, const Writer& writer, Access& access) const {
  if (reader.child == 0 && !writer.unlinked) access.fail("a walk missed a child that was there throughout");
  --reader.walks;
  if (reader.walks == 0) reader.unnoticed = false;
  begin_walk(reader, access.thread() - 1);
}

std::optional<std::string> EraProtocol::check_final(const State& state) const {
  for (int r = 0; r < kReaders; ++r)
    if (state.memory.last(line_of(r)) != 0) return "a reader stays announced";
  return std::nullopt;
}

void EraProtocol::append_to(const State& state, std::string& key) const {
  Memory::append_bytes(key, state.writer);
  Memory::append_bytes(key, state.readers);
}

unsigned EraProtocol::loaders(int location) {
  constexpr unsigned kWriter = 1;
  constexpr unsigned kAllReaders = 6;
  if (location == kLines) return kWriter | kAllReaders;
  return location == line_of(0) || location == line_of(1) ? kWriter : kAllReaders;
}

std::string EraProtocol::describe(int location, Value value) {
  const auto number = [](auto n) { return std::to_string(n); };
  if (location < 0) {
    static constexpr const char* kContents[] = {"nothing", "whole", "freed"};
    return "object " + number(-location) + " = " + kContents[value];
  }
  if (location == kEra) return "era = " + number(value);
  if (location == kRoot) return "root = object " + number(value);
  if (location == kLines) return "lines = " + number(value);
  if (location < kRoot) {
    const Value first = value & 0xff;
    const Value last = value >> 8;
    return "line[" + number(location - line_of(0)) + "] = " + number(first) +
           (first == last ? "" : ".." + number(last));
  }
  const int node = location == link_of(1) ? 1 : location - 2;
  return "link of " + number(node) + " = " + (value == 0 ? "none" : "object " + number(value));
}

}  // namespace ashlar::index::model
