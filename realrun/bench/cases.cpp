#include "realrun/bench/cases.h"

#include <fmt/args.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/words.h"
#include "sim/program/work.h"
#include "strategies/read_scenario.h"

namespace orrery::bench {
namespace {

using enum OpKind;

constexpr float kDropout = 0.1f, kEpsilon = 1e-5f;
constexpr std::int64_t kMostScores = std::int64_t{1} << 28;  // of one sequence: stored scores are for short ones
constexpr std::int64_t kFp8Multiple = 16;                    // cuBLAS manual, "cublasLtMatmul", fp8

// Cases with the same axes, which run at the same sizes. `sizes`: the end of a name.
struct Family {
  const char *axes, *sizes;
};
namespace families {
constexpr Family product{"m k n experts", "{m}x{k}x{n}"}, fp8_product = product;
constexpr Family experts{"m k n experts", "{experts}x{m}x{k}x{n}"};
constexpr Family attention{"batch sequence groups group_heads head_dim",
                           "b{batch}_s{sequence}_g{groups}x{group_heads}_d{head_dim}"};
constexpr Family scores = attention;  // products of queries and keys, and of what they attend to
constexpr Family hidden{"batch sequence hidden", "{batch}x{sequence}x{hidden}"};
constexpr Family table{"batch sequence hidden vocab", "{positions}x{hidden}_v{vocab}"};
constexpr Family logits{"batch sequence vocab", "{positions}x{vocab}"};
constexpr Family routing{"tokens experts choices", "{tokens}x{experts}_k{choices}"};                // of its scores
constexpr Family rows{"tokens experts choices hidden", "{tokens}x{hidden}_e{experts}_k{choices}"};  // of its rows
constexpr Family flat{"elements", "{elements}"}, norm = flat;  // norm: of flat buffers
}  // namespace families
namespace F = families;

constexpr const char *kScores = "{tokens}x{experts}_k{choices}", *kOneChoice = "{tokens}x{experts}_k1",
                     *kAllChosen = "{tokens}x{experts}";

using Set = void (*)(StandAloneOp&, const Sizes&);
struct CaseKind {
  const Family* family;
  OpKind kind;
  const char* variant;
  const char *reads, *writes;  // as in stand_alone_op
  Set set = nullptr;
  const char* sizes = nullptr;  // in the name; null: the family's
};

template <ActivationFunction function>
void function_is(StandAloneOp& c, const Sizes&) {
  c.op.function = function;
}
void is_causal(StandAloneOp& c, const Sizes&) { c.op.causal = true; }
void accumulates(StandAloneOp& c, const Sizes&) { c.op.accumulate = true; }
void is_of_experts(StandAloneOp& c, const Sizes&) {
  c.op.group_dims = 1;
  c.op.accumulate = c.op.kind == linear_weight_gradient;
}
void drops(StandAloneOp& c, const Sizes&) { c.op.probability = kDropout; }
void has_epsilon(StandAloneOp& c, const Sizes&) { c.op.epsilon = kEpsilon; }
void scales_scores(StandAloneOp& c, const Sizes& sizes) {
  c.op.causal = true;
  c.op.scale = 1 / std::sqrt(static_cast<double>(size_in(sizes, "head_dim")));
}
void is_mean(StandAloneOp& c, const Sizes&) { c.context.pool_mean = true; }
void scores_best(StandAloneOp& c, const Sizes&) { c.op.router.score = RouterScore::softmax_of_top; }
// The dense-to-sparse gate in the middle of its schedule: noise on all logits, as many choices as experts.
void is_gumbel(StandAloneOp& c, const Sizes&) { c.op.router = {.gumbel_temperature = 0.7f, .threshold = 0.001f}; }
void are_contributions(StandAloneOp& c, const Sizes&) {
  for (const TensorId id : {c.op.reads[0], c.op.reads[1]}) c.tensors[id].axes[0] = Axis::contributions;
}
void has_losses(StandAloneOp& c, const Sizes&) { c.op.router.balance = c.op.router.z = 1; }
void is_scale(StandAloneOp& c, const Sizes&) { c.op.clip_limit = 1; }
constexpr std::int64_t kGroups = 8;  // DeepSeek-V3's

const std::vector<CaseKind>& case_kinds() {
  using enum ActivationFunction;
  static const std::vector<CaseKind> kinds{
      {&F::product, linear, "", "mk kn", "mn"},
      {&F::product, linear, "transposed", "mk nk", "mn", [](auto& c, auto&) { c.op.transposed_weight = true; }},
      {&F::product, linear, "bias", "mk kn n", "mn"},
      {&F::product, linear_input_gradient, "", "mn kn", "mk"},
      {&F::product, linear_weight_gradient, "", "mk mn", "kn:fp32", accumulates},
      {&F::experts, linear, "experts", "expert_mk expert_kn", "expert_mn", is_of_experts},
      {&F::experts, linear_input_gradient, "experts", "expert_mn expert_kn", "expert_mk", is_of_experts},
      {&F::experts, linear_weight_gradient, "experts", "expert_mk expert_mn", "expert_kn:fp32", is_of_experts},
      {&F::fp8_product, linear, "", "mk:fp8 kn:fp8", "mn"},

      {&F::scores, batched_matmul, "scores", "head_rows head_rows", "head_scores",
       [](auto& c, auto&) { c.op.transpose_b = true; }},
      {&F::scores, batched_matmul, "context", "head_scores head_rows", "head_rows"},

      {&F::attention, attention, "causal", "fused", "queries lse", is_causal},
      {&F::attention, attention_backward, "causal", "queries queries lse fused", "fused", is_causal},
      {&F::attention, attention, "full", "fused", "queries lse"},
      {&F::attention, attention_backward, "full", "queries queries lse fused", "fused"},
      // Separate keys, as under context parallelism and in cross attention.
      {&F::attention, attention, "apart", "queries kv", "queries lse"},
      {&F::attention, merge_attention, "", "queries lse queries lse", "queries lse"},
      {&F::attention, rotary, "", "fused", "fused"},
      {&F::attention, rotary_backward, "", "fused", "fused"},
      {&F::attention, softmax, "", "attention_scores", "attention_scores", scales_scores},
      {&F::attention, softmax_backward, "", "attention_scores probabilities", "attention_scores", scales_scores},

      {&F::hidden, norm, "layernorm", "x row row", "x layer_statistics", has_epsilon},
      {&F::hidden, norm_backward, "layernorm", "x x row layer_statistics", "x row row"},
      {&F::hidden, norm, "rmsnorm", "x row", "x rms_statistics", has_epsilon},
      {&F::hidden, norm_backward, "rmsnorm", "x x row rms_statistics", "x row"},

      {&F::hidden, activation, "gelu", "wide ffn_row", "wide", function_is<gelu>},  // with the bias of the layer
      {&F::hidden, activation, "relu", "wide", "wide", function_is<relu>},
      {&F::hidden, activation, "quick_gelu", "wide", "wide", function_is<quick_gelu>},
      {&F::hidden, activation, "relu2", "wide", "wide", function_is<relu2>},
      {&F::hidden, activation, "swiglu", "gated", "wide", function_is<swiglu>},
      {&F::hidden, activation, "geglu", "gated", "wide", function_is<geglu>},
      // For experts: times a weight per row.
      {&F::hidden, activation, "weighted_swiglu", "gated - by_token", "wide", function_is<swiglu>},
      {&F::hidden, activation_backward, "gelu", "wide wide ffn_row", "wide", function_is<gelu>},
      {&F::hidden, activation_backward, "relu", "wide wide", "wide", function_is<relu>},
      {&F::hidden, activation_backward, "quick_gelu", "wide wide", "wide", function_is<quick_gelu>},
      {&F::hidden, activation_backward, "relu2", "wide wide", "wide", function_is<relu2>},
      {&F::hidden, activation_backward, "swiglu", "wide gated", "gated", function_is<swiglu>},
      {&F::hidden, activation_backward, "geglu", "wide gated", "gated", function_is<geglu>},
      {&F::hidden, activation_backward, "weighted_swiglu", "wide gated - by_token", "gated by_token",
       function_is<swiglu>},

      {&F::hidden, dropout, "", "x", "x mask", drops},
      {&F::hidden, dropout_backward, "", "x mask", "x", drops},
      {&F::hidden, dropout_add, "bias", "x x row", "x mask", drops},
      {&F::hidden, add, "", "x x", "x"},
      {&F::hidden, add, "bias", "x - row", "x"},
      {&F::hidden, multiply, "", "x x", "x"},
      {&F::hidden, multiply, "row", "x weight_of_row", "x"},
      {&F::hidden, bias_gradient, "", "x", "row"},
      {&F::hidden, square_sums, "rows", "x", "weight_of_row"},
      {&F::hidden, square_sums, "columns", "x", "row:fp32", [](auto& c, auto&) { c.op.transpose_a = true; }},
      {&F::hidden, square_sums, "all", "x", "norm"},
      {&F::hidden, factored_update, "squares", "x squares", "x"},
      {&F::hidden, factored_update, "factors", "x row_squares column_squares norm", "x"},
      {&F::hidden, cast, "to_bf16", "x", "x:bf16"},
      {&F::hidden, cast, "to_fp32", "x", "x:fp32"},
      {&F::hidden, zero_fill, "", "", "x"},
      {&F::hidden, quantise, "int8", "x", "codes code_scales"},
      {&F::hidden, quantise, "feedback", "x x", "codes code_scales x"},
      {&F::hidden, dequantise, "int8", "codes code_scales", "x"},
      {&F::hidden, dequantise, "sum", "eight_codes eight_scales", "x", are_contributions},
      {&F::hidden, requantise, "sum", "eight_codes eight_scales", "codes code_scales", are_contributions},
      {&F::hidden, requantise, "feedback", "eight_codes eight_scales x", "codes code_scales x", are_contributions},

      {&F::table, embedding, "", "ids table", "x"},
      // Without accumulation it would clear the whole table first.
      {&F::table, embedding_backward, "", "ids x", "table", accumulates},
      {&F::logits, cross_entropy, "", "logits ids", "logit_statistics"},
      {&F::logits, cross_entropy_backward, "", "logits ids logit_statistics", "logits",
       [](auto& c, auto& sizes) { c.op.scale = 1 / static_cast<double>(size_in(sizes, "positions")); }},
      {&F::hidden, pool, "mean", "x", "pooled", is_mean},
      {&F::hidden, pool_backward, "mean", "pooled", "x", is_mean},

      {&F::routing, orthogonalise, "", "weights", "weights", nullptr, kScores},
      {&F::routing, route, "", "scores", "weights chosen", scores_best},
      {&F::routing, route, "groups", "scores", "weights chosen",
       [](auto& c, auto&) {
         c.op.router = {.score = RouterScore::sigmoid_of_top, .groups = kGroups, .best_groups = kGroups / 2};
       }},
      {&F::routing, route_backward, "", "weights scores chosen", "scores", scores_best},
      // Experts choose: a place for each choice.
      {&F::routing, route, "expert_choice", "scores", "scores chosen_of_all",
       [](auto& c, auto& sizes) {
         const auto choices = static_cast<std::uint16_t>(size_in(sizes, "choices"));
         c.op.router = {.type = RouterType::expert_choice, .choices = choices};
       }},
      {&F::routing, route, "base", "scores", "one_weight one_chosen",
       [](auto& c, auto&) { c.op.router = {.type = RouterType::base, .score = RouterScore::sigmoid, .choices = 1}; },
       kOneChoice},
      {&F::routing, hash_route, "", "token_ids", "one_chosen",
       [](auto& c, auto& sizes) {
         const auto experts = static_cast<std::uint16_t>(size_in(sizes, "experts"));
         c.op.router = {.type = RouterType::hash, .experts = experts};
       },
       kOneChoice},
      {&F::routing, route, "gumbel", "scores", "scores chosen_of_all", is_gumbel, kAllChosen},
      {&F::routing, route_backward, "gumbel", "scores scores chosen_of_all", "scores", is_gumbel, kAllChosen},
      {&F::rows, sparsify, "", "token_rows token_rows", "weights chosen token_rows"},
      {&F::rows, densify, "", "weights chosen", "token_rows"},
      {&F::rows, permute, "", "token_rows chosen", "slot_rows"},
      {&F::rows, unpermute, "", "slot_rows chosen weights", "token_rows"},
      {&F::rows, unpermute_backward, "", "token_rows slot_rows chosen weights", "slot_rows weights"},
      {&F::rows, permute_weights, "", "weights chosen", "slot_weights", nullptr, kScores},
      {&F::rows, unpermute_weights, "", "slot_weights chosen", "weights", nullptr, kScores},
      {&F::rows, slot_mask, "", "chosen weights", "slot_mask", nullptr, kScores},
      {&F::rows, slot_mask_backward, "", "slot_mask chosen", "weights", nullptr, kScores},
      {&F::rows, mask_permute, "", "token_rows slot_mask", "slot_rows"},
      {&F::rows, mask_unpermute, "", "slot_rows slot_mask", "token_rows"},
      {&F::rows, mask_gradient, "", "token_rows slot_rows", "slot_mask"},
      {&F::routing, add_noise, "", "router_scores router_scores", "router_scores router_scores"},
      {&F::routing, expert_counts, "", "router_chosen", "expert_shares"},
      {&F::routing, router_loss, "", "router_scores expert_shares", "router_losses", has_losses},
      {&F::routing, router_loss_backward, "", "router_scores expert_shares", "router_scores", has_losses},

      {&F::norm, gradient_norm, "", "flat:fp32", "norm"},
      {&F::flat, scale, "plain", "flat:fp32", "=0", is_scale},
      {&F::flat, scale, "clip", "flat:fp32 norm", "=0", is_scale},
      {&F::flat, scale, "size", "flat:fp32 - norm", "=0"},
      {&F::flat, subtract, "", "flat:fp32 flat", "flat"},
      {&F::flat, moving_mean, "", "flat_positive flat_positive", "=0"},
      // Mixed precision with fp32 master weights (Micikevicius et al. 2018), and all in fp32.
      {&F::flat, adam, "master", "flat:fp32 flat:fp32 flat:fp32 flat_positive", "flat =1 =2 =3"},
      {&F::flat, sgd, "master", "flat:fp32 flat:fp32 flat:fp32", "flat =1 =2"},
      {&F::flat, adam, "plain", "flat:fp32 flat:fp32 flat:fp32 flat_positive", "=1 =2 =3"},
      {&F::flat, sgd, "plain", "flat:fp32 flat:fp32 flat:fp32", "=1 =2"},
      {&F::flat, copy, "", "flat", "flat",
       [](auto& c, auto&) {
         c.op.stream = Stream::device_to_host;
         c.tensors[c.op.writes[0]].place = Place::host;
       }},
      {&F::flat, copy, "", "flat", "flat", [](auto& c, auto&) {
         c.op.stream = Stream::host_to_device;
         c.tensors[c.op.reads[0]].place = Place::host;
       }}};
  return kinds;
}

// "linear/bf16/4096x4096x4096"
std::string name_of_case(const CaseKind& kind, const StandAloneOp& c, const Sizes& sizes, Dtype dtype) {
  fmt::dynamic_format_arg_store<fmt::format_context> of;
  for (const char* axis : {"m", "k", "n", "experts", "batch", "sequence", "groups", "group_heads", "head_dim", "hidden",
                           "vocab", "positions", "tokens", "choices", "elements"})
    of.push_back(fmt::arg(axis, size_in(sizes, axis)));
  return fmt::format("{}{}{}/{}/{}", is_copy(kind.kind) ? name_of(direction_of(c.op, c.tensors)) : name_of(kind.kind),
                     *kind.variant == '\0' ? "" : "/", kind.variant, name_of(dtype),
                     fmt::vformat(kind.sizes != nullptr ? kind.sizes : kind.family->sizes, of));
}

// Returns false if the kind has no kernel for these sizes, if a suite would need too much memory for them, or if a cast
// would not change the type.
bool exists(const CaseKind& kind, const Sizes& sizes, Dtype dtype, bool is_suite) {
  const auto size = [&](const char* axis) { return size_in(sizes, axis); };
  const auto is = [&](const char* variant) { return std::string_view(kind.variant) == variant; };
  if (kind.family == &F::product) return size("experts") == 1;
  if (kind.family == &F::experts) return size("experts") > 1;
  if (kind.family == &F::fp8_product)
    return size("experts") == 1 && size("m") % kFp8Multiple == 0 && size("k") % kFp8Multiple == 0 &&
           size("n") % kFp8Multiple == 0;
  if (kind.kind == batched_matmul || kind.kind == softmax || kind.kind == softmax_backward)
    return !is_suite || size("sequence") * size("sequence") * size("groups") <= kMostScores;
  if (kind.kind == route && is("groups"))
    return size("experts") % kGroups == 0 && size("choices") <= size("experts") / 2;
  if (kind.kind == cast) return (dtype == Dtype::fp32) == is("to_bf16");
  return true;
}

void add_cases(std::initializer_list<const Family*> families, const std::vector<Sizes>& all, Dtype dtype, bool is_suite,
               std::vector<KernelCase>& cases) {
  for (const Sizes& sizes : all)
    for (const CaseKind& kind : case_kinds()) {
      if (std::find(families.begin(), families.end(), kind.family) == families.end()) continue;
      if (!exists(kind, sizes, dtype, is_suite)) continue;
      KernelCase& c = cases.emplace_back();
      static_cast<StandAloneOp&>(c) = stand_alone_op(kind.kind, kind.reads, kind.writes, sizes, dtype);
      if (kind.set != nullptr) kind.set(c, sizes);
      if (kind.family == &F::fp8_product) c.op.compute_dtype = Dtype::fp8;
      c.name = name_of_case(kind, c, sizes, c.op.compute_dtype);
    }
}

// Sizes of the suite's cases. The CPU's kernels are written for clarity and are slow; a GPU's caches hold 50 MB and
// more.
struct SuiteSizes {
  std::vector<Sizes> products, attentions, routings;
  Sizes hidden;
  std::int64_t elements;
};
Sizes product(std::int64_t m, std::int64_t k, std::int64_t n, std::int64_t experts = 1) {
  return {{"m", m}, {"k", k}, {"n", n}, {"experts", experts}};
}
Sizes attending(std::int64_t batch, std::int64_t sequence, std::int64_t groups, std::int64_t group_heads,
                std::int64_t head_dim) {
  return {{"batch", batch},
          {"sequence", sequence},
          {"groups", groups},
          {"group_heads", group_heads},
          {"head_dim", head_dim}};
}
Sizes routed(std::int64_t tokens, std::int64_t experts, std::int64_t choices, std::int64_t hidden) {
  return {{"tokens", tokens}, {"experts", experts}, {"choices", choices}, {"hidden", hidden}};
}
const SuiteSizes& sizes_of(DeviceKind device) {
  static const SuiteSizes cpu{
      {product(64, 512, 512), product(256, 512, 512), product(128, 1024, 256), product(16, 256, 256, 8)},
      {attending(1, 128, 4, 1, 64), attending(1, 256, 4, 1, 64), attending(1, 128, 2, 2, 128)},
      {routed(64, 8, 2, 512)},
      {{"batch", 2}, {"sequence", 64}, {"hidden", 512}, {"vocab", 4096}},
      1 << 18};
  static const SuiteSizes cuda{
      // Experts: Mixtral's with many rows and with few, and a part of DeepSeek-V3's.
      {product(4096, 4096, 4096), product(8192, 4096, 14336), product(16, 4096, 4096), product(1000, 1000, 1000),
       product(2048, 4096, 14336, 8), product(128, 4096, 14336, 8), product(512, 7168, 2048, 32)},
      {attending(4, 2048, 32, 1, 64), attending(2, 4096, 32, 1, 128), attending(2, 4096, 8, 4, 128),
       attending(1, 16384, 8, 1, 128)},
      {routed(8192, 8, 2, 4096), routed(4096, 256, 8, 7168)},
      {{"batch", 4}, {"sequence", 2048}, {"hidden", 4096}, {"vocab", 32768}},
      1 << 27};
  return device == DeviceKind::cpu ? cpu : cuda;
}

}  // namespace

std::vector<std::string> axes_of(OpKind kind) {
  const auto& kinds = case_kinds();
  const auto at = std::find_if(kinds.begin(), kinds.end(), [&](const CaseKind& k) { return k.kind == kind; });
  return words_of(at->family->axes);
}

std::vector<Dtype> kernel_dtypes(DeviceKind device) {
  if (device == DeviceKind::cpu) return {Dtype::fp32};
  return {Dtype::bf16, Dtype::fp16, Dtype::fp32};
}

std::vector<KernelCase> kernel_cases(DeviceKind device, bool fp8) {
  const SuiteSizes& sizes = sizes_of(device);
  std::vector<KernelCase> cases;
  const auto add = [&](std::initializer_list<const Family*> families, const std::vector<Sizes>& all, Dtype dtype) {
    add_cases(families, all, dtype, /*is_suite=*/true, cases);
  };
  for (const Dtype dtype : kernel_dtypes(device)) {
    add({&F::product, &F::experts}, sizes.products, dtype);
    add({&F::scores}, sizes.attentions, dtype);
    add({&F::attention}, sizes.attentions, dtype);
  }
  const Dtype first = kernel_dtypes(device).front();
  if (fp8) add({&F::fp8_product}, sizes.products, first);
  add({&F::hidden, &F::table, &F::logits}, {sizes.hidden}, first);
  add({&F::routing, &F::rows}, sizes.routings, first);
  const Sizes flat{{"elements", sizes.elements}};
  // Also 10% more, which no vector width divides: compare must detect this difference (prove_compare.sh).
  add({&F::norm}, {flat, {{"elements", sizes.elements + sizes.elements / 10}}}, first);
  add({&F::flat}, {flat}, first);
  return cases;
}

std::vector<KernelCase> kernel_cases_of(DeviceKind device, const Sizes& sizes, Dtype dtype) {
  std::vector<KernelCase> cases;
  if (dtype == Dtype::fp8)
    add_cases({&F::fp8_product}, {sizes}, kernel_dtypes(device).front(), /*is_suite=*/false, cases);
  else
    add_cases({&F::product, &F::experts, &F::scores, &F::attention, &F::hidden, &F::table, &F::logits, &F::routing,
               &F::rows, &F::norm, &F::flat},
              {sizes}, dtype, /*is_suite=*/false, cases);
  return cases;
}

std::vector<StepCase> step_cases(DeviceKind device) {
  using nlohmann::json;
  json base = json::parse(device == DeviceKind::cpu ? R"({
    "model": {"layers": 4, "hidden": 64, "heads": 4, "vocab": 512, "max_positions": 32, "dropout": 0},
    "cluster": {"node": "dgx-h100", "nodes": 1},
    "workload": {"sequence_length": 32, "global_batch_size": 4},
    "plan": {"precision": "fp32", "data_parallel": 1, "micro_batch_size": 1}})"
                                                    : R"({
    "model": {"layers": 12, "hidden": 1024, "heads": 16, "vocab": 32768, "max_positions": 1024, "dropout": 0},
    "cluster": {"node": "dgx-h200", "nodes": 1},
    "workload": {"sequence_length": 1024, "global_batch_size": 16},
    "plan": {"precision": "bf16", "data_parallel": 1, "micro_batch_size": 4}})");
  std::vector<std::pair<const char*, json>> layouts{{"one_rank", json::object()}};
  if (device == DeviceKind::cpu) {
    layouts.emplace_back("tensor_parallel_2", json{{"tensor_parallel", 2}});
    layouts.emplace_back("data_parallel_2_zero_1", json{{"data_parallel", 2}, {"zero_stage", 1}});
    layouts.emplace_back("pipeline_2", json{{"pipeline_parallel", 2}});
  }
  std::vector<StepCase> cases;
  for (const auto& [name, plan] : layouts) {
    json document = base;
    document["plan"].merge_patch(plan);
    cases.push_back({std::string("step/") + name, read_scenario(document, {"step/" + std::string(name), {}})});
  }
  return cases;
}

}  // namespace orrery::bench
