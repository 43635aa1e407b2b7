#include "realrun/bench/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>

#include "realrun/stand_alone.h"
#include "sim/base/error.h"
#include "sim/base/words.h"
#include "sim/hardware/presets.h"
#include "sim/program/work.h"

namespace orrery::bench {
namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

std::string cpuinfo(std::string_view key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
  }
  return {};
}

// Returns the seconds of the fastest of a few runs.
template <class Work>
double fastest(Backend& backend, Stream stream, Work work) {
  constexpr int kTimes = 8;
  std::array<std::pair<Backend::Mark, Backend::Mark>, kTimes> marks;
  work();
  for (auto& [begin, end] : marks) {
    begin = backend.mark(stream);
    work();
    end = backend.mark(stream);
  }
  backend.synchronize();
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [begin, end] : marks) least = std::min(least, backend.seconds(begin, end));
  backend.forget_marks();
  return least;
}

double measured_copy(Backend& backend, Place from_place) {
  constexpr std::int64_t kElements = 1 << 24;  // 64 MiB
  void* const from = backend.allocate(kElements, Dtype::fp32, from_place, Stream::compute);
  void* const to = backend.allocate(kElements, Dtype::fp32, Place::device, Stream::compute);
  backend.fill(Stream::compute, {from, Dtype::fp32, 0, kElements}, 1);
  const std::int64_t bytes = kElements * backend.stored_bytes(Dtype::fp32);
  const double seconds = fastest(backend, Stream::compute, [&] { backend.copy(Stream::compute, to, from, bytes); });
  backend.release(from);
  backend.release(to);
  return static_cast<double>(bytes) / seconds;
}

double measured_product(Backend& backend, DeviceKind device, Dtype dtype) {
  double best = 0;
  for (const KernelCase& c : kernel_cases(device, false)) {
    if (c.op.kind != OpKind::linear || c.op.transposed_weight || c.op.reads[2] != kNoTensor) continue;
    if (c.tensors[c.op.reads[0]].dtype != dtype) continue;
    Operands operands(backend, c);
    const double seconds = fastest(backend, c.op.stream, [&] { operands.run(); });
    best = std::max(best, flops(c.op, c.tensors) / seconds);
  }
  return best;
}

}  // namespace

Facts machine_facts(const BackendFacts& backend) {
  Facts facts{{"device_kind", backend.kind},
              {"device", backend.device},
              {"software", backend.software},
              {"processors", fmt::format("{}", backend.processors)},
              {"memory_bytes", fmt::format("{:.0f}", backend.memory_bytes)},
              {"cpu_model", cpuinfo("model name")},
              {"cpu_governor", first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
              {"cpu_mhz_now", cpuinfo("cpu MHz")}};
  std::erase_if(facts, [](const auto& fact) { return fact.second.empty(); });
  return facts;
}

Facts gpu_state(const std::string& prefix) {
  constexpr const char* kFields = "clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,power.limit";
  const std::string command = fmt::format("nvidia-smi -i 0 --format=csv,noheader --query-gpu={} 2>/dev/null", kFields);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) return {};
  std::string text;
  std::array<char, 512> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe.get()))
    text.append(buffer.data(), got);
  const std::vector<std::string> fields = list_of_text(kFields), values = list_of_text(text.substr(0, text.find('\n')));
  if (values.size() != fields.size()) return {};
  Facts facts;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    std::string key = prefix + "gpu_" + fields[i];
    std::replace(key.begin(), key.end(), '.', '_');
    facts.emplace_back(key, values[i]);
  }
  return facts;
}

double Peaks::flops(Dtype dtype) const {
  for (const auto& [d, rate] : flops_per_second)
    if (d == dtype) return rate;
  return 0;
}

std::string preset_named(const std::string& device) {
  std::string name, model;  // model: without its memory
  for (const std::string& word : words_of(device)) {
    if (word == "NVIDIA" || word == "GeForce" || word.starts_with("HBM")) continue;
    name += (name.empty() ? "" : " ") + word;
    if (!word.ends_with("GB")) model += (model.empty() ? "" : " ") + word;
  }
  const PresetCatalog::Entry* found = device_catalog().find(name);
  // "A100 80GB PCIe" is "A100 PCIe". Words at the end may say more than a preset does.
  while (found == nullptr && !model.empty()) {
    found = device_catalog().find(model);
    const std::size_t space = model.rfind(' ');
    model.erase(space == std::string::npos ? 0 : space);
  }
  return found == nullptr ? std::string() : found->name;
}

Peaks peaks_of(Backend& backend) {
  const BackendFacts facts = backend.facts();
  const DeviceKind kind = facts.kind == "cpu" ? DeviceKind::cpu : DeviceKind::cuda;
  Peaks peaks;
  const std::string preset = kind == DeviceKind::cuda ? preset_named(facts.device) : std::string();
  if (!preset.empty()) {
    const Device device = find_device(preset);
    peaks.source = "data sheet of " + device.name;
    peaks.bytes_per_second = device.memory_bytes_per_second;
    peaks.copy_bytes_per_second = device.pcie_bytes_per_second;
    for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16, Dtype::fp8})
      peaks.flops_per_second.emplace_back(dtype, device.peak(dtype));
    return peaks;
  }
  peaks.source = "measured: a copy of 64 MiB, and the fastest matrix product of the suite";
  peaks.bytes_per_second = 2 * measured_copy(backend, Place::device);  // read and written
  peaks.copy_bytes_per_second = measured_copy(backend, Place::host);
  std::vector<Dtype> dtypes{Dtype::fp32};
  if (kind == DeviceKind::cuda) dtypes = {Dtype::fp32, Dtype::fp16, Dtype::bf16};
  for (const Dtype dtype : dtypes) peaks.flops_per_second.emplace_back(dtype, measured_product(backend, kind, dtype));
  return peaks;
}

}  // namespace orrery::bench
