// ProxyPassage: one request on its way through the service. See ashlar/service/passage.h.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "service/gateway/service_parts.h"
#include "service/request/prompt_tokens.h"
#include "service/request/request_view.h"
#include "service/request/usage_scanner.h"

namespace ashlar::service {

class ProxyPassage final : public Passage {
 public:
  explicit ProxyPassage(ServiceParts& parts) : parts_(parts) {}
  ~ProxyPassage() override;

  Step begin(const ClientRequest& request, Wake wake) override;
  Step answered(Result<Answer> answer) override;
  Step resumed() override;
  Step failed(ForwardFailure failure, std::string_view detail) override;
  HeadVerdict head(unsigned status, std::span<const HeaderView> headers) override;
  void bytes(std::string_view part) override;
  void ended(PassageEnd end) override;

 private:
  using Headers = std::vector<std::pair<std::string, std::string>>;

  // Reads what the headers say about routing. Errors: kInvalidArgument, with the header.
  Result<void> read_headers(std::span<const HeaderView> headers);
  // An answer of our own that takes long.
  Step start_chore();
  // The next step once the model is known.
  Step find_tokens();
  Step take(PromptTokens::Lookup lookup);
  // Asks `question_` of a worker; without one that can be asked, or without time, routes by load.
  Step ask();
  void take_tokens(KnownPrompt known);
  // Cuts the prompt anew if the model's blocks have another size by now.
  void follow_block_size();
  Step route();
  Step wait();
  // At most until then, and the request's own patience.
  Step hesitate(Clock::TimePoint now, Clock::TimePoint until);
  void stop_hesitating();
  // Whether not every worker of its group will do.
  bool is_choosy() const noexcept { return rank_ || home_ || !tried_.empty() || !model_.unlisted.empty(); }
  // Fills elsewhere_, as long as the worker that has the earlier answer is up; otherwise forgets it.
  void keep_to_home();
  // What is owed if this goes on with a reply whose blocks its worker has not told yet.
  std::optional<RecentEnds::End> owed_reply(Clock::TimePoint now) const;
  // Whether that worker has reported so many blocks of the prompt, or as many as the prompt has.
  bool has_reply(const RecentEnds::End& end) const;
  Step refuse(unsigned status, std::string_view type, std::string_view message, bool can_retry = false);
  // Whether answers to it tell if a worker is well: those of other paths are about the operation.
  bool judges_worker() const noexcept { return view_.endpoint <= Endpoint::kEmbeddings; }
  // Whether it may be sent again although an engine may have had it: what it asks for is known to be
  // harmless, or its method says so.
  bool may_repeat() const noexcept;
  // Whether the decision leaves another worker that is up.
  bool has_other_worker() const;
  void note_failure(std::string_view message);
  Step try_another(unsigned status, std::string_view message);
  // The router remembers names of its own earlier attempts: their blocks are as new as they were then.
  void recall_new_blocks();
  void keep_receipt(const RouteTarget& target);
  // What the answer says of the last decision, an error too.
  void add_receipt(Headers& headers) const;
  void release();
  void leave_line();
  // Whether what the engine says of the prompt can be so.
  bool is_plausible(const RequestOutcome& outcome) const;
  void settle_outcome(PassageEnd end);
  bool settle_misroute(RequestOutcome& outcome, bool has_other_tokens);

  ServiceParts& parts_;
  ClientRequest request_;
  Wake wake_;
  RequestView view_;
  ResolvedModel model_;
  CostWeights weights_;
  Policy policy_ = Policy::kPrefix;
  std::uint64_t session_ = 0;
  std::optional<std::uint32_t> rank_;
  std::string authorization_;  // for questions to engines that want it

  std::optional<TokenQuestion> question_;
  QuestionTarget asked_ = {};  // the last one
  std::uint32_t questions_ = 0;
  // Workers that did badly by its prompt. After two the others are spared.
  std::vector<events::WorkerId> refused_by_;
  Clock::TimePoint asks_until_{};
  std::optional<KnownPrompt> known_;
  std::string claim_reason_;  // of the receipt
  std::vector<tokens::LocalHash> locals_;
  std::uint64_t prompt_tokens_ = 0;
  bool is_estimate_ = true;

  std::optional<events::WorkerId> home_;  // the worker that has the answer which it goes on with, or asks for
  std::vector<events::Worker> elsewhere_;  // workers of the group that have not
  bool has_home_ = false;                  // its own answer is noted
  std::vector<events::Worker> tried_;
  std::uint32_t attempts_ = 0;    // that failed
  std::uint32_t new_blocks_ = 0;  // that no other request had named; 0 before its first decision
  WaitLine* line_ = nullptr;      // of its group
  std::uint64_t place_ = 0;       // in the line; 0: not in it
  Clock::TimePoint waits_until_{};
  std::uint64_t hesitation_ = 0;  // place among those that wait for events; 0: none
  Clock::TimePoint hesitates_since_{};
  Clock::TimePoint hesitates_until_{};
  bool has_hesitated_ = false;
  std::optional<RecentEnds::End> owed_;  // that it waits for
  Clock::TimePoint arrived_{};
  std::optional<Decision> decision_;
  std::string worker_name_;
  std::string state_reason_;
  bool is_reserved_ = false;
  bool has_failed_ = false;  // the answer that is passed on counts as a failure of its worker
  bool has_bytes_ = false;
  bool is_counted_ = true;  // among those that ended, or not to be
  unsigned status_ = 0;
  std::optional<UsageScanner> scanner_;
  std::shared_ptr<ChoreReply> chore_;
};

}  // namespace ashlar::service
