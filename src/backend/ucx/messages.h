// What peers say to each other: requests for bytes of a region, and replies. RegionTable: the memory that
// this process offers. Responder: answers requests on the worker that serves peers.
//
// UCX has one-sided operations, and over TCP it emulates them with messages too. Ours are used there instead,
// because UCX 1.13 ends the process of an owner that finds its reader gone, and because an owner that sees
// every request can refuse what it did not offer: a request names a region, a token that only its key has,
// and a range inside it. A put is granted by the mode in the owner's table, whatever the peer's key says.
//
// Thread safety: RegionTable is thread-safe, Responder confined to the thread that progresses its worker.
#pragma once

#include <ucp/api/ucp.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/storage/remote_storage.h"
#include "ashlar/storage/storage.h"
#include "backend/ucx/context.h"

namespace ashlar::backend::ucx {

static_assert(std::endian::native == std::endian::little, "headers travel as they lie in memory");

enum MessageId : unsigned { kQuestion = 1, kAnswer, kGet, kPut, kReply };

// Of kGet and kPut; a put has the bytes behind it.
struct RequestHeader {
  std::uint64_t tag = 0;  // of the reply
  std::uint64_t region = 0;
  std::uint64_t token = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// What an owner says to a request.
enum class Verdict : std::uint64_t {
  kNotOffered = 0,
  kGranted = 1,
  kReadOnly = 2,  // a put, into memory that is offered for reading
};

// Of kReply; a get that was granted has the bytes behind it.
struct ReplyHeader {
  std::uint64_t tag = 0;
  Verdict verdict = Verdict::kNotOffered;
};

class RegionTable {
 public:
  struct Name {
    std::uint64_t region = 0;
    std::uint64_t token = 0;
  };

  Name add(std::shared_ptr<storage::Storage> storage, storage::AccessMode mode);
  // No byte is written to it afterwards.
  void remove(std::uint64_t region);
  // Null when the request names nothing that is offered.
  std::shared_ptr<storage::Storage> find(const RequestHeader& request) const;
  // Nothing is written unless it is granted.
  Verdict write(const RequestHeader& request, std::span<const std::byte> bytes);

 private:
  struct Region {
    std::shared_ptr<storage::Storage> storage;
    std::uint64_t token = 0;
    storage::AccessMode mode = storage::AccessMode::kRead;
  };
  const Region* look_up(const RequestHeader& request) const ASHLAR_REQUIRES(mu_);

  mutable Mutex mu_;
  std::unordered_map<std::uint64_t, Region> regions_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t next_ ASHLAR_GUARDED_BY(mu_) = 1;
};

class Responder {
 public:
  // Accepts connections and takes the requests of a worker. Errors: kIo: no port can be listened on.
  static Result<std::unique_ptr<Responder>> create(std::unique_ptr<UcxWorker> worker,
                                                   std::shared_ptr<RegionTable> table);
  ~Responder();
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;

  UcxWorker& worker() noexcept { return *worker_; }
  std::uint16_t port() const noexcept { return port_; }
  // Whether anything happened.
  bool progress();

 private:
  // A reply on its way: UCX reads both until it says otherwise.
  struct Sending {
    Responder* responder = nullptr;
    ReplyHeader header;
    std::shared_ptr<storage::Storage> memory;
  };

  static ucs_status_t asked(void* user, const void* header, std::size_t header_length, void* data,
                            std::size_t length, const ucp_am_recv_param_t* parameters);
  static ucs_status_t wants_bytes(void* user, const void* header, std::size_t header_length, void* data,
                                  std::size_t length, const ucp_am_recv_param_t* parameters);
  static ucs_status_t brings_bytes(void* user, const void* header, std::size_t header_length, void* data,
                                   std::size_t length, const ucp_am_recv_param_t* parameters);
  static void sent(void* request, ucs_status_t status, void* user);
  static void connected(ucp_conn_request_h request, void* user);
  static void lost(void* user, ucp_ep_h endpoint, ucs_status_t status);
  void reply(const ucp_am_recv_param_t* parameters, unsigned id, const ReplyHeader& header,
             std::shared_ptr<storage::Storage> memory, std::uint64_t offset, std::uint64_t bytes);

  Responder(std::unique_ptr<UcxWorker> worker, std::shared_ptr<RegionTable> table) noexcept
      : table_(std::move(table)), worker_(std::move(worker)) {}

  std::shared_ptr<RegionTable> table_;
  std::unique_ptr<UcxWorker> worker_;
  ucp_listener_h listener_ = nullptr;
  std::uint16_t port_ = 0;
  std::vector<ucp_conn_request_h> arrivals_;
  std::vector<ucp_ep_h> lost_;  // closed outside UCX's callbacks
  std::unordered_map<Sending*, std::unique_ptr<Sending>> sending_;
};

// Lets `handler` take the messages `id` of a worker.
void take_messages(UcxWorker& worker, unsigned id, ucp_am_recv_callback_t handler, void* user);

}  // namespace ashlar::backend::ucx
