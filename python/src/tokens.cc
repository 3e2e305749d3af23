// Tokens and hashing: Salt, HashScheme, SequenceHash and hash_blocks().
#include <nanobind/ndarray.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "errors.h"
#include "module.h"

namespace nb = nanobind;

namespace ashlar::python {

void bind_tokens(nb::module_& module) {
  using tokens::SequenceHash;
  nb::class_<SequenceHash>(module, "SequenceHash", "The name of a block by all tokens up to its end.")
      .def_static(
          "parse", [](const std::string& text) { return value_or_raise(SequenceHash::parse(text)); },
          nb::arg("text"), "The name that `str()` wrote.")
      .def_prop_ro("position", &SequenceHash::position, "The index of the block in its sequence.")
      .def_prop_ro("chain", &SequenceHash::chain, "The 64-bit chain hash.")
      .def("__str__", &SequenceHash::to_string)
      .def("__hash__", [](const SequenceHash& hash) { return std::hash<SequenceHash>()(hash); })
      .def(nb::self == nb::self);
}

}  // namespace ashlar::python
