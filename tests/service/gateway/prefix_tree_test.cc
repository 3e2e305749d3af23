// The tree that the page shows adds up, whatever part of it is shown.
#include "service/gateway/prefix_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "ashlar/base/random.h"
#include "service/gateway/fake_workers.h"
#include "support/small_json.h"

namespace ashlar::service {
namespace {

using index::IndexOutline;
using testing::Json;

IndexOutline::Run run_below(std::uint32_t parent, std::uint32_t position, std::uint32_t blocks,
                            std::uint64_t first, std::uint32_t holders) {
  IndexOutline::Run run;
  run.parent = parent;
  run.position = position;
  run.blocks = blocks;
  run.first = tokens::LocalHash(first);
  run.holders = holders;
  return run;
}

// Two sequences that share 64 blocks, and one of its own; worker 1 has all of it, worker 0 the shared part.
IndexOutline small_outline() {
  IndexOutline outline;
  outline.workers = {{.id = events::WorkerId(7)}, {.id = events::WorkerId(8)}};
  outline.runs = {run_below(IndexOutline::kNoRun, 0, 60, 1, 2), run_below(0, 60, 4, 2, 2),
                  run_below(1, 64, 10, 3, 1), run_below(1, 64, 20, 4, 1),
                  run_below(IndexOutline::kNoRun, 0, 3, 5, 1)};
  outline.holders = {{0, 60}, {1, 60}, {0, 4}, {1, 4}, {1, 10}, {1, 20}, {1, 3}};
  return outline;
}

TEST(PrefixTree, RunsWithoutABranchAreOneElement) {
  const PrefixTree tree(small_outline());
  EXPECT_EQ(tree.blocks(), 97u);
  EXPECT_EQ(tree.copies(), 161u);
  EXPECT_EQ(tree.elements(), 4u);
  const auto view = tree.view({.depth = 1, .limit = 10}).value();
  ASSERT_EQ(view.size(), 3u);
  EXPECT_EQ(view[0].below, 97u);
  ASSERT_EQ(view[0].shown.size(), 2u);
  const PrefixTree::Seen& shared = view[view[0].shown[0]];
  EXPECT_EQ(shared.blocks, 64u) << "60 and the 4 that always follow";
  EXPECT_EQ(shared.below, 94u);
  EXPECT_EQ(shared.children, 2u);
  EXPECT_TRUE(shared.shown.empty());
  EXPECT_EQ(shared.hidden_below, 30u);
  using Held = std::vector<std::pair<std::uint32_t, std::uint64_t>>;
  EXPECT_EQ(shared.held, (Held{{1, 94}, {0, 64}}));
}

TEST(PrefixTree, GoesOnFromAnElement) {
  const PrefixTree tree(small_outline());
  const auto all = tree.view({.depth = 1, .limit = 10}).value();
  const std::uint64_t name = all[all[0].shown[0]].name;
  const auto below = tree.view({.root = name, .depth = 1, .limit = 1}).value();
  ASSERT_EQ(below.size(), 2u) << "one element, and the root";
  EXPECT_EQ(below[1].blocks, 20u) << "the largest";
  EXPECT_EQ(below[1].position, 64u);
  EXPECT_EQ(below[0].hidden_below, 10u);
  EXPECT_EQ(PrefixTree(small_outline()).view({.root = name, .depth = 0}).value()[0].below, 94u)
      << "the same name in another tree";
  EXPECT_FALSE(tree.view({.root = 12345}));
}

TEST(PrefixTree, LeavesOutTheLargestChildrenOfItsRoot) {
  const PrefixTree tree(small_outline());
  const auto rest = tree.view({.depth = 3, .limit = 10, .offset = 1}).value();
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest[1].below, 3u) << "the smaller of two";
  EXPECT_EQ(rest[0].children, 2u);
  EXPECT_EQ(rest[0].hidden_below, 0u);
  EXPECT_EQ(tree.view({.depth = 1, .limit = 10, .offset = 2}).value().size(), 1u);
}

TEST(PrefixTree, AnEmptyOneHasItsRoot) {
  const PrefixTree tree{IndexOutline()};
  EXPECT_EQ(tree.elements(), 0u);
  EXPECT_EQ(tree.view({}).value().size(), 1u);
}

TEST(PrefixTree, AddsUpWhateverIsShown) {
  Random random(3);
  for (int round = 0; round < 50; ++round) {
    IndexOutline outline;
    outline.workers = {{.id = events::WorkerId(1)}, {.id = events::WorkerId(2)}, {.id = events::WorkerId(3)}};
    const std::size_t runs = 1 + random.next() % 300;
    for (std::uint32_t i = 0; i < runs; ++i) {
      const bool is_start = i == 0 || random.next() % 8 == 0;
      const std::uint32_t parent =
          is_start ? IndexOutline::kNoRun : static_cast<std::uint32_t>(random.next() % i);
      const auto blocks = static_cast<std::uint32_t>(random.next() % 65);
      outline.runs.push_back(
          run_below(parent, is_start ? 0 : 64, blocks, random.next(), blocks == 0 ? 0 : 1));
      if (blocks != 0) outline.holders.push_back({static_cast<std::uint32_t>(random.next() % 3), blocks});
    }
    const PrefixTree tree(outline);
    const PrefixTree::Wanted wanted{.depth = random.next() % 6, .limit = random.next() % 60};
    const auto view = tree.view(wanted).value();
    EXPECT_LE(view.size(), wanted.limit + 1);
    EXPECT_EQ(view[0].below, tree.blocks());
    for (const PrefixTree::Seen& seen : view) {
      std::uint64_t shown = 0;
      for (const std::size_t child : seen.shown) shown += view[child].below;
      EXPECT_EQ(seen.blocks + shown + seen.hidden_below, seen.below);
      std::uint64_t held = 0;
      for (const auto& [worker, blocks] : seen.held) held += blocks;
      EXPECT_EQ(held, seen.below) << "each block has one holder here";
      EXPECT_LE(seen.shown.size(), seen.children);
    }
  }
}

TEST(PrefixTree, IsToldByTheService) {
  ServiceUnderTest service(ServiceUnderTest::options_of(2));
  const events::WorkerId first(std::uint64_t{1} << 52);
  for (std::uint64_t i = 0; i < 3; ++i) {
    std::vector<events::StoredBlock> blocks;
    for (std::uint64_t k = 0; k < 5; ++k)
      blocks.push_back({.local = tokens::LocalHash(k < 2 ? k : 100 * i + k),
                        .name = events::BlockName(k < 2 ? k : 100 * i + k)});
    events::BlocksStored event;
    event.worker = {.id = first};
    event.blocks = blocks;
    ASSERT_EQ(service->router().sink().store(event), events::StoreVerdict::kApplied);
  }
  const Json tree = Json::parse(service.get("/tree?model=m&depth=2").body);
  EXPECT_EQ(tree["model"].text, "m");
  EXPECT_EQ(tree["blocks"].number, 11);
  EXPECT_EQ(tree["workers"].list.at(0)["name"].text, "w0");
  const Json& stem = tree["root"]["shown"].list.at(0);
  EXPECT_EQ(stem["blocks"].number, 2);
  EXPECT_EQ(stem["below"].number, 11);
  EXPECT_EQ(stem["shown"].list.size(), 3u);
  const Json part = Json::parse(service.get("/tree?limit=2&root=" + stem["name"].text).body);
  EXPECT_EQ(part["shown"].number, 2);
  EXPECT_EQ(part["root"]["hidden_below"].number, 3);
  EXPECT_EQ(service.get("/tree?root=zz").status, 400u);
  EXPECT_EQ(service.get("/tree?root=1234").status, 404u);
  EXPECT_EQ(service.get("/tree?model=other").status, 404u);
  EXPECT_EQ(service.get("/tree?depth=x").status, 400u);
  // However many elements are asked for, no more than 2,000 come.
  for (std::uint64_t i = 0; i < 2500; ++i) {
    const events::StoredBlock block{.local = tokens::LocalHash(50'000 + i),
                                    .name = events::BlockName(50'000 + i)};
    events::BlocksStored event;
    event.worker = {.id = events::WorkerId(first.value() + 1)};
    event.blocks = std::span(&block, 1);
    ASSERT_EQ(service->router().sink().store(event), events::StoreVerdict::kApplied);
  }
  Json large;
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (large["blocks"].number != 2511) {
    ASSERT_LT(std::chrono::steady_clock::now(), last) << "the tree stays at " << large["blocks"].number;
    large = Json::parse(service.get("/tree?depth=9&limit=99999").body);
  }
  EXPECT_EQ(large["shown"].number, 2000);
  EXPECT_EQ(large["elements"].number, 2504);
}

}  // namespace
}  // namespace ashlar::service
