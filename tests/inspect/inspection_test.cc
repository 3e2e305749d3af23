// What `ashlar inspect` tells of every format, and of what is left of it after accidents.
#include "inspect/inspection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <span>

#include "ashlar/testing/time_box.h"
#include "inspect/samples.h"
#include "service/journal/journal_codec.h"
#include "support/damage.h"
#include "support/scratch_folder.h"
#include "support/small_json.h"

namespace ashlar::inspect {
namespace {

using ::ashlar::testing::Json;
using ::testing::HasSubstr;

class InspectionTest : public ::testing::Test {
 protected:
  // The value of a field, as JSON has it.
  static Json json_of(const Inspection& seen) { return Json::parse(seen.to_json()); }
  std::string file(const std::string& name) const { return folder_.file(name); }
  // A folder in the folder.
  std::string folder(const std::string& name) const {
    std::filesystem::create_directory(file(name));
    return file(name);
  }

  ScratchFolder folder_;
};

TEST_F(InspectionTest, DescribesAG3FileOfEveryOrder) {
  for (const layout::order::NamedOrder& named : layout::order::kAll) {
    const std::string path = file(std::string(named.name));
    write_g3(path, named.order, 3);
    const Result<Inspection> seen = inspect_path(path, {.verify = true});
    ASSERT_TRUE(seen) << named.name << ": " << seen.error();
    EXPECT_EQ(seen->damaged, 0u) << named.name << "\n" << seen->to_text();
    const Json json = json_of(*seen);
    EXPECT_EQ(json["kind"].text, "G3 file");
    EXPECT_EQ(json["blocks"].number, 8);
    EXPECT_EQ(json["filled"].number, 3);
    EXPECT_EQ(json["removals_written"].number, 1);
    EXPECT_EQ(json["planes"].list.at(0)["layers"].number, 2);
    EXPECT_TRUE(seen->is_verified);
    // One bit of the last block that is filled.
    InspectedBytes bytes = read_bytes(path);
    const layout::Layout layout = layout::Layout::create(transfer::small_shape(8, 2, 2), named.order).value();
    const std::uint64_t blocks_at = 69632 + 4096;
    bytes[blocks_at + layout.place({.block = 2, .layer = 1, .outer = 1, .token = 2, .head = 1}).offset] ^=
        std::byte{4};
    write_bytes(path, bytes);
    const Inspection changed = inspect_path(path, {.verify = true}).value();
    EXPECT_EQ(changed.damaged, 1u) << named.name;
    EXPECT_THAT(changed.to_text(), HasSubstr("block 2: its bytes have the checksum"));
    EXPECT_EQ(inspect_path(path).value().damaged, 0u) << "without --verify the blocks are not read";
  }
}

TEST_F(InspectionTest, DamagedHeadersOfAG3FileAreCounted) {
  write_g3(file("g3"), layout::order::kFullyContiguousNhd, 3);
  InspectedBytes bytes = read_bytes(file("g3"));
  bytes[69632 + 256 + 40] ^= std::byte{1};    // header 1
  bytes[4096 + 32768 + 100] ^= std::byte{1};  // the copy of the removals that was written
  write_bytes(file("g3"), bytes);
  const Inspection seen = inspect_path(file("g3")).value();
  EXPECT_EQ(seen.damaged, 2u) << seen.to_text();
  EXPECT_EQ(json_of(seen)["filled"].number, 2);
  EXPECT_THAT(seen.to_text(), HasSubstr("the header of block 1"));
}

TEST_F(InspectionTest, DescribesAFileVolume) {
  write_file_volume(file("volume"));
  const Inspection seen = inspect_path(file("volume"), {.verify = true}).value();
  EXPECT_EQ(seen.damaged, 0u) << seen.to_text();
  EXPECT_EQ(json_of(seen)["slots"].number, 6);
  EXPECT_EQ(json_of(seen)["filled"].number, 3);
  EXPECT_EQ(json_of(seen)["namespaces"].list.at(0)["objects"].number, 3);
  InspectedBytes bytes = read_bytes(file("volume"));
  bytes[8192 + 4096 + 300] ^= std::byte{1};
  write_bytes(file("volume"), bytes);
  EXPECT_EQ(inspect_path(file("volume"), {.verify = true}).value().damaged, 1u);
}

TEST_F(InspectionTest, DescribesAFolderOfObjectsAndOneOfThem) {
  const std::string volume = folder("volume");
  fill_volume("directory", volume);
  write_bytes(volume + "/.~0123", {});
  write_bytes(volume + "/README", InspectedBytes(3));
  const Inspection seen = inspect_path(volume, {.verify = true}).value();
  EXPECT_EQ(seen.damaged, 0u) << seen.to_text();
  EXPECT_TRUE(seen.is_verified) << "the shape of one plane follows from the header";
  const Json json = json_of(seen);
  EXPECT_EQ(json["objects"].number, 3);
  EXPECT_EQ(json["unfinished"].number, 1);
  EXPECT_EQ(json["other_files"].number, 1);
  std::string object;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(volume))
    if (entry.is_regular_file() && entry.file_size() > 256) object = entry.path().string();
  EXPECT_EQ(inspect_path(object, {.verify = true}).value().damaged, 0u);
  InspectedBytes bytes = read_bytes(object);
  bytes.back() ^= std::byte{1};
  write_bytes(object, bytes);
  EXPECT_EQ(inspect_path(object, {.verify = true}).value().damaged, 1u);
  EXPECT_EQ(inspect_path(volume, {.verify = true}).value().damaged, 1u);
  bytes.pop_back();
  write_bytes(object, bytes);
  EXPECT_EQ(inspect_path(volume).value().damaged, 1u) << "a short object shows without reading it";
}

TEST_F(InspectionTest, DescribesEventsAndDumps) {
  write_events(file("events"));
  const Inspection seen = inspect_path(file("events")).value();
  const Json json = json_of(seen);
  EXPECT_EQ(json["kind"].text, "event file");
  EXPECT_EQ(json["batches"].number, 4);
  EXPECT_EQ(json["stored"].number, 6);
  EXPECT_EQ(json["removed"].number, 2);
  EXPECT_EQ(json["streams"].list.at(0)["next_event"].number, 8);
  EXPECT_EQ(json["locations"].list.at(0)["name"].text, "cold");
  EXPECT_EQ(seen.damaged, 0u);
  InspectedBytes bytes = read_bytes(file("events"));
  bytes[16 + 4 + 100] ^= std::byte{1};
  write_bytes(file("cut"), bytes);
  const Inspection changed = inspect_path(file("cut")).value();
  EXPECT_EQ(changed.damaged, 1u) << changed.to_text();
  EXPECT_EQ(json_of(changed)["batches"].number, 3);
  write_dump(file("dump"));
  EXPECT_EQ(json_of(inspect_path(file("dump")).value())["kind"].text, "dump of an index");
}

TEST_F(InspectionTest, DescribesARecording) {
  const Inspection seen = inspect_path(std::string(ASHLAR_TEST_DATA) + "/vllm/default.kvrec").value();
  EXPECT_EQ(json_of(seen)["kind"].text, "recording of an engine");
  EXPECT_GT(json_of(seen)["messages"].number, 0);
  EXPECT_GT(json_of(seen)["stored"].number, 0);
  EXPECT_EQ(seen.damaged, 0u) << seen.to_text();
}

TEST_F(InspectionTest, DescribesAJournalWithAndWithoutItsKey) {
  const std::string journal = folder("journal");
  write_journal(journal);
  const Inspection seen = inspect_path(journal, {.verify = true}).value();
  EXPECT_EQ(seen.damaged, 0u) << seen.to_text();
  EXPECT_GT(json_of(seen)["decisions"].number, 0);
  EXPECT_EQ(json_of(seen)["runs"].list.at(0)["run"].text, "0000000000000abc");
  const std::string records = seen.to_json();
  std::filesystem::rename(journal + "/key", file("key"));
  EXPECT_EQ(json_of(inspect_path(journal).value())["decisions"].number, json_of(seen)["decisions"].number);
  const auto refused = inspect_path(journal, {.verify = true});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("name its file with --key"));
  EXPECT_EQ(inspect_path(journal, {.verify = true, .journal_key = file("key")}).value().damaged, 0u);
  InspectedBytes bytes = read_bytes(journal + "/a.journal");
  bytes[bytes.size() - 3] ^= std::byte{1};
  write_bytes(journal + "/a.journal", bytes);
  EXPECT_EQ(
      inspect_path(journal + "/a.journal", {.verify = true, .journal_key = file("key")}).value().damaged, 1u);
}

TEST_F(InspectionTest, SaysWhetherAJournalWithoutItsFirstFilesWasReplayed) {
  const std::string journal = folder("journal");
  write_journal(journal, 4'000, 600);
  const std::vector<std::string> files = service::find_journals(journal).value().at(0).files;
  ASSERT_GT(files.size(), 2u);
  std::filesystem::remove(files[0]);
  const Inspection rest = inspect_path(journal, {.verify = true}).value();
  EXPECT_EQ(rest.damaged, 0u) << rest.to_text();
  EXPECT_THAT(rest.to_text(), HasSubstr("the first 1 files of run 0000000000000abc were removed: it was "
                                        "replayed from the checkpoint after them"));
  // Cut within its checkpoint, the second has nothing to replay from.
  for (const std::string& file : std::span(files).subspan(2)) std::filesystem::remove(file);
  std::filesystem::resize_file(files[1], service::kJournalHeadBytes + 400);
  EXPECT_THAT(inspect_path(journal, {.verify = true}).value().to_text(),
              HasSubstr("it was checked and not replayed"));
}

TEST_F(InspectionTest, DescribesABlockSetAndALayoutDescriptor) {
  write_bytes(file("set"), sample_record().serialize());
  const Json set = json_of(inspect_path(file("set")).value());
  EXPECT_EQ(set["kind"].text, "block set");
  EXPECT_EQ(set["owner"].text, "owner");
  EXPECT_EQ(set["registrations"].list.size(), 1u);
  write_bytes(file("layout"), sample_descriptor().serialize());
  const Json layout = json_of(inspect_path(file("layout")).value());
  EXPECT_EQ(layout["kind"].text, "layout descriptor");
  EXPECT_EQ(layout["block_set"].number, 9);
}

TEST_F(InspectionTest, DescribesAService) {
  const char* fleet =
      R"({"draining":false,"waiting":2,"workers":[{"id":1,"name":"a","up":true,"ranks":[{"dp_rank":0,)"
      R"("state":"EXACT","blocks":12,"tiers":{"device":{"held":12,"most":20,"offloaded":0},"host":)"
      R"({"held":7,"stored":9,"offloaded":8,"offloaded_from":{"device":8}}}}]},)"
      R"({"id":2,"name":"b","up":false,"ranks":[]}]})";
  const char* metrics = "# HELP x\nashlar_a_total{x=\"1\"} 5\nashlar_b_total 0\n";
  const Inspection seen = inspect_service("http://h:1", fleet, metrics).value();
  const Json json = json_of(seen);
  EXPECT_EQ(json["waiting"].number, 2);
  EXPECT_EQ(json["workers"].list.at(0)["state"].text, "EXACT");
  EXPECT_EQ(json["workers"].list.at(0)["device_held"].number, 12);
  EXPECT_EQ(json["workers"].list.at(0)["host_held"].number, 7);
  EXPECT_EQ(json["workers"].list.at(0)["host_offloaded"].number, 8);
  EXPECT_EQ(json["workers"].list.at(0).map.count("host_stored"), 0u);
  EXPECT_EQ(json["metrics"].list.size(), 1u) << "zeros say nothing";
  EXPECT_THAT(seen.to_text(), HasSubstr("1 workers are not up"));
  for (const char* other :
       {"", "[]", "{}", R"({"workers":5})", R"({"a name of some length, on the heap":1.5})",
        R"({"workers":[{"a name of some length, on the heap":"\x"}]})", R"({"workers":[{"ranks":[{]}]})",
        R"({"workers":[{"ranks":[{"tiers":5}]}]})", R"({"workers":[{"ranks":[{"tiers":{"host":{]}}]}]})"}) {
    const auto refused = inspect_service("http://h:1", other, "");
    ASSERT_FALSE(refused) << other;
    EXPECT_THAT(refused.error().message(), HasSubstr("is it another server?"));
  }
}

TEST_F(InspectionTest, RefusesWhatIsNoneOfOurs) {
  const auto refused_with = [](const std::string& path, const char* says) {
    const auto seen = inspect_path(path);
    ASSERT_FALSE(seen) << path;
    EXPECT_THAT(seen.error().message(), HasSubstr(says));
  };
  write_bytes(file("empty"), {});
  std::ofstream(file("trace.jsonl")) << R"({"timestamp": 0, "input_length": 5, "hash_ids": [1]})" << "\n";
  refused_with(file("trace.jsonl"), "ashlar replay reads traces");
  write_bytes(file("zeros"), InspectedBytes(100));
  write_bytes(file("a.kvrec"), InspectedBytes(100));
  ASSERT_EQ(mkfifo(file("pipe").c_str(), 0600), 0);
  refused_with(file("none"), "No such file");
  refused_with(file("empty"), "is empty");
  refused_with(file("zeros"), "does not begin like");
  refused_with(file("a.kvrec"), "holds no message of an engine");
  refused_with(file("pipe"), "neither a file");
  refused_with("/dev/zero", "neither a file");
  refused_with(folder("nothing"), "holds neither objects of a volume nor journals");
}

TEST_F(InspectionTest, TextFromFilesIsSafeForATerminal) {
  const std::string turns = "\xE2\x80\xAE";  // the direction of what follows
  write_events(file("events"), turns + "cold");
  const Inspection seen = inspect_path(file("events")).value();
  EXPECT_THAT(seen.to_text(), HasSubstr("cold"));
  EXPECT_EQ(seen.to_text().find(turns), std::string::npos);
  EXPECT_EQ(seen.to_json().find(turns), std::string::npos);
}

// Every format, cut off and changed: an error or a description, never a crash, and the file stays as it is.
TEST_F(InspectionTest, AccidentsAreToldAndNothingIsWritten) {
  struct Sample {
    std::string name;
    InspectedBytes bytes;
    bool is_covered;  // every byte has a checksum over it
  };
  write_g3(file("g3"), layout::order::kFullyContiguousNhd, 3);
  write_file_volume(file("volume"));
  write_events(file("events"));
  write_dump(file("dump"));
  write_journal(folder("journal"));
  const auto block = sample_block(transfer::small_shape(1, 2, 2), 1);
  const auto head = sample_object(*block, 1).encode();
  InspectedBytes object(head.begin(), head.end());
  object.insert(object.end(), block->address(0, {}), block->address(0, {}) + 96);
  std::vector<Sample> samples = {
      {"g3", read_bytes(file("g3")), false},
      {"volume", read_bytes(file("volume")), false},
      {"events", read_bytes(file("events")), false},
      {"dump", read_bytes(file("dump")), false},
      {"x.kvrec", read_bytes(std::string(ASHLAR_TEST_DATA) + "/vllm/evict.kvrec"), false},
      {"a.journal", read_bytes(file("journal") + "/a.journal"), true},
      {"object", object, true},
      {"set", sample_record().serialize(), true},
      {"layout", sample_descriptor().serialize(), true}};
  const InspectOptions options{.verify = true, .journal_key = file("journal") + "/key"};
  const auto look = [&](const Sample& sample, const InspectedBytes& bytes) {
    const std::string path = file("damaged_" + sample.name);
    write_bytes(path, bytes);
    const Result<Inspection> seen = inspect_path(path, options);
    if (!seen) {
      EXPECT_FALSE(seen.error().message().empty());
    } else {
      EXPECT_FALSE(seen->to_text().empty());
      Json::parse(seen->to_json());
    }
    EXPECT_EQ(read_bytes(path), bytes) << sample.name;
    return seen;
  };
  for (const Sample& sample : samples) {
    ASSERT_TRUE(look(sample, sample.bytes)) << sample.name;
    ASSERT_EQ(look(sample, sample.bytes)->damaged, 0u) << sample.name;
    // Cut off anywhere near the start, and here and there behind it.
    for (std::size_t cut = 0; cut < sample.bytes.size(); cut += 1 + cut / 16 + cut * cut / 100'000)
      static_cast<void>(
          look(sample, {sample.bytes.begin(), sample.bytes.begin() + static_cast<std::ptrdiff_t>(cut)}));
    if (!sample.is_covered) continue;
    for (std::size_t at = 0; at < sample.bytes.size(); at += 1 + sample.bytes.size() / 200) {
      InspectedBytes changed = sample.bytes;
      changed[at] ^= std::byte{0x10};
      const Result<Inspection> seen = look(sample, changed);
      // The length of a journal's last records may make them look unfinished: that is said as a note.
      EXPECT_TRUE(!seen || seen->damaged != 0 || !seen->notes.empty()) << sample.name << " at " << at;
    }
  }
  ashlar::testing::TimeBox box(0.5);
  std::uint64_t seed = 1;
  do {
    Random random(seed++);
    for (const Sample& sample : samples) {
      InspectedBytes bytes = sample.bytes;
      ashlar::testing::damage(bytes, random);
      static_cast<void>(look(sample, bytes));
    }
  } while (!box.over());
}

}  // namespace
}  // namespace ashlar::inspect
