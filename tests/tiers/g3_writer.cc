// Works on G3 and a volume until somebody kills it: the child of crash_test.
//
//   g3_writer FOLDER SEED
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
  std::puts("ready");
  std::fflush(stdout);
  for (;;) {
    const auto hashes = KvWorkload::sequence(random.below(12), 1 + random.below(6));
    {
      const auto table = workload.request(hashes, &wrong);
    }
    if (random.below(6) == 0 && !(*kv)->reset_blocks(std::span(hashes).last(1))) return 4;
    if (random.below(4) == 0) (*kv)->drain();
    if (wrong != 0) return 5;
  }
}
