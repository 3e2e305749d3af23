// IndexRef: what Python's Index owns. Those that write into the index (feeds) own it too.
#pragma once

#include <memory>

#include "ashlar/index/make_index.h"
#include "fork.h"

namespace ashlar::python {

struct IndexRef {
  SharedHere<index::AnyIndex> index;
};

}  // namespace ashlar::python
