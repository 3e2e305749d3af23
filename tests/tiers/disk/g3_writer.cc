// Works on G3 and a volume until somebody kills it: the child of crash_test.
//
//   g3_writer FOLDER SEED
//
// Says on standard output what it is about to store ("+ sequence blocks") and what it has removed ("-
// sequence block"), each line at once.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "ashlar/base/random.h"
#include "tiers/kv_workload.h"

using namespace ashlar;
using namespace ashlar::tiers;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  auto kv = KvBlockManager::create(KvWorkload::options_in(argv[1]));
  if (!kv) {
    std::fprintf(stderr, "%s\n", kv.error().to_string().c_str());
    return 3;
  }
  KvWorkload workload(**kv);
  Random random(std::strtoull(argv[2], nullptr, 10));
  int wrong = 0;
  const auto say = [](char what, std::uint64_t number, std::size_t block) {
    std::printf("%c %llu %zu\n", what, static_cast<unsigned long long>(number), block);
    std::fflush(stdout);
  };
  std::puts("ready");
  std::fflush(stdout);
  for (;;) {
    const std::uint64_t number = random.below(12);
    const auto hashes = KvWorkload::sequence(number, 1 + random.below(6));
    say('+', number, hashes.size());
    {
      const auto table = workload.request(hashes, &wrong);
    }
    if (random.below(6) == 0) {
      if (!(*kv)->reset_blocks(std::span(hashes).last(1))) return 4;
      say('-', number, hashes.size() - 1);
    }
    if (random.below(4) == 0) (*kv)->drain();
    if (wrong != 0) return 5;
  }
}
