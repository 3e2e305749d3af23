// The other side of the tests: a process with registered memory. It prints what a peer needs, in hexadecimal,
// and then obeys one-line commands: "fill N", "check N" (answers with the number of bytes that differ), and
// the end of its input.
//
//   ucx_owner TRANSPORTS BYTES
#include <sys/prctl.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "ashlar/backend/ucx/ucx_transport.h"
#include "ashlar/storage/allocator.h"
#include "backend/ucx/owner_bytes.h"

namespace ashlar::backend::ucx {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::byte one : bytes) {
    out += kDigits[std::to_integer<unsigned>(one) >> 4];
    out += kDigits[std::to_integer<unsigned>(one) & 15];
  }
  return out;
}

int serve(const std::string& transports, std::uint64_t size) {
  auto transport = UcxTransport::create({.transports = transports});
  if (!transport) {
    std::cerr << transport.error() << "\n";
    return 1;
  }
  storage::SystemAllocator allocator;
  const std::shared_ptr<storage::Storage> memory = allocator.allocate(size, 4096).value();
  const auto registration = (*transport)->register_memory(memory).value();
  std::cout << hex((*transport)->address()) << " " << hex(registration->key()) << " "
            << reinterpret_cast<std::uintptr_t>(memory->address()) << std::endl;
  std::string verb;
  std::uint64_t seed = 0;
  while (std::cin >> verb >> seed) {
    if (verb == "fill") fill_bytes({memory->address(), size}, seed);
    std::cout << (verb == "check" ? count_other_bytes({memory->address(), size}, seed) : 0) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace ashlar::backend::ucx

int main(int count, char** values) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (count != 3) return 2;
  return ashlar::backend::ucx::serve(values[1], std::strtoull(values[2], nullptr, 10));
}
