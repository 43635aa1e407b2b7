#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::compressed_gradients {

enum class Method : std::uint8_t { none, onebit_adam };
inline constexpr std::array<std::string_view, 2> kMethodNames{"none", "onebit_adam"};

struct Options {
  static constexpr std::int64_t kGroup = 32768;

  Method method = Method::none;
  std::int64_t group = kGroup;

  bool used() const { return method != Method::none; }

  void visit_fields(FieldVisitor& v) {
    v.field("gradient_compression", method, kMethodNames,
            "what data-parallel replicas send in place of gradients: the signs of their momenta, with error feedback "
            "(1-bit Adam, in the steps after its warm-up)");
    v.field(
        "compression_group_size", group, degree(1),
        "compressed data parallelism: numbers that share a scale (DeepSpeed's 1-bit Adam has one scale for all that a "
        "worker sends)");
  }
};

}  // namespace orrery::compressed_gradients
