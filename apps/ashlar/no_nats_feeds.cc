#include "apps/ashlar/feed_kinds.h"

namespace ashlar::apps {

void add_nats_feeds(FeedKinds& kinds) {
  kinds.add_missing("nats", "libnats-dev");
  kinds.add_missing("natss", "libnats-dev");
}

}  // namespace ashlar::apps
