#include "models/model.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <numeric>

#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"

namespace orrery {
namespace {

constexpr std::array<std::string_view, 5> kPositions{"learned", "rotary", "relative", "alibi", "none"};
constexpr std::array<std::string_view, 2> kNorms{"layernorm", "rmsnorm"};
constexpr std::array<std::string_view, 2> kAttentions{"multi_head", "latent"};
constexpr std::array<std::string_view, 6> kActivations{"gelu", "relu", "swiglu", "geglu", "quick_gelu", "relu2"};
constexpr std::array<std::string_view, 4> kScores{"softmax", "softmax_of_top", "sigmoid", "sigmoid_of_top"};
constexpr std::array<std::string_view, 4> kRouters{"top_k", "expert_choice", "base", "hash"};
constexpr std::array<std::string_view, 3> kLoadBalancings{"aux_loss", "seq_aux_loss", "global_aux_loss"};

// Upper limits of the fields: far beyond any model, and small enough that no count overflows 64 bits.
constexpr std::int64_t kMostLayers = 1 << 16, kMostWidth = 1 << 21, kMostRows = std::int64_t{1} << 31;
constexpr std::int64_t kMostImage = 1 << 16, kMostPatch = 1 << 12, kMostWindow = 1 << 10, kMostGroups = 1 << 15;

constexpr IntegerRange layers_range(std::int64_t least) { return {.least = least, .most = kMostLayers}; }
constexpr IntegerRange width_range(std::int64_t least) { return {.least = least, .most = kMostWidth}; }
constexpr IntegerRange up_to(std::int64_t most) { return {.least = 0, .most = most}; }
constexpr IntegerRange rows_range(std::int64_t least) { return {.least = least, .most = kMostRows}; }

}  // namespace

void Model::visit_fields(FieldVisitor& v) {
  v.field("name", name, "what reports call the model");
  v.field("source", source, "where the sizes were published");
  v.field("kind", kind, kModelKindNames, "arrangement of the layers");
  v.field("layers", layers, layers_range(0), "transformer layers; encoder-decoder: of the encoder");
  v.field("decoder_layers", decoder_layers, layers_range(0), "encoder-decoder: layers of the decoder; 0: as layers");
  v.field("hidden", hidden, width_range(0), "width of the residual stream; Swin: of the first stage");
  v.field("heads", heads, width_range(0), "attention (query) heads");
  v.field("kv_heads", kv_heads, width_range(0), "key and value heads; 0: as heads, 1: multi-query attention");
  v.field("head_dim", head_dim, width_range(0), "elements per head; 0: hidden / heads");
  v.field("ffn", ffn, width_range(0), "inner width of the MLP; 0: 4 hidden");
  v.field("activation", activation, kActivations,
          "activation function of the MLP; swiglu and geglu are gated (three matrices)");
  v.field("vocab", vocab, rows_range(0), "rows of the embedding table");
  v.field("max_positions", max_positions, rows_range(1), "longest sequence; learned positions: rows of their table");
  v.field("clamped_activation", clamped_activation,
          "both halves of a gated MLP are clamped before the activation function (gpt-oss: swiglu_limit)");
  v.field("positions", positions, kPositions, "how positions enter the model");
  v.field("scaled_rotary", scaled_rotary,
          "rotated queries and keys are also scaled (YaRN with an attention factor other than 1)");
  v.field("norm", norm, kNorms, "kind of every normalisation");
  v.field("tied_embeddings", tied_embeddings, "the output head is the embedding table");
  v.field("linear_bias", linear_bias, "biases of the MLP; of attention too unless the next two say otherwise");
  v.field("output_bias", output_bias, "bias of attention's output projection");
  v.field("qkv_bias", qkv_bias, "biases of the query, key and value projections");
  v.field("norm_bias", norm_bias, "biases of the layernorms");
  v.field("head_bias", head_bias, "bias of the output head");
  v.field("qk_norm", qk_norm, "a norm on the queries and keys");
  v.field("qk_norm_across_heads", qk_norm_across_heads, "the query and key norms span all heads (OLMo 2)");
  v.field("parallel_block", parallel_block, "attention and MLP run side by side on the same input (PaLM)");
  v.field("parallel_norms", parallel_norms, "parallel_block: attention and MLP have a norm each (GPT-NeoX)");
  v.field("post_norm", post_norm, "norm after the residual addition (BERT)");
  v.field("input_norm", input_norm, "norm before attention and before the MLP");
  v.field("output_norm", output_norm, "norm on the outputs of attention and MLP (Gemma 2, OLMo 2)");
  v.field("embedding_norm", embedding_norm, "norm after the embedding (BLOOM, BERT)");
  v.field("dropout", dropout, NumberRange{.least = 0, .most = 1}, "probability of hidden and attention dropout");
  v.field("sliding_window", sliding_window, rows_range(0), "positions attended to; 0: all");
  v.field("full_attention_period", full_attention_period, layers_range(0),
          "with a sliding window: every n-th layer attends to all positions; 0: none does");
  v.field("extra_positions", extra_positions, rows_range(0),
          "rows of the position table beyond max_positions (OPT: 2)");
  v.field("relative_buckets", relative_buckets, rows_range(0), "rows of T5's relative position bias table");
  v.field("relative_projection", relative_projection, "Transformer-XL's projected relative encodings (Gopher)");
  v.field("token_types", token_types, rows_range(0), "rows of BERT's segment embedding");
  v.field("pooler", pooler, "BERT's pooler and next-sentence classifier");
  v.field("attention", attention, kAttentions, "latent: DeepSeek's multi-head latent attention");
  v.field("query_lora_rank", query_lora_rank, width_range(0), "latent attention: rank of the queries; 0: full rank");
  v.field("kv_lora_rank", kv_lora_rank, width_range(0), "latent attention: rank of keys and values");
  v.field("rope_head_dim", rope_head_dim, width_range(0), "latent attention: rotary elements per head");
  v.field("nope_head_dim", nope_head_dim, width_range(0), "latent attention: other query and key elements per head");
  v.field("value_head_dim", value_head_dim, width_range(0), "latent attention: value elements per head");
  v.field("image_size", image_size, up_to(kMostImage), "side of the image, in pixels");
  v.field("patch_size", patch_size, up_to(kMostPatch), "side of a patch, in pixels");
  v.field("channels", channels, IntegerRange{.least = 1, .most = kMostPatch}, "channels of the image");
  v.field("classes", classes, rows_range(0), "classes of the classifier");
  v.field("stage_layers", stage_layers, layers_range(1), "Swin: layers of each stage");
  v.field("stage_heads", stage_heads, width_range(1), "Swin: heads of each stage");
  v.field("window", window, up_to(kMostWindow), "Swin: side of the attention window, in patches");
  v.field("cosine_attention", cosine_attention, "Swin v2: cosine attention and continuous position bias");
  v.field("experts", experts, up_to(kMostGroups), "routed experts of a layer; 0: none");
  v.field("experts_per_token", experts_per_token, up_to(kMostGroups), "experts that a token goes to (top-k)");
  v.field("expert_ffn", expert_ffn, width_range(0), "inner width of an expert; 0: ffn");
  v.field("shared_expert_ffn", shared_expert_ffn, width_range(0),
          "inner width of the experts that all tokens go to, together; 0: none");
  v.field("shared_expert_gate", shared_expert_gate, "the shared experts' output is gated (Qwen2-MoE)");
  v.field("dense_layers", dense_layers, layers_range(0), "first layers that have an MLP instead of experts");
  v.field("expert_period", expert_period, layers_range(1), "after the dense layers, every n-th layer has experts");
  v.field("router_type", router_type, kRouters,
          "who chooses: tokens their best experts (top_k), experts their best tokens (expert_choice), an assignment of "
          "equal numbers (base), or a token's id (hash)");
  v.field("router_score", router_score, kScores,
          "score that experts are chosen and weighted by; of_top: weights of the chosen sum to one");
  v.field("router_groups", router_groups, up_to(kMostGroups),
          "groups of experts; a token is sent to some of them only; 0: no groups");
  v.field("router_best_groups", router_best_groups, up_to(kMostGroups),
          "groups that a token's experts are chosen from");
  v.field("router_scale", router_scale, NumberRange{.least = 0, .most = 1000}, "factor on the experts' weights");
  v.field("router_bias", router_bias, "bias of the router's projection (gpt-oss)");
  v.field("router_score_bias", router_score_bias, "bias on the compared scores that balances loads (DeepSeek-V3)");
  v.field("expert_bias", expert_bias, "biases of the experts' matrices (gpt-oss)");
  v.field("mtp_num_layers", mtp_num_layers, IntegerRange{.least = 0, .most = 1},
          "modules of multi-token prediction after the last layer (DeepSeek-V3), each with a layer of its own");
  v.field("router_noise", router_noise,
          "normal noise on the router's logits, with a deviation from a second projection (noisy top-k)");
  v.field(
      "moe_router_load_balancing_type", load_balancing, kLoadBalancings,
      "whose loads the loss of balance compares: of a micro-batch (aux_loss), of each sequence (seq_aux_loss), or of "
      "the micro-batches of all data-parallel ranks together (global_aux_loss)");
  v.field("moe_aux_loss_coeff", aux_loss, NumberRange{.least = 0, .most = 1000},
          "factor on each router's loss of balance; 0: none");
  v.field("moe_z_loss_coeff", z_loss, NumberRange{.least = 0, .most = 1000},
          "factor on each router's z-loss (the size of its logits); 0: none");
  v.field("published_active_parameters", published_active_parameters, NumberRange{},
          "published number of parameters that one token meets; 0: not published");
  v.field("published_parameters", published_parameters, NumberRange{},
          "published number of parameters; 0: not published");
}

std::int64_t Model::total_layers() const {
  if (kind == ModelKind::swin) return std::accumulate(stage_layers.begin(), stage_layers.end(), std::int64_t{0});
  return layers + (kind == ModelKind::encoder_decoder ? decoder_layers : 0);
}

std::int64_t Model::expert_layers() const {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; has_experts() && layer < layers; ++layer) count += is_expert_layer(layer) ? 1 : 0;
  return count;
}

namespace {

// `own`: the model's fields (json_of_fields).
[[noreturn]] void fail(const nlohmann::json& own, const char* field, std::string expected) {
  const nlohmann::json value = own.value(field, nlohmann::json());
  throw InputError({.file = {}, .pointer = fmt::format("/{}", field)},
                   value.is_null()           ? "nothing"
                   : value.is_number_float() ? fmt::format("{:g}", value.get<double>())
                                             : describe(value),
                   std::move(expected));
}

void require(bool holds, const Model& m, const char* field, std::string expected) {
  if (!holds) fail(json_of_fields(m), field, std::move(expected));
}

// Refuses fields that mean something only elsewhere, unless they have their usual values. `where`: "without experts".
void refuse_set(const nlohmann::json& own, std::initializer_list<const char*> fields, const std::string& where) {
  static const nlohmann::json usual = json_of_fields(Model());
  for (const char* field : fields)
    if (own.value(field, nlohmann::json()) != usual.value(field, nlohmann::json()))
      fail(own, field, (own[field].is_boolean() ? "false " : "nothing ") + where);
}

void complete_latent_attention(Model& m) {
  require(m.kv_lora_rank >= 1, m, "kv_lora_rank", "at least 1 for latent attention");
  require(m.rope_head_dim >= 1, m, "rope_head_dim", "at least 1 for latent attention");
  require(m.nope_head_dim >= 1, m, "nope_head_dim", "at least 1 for latent attention");
  require(m.value_head_dim >= 1, m, "value_head_dim", "at least 1 for latent attention");
  require(m.kv_heads == m.heads, m, "kv_heads",
          fmt::format("the {} attention heads: latent attention expands keys and values for each", m.heads));
  const std::int64_t head_dim = m.nope_head_dim + m.rope_head_dim;
  require(m.head_dim == 0 || m.head_dim == head_dim, m, "head_dim",
          fmt::format("nope_head_dim + rope_head_dim = {} for latent attention", head_dim));
  require(!m.qkv_bias, m, "qkv_bias", "false for latent attention");
  require(m.kind == ModelKind::decoder, m, "attention", "multi_head except in a decoder");
  require(!m.qk_norm, m, "qk_norm", "false for latent attention, which norms its latents");
  require(m.positions == Positions::rotary, m, "positions", "rotary for latent attention");
  m.head_dim = head_dim;
  require(m.heads <= kMostWidth / m.value_head_dim, m, "value_head_dim",
          fmt::format("heads x value_head_dim of at most {}", kMostWidth));
}

void complete_attention(const nlohmann::json& own, Model& m) {
  require(m.heads >= 1, m, "heads", "at least 1");
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  require(m.heads % m.kv_heads == 0, m, "kv_heads", fmt::format("a divisor of the {} attention heads", m.heads));
  const bool latent = m.attention == AttentionKind::latent;
  if (latent) {
    complete_latent_attention(m);
  } else {
    refuse_set(own, {"query_lora_rank", "kv_lora_rank", "rope_head_dim", "nope_head_dim", "value_head_dim"},
               "unless attention is latent");
    if (m.head_dim == 0) {
      require(m.hidden % m.heads == 0, m, "heads",
              fmt::format("a divisor of hidden = {}, or an explicit head_dim", m.hidden));
      m.head_dim = m.hidden / m.heads;
    }
  }
  require(m.heads <= kMostWidth / m.head_dim, m, "head_dim", fmt::format("heads x head_dim of at most {}", kMostWidth));
  require(m.positions != Positions::rotary || (latent ? m.rope_head_dim : m.head_dim) % 2 == 0, m,
          latent ? "rope_head_dim" : "head_dim", "an even number: rotary positions turn pairs");
  require(!m.qk_norm_across_heads || m.qk_norm, m, "qk_norm_across_heads", "false without qk_norm");
}

void complete_norms(const Model& m) {
  require(!m.post_norm || !m.parallel_block, m, "post_norm", "false in a parallel block");
  require(!m.post_norm || !m.output_norm, m, "output_norm", "false with post_norm");
  require(!m.post_norm || m.input_norm, m, "input_norm", "true (the default) with post_norm");
  require(m.input_norm || m.output_norm, m, "input_norm", "true unless output_norm is true");
  require(!m.parallel_norms || m.parallel_block, m, "parallel_norms", "false without parallel_block");
  require(!m.parallel_block || !m.output_norm, m, "output_norm", "false in a parallel block");
  require(!m.parallel_block || m.kind == ModelKind::decoder, m, "parallel_block", "false except in a decoder");
}

void complete_text(const nlohmann::json& own, Model& m) {
  require(m.vocab >= 1, m, "vocab", "at least 1");
  refuse_set(own, {"image_size", "patch_size", "classes"}, "in a text model");
  if (m.positions == Positions::learned) {
    require(m.max_positions >= 1, m, "max_positions", "at least 1 for learned positions");
  } else {
    refuse_set(own, {"extra_positions"}, "without learned positions");
  }
  if (m.positions == Positions::relative) {
    require((m.relative_buckets >= 1) != m.relative_projection, m, "relative_buckets",
            "at least 1 for relative positions (T5: 32), or relative_projection instead");
  } else {
    refuse_set(own, {"relative_projection", "relative_buckets"}, "without relative positions");
  }
  if (m.positions != Positions::rotary) refuse_set(own, {"scaled_rotary"}, "without rotary positions");
  if (!m.gated()) refuse_set(own, {"clamped_activation"}, "without a gated activation function");
  if (m.sliding_window == 0) refuse_set(own, {"full_attention_period"}, "without a sliding_window");
  if (m.kind != ModelKind::encoder) refuse_set(own, {"token_types", "pooler"}, "except in an encoder");
  if (m.kind == ModelKind::encoder_decoder) {
    if (m.decoder_layers == 0) m.decoder_layers = m.layers;
    refuse_set(own, {"sliding_window"}, "in an encoder-decoder model");
  } else {
    refuse_set(own, {"decoder_layers"}, "except in an encoder-decoder model");
  }
}

void complete_prediction(const Model& m) {
  if (m.mtp_num_layers == 0) return;
  require(m.kind == ModelKind::decoder, m, "mtp_num_layers", "nothing except in a decoder");
  require(!m.post_norm, m, "post_norm", "false with mtp_num_layers");
  require(m.positions != Positions::learned, m, "mtp_num_layers", "0 with learned positions");
}

// Refuses fields that have no meaning with routers other than top-k.
void complete_router(const nlohmann::json& own, const Model& m) {
  if (m.router_type == RouterType::top_k) return;
  const std::string with = fmt::format("with router_type \"{}\"", kRouters[static_cast<std::size_t>(m.router_type)]);
  const bool hash = m.router_type == RouterType::hash;
  refuse_set(own, {"router_groups", "router_score_bias", "router_noise"}, with);
  refuse_set(own, {"moe_aux_loss_coeff"}, with + (hash ? ", which learns nothing" : ", which balances by itself"));
  if (m.router_type == RouterType::expert_choice) {
    require(m.router_score == RouterScore::softmax || m.router_score == RouterScore::sigmoid, m, "router_score",
            fmt::format("\"softmax\" or \"sigmoid\" {}: tokens have no chosen experts to sum over", with));
    return;
  }
  require(m.experts_per_token == 1, m, "experts_per_token", "1 " + with);
  if (!hash) return;
  refuse_set(own, {"router_bias", "router_score", "router_scale"}, with);
  refuse_set(own, {"moe_z_loss_coeff"}, with + ", which has no logits");
}

void complete_experts(const nlohmann::json& own, Model& m) {
  if (m.experts == 0) {
    refuse_set(own,
               {"experts_per_token", "expert_ffn", "shared_expert_ffn", "dense_layers", "router_groups",
                "router_best_groups", "expert_period", "shared_expert_gate", "router_bias", "router_score_bias",
                "router_noise", "expert_bias", "router_score", "router_scale", "moe_aux_loss_coeff", "moe_z_loss_coeff",
                "moe_router_load_balancing_type", "router_type"},
               "without experts");
    return;
  }
  require(m.kind == ModelKind::decoder, m, "experts", "nothing except in a decoder");
  require(!m.parallel_block, m, "parallel_block", "false with experts");
  require(m.experts_per_token >= 1 && m.experts_per_token <= m.experts, m, "experts_per_token",
          fmt::format("from 1 to the {} experts", m.experts));
  if (m.expert_ffn == 0) m.expert_ffn = m.ffn;
  require(m.dense_layers < m.layers, m, "dense_layers",
          fmt::format("less than the {} layers: the others have experts", m.layers));
  require(m.expert_period <= m.layers - m.dense_layers, m, "expert_period",
          fmt::format("at most the {} layers after the dense ones", m.layers - m.dense_layers));
  require(!m.shared_expert_gate || m.shared_expert_ffn > 0, m, "shared_expert_gate", "false without shared_expert_ffn");
  complete_router(own, m);
  require((m.router_groups == 0) == (m.router_best_groups == 0), m, "router_best_groups",
          m.router_groups == 0 ? "nothing without router_groups" : "at least 1 of the router_groups");
  if (m.router_groups == 0) return;
  require(m.experts % m.router_groups == 0, m, "router_groups", fmt::format("a divisor of the {} experts", m.experts));
  require(m.router_best_groups <= m.router_groups, m, "router_best_groups",
          fmt::format("at most the {} router_groups", m.router_groups));
  const std::int64_t in_best_groups = m.router_best_groups * (m.experts / m.router_groups);
  require(m.experts_per_token <= in_best_groups, m, "experts_per_token",
          fmt::format("at most the {} experts of router_best_groups groups", in_best_groups));
}

void complete_image(const nlohmann::json& own, Model& m) {
  require(m.image_size >= 1, m, "image_size", "at least 1");
  require(m.patch_size >= 1, m, "patch_size", "at least 1");
  require(m.image_size % m.patch_size == 0, m, "patch_size", fmt::format("a divisor of image_size = {}", m.image_size));
  require(m.classes >= 1, m, "classes", "at least 1");
  refuse_set(own,
             {"vocab", "decoder_layers", "sliding_window", "token_types", "relative_buckets", "relative_projection",
              "parallel_block"},
             "in a vision model");
  require(!m.gated(), m, "activation", "gelu, relu or quick_gelu in a vision model");
}

void complete_vit(Model& m) {
  require(m.positions == Positions::learned, m, "positions", "learned for a ViT");
  const std::int64_t side = m.image_size / m.patch_size;
  const std::int64_t sequence = side * side + 1;  // the class token
  require(m.max_positions == 0 || m.max_positions == sequence, m, "max_positions",
          fmt::format("the {} patches and class token of the image, or nothing", sequence));
  m.max_positions = sequence;
}

void complete_swin(Model& m) {
  require(!m.stage_layers.empty(), m, "stage_layers", "the layers of each stage");
  require(m.stage_heads.size() == m.stage_layers.size(), m, "stage_heads",
          fmt::format("as many values as the {} stages of stage_layers", m.stage_layers.size()));
  require(m.window >= 1, m, "window", "at least 1");
  const std::int64_t layers = m.total_layers();
  require(m.layers == 0 || m.layers == layers, m, "layers",
          fmt::format("the sum of stage_layers, {}, or nothing", layers));
  require(layers <= kMostLayers, m, "stage_layers", fmt::format("at most {} layers", kMostLayers));
  m.layers = layers;

  std::int64_t width = m.hidden, side = m.image_size / m.patch_size;
  for (std::size_t stage = 0; stage < m.stage_layers.size(); ++stage) {
    if (stage > 0) {
      require(
          side % 2 == 0, m, "image_size",
          fmt::format("a multiple of patch_size x 2^{}: each stage halves the feature map", m.stage_layers.size() - 1));
      side /= 2;
      width *= 2;
      require(width <= kMostWidth, m, "hidden", fmt::format("a last stage of at most {} channels", kMostWidth));
    }
    if (width % m.stage_heads[stage] != 0)
      throw InputError({.file = {}, .pointer = fmt::format("/stage_heads/{}", stage)},
                       std::to_string(m.stage_heads[stage]),
                       fmt::format("a divisor of the {} channels of stage {}", width, stage + 1));
    require(side <= m.window || side % m.window == 0, m, "window",
            fmt::format("a divisor of the feature map's side, {} in stage {}", side, stage + 1));
  }
  // The scalar fields describe the first stage.
  require(m.heads == 0 || m.heads == m.stage_heads[0], m, "heads", "the heads of the first stage, or nothing");
  m.heads = m.stage_heads[0];
  require(m.ffn % m.hidden == 0, m, "ffn", "a multiple of hidden: the ratio holds in every stage");
  require(m.ffn / m.hidden <= kMostWidth / width, m, "ffn",
          fmt::format("an MLP of the last stage of at most {}", kMostWidth));
  require(m.positions == Positions::relative, m, "positions", "relative for a Swin Transformer");
  require(!m.post_norm, m, "post_norm", "false for a Swin Transformer (v2: input_norm false, output_norm true)");
}

}  // namespace

void Model::complete() {
  const nlohmann::json own = json_of_fields(*this);
  require(hidden >= 1, *this, "hidden", "at least 1");
  if (ffn == 0) ffn = 4 * hidden;
  require(ffn <= kMostWidth, *this, "ffn", fmt::format("at most {}", kMostWidth));
  require(dropout < 1, *this, "dropout", "less than 1");
  if (kind == ModelKind::swin) {
    complete_image(own, *this);
    complete_swin(*this);
  } else {
    require(layers >= 1, *this, "layers", "at least 1");
    refuse_set(own, {"stage_layers", "stage_heads", "cosine_attention"}, "except for a Swin Transformer");
    refuse_set(own, {"window"}, "except for a Swin Transformer (text models: sliding_window)");
    if (kind == ModelKind::vit) {
      complete_image(own, *this);
      complete_vit(*this);
    } else {
      complete_text(own, *this);
    }
  }
  complete_attention(own, *this);
  complete_norms(*this);
  complete_experts(own, *this);
  complete_prediction(*this);
  if (norm == NormKind::rmsnorm) norm_bias = false;
  if (name.empty()) name = "custom";
}

}  // namespace orrery
