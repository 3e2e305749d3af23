#include "memory.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/layout/layout.h"
#include "ashlar/transfer/block_set.h"
#include "errors.h"
#include "guards.h"
#include "module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ashlar::python {
namespace {

using layout::Dtype;

// Keeps a Python object until the last user of its memory is gone, on whatever thread that is.
std::shared_ptr<const void> keep(nb::ndarray<> array) {
  return std::shared_ptr<nb::ndarray<>>(new nb::ndarray<>(std::move(array)), [](nb::ndarray<>* kept) {
    drop_with_gil([](void* dropped) { delete static_cast<nb::ndarray<>*>(dropped); }, kept);
  });
}

struct Imported {
  storage::ExternalMemory memory;
  std::vector<std::uint64_t> shape;
  std::vector<std::int64_t> strides;  // bytes
  std::uint64_t width = 0;            // bytes of an element
  bool contiguous = true;
};

// `name`: the argument, for messages; here and below.
Imported import_array(nb::handle object, const std::string& name) {
  nb::ndarray<> array;
  try {
    array = nb::cast<nb::ndarray<>>(object, false);
  } catch (const nb::cast_error&) {
    refuse(name + " must be a writable array: a numpy array, a buffer, or a tensor with __dlpack__");
  } catch (nb::python_error& error) {
    nb::raise_from(error, PyExc_TypeError, "%s could not be exported", name.c_str());
  }
  Imported out;
  out.width = array.itemsize();
  std::uint64_t extent = array.size() == 0 ? 0 : out.width;
  std::uint64_t packed = out.width;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    const auto stride = static_cast<std::int64_t>(array.stride(i)) * static_cast<std::int64_t>(out.width);
    out.shape.insert(out.shape.begin(), array.shape(i));
    out.strides.insert(out.strides.begin(), stride);
    if (array.shape(i) > 1 && stride != static_cast<std::int64_t>(packed)) out.contiguous = false;
    if (array.shape(i) > 1 && stride <= 0) refuse(name + " has an axis that goes backwards or repeats");
    packed *= array.shape(i);
    if (array.shape(i) > 1) extent += (array.shape(i) - 1) * static_cast<std::uint64_t>(stride);
  }
  out.memory.address = static_cast<std::byte*>(array.data());
  out.memory.bytes = array.size() == 0 ? 0 : extent;
  switch (array.device_type()) {
    case nb::device::cpu::value:
      break;
    case nb::device::cuda_host::value:
      out.memory.kind = StorageKind::kPinned;
      break;
    case nb::device::cuda::value:
    case nb::device::cuda_managed::value:
      out.memory.kind = StorageKind::kDevice;
      out.memory.device = array.device_id();
      break;
    default:
      raise(Error(ErrorCode::kUnsupported, name + " is on a device that this package cannot use"));
  }
  out.memory.owner = keep(std::move(array));
  return out;
}

// Whether the array has the axes of the model, and so its own strides. The first extent is that of blocks.
bool has_axes(const Imported& array, const layout::LayoutConfig& model, bool with_layers) {
  std::vector<std::uint64_t> axes = {model.outer_dim, model.block_size, model.num_heads, model.head_dim};
  if (with_layers) axes.insert(axes.begin(), model.num_layers);
  return array.shape.size() == axes.size() + 1 && array.width == width_of(model.dtype) &&
         std::equal(axes.begin(), axes.end(), array.shape.begin() + 1);
}

layout::Strides strides_of(const Imported& array, bool with_layers, const std::string& name) {
  // An axis of one element may have any stride: take one that no other axis can be confused with.
  std::vector<std::uint64_t> strides(array.strides.size());
  std::uint64_t packed = array.width;
  for (std::size_t i = strides.size(); i-- > 0;) {
    strides[i] = array.shape[i] > 1 ? static_cast<std::uint64_t>(array.strides[i]) : packed;
    packed = std::max(packed, strides[i] * array.shape[i]);
  }
  if (strides.back() != array.width) refuse("the elements of a head must be adjacent in " + name);
  std::size_t axis = 0;
  layout::Strides out;
  out.block = strides[axis++];
  out.layer = with_layers ? strides[axis++] : 0;
  out.outer = strides[axis++];
  out.token = strides[axis++];
  out.head = strides[axis++];
  return out;
}

// DLPack's types; numpy has neither bfloat16 nor 8-bit floats, and gets their bits.
nb::dlpack::dtype dtype_of(Dtype dtype, bool numpy) {
  const auto of = [](std::uint8_t code, std::uint8_t bits) { return nb::dlpack::dtype{code, bits, 1}; };
  constexpr std::uint8_t kUInt = 1, kFloat = 2, kBfloat = 4, kFloat8E4M3Fn = 10, kFloat8E5M2 = 12;
  switch (dtype) {
    case Dtype::kU8:
      return of(kUInt, 8);
    case Dtype::kF8E4M3:
      return of(numpy ? kUInt : kFloat8E4M3Fn, 8);
    case Dtype::kF8E5M2:
      return of(numpy ? kUInt : kFloat8E5M2, 8);
    case Dtype::kF16:
      return of(kFloat, 16);
    case Dtype::kBF16:
      return of(numpy ? kUInt : kBfloat, 16);
    case Dtype::kF32:
      return of(kFloat, 32);
    case Dtype::kF64:
      return of(kFloat, 64);
  }
  return of(kUInt, 8);
}

// A block that a view shows, and whether it may be written.
struct Target {
  std::uint32_t id = 0;
  bool writable = false;
};

template <class Object>
bool take_guard(nb::handle object, const KvPtr& kv, bool writable, std::optional<Target>& out) {
  if (!nb::isinstance<Object>(object)) return false;
  Object& guard = nb::cast<Object&>(object);
  if (guard.manager().get() != &kv->g1()) refuse("the block is of another manager");
  out = Target{guard.get().block_id().value(), writable};
  return true;
}

Target target_of(nb::handle block, const KvPtr& kv) {
  std::optional<Target> target;
  if (take_guard<MutableObject>(block, kv, true, target) ||
      take_guard<PartialObject>(block, kv, true, target) ||
      take_guard<ScheduledObject>(block, kv, true, target) ||
      take_guard<InflightObject>(block, kv, true, target) ||
      take_guard<CompleteObject>(block, kv, false, target) ||
      take_guard<ImmutableObject>(block, kv, false, target)) {
    return *target;
  }
  if (PyIndex_Check(block.ptr()) == 0) throw nb::type_error("a block is a guard, or the number of a block");
  const nb::object number = nb::steal(PyNumber_Index(block.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  const long long id = PyLong_AsLongLong(number.ptr());
  if (id == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
  if (id < 0 || id >= static_cast<long long>(kv->g1_blocks()->block_count())) {
    refuse("there is no block " + std::string(nb::str(number).c_str()) + ": G1 has " +
           std::to_string(kv->g1_blocks()->block_count()));
  }
  return {static_cast<std::uint32_t>(id), false};
}

// A tensor that only says so in versions of DLPack that can: others would make it writable.
struct ReadOnlyTensor {
  nb::object tensor;
};

nb::object export_read_only(const ReadOnlyTensor& self, nb::kwargs how) {
  const nb::object version = how.contains("max_version") ? nb::object(how["max_version"]) : nb::none();
  long major = 0;
  if (!version.is_none() && !nb::try_cast(nb::object(version[nb::int_(0)]), major))
    throw nb::type_error("max_version must be two numbers");
  if (major < 1) {
    PyErr_SetString(PyExc_BufferError,
                    "the block is read-only, which DLPack says from version 1 on: ask with max_version");
    throw nb::python_error();
  }
  return self.tensor.attr("__dlpack__")(**how);
}

int get_tensor_buffer(PyObject* self, Py_buffer* view, int flags) noexcept {
  view->obj = nullptr;
  if (!nb::inst_ready(nb::handle(self))) {
    PyErr_SetString(PyExc_BufferError, "the tensor was not made");
    return -1;
  }
  return PyObject_GetBuffer(nb::inst_ptr<ReadOnlyTensor>(nb::handle(self))->tensor.ptr(), view, flags);
}

PyType_Slot tensor_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(get_tensor_buffer)},
    {0, nullptr},
};

// An array over one block, or over all of them, of one layer, or of all.
template <class Framework>
nb::object view_of(const KvRef& self, nb::handle block, std::optional<std::uint32_t> layer) {
  constexpr bool kNumpy = std::is_same_v<Framework, nb::numpy>;
  const KvPtr kv = self.get();
  const transfer::BlockSet& blocks = *kv->g1_blocks();
  if (kNumpy && !blocks.host_accessible()) {
    raise(Error(ErrorCode::kUnsupported, "G1 is in device memory: take tensor(), which a GPU library reads"));
  }
  const layout::Layout& shape = blocks.planes()[0].layout;
  const layout::LayoutConfig& model = shape.config();
  const bool all = block.is_none();
  const Target target = all ? Target{0, true} : target_of(block, kv);
  if (layer && *layer >= model.num_layers) {
    refuse("there is no layer " + std::to_string(*layer) + ": the model has " +
           std::to_string(model.num_layers));
  }
  if (!layer && shape.regions() == layout::Regions::kPerLayer && model.num_layers > 1) {
    refuse("G1 has a piece of memory per layer: name the layer");
  }
  const std::uint64_t width = width_of(model.dtype);
  std::vector<std::size_t> extents;
  std::vector<std::int64_t> strides;
  const auto add = [&](std::uint64_t extent, std::uint64_t stride) {
    extents.push_back(extent);
    strides.push_back(static_cast<std::int64_t>(stride / width));
  };
  if (all) add(model.block_count, shape.strides().block);
  if (!layer) add(model.num_layers, shape.strides().layer);
  add(model.outer_dim, shape.strides().outer);
  add(model.block_size, shape.strides().token);
  add(model.num_heads, shape.strides().head);
  add(model.head_dim, width);
  std::byte* data = blocks.address(0, shape.place({target.id, layer.value_or(0), 0, 0, 0}));
  // What the array keeps: the manager, and a guard, so that its block stays where it is.
  auto kept = std::make_unique<KvPtr>(kv);
  nb::capsule manager(kept.get(), [](void* pointer) noexcept { delete static_cast<KvPtr*>(pointer); });
  static_cast<void>(kept.release());
  const nb::object owner = nb::make_tuple(nb::borrow(block), manager);
  const int device_type =
      blocks.kind() == StorageKind::kDevice ? nb::device::cuda::value : nb::device::cpu::value;
  const int device = blocks.kind() == StorageKind::kDevice ? blocks.device() : 0;
  const nb::dlpack::dtype dtype = dtype_of(model.dtype, kNumpy);
  if (target.writable) {
    return nb::cast(nb::ndarray<Framework>(data, extents.size(), extents.data(), owner, strides.data(), dtype,
                                           device_type, device));
  }
  nb::object shown = nb::cast(nb::ndarray<Framework, nb::ro>(data, extents.size(), extents.data(), owner,
                                                             strides.data(), dtype, device_type, device));
  if constexpr (kNumpy) return shown;
  return nb::cast(ReadOnlyTensor{std::move(shown)});
}

}  // namespace

BroughtMemory memory_of(nb::handle memory, const layout::LayoutConfig& model, const std::string& name) {
  BroughtMemory out;
  const bool per_layer = nb::isinstance<nb::list>(memory) || nb::isinstance<nb::tuple>(memory);
  std::vector<Imported> arrays;
  if (per_layer) {
    for (nb::handle layer : nb::borrow<nb::sequence>(memory)) arrays.push_back(import_array(layer, name));
    if (arrays.size() != model.num_layers) {
      refuse(name + " has " + std::to_string(arrays.size()) + " arrays for " +
             std::to_string(model.num_layers) + " layers");
    }
  } else {
    arrays.push_back(import_array(memory, name));
  }
  const Imported& first = arrays.front();
  const bool axes = has_axes(first, model, !per_layer);
  if (!axes && !first.contiguous) {
    refuse(name + " must be contiguous, or have the shape (blocks" +
           std::string(per_layer ? "" : ", layers") +
           ", outer, tokens, heads, dim) and elements of the dtype");
  }
  if (axes) {
    if (first.shape[0] == 0 || first.shape[0] > std::numeric_limits<std::uint32_t>::max())
      refuse(name + " has no blocks, or too many");
    out.block_count = static_cast<std::uint32_t>(first.shape[0]);
    out.plane.strides = strides_of(first, !per_layer, name);
  }
  for (Imported& array : arrays) {
    if (array.shape != first.shape || array.strides != first.strides || array.width != first.width) {
      refuse("the arrays of all layers must have the same shape and strides");
    }
    if (array.memory.device != storage::Storage::kNoDevice) out.device = array.memory.device;
    out.plane.regions.push_back(std::move(array.memory));
  }
  return out;
}

void bind_memory(nb::module_& module, nb::class_<KvRef>& type) {
  nb::class_<ReadOnlyTensor>(module, "ReadOnlyTensor", nb::type_slots(tensor_slots),
                             R"(The bytes of a block that others may read, for DLPack and the buffer protocol.

Made by KvBlockManager.tensor(). It keeps the manager and the guard.)")
      .def("__dlpack__", &export_read_only, nb::sig("def __dlpack__(self, **kwargs: object) -> object"),
           "For libraries of arrays. BufferError unless max_version is (1, 0) or later: older versions "
           "cannot say that memory is read-only.")
      .def(
          "__dlpack_device__",
          [](const ReadOnlyTensor& self) { return nb::object(self.tensor.attr("__dlpack_device__")()); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"), "The kind and number of the device.");
  type.def(
          "array",
          [](const KvRef& self, nb::object block, std::optional<std::uint32_t> layer) {
            return view_of<nb::numpy>(self, block, layer);
          },
          "block"_a = nb::none(), nb::kw_only(), "layer"_a = nb::none(),
          nb::sig("def array(self, block: object = None, *, layer: int | None = None) -> numpy.ndarray"),
          "The bytes of a block of G1, or without one of all blocks, as a numpy array without a copy: "
          "(blocks,) layers, outer, tokens, heads, dim; without the layers where one is named. bf16 shows as "
          "uint16, 8-bit floats as uint8. Writable for guards of blocks that are being filled and for all "
          "blocks at once; read-only for complete and registered blocks, and for block numbers. The array "
          "keeps the manager and the guard; release() of the guard ends what it may be used for.")
      .def(
          "tensor",
          [](const KvRef& self, nb::object block, std::optional<std::uint32_t> layer) {
            return view_of<nb::array_api>(self, block, layer);
          },
          "block"_a = nb::none(), nb::kw_only(), "layer"_a = nb::none(),
          nb::sig("def tensor(self, block: object = None, *, layer: int | None = None) -> object"),
          "The same as an object with __dlpack__, with the true dtype and device, for torch.from_dlpack() "
          "and its like; it has the buffer protocol too. A ReadOnlyTensor where the array would be "
          "read-only.");
}

}  // namespace ashlar::python
