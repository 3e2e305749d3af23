#include "service/request/prompt_blocks.h"

#include <algorithm>

#include "ashlar/base/check.h"
#include "ashlar/tokens/engine_hash.h"

namespace ashlar::service {

std::vector<tokens::LocalHash> hash_prompt(std::span<const tokens::Token> prompt,
                                           std::span<const PromptItem> items,
                                           const tokens::SequenceHasher& hasher, std::uint32_t block_size) {
  ASHLAR_CHECK(block_size > 0, "a prompt is cut into blocks of at least one token");
  ASHLAR_DCHECK(std::ranges::is_sorted(items, {}, &PromptItem::offset), "items in the order of offsets");
  std::vector<tokens::LocalHash> locals;
  locals.reserve(prompt.size() / block_size);
  std::vector<std::uint64_t> numbers;  // of the items that a block touches
  for (std::size_t begin = 0; begin + block_size <= prompt.size(); begin += block_size) {
    const std::span<const tokens::Token> block = prompt.subspan(begin, block_size);
    while (!items.empty() && items.front().offset + items.front().length <= begin) items = items.subspan(1);
    numbers.clear();
    for (const PromptItem& item : items) {
      if (item.offset >= begin + block_size) break;
      numbers.push_back(item.number);
    }
    locals.push_back(numbers.empty() ? hasher.local_hash(block)
                                     : tokens::router_local_hash(block, numbers, hasher.salt().seed()));
  }
  return locals;
}

}  // namespace ashlar::service
