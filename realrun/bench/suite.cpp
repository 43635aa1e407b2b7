#include "realrun/bench/suite.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <sstream>

#include "realrun/backend.h"
#include "realrun/bench/cold_cache.h"
#include "realrun/bench/facts.h"
#include "realrun/bench/machine_state.h"
#include "realrun/bench/statistics.h"
#include "realrun/bench/text.h"
#include "realrun/executor.h"
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
  StepCase step;
  Program program;
  double ranks = 1;
};

struct Suite {
  std::vector<KernelCase> kernels;
  std::vector<LoweredStep> steps;
};

void keep_matches(Suite& suite, const std::string& filter) {
  if (filter.empty()) return;
  std::vector<std::string> names;
  for (const KernelCase& c : suite.kernels) names.push_back(c.name);
  for (const LoweredStep& s : suite.steps) names.push_back(s.step.name);
  std::regex expression;
  try {
    expression = std::regex(filter);
  } catch (const std::regex_error&) {
    throw InputError({"--filter", ""}, fmt::format("\"{}\"", filter), "a regular expression");
  }
  const auto differs = [&](const std::string& name) { return !std::regex_search(name, expression); };
  std::erase_if(suite.kernels, [&](const KernelCase& c) { return differs(c.name); });
  std::erase_if(suite.steps, [&](const LoweredStep& s) { return differs(s.step.name); });
  if (suite.kernels.empty() && suite.steps.empty())
    throw InputError({"--filter", ""}, fmt::format("\"{}\"", filter),
                     "what a benchmark's name contains (orrery bench --list)", nearest_name(filter, names));
}

Suite suite_of(const SuiteOptions& options, bool fp8, double memory_bytes) {
  Suite suite;
  if (!options.shapes.empty()) {
    suite.kernels = shape_cases(options.device, fp8, memory_bytes, options.shapes);
    keep_matches(suite, options.filter);
    return suite;
  }
  suite.kernels = kernel_cases(options.device, fp8);
  for (StepCase& step : options.cold_cache ? std::vector<StepCase>() : step_cases(options.device)) {
    LoweredStep& lowered = suite.steps.emplace_back();
    lowered.step = std::move(step);
    lower(lowered.step.scenario, lowered.program);
    lowered.ranks = static_cast<double>(lowered.program.mesh.ranks());
  }
  keep_matches(suite, options.filter);
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
    if (options.cold_cache) {
      const BackendFacts device = backend_->facts();
      on_cpu_ ? evictor_.emplace(largest_cpu_cache_bytes())
              : evictor_.emplace(*backend_, gpu_cache_bytes(device.device, preset_named(device.device)));
    }
    expect(benchmarks * static_cast<std::size_t>(options.repetitions));
  }

  void expect(std::size_t repetitions) { progress_.expect(repetitions); }

  Backend& backend() { return *backend_; }
  const Peaks& peaks() const { return peaks_; }
  // Bytes read or written before each iteration; 0: caches are left as they are.
  std::int64_t evicted_bytes() const { return evictor_ ? evictor_->bytes() : 0; }

  void kernel(benchmark::State& state, const KernelCase& c) {
    const auto begin = std::chrono::steady_clock::now();
    run_guarded(state, [&] {
      // On a CPU each repetition allocates anew: the placement of memory is then noise of repetitions, not of the run.
      const std::unique_ptr<Backend> own = on_cpu_ ? make_cpu_backend() : nullptr;
      Backend& backend = on_cpu_ ? *own : *backend_;
      Operands operands(backend, c);
      operands.run();  // warms caches, and lets the backend choose or load what a new op needs
      backend.synchronize();
      beside_yardsticks(state, /*real_time=*/false,
                        [&] { on_cpu_ ? time_cpu(state, operands, c.name) : time_gpu(state, operands, c.op.stream); });
    });
    count(state, bytes(c.op, c.tensors), flops(c.op, c.tensors), bound_of(c));
    progress_.called(c.name, state.iterations(), seconds_since(begin), options_.min_seconds);
  }

  void step(benchmark::State& state, const LoweredStep& s) {
    const auto begin = std::chrono::steady_clock::now();
    run_guarded(state, [&] {
      ExecutionOptions options;
      options.find_undefined = options.keep_tensors = false;
      options.measure = true;
      options.warmup_steps = 1;
      options.steps = 2 * state.max_iterations;  // the first half is timed without marks around ops
      beside_yardsticks(state, /*real_time=*/true, [&] {
        while (state.KeepRunningBatch(state.max_iterations)) {
          const std::vector<RankResult> ranks = execute_ranks(s.step.scenario, s.program, options, [&](std::size_t) {
            return on_cpu_ ? make_cpu_backend() : make_cuda_backend();
          });
          double seconds = 0;  // a step ends with its last rank
          for (std::size_t i = 0; i < ranks.front().step_seconds.size(); ++i) {
            double longest = 0;
            for (const RankResult& rank : ranks) longest = std::max(longest, rank.step_seconds[i]);
            seconds += longest;
          }
          state.SetIterationTime(seconds);
        }
      });
    });
    const double step_flops = s.program.model.executed_flops_per_step;
    const double peak = peaks_.flops(on_cpu_ ? Dtype::fp32 : Dtype::bf16) * s.ranks;
    count(state, 0, step_flops, peak > 0 ? step_flops / peak : 0);
    progress_.called(s.step.name, state.iterations(), seconds_since(begin), options_.min_seconds);
  }

 private:
  template <class Run>
  static void run_guarded(benchmark::State& state, Run run) {
    try {
      run();
    } catch (const std::exception& error) {
      state.SkipWithError(error.what());
    }
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

  // Ops run back to back, by the device's clock. The host runs ahead: its time per op shows only if the op is shorter.
  void time_gpu(benchmark::State& state, Operands& operands, Stream stream) {
    constexpr benchmark::IterationCount kBatch = 16;
    while (evictor_ && state.KeepRunningBatch(kBatch)) {
      std::array<std::pair<Backend::Mark, Backend::Mark>, kBatch> marks;
      for (auto& [begin, end] : marks) {
        evictor_->evict(stream);
        begin = backend_->mark(stream);
        operands.run();
        end = backend_->mark(stream);
      }
      backend_->synchronize();
      double seconds = 0;
      for (const auto& [begin, end] : marks) seconds += backend_->seconds(begin, end);
      state.SetIterationTime(seconds);
      backend_->forget_marks();
    }
    while (!evictor_ && state.KeepRunningBatch(kBatch)) {
      const Backend::Mark begin = backend_->mark(stream);
      for (benchmark::IterationCount i = 0; i < kBatch; ++i) operands.run();
      const Backend::Mark end = backend_->mark(stream);
      backend_->synchronize();
      state.SetIterationTime(backend_->seconds(begin, end));
      backend_->forget_marks();
    }
  }

  double bound_of(const KernelCase& c) const {
    const double moved = bytes(c.op, c.tensors);
    if (c.op.kind == OpKind::copy) return peaks_.copy_bytes_per_second > 0 ? moved / peaks_.copy_bytes_per_second : 0;
    const double peak = peaks_.flops(c.op.compute_dtype);
    return std::max(peak > 0 ? flops(c.op, c.tensors) / peak : 0,
                    peaks_.bytes_per_second > 0 ? moved / peaks_.bytes_per_second : 0);
  }

  static void count(benchmark::State& state, double bytes, double flops, double bound_seconds) {
    const auto rate = [](double value) { return Counter(value, Counter::kIsIterationInvariantRate); };
    // No zeros: the library's coefficient of variation would be NaN, which is not valid JSON.
    if (bytes > 0) state.counters["bytes"] = bytes;
    if (flops > 0) state.counters["flops"] = flops;
    if (bytes > 0) state.counters["bytes_per_second"] = rate(bytes);
    if (flops > 0) state.counters["flops_per_second"] = rate(flops);
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
  for (const KernelCase& c : suite.kernels) {
    if (!wanted(c.name)) continue;
    auto* const registered = benchmark::RegisterBenchmark(
        c.name.c_str(), [&runner, &c](benchmark::State& state) { runner.kernel(state, c); });
    if (!on_cpu) registered->UseManualTime();
  }
  for (const LoweredStep& s : suite.steps) {
    if (!wanted(s.step.name)) continue;
    benchmark::RegisterBenchmark(s.step.name.c_str(), [&runner, &s](benchmark::State& state) {
      runner.step(state, s);
    })->UseManualTime();
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
  std::vector<SuiteEntry> entries;
  for (const KernelCase& c : suite.kernels) entries.push_back({c.name, bytes(c.op, c.tensors), flops(c.op, c.tensors)});
  for (const LoweredStep& s : suite.steps) entries.push_back({s.step.name, 0, s.program.model.executed_flops_per_step});
  return entries;
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
  Runner runner(options, std::move(backend), suite.kernels.size() + suite.steps.size());

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
    if (const std::string* value = run.fact(key)) text += fmt::format("{}{}", text.empty() ? "" : ", ", *value);
  if (!text.empty()) text += "\n";
  if (run.has_cold_caches()) text += "caches: cold before each iteration\n";
  if (const std::string* peak = run.fact("peak_source")) text += "peak: " + *peak + "\n";
  text += "\n" + grid("<benchmark|median|spread|byte/s|FLOP/s|of peak", rows);
  if (set_aside > 0) text += "\n" + set_aside_text(set_aside, repetitions) + "\n";
  for (const std::string& name : busy) text += name + ": all of its repetitions are, and the figures are theirs\n";
  if (failed) text += "\nsome benchmarks failed\n";
  return text;
}

}  // namespace orrery::bench
