#include "realrun/stand_alone.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <random>
#include <stdexcept>

#include "sim/base/words.h"

namespace orrery {
namespace {

struct AxisName {
  std::string_view word, size;
  Axis axis = Axis::none;
};
constexpr std::array<AxisName, 27> kAxes{{{"m", "m", Axis::sequence},
                                          {"k", "k"},
                                          {"n", "n"},
                                          {"rows", "m", Axis::slots},
                                          {"batch", "batch", Axis::batch},
                                          {"sequence", "sequence", Axis::sequence},
                                          {"keys", "sequence", Axis::key_sequence},
                                          {"groups", "groups", Axis::groups},
                                          {"group_heads", "group_heads", Axis::group_heads},
                                          {"qkv", "qkv", Axis::group_qkv},
                                          {"head_dim", "head_dim", Axis::head_dim},
                                          {"any_batch", "batch"},
                                          {"heads", "heads"},
                                          {"any_sequence", "sequence"},
                                          {"any_head_dim", "head_dim"},
                                          {"hidden", "hidden", Axis::hidden},
                                          {"ffn", "hidden", Axis::ffn},
                                          {"vocab", "vocab", Axis::vocab},
                                          {"tokens", "tokens", Axis::sequence},
                                          {"choices", "choices"},
                                          {"scored", "experts"},
                                          {"experts", "experts", Axis::experts},
                                          {"slots", "slots", Axis::slots},
                                          {"elements", "elements"},
                                          {"one", "1", Axis::batch},
                                          {"one_token", "1", Axis::sequence},
                                          {"1", "1"}}};

// What ops read and write. Types other than the model's are stated; contents are those of an operand that is read.
struct OperandName {
  std::string_view name, dims;
  std::optional<Dtype> dtype = {};
  Contents contents = {};
  std::string_view below = {};  // indices: the axis that they are of
};
constexpr Contents kPositive{Contents::Kind::positive, 0}, kIndices{Contents::Kind::indices, 0};
constexpr Contents constant(double value) { return {Contents::Kind::constant, value}; }
constexpr std::array<OperandName, 57> kOperands{{
    // Products: of layers, of experts, of heads.
    {"mk", "m k"},
    {"kn", "k n"},
    {"nk", "n k"},
    {"mn", "m n"},
    {"n", "n"},
    {"expert_mk", "experts rows k"},
    {"expert_kn", "experts k n"},
    {"expert_mn", "experts rows n"},
    {"head_rows", "any_batch heads any_sequence any_head_dim"},
    {"head_scores", "any_batch heads any_sequence any_sequence"},
    // Attention.
    {"fused", "batch sequence groups qkv head_dim"},
    {"queries", "batch sequence groups group_heads head_dim"},
    {"kv", "batch sequence groups 2 head_dim"},
    {"lse", "batch groups group_heads sequence", Dtype::fp32, constant(0)},
    {"attention_scores", "batch groups group_heads sequence keys"},
    {"probabilities", "batch groups group_heads sequence keys", {}, kPositive},
    // On the residual stream.
    {"x", "batch sequence hidden"},
    {"mask", "batch sequence hidden", Dtype::uint8, {Contents::Kind::indices, 2}},
    {"row", "hidden"},
    {"layer_statistics", "batch sequence 2", Dtype::fp32, constant(1)},
    {"rms_statistics", "batch sequence 1", Dtype::fp32, constant(1)},
    {"weight_of_row", "batch sequence 1", Dtype::fp32},
    {"squares", "batch sequence hidden", Dtype::fp32, kPositive},
    {"row_squares", "batch sequence 1", Dtype::fp32, kPositive},
    {"column_squares", "hidden", Dtype::fp32, kPositive},
    {"pooled", "batch one_token hidden"},
    {"wide", "batch sequence ffn"},
    {"gated", "batch sequence 2 ffn"},
    {"ffn_row", "ffn"},
    {"by_token", "batch sequence", Dtype::fp32},
    // Tokens.
    {"ids", "batch sequence", Dtype::int64, kIndices, "vocab"},
    {"table", "vocab hidden"},
    {"logits", "batch sequence vocab"},
    {"logit_statistics", "3 batch sequence", Dtype::fp32, constant(4)},  // near the largest of some thousand logits
    // Routing.
    {"scores", "tokens scored", Dtype::fp32},
    {"weights", "tokens choices", Dtype::fp32},
    {"chosen", "tokens choices", Dtype::int32, kIndices, "experts"},
    {"chosen_of_all", "tokens scored", Dtype::int32, kIndices, "experts"},
    {"one_weight", "tokens 1", Dtype::fp32},
    {"one_chosen", "tokens 1", Dtype::int32},
    {"token_ids", "tokens 1", Dtype::int32, {Contents::Kind::indices, 1 << 15}},
    {"token_rows", "tokens hidden"},
    {"slot_rows", "experts slots hidden"},
    {"slot_weights", "experts slots", Dtype::fp32},
    {"slot_mask", "tokens experts slots"},
    {"router_scores", "one tokens scored", Dtype::fp32},
    {"router_chosen", "one tokens choices", Dtype::int32, kIndices, "experts"},
    {"expert_shares", "one scored", Dtype::fp32, kPositive},
    {"router_losses", "one tokens 2", Dtype::fp32},
    // Codes of the residual stream with a scale a token, and contributions of a node's eight ranks.
    {"codes", "batch sequence hidden", Dtype::int8, {Contents::Kind::indices, 128}},
    {"code_scales", "batch sequence 1", Dtype::fp32, constant(0.01)},
    {"eight_codes", "8 batch sequence hidden", Dtype::int8, {Contents::Kind::indices, 128}},
    {"eight_scales", "8 batch sequence 1", Dtype::fp32, constant(0.01)},
    // Flat buffers.
    {"flat", "elements"},
    {"flat_positive", "elements", Dtype::fp32, kPositive},
    {"moment", "elements", Dtype::fp32, constant(1e-3)},
    {"norm", "1", Dtype::fp32, constant(4)},
}};

template <class Names, class Of>
const auto& named(const Names& names, std::string_view word, Of of) {
  const auto at = std::find_if(names.begin(), names.end(), [&](const auto& n) { return of(n) == word; });
  if (at == names.end()) throw std::logic_error("no operand or axis " + std::string(word));
  return *at;
}

Dim dim_of(std::string_view word, const Sizes& sizes) {
  if (const std::optional<std::int64_t> number = number_of(word)) return {*number, Axis::none};
  const AxisName& name = named(kAxes, word, [](const AxisName& a) { return a.word; });
  return {size_in(sizes, name.size), name.axis};
}

TensorId add_operand(StandAloneOp& op, std::string word, const Sizes& sizes, Dtype dtype, bool is_read) {
  std::optional<Dtype> stated;
  if (const std::size_t colon = word.find(':'); colon != std::string::npos) {
    for (int d = 0; d < kDtypes; ++d)
      if (word.substr(colon + 1) == name_of(static_cast<Dtype>(d))) stated = static_cast<Dtype>(d);
    word.resize(colon);
  }
  const OperandName& name = named(kOperands, word, [](const OperandName& o) { return o.name; });
  Tensor& t = op.tensors.emplace_back();
  t.name = "operand";
  t.dtype = stated.value_or(name.dtype.value_or(dtype));
  for (const std::string& dim : words_of(name.dims)) t.append(dim_of(dim, sizes));
  Contents& contents = op.contents.emplace_back(is_read ? name.contents : constant(0));
  if (is_read && !name.below.empty()) contents.value = static_cast<double>(size_in(sizes, name.below));
  // The log-sum-exp of normally distributed scores: probabilities come out near 1 / keys.
  if (is_read && name.name == "lse") contents.value = std::log(static_cast<double>(size_in(sizes, "sequence"))) + 0.5;
  return static_cast<TensorId>(op.tensors.size() - 1);
}

constexpr std::int64_t kTile = 1 << 16;  // number of elements that are generated; larger tensors repeat them

// The same numbers in every run of every build.
const std::vector<float>& normal_numbers() {
  static const std::vector<float> numbers = [] {
    std::mt19937 generator(1);
    std::vector<float> values(kTile);
    constexpr double kTerms = 12;  // the sum of this many uniform numbers has variance 1
    for (float& value : values) {
      double sum = -kTerms / 2;
      for (int i = 0; i < static_cast<int>(kTerms); ++i) sum += static_cast<double>(generator()) / 4294967296.0;
      value = static_cast<float>(sum);
    }
    return values;
  }();
  return numbers;
}

std::vector<float> tile_of(const Contents& contents, std::int64_t elements) {
  std::vector<float> tile(static_cast<std::size_t>(std::min(elements, kTile)), static_cast<float>(contents.value));
  if (contents.kind == Contents::Kind::constant) return tile;
  std::mt19937 generator(2);
  const auto below = static_cast<std::uint32_t>(contents.value);
  for (std::size_t i = 0; i < tile.size(); ++i) {
    const float x = normal_numbers()[i];
    tile[i] = contents.kind == Contents::Kind::normal     ? x
              : contents.kind == Contents::Kind::positive ? std::abs(x)
                                                          : static_cast<float>(generator() % below);
  }
  return tile;
}

}  // namespace

std::int64_t size_in(const Sizes& sizes, std::string_view axis) {
  if (axis == "heads") return size_in(sizes, "groups") * size_in(sizes, "group_heads");
  if (axis == "positions") return size_in(sizes, "batch") * size_in(sizes, "sequence");
  if (axis == "qkv") return size_in(sizes, "group_heads") + 2;
  const std::int64_t experts = axis == "slots" ? size_in(sizes, "experts") : 1;
  if (axis == "slots") return (size_in(sizes, "tokens") * size_in(sizes, "choices") + experts - 1) / experts;
  const auto at = sizes.find(axis);
  return at == sizes.end() ? 1 : at->second;
}

StandAloneOp stand_alone_op(OpKind kind, std::string_view reads, std::string_view writes, const Sizes& sizes,
                            Dtype dtype) {
  StandAloneOp op;
  op.op.kind = kind;
  op.op.name = name_of(kind);
  op.op.compute_dtype = dtype;
  std::size_t next = 0;
  for (const std::string& word : words_of(reads))
    op.op.reads[next++] = word == "-" ? kNoTensor : add_operand(op, word, sizes, dtype, /*is_read=*/true);
  next = 0;
  for (const std::string& word : words_of(writes))
    op.op.writes[next++] = word[0] == '=' ? op.op.reads[static_cast<std::size_t>(word[1] - '0')]
                                          : add_operand(op, word, sizes, dtype, /*is_read=*/false);
  return op;
}

Operands::Operands(Backend& backend, const StandAloneOp& op) : backend_(backend), op_(op) {
  for (std::size_t t = 0; t < op.tensors.size(); ++t) memory_.emplace_back(nullptr, Release{backend});
  const auto operand = [&](TensorId id) -> Operand {
    if (id == kNoTensor) return {};
    return {place(id), &op_.tensors[id]};
  };
  for (const TensorId id : op_.op.reads) reads_.push_back(operand(id));
  for (const TensorId id : op_.op.writes) writes_.push_back(operand(id));
  while (!reads_.empty() && reads_.back().data == nullptr) reads_.pop_back();
  while (!writes_.empty() && writes_.back().data == nullptr) writes_.pop_back();
  backend_.synchronize();
}

Operands::~Operands() {
  try {
    backend_.synchronize();
  } catch (const DeviceError&) {  // was already thrown to the caller that ran the op
  }
}

void* Operands::place(std::size_t id) {
  auto& memory = memory_[id];
  if (memory != nullptr) return memory.get();
  const Tensor& tensor = op_.tensors[id];
  memory.reset(backend_.allocate(tensor.elements(), tensor.dtype, tensor.place, Stream::compute));
  fill(memory.get(), tensor, op_.contents[id]);
  return memory.get();
}

void Operands::fill(void* memory, const Tensor& tensor, const Contents& contents) {
  const std::int64_t elements = tensor.elements();
  if (tensor.dtype == Dtype::fp8) {  // written through a cast, which sets the scale
    Tensor wide = tensor;
    wide.dtype = Dtype::bf16;
    void* const from = backend_.allocate(elements, wide.dtype, Place::device, Stream::compute);
    fill(from, wide, contents);
    Op op;
    op.kind = OpKind::cast;
    op.name = "cast";
    const std::array<Operand, 1> read{{{from, &wide}}}, write{{{memory, &tensor}}};
    backend_.run(op, read, write, {});
    backend_.release(from);
    return;
  }
  const std::vector<float> tile = tile_of(contents, elements);
  const auto filled = static_cast<std::int64_t>(tile.size());
  backend_.write({memory, tensor.dtype, 0, filled}, tile);
  // Copies what is there behind itself: a few copies fill gigabytes faster than the host would.
  const std::int64_t size = backend_.stored_bytes(tensor.dtype);
  auto* const bytes = static_cast<std::byte*>(memory);
  for (std::int64_t done = filled; done < elements;) {
    const std::int64_t more = std::min(done, elements - done);
    backend_.copy(Stream::compute, bytes + done * size, bytes, more * size);
    done += more;
  }
}

void Operands::run() {
  const Op& op = op_.op;
  if (op.kind != OpKind::copy) {
    backend_.run(op, reads_, writes_, op_.context);
    return;
  }
  const Tensor& tensor = *reads_[0].tensor;
  backend_.copy(op.stream, writes_[0].data, reads_[0].data, tensor.elements() * backend_.stored_bytes(tensor.dtype));
}

}  // namespace orrery
