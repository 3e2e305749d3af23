// The names of blocks: SequenceHash and SequenceHashes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/operators.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <string>

#include "arrays.h"
#include "ashlar/tokens/sequence_hash.h"
#include "errors.h"
#include "module.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

using tokens::SequenceHash;

nb::bytes hash_to_bytes(const SequenceHash& hash) {
  const std::array<std::uint8_t, 16> bytes = hash.to_bytes();
  return nb::bytes(bytes.data(), bytes.size());
}

SequenceHash hash_from_bytes(nb::handle object) {
  const std::vector<std::uint8_t> bytes = bytes_of(object, 16, "a sequence hash");
  return SequenceHash::from_bytes(std::span<const std::uint8_t, 16>(bytes.data(), 16));
}

nb::bytes list_to_bytes(const HashList& list) {
  std::string bytes;
  bytes.reserve(list.size() * 16);
  for (const SequenceHash& hash : list.span()) {
    const std::array<std::uint8_t, 16> one = hash.to_bytes();
    bytes.append(reinterpret_cast<const char*>(one.data()), one.size());
  }
  return nb::bytes(bytes.data(), bytes.size());
}

HashList list_from_bytes(nb::handle object) {
  Buffer buffer;
  if (!buffer.take(object.ptr())) throw nb::type_error("sequence hashes are read from bytes");
  const auto size = static_cast<std::size_t>(buffer.view().len);
  if (size % 16 != 0) {
    refuse(std::to_string(size) + " bytes; every sequence hash has 16");
  }
  const auto* bytes = static_cast<const std::uint8_t*>(buffer.view().buf);
  std::vector<SequenceHash> hashes(size / 16);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    hashes[i] = SequenceHash::from_bytes(std::span<const std::uint8_t, 16>(bytes + 16 * i, 16));
  }
  return HashList(std::move(hashes));
}

HashList list_slice(const HashList& list, const nb::slice& slice) {
  const auto [start, step, length] = range_of(slice, [&] { return list.size(); });
  if (step == 1) return list.slice(static_cast<std::size_t>(start), length);
  std::vector<SequenceHash> hashes(length);
  for (std::size_t i = 0; i < length; ++i) {
    hashes[i] = list.span()[static_cast<std::size_t>(start + static_cast<Py_ssize_t>(i) * step)];
  }
  return HashList(std::move(hashes));
}

// (n, 2) uint64 without a copy: a list is immutable, so a view of it always shows the same.
int get_list_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  view->obj = nullptr;
  if ((flags & PyBUF_WRITABLE) == PyBUF_WRITABLE) {
    PyErr_SetString(PyExc_BufferError, "SequenceHashes is read-only");
    return -1;
  }
  if (!nb::inst_ready(nb::handle(self))) {
    PyErr_SetString(PyExc_BufferError, "SequenceHashes.__init__() was not called");
    return -1;
  }
  const HashList* list = nb::inst_ptr<HashList>(nb::handle(self));
  if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && list->size() > 1) {
    PyErr_SetString(PyExc_BufferError, "SequenceHashes has its rows one after another, not its columns");
    return -1;
  }
  auto* numbers = static_cast<Py_ssize_t*>(PyMem_Malloc(4 * sizeof(Py_ssize_t)));
  if (numbers == nullptr) {
    PyErr_NoMemory();
    return -1;
  }
  const auto size = static_cast<Py_ssize_t>(list->size());
  numbers[0] = size;
  numbers[1] = 2;
  numbers[2] = 16;
  numbers[3] = 8;
  const bool has_shape = (flags & PyBUF_ND) == PyBUF_ND;
  static const SequenceHash nothing;
  view->buf = const_cast<SequenceHash*>(size == 0 ? &nothing : list->span().data());
  view->len = size * 16;
  view->itemsize = 8;
  view->readonly = 1;
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>("Q") : nullptr;
  view->ndim = has_shape ? 2 : 1;
  view->shape = has_shape ? numbers : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? numbers + 2 : nullptr;
  view->suboffsets = nullptr;
  view->internal = numbers;
  view->obj = self;
  Py_INCREF(self);
  return 0;
}

void release_list_buffer(PyObject*, Py_buffer* view) noexcept {
  PyMem_Free(view->internal);
}

PyType_Slot list_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(get_list_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(release_list_buffer)},
    {0, nullptr},
};

void bind_hash(nb::module_& module) {
  nb::class_<SequenceHash>(module, "SequenceHash", R"(The name of a block by all tokens up to its end.

128 bits, the same in every tier, process and wire. Ordered by position, then by chain hash.)")
      .def_static("root", &SequenceHash::root, nb::arg("chain"), "The first block of a sequence.")
      .def_static(
          "make",
          [](std::uint64_t position, std::uint64_t chain, std::uint64_t parent_chain) {
            return value_or_raise(SequenceHash::make(position, chain, parent_chain));
          },
          nb::arg("position"), nb::arg("chain"), nb::arg("parent_chain"),
          "A block at a position whose parent has `parent_chain` (ignored at position 0).")
      .def_static("from_bits", &SequenceHash::from_bits, nb::arg("hi"), nb::arg("lo"),
                  "From the values of `hi` and `lo`.")
      .def_static("from_bytes", &hash_from_bytes, nb::arg("data"), "From 16 bytes, big-endian.",
                  nb::sig("def from_bytes(data: bytes | bytearray | memoryview) -> SequenceHash"))
      .def_static(
          "parse", [](const std::string& text) { return value_or_raise(SequenceHash::parse(text)); },
          nb::arg("text"), "The name that `str()` wrote.")
      .def(
          "child",
          [](const SequenceHash& self, std::uint64_t chain) { return value_or_raise(self.child(chain)); },
          nb::arg("chain"), "The next block of the same sequence.")
      .def("can_precede", &SequenceHash::can_precede, nb::arg("child"),
           "Whether this can be the block before `child`.")
      .def("in_group", &SequenceHash::in_group, nb::arg("group"),
           "The name of the same tokens in another group of layers; group 0 has the plain name.")
      .def_prop_ro("hi", &SequenceHash::hi, "The high 64 bits.")
      .def_prop_ro("lo", &SequenceHash::lo, "The low 64 bits.")
      .def_prop_ro("position", &SequenceHash::position, "The index of the block in its sequence.")
      .def_prop_ro("chain", &SequenceHash::chain, "The 64-bit chain hash; of a keyed name, its low 64 bits.")
      .def_prop_ro("parent_fragment", &SequenceHash::parent_fragment,
                   "The low bits of the parent's chain hash; 0 at position 0 and for keyed names.")
      .def_prop_ro("is_keyed", &SequenceHash::is_keyed, "Whether a keyed scheme made it.")
      .def("to_bytes", &hash_to_bytes, "16 bytes, big-endian.")
      .def("__bytes__", &hash_to_bytes, "As `to_bytes()`.")
      .def("__str__", &SequenceHash::to_string, "\"position:chain[:parent fragment]\".")
      .def(
          "__repr__", [](const SequenceHash& hash) { return "SequenceHash('" + hash.to_string() + "')"; },
          "For people.")
      .def(
          "__hash__", [](const SequenceHash& hash) { return std::hash<SequenceHash>()(hash); },
          "Equal names have equal hashes.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def(nb::self < nb::self)
      .def(nb::self <= nb::self)
      .def(nb::self > nb::self)
      .def(nb::self >= nb::self)
      .def("__getstate__", &hash_to_bytes, "For pickle.")
      .def(
          "__setstate__",
          [](SequenceHash& hash, const nb::bytes& state) {
            new (&hash) SequenceHash(hash_from_bytes(state));
          },
          "For pickle.");
}

}  // namespace

void bind_hashes(nb::module_& module) {
  bind_hash(module);
  nb::class_<HashList>(module, "SequenceHashes", nb::type_slots(list_slots),
                       R"(An immutable list of SequenceHash in one piece of memory.

Its buffer, and `numpy()`, show it without a copy as an array of uint64 with the shape (n, 2): the high and
the low halves. Slices with a step of 1 share the memory. Equal to other lists of the same names.)")
      .def(
          "__init__",
          [](HashList* self, const HashesLike& hashes) { new (self) HashList(HashArray(hashes).take()); },
          nb::arg("hashes"), "From SequenceHash objects, or from an array of uint64 with the shape (n, 2).")
      .def_static("from_bytes", &list_from_bytes, nb::arg("data"), "From 16 bytes per name, big-endian.",
                  nb::sig("def from_bytes(data: bytes | bytearray | memoryview) -> SequenceHashes"))
      .def("to_bytes", &list_to_bytes, "16 bytes per name, big-endian: the form on wires and in files.")
      .def(
          "numpy",
          [](nb::handle_t<HashList> self) {
            const auto span = nb::cast<const HashList&>(self).span();
            return nb::ndarray<nb::numpy, const std::uint64_t, nb::shape<-1, 2>>(
                reinterpret_cast<const std::uint64_t*>(span.data()), {span.size(), 2}, self);
          },
          "A read-only view as an array of uint64 with the shape (n, 2). It keeps this list alive.")
      .def(
          "chains",
          [](const HashList& list) {
            std::vector<std::uint64_t> chains(list.size());
            std::ranges::transform(list.span(), chains.begin(), &SequenceHash::chain);
            return numpy_of(std::move(chains));
          },
          "The chain hashes, as a new array of uint64.")
      .def("__len__", &HashList::size, "How many names.")
      .def(
          "__getitem__",
          [](const HashList& list, Py_ssize_t index) { return list.span()[index_in(index, list.size())]; },
          nb::arg("index"), "One name.")
      .def("__getitem__", &list_slice, nb::arg("slice"), "A part of the list.")
      .def(
          "__eq__",
          [](const HashList& a, const HashList& b) { return std::ranges::equal(a.span(), b.span()); },
          nb::is_operator(), nb::sig("def __eq__(self, arg: object, /) -> bool"), "The same names in order.")
      .def(
          "__hash__",
          [](const HashList& list) {
            std::size_t hash = list.size();
            for (const SequenceHash& name : list.span()) hash = hash * 31 + std::hash<SequenceHash>()(name);
            return hash;
          },
          "Equal lists have equal hashes.")
      .def(
          "__repr__",
          [](const HashList& list) { return "<SequenceHashes of " + std::to_string(list.size()) + ">"; },
          "For people.")
      .def("__getstate__", &list_to_bytes, "For pickle.")
      .def(
          "__setstate__",
          [](HashList& list, const nb::bytes& state) { new (&list) HashList(list_from_bytes(state)); },
          "For pickle.");
}

}  // namespace ashlar::python
