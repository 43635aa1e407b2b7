#include "realrun/bench/shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "sim/base/json_reader.h"
#include "sim/base/words.h"
#include "sim/report/format.h"

namespace orrery::bench {
namespace {

// Index type of cuBLAS and the kernels.
constexpr std::int64_t kLongestAxis = std::numeric_limits<std::int32_t>::max();

std::string quoted(const std::string& text) { return '"' + text + '"'; }

InputError::Where member(const InputError::Where& where, const std::string& key) {
  return {where.file, where.pointer.empty() ? "" : pointer_to(where.pointer, key)};
}

void set_axis(Shape& shape, const std::string& axis, std::int64_t size) {
  for (const auto& [known, other] : shape.axes)
    if (known == axis) throw InputError(shape.where, fmt::format("{} twice", axis), "each axis once");
  if (size < 1 || size > kLongestAxis)
    throw InputError(member(shape.where, axis), fmt::format("{}={}", axis, size),
                     fmt::format("a size from 1 to {}", kLongestAxis));
  shape.axes.emplace_back(axis, size);
}

// Returns "linear/bias" for "linear/bias/fp32/64x512x512".
std::string kernel_of(const std::string& name) {
  const std::size_t sizes = name.rfind('/');
  return name.substr(0, name.rfind('/', sizes - 1));
}

bool is_meant(const std::string& kernel, const KernelCase& c) {
  const std::string own = kernel_of(c.name);
  return own == kernel || own.starts_with(kernel + "/");
}

// Returns a case of the suite for the kind that the shape names.
const KernelCase& example_of(const Shape& shape, const std::vector<KernelCase>& suite) {
  const auto found =
      std::find_if(suite.begin(), suite.end(), [&](const KernelCase& c) { return is_meant(shape.kernel, c); });
  if (found != suite.end()) return *found;
  std::set<std::string> names;
  for (const KernelCase& c : suite) {
    const std::string kernel = kernel_of(c.name);
    names.insert(kernel);
    names.insert(kernel.substr(0, kernel.find('/')));
  }
  throw InputError(member(shape.where, "kernel"), quoted(shape.kernel),
                   "a kernel of the suite (orrery bench --list), with or without its variant",
                   nearest_name(shape.kernel, std::vector<std::string>(names.begin(), names.end())));
}

// Flat buffers, a router's scores and orthonormal columns are fp32, whatever the model's dtype.
bool is_in_fp32(OpKind kind) {
  return kind == OpKind::gradient_norm || kind == OpKind::scale || kind == OpKind::subtract || kind == OpKind::adam ||
         kind == OpKind::sgd || kind == OpKind::route || kind == OpKind::route_backward || kind == OpKind::hash_route ||
         kind == OpKind::add_noise || kind == OpKind::expert_counts || kind == OpKind::router_loss ||
         kind == OpKind::router_loss_backward || kind == OpKind::orthogonalise;
}

// A product with a layer's or expert's weights, not one with a mask.
bool is_of_weights(OpKind kind) { return is_matmul(kind) && !traits_of(kind).regroups; }

// An axis that a shape may omit: it is 1 then.
bool is_optional(OpKind kind, std::string_view axis) { return is_of_weights(kind) && axis == "experts"; }

Dtype dtype_of(const Shape& shape, OpKind kind, DeviceKind device, bool fp8) {
  std::vector<Dtype> possible = kernel_dtypes(device);
  if (is_in_fp32(kind)) possible.resize(1);
  if (fp8 && kind == OpKind::linear) possible.push_back(Dtype::fp8);
  if (shape.dtype.empty()) return possible.front();
  std::vector<std::string> names;
  for (const Dtype dtype : possible) {
    names.emplace_back(name_of(dtype));
    if (names.back() == shape.dtype) return dtype;
  }
  throw InputError(member(shape.where, "dtype"), quoted(shape.dtype),
                   fmt::format("{} ({} on {})", fmt::join(names, ", "), name_of(kind),
                               device == DeviceKind::cpu ? "a CPU" : "this GPU"),
                   nearest_name(shape.dtype, names));
}

Sizes sizes_of_shape(const Shape& shape, OpKind kind) {
  const std::vector<std::string> axes = axes_of(kind);
  const std::string expected = fmt::format("{} of {}", fmt::join(axes, ", "), name_of(kind));
  Sizes sizes(shape.axes.begin(), shape.axes.end());
  for (const auto& [axis, size] : shape.axes)
    if (std::find(axes.begin(), axes.end(), axis) == axes.end())
      throw InputError(member(shape.where, axis), quoted(axis), expected, nearest_name(axis, axes));
  for (const std::string& axis : axes)
    if (!sizes.contains(axis) && !is_optional(kind, axis)) throw InputError(shape.where, "no " + axis, expected);
  if (size_in(sizes, "choices") > size_in(sizes, "experts"))
    throw InputError(member(shape.where, "choices"), fmt::format("choices={}", sizes.at("choices")),
                     fmt::format("at most the {} experts", sizes.at("experts")));
  return sizes;
}

// Bytes of the operands on the device.
double operand_bytes(const KernelCase& c, DeviceKind device) {
  double bytes = 0;
  for (const Tensor& t : c.tensors) {
    if (device == DeviceKind::cuda && t.place != Place::device) continue;
    constexpr double kByteBits = 8;
    double of_tensor = static_cast<double>(bits_of(device == DeviceKind::cpu ? Dtype::fp32 : t.dtype)) / kByteBits;
    for (const std::int64_t size : t.sizes) of_tensor *= static_cast<double>(size);
    bytes += of_tensor;
  }
  return bytes;
}

}  // namespace

Shape parse_shape(const std::string& text) {
  const InputError::Where where{"--shape", ""};
  const auto refuse = [&] {
    throw InputError(where, quoted(text), "KERNEL:AXIS=SIZE,..., such as linear:m=4096,k=4096,n=11008,dtype=bf16");
  };
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0) refuse();
  Shape shape{text.substr(0, colon), {}, {}, {"--shape " + text, ""}};
  for (const std::string_view part : split(std::string_view(text).substr(colon + 1), ',')) {
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) refuse();
    const std::string axis(part.substr(0, equals)), value(part.substr(equals + 1));
    if (axis == "dtype") {
      if (!shape.dtype.empty() || value.empty()) refuse();
      shape.dtype = value;
    } else if (const std::optional<std::int64_t> size = number_of(value)) {
      set_axis(shape, axis, *size);
    } else {
      throw InputError(shape.where, fmt::format("{}={}", axis, value), "a whole number");
    }
  }
  return shape;
}

std::vector<Shape> read_shapes(const std::string& path) {
  const nlohmann::json document = parse_json_file(path);
  const std::string file = path == "-" ? "<stdin>" : path;
  if (!document.is_array() || document.empty())
    throw InputError({file, ""}, describe(document),
                     R"(an array of shapes, such as [{"kernel": "linear", "m": 64, "k": 512, "n": 512}])");
  std::vector<Shape> shapes;
  for (std::size_t i = 0; i < document.size(); ++i) {
    Shape& shape = shapes.emplace_back();
    shape.where = {file, fmt::format("/{}", i)};
    if (!document[i].is_object()) throw InputError(shape.where, describe(document[i]), "an object");
    for (const auto& [key, value] : document[i].items()) {
      const bool is_text = key == "kernel" || key == "dtype";
      if (is_text ? !value.is_string() : !value.is_number_integer())
        throw InputError(member(shape.where, key), describe(value), is_text ? "a name" : "a whole number");
      if (key == "kernel") {
        shape.kernel = value;
      } else if (key == "dtype") {
        shape.dtype = value;
      } else {
        const bool fits = !value.is_number_unsigned() || value.get<std::uint64_t>() <= kLongestAxis;
        set_axis(shape, key, fits ? value.get<std::int64_t>() : std::numeric_limits<std::int64_t>::max());
      }
    }
    if (shape.kernel.empty()) throw InputError(shape.where, "no kernel", "the name of one (orrery bench --list)");
  }
  return shapes;
}

std::vector<KernelCase> shape_cases(DeviceKind device, bool fp8, double memory_bytes,
                                    const std::vector<Shape>& shapes) {
  const std::vector<KernelCase> suite = kernel_cases(device, fp8);
  std::vector<KernelCase> result;
  std::set<std::string> names;
  for (const Shape& shape : shapes) {
    const OpKind kind = example_of(shape, suite).op.kind;
    const Dtype dtype = dtype_of(shape, kind, device, fp8);
    bool any = false;
    for (KernelCase& c : kernel_cases_of(device, sizes_of_shape(shape, kind), dtype)) {
      if (!is_meant(shape.kernel, c)) continue;
      any = true;
      const double bytes = operand_bytes(c, device);
      if (bytes > memory_bytes)
        throw InputError(shape.where, fmt::format("{} of operands of {}", bytes_text(bytes), c.name),
                         "at most the device's memory, " + bytes_text(memory_bytes));
      if (names.insert(c.name).second) result.push_back(std::move(c));
    }
    if (!any)  // fp8: other variants and sizes have no kernel
      throw InputError(shape.where, fmt::format("{} in {}", shape.kernel, name_of(dtype)),
                       "linear without a variant, of sizes that are multiples of 16");
  }
  return result;
}

}  // namespace orrery::bench
