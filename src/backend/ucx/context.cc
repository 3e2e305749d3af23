#include "backend/ucx/context.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "backend/ucx/descriptor_gate.h"
#include "backend/ucx/transports.h"
#include "backend/ucx/ucx_library.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::backend::ucx {
namespace {

struct ReleaseConfig {
  void operator()(ucp_config_t* config) const noexcept { ucx().ucp_config_release(config); }
};

}  // namespace

std::string reason(ucs_status_t status) {
  return std::string("UCX: ") + ucx().ucs_status_string(status);
}

Result<std::shared_ptr<UcxContext>> UcxContext::create(const UcxOptions& options) {
  ASHLAR_RETURN_IF_ERROR(load_ucx());
  ucp_config_t* raw = nullptr;
  if (const ucs_status_t status = ucx().ucp_config_read(nullptr, nullptr, &raw); status != UCS_OK)
    return make_error(ErrorCode::kInvalidArgument, "the UCX_ variables of the environment cannot be read: %s",
                      reason(status).c_str());
  const std::unique_ptr<ucp_config_t, ReleaseConfig> config(raw);
  // UCX 1.13 looks these two up without the prefix that its variables have, and later versions with it.
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucx().ucp_get_version(&major, &minor, &release);
  const std::string prefix = major == 1 && minor < 14 ? "" : "TCP_";
  const std::string segment = std::to_string(options.segment_bytes);
  std::vector<std::pair<std::string, std::string>> settings = {
      {"TLS", options.transports}, {prefix + "TX_SEG_SIZE", segment}, {prefix + "RX_SEG_SIZE", segment}};
  if (!options.devices.empty()) settings.emplace_back("NET_DEVICES", options.devices);
  for (const auto& [name, value] : settings)
    if (const ucs_status_t status = ucx().ucp_config_modify(config.get(), name.c_str(), value.c_str());
        status != UCS_OK)
      return make_error(ErrorCode::kInvalidArgument, "UCX does not take '%s' for %s: %s", value.c_str(),
                        name.c_str(), reason(status).c_str());
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  parameters.mt_workers_shared = 1;
  parameters.name = "ashlar";
  ucp_context_h handle = nullptr;
  if (const ucs_status_t status =
          ucx().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config.get(), &handle);
      status != UCS_OK)
    return make_error(ErrorCode::kUnsupported,
                      "UCX cannot use the transports '%s' here (%s); ucx_info -d lists those that it has",
                      options.transports.c_str(), reason(status).c_str());
  return std::shared_ptr<UcxContext>(new UcxContext(handle, options.transports));
}

UcxContext::~UcxContext() {
  ucx().ucp_cleanup(handle_);
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(std::shared_ptr<UcxContext> context) {
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  const DescriptorGate::Opening alone;
  ucp_worker_h handle = nullptr;
  if (const ucs_status_t status = ucx().ucp_worker_create(context->handle(), &parameters, &handle);
      status != UCS_OK)
    return make_error(ErrorCode::kCapacity, "no UCX worker could be made for the transports '%s': %s",
                      context->transports().c_str(), reason(status).c_str());
  int event_fd = -1;
  if (const ucs_status_t status = ucx().ucp_worker_get_efd(handle, &event_fd); status != UCS_OK) {
    ucx().ucp_worker_destroy(handle);
    return make_error(ErrorCode::kUnsupported, "the transports '%s' cannot wake a thread: %s",
                      context->transports().c_str(), reason(status).c_str());
  }
  return std::unique_ptr<UcxWorker>(new UcxWorker(std::move(context), handle, event_fd));
}

UcxWorker::~UcxWorker() {
  ucx().ucp_worker_destroy(handle_);
}

bool UcxWorker::arm() noexcept {
  return ucx().ucp_worker_arm(handle_) == UCS_OK;
}

Result<std::vector<std::byte>> UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  if (const ucs_status_t status = ucx().ucp_worker_get_address(handle_, &address, &length); status != UCS_OK)
    return make_error(ErrorCode::kIo, "the worker has no address: %s", reason(status).c_str());
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> out(bytes, bytes + length);
  ucx().ucp_worker_release_address(handle_, address);
  return out;
}

std::uint64_t machine_id() {
  std::array<char, 64> text{};
  const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = read(file, text.data(), text.size());
  close(file);
  struct stat network = {};
  struct stat processes = {};
  if (length <= 0 || stat("/proc/self/ns/net", &network) != 0 || stat("/proc/self/ns/pid", &processes) != 0)
    return 0;
  return XXH3_64bits_withSeed(text.data(), static_cast<std::size_t>(length),
                              network.st_ino * 0x9E3779B97F4A7C15u + processes.st_ino);
}

std::string host_addresses(const std::string& devices) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::string out;
  for (const bool loopback : {false, true})
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
      if ((one->ifa_flags & IFF_UP) == 0 || ((one->ifa_flags & IFF_LOOPBACK) != 0) != loopback) continue;
      if (!devices.empty() &&
          ("," + devices + ",").find("," + std::string(one->ifa_name) + ",") == std::string::npos)
        continue;
      std::array<char, INET_ADDRSTRLEN> text{};
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text.data(),
                text.size());
      if (!out.empty()) out += ",";
      out += text.data();
    }
  freeifaddrs(list);
  return out;
}

}  // namespace ashlar::backend::ucx
