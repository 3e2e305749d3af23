// How arrays cross: tokens and sequence hashes come in without a copy where their memory allows it, and go
// out as numpy arrays that own, or keep alive, what they show.
//
// Arguments are declared as TokensLike or HashesLike, which only name the type in signatures; TokenArray and
// HashArray then read them and raise TypeError, ValueError or OverflowError for what they cannot read.
//
// Thread safety: every constructor and destructor needs the GIL. The spans may be read without it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"

namespace ashlar::python {

inline bool is_not_none(PyObject* object) {
  return object != Py_None;
}

// An array of tokens: a buffer or tensor in host memory of 32-bit or 64-bit integers, or a sequence of int.
class TokensLike : public nanobind::object {
  NB_OBJECT_DEFAULT(TokensLike, nanobind::object, "numpy.typing.ArrayLike", is_not_none)
};
// SequenceHashes, an array of uint64 of shape (n, 2), or a sequence of SequenceHash.
class HashesLike : public nanobind::object {
  NB_OBJECT_DEFAULT(HashesLike, nanobind::object,
                    "SequenceHashes | collections.abc.Sequence[SequenceHash] | "
                    "numpy.typing.NDArray[numpy.uint64]",
                    is_not_none)
};

// Borrows the memory of a Python object: not resized nor freed while this lives.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();
  // False when the object has no buffer, or not a contiguous one, or not a writable one where it must be.
  bool take(PyObject* object, bool writable = false);
  const Py_buffer& view() const { return view_; }
  // The type of its elements as one letter of `struct`, native order; 0: another.
  char type() const;

 private:
  Py_buffer view_ = {};
  bool taken_ = false;
};

// Tokens of a Python object. uint32 and non-negative int32 memory is not copied.
class TokenArray {
 public:
  explicit TokenArray(nanobind::handle object);
  std::span<const tokens::Token> span() const { return span_; }
  std::size_t size() const { return span_.size(); }
  // A copy, or the tokens that were converted.
  std::vector<tokens::Token> take();

 private:
  Buffer buffer_;
  std::vector<tokens::Token> copy_;
  std::span<const tokens::Token> span_;
};

// The Python class SequenceHashes: an immutable list of names, one piece of memory shared by its slices.
class HashList {
 public:
  HashList() : HashList(std::vector<tokens::SequenceHash>()) {}
  explicit HashList(std::vector<tokens::SequenceHash> hashes)
      : hashes_(std::make_shared<const std::vector<tokens::SequenceHash>>(std::move(hashes))),
        size_(hashes_->size()) {}

  std::size_t size() const { return size_; }
  std::span<const tokens::SequenceHash> span() const { return std::span(*hashes_).subspan(first_, size_); }
  // Requires: first + size <= this->size().
  HashList slice(std::size_t first, std::size_t size) const;

 private:
  std::shared_ptr<const std::vector<tokens::SequenceHash>> hashes_;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

// Names of a Python object. SequenceHashes and contiguous, aligned arrays of (n, 2) uint64 are not
// copied.
class HashArray {
 public:
  explicit HashArray(nanobind::handle object);
  std::span<const tokens::SequenceHash> span() const { return span_; }
  std::size_t size() const { return span_.size(); }
  std::vector<tokens::SequenceHash> take() const { return {span_.begin(), span_.end()}; }

 private:
  Buffer buffer_;
  std::optional<HashList> list_;
  std::vector<tokens::SequenceHash> copy_;
  std::span<const tokens::SequenceHash> span_;
};

// Exactly `size` bytes of a bytes-like object; InvalidArgument with `what` otherwise.
std::vector<std::uint8_t> bytes_of(nanobind::handle object, std::size_t size, const char* what);

template <class T>
using Numpy = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>;

// A numpy array that owns these numbers.
template <class T>
Numpy<T> numpy_of(std::vector<T> numbers) {
  auto* kept = new std::vector<T>(std::move(numbers));
  nanobind::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return Numpy<T>(kept->data(), {kept->size()}, owner);
}
// The numbers of strong ids, copied.
template <class Id, class T = typename std::remove_const_t<Id>::rep>
Numpy<T> numpy_of_ids(std::span<Id> ids) {
  std::vector<T> numbers(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) numbers[i] = ids[i].value();
  return numpy_of(std::move(numbers));
}

// An index as Python counts, from the end if negative. IndexError beyond the size.
std::size_t index_in(Py_ssize_t index, std::size_t size);

// What a slice takes of a list of size(), which is asked last: the __index__ of a slice's numbers may change
// the list.
struct SliceRange {
  Py_ssize_t start;
  Py_ssize_t step;
  std::size_t length;
};
template <class Size>
SliceRange range_of(const nanobind::slice& slice, Size&& size) {
  Py_ssize_t start = 0, stop = 0, step = 0;
  if (PySlice_Unpack(slice.ptr(), &start, &stop, &step) != 0) throw nanobind::python_error();
  const Py_ssize_t length = PySlice_AdjustIndices(static_cast<Py_ssize_t>(size()), &start, &stop, step);
  return {start, step, static_cast<std::size_t>(length)};
}

}  // namespace ashlar::python
