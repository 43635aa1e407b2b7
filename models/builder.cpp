#include "models/builder.h"

#include <algorithm>

namespace orrery {

TensorId Builder::tensor(const char* name, Category category, Dtype dtype, std::initializer_list<Dim> dims) {
  const TensorId id = piece.add({});
  Tensor& t = piece.tensors[id];
  t.name = name;
  t.category = category;
  t.dtype = dtype;
  for (const Dim& d : dims) t.append(d);
  return id;
}

TensorId Builder::input(const char* name, Input input, Dtype dtype, std::initializer_list<Dim> dims) {
  const TensorId id = tensor(name, Category::activation, dtype, dims);
  piece.tensors[id].input = input;
  return id;
}

TensorId Builder::view(const char* name, TensorId base, std::int64_t begin, std::initializer_list<Dim> dims) {
  const TensorId id = activation(name, dims);
  piece.tensors[id].alias_of = base;
  piece.tensors[id].alias_begin = begin;
  return id;
}

Op& Builder::emit(OpKind kind, const char* name, std::initializer_list<TensorId> reads,
                  std::initializer_list<TensorId> writes) {
  Op& op = piece.forward.ops.emplace_back();
  op.kind = kind;
  op.name = name;
  std::copy(reads.begin(), reads.end(), op.reads.begin());
  std::copy(writes.begin(), writes.end(), op.writes.begin());
  op.compute_dtype = kernels.activation;
  op.core_attention = in_core_attention;
  if (traits_of(kind).random) op.draw = draws_++;
  return op;
}

TensorId Builder::norm(const char* name, TensorId x, std::initializer_list<Dim> width) {
  const TensorId weight = parameter(name, width);
  const TensorId bias = model.norm == NormKind::layernorm && model.norm_bias ? parameter(name, width) : kNoTensor;
  return norm(name, x, width, weight, bias);
}

TensorId Builder::norm(const char* name, TensorId x, std::initializer_list<Dim> width, TensorId weight, TensorId bias) {
  // PyTorch has a kernel for LayerNorm; RMSNorm is composed of element-wise ones, in fp32 (the models' reference
  // code).
  if (casts_around() && model.norm == NormKind::rmsnorm)
    return cast(name, norm_kernel(name, cast(name, x, Dtype::fp32), width, weight, bias), kernels.activation);
  return norm_kernel(name, x, width, weight, bias);
}

TensorId Builder::norm_kernel(const char* name, TensorId x, std::initializer_list<Dim> width, TensorId weight,
                              TensorId bias) {
  const TensorId y = piece.add(piece.tensors[x]);
  Tensor& out = piece.tensors[y];
  out.name = name;
  out.alias_of = kNoTensor;
  out.input = Input::none;
  // Mean and reciprocal deviation (RMSNorm: only the latter) of each normalised vector.
  Tensor statistics = out;
  statistics.dtype = Dtype::fp32;
  statistics.truncate(out.rank - static_cast<int>(width.size()));
  statistics.append({model.norm == NormKind::layernorm ? 2 : 1, Axis::none});
  emit(OpKind::norm, name, {x, weight, bias}, {y, piece.add(statistics)}).epsilon = 1e-5f;
  return y;
}

TensorId Builder::cast(const char* name, TensorId x, Dtype dtype) {
  Tensor t = piece.tensors[x];
  t.name = name;
  t.dtype = dtype;
  t.alias_of = kNoTensor;
  t.input = Input::none;
  const TensorId y = piece.add(t);
  emit(OpKind::cast, name, {x}, {y});
  return y;
}

TensorId Builder::linear(const char* name, TensorId x, std::initializer_list<Dim> in, std::initializer_list<Dim> out,
                         bool bias, TensorId* bias_out) {
  const TensorId weight = parameter(name, in);
  for (const Dim& d : out) piece.tensors[weight].append(d);
  const TensorId b = bias ? parameter(name, out) : kNoTensor;
  const bool fused = bias_out != nullptr && kernels.fused_kernels;
  if (bias_out != nullptr) *bias_out = fused ? b : kNoTensor;
  return product(name, x, static_cast<int>(in.size()), out, weight, fused ? kNoTensor : b);
}

TensorId Builder::expert_linear(const char* name, TensorId x, std::initializer_list<Dim> in,
                                std::initializer_list<Dim> out, bool bias) {
  const auto of_experts = [&](std::initializer_list<Dim> dims) {
    const TensorId id = parameter(name, {{model.placed_experts(), Axis::experts}});
    for (const Dim& d : dims) piece.tensors[id].append(d);
    return id;
  };
  const TensorId weight = of_experts(in);
  for (const Dim& d : out) piece.tensors[weight].append(d);
  const TensorId b = bias ? of_experts(out) : kNoTensor;
  const TensorId y = product(name, x, static_cast<int>(in.size()), out, weight, b);
  piece.forward.ops.back().group_dims = 1;
  return y;
}

TensorId Builder::product(const char* name, TensorId x, int inner_dims, std::initializer_list<Dim> out, TensorId weight,
                          TensorId bias) {
  const TensorId result = piece.add(piece.tensors[x]);
  Tensor& y = piece.tensors[result];
  y.name = name;
  y.alias_of = kNoTensor;
  y.input = Input::none;
  y.category = Category::activation;
  y.dtype = kernels.activation;
  y.truncate(y.rank - inner_dims);
  for (const Dim& d : out) y.append(d);
  emit(OpKind::linear, name, {x, weight, bias}, {result}).inner_dims = static_cast<std::uint8_t>(inner_dims);
  return result;
}

TensorId Builder::add_residual(const char* name, TensorId x, TensorId residual_stream, TensorId bias) {
  const TensorId y = residual(name);
  if (model.dropout == 0) {
    emit(OpKind::add, name, {x, residual_stream, bias}, {y});
    return y;
  }
  const TensorId mask = tensor(name, Category::activation, Dtype::uint8, {batch(), sequence(), hidden()});
  if (kernels.fused_kernels) {
    emit(OpKind::dropout_add, name, {x, residual_stream, bias}, {y, mask}).probability =
        static_cast<float>(model.dropout);
    return y;
  }
  const TensorId dropped = residual(name);
  emit(OpKind::dropout, name, {x}, {dropped, mask}).probability = static_cast<float>(model.dropout);
  emit(OpKind::add, name, {dropped, residual_stream}, {y});
  return y;
}

TensorId Builder::add_positions(TensorId x, TensorId table) {
  const TensorId rows = view("positions", table, 0, {sequence(), hidden()});
  piece.tensors[rows].category = Category::parameter;
  const TensorId y = residual("positions");
  emit(OpKind::add, "positions", {x, kNoTensor, rows}, {y});
  return y;
}

}  // namespace orrery
