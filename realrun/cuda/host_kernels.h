// Ops of Stream::host: CPU kernels on typed memory, such as the update of an offloaded optimizer (Ren et al. 2021,
// arXiv 2101.06840, section 5: its CPU Adam). Uses no CUDA.
#pragma once

#include <barrier>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "realrun/kernel.h"
#include "sim/program/op.h"

namespace orrery::cuda {

// Threads that share the work on a range of elements.
class Workers {
 public:
  explicit Workers(std::size_t threads);
  ~Workers();

  // Calls body(begin, end), which must not throw, for parts of [0, elements) that begin at multiples of `granule`.
  // Returns when all calls have returned.
  void divide(std::int64_t elements, std::int64_t granule, const std::function<void(std::int64_t, std::int64_t)>& body);

 private:
  std::mutex one_call_;
  std::barrier<> begin_, end_;             // of a call: where the threads and the caller meet
  std::function<void(std::size_t)> part_;  // of the call, by thread; null: the threads end
  std::vector<std::jthread> threads_;
};

// Runs one op whose operands are in host memory, each in its tensor's dtype: Adam in blocks on all workers, any other
// kernel on fp32 copies by realrun/cpu/kernels.h, whose contract applies.
void run_on_host(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                 const KernelContext& context, Workers& workers);

}  // namespace orrery::cuda
