// SequenceBatch: many requests, scheduled and applied as one.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "arrays.h"
#include "ashlar/block/sequence_batch.h"
#include "guards.h"
#include "module.h"
#include "requests.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

using block::BatchPlan;
using tokens::Token;

// Requests whose decode step is worth giving up the GIL.
constexpr std::size_t kManyRequests = 64;

// Keeps its requests alive.
class BatchObject {
 public:
  void add(const RequestObject& request) {
    check_free();
    if (members_.contains(request.shared.get())) {
      raise(Error(ErrorCode::kInvalidArgument, "the request is in this batch already"));
    }
    block::RequestSequence<G1>& added = request.get();
    requests_.reserve(requests_.size() + 1);
    const auto member = members_.insert(request.shared.get()).first;
    try {
      batch_.add(added);
    } catch (...) {
      members_.erase(member);
      throw;
    }
    requests_.push_back(request.shared);
  }
  void clear() {
    check_free();
    batch_.clear();
    const std::vector<std::shared_ptr<SharedRequest>> dropped = std::exchange(requests_, {});
    members_.clear();
  }
  std::size_t size() const { return requests_.size(); }
  // The batch, if neither it nor a request of it is in use by another thread.
  block::SequenceBatch<G1>& get() {
    check_free();
    for (const std::shared_ptr<SharedRequest>& request : requests_) request->get();
    return batch_;
  }
  // f(batch), without the GIL if that is worth it. The batch and its requests are busy meanwhile.
  template <class F>
  auto run(bool large, F&& f) {
    block::SequenceBatch<G1>& batch = get();
    if (!large) return std::forward<F>(f)(batch);
    const Busy busy(*this);
    return without_gil([&] { return std::forward<F>(f)(batch); });
  }
  bool is_large() const { return size() >= kManyRequests; }
  void release() {
    get();
    for (const std::shared_ptr<SharedRequest>& request : std::vector(requests_)) request->release();
  }
  void check_count(std::size_t count, const char* what) const {
    if (count == size()) return;
    raise(make_error(ErrorCode::kInvalidArgument, "%zu %s for a batch of %zu requests", count, what, size()));
  }

 private:
  struct Busy {
    explicit Busy(BatchObject& used) : batch(used) { mark(true); }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;
    ~Busy() { mark(false); }
    void mark(bool busy) {
      batch.busy_ = busy;
      for (const std::shared_ptr<SharedRequest>& request : batch.requests_) request->mark_busy(busy);
    }
    BatchObject& batch;
  };

  void check_free() const {
    if (!busy_) return;
    raise(
        Error(ErrorCode::kInvalidArgument, "another thread is using this batch; use it from one at a time"));
  }

  std::vector<std::shared_ptr<SharedRequest>> requests_;
  std::unordered_set<const SharedRequest*> members_;
  block::SequenceBatch<G1> batch_;
  bool busy_ = false;
};

}  // namespace

void bind_batches(nb::module_& module) {
  nb::class_<BatchPlan>(module, "BatchPlan", "The total of a scheduled step over all requests.")
      .def_ro("new_blocks", &BatchPlan::new_blocks, "Blocks that were taken for it.")
      .def_ro("copies", &BatchPlan::copies, "How many copies RequestSequence.copies lists in all.");

  nb::class_<BatchObject>(module, "SequenceBatch",
                          R"(Requests that run together, scheduled and applied as one.

A step is refused as a whole; the exception's `index` is the first request that refused it.)")
      .def(nb::init<>(), "An empty batch.")
      .def("add", &BatchObject::add, nb::arg("request"), "Adds a request, which the batch keeps alive.")
      .def("clear", &BatchObject::clear, "Removes all requests; their steps stay scheduled.")
      .def("__len__", &BatchObject::size, "How many requests.")
      .def(
          "schedule_decode",
          [](BatchObject& self) {
            return value_or_raise(
                self.run(self.is_large(), [](auto& batch) { return batch.schedule_decode(); }));
          },
          "One token of every request.")
      .def(
          "apply_decode",
          [](BatchObject& self, const TokensLike& like) {
            const TokenArray tokens(like);
            self.check_count(tokens.size(), "tokens");
            return value_or_raise(
                self.run(self.is_large(), [&](auto& batch) { return batch.apply_decode(tokens.span()); }));
          },
          nb::arg("tokens"), "The tokens that the step yielded, one per request in the order of add().")
      .def(
          "schedule_prefill",
          [](BatchObject& self, const std::vector<std::size_t>& chunks) {
            self.check_count(chunks.size(), "chunks");
            return value_or_raise(
                self.run(true, [&](auto& batch) { return batch.schedule_prefill(chunks); }));
          },
          nb::arg("chunks"), "The next chunks[i] tokens of request i.")
      .def(
          "apply_prefill",
          [](BatchObject& self, const std::vector<std::optional<std::uint32_t>>& tokens) {
            self.check_count(tokens.size(), "tokens");
            std::vector<std::optional<Token>> yielded(tokens.size());
            for (std::size_t i = 0; i < tokens.size(); ++i) {
              if (tokens[i]) yielded[i] = Token(*tokens[i]);
            }
            return value_or_raise(self.run(true, [&](auto& batch) { return batch.apply_prefill(yielded); }));
          },
          nb::arg("tokens"), "The tokens that last chunks yielded; None for the other requests.")
      .def(
          "set_written_after",
          [](BatchObject& self, const block::Fence& fence) { self.get().set_written_after(fence); },
          nb::arg("fence"), "As of RequestSequence, for every request.")
      .def(
          "revert",
          [](BatchObject& self) {
            value_or_raise(self.run(self.is_large(), [](auto& batch) { return batch.revert(); }));
          },
          "Drops the scheduled step of every request.")
      .def("release", [](BatchObject& self) { self.release(); }, "Releases every request.");
}

}  // namespace ashlar::python
