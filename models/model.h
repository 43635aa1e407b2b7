// A model's architecture, as a `config.json` describes it. Sizes are numbers of elements.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/fields.h"
#include "sim/program/op.h"

namespace orrery {

enum class ModelKind : std::uint8_t { decoder, encoder, encoder_decoder, vit, swin };
inline constexpr std::array<std::string_view, 5> kModelKindNames{"decoder", "encoder", "encoder_decoder", "vit",
                                                                 "swin"};
enum class Positions : std::uint8_t { learned, rotary, relative, alibi, none };
enum class NormKind : std::uint8_t { layernorm, rmsnorm };
enum class AttentionKind : std::uint8_t { multi_head, latent };  // latent: DeepSeek's MLA (arXiv 2405.04434)

// The tokens whose loads a load-balancing loss compares: those of a micro-batch (Switch, GShard), of each sequence
// (DeepSeek-V3), or of all replicas together.
enum class LoadBalancing : std::uint8_t { aux_loss, seq_aux_loss, global_aux_loss };

struct Model {
  std::string name;
  std::string source;
  ModelKind kind = ModelKind::decoder;
  std::int64_t layers = 0;          // encoder-decoder: layers of the encoder
  std::int64_t decoder_layers = 0;  // encoder-decoder only; 0: as layers
  std::int64_t hidden = 0;          // Swin: channels of the first stage
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // 0: as heads (MHA); 1: MQA
  std::int64_t head_dim = 0;  // 0: hidden / heads
  std::int64_t ffn = 0;       // 0: 4 hidden
  ActivationFunction activation = ActivationFunction::gelu;
  bool clamped_activation = false;  // both halves of a gated MLP are clamped before its activation function (gpt-oss)
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;  // longest sequence trained on; learned positions: rows of the table
  Positions positions = Positions::learned;
  bool scaled_rotary = false;  // rotated queries and keys are also scaled (YaRN, arXiv 2309.00071, section 3.4)
  NormKind norm = NormKind::layernorm;
  bool tied_embeddings = true;
  bool linear_bias = true;            // biases of the MLP
  bool output_bias = true;            // bias of attention's output projection (GPT-J: none, though the MLP has them)
  bool qkv_bias = true;               // biases of the query, key and value projections (Qwen2: only here)
  bool norm_bias = true;              // layernorm only; MPT, PaLM: false
  bool head_bias = false;             // bias of the output head (BERT's MLM decoder, Phi-2, GPT-J)
  bool qk_norm = false;               // Qwen3: a norm on each head's query and key
  bool qk_norm_across_heads = false;  // OLMo 2: the query and key norms have a weight per element of all heads
  bool parallel_block = false;        // PaLM, GPT-J: attention and MLP read the same input
  bool parallel_norms = false;        // parallel_block: a norm each (GPT-NeoX, Falcon-40B), not one for both (PaLM)
  bool post_norm = false;             // BERT: norm(x + f(x)), and no norm after the last layer
  bool input_norm = true;             // x + f(norm(x)); false with output_norm: OLMo 2, Swin v2
  bool output_norm = false;           // x + norm(f(..)): Gemma 2 and 3 (with input_norm), OLMo 2, Swin v2
  bool embedding_norm = false;        // BLOOM, BERT: a norm after the embedding
  double dropout = 0;                 // hidden and attention dropout
  std::int64_t sliding_window = 0;    // 0: full attention
  std::int64_t full_attention_period = 0;  // sliding_window: every n-th layer attends to all; 0: no layer does
  std::int64_t extra_positions = 0;        // rows of the learned position table beyond max_positions (OPT, RoBERTa: 2)
  std::int64_t relative_buckets = 0;       // relative: rows of each stack's bias table (T5: 32)
  bool relative_projection = false;        // relative: Transformer-XL's projected encodings instead of a table (Gopher)
  std::int64_t token_types = 0;            // BERT: rows of the segment table
  bool pooler = false;                     // BERT: pooler and next-sentence classifier beside the MLM head

  AttentionKind attention = AttentionKind::multi_head;  // latent: the five below; query_lora_rank 0: full-rank queries
  std::int64_t query_lora_rank = 0, kv_lora_rank = 0, rope_head_dim = 0, nope_head_dim = 0, value_head_dim = 0;

  // Vision.
  std::int64_t image_size = 0, patch_size = 0, channels = 3, classes = 0;
  std::vector<std::int64_t> stage_layers;  // Swin: layers of each stage (hidden doubles from stage to stage)
  std::vector<std::int64_t> stage_heads;   // Swin
  std::int64_t window = 0;                 // Swin: side of the attention window, in patches
  bool cosine_attention = false;           // Swin v2: scaled cosine attention, continuous relative position bias

  // Mixture of experts; none: every layer has an MLP.
  std::int64_t experts = 0;            // routed experts of a layer
  std::int64_t experts_per_token = 0;  // routed experts that a token goes to
  std::int64_t expert_ffn = 0;         // 0: ffn
  // Width of the experts that all tokens go to, together; 0: there are none.
  std::int64_t shared_expert_ffn = 0;
  bool shared_expert_gate = false;  // shared experts' output is multiplied by a sigmoid of a projection (Qwen2-MoE)
  std::int64_t dense_layers = 0;    // the first layers have an MLP instead (DeepSeek)
  std::int64_t expert_period = 1;   // after dense_layers every n-th layer has experts, the others an MLP (Switch: 2)
  RouterType router_type = RouterType::top_k;
  RouterScore router_score = RouterScore::softmax;
  std::int64_t router_groups = 0, router_best_groups = 0;  // Router::groups, Router::best_groups
  double router_scale = 1;                                 // Router::scale
  bool router_bias = false;                                // the router's projection has a bias (gpt-oss)
  // A bias is added to the scores that are compared; it is adjusted by loads, not by gradients (DeepSeek-V3).
  bool router_score_bias = false;
  bool expert_bias = false;  // biases of the experts' matrices (gpt-oss)
  // Normal noise is added to logits, with a deviation that a projection computes (noisy top-k).
  bool router_noise = false;
  // Weights of the router's losses, by Megatron-Core's names. 0: none.
  LoadBalancing load_balancing = LoadBalancing::aux_loss;
  double aux_loss = 0, z_loss = 0;

  // Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): modules that predict one more token each.
  std::int64_t mtp_num_layers = 0;  // 0 or 1

  // Not fields of the file. A strategy sets them for a step (Strategy::settle).
  // Mean number of experts that a gate gives a token, out of experts_per_token slots; 0: all of them.
  double mean_experts_per_token = 0;
  // Slots for copies of experts in a layer, on all ranks together; 0: one slot per expert.
  std::int64_t expert_slots = 0;

  // As the paper states it; 0: unknown. A test checks it against parameters().
  double published_parameters = 0;
  double published_active_parameters = 0;  // the same for active_parameters()

  void visit_fields(FieldVisitor& v);

  // Fills the fields whose 0 means "as usual", and checks that the sizes fit together. Throws InputError with the
  // pointer relative to the model. Everything else in Orrery expects a complete model.
  // REQUIRES: the fields are in the ranges of visit_fields.
  void complete();

  std::int64_t effective_kv_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  bool gated() const { return activation == ActivationFunction::swiglu || activation == ActivationFunction::geglu; }
  // Layers of all stacks and stages.
  std::int64_t total_layers() const;
  bool has_experts() const { return experts > 0; }
  std::int64_t placed_experts() const { return expert_slots > 0 ? expert_slots : experts; }
  // REQUIRES: `layer` belongs to a model with experts, counted from 0.
  bool is_expert_layer(std::int64_t layer) const {
    return layer >= dense_layers && (layer - dense_layers) % expert_period == expert_period - 1;
  }
  std::int64_t expert_layers() const;
  // Whether the layer of the multi-token prediction module has experts, as the last layer does.
  bool mtp_has_experts() const { return mtp_num_layers > 0 && has_experts() && is_expert_layer(layers - 1); }
  bool vision() const { return kind == ModelKind::vit || kind == ModelKind::swin; }
};

// Exact number of parameters of the whole model as it is trained, with the unpadded vocabulary. Counted:
//  decoder          embeddings, layers, final norm, output head (once when tied); of the multi-token prediction module
//                   only what it does not share: its norms, projection and layer
//  encoder          as BertForPreTraining: embeddings, layers, pooler and next-sentence classifier (`pooler`), MLM
//                   transform, norm and bias; the MLM decoder is the embedding table when tied
//  encoder-decoder  as T5ForConditionalGeneration: one input table for both stacks
//  vit, swin        patch embedding, class token (ViT), layers, final norm, classifier
// REQUIRES: model.complete() has been called.
std::int64_t parameters(const Model& model);
// Parameters that one token meets: only as many routed experts as it goes to. Without experts: all parameters.
std::int64_t active_parameters(const Model& model);
// Parameters of one routed expert in one layer. REQUIRES: a model with experts.
std::int64_t routed_expert_parameters(const Model& model);

}  // namespace orrery
