#include "ashlar/storage/storage.h"

namespace ashlar::storage {

std::string Storage::describe() const {
  std::string text(to_string(kind_));
  if (device_ != kNoDevice) text += " " + std::to_string(device_);
  return text + ", " + std::to_string(size_) + " bytes";
}

}  // namespace ashlar::storage
