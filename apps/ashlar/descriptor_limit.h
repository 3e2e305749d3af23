// The open files that this process may have.
//
// Thread safety: a free function.
#pragma once

#include <cstddef>

namespace ashlar::apps {

// As many as the system allows. Logs a warning where that is less than so many connections of clients need,
// each with one to a worker.
void raise_descriptor_limit(std::size_t connections);

}  // namespace ashlar::apps
