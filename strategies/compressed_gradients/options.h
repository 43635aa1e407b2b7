#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::compressed_gradients {

enum class Method : std::uint8_t { none, onebit_adam, zero_one_adam, powersgd, topk };
inline constexpr std::array<std::string_view, 5> kMethodNames{"none", "onebit_adam", "zero_one_adam", "powersgd",
                                                              "topk"};

struct Options {
  static constexpr std::int64_t kGroup = 32768;

  Method method = Method::none;
  std::int64_t group = kGroup, matrix_rank = 1, kept = 32;

  bool used() const { return method != Method::none; }

  void visit_fields(FieldVisitor& v) {
    v.field(
        "gradient_compression", method, kMethodNames,
        "what data-parallel replicas send in place of gradients, with error feedback: the signs of their momenta "
        "(1-bit Adam, in the steps after its warm-up), those of what local_steps steps have moved (0/1 Adam, when its "
        "variance is frozen), factors of low rank (PowerSGD), or the largest numbers");
    v.field("compression_group_size", group, degree(1),
            "1-bit and 0/1 Adam: numbers that share a scale (DeepSpeed's have one scale for all that a worker sends); "
            "topk: numbers of which each worker sends the largest");
    v.field("compression_kept", kept, degree(1),
            "topk: how many numbers of each group a worker sends; all of a smaller group");
    v.field("compression_rank", matrix_rank, degree(1),
            "PowerSGD: rank of the product that stands for a gradient matrix (PyTorch: matrix_approximation_rank)");
  }
};

}  // namespace orrery::compressed_gradients
