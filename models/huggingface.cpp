#include "models/huggingface.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/base/one_line.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// Typed look-up in a config.json. A null value counts as absent, as it does in transformers.
class Config {
 public:
  Config(const Json& object, InputError::Where where) : object_(object), where_(std::move(where)) {}

  InputError::Where at(const char* key) const { return {where_.file, where_.pointer + '/' + key}; }
  [[noreturn]] void fail(const char* key, std::string expected, std::string nearest = {}) const {
    const Json* value = find(key);
    throw InputError(at(key), value == nullptr ? "nothing" : describe(*value), std::move(expected), std::move(nearest));
  }

  const Json* find(const char* key) const {
    const auto value = object_.find(key);
    return value == object_.end() || value->is_null() ? nullptr : &*value;
  }
  bool has(const char* key) const { return find(key) != nullptr; }
  bool says_null(const char* key) const { return object_.contains(key) && !has(key); }
  auto items() const { return object_.items(); }

  std::int64_t integer(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr || !value->is_number_integer()) fail(key, "an integer");
    const auto result = value->get<std::int64_t>();
    // The upper limits are Model's; this one keeps sums of two values from overflowing.
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    if (result < 0 || result > kMost) fail(key, "an integer of at least 0 and at most " + std::to_string(kMost));
    return result;
  }
  // Some families renamed a key over time: returns the first key that exists.
  std::int64_t integer(std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      if (has(key)) return integer(key);
    }
    fail(*keys.begin(), "an integer");
  }
  std::int64_t integer_or(const char* key, std::int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }

  double number_or(const char* key, double otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) fail(key, "a number");
    return value->get<double>();
  }
  bool boolean_or(const char* key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(key, "true or false");
    return value->get<bool>();
  }
  std::string text_or(const char* key, const char* otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) fail(key, "a string");
    if (has_control_characters(value->get_ref<const std::string&>())) fail(key, "a text without control characters");
    return value->get<std::string>();
  }
  std::vector<std::int64_t> integers(const char* key) const {
    const Json* value = find(key);
    const auto is_integer = [](const Json& j) { return j.is_number_integer(); };
    if (value == nullptr || !value->is_array() || !std::all_of(value->begin(), value->end(), is_integer)) {
      fail(key, "an array of integers");
    }
    return value->get<std::vector<std::int64_t>>();
  }
  Config object(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr || !value->is_object()) fail(key, "an object");
    return {*value, at(key)};
  }

 private:
  const Json& object_;
  InputError::Where where_;
};

// The names of transformers' ACT2FN.
ActivationFunction activation(const Config& config, const char* key, const char* otherwise, bool gated) {
  const std::string name = config.text_or(key, otherwise);
  const bool gelu = name.starts_with("gelu");  // gelu_new, gelu_pytorch_tanh, ...: same cost
  if (gated) {
    if (name == "silu" || name == "swish") return ActivationFunction::swiglu;
    if (gelu) return ActivationFunction::geglu;
    config.fail(key, "\"silu\" or a \"gelu\" in a gated MLP");
  }
  if (gelu) return ActivationFunction::gelu;
  if (name == "relu") return ActivationFunction::relu;
  if (name == "quick_gelu") return ActivationFunction::quick_gelu;
  if (name == "relu2") return ActivationFunction::relu2;
  config.fail(key, "\"relu\", \"relu2\", \"quick_gelu\" or a \"gelu\"");
}

void set_biases(Model& model, bool bias) { model.linear_bias = model.output_bias = model.qkv_bias = bias; }

void read_sizes(const Config& config, Model& m) {
  m.layers = config.integer("num_hidden_layers");
  m.hidden = config.integer("hidden_size");
  m.heads = config.integer("num_attention_heads");
  m.vocab = config.integer("vocab_size");
}

// Returns the period of layers with full attention: entries of array `key` equal to `full`; others must be `windowed`.
std::int64_t period_of_full(const Config& config, const char* key, const Json& full, const Json& windowed) {
  const Json& types = *config.find(key);
  if (!types.is_array()) config.fail(key, "an array with an entry for each layer");
  std::int64_t period = 0;
  for (std::size_t i = 0; i < types.size(); ++i) {
    const bool is_full = types[i] == full;
    if (!is_full && types[i] != windowed) config.fail(key, fmt::format("{} and {} only", full.dump(), windowed.dump()));
    if (is_full && period == 0) period = static_cast<std::int64_t>(i) + 1;
    const bool expected_full = period > 0 && (static_cast<std::int64_t>(i) + 1) % period == 0;
    if (is_full != expected_full) config.fail(key, "full attention in every n-th layer");
  }
  return period;
}

std::int64_t full_attention_period(const Config& config, std::int64_t otherwise) {
  if (!config.has("layer_types")) return otherwise;
  return period_of_full(config, "layer_types", "full_attention", "sliding_attention");
}

// ---- mixtures of experts

// Describes which layers have experts as a number of first layers without and a period. Returns false if no layer has
// experts: the model is dense. `key` is named in the error if the two numbers cannot describe the layers.
template <class HasExperts>
bool set_expert_layers(const Config& config, const char* key, Model& m, HasExperts has_experts) {
  constexpr std::int64_t kMostLayers = 1 << 16;  // beyond Model's range, which is checked later
  const std::int64_t layers = std::min(m.layers, kMostLayers);
  std::int64_t first = 0;
  while (first < layers && !has_experts(first)) ++first;
  if (first >= layers) return false;
  std::int64_t next = first + 1;
  while (next < layers && !has_experts(next)) ++next;
  const std::int64_t period = next - first, dense = first - period + 1;
  const auto expected = [&](std::int64_t layer) { return layer >= first && (layer - first) % period == 0; };
  bool holds = dense >= 0;
  for (std::int64_t layer = 0; holds && layer < layers; ++layer) holds = has_experts(layer) == expected(layer);
  if (!holds) config.fail(key, "experts in every n-th layer behind the first dense ones, in the last of each n");
  m.dense_layers = dense;
  m.expert_period = period;
  return true;
}

// The score that experts are chosen by, and whether the chosen weights are normalised to sum to one.
RouterScore router_score(const Config& config, const char* scoring_func, bool norm_topk_prob) {
  const std::string scores = config.text_or("scoring_func", scoring_func);
  const bool of_top = config.boolean_or("norm_topk_prob", norm_topk_prob);
  if (scores == "softmax") return of_top ? RouterScore::softmax_of_top : RouterScore::softmax;
  if (scores == "sigmoid") return of_top ? RouterScore::sigmoid_of_top : RouterScore::sigmoid;
  config.fail("scoring_func", "\"softmax\" or \"sigmoid\"");
}

// LLaMA and families with its architecture.
void read_llama(const Config& config, Model& m) {
  read_sizes(config, m);
  m.kv_heads = config.integer_or("num_key_value_heads", m.heads);
  m.head_dim = config.integer_or("head_dim", 0);
  m.ffn = config.integer("intermediate_size");
  m.activation = activation(config, "hidden_act", "silu", true);
  m.max_positions = config.integer("max_position_embeddings");
  m.positions = Positions::rotary;
  m.norm = NormKind::rmsnorm;
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", false);
  m.qkv_bias = m.output_bias = config.boolean_or("attention_bias", false);
  m.linear_bias = config.boolean_or("mlp_bias", false);
  m.dropout = config.number_or("attention_dropout", 0);
}

void read_mistral(const Config& config, Model& m) {
  read_llama(config, m);
  m.sliding_window = config.integer_or("sliding_window", 0);
}

// "use_sliding_window" gives the layers from max_window_layers on a sliding window.
void read_qwen_window(const Config& config, Model& m) {
  if (!config.boolean_or("use_sliding_window", false)) return;
  const std::int64_t full_layers = config.integer("max_window_layers");
  if (full_layers >= m.layers) return;
  if (full_layers > 0) config.fail("max_window_layers", "0 or num_hidden_layers: a window in all layers or in none");
  m.sliding_window = config.integer("sliding_window");
}

void read_qwen2(const Config& config, Model& m) {
  read_llama(config, m);
  m.qkv_bias = true;
  read_qwen_window(config, m);
}

void read_qwen3(const Config& config, Model& m) {
  read_llama(config, m);
  m.head_dim = config.integer_or("head_dim", 128);  // Qwen3Config
  m.qk_norm = true;
  read_qwen_window(config, m);
}

void read_smollm3(const Config& config, Model& m) {  // some layers have no positions: same parameters, same time
  read_llama(config, m);
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
}

void read_olmo2(const Config& config, Model& m) {
  read_llama(config, m);
  m.qk_norm = m.qk_norm_across_heads = true;
  m.input_norm = false;
  m.output_norm = true;
}

void read_olmo3(const Config& config, Model& m) {
  read_olmo2(config, m);
  m.sliding_window = config.integer("sliding_window");
  m.full_attention_period = full_attention_period(config, 4);
}

void read_phi3(const Config& config, Model& m) {
  read_mistral(config, m);
  m.dropout = config.number_or("resid_pdrop", 0);
  if (m.sliding_window >= m.max_positions) m.sliding_window = 0;
}

void read_gemma(const Config& config, Model& m) {
  read_llama(config, m);
  m.head_dim = config.integer("head_dim");
  const char* key = config.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  m.activation = activation(config, key, "gelu_pytorch_tanh", true);
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
}

void read_gemma2(const Config& config, Model& m) {
  read_gemma(config, m);
  m.output_norm = true;
  m.sliding_window = config.integer("sliding_window");
  m.full_attention_period = full_attention_period(config, 2);
}

void read_gemma3(const Config& config, Model& m) {
  read_gemma2(config, m);
  m.qk_norm = true;
  m.full_attention_period = full_attention_period(config, config.integer_or("sliding_window_pattern", 6));
}

void read_nemotron(const Config& config, Model& m) {
  read_sizes(config, m);
  m.kv_heads = config.integer_or("num_key_value_heads", m.heads);
  m.head_dim = config.integer_or("head_dim", 0);
  m.ffn = config.integer("intermediate_size");
  m.activation = activation(config, "hidden_act", "relu2", false);
  m.max_positions = config.integer("max_position_embeddings");
  m.positions = Positions::rotary;
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", false);
  m.qkv_bias = m.output_bias = config.boolean_or("attention_bias", false);
  m.linear_bias = config.boolean_or("mlp_bias", false);
  m.dropout = config.number_or("hidden_dropout", 0);
}

// DeepSeek's attention.
void read_latent(const Config& config, Model& m) {
  read_llama(config, m);
  m.attention = AttentionKind::latent;
  m.head_dim = 0;
  m.kv_heads = 0;
  m.query_lora_rank = config.integer_or("q_lora_rank", 0);
  m.kv_lora_rank = config.integer("kv_lora_rank");
  m.rope_head_dim = config.integer("qk_rope_head_dim");
  m.nope_head_dim = config.integer("qk_nope_head_dim");
  m.value_head_dim = config.integer_or("v_head_dim", m.heads > 0 ? m.hidden / m.heads : 0);
  if (m.qkv_bias) config.fail("attention_bias", "false");
}

void read_minicpm3(const Config& config, Model& m) {
  read_latent(config, m);
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
}

void read_mixtral(const Config& config, Model& m) {
  read_mistral(config, m);
  m.experts = config.integer("num_local_experts");
  m.experts_per_token = config.integer("num_experts_per_tok");
  m.expert_ffn = m.ffn;
  m.router_score = RouterScore::softmax_of_top;
}

void read_olmoe(const Config& config, Model& m) {
  read_llama(config, m);
  m.qk_norm = m.qk_norm_across_heads = true;
  m.experts = config.integer("num_experts");
  m.experts_per_token = config.integer("num_experts_per_tok");
  m.expert_ffn = m.ffn;
  m.router_score = router_score(config, "softmax", false);
}

// Qwen's: every "decoder_sparse_step"-th layer has experts, except those in "mlp_only_layers".
void read_qwen_experts(const Config& config, Model& m) {
  const std::int64_t step = config.integer_or("decoder_sparse_step", 1);
  const std::vector<std::int64_t> dense =
      config.has("mlp_only_layers") ? config.integers("mlp_only_layers") : std::vector<std::int64_t>{};
  if (step < 1) config.fail("decoder_sparse_step", "an integer of at least 1");
  const bool sparse =
      set_expert_layers(config, dense.empty() ? "decoder_sparse_step" : "mlp_only_layers", m, [&](std::int64_t layer) {
        return (layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
      });
  if (!sparse || config.integer("num_experts") == 0) {
    m.dense_layers = 0;
    m.expert_period = 1;
    return;
  }
  m.experts = config.integer("num_experts");
  m.experts_per_token = config.integer("num_experts_per_tok");
  m.expert_ffn = config.integer("moe_intermediate_size");
  m.router_score = router_score(config, "softmax", false);
}

void read_qwen2_moe(const Config& config, Model& m) {
  read_qwen2(config, m);
  m.qkv_bias = config.boolean_or("qkv_bias", true);
  read_qwen_experts(config, m);
  if (!m.has_experts()) return;
  m.shared_expert_ffn = config.integer("shared_expert_intermediate_size");
  m.shared_expert_gate = m.shared_expert_ffn > 0;
}

void read_qwen3_moe(const Config& config, Model& m) {
  read_qwen3(config, m);
  read_qwen_experts(config, m);
}

// The "num_nextn_predict_layers" layers of multi-token prediction are not part of the main model.
void read_deepseek_experts(const Config& config, Model& m, const char* scoring_func, const char* topk_method) {
  const std::int64_t dense = config.integer_or("first_k_dense_replace", 0),
                     period = config.integer_or("moe_layer_freq", 1);
  if (period < 1) config.fail("moe_layer_freq", "an integer of at least 1");
  const bool v3 = std::string_view(scoring_func) == "sigmoid";
  const bool said_dense = !v3 && config.says_null("n_routed_experts");  // DeepseekConfig: None means dense
  const bool sparse = !said_dense && set_expert_layers(config, "moe_layer_freq", m, [&](std::int64_t layer) {
    return layer >= dense && layer % period == 0;
  });
  if (!sparse) return;
  m.experts = config.integer("n_routed_experts");
  m.experts_per_token = config.integer("num_experts_per_tok");
  m.expert_ffn = config.integer("moe_intermediate_size");
  const std::int64_t shared = config.integer_or("n_shared_experts", 0);
  constexpr std::int64_t kMost = 1 << 20;  // keeps the product below from overflowing
  if (shared > kMost) config.fail("n_shared_experts", fmt::format("an integer of at most {}", kMost));
  m.shared_expert_ffn = shared * m.expert_ffn;
  m.router_score = router_score(config, scoring_func, v3);
  m.router_scale = config.number_or("routed_scaling_factor", 1);
  const std::string method = config.text_or("topk_method", topk_method);
  if (method != "greedy" && method != "group_limited_greedy" && method != "noaux_tc")
    config.fail("topk_method", "\"greedy\", \"group_limited_greedy\" or \"noaux_tc\"");
  m.router_score_bias = method == "noaux_tc";
  if (method == "greedy" || config.integer_or("n_group", 1) <= 1) return;
  m.router_groups = config.integer("n_group");
  m.router_best_groups = config.integer("topk_group");
}

void read_deepseek(const Config& config, Model& m) {
  read_llama(config, m);
  read_deepseek_experts(config, m, "softmax", "greedy");
}

void read_deepseek_v2(const Config& config, Model& m) {
  read_latent(config, m);
  read_deepseek_experts(config, m, "softmax", "greedy");
}

void read_deepseek_v3(const Config& config, Model& m) {
  read_latent(config, m);
  read_deepseek_experts(config, m, "sigmoid", "noaux_tc");
}

// Omits the attention sinks, one number per head.
void read_gpt_oss(const Config& config, Model& m) {
  read_llama(config, m);
  m.head_dim = config.integer_or("head_dim", 64);  // GptOssConfig
  m.qkv_bias = m.output_bias = config.boolean_or("attention_bias", true);
  m.sliding_window = config.integer_or("sliding_window", 0);
  if (m.sliding_window > 0) m.full_attention_period = full_attention_period(config, 2);
  m.experts = config.integer({"num_local_experts", "num_experts"});
  m.experts_per_token = config.integer({"num_experts_per_tok", "experts_per_token"});
  m.expert_ffn = m.ffn;
  m.router_score = RouterScore::softmax_of_top;
  m.router_bias = m.expert_bias = true;
}

// In Llama 4 a token attends to its chunk; here it attends to equally many positions before it, which is the same up to
// the length of one chunk. Query and key norms have no weights and are omitted.
void read_llama4(const Config& config, Model& m) {
  read_llama(config, m);
  m.ffn = config.integer("intermediate_size_mlp");
  m.sliding_window = config.integer_or("attention_chunk_size", 0);
  if (m.sliding_window > 0) {
    const auto listed = [&](const char* key) {
      const Json* list = config.find(key);
      return list != nullptr && !list->empty();
    };
    if (listed("layer_types")) {
      m.full_attention_period = period_of_full(config, "layer_types", "full_attention", "chunked_attention");
    } else if (listed("no_rope_layers")) {  // layers without positions use full attention
      m.full_attention_period = period_of_full(config, "no_rope_layers", 0, 1);
    } else {
      m.full_attention_period = config.integer_or("no_rope_layer_interval", 4);  // Llama4TextConfig
    }
  }
  const bool listed = config.has("moe_layers");
  const std::vector<std::int64_t> layers = listed ? config.integers("moe_layers") : std::vector<std::int64_t>{};
  const std::int64_t step = config.integer_or("interleave_moe_layer_step", 1);
  const bool sparse =
      set_expert_layers(config, listed ? "moe_layers" : "interleave_moe_layer_step", m, [&](std::int64_t layer) {
        if (listed) return std::find(layers.begin(), layers.end(), layer) != layers.end();
        return step > 0 && (layer + 1) % step == 0;
      });
  if (!sparse) return;
  m.experts = config.integer("num_local_experts");
  m.experts_per_token = config.integer("num_experts_per_tok");
  m.expert_ffn = m.shared_expert_ffn = config.integer("intermediate_size");
  m.router_score = RouterScore::sigmoid;
}

void read_dbrx(const Config& config, Model& m) {
  m.layers = config.integer("n_layers");
  m.hidden = config.integer("d_model");
  m.heads = config.integer("n_heads");
  m.vocab = config.integer("vocab_size");
  m.max_positions = config.integer("max_seq_len");
  m.positions = Positions::rotary;
  m.norm_bias = false;
  set_biases(m, false);
  m.kv_heads = config.object("attn_config").integer("kv_n_heads");
  const Config ffn = config.object("ffn_config");
  m.ffn = m.expert_ffn = ffn.integer("ffn_hidden_size");
  if (m.ffn == 0) ffn.fail("ffn_hidden_size", "an integer of at least 1");
  m.activation =
      ffn.has("ffn_act_fn") ? activation(ffn.object("ffn_act_fn"), "name", "silu", true) : ActivationFunction::swiglu;
  m.experts = ffn.integer("moe_num_experts");
  m.experts_per_token = ffn.integer("moe_top_k");
  if (ffn.has("moe_normalize_expert_weights")) {
    if (ffn.number_or("moe_normalize_expert_weights", 1) != 1) ffn.fail("moe_normalize_expert_weights", "1 or null");
    m.router_score = RouterScore::softmax_of_top;
  }
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", false);
  m.dropout = config.number_or("resid_pdrop", 0);
}

void read_grok1(const Config& config, Model& m) {
  read_llama(config, m);
  m.activation = activation(config, "hidden_act", "gelu", true);
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  m.output_norm = true;
  m.experts = config.integer("num_experts");
  m.experts_per_token = config.integer("num_experts_per_tok");
  m.expert_ffn = m.ffn;
}

void read_gpt2(const Config& config, Model& m) {
  m.layers = config.integer("n_layer");
  m.hidden = config.integer("n_embd");
  m.heads = config.integer("n_head");
  m.vocab = config.integer("vocab_size");
  m.max_positions = config.integer({"n_positions", "n_ctx"});
  m.ffn = config.integer_or("n_inner", 0);
  m.activation = activation(config, "activation_function", "gelu_new", false);
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  m.dropout = config.number_or("resid_pdrop", 0.1);
}

void read_gpt_bigcode(const Config& config, Model& m) {
  read_gpt2(config, m);
  if (config.boolean_or("multi_query", true)) m.kv_heads = 1;
}

void read_gptj(const Config& config, Model& m) {
  read_gpt2(config, m);
  m.positions = Positions::rotary;
  m.parallel_block = true;
  m.qkv_bias = m.output_bias = false;
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", false);
  m.head_bias = true;
  m.dropout = config.number_or("resid_pdrop", 0);
}

void read_gpt_neox(const Config& config, Model& m) {
  read_sizes(config, m);
  m.ffn = config.integer("intermediate_size");
  m.activation = activation(config, "hidden_act", "gelu", false);
  m.max_positions = config.integer("max_position_embeddings");
  m.positions = Positions::rotary;
  m.parallel_block = m.parallel_norms = config.boolean_or("use_parallel_residual", true);
  m.qkv_bias = m.output_bias = config.boolean_or("attention_bias", true);
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", false);
  m.dropout = config.number_or("hidden_dropout", 0);
}

void read_opt(const Config& config, Model& m) {
  read_sizes(config, m);
  m.ffn = config.integer("ffn_dim");
  m.activation = activation(config, "activation_function", "relu", false);
  m.max_positions = config.integer("max_position_embeddings");
  m.extra_positions = 2;  // OPTLearnedPositionalEmbedding's offset
  if (config.integer_or("word_embed_proj_dim", m.hidden) != m.hidden) {
    config.fail("word_embed_proj_dim",
                fmt::format("hidden_size = {}: projected embeddings are not modelled", m.hidden));
  }
  m.post_norm = !config.boolean_or("do_layer_norm_before", true);
  set_biases(m, config.boolean_or("enable_bias", true));
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  m.dropout = config.number_or("dropout", 0.1);
}

void read_bloom(const Config& config, Model& m) {
  m.layers = config.integer({"n_layer", "num_hidden_layers"});
  m.hidden = config.integer({"hidden_size", "n_embed"});
  m.heads = config.integer({"n_head", "num_attention_heads"});
  m.vocab = config.integer("vocab_size");
  m.max_positions = config.integer_or("seq_length", 2048);  // BLOOM's training length
  m.positions = Positions::alibi;
  m.embedding_norm = true;
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  m.dropout = config.number_or("hidden_dropout", 0);
}

void read_mpt(const Config& config, Model& m) {
  m.layers = config.integer("n_layers");
  m.hidden = config.integer("d_model");
  m.heads = config.integer("n_heads");
  m.vocab = config.integer("vocab_size");
  m.max_positions = config.integer("max_seq_len");
  const double ratio = config.number_or("expansion_ratio", 4);
  if (!(ratio > 0) || ratio > 1024) config.fail("expansion_ratio", "a number greater than 0 and at most 1024");
  m.ffn = static_cast<std::int64_t>(std::llround(ratio * static_cast<double>(m.hidden)));
  const bool bias = !config.boolean_or("no_bias", true);
  set_biases(m, bias);
  m.norm_bias = bias;
  m.positions = config.boolean_or("learned_pos_emb", true) ? Positions::learned : Positions::none;
  if (config.has("attn_config")) {
    const Config attention = config.object("attn_config");
    if (attention.boolean_or("alibi", false)) m.positions = Positions::alibi;
    if (attention.boolean_or("rope", false)) m.positions = Positions::rotary;
    const std::string type = attention.text_or("attn_type", "multihead_attention");
    if (type == "multiquery_attention") m.kv_heads = 1;
    if (type == "grouped_query_attention") m.kv_heads = attention.integer("kv_n_heads");
    m.qk_norm = m.qk_norm_across_heads = attention.boolean_or("qk_ln", false);
  }
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  m.dropout = config.number_or("resid_pdrop", 0);
}

void read_falcon(const Config& config, Model& m) {
  m.layers = config.integer({"num_hidden_layers", "n_layer"});
  m.hidden = config.integer({"hidden_size", "n_embed"});
  m.heads = config.integer({"num_attention_heads", "n_head"});
  m.vocab = config.integer("vocab_size");
  m.ffn = config.integer_or("ffn_hidden_size", 0);
  m.max_positions = config.integer_or("max_position_embeddings", 2048);  // FalconConfig
  m.positions = config.boolean_or("alibi", false) ? Positions::alibi : Positions::rotary;
  const bool new_architecture = config.boolean_or("new_decoder_architecture", false);
  if (new_architecture) {
    m.kv_heads = config.integer_or("num_kv_heads", m.heads);
  } else if (config.boolean_or("multi_query", true)) {
    m.kv_heads = 1;
  }
  m.parallel_block = new_architecture || config.boolean_or("parallel_attn", true);
  m.parallel_norms = new_architecture && config.integer_or("num_ln_in_parallel_attn", 2) == 2;
  set_biases(m, config.boolean_or("bias", false));
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  m.dropout = config.number_or("hidden_dropout", 0);
}

void read_phi(const Config& config, Model& m) {
  read_sizes(config, m);
  m.kv_heads = config.integer_or("num_key_value_heads", m.heads);
  m.ffn = config.integer("intermediate_size");
  m.activation = activation(config, "hidden_act", "gelu_new", false);
  m.max_positions = config.integer("max_position_embeddings");
  m.positions = Positions::rotary;
  m.parallel_block = true;
  m.head_bias = true;
  if (config.boolean_or("qk_layernorm", false)) config.fail("qk_layernorm", "false");
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", false);
  m.dropout = config.number_or("resid_pdrop", 0);
}

void read_starcoder2(const Config& config, Model& m) {
  read_sizes(config, m);
  m.kv_heads = config.integer("num_key_value_heads");
  m.ffn = config.integer("intermediate_size");
  m.activation = activation(config, "hidden_act", "gelu_pytorch_tanh", false);
  m.max_positions = config.integer("max_position_embeddings");
  m.positions = Positions::rotary;
  m.sliding_window = config.integer_or("sliding_window", 0);
  set_biases(m, config.boolean_or("use_bias", true));
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  m.dropout = config.number_or("residual_dropout", 0);
}

void read_bert(const Config& config, Model& m) {
  m.kind = ModelKind::encoder;
  read_sizes(config, m);
  m.ffn = config.integer("intermediate_size");
  m.activation = activation(config, "hidden_act", "gelu", false);
  m.max_positions = config.integer("max_position_embeddings");
  m.token_types = config.integer_or("type_vocab_size", 2);
  m.post_norm = m.embedding_norm = m.pooler = m.head_bias = true;
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  m.dropout = config.number_or("hidden_dropout_prob", 0.1);
}

void read_roberta(const Config& config, Model& m) {
  read_bert(config, m);
  m.pooler = false;       // no next-sentence prediction
  m.extra_positions = 2;  // positions start after the padding index, 1
  if (m.max_positions <= m.extra_positions) config.fail("max_position_embeddings", "an integer of at least 3");
  m.max_positions -= m.extra_positions;
}

void read_t5(const Config& config, Model& m) {
  m.kind = ModelKind::encoder_decoder;
  m.layers = config.integer("num_layers");
  m.decoder_layers = config.integer_or("num_decoder_layers", m.layers);
  m.hidden = config.integer("d_model");
  m.heads = config.integer("num_heads");
  m.head_dim = config.integer("d_kv");
  m.ffn = config.integer("d_ff");
  m.vocab = config.integer("vocab_size");
  m.max_positions = config.integer_or("n_positions", 512);
  m.positions = Positions::relative;
  m.relative_buckets = config.integer_or("relative_attention_num_buckets", 32);
  m.norm = NormKind::rmsnorm;
  set_biases(m, false);
  const std::string mlp = config.text_or("feed_forward_proj", "relu");
  if (mlp == "gated-gelu") {
    m.activation = ActivationFunction::geglu;
  } else if (mlp == "gated-silu") {
    m.activation = ActivationFunction::swiglu;
  } else {
    m.activation = activation(config, "feed_forward_proj", "relu", false);
  }
  m.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  m.dropout = config.number_or("dropout_rate", 0.1);
}

void read_image(const Config& config, Model& m) {
  m.activation = activation(config, "hidden_act", "gelu", false);
  m.image_size = config.integer("image_size");
  m.patch_size = config.integer("patch_size");
  m.channels = config.integer_or("num_channels", 3);
  m.qkv_bias = config.boolean_or("qkv_bias", true);
  m.tied_embeddings = false;
  m.dropout = config.number_or("hidden_dropout_prob", 0);
  const Json* labels = config.find("id2label");
  if (labels != nullptr && !labels->is_object()) config.fail("id2label", "an object");
  m.classes = labels != nullptr ? static_cast<std::int64_t>(labels->size()) : config.integer("num_labels");
}

void read_vit(const Config& config, Model& m) {
  m.kind = ModelKind::vit;
  m.layers = config.integer("num_hidden_layers");
  m.hidden = config.integer("hidden_size");
  m.heads = config.integer("num_attention_heads");
  m.ffn = config.integer("intermediate_size");
  read_image(config, m);
}

void read_swin(const Config& config, Model& m) {
  m.kind = ModelKind::swin;
  m.hidden = config.integer("embed_dim");
  m.stage_layers = config.integers("depths");
  m.stage_heads = config.integers("num_heads");
  m.window = config.integer("window_size");
  const double ratio = config.number_or("mlp_ratio", 4);
  if (!(ratio >= 1) || ratio > 1024 || std::trunc(ratio) != ratio)
    config.fail("mlp_ratio", "a whole number from 1 to 1024");
  m.ffn = static_cast<std::int64_t>(ratio) * m.hidden;
  m.positions = Positions::relative;
  read_image(config, m);
}

void read_swinv2(const Config& config, Model& m) {
  read_swin(config, m);
  m.cosine_attention = true;
  m.input_norm = false;
  m.output_norm = true;
}

struct Family {
  std::string_view model_type;
  std::string_view class_prefix;  // prefix of the classes in "architectures"
  void (*read)(const Config&, Model&);
  bool experts = false;  // whether `read` reads experts
};
constexpr std::array kFamilies{
    Family{"bert", "Bert", read_bert},
    Family{"bloom", "Bloom", read_bloom},
    Family{"dbrx", "Dbrx", read_dbrx, true},
    Family{"deepseek", "Deepseek", read_deepseek, true},
    Family{"deepseek_v2", "DeepseekV2", read_deepseek_v2, true},
    Family{"deepseek_v3", "DeepseekV3", read_deepseek_v3, true},
    Family{"falcon", "Falcon", read_falcon},
    Family{"gemma", "Gemma", read_gemma},
    Family{"gemma2", "Gemma2", read_gemma2},
    Family{"gemma3_text", "Gemma3", read_gemma3},
    Family{"gpt2", "GPT2", read_gpt2},
    Family{"gpt_bigcode", "GPTBigCode", read_gpt_bigcode},
    Family{"gpt_neox", "GPTNeoX", read_gpt_neox},
    Family{"gpt_oss", "GptOss", read_gpt_oss, true},
    Family{"gptj", "GPTJ", read_gptj},
    Family{"grok-1", "Grok1", read_grok1, true},
    Family{"kimi_k2", "KimiK2", read_deepseek_v3, true},
    Family{"llama", "Llama", read_llama},
    Family{"llama4_text", "Llama4", read_llama4, true},
    Family{"minicpm3", "MiniCPM3", read_minicpm3},
    Family{"mistral", "Mistral", read_mistral},
    Family{"mixtral", "Mixtral", read_mixtral, true},
    Family{"mpt", "Mpt", read_mpt},
    Family{"mt5", "MT5", read_t5},
    Family{"nemotron", "Nemotron", read_nemotron},
    Family{"olmo2", "Olmo2", read_olmo2},
    Family{"olmo3", "Olmo3", read_olmo3},
    Family{"olmoe", "Olmoe", read_olmoe, true},
    Family{"opt", "OPT", read_opt},
    Family{"phi", "Phi", read_phi},
    Family{"phi3", "Phi3", read_phi3},
    Family{"qwen2", "Qwen2", read_qwen2},
    Family{"qwen2_moe", "Qwen2Moe", read_qwen2_moe, true},
    Family{"qwen3", "Qwen3", read_qwen3},
    Family{"qwen3_moe", "Qwen3Moe", read_qwen3_moe, true},
    Family{"roberta", "Roberta", read_roberta},
    Family{"smollm3", "SmolLM3", read_smollm3},
    Family{"starcoder2", "Starcoder2", read_starcoder2},
    Family{"swin", "Swin", read_swin},
    Family{"swinv2", "Swinv2", read_swinv2},
    Family{"t5", "T5", read_t5},
    Family{"vit", "ViT", read_vit},
};

// "LlamaForCausalLM", "GPT2LMHeadModel", "ViTModel" belong to the families Llama, GPT2, ViT.
bool of_class(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return name.starts_with("For") || name.starts_with("LMHead") || name.starts_with("Model");
}

// Whether a class's name begins with a family's: "MPTForCausalLM" does with "Mpt"; "OPTIMUSForCausalLM" not with "OPT".
bool begins_with_family(std::string_view name, std::string_view prefix) {
  const auto is_upper = [](char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; };
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  };
  if (name.size() <= prefix.size() || !std::equal(prefix.begin(), prefix.end(), name.begin(), same)) return false;
  const std::string_view rest = name.substr(prefix.size());
  return is_upper(rest[0]) &&
         (!is_upper(name[prefix.size() - 1]) || rest.size() < 2 || !is_upper(rest[1]) || rest.starts_with("LMHead"));
}

// Returns the family with the longest name that a class's name begins with; null if there is none.
const Family* family_of_class(std::string_view name) {
  const Family* found = nullptr;
  for (const Family& family : kFamilies)
    if (begins_with_family(name, family.class_prefix) &&
        (found == nullptr || family.class_prefix.size() > found->class_prefix.size()))
      found = &family;
  return found;
}

template <class Check>
void for_each_class(const Config& config, Check check) {
  const Json* classes = config.find("architectures");
  if (classes == nullptr) return;
  if (classes->is_string()) check(*classes, classes->get_ref<const std::string&>());
  if (!classes->is_array()) return;
  for (const Json& name : *classes)
    if (name.is_string()) check(name, name.get_ref<const std::string&>());
}

// Classes of families that are read alike (kimi_k2 and deepseek_v3) are interchangeable. Classes of unknown families,
// which forks have, are accepted for any.
void refuse_other_classes(const Config& config, const Family& family) {
  for_each_class(config, [&](const Json& value, std::string_view name) {
    const Family* other = family_of_class(name);
    if (other != nullptr && other->read != family.read)
      throw InputError(config.at("architectures"), describe(value),
                       fmt::format("a class of the model_type {}, not of {}", family.model_type, other->model_type));
  });
}

// If a class's name says its task, the task must be the modelled one: a text classifier has no head for all tokens.
void refuse_other_heads(const Config& config, const Model& m) {
  std::vector<std::string_view> heads{"CausalLM", "ConditionalGeneration"};
  if (m.kind == ModelKind::encoder) heads = {"MaskedLM", "PreTraining"};
  if (m.kind == ModelKind::encoder_decoder) heads = {"ConditionalGeneration"};
  if (m.vision()) heads = {"ImageClassification"};
  for_each_class(config, [&](const Json& value, std::string_view name) {
    bool other = m.kind == ModelKind::encoder_decoder && name.ends_with("EncoderModel");
    if (const std::size_t purpose = name.rfind("For"); purpose != std::string_view::npos) {
      const std::string_view head = name.substr(purpose + 3);
      const bool says = !head.empty() && std::isupper(static_cast<unsigned char>(head.front())) != 0;
      const auto is = [&](std::string_view known) { return head.starts_with(known); };
      other = other || (says && std::none_of(heads.begin(), heads.end(), is));
    }
    if (other)
      throw InputError(config.at("architectures"), describe(value),
                       fmt::format("a class For{}: other heads are not modelled", fmt::join(heads, " or For")));
  });
}

// ---- keys that the reader of a family does not look for

// A key, or a prefix of keys if it ends in '_', and the architecture that it belongs to, which no family below has.
struct ForeignKey {
  std::string_view key, what;
};
constexpr std::array kForeignKeys{
    ForeignKey{"altup_", "alternating updates"},
    ForeignKey{"attn_layer_indices", "state-space layers"},
    ForeignKey{"attn_layer_offset", "state-space layers"},
    ForeignKey{"attn_layer_period", "state-space layers"},
    ForeignKey{"attn_output_gate", "gates behind attention"},
    ForeignKey{"attn_type_list", "linear attention"},
    ForeignKey{"audio_config", "sound beside text"},
    ForeignKey{"block_configs", "layers of different sizes"},
    ForeignKey{"compress_ratios", "compressed attention"},
    ForeignKey{"conv_L_cache", "convolutions beside attention"},
    ForeignKey{"cross_attention_layers", "cross attention"},
    ForeignKey{"full_attention_interval", "linear attention"},
    ForeignKey{"hc_mult", "hyper-connections"},
    ForeignKey{"hidden_size_per_layer_input", "embeddings of each layer"},
    ForeignKey{"hybrid_override_pattern", "state-space layers"},
    ForeignKey{"index_head_dim", "sparse attention"},
    ForeignKey{"index_n_heads", "sparse attention"},
    ForeignKey{"index_topk", "sparse attention"},
    ForeignKey{"linear_attn_config", "linear attention"},
    ForeignKey{"linear_conv_", "linear attention"},
    ForeignKey{"linear_key_", "linear attention"},
    ForeignKey{"linear_num_", "linear attention"},
    ForeignKey{"linear_value_", "linear attention"},
    ForeignKey{"lru_width", "recurrent layers"},
    ForeignKey{"mamba_", "state-space layers"},
    ForeignKey{"num_kv_shared_layers", "keys and values that layers share"},
    ForeignKey{"sparse_attention_config", "sparse attention"},
    ForeignKey{"ssm_", "state-space layers"},
    ForeignKey{"vision_config", "images beside text"},
};

// Values of layer_types for layers that are not attention.
constexpr std::array kForeignLayers{std::pair{"mamba", "state-space layers"},
                                    std::pair{"ssm", "state-space layers"},
                                    std::pair{"linear", "linear attention"},
                                    std::pair{"delta", "linear attention"},
                                    std::pair{"lightning", "linear attention"},
                                    std::pair{"recurrent", "recurrent layers"},
                                    std::pair{"conv", "convolutions"},
                                    std::pair{"sparse", "sparse attention"},
                                    std::pair{"compressed", "compressed attention"}};

constexpr std::array kLayerTypeKeys{"layer_types", "layers_block_type", "block_types"};

std::string not_modelled(std::string_view what) {
  return fmt::format("a model without {}: that is not modelled", what);
}

void refuse_foreign_layers(const Config& config) {
  for (const char* key : kLayerTypeKeys) {
    const Json* types = config.find(key);
    if (types == nullptr || !types->is_array()) continue;
    for (const Json& type : *types) {
      if (!type.is_string()) continue;
      const auto& name = type.get_ref<const std::string&>();
      for (const auto& [word, what] : kForeignLayers)
        if (name.find(word) != std::string::npos) throw InputError(config.at(key), describe(type), not_modelled(what));
    }
  }
}

void refuse_foreign_keys(const Config& config) {
  refuse_foreign_layers(config);
  const auto says_nothing = [](const Json& value) {
    return value.is_null() || value == false || value == 0 || (value.is_structured() && value.empty()) || value == "";
  };
  for (const ForeignKey& foreign : kForeignKeys)
    for (const auto& [key, value] : config.items()) {
      const bool is = foreign.key.ends_with('_') ? key.starts_with(foreign.key) : key == foreign.key;
      if (!is || says_nothing(value)) continue;
      throw InputError(config.at(key.c_str()), describe(value), not_modelled(foreign.what));
    }
}

// Compares the layers with full attention in layer_types with those of the model that was read.
void refuse_other_layers(const Config& config, std::string_view model_type, const Model& m) {
  const Json* types = config.find("layer_types");
  if (types == nullptr || !types->is_array()) return;
  const bool window_is_all =
      config.has("sliding_window") && m.sliding_window == 0 && config.integer("sliding_window") >= m.max_positions;
  for (std::size_t i = 0; i < types->size(); ++i) {
    const Json& type = (*types)[i];
    const bool full = type == "full_attention" || type == "attention";
    const bool windowed = type == "sliding_attention" || type == "chunked_attention";
    if (!full && !windowed)
      throw InputError(config.at("layer_types"), describe(type), R"("full_attention" or "sliding_attention")");
    const bool read_full = m.sliding_window == 0 || (m.full_attention_period > 0 &&
                                                     (static_cast<std::int64_t>(i) + 1) % m.full_attention_period == 0);
    if (full != read_full && !window_is_all)
      throw InputError(config.at("layer_types"), fmt::format("{} in layer {}", describe(type), i),
                       fmt::format("{}, as the family {} is read with this sliding_window",
                                   read_full ? "full_attention" : "sliding_attention", model_type));
  }
}

// In these keys a 0 is not a size, but in a Model it stands for the usual one.
void refuse_zeros(const Config& config, const Model& m) {
  const bool no_dense_layers = m.has_experts() && m.dense_layers == 0 && m.expert_period == 1 && m.expert_ffn > 0;
  const auto refuse = [](const Config& object, const char* key) {
    const Json* value = object.find(key);
    if (value != nullptr && *value == 0) object.fail(key, "an integer of at least 1");
  };
  if (m.ffn == 0 && !no_dense_layers)
    for (const char* key :
         {"intermediate_size", "intermediate_size_mlp", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"})
      refuse(config, key);
  if (m.has_experts() && m.expert_ffn == 0) refuse(config, "moe_intermediate_size");
  if (m.kind == ModelKind::encoder_decoder)
    for (const char* key : {"num_decoder_layers", "d_kv"}) refuse(config, key);
}

// Throws if the config says something that the model, read as one of `model_type`, does not have.
void refuse_contradictions(const Config& config, std::string_view model_type, const Model& m) {
  const auto as_read = [&](const std::string& what) {
    return fmt::format("{}, as the family {} is read", what, model_type);
  };
  refuse_other_heads(config, m);
  refuse_zeros(config, m);
  if (m.vision()) return;
  refuse_other_layers(config, model_type, m);
  const auto differs = [&](const char* key, std::int64_t read) {
    const Json* value = config.find(key);
    if (value != nullptr && value->is_number_integer() && *value != read)
      config.fail(key, as_read(fmt::to_string(read)));
  };
  const auto differs_truth = [&](const char* key, bool read) {
    const Json* value = config.find(key);
    if (value != nullptr && value->is_boolean() && *value != read) config.fail(key, as_read(read ? "true" : "false"));
  };
  const bool latent = m.attention == AttentionKind::latent;
  if (!latent) {
    differs("kv_lora_rank", 0);
    differs("q_lora_rank", 0);
    differs("num_key_value_heads", m.kv_heads > 0 ? m.kv_heads : m.heads);
    differs("head_dim", m.head_dim > 0 ? m.head_dim : m.heads > 0 ? m.hidden / m.heads : 0);
  }
  differs_truth("is_encoder_decoder", m.kind == ModelKind::encoder_decoder);
  differs_truth("attention_bias", m.qkv_bias);
  for (const char* key : {"attention_out_bias", "attention_output_bias"}) differs_truth(key, m.output_bias);
  if (model_type != "llama4_text")  // its norms have no weights
    for (const char* key : {"use_qk_norm", "qk_norm", "qk_layernorm"}) differs_truth(key, m.qk_norm);
  // Qwen's window only counts if use_sliding_window is set.
  const bool window_used = config.boolean_or("use_sliding_window", !config.has("max_window_layers"));
  if (m.sliding_window == 0 && window_used && config.has("sliding_window") && !config.has("layer_types") &&
      config.integer("sliding_window") > 0 && config.integer("sliding_window") < m.max_positions)
    config.fail("sliding_window", as_read("no window"));
  if (!m.has_experts()) return;
  differs("moe_intermediate_size", m.expert_ffn);
  if (m.dense_layers == 0 && m.expert_period == 1) differs("first_k_dense_replace", 0);
  if (m.shared_expert_ffn == 0)
    for (const char* key :
         {"n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size", "shared_intermediate_size"})
      differs(key, 0);
}

const Family& find_family(const Config& config) {
  std::vector<std::string> valid;
  for (const Family& family : kFamilies) valid.emplace_back(family.model_type);
  const std::string expected = fmt::format("a supported family: {}", fmt::join(valid, ", "));

  if (config.has("model_type")) {
    const std::string type = config.text_or("model_type", "");
    if (config.has("text_config"))
      config.fail("text_config", "a model of text or of images alone; its text_config may be one");
    for (const Family& family : kFamilies) {
      if (family.model_type == type) return family;
    }
    refuse_foreign_keys(config);
    config.fail("model_type", expected, nearest_name(type, valid));
  }
  const Json* classes = config.find("architectures");
  if (classes == nullptr || !classes->is_array() || classes->empty() || !classes->front().is_string()) {
    config.fail("architectures", "a model_type, or an array with the name of a model class");
  }
  const auto& name = classes->front().get_ref<const std::string&>();
  for (const Family& family : kFamilies) {
    if (of_class(name, family.class_prefix)) return family;
  }
  refuse_foreign_keys(config);
  throw InputError(config.at("architectures"), describe(classes->front()), expected);
}

// Any family may have a variant with experts, which must not be read as a dense model.
void refuse_experts(const Config& config, const Family& family) {
  const auto refuse = [&](const char* key) {
    config.fail(key, fmt::format("no experts in the family {}, which is read as a dense model", family.model_type));
  };
  bool counted = false;
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts",
                          "num_routed_experts"})
    if (config.has(key)) {
      counted = true;
      if (config.integer(key) > 1) refuse(key);
    }
  if (counted) return;  // none or one: the class does not use its other keys about experts
  for (const char* key : {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "moe_intermediate_size",
                          "shared_expert_intermediate_size", "num_experts_per_tok", "num_experts_per_token",
                          "experts_per_token", "moe_top_k", "moe_topk"})
    if (config.has(key) && config.integer(key) > 0) refuse(key);
}

}  // namespace

Model import_huggingface(const Json& json, const InputError::Where& where) {
  if (!json.is_object()) throw InputError(where, describe(json), "an object");
  const Config config(json, where);
  const Family& family = find_family(config);
  refuse_foreign_keys(config);
  refuse_other_classes(config, family);
  if (!family.experts) refuse_experts(config, family);
  Model model;
  model.name = config.text_or("_name_or_path", "");
  if (model.name.empty()) model.name = std::string(family.model_type);
  model.source = "Hugging Face config.json";
  family.read(config, model);
  refuse_contradictions(config, family.model_type, model);
  if (!model.vision() && model.max_positions < 1)
    throw InputError(where, fmt::format("a longest sequence of {} positions", model.max_positions), "at least 1");
  return model;
}

}  // namespace orrery
