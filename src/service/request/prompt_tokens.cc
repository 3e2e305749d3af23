// How a tail is joined. Let T(c) be the tokens of a conversation c without the generation prompt g that
// stands behind the last message where an answer is to be written. Of [m0 … mk, new …], T[m0 … mk] + g is
// remembered. T[m0] is asked once per first message, g is the rest of the same question asked with it. Then
//
//   tail = T[m0, new …] + g   is asked, and begins with T[m0], or the template is not one that can be joined
//   T[m0 … mk] + (tail without T[m0])   is the joined form.
//
// Where m0 is long, a short message of its role stands in for it in these questions: T[m0] is then asked once
// for all conversations. The first tail of every m0 is compared, since what a template writes may go by what
// m0 says. A difference ends that first, and m0 itself is asked again.
//
// A chain of questions is a Plan, which stays, and a Step, which says how far it has come. Everything that
// may take long (hashing, reading, writing questions) is done without the lock.
#include "service/request/prompt_tokens.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <system_error>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "service/request/prompt_keys.h"
#include "service/request/text_hash.h"
#include "service/request/tokenize_question.h"

namespace ashlar::service {
namespace {

using tokens::SipHash128;
using tokens::Token;
using TokenVector = std::vector<Token>;

// Bounds of what is remembered of models; beyond them prompts are asked whole.
constexpr std::size_t kMaxModels = 256;
constexpr std::size_t kMaxTailKinds = 256;
constexpr std::size_t kMaxGenerations = 128;
constexpr std::size_t kLongMessage = 512;     // bytes: from here on a first message has a stand-in
constexpr std::size_t kMaxGeneration = 1024;  // tokens of a generation prompt

// What is known of one kind of tail.
struct TailTrust {
  std::uint32_t equal = 0;  // trials in which the joined form was the whole
  std::uint32_t uses = 0;
  bool is_refused = false;  // the template does not take it
};

struct ModelState {
  bool is_off = false;            // a difference was seen
  bool has_no_stand_ins = false;  // one was seen with a stand-in
  std::uint32_t differences = 0;  // after each of them everything is learned anew
  // By the template's arguments, and whether a stand-in was asked: the tokens of the generation prompt.
  std::map<std::uint64_t, TokenVector> generations;
  // By the template's arguments and the kind of tail.
  std::map<std::pair<std::uint64_t, std::uint64_t>, TailTrust> tails;
};

constexpr std::uint64_t kStandInShape = 0x57A2'0000;
constexpr std::uint64_t kStandInKind = std::uint64_t{1} << 44;  // of a tail; above tail_kind_of()

// What a template puts there may go by what m0 says.
std::uint64_t generation_key(const PromptKeys& keys, bool stands_in) {
  return stands_in ? keys.shape ^ kStandInShape : keys.shape;
}

// Null: not known yet.
const TokenVector* generation_of(const ModelState& model, const PromptKeys& keys, bool stands_in) {
  const auto found = model.generations.find(generation_key(keys, stands_in));
  return found == model.generations.end() ? nullptr : &found->second;
}

// The longest beginning of a conversation that is known.
struct Prefix {
  TokenList tokens = nullptr;
  std::shared_ptr<const HashedPrompt> hashed = nullptr;
  std::size_t size = 0;  // in messages
  bool stood_in = false;
};

struct Plan {
  PromptKeys keys;
  std::uint64_t tail_kind = 0;
  bool compares = false;          // asks the whole too
  bool stands_in = false;         // for m0
  bool stood_in = false;          // here, or in the prefix
  std::uint32_t differences = 0;  // of the model, when it was made
  PromptDigest tried = {};        // stands for a tail of this m0 that was compared, if stands_in
  bool is_rendered = false;
  bool has_media = false;
  std::string_view render_target;
  TokenList prefix;                            // null: only the whole is asked
  std::shared_ptr<const HashedPrompt> hashed;  // of the prefix
  std::string whole_body;
  std::string base_body;
  std::string generation_body;
  std::string tail_body;
};

enum class QuestionKind : std::uint8_t { kWhole, kBase, kGeneration, kTail };

struct QuestionStep {
  std::shared_ptr<const Plan> plan;
  QuestionKind kind = QuestionKind::kWhole;
  TokenList whole;  // known so far
  TokenList base;
};

TokenQuestion question_of(std::shared_ptr<const Plan> plan, QuestionKind kind, TokenList whole,
                          TokenList base) {
  const std::string* const bodies[] = {&plan->whole_body, &plan->base_body, &plan->generation_body,
                                       &plan->tail_body};
  TokenQuestion question{plan->is_rendered ? std::string_view() : "/tokenize", plan->render_target,
                         *bodies[static_cast<std::size_t>(kind)], nullptr};
  ASHLAR_DCHECK(!question.body.empty() && question.body.ends_with('}'), "a plan has the questions it asks");
  question.state = std::make_shared<const QuestionStep>(
      QuestionStep{std::move(plan), kind, std::move(whole), std::move(base)});
  return question;
}

bool starts_with(const TokenVector& tokens, const TokenVector& start) {
  return tokens.size() >= start.size() && std::equal(start.begin(), start.end(), tokens.begin());
}

bool ends_with(const TokenVector& tokens, const TokenVector& end) {
  return tokens.size() >= end.size() && std::equal(end.rbegin(), end.rend(), tokens.rbegin());
}

SipHash128::Key random_key() {
  SipHash128::Key key;
  ASHLAR_CHECK(getentropy(key.data(), key.size()) == 0,
               "the operating system gave no random bytes for the key of remembered prompts: %s",
               std::generic_category().message(errno).c_str());
  return key;
}

bool has_usual_flags(const RequestView& view) {
  return view.add_generation_prompt.value_or(true) && !view.continue_final_message.value_or(false);
}

// Empty: the first message is asked itself.
std::string_view stand_in_for(const RequestView& view, std::string_view body, std::uint64_t tail_kind) {
  if (view.messages[0].of(body).size() < kLongMessage) return {};
  return stand_in_of(static_cast<unsigned>(tail_kind & 0xFF));
}

}  // namespace

std::string_view to_string(KnownPrompt::Source source) noexcept {
  switch (source) {
    case KnownPrompt::Source::kGiven:
      return "given";
    case KnownPrompt::Source::kRemembered:
      return "remembered";
    case KnownPrompt::Source::kAsked:
      return "asked";
    case KnownPrompt::Source::kJoined:
      return "joined";
    case KnownPrompt::Source::kRendered:
      return "rendered";
  }
  return "";
}

struct PromptTokens::State {
  explicit State(const Options& given) : options(given), text_hash(random_key()), cache(given.max_bytes) {}

  Lookup look_up_rendered(const RequestView& view, std::string_view body) ASHLAR_EXCLUDES(mu);
  Lookup look_up_keyed(const RequestView& view, std::string_view body, PromptKeys keys) ASHLAR_EXCLUDES(mu);
  TokenQuestion plan_tail(const RequestView& view, std::string_view body, PromptKeys keys, Prefix prefix)
      ASHLAR_EXCLUDES(mu);
  // The question that comes next on the way to the tail.
  TokenQuestion next_question(const std::shared_ptr<const Plan>& plan, TokenList whole, TokenList base)
      ASHLAR_EXCLUDES(mu);
  Lookup give_up_tail(const QuestionStep& step, bool is_refused) ASHLAR_EXCLUDES(mu);
  Lookup learn_tail(const QuestionStep& step, const TokenVector& tail) ASHLAR_EXCLUDES(mu);
  Lookup learn_generation(const QuestionStep& step, const TokenVector& generated) ASHLAR_EXCLUDES(mu);

  // Null: too many models are known.
  ModelState* model_locked(std::uint64_t model) ASHLAR_REQUIRES(mu);
  TailTrust* trust_locked(ModelState& model, const PromptKeys& keys, std::uint64_t kind) ASHLAR_REQUIRES(mu);
  // `stood_in`: with a stand-in for the first message.
  void differ_locked(std::uint64_t model, bool stood_in) ASHLAR_REQUIRES(mu);

  const Options options;
  const TextHash text_hash;
  mutable Mutex mu;
  PromptCache cache ASHLAR_GUARDED_BY(mu);
  std::map<std::uint64_t, ModelState> models ASHLAR_GUARDED_BY(mu);
  PromptTokensCounters counters ASHLAR_GUARDED_BY(mu);
};

ModelState* PromptTokens::State::model_locked(std::uint64_t model) {
  const auto found = models.find(model);
  if (found != models.end()) return &found->second;
  return models.size() < kMaxModels ? &models[model] : nullptr;
}

TailTrust* PromptTokens::State::trust_locked(ModelState& model, const PromptKeys& keys, std::uint64_t kind) {
  const std::pair place(keys.shape, kind);
  const auto found = model.tails.find(place);
  if (found != model.tails.end()) return &found->second;
  return model.tails.size() < kMaxTailKinds ? &model.tails[place] : nullptr;
}

void PromptTokens::State::differ_locked(std::uint64_t model, bool stood_in) {
  ++counters.differences;
  ModelState* const state = model_locked(model);
  if (state == nullptr || state->is_off) return;
  if (stood_in && state->has_no_stand_ins) return;  // of before that was known
  const std::uint32_t differences = state->differences + 1;
  *state = {};
  state->is_off = !stood_in;
  state->has_no_stand_ins = true;
  state->differences = differences;
  cache.drop_joined(model);
}

PromptTokens::Lookup PromptTokens::State::look_up_keyed(const RequestView& view, std::string_view body,
                                                        PromptKeys keys) {
  Prefix prefix;
  {
    const MutexLock lock(mu);
    if (TokenList known = cache.find(keys.whole)) {
      ++counters.remembered;
      KnownPrompt prompt{.tokens = std::move(known), .source = KnownPrompt::Source::kRemembered};
      prompt.key = keys.whole;
      prompt.hashed = cache.hashed(keys.whole);
      prompt.shared = prompt.tokens->size();
      prompt.stood_in = cache.stood_in(keys.whole);
      return prompt;
    }
    // A prefix of one message saves nothing: the first one is part of every question.
    if (options.tails && has_usual_flags(view) && view.messages.size() > 2) {
      const auto model = models.find(keys.model);
      const bool is_off = model != models.end() && model->second.is_off;
      for (std::size_t i = view.messages.size() - 1; i > 1 && prefix.tokens == nullptr && !is_off; --i) {
        const PromptDigest& key = keys.prefixes[i - 1];
        prefix = {.tokens = cache.find(key), .hashed = cache.hashed(key), .size = i};
        prefix.stood_in = cache.stood_in(key);
      }
    }
  }
  if (prefix.tokens != nullptr) return plan_tail(view, body, std::move(keys), std::move(prefix));
  Plan plan;
  plan.keys = std::move(keys);
  plan.render_target = render_path(view.messages.empty() ? Endpoint::kCompletions : Endpoint::kChat);
  plan.whole_body = view.messages.empty()
                        ? ask_text(view, body)
                        : ask_messages(view, body, view.messages.size(), view.messages.size(),
                                       view.add_generation_prompt.value_or(true),
                                       view.continue_final_message.value_or(false));
  return question_of(std::make_shared<const Plan>(std::move(plan)), QuestionKind::kWhole, nullptr, nullptr);
}

// By the whole body: whatever stands in it may change the prompt, the limit of tokens too where it is cut.
PromptTokens::Lookup PromptTokens::State::look_up_rendered(const RequestView& view, std::string_view body) {
  SipHash128 hash = text_hash.start();
  hash.update_u64(3);
  hash.update_u64(static_cast<std::uint64_t>(view.endpoint));
  text_hash.absorb(hash, body);
  auto plan = std::make_shared<Plan>();
  plan->keys.model = model_key(text_hash, view.model);
  plan->keys.whole = hash.digest();
  plan->is_rendered = true;
  plan->has_media = view.has_media;
  plan->render_target = render_path(view.endpoint);
  {
    const MutexLock lock(mu);
    if (TokenList known = cache.find(plan->keys.whole)) {
      ++counters.remembered;
      return KnownPrompt{std::move(known), KnownPrompt::Source::kRemembered};
    }
  }
  plan->whole_body = ask_render(body);
  return question_of(std::move(plan), QuestionKind::kWhole, nullptr, nullptr);
}

// Requires: usual flags, and a prefix of at least two messages.
TokenQuestion PromptTokens::State::plan_tail(const RequestView& view, std::string_view body, PromptKeys keys,
                                             Prefix prefix) {
  const std::size_t messages = view.messages.size();
  ASHLAR_DCHECK(prefix.size >= 2 && prefix.size < messages,
                "a tail leaves something out, and has something new");
  auto plan = std::make_shared<Plan>();
  plan->render_target = render_path(Endpoint::kChat);  // messages of any endpoint, as those of a chat
  plan->tail_kind = tail_kind_of(view, body, prefix.size);
  plan->whole_body = ask_messages(view, body, messages, messages, true, false);
  bool is_possible = false;
  bool has_generation = false;
  TokenList base;
  std::string_view stand_in = stand_in_for(view, body, plan->tail_kind);
  {
    const MutexLock lock(mu);
    ModelState* const model = model_locked(keys.model);
    const bool is_off = model == nullptr || model->is_off;
    TailTrust* trust = nullptr;
    bool is_tried = true;
    if (!is_off && !stand_in.empty() && !model->has_no_stand_ins) {
      trust = trust_locked(*model, keys, plan->tail_kind | kStandInKind);
      const TokenVector* const generation = generation_of(*model, keys, true);
      plan->stands_in = trust != nullptr && !trust->is_refused &&
                        (generation == nullptr || ends_with(*prefix.tokens, *generation));
    }
    if (plan->stands_in) {
      plan->tail_kind |= kStandInKind;
      plan->tried = stand_in_key(text_hash, keys.base, stand_in);
      is_tried = cache.find(plan->tried) != nullptr;
      keys.base = stand_in_key(text_hash, keys.frame, stand_in);
    } else {
      stand_in = {};
      trust = is_off ? nullptr : trust_locked(*model, keys, plan->tail_kind);
    }
    if (trust != nullptr && !trust->is_refused) {
      const TokenVector* const generation = generation_of(*model, keys, plan->stands_in);
      has_generation = generation != nullptr;
      is_possible = has_generation ? ends_with(*prefix.tokens, *generation)
                                   : model->generations.size() < kMaxGenerations;
      plan->differences = model->differences;
      // One in kSample is compared although it is trusted.
      plan->compares = trust->equal < kTrials || !has_generation || !is_tried || ++trust->uses % kSample == 0;
      base = cache.find(keys.base);
    }
  }
  plan->keys = std::move(keys);
  if (is_possible) {
    plan->prefix = std::move(prefix.tokens);
    plan->hashed = std::move(prefix.hashed);
    plan->stood_in = plan->stands_in || prefix.stood_in;
    plan->tail_body = ask_messages(view, body, 1, prefix.size, true, false, stand_in);
    plan->base_body = ask_messages(view, body, 1, messages, false, false, stand_in);
    if (!has_generation) plan->generation_body = ask_messages(view, body, 1, messages, true, false, stand_in);
  }
  if (!is_possible || plan->compares)
    return question_of(std::move(plan), QuestionKind::kWhole, nullptr, nullptr);
  return question_of(std::move(plan), base == nullptr ? QuestionKind::kBase : QuestionKind::kTail, nullptr,
                     base);
}

TokenQuestion PromptTokens::State::next_question(const std::shared_ptr<const Plan>& plan, TokenList whole,
                                                 TokenList base) {
  bool has_generation = false;
  {
    const MutexLock lock(mu);
    if (base == nullptr) base = cache.find(plan->keys.base);
    const auto model = models.find(plan->keys.model);
    has_generation =
        model != models.end() && generation_of(model->second, plan->keys, plan->stands_in) != nullptr;
  }
  if (base == nullptr) return question_of(plan, QuestionKind::kBase, std::move(whole), nullptr);
  const bool asks_generation = !has_generation && !plan->generation_body.empty();
  return question_of(plan, asks_generation ? QuestionKind::kGeneration : QuestionKind::kTail,
                     std::move(whole), std::move(base));
}

// The tail cannot be had: the whole is what is left.
PromptTokens::Lookup PromptTokens::State::give_up_tail(const QuestionStep& step, bool is_refused) {
  if (is_refused) {
    const MutexLock lock(mu);
    ModelState* const model = model_locked(step.plan->keys.model);
    const bool is_off = model == nullptr || model->is_off;
    TailTrust* const trust = is_off ? nullptr : trust_locked(*model, step.plan->keys, step.plan->tail_kind);
    if (trust != nullptr) trust->is_refused = true;
  }
  if (step.whole != nullptr)
    return KnownPrompt{
        .tokens = step.whole, .source = KnownPrompt::Source::kAsked, .key = step.plan->keys.whole};
  auto whole = std::make_shared<Plan>(*step.plan);
  whole->prefix = nullptr;
  whole->compares = false;
  return question_of(std::move(whole), QuestionKind::kWhole, nullptr, nullptr);
}

PromptTokens::Lookup PromptTokens::State::learn_generation(const QuestionStep& step,
                                                           const TokenVector& generated) {
  const Plan& plan = *step.plan;
  const bool is_sound =
      starts_with(generated, *step.base) && generated.size() - step.base->size() <= kMaxGeneration;
  bool is_usable = false;
  {
    const MutexLock lock(mu);
    ModelState* const model = model_locked(plan.keys.model);
    const bool is_current = model != nullptr && !model->is_off && model->differences == plan.differences;
    is_usable = is_sound && is_current;
    if (is_current && !is_sound) {
      differ_locked(plan.keys.model, plan.stood_in);
    } else if (is_usable && model->generations.size() < kMaxGenerations) {
      const auto rest = generated.begin() + static_cast<std::ptrdiff_t>(step.base->size());
      model->generations.try_emplace(generation_key(plan.keys, plan.stands_in), rest, generated.end());
    }
  }
  if (!is_usable) return give_up_tail(step, false);
  return question_of(step.plan, QuestionKind::kTail, step.whole, step.base);
}

PromptTokens::Lookup PromptTokens::State::learn_tail(const QuestionStep& step, const TokenVector& tail) {
  const Plan& plan = *step.plan;
  const TokenVector& prefix = *plan.prefix;
  const bool is_sound = starts_with(tail, *step.base);
  auto joined = std::make_shared<TokenVector>();
  {
    const MutexLock lock(mu);
    ModelState* const model = model_locked(plan.keys.model);
    // Another request may have seen a difference meanwhile: then nothing that was planned before is trusted.
    const bool is_off = model == nullptr || model->is_off || model->differences != plan.differences;
    TailTrust* const trust = is_off ? nullptr : trust_locked(*model, plan.keys, plan.tail_kind);
    const TokenVector* const generation = is_off ? nullptr : generation_of(*model, plan.keys, plan.stands_in);
    const bool is_usable = trust != nullptr && generation != nullptr && ends_with(prefix, *generation);
    if (is_usable && is_sound) {
      joined->reserve(prefix.size() - generation->size() + tail.size() - step.base->size());
      joined->assign(prefix.begin(), prefix.end() - static_cast<std::ptrdiff_t>(generation->size()));
      joined->insert(joined->end(), tail.begin() + static_cast<std::ptrdiff_t>(step.base->size()),
                     tail.end());
    }
    if (is_usable && plan.compares) {
      ASHLAR_CHECK(step.whole != nullptr, "the whole is asked before a tail that is compared with it");
      ++counters.trials;
      if (!is_sound || *joined != *step.whole) {
        differ_locked(plan.keys.model, plan.stood_in);
      } else {
        trust->equal = std::min(trust->equal + 1, kTrials);
        if (plan.stands_in)
          cache.put(plan.tried, std::make_shared<const TokenVector>(), plan.keys.model, true);
      }
    } else if (is_usable && !is_sound) {
      differ_locked(plan.keys.model, plan.stood_in);
    } else if (is_usable) {
      ++counters.joined;
      cache.put(plan.keys.whole, joined, plan.keys.model, true, plan.stood_in);
      return KnownPrompt{.tokens = std::move(joined),
                         .source = KnownPrompt::Source::kJoined,
                         .key = plan.keys.whole,
                         .hashed = plan.hashed,
                         .shared = prefix.size() - generation->size(),
                         .stood_in = plan.stood_in};
    }
  }
  return give_up_tail(step, false);
}

PromptTokens::PromptTokens(const Options& options) : state_(std::make_unique<State>(options)) {}
PromptTokens::~PromptTokens() = default;

PromptTokens::Lookup PromptTokens::look_up(const RequestView& view, std::string_view body) {
  if (view.prompts > 1) return NoTokens{"the request has several prompts"};
  if (view.is_too_long)
    return NoTokens{"the request has more than " + std::to_string(kMostTokenIds) + " token ids"};
  if (view.is_opaque)
    return NoTokens{"the request has embeddings, or goes on with an answer that only its engine has"};
  if (view.prompt_tokens && !view.is_rewritten) {
    {
      const MutexLock lock(state_->mu);
      ++state_->counters.given;
    }
    return KnownPrompt{std::make_shared<const TokenVector>(*view.prompt_tokens), KnownPrompt::Source::kGiven};
  }
  if (view.is_rewritten || view.has_media) {
    if (state_->options.renders && !render_path(view.endpoint).empty())
      return state_->look_up_rendered(view, body);
    return NoTokens{view.has_media ? "the request has images, audio or video, which /tokenize does not take"
                                   : "the engine changes this prompt in a way that /tokenize does not"};
  }
  const bool is_chat = view.endpoint == Endpoint::kChat || view.endpoint == Endpoint::kResponses ||
                       view.endpoint == Endpoint::kMessages;
  const bool is_text = view.endpoint == Endpoint::kCompletions;
  if (is_chat ? view.messages.empty() : !is_text || view.prompt.empty())
    return NoTokens{"the request has no prompt"};
  return state_->look_up_keyed(view, body, keys_of(state_->text_hash, view, body));
}

Result<PromptTokens::Lookup> PromptTokens::learn(const TokenQuestion& question, TokenEndpoint endpoint,
                                                 unsigned status, std::string_view answer) {
  const auto step = std::static_pointer_cast<const QuestionStep>(question.state);
  ASHLAR_CHECK(step != nullptr, "an answer belongs to a question of look_up() or learn()");
  const std::shared_ptr<const Plan>& plan = step->plan;
  Result<RenderedPrompt> read = make_error(ErrorCode::kCorruption, "a worker answered %u to %s", status,
                                           endpoint == TokenEndpoint::kRender ? "render" : "/tokenize");
  if (status == 200 && endpoint == TokenEndpoint::kRender) {
    read = read_render_answer(answer);
  } else if (status == 200) {
    Result<TokenVector> tokens = read_tokenize_answer(answer);
    if (tokens) {
      read = RenderedPrompt{*std::move(tokens), {}};
    } else {
      read = tokens.error();
    }
  }
  if (!read) {
    {
      const MutexLock lock(state_->mu);
      ++state_->counters.failed;
    }
    if (step->kind != QuestionKind::kWhole) return state_->give_up_tail(*step, status >= 400 && status < 500);
    if (status != 200) return Lookup(NoTokens{read.error().message()});
    return std::move(read).error();
  }
  if (step->kind == QuestionKind::kGeneration) return state_->learn_generation(*step, read->tokens);
  if (step->kind == QuestionKind::kTail) return state_->learn_tail(*step, read->tokens);
  const auto tokens = std::make_shared<const TokenVector>(std::move(read->tokens));
  if (plan->is_rendered) {
    if (plan->has_media && read->items.empty())
      return Lookup(NoTokens{"the worker did not say where the images of the prompt are"});
    const MutexLock lock(state_->mu);
    ++state_->counters.rendered;
    if (!plan->has_media) state_->cache.put(plan->keys.whole, tokens, plan->keys.model, false);
    return Lookup(KnownPrompt{tokens, KnownPrompt::Source::kRendered, std::move(read->items)});
  }
  const bool is_whole = step->kind == QuestionKind::kWhole;
  {
    const MutexLock lock(state_->mu);
    state_->cache.put(is_whole ? plan->keys.whole : plan->keys.base, tokens, plan->keys.model, false);
    if (is_whole) ++state_->counters.asked;
  }
  if (is_whole && (plan->prefix == nullptr || !plan->compares))
    return Lookup(
        KnownPrompt{.tokens = tokens, .source = KnownPrompt::Source::kAsked, .key = plan->keys.whole});
  return Lookup(state_->next_question(plan, is_whole ? tokens : step->whole, is_whole ? nullptr : tokens));
}

bool PromptTokens::check(std::string_view model, const KnownPrompt& known, std::uint64_t counted) {
  if (known.tokens->size() == counted) return true;
  if (known.source == KnownPrompt::Source::kGiven) return false;
  const std::uint64_t key = model_key(state_->text_hash, model);
  const MutexLock lock(state_->mu);
  if (known.source != KnownPrompt::Source::kRendered) state_->differ_locked(key, known.stood_in);
  // One of them is wrong, and which others are is not known: its template may be new.
  if (known.source != KnownPrompt::Source::kJoined && !known.stood_in) state_->cache.drop_all(key);
  return false;
}

std::shared_ptr<const HashedPrompt> PromptTokens::hash(const KnownPrompt& known,
                                                       const tokens::SequenceHasher& hasher,
                                                       std::uint32_t block_size) {
  auto hashed = hash_from(known.hashed, known.shared, *known.tokens, hasher, block_size);
  // A tail that completes no block has those of its prefix, which are not yet its own.
  if (hashed != known.hashed || known.source == KnownPrompt::Source::kJoined) {
    const MutexLock lock(state_->mu);
    state_->cache.set_hashed(known.key, known.tokens, hashed);
  }
  return hashed;
}

PromptTokensCounters PromptTokens::counters() const {
  const MutexLock lock(state_->mu);
  PromptTokensCounters counters = state_->counters;
  counters.evicted = state_->cache.evicted();
  counters.bytes = state_->cache.bytes();
  return counters;
}

}  // namespace ashlar::service
