// The CPU backend: every stored element is an fp32, and every stream runs in the caller's thread.
#include "realrun/backend.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>
#include <unordered_map>

#include "realrun/cpu/kernels.h"

namespace orrery {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr auto kElement = static_cast<std::int64_t>(sizeof(float));

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown CPU";
}

class CpuBackend final : public Backend {
 public:
  ~CpuBackend() override {
    for (auto& [bytes, blocks] : spare_)
      for (void* block : blocks) std::free(block);
  }

  BackendFacts facts() const override {
    utsname system{};
    uname(&system);
    return {"cpu", cpu_name(), std::string(system.sysname) + " " + system.release + ", GCC " + __VERSION__,
            static_cast<std::int64_t>(std::thread::hardware_concurrency()),
            static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE))};
  }
  std::int64_t stored_bytes(Dtype) const override { return kElement; }

  // Blocks are kept for the next allocation of their size: new pages would cost more than the kernels that fill them.
  void* allocate(std::int64_t elements, Dtype, Place, Stream) override {
    const std::size_t bytes =
        (static_cast<std::size_t>(std::max<std::int64_t>(elements, 1) * kElement) + kAlignment - 1) / kAlignment *
        kAlignment;
    std::vector<void*>& spare = spare_[bytes];
    void* block = nullptr;
    if (spare.empty()) {
      block = std::aligned_alloc(kAlignment, bytes);
      if (block == nullptr)
        throw DeviceError("no memory for a tensor of " + std::to_string(bytes) +
                          " bytes: take a smaller model or batch, or fewer ranks on this host");
    } else {
      block = spare.back();
      spare.pop_back();
    }
    size_[block] = bytes;
    return block;
  }
  void release(void* memory) noexcept override {
    const auto found = size_.find(memory);
    if (found == size_.end()) return;
    spare_[found->second].push_back(memory);
    size_.erase(found);
  }

  void fill(Stream, const Slice& to, float value) override {
    if (std::isnan(value) && (to.dtype == Dtype::int64 || to.dtype == Dtype::int32 || to.dtype == Dtype::uint8))
      value = std::numeric_limits<float>::max();
    for_each(to, [&](float& x) { x = value; });
  }
  void copy(Stream, void* to, const void* from, std::int64_t bytes) override {
    std::memmove(to, from, static_cast<std::size_t>(bytes));
  }
  void gather(Stream, const Slice& from, void* to) override {
    for_each(from, [out = data(to)](float x) mutable { *out++ = x; });
  }
  void scatter(Stream, const void* from, const Slice& to, bool add) override {
    for_each(to, [in = data(from), add](float& x) mutable {
      x = add ? x + *in : *in;
      ++in;
    });
  }
  void sum(Stream, std::span<const void* const> parts, void* to, std::int64_t elements, Dtype) override {
    constexpr std::int64_t kTile = 4096;  // stays in the first cache while the parts are added
    std::array<float, kTile> tile;
    for (std::int64_t begin = 0; begin < elements; begin += kTile) {
      const std::int64_t n = std::min(kTile, elements - begin);
      std::copy_n(data(parts[0]) + begin, n, tile.begin());
      for (std::size_t p = 1; p < parts.size(); ++p) {
        const float* part = data(parts[p]) + begin;
        for (std::int64_t e = 0; e < n; ++e) tile[static_cast<std::size_t>(e)] += part[e];
      }
      std::copy_n(tile.begin(), n, data(to) + begin);
    }
  }
  void merge_statistics(Stream, std::span<const void* const> parts, void* to, std::int64_t tokens) override {
    const std::int64_t n = tokens;
    float* out = data(to);
    for (std::int64_t t = 0; t < n; ++t) {
      double maximum = -std::numeric_limits<double>::infinity(), sum = 0, target = 0;
      for (const void* p : parts) maximum = std::max(maximum, static_cast<double>(data(p)[t]));
      for (const void* p : parts) {
        sum += static_cast<double>(data(p)[n + t]) * std::exp(static_cast<double>(data(p)[t]) - maximum);
        target += static_cast<double>(data(p)[2 * n + t]);
      }
      out[t] = static_cast<float>(maximum);
      out[n + t] = static_cast<float>(sum);
      out[2 * n + t] = static_cast<float>(target);
    }
  }

  void write(const Slice& to, std::span<const float> values) override {
    scatter(Stream::compute, values.data(), to, false);
  }
  void read(const Slice& from, std::span<float> values) override { gather(Stream::compute, from, values.data()); }
  bool has_nan(const Slice& slice) override {
    bool found = false;
    for_each(slice, [&](float x) { found = found || std::isnan(x); });
    return found;
  }

  void run(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
           const KernelContext& context) override {
    cpu::run_kernel(op, reads, writes, context);
  }

  Event record(Stream) override { return 0; }
  void wait(Stream, Event) override {}
  bool done(Event) override { return true; }
  void synchronize(Stream) override {}
  void synchronize() override {}

  Mark mark(Stream) override {
    marks_.push_back(std::chrono::steady_clock::now());
    return marks_.size() - 1;
  }
  double seconds(Mark from, Mark to) override {
    return std::chrono::duration<double>(marks_.at(to) - marks_.at(from)).count();
  }
  void forget_marks() override { marks_.clear(); }

 private:
  static float* data(void* memory) { return static_cast<float*>(memory); }
  static const float* data(const void* memory) { return static_cast<const float*>(memory); }
  // Calls visit(element), in the order of the slice.
  template <class Visit>
  static void for_each(const Slice& slice, Visit visit) {
    float* const base = data(slice.base);
    if (slice.index == nullptr) {
      for (std::int64_t e = slice.offset; e < slice.offset + slice.elements; ++e) visit(base[e]);
    } else {
      for (const std::int64_t e : *slice.index) visit(base[e]);
    }
  }

  std::unordered_map<std::size_t, std::vector<void*>> spare_;
  std::unordered_map<void*, std::size_t> size_;
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace orrery
