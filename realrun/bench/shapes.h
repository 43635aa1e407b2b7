// Kernels at sizes that the user chooses, named as the suite names them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "realrun/bench/cases.h"
#include "sim/base/error.h"

namespace orrery::bench {

struct Shape {
  std::string kernel;  // beginning of a name: a kind with all its variants, or kind/variant
  std::vector<std::pair<std::string, std::int64_t>> axes;  // sizes by name: {"m", 4096}
  std::string dtype;                                       // empty: the device's first dtype
  InputError::Where where;                                 // the place in the input, for errors
};

// Parses "linear:m=4096,k=4096,n=11008,dtype=bf16". Throws InputError for any other form.
Shape parse_shape(const std::string& text);
// Reads a JSON array: [{"kernel": "linear", "m": 4096, "k": 4096, "n": 11008, "dtype": "bf16"}].
std::vector<Shape> read_shapes(const std::string& path);

// Returns the cases of all shapes; a kernel that several shapes name is returned once. Throws InputError for a kernel
// that the suite does not have, an axis that the kernel does not have or the shape does not give (but `experts` of a
// product, which is 1 by default), an impossible size or
// dtype, and operands of more than `memory_bytes` of device memory (on a CPU four bytes per element, as it stores
// fp32).
std::vector<KernelCase> shape_cases(DeviceKind device, bool fp8, double memory_bytes, const std::vector<Shape>& shapes);

}  // namespace orrery::bench
