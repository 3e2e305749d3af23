#include "apps/ashlar/feed_kinds.h"

namespace ashlar::apps {

void add_zmq_feeds(FeedKinds& kinds) {
  kinds.add_missing("zmq", "libzmq3-dev");
  kinds.add_missing("engine", "libzmq3-dev");
}

}  // namespace ashlar::apps
