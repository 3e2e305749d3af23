#include "arrays.h"

#include <cstring>
#include <limits>
#include <string>

#include "errors.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

[[noreturn]] void refuse_token(std::size_t index, const std::string& value) {
  refuse("token " + std::to_string(index) + " is " + value + "; tokens are 0 to 4294967295");
}

// A buffer may begin at any byte.
template <class T>
bool is_aligned(const Py_buffer& view) {
  return reinterpret_cast<std::uintptr_t>(view.buf) % alignof(T) == 0;
}

template <class Int>
std::vector<tokens::Token> convert(const Py_buffer& view) {
  const auto* bytes = static_cast<const char*>(view.buf);
  std::vector<tokens::Token> converted(static_cast<std::size_t>(view.len) / sizeof(Int));
  for (std::size_t i = 0; i < converted.size(); ++i) {
    Int number;
    std::memcpy(&number, bytes + i * sizeof number, sizeof number);
    if (number < 0 || static_cast<std::uint64_t>(number) > std::numeric_limits<std::uint32_t>::max()) {
      refuse_token(i, std::to_string(number));
    }
    converted[i] = tokens::Token(static_cast<std::uint32_t>(number));
  }
  return converted;
}

std::vector<tokens::Token> convert_sequence(nb::handle object) {
  const nb::object fast =
      nb::steal(PySequence_Fast(object.ptr(), "tokens must be an array or a sequence of int"));
  if (!fast.is_valid()) throw nb::python_error();
  std::vector<tokens::Token> converted;
  const auto size = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  converted.reserve(size);
  for (std::size_t i = 0; i < size; ++i) {
    // Looked up anew each time: __index__ of an item may change the list.
    if (static_cast<Py_ssize_t>(i) >= PySequence_Fast_GET_SIZE(fast.ptr())) break;
    const nb::object item = nb::borrow(PySequence_Fast_GET_ITEM(fast.ptr(), static_cast<Py_ssize_t>(i)));
    const nb::object number = nb::steal(PyNumber_Index(item.ptr()));
    if (!number.is_valid()) throw nb::python_error();
    const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      refuse_token(i, nb::str(number).c_str());
    }
    if (value > std::numeric_limits<std::uint32_t>::max()) refuse_token(i, std::to_string(value));
    converted.emplace_back(static_cast<std::uint32_t>(value));
  }
  return converted;
}

// A buffer of what has none of its own: a tensor, by DLPack; a strided array, copied by numpy.
nb::object contiguous(nb::handle object) {
  const nb::object numpy = nb::module_::import_("numpy");
  const bool has_buffer = PyObject_CheckBuffer(object.ptr()) != 0;
  const nb::object array = has_buffer || !nb::hasattr(object, "__dlpack__")
                               ? nb::borrow(object)
                               : numpy.attr("from_dlpack")(object);
  return numpy.attr("ascontiguousarray")(array);
}

}  // namespace

Buffer::~Buffer() {
  if (taken_) PyBuffer_Release(&view_);
}

bool Buffer::take(PyObject* object, bool writable) {
  if (PyObject_CheckBuffer(object) == 0) return false;
  if (PyObject_GetBuffer(object, &view_,
                         PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) != 0) {
    PyErr_Clear();
    return false;
  }
  taken_ = true;
  return true;
}

char Buffer::type() const {
  const char* format = view_.format == nullptr ? "B" : view_.format;
  if (*format == '@' || *format == '=' || *format == '<') ++format;  // every machine here is little-endian
  if (*format == '\0' || format[1] != '\0') return 0;
  switch (*format) {
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return view_.itemsize == 4 ? 'I' : view_.itemsize == 8 ? 'Q' : '\0';
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return view_.itemsize == 4 ? 'i' : view_.itemsize == 8 ? 'q' : '\0';
    default:
      return 0;
  }
}

TokenArray::TokenArray(nb::handle object) {
  nb::object held = nb::borrow(object);
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    copy_ = convert_sequence(object);
    span_ = copy_;
    return;
  }
  if (!buffer_.take(held.ptr())) {
    if (PyObject_CheckBuffer(held.ptr()) == 0 && !nb::hasattr(held, "__dlpack__")) {
      copy_ = convert_sequence(object);
      span_ = copy_;
      return;
    }
    held = contiguous(held);
    if (!buffer_.take(held.ptr())) throw nb::type_error("tokens must be an array in host memory");
  }
  const Py_buffer& view = buffer_.view();
  if (view.ndim != 1) {
    refuse("tokens must be an array of 1 dimension; this has " + std::to_string(view.ndim));
  }
  const auto size = static_cast<std::size_t>(view.len / (view.itemsize == 0 ? 1 : view.itemsize));
  const bool aligned = is_aligned<tokens::Token>(view);
  switch (buffer_.type()) {
    case 'i': {
      if (!aligned) {
        copy_ = convert<std::int32_t>(view);
        break;
      }
      const auto* numbers = static_cast<const std::int32_t*>(view.buf);
      for (std::size_t i = 0; i < size; ++i) {
        if (numbers[i] < 0) refuse_token(i, std::to_string(numbers[i]));
      }
      [[fallthrough]];
    }
    case 'I':
      if (!aligned) {
        copy_ = convert<std::uint32_t>(view);
        break;
      }
      span_ = std::span(static_cast<const tokens::Token*>(view.buf), size);
      return;
    case 'q':
      copy_ = convert<std::int64_t>(view);
      break;
    case 'Q':
      copy_ = convert<std::uint64_t>(view);
      break;
    default:
      throw nb::type_error(("tokens must be integers of 32 or 64 bits; the array has the format '" +
                            std::string(view.format == nullptr ? "B" : view.format) + "'")
                               .c_str());
  }
  span_ = copy_;
}

std::vector<tokens::Token> TokenArray::take() {
  if (!copy_.empty()) {
    span_ = {};
    return std::move(copy_);
  }
  return {span_.begin(), span_.end()};
}

HashList HashList::slice(std::size_t first, std::size_t size) const {
  HashList part(*this);
  part.first_ += first;
  part.size_ = size;
  return part;
}

HashArray::HashArray(nb::handle object) {
  if (nb::isinstance<HashList>(object)) {
    list_ = nb::cast<HashList>(object);
    span_ = list_->span();
    return;
  }
  nb::object held = nb::borrow(object);
  const bool is_array = PyObject_CheckBuffer(held.ptr()) != 0;
  if (is_array && !buffer_.take(held.ptr())) {
    held = contiguous(held);
    if (!buffer_.take(held.ptr())) throw nb::type_error("sequence hashes must be in host memory");
  }
  if (is_array) {
    const Py_buffer& view = buffer_.view();
    if (buffer_.type() != 'Q' || view.ndim != 2 || view.shape[1] != 2) {
      throw nb::type_error("an array of sequence hashes must be of uint64, with the shape (n, 2)");
    }
    const auto size = static_cast<std::size_t>(view.shape[0]);
    if (!is_aligned<tokens::SequenceHash>(view)) {
      copy_.resize(size);
      std::memcpy(static_cast<void*>(copy_.data()), view.buf, size * sizeof(tokens::SequenceHash));
      span_ = copy_;
      return;
    }
    span_ = std::span(static_cast<const tokens::SequenceHash*>(view.buf), size);
    return;
  }
  for (nb::handle item : nb::iter(held)) {
    if (!nb::isinstance<tokens::SequenceHash>(item)) {
      throw nb::type_error("sequence hashes must be SequenceHashes, an array, or a sequence of SequenceHash");
    }
    copy_.push_back(nb::cast<tokens::SequenceHash>(item));
  }
  span_ = copy_;
}

std::vector<std::uint8_t> bytes_of(nb::handle object, std::size_t size, const char* what) {
  Buffer buffer;
  if (!buffer.take(object.ptr())) throw nb::type_error((std::string(what) + " must be bytes").c_str());
  const Py_buffer& view = buffer.view();
  if (static_cast<std::size_t>(view.len) != size) {
    refuse(std::string(what) + " has " + std::to_string(view.len) + " bytes; it must have " +
           std::to_string(size));
  }
  const auto* bytes = static_cast<const std::uint8_t*>(view.buf);
  return {bytes, bytes + view.len};
}

std::size_t index_in(Py_ssize_t index, std::size_t size) {
  const Py_ssize_t from_start = index < 0 ? index + static_cast<Py_ssize_t>(size) : index;
  if (from_start < 0 || from_start >= static_cast<Py_ssize_t>(size)) {
    throw nb::index_error(("index " + std::to_string(index) + " of " + std::to_string(size)).c_str());
  }
  return static_cast<std::size_t>(from_start);
}

}  // namespace ashlar::python
