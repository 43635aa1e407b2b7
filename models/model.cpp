#include "models/model.h"

#include <array>
#include <numeric>

#include "sim/base/error.h"

namespace orrery {
namespace {

constexpr std::array<std::string_view, 5> kKinds{"decoder", "encoder", "encoder_decoder", "vit", "swin"};
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

const std::span<const std::string_view> kModelKindNames = kKinds, kPositionsNames = kPositions, kNormKindNames = kNorms,
                                        kAttentionKindNames = kAttentions, kActivationNames = kActivations,
                                        kRouterScoreNames = kScores;

void Model::visit_fields(FieldVisitor& v) {
  v.field("name", name, "what reports call the model");
  v.field("source", source, "where the sizes were published");
  v.field("kind", kind, kKinds, "arrangement of the layers");
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
  v.field("positions", positions, kPositions, "how positions enter the model");
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

using std::to_string;

[[noreturn]] void fail(const char* field, std::string found, std::string expected) {
  throw InputError({.file = {}, .pointer = std::string("/") + field}, std::move(found), std::move(expected));
}

std::string quoted(std::string_view name) { return '"' + std::string(name) + '"'; }

void require(bool holds, const char* field, std::int64_t found, std::string expected) {
  if (!holds) fail(field, to_string(found), std::move(expected));
}

void complete_attention(Model& m) {
  require(m.heads >= 1, "heads", m.heads, "at least 1");
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  require(m.heads % m.kv_heads == 0, "kv_heads", m.kv_heads,
          "a divisor of the " + to_string(m.heads) + " attention heads");

  if (m.attention == AttentionKind::latent) {
    require(m.kv_lora_rank >= 1, "kv_lora_rank", m.kv_lora_rank, "at least 1 for latent attention");
    require(m.rope_head_dim >= 1, "rope_head_dim", m.rope_head_dim, "at least 1 for latent attention");
    require(m.nope_head_dim >= 1, "nope_head_dim", m.nope_head_dim, "at least 1 for latent attention");
    require(m.value_head_dim >= 1, "value_head_dim", m.value_head_dim, "at least 1 for latent attention");
    require(m.kv_heads == m.heads, "kv_heads", m.kv_heads,
            "the " + to_string(m.heads) + " attention heads: latent attention expands keys and values for each");
    require(
        m.head_dim == 0 || m.head_dim == m.nope_head_dim + m.rope_head_dim, "head_dim", m.head_dim,
        "nope_head_dim + rope_head_dim = " + to_string(m.nope_head_dim + m.rope_head_dim) + " for latent attention");
    if (m.qkv_bias) fail("qkv_bias", "true", "false for latent attention");
    if (m.kind != ModelKind::decoder) fail("attention", "latent", "multi_head except in a decoder");
    if (m.qk_norm) fail("qk_norm", "true", "false for latent attention, which norms its latents");
    if (m.positions != Positions::rotary) {
      fail("positions", std::string(kPositions[static_cast<std::size_t>(m.positions)]), "rotary for latent attention");
    }
    m.head_dim = m.nope_head_dim + m.rope_head_dim;
    require(m.heads <= kMostWidth / m.value_head_dim, "value_head_dim", m.value_head_dim,
            "heads x value_head_dim of at most " + to_string(kMostWidth));
  } else {
    for (const auto& [field, value] : {std::pair{"query_lora_rank", m.query_lora_rank},
                                       {"kv_lora_rank", m.kv_lora_rank},
                                       {"rope_head_dim", m.rope_head_dim},
                                       {"nope_head_dim", m.nope_head_dim},
                                       {"value_head_dim", m.value_head_dim}}) {
      require(value == 0, field, value, "nothing unless attention is latent");
    }
    if (m.head_dim == 0) {
      require(m.hidden % m.heads == 0, "heads", m.heads,
              "a divisor of hidden = " + to_string(m.hidden) + ", or an explicit head_dim");
      m.head_dim = m.hidden / m.heads;
    }
  }
  require(m.heads <= kMostWidth / m.head_dim, "head_dim", m.head_dim,
          "heads x head_dim of at most " + to_string(kMostWidth));
  if (m.positions == Positions::rotary) {
    const bool latent = m.attention == AttentionKind::latent;
    const std::int64_t rotated = latent ? m.rope_head_dim : m.head_dim;
    require(rotated % 2 == 0, latent ? "rope_head_dim" : "head_dim", rotated,
            "an even number: rotary positions turn pairs");
  }
  if (m.qk_norm_across_heads && !m.qk_norm) fail("qk_norm_across_heads", "true", "false without qk_norm");
}

void complete_norms(const Model& m) {
  if (m.post_norm && m.parallel_block) fail("post_norm", "true", "false in a parallel block");
  if (m.post_norm && m.output_norm) fail("output_norm", "true", "false with post_norm");
  if (m.post_norm && !m.input_norm) fail("input_norm", "false", "true (the default) with post_norm");
  if (!m.input_norm && !m.output_norm) fail("input_norm", "false", "true unless output_norm is true");
  if (m.parallel_norms && !m.parallel_block) fail("parallel_norms", "true", "false without parallel_block");
  if (m.parallel_block && m.output_norm) fail("output_norm", "true", "false in a parallel block");
  if (m.parallel_block && m.kind != ModelKind::decoder) fail("parallel_block", "true", "false except in a decoder");
}

void complete_text(Model& m) {
  require(m.vocab >= 1, "vocab", m.vocab, "at least 1");
  require(m.image_size == 0, "image_size", m.image_size, "nothing in a text model");
  require(m.patch_size == 0, "patch_size", m.patch_size, "nothing in a text model");
  require(m.classes == 0, "classes", m.classes, "nothing in a text model");
  if (m.positions == Positions::learned) {
    require(m.max_positions >= 1, "max_positions", m.max_positions, "at least 1 for learned positions");
  } else {
    require(m.extra_positions == 0, "extra_positions", m.extra_positions, "nothing without learned positions");
  }
  if (m.positions == Positions::relative) {
    require((m.relative_buckets >= 1) != m.relative_projection, "relative_buckets", m.relative_buckets,
            "at least 1 for relative positions (T5: 32), or relative_projection instead");
  } else {
    if (m.relative_projection) fail("relative_projection", "true", "false without relative positions");
    require(m.relative_buckets == 0, "relative_buckets", m.relative_buckets, "nothing without relative positions");
  }
  if (m.full_attention_period > 0) {
    require(m.sliding_window > 0, "full_attention_period", m.full_attention_period, "nothing without a sliding_window");
  }
  if (m.kind != ModelKind::encoder) {
    require(m.token_types == 0, "token_types", m.token_types, "nothing except in an encoder");
    if (m.pooler) fail("pooler", "true", "false except in an encoder");
  }
  if (m.kind == ModelKind::encoder_decoder) {
    if (m.decoder_layers == 0) m.decoder_layers = m.layers;
    require(m.sliding_window == 0, "sliding_window", m.sliding_window, "nothing in an encoder-decoder model");
  } else {
    require(m.decoder_layers == 0, "decoder_layers", m.decoder_layers, "nothing except in an encoder-decoder model");
  }
}

void complete_prediction(const Model& m) {
  if (m.mtp_num_layers == 0) return;
  if (m.kind != ModelKind::decoder) fail("mtp_num_layers", to_string(m.mtp_num_layers), "nothing except in a decoder");
  if (m.post_norm) fail("post_norm", "true", "false with mtp_num_layers");
  if (m.positions == Positions::learned)
    fail("mtp_num_layers", to_string(m.mtp_num_layers), "0 with learned positions");
}

// Refuses fields that have no meaning with routers other than top-k.
void complete_router(const Model& m) {
  if (m.router_type == RouterType::top_k) return;
  const std::string with = " with router_type " + quoted(kRouters[static_cast<std::size_t>(m.router_type)]);
  const bool hash = m.router_type == RouterType::hash;
  require(m.router_groups == 0, "router_groups", m.router_groups, "0" + with);
  for (const auto& [field, value] :
       {std::pair{"router_score_bias", m.router_score_bias}, {"router_noise", m.router_noise}})
    if (value) fail(field, "true", "false" + with);
  if (m.aux_loss != 0)
    fail("moe_aux_loss_coeff", "a factor",
         "0" + with + (hash ? ", which learns nothing" : ", which balances by itself"));
  if (m.router_type == RouterType::expert_choice) {
    if (m.router_score != RouterScore::softmax && m.router_score != RouterScore::sigmoid)
      fail("router_score", quoted(kScores[static_cast<std::size_t>(m.router_score)]),
           "\"softmax\" or \"sigmoid\"" + with + ": tokens have no chosen experts to sum over");
    return;
  }
  require(m.experts_per_token == 1, "experts_per_token", m.experts_per_token, "1" + with);
  if (!hash) return;
  if (m.router_bias) fail("router_bias", "true", "false" + with);
  if (m.router_score != RouterScore::softmax)
    fail("router_score", quoted(kScores[static_cast<std::size_t>(m.router_score)]), "nothing" + with);
  if (m.router_scale != 1) fail("router_scale", "a factor", "1" + with);
  if (m.z_loss != 0) fail("moe_z_loss_coeff", "a factor", "0" + with + ", which has no logits");
}

void complete_experts(Model& m) {
  if (m.experts == 0) {
    for (const auto& [field, value] : {std::pair{"experts_per_token", m.experts_per_token},
                                       {"expert_ffn", m.expert_ffn},
                                       {"shared_expert_ffn", m.shared_expert_ffn},
                                       {"dense_layers", m.dense_layers},
                                       {"router_groups", m.router_groups},
                                       {"router_best_groups", m.router_best_groups}})
      require(value == 0, field, value, "nothing without experts");
    require(m.expert_period == 1, "expert_period", m.expert_period, "nothing without experts");
    for (const auto& [field, value] : {std::pair{"shared_expert_gate", m.shared_expert_gate},
                                       {"router_bias", m.router_bias},
                                       {"router_score_bias", m.router_score_bias},
                                       {"router_noise", m.router_noise},
                                       {"expert_bias", m.expert_bias}})
      if (value) fail(field, "true", "false without experts");
    if (m.router_score != RouterScore::softmax)
      fail("router_score", std::string(kScores[static_cast<std::size_t>(m.router_score)]), "nothing without experts");
    if (m.router_scale != 1) fail("router_scale", "a factor", "nothing without experts");
    if (m.aux_loss != 0) fail("moe_aux_loss_coeff", "a factor", "0 without experts");
    if (m.z_loss != 0) fail("moe_z_loss_coeff", "a factor", "0 without experts");
    if (m.load_balancing != LoadBalancing::aux_loss)
      fail("moe_router_load_balancing_type", quoted(kLoadBalancings[static_cast<std::size_t>(m.load_balancing)]),
           "nothing without experts");
    if (m.router_type != RouterType::top_k)
      fail("router_type", quoted(kRouters[static_cast<std::size_t>(m.router_type)]), "nothing without experts");
    return;
  }
  if (m.kind != ModelKind::decoder) fail("experts", to_string(m.experts), "nothing except in a decoder");
  if (m.parallel_block) fail("parallel_block", "true", "false with experts");
  require(m.experts_per_token >= 1 && m.experts_per_token <= m.experts, "experts_per_token", m.experts_per_token,
          "from 1 to the " + to_string(m.experts) + " experts");
  if (m.expert_ffn == 0) m.expert_ffn = m.ffn;
  require(m.dense_layers < m.layers, "dense_layers", m.dense_layers,
          "less than the " + to_string(m.layers) + " layers: the others have experts");
  require(m.expert_period <= m.layers - m.dense_layers, "expert_period", m.expert_period,
          "at most the " + to_string(m.layers - m.dense_layers) + " layers after the dense ones");
  if (m.shared_expert_gate && m.shared_expert_ffn == 0)
    fail("shared_expert_gate", "true", "false without shared_expert_ffn");
  complete_router(m);
  require((m.router_groups == 0) == (m.router_best_groups == 0), "router_best_groups", m.router_best_groups,
          m.router_groups == 0 ? "nothing without router_groups" : "at least 1 of the router_groups");
  if (m.router_groups == 0) return;
  require(m.experts % m.router_groups == 0, "router_groups", m.router_groups,
          "a divisor of the " + to_string(m.experts) + " experts");
  require(m.router_best_groups <= m.router_groups, "router_best_groups", m.router_best_groups,
          "at most the " + to_string(m.router_groups) + " router_groups");
  require(m.experts_per_token <= m.router_best_groups * (m.experts / m.router_groups), "experts_per_token",
          m.experts_per_token,
          "at most the " + to_string(m.router_best_groups * (m.experts / m.router_groups)) +
              " experts of router_best_groups groups");
}

void complete_image(Model& m) {
  require(m.image_size >= 1, "image_size", m.image_size, "at least 1");
  require(m.patch_size >= 1, "patch_size", m.patch_size, "at least 1");
  require(m.image_size % m.patch_size == 0, "patch_size", m.patch_size,
          "a divisor of image_size = " + to_string(m.image_size));
  require(m.classes >= 1, "classes", m.classes, "at least 1");
  require(m.vocab == 0, "vocab", m.vocab, "nothing in a vision model");
  require(m.decoder_layers == 0, "decoder_layers", m.decoder_layers, "nothing in a vision model");
  require(m.sliding_window == 0, "sliding_window", m.sliding_window, "nothing in a vision model");
  require(m.token_types == 0, "token_types", m.token_types, "nothing in a vision model");
  require(m.relative_buckets == 0, "relative_buckets", m.relative_buckets, "nothing in a vision model");
  if (m.relative_projection) fail("relative_projection", "true", "false in a vision model");
  if (m.parallel_block) fail("parallel_block", "true", "false in a vision model");
  if (m.gated()) {
    fail("activation", std::string(kActivations[static_cast<std::size_t>(m.activation)]),
         "gelu, relu or quick_gelu in a vision model");
  }
}

void complete_vit(Model& m) {
  if (m.positions != Positions::learned) {
    fail("positions", std::string(kPositions[static_cast<std::size_t>(m.positions)]), "learned for a ViT");
  }
  const std::int64_t side = m.image_size / m.patch_size;
  const std::int64_t sequence = side * side + 1;  // the class token
  require(m.max_positions == 0 || m.max_positions == sequence, "max_positions", m.max_positions,
          "the " + to_string(sequence) + " patches and class token of the image, or nothing");
  m.max_positions = sequence;
}

void complete_swin(Model& m) {
  require(!m.stage_layers.empty(), "stage_layers", 0, "the layers of each stage");
  require(m.stage_heads.size() == m.stage_layers.size(), "stage_heads", static_cast<std::int64_t>(m.stage_heads.size()),
          "as many values as the " + to_string(m.stage_layers.size()) + " stages of stage_layers");
  require(m.window >= 1, "window", m.window, "at least 1");
  const std::int64_t layers = std::accumulate(m.stage_layers.begin(), m.stage_layers.end(), std::int64_t{0});
  require(m.layers == 0 || m.layers == layers, "layers", m.layers,
          "the sum of stage_layers, " + to_string(layers) + ", or nothing");
  require(layers <= kMostLayers, "stage_layers", layers, "at most " + to_string(kMostLayers) + " layers");
  m.layers = layers;

  std::int64_t width = m.hidden, side = m.image_size / m.patch_size;
  for (std::size_t stage = 0; stage < m.stage_layers.size(); ++stage) {
    if (stage > 0) {
      require(side % 2 == 0, "image_size", m.image_size,
              "a multiple of patch_size x 2^" + to_string(m.stage_layers.size() - 1) +
                  ": each stage halves the feature map");
      side /= 2;
      width *= 2;
      require(width <= kMostWidth, "hidden", m.hidden,
              "a last stage of at most " + to_string(kMostWidth) + " channels");
    }
    require(width % m.stage_heads[stage] == 0, "stage_heads", m.stage_heads[stage],
            "a divisor of the " + to_string(width) + " channels of stage " + to_string(stage + 1));
    require(side <= m.window || side % m.window == 0, "window", m.window,
            "a divisor of the feature map's side, " + to_string(side) + " in stage " + to_string(stage + 1));
  }
  // The scalar fields describe the first stage.
  require(m.heads == 0 || m.heads == m.stage_heads[0], "heads", m.heads, "the heads of the first stage, or nothing");
  m.heads = m.stage_heads[0];
  require(m.ffn % m.hidden == 0, "ffn", m.ffn, "a multiple of hidden: the ratio holds in every stage");
  require(m.ffn / m.hidden <= kMostWidth / width, "ffn", m.ffn,
          "an MLP of the last stage of at most " + to_string(kMostWidth));
  if (m.positions != Positions::relative) {
    fail("positions", std::string(kPositions[static_cast<std::size_t>(m.positions)]),
         "relative for a Swin Transformer");
  }
  if (m.post_norm) fail("post_norm", "true", "false for a Swin Transformer (v2: input_norm false, output_norm true)");
}

}  // namespace

void Model::complete() {
  require(hidden >= 1, "hidden", hidden, "at least 1");
  if (ffn == 0) ffn = 4 * hidden;
  require(ffn <= kMostWidth, "ffn", ffn, "at most " + to_string(kMostWidth));
  if (!(dropout < 1)) fail("dropout", "1", "less than 1");
  if (kind == ModelKind::swin) {
    complete_image(*this);
    complete_swin(*this);
  } else {
    require(layers >= 1, "layers", layers, "at least 1");
    require(stage_layers.empty(), "stage_layers", static_cast<std::int64_t>(stage_layers.size()),
            "nothing except for a Swin Transformer");
    require(stage_heads.empty(), "stage_heads", static_cast<std::int64_t>(stage_heads.size()),
            "nothing except for a Swin Transformer");
    require(window == 0, "window", window, "nothing except for a Swin Transformer (text models: sliding_window)");
    if (cosine_attention) fail("cosine_attention", "true", "false except for a Swin Transformer");
    if (kind == ModelKind::vit) {
      complete_image(*this);
      complete_vit(*this);
    } else {
      complete_text(*this);
    }
  }
  complete_attention(*this);
  complete_norms(*this);
  complete_experts(*this);
  complete_prediction(*this);
  if (norm == NormKind::rmsnorm) norm_bias = false;
  if (name.empty()) name = "custom";
}

}  // namespace orrery
