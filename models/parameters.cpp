// Parameter counts, term by term as the layers are built.
#include "models/model.h"

namespace orrery {
namespace {

std::int64_t norm_parameters(const Model& m, std::int64_t width) {
  return m.norm == NormKind::layernorm && m.norm_bias ? 2 * width : width;
}

// A linear layer.
std::int64_t linear(std::int64_t in, std::int64_t out, bool bias) { return in * out + (bias ? out : 0); }

std::int64_t attention_parameters(const Model& m) {
  const std::int64_t h = m.hidden;
  if (m.attention == AttentionKind::latent) {  // DeepSeek-V2, arXiv 2405.04434 section 2.1; the latents are normed
    const std::int64_t query_out = m.heads * (m.nope_head_dim + m.rope_head_dim);
    const std::int64_t query = m.query_lora_rank > 0
                                   ? h * m.query_lora_rank + m.query_lora_rank + m.query_lora_rank * query_out
                                   : h * query_out;
    const std::int64_t kv = h * (m.kv_lora_rank + m.rope_head_dim) + m.kv_lora_rank +
                            m.kv_lora_rank * m.heads * (m.nope_head_dim + m.value_head_dim);
    return query + kv + linear(m.heads * m.value_head_dim, h, m.output_bias);
  }
  const std::int64_t query_width = m.heads * m.head_dim, kv_width = m.effective_kv_heads() * m.head_dim;
  std::int64_t sum = linear(h, query_width + 2 * kv_width, m.qkv_bias) + linear(query_width, h, m.output_bias);
  // The query and key norms are of the model's kind but never have biases.
  // Transformer-XL (arXiv 1901.02860, section 3.3): W_kR and the vectors u and v of each head.
  if (m.relative_projection) sum += h * query_width + 2 * query_width;
  if (m.qk_norm) sum += m.qk_norm_across_heads ? query_width + kv_width : 2 * m.head_dim;
  return sum;
}

std::int64_t mlp_parameters(const Model& m, std::int64_t h, std::int64_t ffn) {
  return linear(h, m.gated() ? 2 * ffn : ffn, m.linear_bias) + linear(ffn, h, m.linear_bias);
}

// Norms of a layer with `blocks` blocks (attention, cross attention, MLP).
std::int64_t layer_norms(const Model& m, std::int64_t blocks) {
  if (m.post_norm) return blocks;
  if (m.parallel_block) return m.parallel_norms ? blocks : 1;
  return (m.input_norm ? blocks : 0) + (m.output_norm ? blocks : 0);
}

std::int64_t layer_parameters(const Model& m, bool cross_attention) {
  return (cross_attention ? 2 : 1) * attention_parameters(m) + mlp_parameters(m, m.hidden, m.ffn) +
         layer_norms(m, cross_attention ? 3 : 2) * norm_parameters(m, m.hidden);
}

// Parameters of a layer's `routed` experts and what belongs to them, which replace an MLP. A bias on scores (Wang et
// al. 2024, arXiv 2408.15664) is not updated by gradients and is not a parameter.
std::int64_t expert_parameters(const Model& m, std::int64_t routed) {
  const std::int64_t h = m.hidden;
  return (m.router_type == RouterType::hash ? 0 : linear(h, m.experts, m.router_bias)) +
         (m.router_noise ? h * m.experts : 0) + routed * routed_expert_parameters(m) +
         (m.shared_expert_ffn > 0 ? mlp_parameters(m, h, m.shared_expert_ffn) : 0) + (m.shared_expert_gate ? h : 0);
}

// What a decoder whose layers have `routed` experts each has beyond one with MLPs.
std::int64_t more_with_experts(const Model& m, std::int64_t routed) {
  return m.expert_layers() * (expert_parameters(m, routed) - mlp_parameters(m, m.hidden, m.ffn));
}

std::int64_t embedding_parameters(const Model& m) {
  std::int64_t rows = m.vocab + m.token_types;
  if (m.positions == Positions::learned) rows += m.max_positions + m.extra_positions;
  return rows * m.hidden + (m.embedding_norm ? norm_parameters(m, m.hidden) : 0);
}

std::int64_t final_norm_parameters(const Model& m) { return m.post_norm ? 0 : norm_parameters(m, m.hidden); }

std::int64_t head_parameters(const Model& m) {
  return (m.tied_embeddings ? 0 : m.vocab * m.hidden) + (m.head_bias ? m.vocab : 0);
}

std::int64_t stack_parameters(const Model& m, std::int64_t layers, bool cross_attention) {
  const std::int64_t relative_bias = m.relative_buckets * m.heads;  // shared by the layers of the stack (T5)
  return layers * layer_parameters(m, cross_attention) + relative_bias + final_norm_parameters(m);
}

// The multi-token prediction module, with `routed` experts; it shares the model's table and head (DeepSeek-V3, arXiv
// 2412.19437, eq. 21 to 24).
std::int64_t prediction_parameters(const Model& m, std::int64_t routed) {
  if (m.mtp_num_layers == 0) return 0;
  const std::int64_t experts =
      m.mtp_has_experts() ? expert_parameters(m, routed) - mlp_parameters(m, m.hidden, m.ffn) : 0;
  return 3 * norm_parameters(m, m.hidden) + 2 * m.hidden * m.hidden + layer_parameters(m, false) + experts;
}

std::int64_t encoder_head_parameters(const Model& m) {
  const std::int64_t transform = linear(m.hidden, m.hidden, m.linear_bias) + norm_parameters(m, m.hidden);
  const std::int64_t pooler =
      m.pooler ? linear(m.hidden, m.hidden, m.linear_bias) + linear(m.hidden, 2, m.linear_bias) : 0;
  return transform + pooler + head_parameters(m);
}

std::int64_t patch_embedding_parameters(const Model& m) {
  return linear(m.channels * m.patch_size * m.patch_size, m.hidden, true);
}

std::int64_t vit_parameters(const Model& m) {
  const std::int64_t class_token = m.hidden, positions = m.max_positions * m.hidden;
  return patch_embedding_parameters(m) + class_token + positions + m.layers * layer_parameters(m, false) +
         final_norm_parameters(m) + linear(m.hidden, m.classes, true);
}

// Relative position bias of one Swin layer. v1: a table (arXiv 2103.14030, eq. 4). v2: an MLP over log-spaced
// coordinates, 2 -> 512 -> heads, and a logit scale per head (arXiv 2111.09883, section 3.3 and the authors' code).
std::int64_t swin_position_parameters(const Model& m, std::int64_t heads) {
  if (!m.cosine_attention) return (2 * m.window - 1) * (2 * m.window - 1) * heads;
  constexpr std::int64_t kBiasNetworkWidth = 512;
  return linear(2, kBiasNetworkWidth, true) + linear(kBiasNetworkWidth, heads, false) + heads;
}

std::int64_t swin_parameters(const Model& m) {
  std::int64_t sum = patch_embedding_parameters(m) + norm_parameters(m, m.hidden);
  std::int64_t width = m.hidden;
  for (std::size_t stage = 0; stage < m.stage_layers.size(); ++stage) {
    if (stage > 0) {
      // Patch merging: 2x2 neighbours become one of twice the channels; v1 norms the 4C input, v2 the 2C output.
      sum += linear(4 * width, 2 * width, false) + norm_parameters(m, m.cosine_attention ? 2 * width : 4 * width);
      width *= 2;
    }
    const std::int64_t key_bias = m.cosine_attention ? width : 0;  // v2: keys have no bias
    const std::int64_t attention = linear(width, 3 * width, m.qkv_bias) - (m.qkv_bias ? key_bias : 0) +
                                   linear(width, width, m.output_bias) +
                                   swin_position_parameters(m, m.stage_heads[stage]);
    sum += m.stage_layers[stage] * (attention + mlp_parameters(m, width, m.ffn / m.hidden * width) +
                                    layer_norms(m, 2) * norm_parameters(m, width));
  }
  return sum + norm_parameters(m, width) + linear(width, m.classes, true);
}

}  // namespace

std::int64_t routed_expert_parameters(const Model& m) {
  return linear(m.hidden, m.gated() ? 2 * m.expert_ffn : m.expert_ffn, m.expert_bias) +
         linear(m.expert_ffn, m.hidden, m.expert_bias);
}

std::int64_t active_parameters(const Model& m) {
  return parameters(m) - more_with_experts(m, m.experts) + more_with_experts(m, m.experts_per_token) -
         prediction_parameters(m, m.experts) + prediction_parameters(m, m.experts_per_token);
}

std::int64_t parameters(const Model& m) {
  switch (m.kind) {
    case ModelKind::decoder:
      return embedding_parameters(m) + stack_parameters(m, m.layers, false) + more_with_experts(m, m.experts) +
             head_parameters(m) + prediction_parameters(m, m.experts);
    case ModelKind::encoder:
      return embedding_parameters(m) + stack_parameters(m, m.layers, false) + encoder_head_parameters(m);
    case ModelKind::encoder_decoder:
      return embedding_parameters(m) + stack_parameters(m, m.layers, false) +
             stack_parameters(m, m.decoder_layers, true) + head_parameters(m);
    case ModelKind::vit:
      return vit_parameters(m);
    case ModelKind::swin:
      return swin_parameters(m);
  }
  return 0;
}

}  // namespace orrery
