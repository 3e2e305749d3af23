// ashlar plan: what a model's cache takes, what tiers hold of it, and what they would gain on a trace.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "apps/ashlar/arguments.h"
#include "apps/ashlar/commands.h"
#include "apps/ashlar/console.h"
#include "apps/ashlar/stop_signal.h"
#include "ashlar/replay/trace.h"
#include "ashlar/service/journal.h"
#include "ashlar/service/service.h"
#include "replay/plan/memory_plan.h"
#include "replay/plan/plan_text.h"
#include "service/gateway/json_text.h"

namespace ashlar::apps {
namespace {

struct PlanSettings {
  std::string model;
  std::optional<std::uint32_t> layers;
  std::optional<std::uint32_t> kv_heads;
  std::optional<std::uint32_t> head_dim;
  std::optional<std::uint32_t> window;
  std::string dtype;
  std::uint32_t block_size = 16;
  std::string trace;
  std::string format;
  replay::TraceOptions reading;
  replay::CapacityCurve::Options sampling;
  std::optional<double> weights;
  replay::MachineShape machine;
  bool models = false;
  bool json = false;
};

int plan_failed(const Error& error) {
  say("ashlar plan: " + error.message());
  return kExitFailed;
}

int list_models(bool json) {
  service::JsonText out;
  out.object([&] {
    out.field("models", [&] {
      out.array([&] {
        for (const replay::ModelShape& model : replay::known_models())
          out.object([&] {
            out.field("model", model.name);
            out.field("layers", model.layers());
            out.field("bytes_per_token", model.bytes_per_token());
            out.field("bytes_per_far_token", model.bytes_per_far_token());
            out.field("weights_gb", [&] { out.raw(replay::json_number(model.weights_gb)); });
          });
      });
    });
  });
  if (json) {
    std::printf("%s\n", out.text().c_str());
    return kExitDone;
  }
  std::printf("%-20s %6s %16s %20s %12s\n", "model", "layers", "KV bytes / token", "beyond its windows",
              "weights, GB");
  for (const replay::ModelShape& model : replay::known_models())
    std::printf("%-20s %6u %16s %20s %12.1f\n", model.name.c_str(), model.layers(),
                replay::count_text(model.bytes_per_token()).c_str(),
                model.has_windows() ? replay::count_text(model.bytes_per_far_token()).c_str() : "",
                model.weights_gb);
  return kExitDone;
}

bool is_config(const std::string& model) {
  std::error_code failed;
  return model.ends_with(".json") || std::filesystem::is_regular_file(model, failed);
}

// Whether the arguments go together. Nothing is read.
Result<void> check_arguments(const PlanSettings& settings) {
  if (settings.models) return {};
  const bool has_numbers = settings.layers || settings.kv_heads || settings.head_dim || settings.window;
  if (has_numbers && !settings.model.empty())
    return make_error(
        ErrorCode::kInvalidArgument,
        "--model %s says the shape; leave out --layers, --kv-heads, --head-dim and --window, or "
        "--model",
        settings.model.c_str());
  if (has_numbers && (!settings.layers || !settings.kv_heads || !settings.head_dim))
    return make_error(ErrorCode::kInvalidArgument,
                      "a shape in numbers needs --layers, --kv-heads and --head-dim together; --kv-heads 0 "
                      "is one latent vector of --head-dim elements (MLA)");
  if (!has_numbers && settings.model.empty())
    return make_error(ErrorCode::kInvalidArgument,
                      "which model? --model NAME (--models lists them), a config.json, or --layers, "
                      "--kv-heads and --head-dim");
  return settings.machine.validate();
}

// Requires: check_arguments().
Result<replay::ModelShape> shape_of(const PlanSettings& settings) {
  replay::ModelShape shape;
  if (settings.model.empty()) {
    shape.name = "this model";
    shape.groups = {{*settings.layers, *settings.kv_heads, *settings.head_dim, settings.window.value_or(0)}};
  } else if (is_config(settings.model)) {
    ASHLAR_TRY(const std::string text, service::read_whole_file(settings.model));
    ASHLAR_TRY(shape, replay::parse_model_config(settings.model, text));
  } else {
    ASHLAR_TRY(shape, replay::find_model(settings.model));
    if (settings.weights) shape.note.clear();  // it is about those of the table
  }
  if (!settings.dtype.empty()) {
    ASHLAR_TRY(shape.element_bytes, replay::element_bytes_of(settings.dtype));
  }
  return shape;
}

// `is_incomplete`: some of the trace was not read.
Result<replay::CapacityCurve> curve_of(const PlanSettings& settings, bool& is_incomplete) {
  replay::TraceOptions reading = settings.reading;
  if (!settings.format.empty()) {
    ASHLAR_TRY(reading.format, replay::parse_trace_format(settings.format));
  }
  ASHLAR_TRY(const auto source, replay::open_trace(settings.trace, reading));
  auto curve = replay::CapacityCurve::build(*source, settings.sampling,
                                            [](std::uint64_t) { return !StopSignal::received(); });
  const replay::TraceFacts& facts = source->facts();
  if (facts.skipped_lines != 0)
    say("ashlar plan: " + std::to_string(facts.skipped_lines) +
        " lines were skipped; the first: " + facts.first_skipped);
  if (facts.other_size != 0)
    say("ashlar plan: " + std::to_string(facts.other_size) + " requests name blocks of another size than " +
        std::to_string(facts.block_size) + " tokens, which were left out");
  if (facts.contradicting != 0)
    say("ashlar plan: " + std::to_string(facts.contradicting) +
        " requests have more or fewer blocks than their lengths in blocks of " +
        std::to_string(facts.block_size) + " tokens: is this the size of a block?");
  if (facts.unfinished_bytes != 0) say("ashlar plan: " + service::unfinished_note(facts.unfinished_bytes));
  is_incomplete = facts.skipped_lines != 0 || facts.unfinished_bytes != 0;
  return curve;
}

int plan(const PlanSettings& settings) {
  if (settings.models) return list_models(settings.json);
  const auto shape = shape_of(settings);
  if (!shape) return plan_failed(shape.error());
  replay::MachineShape machine = settings.machine;
  machine.weights_gb = settings.weights;
  std::optional<replay::CapacityCurve> curve;
  bool is_incomplete = false;
  if (!settings.trace.empty()) {
    auto built = curve_of(settings, is_incomplete);
    if (!built) return plan_failed(built.error());
    curve.emplace(*std::move(built));
  }
  const auto made = replay::plan_memory(*shape, machine, settings.block_size, curve ? &*curve : nullptr);
  if (!made) return plan_failed(made.error());
  std::fputs((settings.json ? made->to_json() : made->to_text()).c_str(), stdout);
  if (shape->weights_gb == 0 && !settings.weights)
    say("ashlar plan: the weights are not known and counted as 0; give --weights");
  if (!shape->note.empty()) say("ashlar plan: " + shape->note);
  return is_incomplete ? kExitIncomplete : kExitDone;
}

}  // namespace

void add_plan_command(CLI::App& program, Run& run) {
  constexpr double kMost = 1e9;
  constexpr double kLeast = 1e-6;  // where 0 says nothing
  auto settings = std::make_shared<PlanSettings>();
  replay::MachineShape& machine = settings->machine;
  CLI::App* command = program.add_subcommand(
      "plan",
      "Say what a model's cache takes, what tiers hold, and what they gain on a trace (docs/plan.md)");
  command->add_option("--model", settings->model, "model by name, or a config.json of Hugging Face")
      ->check(read_by([](const std::string& name) -> Result<void> {
        const auto known = replay::find_model(name);
        return known || is_config(name) ? Result<void>() : known.error();
      }))
      ->type_name("NAME|FILE");
  command->add_flag("--models", settings->models, "list the models of the built-in table, and end");
  const auto number = [&](const char* name, auto& value, const char* help, std::uint64_t least,
                          std::uint64_t most) {
    return command->add_option(name, value, help)->check(whole_number(least, most));
  };
  const auto amount = [&](const char* name, auto& value, const char* help, double least = 0) {
    return command->add_option(name, value, help)->check(real_number(least, kMost));
  };
  number("--layers", settings->layers, "layers, instead of a model by name", 1, 4096);
  number("--kv-heads", settings->kv_heads, "KV heads of a layer; 0: one latent vector (MLA)", 0, 65'536);
  number("--head-dim", settings->head_dim, "elements of a head, or of the latent vector", 1, 65'536);
  number("--window", settings->window, "tokens of a sliding window over all layers; 0: none", 0, 1u << 30);
  command->add_option("--dtype", settings->dtype, "elements of the cache (default bf16)")
      ->check(read_by(replay::element_bytes_of, {"fp8", "bf16", "fp16", "fp32"}));
  number("--tp", machine.tp, "GPUs that share the model", 1, 1024)->capture_default_str();
  number("--block-size", settings->block_size, "tokens of a block", 1, 65'536)->capture_default_str();
  amount("--gpu-mem", machine.gpu_gib, "GiB of one GPU", kLeast);
  command->add_option("--gpu-utilization", machine.utilization, "share of it that the engine takes")
      ->check(real_number(0, 1))
      ->capture_default_str();
  command
      ->add_option("--weights", settings->weights, "GB of the model's weights (default: as the table says)")
      ->check(real_number(0, kMost));
  amount("--host-mem", machine.host_gib, "GiB of host memory for blocks (G2)");
  amount("--ssd", machine.ssd_gib, "GiB of SSD for blocks (G3)");
  amount("--ssd-tbw", machine.ssd_tbw, "TB that the SSD may be written in its life", kLeast);
  amount("--ssd-dwpd", machine.ssd_dwpd, "times its size that it may be written per day, for five years",
         kLeast);
  amount("--host-price", machine.host_price,
         "price of a GiB of host memory per month; 0: it is there anyway");
  amount("--ssd-price", machine.ssd_price, "price of a GiB of SSD per month");
  amount("--gpu-price", machine.gpu_price, "price of a GPU per hour");
  amount("--prefill-rate", machine.prefill_rate, "prompt tokens that the GPUs compute per second", kLeast);
  command->add_option("--trace", settings->trace, "trace of requests, as ashlar replay reads them")
      ->type_name("FILE");
  command->add_option("--format", settings->format, "of the trace (default: as it looks)")
      ->check(read_by(replay::parse_trace_format, replay::trace_format_names()))
      ->needs("--trace");
  number("--trace-block-size", settings->reading.block_size, "tokens of its blocks, where it does not say", 1,
         1u << 20)
      ->needs("--trace");
  command
      ->add_flag("--lenient", settings->reading.is_lenient, "skip lines that cannot be read, and count them")
      ->needs("--trace");
  number("--session-interval", settings->reading.session_interval_ms,
         "ms between the starts of Weka sessions", 0, 1'000'000'000)
      ->capture_default_str()
      ->needs("--trace");
  command
      ->add_option("--key", settings->reading.journal_key,
                   "file of a journal's key (default: `key` beside it)")
      ->type_name("FILE")
      ->needs("--trace");
  command
      ->add_option("--sample", settings->sampling.rate,
                   "share of the blocks to follow; below 1 the curve is sampled, with its error")
      ->check(real_number(1e-6, 1))
      ->capture_default_str()
      ->needs("--trace");
  command->add_flag("--json", settings->json, "one JSON object");
  end_help(command,
           {"ashlar plan --model Llama-3.1-8B --gpu-mem 80",
            "ashlar plan --model Llama-3.1-70B --tp 4 --gpu-mem 80 --host-mem 512 --trace trace.jsonl",
            "ashlar plan --model config.json --gpu-mem 80 --weights 16 --dtype fp8 --json",
            "ashlar plan --models"});
  command->callback([settings, &run] {
    if (const auto fits = check_arguments(*settings); !fits) refuse_arguments(fits.error());
    run = [settings] { return plan(*settings); };
  });
}

}  // namespace ashlar::apps
