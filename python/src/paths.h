// Names of files as Python gives them, and texts that may hold such names.
//
// Thread safety: every call needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "errors.h"

namespace ashlar::python {

inline bool is_path(PyObject* object) {
  return PyUnicode_Check(object) != 0 || PyBytes_Check(object) != 0 ||
         PyObject_HasAttrString(object, "__fspath__") != 0;
}

// str, bytes or an os.PathLike.
class PathLike : public nanobind::object {
  NB_OBJECT_DEFAULT(PathLike, nanobind::object, "str | bytes | os.PathLike", is_path)
};

// The bytes that the system calls take; surrogates of a str stand for bytes that are no text. TypeError for
// what is no path, InvalidArgument for one that the system cannot have.
inline std::string path_of(nanobind::handle path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0) {
    if (PyErr_ExceptionMatches(PyExc_ValueError) == 0) throw nanobind::python_error();
    PyErr_Clear();
    refuse("a path has a zero byte, or characters that no file name has");
  }
  const nanobind::bytes name = nanobind::steal<nanobind::bytes>(bytes);
  return {name.c_str(), name.size()};
}

// A text of the library's, in which bytes of a path may be no text: they become surrogates, as in Python's
// own paths.
inline nanobind::str text_of(std::string_view text) {
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (made == nullptr) throw nanobind::python_error();
  return nanobind::steal<nanobind::str>(made);
}

}  // namespace ashlar::python
