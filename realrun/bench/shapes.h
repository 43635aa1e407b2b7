// Kernels at sizes of the user's choice, under the names that the suite would give them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "realrun/bench/cases.h"
#include "sim/base/error.h"

namespace orrery::bench {

struct Shape {
  std::string kernel;  // as names begin: a kind, for all of its variants, or kind/variant
  std::vector<std::pair<std::string, std::int64_t>> axes;
  std::string dtype;  // empty: the device's first
  InputError::Where where;
};

// "linear:m=4096,k=4096,n=11008,dtype=bf16". Throws InputError for another form.
Shape parse_shape(const std::string& text);
// A JSON array of them: [{"kernel": "linear", "m": 4096, "k": 4096, "n": 11008, "dtype": "bf16"}].
std::vector<Shape> read_shapes(const std::string& path);

// The axes that kernels of a kind have, all of which a shape gives (but experts of products, of which there is one
// then).
std::vector<std::string> axes_of(OpKind kind);

// Throws InputError for a kernel that the suite does not have, an axis that the kernel does not have or the shape does
// not give, a size or dtype that cannot be, and for operands of more than `memory_bytes` of the device: on a CPU, which
// stores fp32, four for each element. A kernel that several shapes name is there once.
std::vector<KernelCase> shape_cases(DeviceKind device, bool fp8, double memory_bytes, const std::vector<Shape>& shapes);

}  // namespace orrery::bench
