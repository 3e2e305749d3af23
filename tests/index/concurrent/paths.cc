#include "index/concurrent/paths.h"

namespace ashlar::index::concurrent {
namespace {

// Some values come again and again, at all positions.
LocalHash any_local(Random& random) {
  return LocalHash(random.chance(0.3) ? random.below(4) : random.next());
}

void grow(std::vector<LocalHash>& locals, std::size_t by, Random& random) {
  for (std::size_t i = 0; i < by; ++i) locals.push_back(any_local(random));
}

}  // namespace

Paths::Paths(std::uint64_t seed, const PathOptions& options) {
  Random random(seed);
  for (std::size_t i = 0; i < options.stems; ++i) {
    std::vector<LocalHash> locals;
    grow(locals, random.between(options.stem_length / 2, options.stem_length), random);
    stored_.push_back(path_of(std::move(locals)));
  }
  for (std::size_t i = 0; i < options.branches; ++i) {
    std::vector<LocalHash> locals = stored_[random.below(stored_.size())].locals;
    locals.resize(random.between(std::size_t{1}, locals.size()));
    grow(locals, random.between(std::size_t{1}, options.tail_length), random);
    stored_.push_back(path_of(std::move(locals)));
  }
  for (const Path& path : stored_) {
    queries_.push_back(path);
    std::vector<LocalHash> cut = path.locals;
    cut.resize(random.between(std::size_t{1}, cut.size()));
    queries_.push_back(query_of(cut));
    grow(cut, random.between(1, 20), random);
    queries_.push_back(query_of(std::move(cut)));
  }
}

Path Paths::path_of(std::vector<LocalHash> locals) {
  Path path;
  Content content = kNever;
  for (const LocalHash local : locals) {
    const auto [place, is_new] =
        numbers_.try_emplace({content, local}, static_cast<Content>(parents_.size()));
    if (is_new) parents_.push_back(content);
    content = place->second;
    path.contents.push_back(content);
  }
  path.locals = std::move(locals);
  return path;
}

Path Paths::query_of(std::vector<LocalHash> locals) const {
  Path path;
  Content content = kNever;
  for (std::size_t i = 0; i < locals.size(); ++i) {
    const auto place = numbers_.find({content, locals[i]});
    content = place == numbers_.end() ? kNever : place->second;
    if (content == kNever) {
      path.contents.resize(locals.size(), kNever);
      break;
    }
    path.contents.push_back(content);
  }
  path.locals = std::move(locals);
  return path;
}

}  // namespace ashlar::index::concurrent
