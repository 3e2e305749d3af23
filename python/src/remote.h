// The tier of other nodes' blocks, as Python describes it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/tiers/remote.h"

namespace ashlar::python {

// From a dict: see the docstring of KvBlockManager. Raises InvalidArgument, Unsupported, and TypeError for
// what is no dict. Call with the GIL held.
tiers::RemoteShape remote_of(nanobind::handle settings);

// Remote memory between machines. Built with UCX or without: one of the files of device/. Errors:
// kUnsupported; those of UCX.
Result<std::shared_ptr<transfer::RemoteTransport>> ucx_transport(const std::string& transports);

}  // namespace ashlar::python
