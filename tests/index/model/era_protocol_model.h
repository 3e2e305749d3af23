// The reclamation protocol of src/index/flash/era_domain.h as small-step threads, for the explorer of
// tests/support.
//
// T0 is the writer, T1 and T2 are readers. A permanent root links to a node, the node to a child. The writer
// replaces both, takes the child away, puts one there, and begins eras with and without a scan, as its script
// says; replaced nodes keep their link. A reader walks root -> node -> child, some times over. Every atomic
// and every plain access is one step. The orders come from src/index/flash/era_orders.h unless a test weakens
// one, and a test may switch off one rule of the protocol to see that a scenario notices.
//
//   era         atomic, stored by the writer
//   line[r]     atomic, the eras that reader r announces (the first and the last of them, which are one), 0
//               outside
//   lines       atomic, how many lines a scan reads
//   root        atomic, the node
//   link[n]     atomic, the child of node n, 0 for none
//   object[o]   plain, what the object holds; freeing it is a write, so that an access that is not ordered
//               before it is a data race, and one that is ordered behind it reads the mark of a freed object
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "index/flash/era_orders.h"
#include "support/weak_memory.h"

namespace ashlar::index::model {

using exploration::Value;

struct Orders {
  std::memory_order link = detail::kOrderLink;
  std::memory_order follow = detail::kOrderFollow;
  std::memory_order still = detail::kOrderStill;
  std::memory_order guess = detail::kOrderGuess;
  std::memory_order announce = detail::kOrderAnnounce;
  std::memory_order confirm = detail::kOrderConfirm;
  std::memory_order advance = detail::kOrderAdvance;
  std::memory_order scan = detail::kOrderScan;
  std::memory_order leave = detail::kOrderLeave;
  std::memory_order raise_lines = detail::kOrderLines;  // by a reader
  std::memory_order read_lines = detail::kOrderLines;   // by a scan
};

// The rules of the protocol, and what happens where a test switches one to the other value.
struct Rules {
  // false: a reader takes the era that it announced for granted.
  bool confirms = true;
  // false: a reader follows the root's / the node's link whatever the era is by then.
  bool still_after_root = true;
  bool still_after_link = true;
  // What a reader does whose era is over. kMovesOn: it announces the next era and goes on from the node that
  // it has. kExtends: the same, but it announces all eras from the one in which it came.
  enum class EraOver : std::uint8_t { kStartsAgain, kMovesOn, kExtends };
  EraOver era_over = EraOver::kStartsAgain;
  // false: a reader of an object's birth era / retire era does not hold it.
  bool birth_era_holds = true;
  bool retire_era_holds = true;
  // false: what was retired in the running era is scanned too.
  bool advances_before_scan = true;
  // false: a reader leaves before it reads the child.
  bool leaves_last = true;
  // false: a reader announces itself first and makes its line known then.
  bool raises_lines_first = true;
};

// What the writer does. A batch is what lies between two scans.
enum class Write : std::uint8_t {
  kReplaceNode,   // a new node with the same child
  kReplaceChild,  // a new child in the same node
  kUnlinkChild,
  kLinkChild,  // Requires: unlinked
  kAdvance,    // begins an era without a scan, as an era full of births does
  kScan,       // begins an era, scans and frees
};

struct Scenario {
  std::string name;
  std::vector<Write> writes;
  std::array<int, 2> walks;  // of each reader
  bool new_lines = false;    // the readers have to make their lines known first
};

// A scenario under given orders and rules, in the shape the explorer asks for.
//
// It checks: a reader reads no object that is freed, and no read races with the write that makes or frees the
// object; a walk finds the child unless the writer has unlinked one by then; at the end, with all readers
// outside, one more scan would free all that is retired.
//
// Thread safety: immutable.
class EraProtocol {
 public:
  static constexpr int kReaders = 2;
  static constexpr int kObjects = 5;
  static constexpr exploration::Limits kLimits{
      .threads = 1 + kReaders, .locations = 9, .plain_locations = kObjects, .messages = 14};
  using Memory = exploration::Memory<kLimits>;
  using Access = exploration::Access<kLimits>;

  enum class WriterPhase : std::uint8_t { kMake, kLink, kAdvance, kLines, kLine, kFree, kEnd };
  enum class ReaderPhase : std::uint8_t {
    kRaise,
    kGuess,
    kAnnounce,
    kConfirm,
    kRoot,
    kRootStill,
    kNode,
    kLink,
    kLinkStill,
    kChild,
    kLeave,
    kEnd
  };

  // The registers below have no padding, so that their bytes are their value. Objects are numbered from 1.
  struct Writer {
    WriterPhase phase = WriterPhase::kMake;
    std::uint8_t write = 0;
    std::uint8_t era = 1;
    std::uint8_t node = 1;
    std::uint8_t child = 2;
    std::uint8_t made = 2;
    std::uint8_t line = 0;                       // the next one that the scan reads
    std::uint8_t lines = 0;                      // how many it reads
    std::array<std::uint8_t, kReaders> first{};  // announced eras
    std::array<std::uint8_t, kReaders> last{};
    bool unlinked = false;  // a child, ever
    std::array<std::uint8_t, kObjects> birth{1, 1};
    std::array<std::uint8_t, kObjects> retired{};  // 0: not
    std::array<std::uint8_t, kObjects> freed{};
  };
  struct Reader {
    ReaderPhase phase = ReaderPhase::kEnd;
    std::uint8_t walks = 0;  // still to do
    std::uint8_t lines = 0;  // as far as the reader knows
    std::uint8_t first = 0;  // announced eras; the last is that of the walk
    std::uint8_t era = 0;
    std::uint8_t node = 0;
    std::uint8_t child = 0;
    // The last step was a load that nobody notices. What others do behind it they can do before it, and it
    // still finds the message that it took; so the next step follows it at once.
    bool unnoticed = false;
  };
  struct State {
    Memory memory;
    Writer writer;
    std::array<Reader, kReaders> readers;
  };

  explicit EraProtocol(Scenario scenario, Orders orders = {}, Rules rules = {});

  State initial() const;
  bool done(const State& state, int thread) const;
  bool enabled(const State& state, int thread) const { return !done(state, thread); }
  bool is_local(const State& state, int thread) const;
  void step(State& state, Access& access) const;
  std::optional<std::string> check(const State&) const { return std::nullopt; }
  std::optional<std::string> check_final(const State& state) const;
  void append_to(const State& state, std::string& key) const;
  static std::string describe(int location, Value value);
  static unsigned loaders(int location);

 private:
  void begin(Writer& writer) const;
  void step_writer(Writer& writer, Access& access) const;
  void make(Writer& writer, Access& access) const;
  void link(Writer& writer, Access& access) const;
  void free(Writer& writer, Access& access) const;
  bool held(const Writer& writer, int object) const;

  void step_reader(Reader& reader, const Writer& writer, Access& access) const;
  void raise_lines(Reader& reader, Access& access) const;
  void look_still(Reader& reader, ReaderPhase next, Access& access) const;
  void end_walk(Reader& reader, const Writer& writer, Access& access) const;
  void begin_walk(Reader& reader, int number) const;
  // Whether the step of a phase is a load that nobody notices.
  bool is_unnoticed(ReaderPhase phase) const;
  ReaderPhase after_confirm(const Reader& reader, int number) const;

  Scenario scenario_;
  Orders orders_;
  Rules rules_;
};

}  // namespace ashlar::index::model
