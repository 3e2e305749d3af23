// LoopDevice: a file as a block device of the kernel, for a test that has the rights to make one.
#pragma once

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

namespace ashlar {

class LoopDevice {
 public:
  // Null where the kernel has none, or does not give one to us.
  static std::unique_ptr<LoopDevice> over(const std::string& path) {
    const int control = ::open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    std::unique_ptr<LoopDevice> made;
    // Another may take the free one first.
    for (bool again = control >= 0 && file >= 0; again;) {
      again = false;
      const int number = ioctl(control, LOOP_CTL_GET_FREE);
      if (number < 0) break;
      const std::string name = "/dev/loop" + std::to_string(number);
      const int device = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
      if (device < 0) break;
      if (ioctl(device, LOOP_SET_FD, file) == 0) {
        made.reset(new LoopDevice(name, device));
      } else {
        again = errno == EBUSY;
        ::close(device);
      }
    }
    if (control >= 0) ::close(control);
    if (file >= 0) ::close(file);
    return made;
  }
  ~LoopDevice() {
    ioctl(device_, LOOP_CLR_FD, 0);
    ::close(device_);
  }
  LoopDevice(const LoopDevice&) = delete;
  LoopDevice& operator=(const LoopDevice&) = delete;

  const std::string& path() const { return path_; }

 private:
  LoopDevice(std::string path, int device) : path_(std::move(path)), device_(device) {}

  const std::string path_;
  const int device_;
};

}  // namespace ashlar
