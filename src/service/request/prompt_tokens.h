// PromptTokens: the tokens of requests, without a tokenizer of our own.
//
// Token-id prompts need nothing. Other prompts are asked of a worker (/tokenize), and what was asked once is
// remembered: a bounded cache leads from the messages of a conversation to its tokens. A follow-up turn then
// asks only for its tail: the first message, or a short one of its role if it is long (so that the template
// puts no default one in its place), and the messages that are new; what stands between is known. That is
// right where a template writes message after
// message. Whether it does is learned per model and per kind of tail (which roles stand where, and whether
// messages have more than a text): the first follow-ups are asked whole and compared with their joined form;
// only after kTrials equal ones, and no unequal one, is a tail trusted; one in kSample is still compared, and
// the engine's own count of prompt tokens checks every one (check()). Where a short message stands in, so is
// the first tail of every first message. A difference ends it for that model, and is counted: stand-ins
// first, if one had part in it. A kind of tail that the template refuses is not asked again.
//
// What /tokenize cannot say (tools and items of /v1/responses, tool blocks of /v1/messages, images,
// documents) a render endpoint can: it takes the request itself. Such prompts are asked whole; they are
// remembered by their whole body, and not at all if they have images, since what stands behind an address
// may change.
//
// A request takes at most four questions (the first trial of a model), a trusted tail one, and another one
// where its first message is new.
//
// Thread safety: thread-safe.
// Complexity:    O(body) per request. Memory: at most max_bytes for tokens, and a bounded table of what was
//                learned of models. Texts are kept only inside questions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/token.h"
#include "service/request/prompt_blocks.h"
#include "service/request/prompt_cache.h"
#include "service/request/request_view.h"

namespace ashlar::service {

// The tokens of a prompt, and how they were found.
struct KnownPrompt {
  enum class Source : std::uint8_t { kGiven, kRemembered, kAsked, kJoined, kRendered };

  TokenList tokens;
  Source source = Source::kGiven;
  std::vector<PromptItem> items = {};
  PromptDigest key = {};                            // under which it is remembered
  std::shared_ptr<const HashedPrompt> hashed = {};  // the blocks of it, or of a prompt that begins as it does
  std::size_t shared = 0;                           // tokens, as far as it does
  bool stood_in = false;  // joined, and another message stood in for its first one in a question
};

// "given", "remembered", "asked", "joined", "rendered": for receipts.
std::string_view to_string(KnownPrompt::Source source) noexcept;

// No tokens can be had: an endpoint without a prompt, several prompts, a prompt that only the engine knows.
struct NoTokens {
  std::string reason;
};

// Where a question is asked.
enum class TokenEndpoint : std::uint8_t { kTokenize, kRender };

// What to ask of a worker, at either of the targets; given back to learn(). The views live as long as
// `state`.
struct TokenQuestion {
  std::string_view tokenize_target;  // of POST; empty: /tokenize cannot say it
  std::string_view render_target;    // empty: no endpoint renders it
  std::string_view body;
  std::shared_ptr<const void> state;
};

struct PromptTokensCounters {
  std::uint64_t given = 0;       // requests with token ids
  std::uint64_t remembered = 0;  // answered without asking
  std::uint64_t asked = 0;       // whole; the questions of trials are not counted
  std::uint64_t joined = 0;      // tails
  std::uint64_t rendered = 0;    // of what /tokenize cannot say
  std::uint64_t trials = 0;      // tails compared with the whole
  std::uint64_t differences = 0;
  std::uint64_t failed = 0;  // answers that could not be read
  std::uint64_t evicted = 0;
  std::uint64_t bytes = 0;  // now
};

class PromptTokens {
 public:
  static constexpr std::uint32_t kTrials = 3;
  static constexpr std::uint32_t kSample = 16;

  struct Options {
    std::size_t max_bytes = std::size_t{64} << 20;
    bool tails = true;
    bool renders = true;  // questions that only render endpoints answer
  };
  explicit PromptTokens(const Options& options);
  ~PromptTokens();
  PromptTokens(const PromptTokens&) = delete;
  PromptTokens& operator=(const PromptTokens&) = delete;

  using Lookup = std::variant<KnownPrompt, TokenQuestion, NoTokens>;
  // `body` is the request's, of which `view` was read.
  Lookup look_up(const RequestView& view, std::string_view body);
  // The worker's answer to a question: its tokens, or another question (the whole, where a tail is compared).
  // NoTokens: the worker has none, and says so by its status.
  // Errors: kCorruption: not the answer of that endpoint.
  Result<Lookup> learn(const TokenQuestion& question, TokenEndpoint endpoint, unsigned status,
                       std::string_view answer);
  // An engine said how many prompt tokens it counted. False: they differ, and what was known of that model's
  // tails is dropped; if a message stood in for another, the next ones are learned without.
  // `model`: of the request, as it was looked up.
  bool check(std::string_view model, const KnownPrompt& known, std::uint64_t counted);

  // The blocks of a prompt. They are remembered beside its tokens, if it is remembered.
  std::shared_ptr<const HashedPrompt> hash(const KnownPrompt& known, const tokens::SequenceHasher& hasher,
                                           std::uint32_t block_size);

  PromptTokensCounters counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ashlar::service
