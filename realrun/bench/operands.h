// The operands of a kernel case in a backend's memory.
#pragma once

#include <span>
#include <vector>

#include "realrun/backend.h"
#include "realrun/bench/cases.h"

namespace orrery::bench {

class Operands {
 public:
  // Allocates and fills the operands. Throws DeviceError if memory is short.
  Operands(Backend& backend, const KernelCase& kernel);
  ~Operands();
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  void run();  // issues the op once
  std::span<const Operand> writes() const { return writes_; }

 private:
  void* place(std::size_t tensor);
  void fill(void* memory, const Tensor& tensor, const Contents& contents);

  Backend& backend_;
  const KernelCase& case_;
  std::vector<void*> memory_;  // by tensor
  std::vector<Operand> reads_, writes_;
};

}  // namespace orrery::bench
