#include "transfer/remote/loopback_address.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#include "base/byte_io.h"
#include "base/wide.h"

namespace ashlar::transfer {
namespace {

constexpr std::uint32_t kAddressMagic = 0x4150'4C41;  // "ALPA"
constexpr std::uint16_t kAddressVersion = 1;

std::string reason(int error) {
  return std::generic_category().message(error);
}

// The text of a small file of /proc; empty where there is none.
std::string read_text(const std::string& path) {
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(4096, '\0');
  const ssize_t got = file.valid() ? read(file.get(), text.data(), text.size()) : -1;
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

// "8-4-4-4-12" hexadecimal digits.
bool read_boot(std::array<std::byte, 16>* out) {
  std::string text = read_text("/proc/sys/kernel/random/boot_id");
  std::erase_if(text, [](char c) { return c == '-' || c == '\n'; });
  if (text.size() != 2 * out->size()) return false;
  for (std::size_t i = 0; i < out->size(); ++i)
    (*out)[i] = static_cast<std::byte>(std::strtoul(text.substr(2 * i, 2).c_str(), nullptr, 16));
  return true;
}

std::uint64_t own_pid_namespace() {
  struct stat status{};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace

Result<std::uint64_t> process_start(std::int32_t pid) {
  const std::string text = read_text("/proc/" + std::to_string(pid) + "/stat");
  // The name in parentheses may hold anything; the start is the 20th word behind it.
  std::size_t at = text.rfind(')');
  for (int word = 0; word < 20 && at != std::string::npos; ++word) at = text.find(' ', at + 1);
  if (at == std::string::npos)
    return make_error(ErrorCode::kUnavailable, "process %d does not exist any more", pid);
  return std::strtoull(text.c_str() + at + 1, nullptr, 10);
}

Result<LoopbackAddress> LoopbackAddress::of_this_process() {
  LoopbackAddress address{.pid = getpid(), .pid_namespace = own_pid_namespace(), .user = geteuid()};
  const Result<std::uint64_t> started = process_start(address.pid);
  if (!started || !read_boot(&address.boot))
    return make_error(ErrorCode::kUnsupported, "the loopback transport needs /proc, with this process in it");
  address.started = *started;
  return address;
}

std::vector<std::byte> LoopbackAddress::encode() const {
  ByteWriter out;
  out.put(kAddressMagic);
  out.put(kAddressVersion);
  out.put(pid);
  out.put(started);
  out.put_bytes(boot);
  out.put(pid_namespace);
  out.put(user);
  out.put(table.descriptor);
  out.put(table.device_id);
  out.put(table.inode);
  return std::move(out.bytes());
}

Result<LoopbackAddress> LoopbackAddress::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  LoopbackAddress address;
  const auto magic = in.get<std::uint32_t>();
  const auto version = in.get<std::uint16_t>();
  address.pid = in.get<std::int32_t>();
  address.started = in.get<std::uint64_t>();
  std::ranges::copy(in.get_bytes(address.boot.size()), address.boot.begin());
  address.pid_namespace = in.get<std::uint64_t>();
  address.user = in.get<std::uint32_t>();
  address.table.descriptor = in.get<std::int32_t>();
  address.table.device_id = in.get<std::uint64_t>();
  address.table.inode = in.get<std::uint64_t>();
  if (!in.ok() || in.left() != 0 || magic != kAddressMagic || version != kAddressVersion ||
      address.pid <= 0 || address.table.descriptor < 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "%zu bytes that are not an address of a loopback transport; both sides need the same "
                      "transport and version",
                      bytes.size());
  return address;
}

Result<OwnedFd> open_process(const LoopbackAddress& address) {
  std::array<std::byte, 16> boot{};
  if (!read_boot(&boot) || boot != address.boot)
    return make_error(ErrorCode::kUnavailable,
                      "the address is of another machine, or from before it started again; the loopback "
                      "transport stays inside one machine");
  if (address.pid_namespace != own_pid_namespace())
    return make_error(ErrorCode::kUnavailable,
                      "process %d lives in another pid namespace; run both in one container, or share the "
                      "namespace",
                      address.pid);
  OwnedFd process(static_cast<int>(syscall(SYS_pidfd_open, address.pid, 0)));
  if (!process.valid())
    return make_error(ErrorCode::kUnavailable, "process %d cannot be watched: %s", address.pid,
                      reason(errno).c_str());
  ASHLAR_TRY(const std::uint64_t started, process_start(address.pid));
  if (started != address.started || process_ended(process))
    return make_error(ErrorCode::kUnavailable,
                      "process %d of this address has ended (it started at tick %llu; the process that has "
                      "the pid now, at %llu)",
                      address.pid, wide(address.started), wide(started));
  return process;
}

bool process_ended(const OwnedFd& process) noexcept {
  pollfd about{.fd = process.get(), .events = POLLIN, .revents = 0};
  return poll(&about, 1, 0) > 0;
}

Result<OwnedFd> open_memory_file(std::int32_t pid, const ProcessFile& file, std::uint64_t bytes, int flags) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file.descriptor);
  // What it is comes first: opening a device or a pipe may have effects.
  const OwnedFd found(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status{};
  if (!found.valid() || fstat(found.get(), &status) != 0) {
    if (errno == EACCES || errno == EPERM)
      return make_error(ErrorCode::kUnsupported,
                        "the memory of process %d may not be opened (%s); run both processes as one user",
                        pid, reason(errno).c_str());
    return make_error(ErrorCode::kUnavailable, "descriptor %d of process %d cannot be opened: %s",
                      file.descriptor, pid, reason(errno).c_str());
  }
  const auto other = [&] {
    return make_error(ErrorCode::kInvalidArgument,
                      "descriptor %d of process %d is not the memory that was registered", file.descriptor,
                      pid);
  };
  if (!S_ISREG(status.st_mode) || status.st_dev != file.device_id || status.st_ino != file.inode ||
      static_cast<std::uint64_t>(status.st_size) < bytes)
    return other();
  const std::string again = "/proc/self/fd/" + std::to_string(found.get());
  OwnedFd opened(open(again.c_str(), flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!opened.valid())
    return make_error(ErrorCode::kUnsupported, "the memory of process %d may not be opened (%s)", pid,
                      reason(errno).c_str());
  // A file that its owner can shorten would end this process when it reads on.
  const int seals = fcntl(opened.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return other();
  return opened;
}

}  // namespace ashlar::transfer
