// owned_array(): numpy arrays over memory that C++ made, without a copy.
#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace ashlar::python {

template <class T>
using NumpyArray = nanobind::ndarray<nanobind::numpy, T>;

// The array owns the vector. Call with the GIL held.
template <class T>
NumpyArray<T> owned_array(std::vector<T> values, std::initializer_list<std::size_t> shape) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  T* data = kept->data();
  nanobind::capsule owner(kept.get(),
                          [](void* vector) noexcept { delete static_cast<std::vector<T>*>(vector); });
  static_cast<void>(kept.release());
  return NumpyArray<T>(data, shape, owner);
}
template <class T>
NumpyArray<T> owned_array(std::vector<T> values) {
  const std::size_t size = values.size();
  return owned_array(std::move(values), {size});
}

}  // namespace ashlar::python
