// RAII owners of cnats objects.
#pragma once

#include <nats/nats.h>

#include <memory>

namespace ashlar::backend::nats {

template <class T, void (*kDestroy)(T*)>
struct Destroy {
  void operator()(T* object) const noexcept { kDestroy(object); }
};
template <class T, void (*kDestroy)(T*)>
using Handle = std::unique_ptr<T, Destroy<T, kDestroy>>;

using Message = Handle<natsMsg, natsMsg_Destroy>;
using ClientOptions = Handle<natsOptions, natsOptions_Destroy>;
using Statistics = Handle<natsStatistics, natsStatistics_Destroy>;
using Inbox = Handle<natsInbox, natsInbox_Destroy>;
using JetStreamContext = Handle<jsCtx, jsCtx_Destroy>;
using StreamInfo = Handle<jsStreamInfo, jsStreamInfo_Destroy>;
using ConsumerInfo = Handle<jsConsumerInfo, jsConsumerInfo_Destroy>;
using MetaData = Handle<jsMsgMetaData, jsMsgMetaData_Destroy>;
using Bucket = Handle<kvStore, kvStore_Destroy>;
using BucketEntry = Handle<kvEntry, kvEntry_Destroy>;

// For C functions that return an object through a pointer.
template <class H>
class Out {
 public:
  explicit Out(H& handle) noexcept : handle_(handle) {}
  Out(const Out&) = delete;
  Out& operator=(const Out&) = delete;
  ~Out() { handle_.reset(raw_); }
  operator typename H::pointer *() noexcept { return &raw_; }  // NOLINT(google-explicit-constructor)

 private:
  H& handle_;
  typename H::pointer raw_ = nullptr;
};

}  // namespace ashlar::backend::nats
