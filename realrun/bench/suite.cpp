#include "realrun/bench/suite.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>
#include <variant>

#include "realrun/backend.h"
#include "realrun/bench/cold_cache.h"
#include "realrun/bench/facts.h"
#include "realrun/bench/machine_state.h"
#include "realrun/bench/statistics.h"
#include "realrun/bench/text.h"
#include "realrun/executor.h"
#include "realrun/measured_report.h"
#include "realrun/stand_alone.h"
#include "sim/base/error.h"
#include "sim/base/json_writer.h"
#include "sim/base/statistics.h"
#include "sim/hardware/presets.h"
#include "sim/program/work.h"
#include "sim/report/format.h"
#include "strategies/lower.h"

namespace orrery::bench {
namespace {

using benchmark::Counter;

struct LoweredStep {
  Scenario scenario;
  Program program;
};

struct SuiteBenchmark : SuiteEntry {
  std::variant<KernelCase, LoweredStep> what;
};
using Suite = std::vector<SuiteBenchmark>;

Suite suite_of(const SuiteOptions& options, bool fp8, double memory_bytes) {
  Suite suite;
  const bool own = !options.shapes.empty();
  for (KernelCase& c :
       own ? shape_cases(options.device, fp8, memory_bytes, options.shapes) : kernel_cases(options.device, fp8))
    suite.push_back({{c.name, bytes(c.op, c.tensors), flops(c.op, c.tensors)}, std::move(c)});
  for (StepCase& step : own || options.cold_cache ? std::vector<StepCase>() : step_cases(options.device)) {
    LoweredStep lowered{std::move(step.scenario), {}};
    lower(lowered.scenario, lowered.program);
    suite.push_back({{step.name, 0, lowered.program.model.executed_flops_per_step}, std::move(lowered)});
  }
  if (options.filter.empty()) return suite;
  std::vector<std::string> names;
  for (const SuiteBenchmark& b : suite) names.push_back(b.name);
  std::erase_if(suite, [is_wanted = matches(options.filter)](const SuiteBenchmark& b) { return !is_wanted(b.name); });
  if (suite.empty())
    throw InputError({"--filter", ""}, fmt::format("\"{}\"", options.filter),
                     "what a benchmark's name contains (orrery bench --list)", nearest_name(options.filter, names));
  return suite;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Shows how many of all repetitions are done, on one line that is overwritten.
class Progress {
 public:
  explicit Progress(bool wanted) : wanted_(wanted) {}
  ~Progress() {
    if (wanted_) fmt::print(stderr, "\r\x1b[K");
  }
  void expect(std::size_t repetitions) { repetitions_ += repetitions; }
  // Before the first repetition Google Benchmark tries numbers of iterations: such a call is shorter than a repetition.
  void called(const std::string& name, std::int64_t iterations, double seconds, double least_seconds) {
    std::int64_t& last = iterations_[name];
    if (last == iterations || seconds >= least_seconds) done_ = std::min(done_ + 1, repetitions_);
    last = iterations;
    if (wanted_) fmt::print(stderr, "\r\x1b[K{:5}/{}  {}", done_, repetitions_, name);
  }

 private:
  bool wanted_;
  std::size_t repetitions_ = 0, done_ = 0;
  std::map<std::string, std::int64_t> iterations_;
};

class Runner {
 public:
  Runner(const SuiteOptions& options, std::unique_ptr<Backend> backend, std::size_t benchmarks)
      : options_(options),
        on_cpu_(options.device == DeviceKind::cpu),
        backend_(std::move(backend)),
        peaks_(peaks_of(*backend_)),
        progress_(options.progress) {
    if (options.cold_cache)
      on_cpu_ ? evictor_.emplace(largest_cpu_cache_bytes())
              : evictor_.emplace(*backend_, gpu_cache_bytes(backend_->facts().device));
    expect(benchmarks * static_cast<std::size_t>(options.repetitions));
  }

  void expect(std::size_t repetitions) { progress_.expect(repetitions); }

  const Peaks& peaks() const { return peaks_; }
  // Bytes read or written before each iteration; 0: caches are left as they are.
  std::int64_t evicted_bytes() const { return evictor_ ? evictor_->bytes() : 0; }

  // Runs a benchmark as often as the library wants.
  void run(benchmark::State& state, const SuiteBenchmark& b) {
    const auto begin = std::chrono::steady_clock::now();
    const auto* const kernel = std::get_if<KernelCase>(&b.what);
    try {
      kernel != nullptr ? run_kernel(state, *kernel) : run_step(state, std::get<LoweredStep>(b.what));
    } catch (const std::exception& error) {
      state.SkipWithError(error.what());
    }
    count(state, b, kernel != nullptr ? bound_of(*kernel, b) : bound_of(std::get<LoweredStep>(b.what), b));
    progress_.called(b.name, state.iterations(), seconds_since(begin), options_.min_seconds);
  }

 private:
  void run_kernel(benchmark::State& state, const KernelCase& c) {
    // On a CPU each repetition allocates anew: the placement of memory is then noise of repetitions, not of the run.
    const std::unique_ptr<Backend> own = on_cpu_ ? make_cpu_backend() : nullptr;
    Backend& backend = on_cpu_ ? *own : *backend_;
    Operands operands(backend, c);
    operands.run();  // warms caches, and lets the backend choose or load what a new op needs
    backend.synchronize();
    beside_yardsticks(state, /*real_time=*/false,
                      [&] { on_cpu_ ? time_cpu(state, operands, c.name) : time_gpu(state, operands, c.op.stream); });
  }

  void run_step(benchmark::State& state, const LoweredStep& s) {
    ExecutionOptions options;
    options.find_undefined = options.keep_tensors = false;
    options.measure = true;
    options.warmup_steps = 1;
    options.steps = 2 * state.max_iterations;  // the first half is timed without marks around ops
    beside_yardsticks(state, /*real_time=*/true, [&] {
      while (state.KeepRunningBatch(state.max_iterations)) {
        const std::vector<RankResult> ranks = execute_ranks(s.scenario, s.program, options, [&](std::size_t) {
          return on_cpu_ ? make_cpu_backend() : make_cuda_backend();
        });
        const std::vector<double> steps = slowest(ranks, &RankResult::step_seconds);
        state.SetIterationTime(std::reduce(steps.begin(), steps.end()));
      }
    });
  }

  template <class Run>
  void beside_yardsticks(benchmark::State& state, bool real_time, Run run) {
    if (!on_cpu_) {  // a GPU does not slow down with its host
      run();
      return;
    }
    const auto before = yardsticks_.measure(real_time);
    run();
    const auto after = yardsticks_.measure(real_time);
    for (std::size_t y = 0; y < kYardsticks.size(); ++y)
      state.counters[std::string(kYardsticks[y])] = std::max(before[y], after[y]);
  }

  void time_cpu(benchmark::State& state, Operands& operands, const std::string& name) {
    if (evictor_) {
      time_cold_cpu(state, operands, name);
      return;
    }
    for ([[maybe_unused]] auto _ : state) operands.run();
  }

  // The library counts only timed seconds, and would evict for minutes to fill them. A repetition therefore has as many
  // iterations as fit into min_seconds with untimed work, at least one, and equally many in each repetition.
  void time_cold_cpu(benchmark::State& state, Operands& operands, const std::string& name) {
    benchmark::IterationCount& iterations = cold_iterations_[name];
    if (iterations == 0) {
      const auto begin = std::chrono::steady_clock::now();
      evictor_->evict(Stream::compute);
      operands.run();
      constexpr double kMost = 1e6, kLeastSeconds = 1e-9;
      const double once = std::max(seconds_since(begin), kLeastSeconds);
      iterations = static_cast<benchmark::IterationCount>(std::clamp(options_.min_seconds / once, 1.0, kMost));
    }
    while (state.KeepRunningBatch(iterations)) {
      for (benchmark::IterationCount i = 0; i < iterations; ++i) {
        state.PauseTiming();
        evictor_->evict(Stream::compute);
        state.ResumeTiming();
        operands.run();
      }
    }
  }

  // Ops run back to back, by the device's clock, or each alone if caches are evicted before. The host runs ahead: its
  // time per op shows only if the op is shorter.
  void time_gpu(benchmark::State& state, Operands& operands, Stream stream) {
    constexpr benchmark::IterationCount kBatch = 16;
    while (state.KeepRunningBatch(kBatch)) {
      std::vector<std::pair<Backend::Mark, Backend::Mark>> marks;
      for (benchmark::IterationCount i = 0; i < kBatch; ++i) {
        if (evictor_) evictor_->evict(stream);
        if (evictor_ || i == 0) marks.emplace_back(backend_->mark(stream), 0);
        operands.run();
        if (evictor_ || i + 1 == kBatch) marks.back().second = backend_->mark(stream);
      }
      backend_->synchronize();
      double seconds = 0;
      for (const auto& [begin, end] : marks) seconds += backend_->seconds(begin, end);
      state.SetIterationTime(seconds);
      backend_->forget_marks();
    }
  }

  // The seconds of an iteration at the device's peak; 0: not known.
  double bound_of(const KernelCase& c, const SuiteEntry& work) const {
    const bool copies = c.op.kind == OpKind::copy;
    const double rate = copies ? peaks_.copy_bytes_per_second : peaks_.bytes_per_second;
    const double peak = copies ? 0 : peaks_.flops(c.op.compute_dtype);
    return std::max(peak > 0 ? work.flops / peak : 0, rate > 0 ? work.bytes / rate : 0);
  }
  double bound_of(const LoweredStep& s, const SuiteEntry& work) const {
    const double peak = peaks_.flops(on_cpu_ ? Dtype::fp32 : Dtype::bf16) * static_cast<double>(s.program.mesh.ranks());
    return peak > 0 ? work.flops / peak : 0;
  }

  static void count(benchmark::State& state, const SuiteEntry& work, double bound_seconds) {
    const auto rate = [](double value) { return Counter(value, Counter::kIsIterationInvariantRate); };
    // No zeros: the library's coefficient of variation would be NaN, which is not valid JSON.
    if (work.bytes > 0) state.counters["bytes"] = work.bytes;
    if (work.flops > 0) state.counters["flops"] = work.flops;
    if (work.bytes > 0) state.counters["bytes_per_second"] = rate(work.bytes);
    if (work.flops > 0) state.counters["flops_per_second"] = rate(work.flops);
    if (bound_seconds > 0) state.counters["percent_of_peak"] = rate(kPercent * bound_seconds);
  }

  const SuiteOptions& options_;
  const bool on_cpu_;
  std::unique_ptr<Backend> backend_;
  Peaks peaks_;
  Yardsticks yardsticks_;
  Progress progress_;
  std::optional<CacheEvictor> evictor_;                               // if caches are to be cold
  std::map<std::string, benchmark::IterationCount> cold_iterations_;  // per repetition, by benchmark
};

void initialize_library(double min_seconds, std::int64_t repetitions) {
  std::vector<std::string> arguments{fmt::format("--benchmark_min_time={}", min_seconds),
                                     fmt::format("--benchmark_repetitions={}", repetitions),
                                     "--benchmark_enable_random_interleaving=true"};
  static char program[] = "orrery bench";  // the reports keep its address
  std::vector<char*> pointers{program};
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  int count = static_cast<int>(pointers.size()) - 1;
  benchmark::Initialize(&count, pointers.data());
}

using Document = nlohmann::ordered_json;

// Returns the library's document for the benchmarks that `wanted` selects.
Document run_round(Runner& runner, const Suite& suite, bool on_cpu,
                   const std::function<bool(const std::string&)>& wanted) {
  for (const SuiteBenchmark& b : suite) {
    if (!wanted(b.name)) continue;
    auto* const registered =
        benchmark::RegisterBenchmark(b.name.c_str(), [&runner, &b](benchmark::State& state) { runner.run(state, b); });
    if (!on_cpu || std::holds_alternative<LoweredStep>(b.what)) registered->UseManualTime();
  }
  std::ostringstream text, errors;
  benchmark::JSONReporter reporter;
  reporter.SetOutputStream(&text);
  reporter.SetErrorStream(&errors);
  benchmark::RunSpecifiedBenchmarks(&reporter, ".");
  benchmark::ClearRegisteredBenchmarks();
  return Document::parse(text.str());
}

// Appends a further round's repetitions to those of the rounds before.
void append(Document& document, const Document& round) {
  auto& entries = document["benchmarks"].get_ref<Document::array_t&>();
  std::map<std::string, std::int64_t> repetitions;
  for (const Document& entry : round["benchmarks"]) repetitions[entry.at("run_name")] = 0;
  std::erase_if(entries, [&](const Document& entry) {
    return entry.value("run_type", "") == "aggregate" && repetitions.contains(entry.at("run_name"));
  });
  for (const Document& entry : entries)
    if (const auto at = repetitions.find(entry.at("run_name")); at != repetitions.end()) ++at->second;
  std::map<std::string, Document> like;  // an entry of the first round
  for (const Document& entry : entries) like.try_emplace(entry.at("run_name"), entry);
  for (const Document& entry : round["benchmarks"]) {
    if (entry.value("run_type", "") == "aggregate") continue;
    Document more = entry;
    const std::string name = entry.at("run_name");
    for (const char* index : {"family_index", "per_family_instance_index"})
      if (like[name].contains(index)) more[index] = like[name][index];
    more["repetition_index"] = repetitions[name]++;
    entries.push_back(std::move(more));
  }
  for (Document& entry : entries)
    if (const auto at = repetitions.find(entry.at("run_name")); at != repetitions.end())
      entry["repetitions"] = at->second;
}

}  // namespace

std::vector<SuiteEntry> suite_entries(const SuiteOptions& options) {
  constexpr double kMoreThanAnyGpu = 0x1p50;  // a pebibyte
  const bool on_cpu = options.device == DeviceKind::cpu;
  const Suite suite = suite_of(options, !on_cpu, on_cpu ? make_cpu_backend()->facts().memory_bytes : kMoreThanAnyGpu);
  return {suite.begin(), suite.end()};
}

std::string run_suite(const SuiteOptions& options) {
  suite_entries(options);  // reports a filter without matches before a device is used
  const bool on_cpu = options.device == DeviceKind::cpu;
  std::unique_ptr<Backend> backend = on_cpu ? make_cpu_backend() : make_cuda_backend();
  const BackendFacts device = backend->facts();
  const std::string preset = on_cpu ? std::string() : preset_named(device.device);
  const bool fp8 =
      !preset.empty() && find_device(preset).peak_flops_per_second[static_cast<std::size_t>(Dtype::fp8)] > 0;
  const Suite suite = suite_of(options, fp8, device.memory_bytes);
  Runner runner(options, std::move(backend), suite.size());

  Facts facts = options.facts;
  const auto add = [&](const Facts& more) { facts.insert(facts.end(), more.begin(), more.end()); };
  add(machine_facts(device));
  const Peaks& peaks = runner.peaks();
  facts.emplace_back("peak_source", peaks.source);
  facts.emplace_back("peak_bytes_per_second", fmt::format("{:.6g}", peaks.bytes_per_second));
  for (const auto& [dtype, rate] : peaks.flops_per_second)
    if (rate > 0)
      facts.emplace_back(fmt::format("peak_{}_flops_per_second", name_of(dtype)), fmt::format("{:.6g}", rate));
  facts.emplace_back("repetition_min_seconds", fmt::format("{:g}", options.min_seconds));
  if (options.cold_cache) {
    facts.emplace_back("cache_state", kColdCaches);
    facts.emplace_back("evicted_bytes", fmt::format("{}", runner.evicted_bytes()));
  }
  if (!on_cpu) add(gpu_state("before_"));

  constexpr double kOneTry = 1e-9;  // Runner::time_cold_cpu chooses the iterations
  const double library_seconds = options.cold_cache && on_cpu ? kOneTry : options.min_seconds;
  initialize_library(library_seconds, options.repetitions);
  Document document = run_round(runner, suite, on_cpu, [](const std::string&) { return true; });
  int rounds = 1;
  for (const auto begin = std::chrono::steady_clock::now(); seconds_since(begin) < options.patience_seconds; ++rounds) {
    const Lacking lacking =
        lacking_repetitions(parse_run(json_text(document), ""), static_cast<std::size_t>(options.repetitions));
    if (lacking.names.empty()) break;
    runner.expect(lacking.names.size() * lacking.repetitions);
    // At least two: with one repetition the library writes another name.
    initialize_library(library_seconds, std::max<std::int64_t>(2, static_cast<std::int64_t>(lacking.repetitions)));
    append(document, run_round(runner, suite, on_cpu, [&](const std::string& name) {
             return std::any_of(lacking.names.begin(), lacking.names.end(),
                                [&](const std::string& n) { return n == name || n.starts_with(name + "/"); });
           }));
  }
  facts.emplace_back("rounds", fmt::format("{}", rounds));
  if (!on_cpu) add(gpu_state("after_"));

  // Repetitions are reported as they end, in random order.
  auto& entries = document["benchmarks"].get_ref<nlohmann::ordered_json::array_t&>();
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.value("family_index", 0) < b.value("family_index", 0);
  });
  for (const auto& [key, value] : facts) document["context"][key] = value;
  return json_text(document, 2) + "\n";
}

std::string run_text(const BenchmarkRun& run) {
  constexpr double kLow = 0.25, kHigh = 0.75;
  std::vector<std::vector<std::string>> rows;
  const MachineState machine(run);
  std::size_t repetitions = 0, set_aside = 0;
  std::vector<std::string> busy;  // benchmarks whose repetitions were all disturbed
  bool failed = false;
  for (const Series& series : run.series) {
    if (!series.error.empty()) {
      rows.push_back({line_text(series.name), "failed", "", "", "", line_text(series.error)});
      failed = true;
      continue;
    }
    // The repetitions that a comparison uses.
    std::vector<Repetition> good = machine.undisturbed(series);
    repetitions += series.repetitions.size();
    set_aside += series.repetitions.size() - good.size();
    if (good.empty()) {
      busy.push_back(line_text(series.name));
      good = series.repetitions;
    }
    std::vector<double> seconds;
    for (const Repetition& r : good) seconds.push_back(series.seconds(r));
    const double middle = median(seconds);
    const double spread = (quantile(seconds, kHigh) - quantile(seconds, kLow)) / middle;
    const auto rate = [&](double amount) { return amount > 0 ? rate_text(amount / middle) : "-"; };
    rows.push_back({line_text(series.name), seconds_text(middle), percent_text(spread), rate(series.bytes),
                    rate(series.flops), series.bound_seconds > 0 ? percent_text(series.bound_seconds / middle) : "-"});
  }
  std::string text;
  for (const char* key : {"device", "software"})
    if (const std::string value = run.fact(key); !value.empty()) text += (text.empty() ? "" : ", ") + value;
  if (!text.empty()) text += "\n";
  if (run.has_cold_caches()) text += "caches: cold before each iteration\n";
  if (const std::string peak = run.fact("peak_source"); !peak.empty()) text += "peak: " + peak + "\n";
  text += "\n" + grid("<benchmark|median|spread|byte/s|FLOP/s|of peak", rows);
  if (set_aside > 0) text += "\n" + set_aside_text(set_aside, repetitions) + "\n";
  for (const std::string& name : busy) text += name + ": all of its repetitions are, and the figures are theirs\n";
  if (failed) text += "\nsome benchmarks failed\n";
  return text;
}

}  // namespace orrery::bench
