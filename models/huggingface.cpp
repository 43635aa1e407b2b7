#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "models/read_model.h"
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

  // `key`: "a/b" is the key b of the object a, as everywhere below.
  const Json* find(std::string_view key) const {
    const Json* value = &object_;
    while (value->is_object()) {
      const std::size_t end = std::min(key.find('/'), key.size());
      const auto found = value->find(std::string(key.substr(0, end)));
      if (found == value->end() || found->is_null()) return nullptr;
      value = &*found;
      if (end == key.size()) return value;
      key.remove_prefix(end + 1);
    }
    return nullptr;
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
  std::int64_t integer_or(const char* key, std::int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }

  double number_or(const char* key, double otherwise) const {
    return value_or(key, otherwise, &Json::is_number, "a number");
  }
  bool boolean_or(const char* key, bool otherwise) const {
    return value_or(key, otherwise, &Json::is_boolean, "true or false");
  }
  std::string text_or(const char* key, const char* otherwise) const {
    const auto text = value_or<std::string>(key, otherwise, &Json::is_string, "a string");
    if (has_control_characters(text)) fail(key, "a text without control characters");
    return text;
  }
  std::vector<std::int64_t> integers(const char* key) const {
    const Json* value = find(key);
    const auto is_integer = [](const Json& j) { return j.is_number_integer(); };
    if (value == nullptr || !value->is_array() || !std::ranges::all_of(*value, is_integer))
      fail(key, "an array of integers");
    return value->get<std::vector<std::int64_t>>();
  }
  Config object(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr || !value->is_object()) fail(key, "an object");
    return {*value, at(key)};
  }

  // A rule of a family (models/families.json) names the key whose value counts, or gives the value itself.
  struct Chosen {
    std::string key;
    Json value;
  };
  Chosen choose(const Json& rule) const {
    if (rule.is_string()) return needed(rule);
    if (rule.contains("is")) return {"", rule["is"]};
    if (rule.contains("if")) return {"", rule[truth(rule["if"]) ? "then" : "else"]};
    for (const Json& each : rule) {
      if (each.is_object()) return {"", each.at("or")};
      check_way_to(each.get_ref<const std::string&>(), false);
      if (has(each.get_ref<const std::string&>().c_str())) return {each, {}};
    }
    return needed(rule.front());
  }
  bool truth(const Json& rule) const {
    if (rule.is_object() && rule.contains("not")) return !truth(rule["not"]);
    const Chosen chosen = choose(rule);
    return chosen.key.empty() ? chosen.value.get<bool>() : boolean_or(chosen.key.c_str(), false);
  }

 private:
  template <class Value>
  Value value_or(const char* key, Value otherwise, bool (Json::*is)() const noexcept, const char* expected) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!(value->*is)()) fail(key, expected);
    return value->get<Value>();
  }
  // Throws if a part of the way to `key` is not an object, or, if it is `needed`, is missing.
  void check_way_to(std::string_view key, bool needed) const {
    for (std::size_t end = key.find('/'); end != key.npos; end = key.find('/', end + 1))
      if (const std::string way(key.substr(0, end)); needed || has(way.c_str())) object(way.c_str());
  }
  Chosen needed(const std::string& key) const {
    check_way_to(key, true);
    return {key, {}};
  }

  const Json& object_;
  InputError::Where where_;
};

// `name`: one of transformers' ACT2FN, which `key` says.
ActivationFunction activation(const Config& config, const char* key, const std::string& name, bool gated) {
  const bool gelu = name.starts_with("gelu");  // gelu_new, gelu_pytorch_tanh, ...: one cost
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

// How many layers apart those with full attention are: those of the array `key` that equal `full`; all others are
// `windowed`.
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
  if (!holds) config.fail(key, "experts in every n-th layer after the first dense ones, in the last of each n");
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

// ---- steps: what no rule of models/families.json says

void layer_types(const Config& config, Model& m) {
  m.full_attention_period = full_attention_period(config, m.full_attention_period);
}

void window_is_all(const Config&, Model& m) {
  if (m.sliding_window >= m.max_positions) m.sliding_window = 0;
}

// "use_sliding_window" makes the layers from max_window_layers on slide.
void qwen_window(const Config& config, Model& m) {
  if (!config.boolean_or("use_sliding_window", false)) return;
  const std::int64_t full_layers = config.integer("max_window_layers");
  if (full_layers >= m.layers) return;
  if (full_layers > 0) config.fail("max_window_layers", "0 or num_hidden_layers: a window in all layers or in none");
  m.sliding_window = config.integer("sliding_window");
}

void latent_attention(const Config& config, Model& m) {
  if (!config.has("v_head_dim")) m.value_head_dim = m.heads > 0 ? m.hidden / m.heads : 0;
  if (m.qkv_bias) config.fail("attention_bias", "false");
}

void softmax_scores(const Config& config, Model& m) { m.router_score = router_score(config, "softmax", false); }

// Qwen's, where every "decoder_sparse_step"-th layer has experts but those of "mlp_only_layers".
void qwen_experts(const Config& config, Model& m) {
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

void qwen_shared_expert(const Config& config, Model& m) {
  if (!m.has_experts()) return;
  m.shared_expert_ffn = config.integer("shared_expert_intermediate_size");
  m.shared_expert_gate = m.shared_expert_ffn > 0;
}

// "num_nextn_predict_layers", the layers of multi-token prediction, are no part of the main model.
void set_deepseek_experts(const Config& config, Model& m, const char* scoring_func, const char* topk_method) {
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

void deepseek_experts(const Config& config, Model& m) { set_deepseek_experts(config, m, "softmax", "greedy"); }
void deepseek_v3_experts(const Config& config, Model& m) { set_deepseek_experts(config, m, "sigmoid", "noaux_tc"); }

// Without the attention sinks, a number for each head.
void gpt_oss_window(const Config& config, Model& m) {
  m.clamped_activation = config.number_or("swiglu_limit", 7) > 0;  // GptOssConfig
  if (m.sliding_window > 0) m.full_attention_period = full_attention_period(config, 2);
}

// A token attends to its chunk; here to as many positions before it, which is the same up to one chunk's length. Query
// and key norms have no weights and are left out.
void llama4_chunks(const Config& config, Model& m) {
  if (m.sliding_window == 0) return;
  const auto listed = [&](const char* key) {
    const Json* list = config.find(key);
    return list != nullptr && !list->empty();
  };
  if (listed("layer_types")) {
    m.full_attention_period = period_of_full(config, "layer_types", "full_attention", "chunked_attention");
  } else if (listed("no_rope_layers")) {  // layers without positions attend to all
    m.full_attention_period = period_of_full(config, "no_rope_layers", 0, 1);
  } else {
    m.full_attention_period = config.integer_or("no_rope_layer_interval", 4);  // Llama4TextConfig
  }
}

void llama4_experts(const Config& config, Model& m) {
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

void dbrx_experts(const Config& config, Model& m) {
  if (m.ffn == 0) config.fail("ffn_config/ffn_hidden_size", "an integer of at least 1");
  constexpr const char* kNormalised = "ffn_config/moe_normalize_expert_weights";
  if (!config.has(kNormalised)) return;
  if (config.number_or(kNormalised, 1) != 1) config.fail(kNormalised, "1 or null");
  m.router_score = RouterScore::softmax_of_top;
}

void opt_projection(const Config& config, Model& m) {  // its position table begins at an offset of 2
  if (config.integer_or("word_embed_proj_dim", m.hidden) != m.hidden)
    config.fail("word_embed_proj_dim",
                fmt::format("hidden_size = {}: projected embeddings are not modelled", m.hidden));
}

void mpt(const Config& config, Model& m) {
  const double ratio = config.number_or("expansion_ratio", 4);
  if (!(ratio > 0) || ratio > 1024) config.fail("expansion_ratio", "a number greater than 0 and at most 1024");
  m.ffn = static_cast<std::int64_t>(std::llround(ratio * static_cast<double>(m.hidden)));
  if (!config.has("attn_config")) return;
  const Config attention = config.object("attn_config");
  if (attention.boolean_or("alibi", false)) m.positions = Positions::alibi;
  if (attention.boolean_or("rope", false)) m.positions = Positions::rotary;
  const std::string type = attention.text_or("attn_type", "multihead_attention");
  if (type == "multiquery_attention") m.kv_heads = 1;
  if (type == "grouped_query_attention") m.kv_heads = attention.integer("kv_n_heads");
  m.qk_norm = m.qk_norm_across_heads = attention.boolean_or("qk_ln", false);
}

void falcon(const Config& config, Model& m) {
  const bool new_architecture = config.boolean_or("new_decoder_architecture", false);
  if (new_architecture) {
    m.kv_heads = config.integer_or("num_kv_heads", m.heads);
  } else if (config.boolean_or("multi_query", true)) {
    m.kv_heads = 1;
  }
  m.parallel_block = new_architecture || config.boolean_or("parallel_attn", true);
  m.parallel_norms = new_architecture && config.integer_or("num_ln_in_parallel_attn", 2) == 2;
}

void roberta_positions(const Config& config, Model& m) {  // they begin behind the padding index, 1
  if (m.max_positions <= m.extra_positions) config.fail("max_position_embeddings", "an integer of at least 3");
  m.max_positions -= m.extra_positions;
}

void t5_activation(const Config& config, Model& m) {
  constexpr const char* kKey = "feed_forward_proj";
  const std::string mlp = config.text_or(kKey, "relu");
  m.activation = mlp == "gated-gelu"   ? ActivationFunction::geglu
                 : mlp == "gated-silu" ? ActivationFunction::swiglu
                                       : activation(config, kKey, mlp, false);
}

void labels(const Config& config, Model& m) {
  const Json* names = config.find("id2label");
  if (names != nullptr && !names->is_object()) config.fail("id2label", "an object");
  m.classes = names != nullptr ? static_cast<std::int64_t>(names->size()) : config.integer("num_labels");
}

void swin_ffn(const Config& config, Model& m) {
  const double ratio = config.number_or("mlp_ratio", 4);
  if (!(ratio >= 1) || ratio > 1024 || std::trunc(ratio) != ratio)
    config.fail("mlp_ratio", "a whole number from 1 to 1024");
  m.ffn = static_cast<std::int64_t>(ratio) * m.hidden;
}

using Step = void (*)(const Config&, Model&);
constexpr std::pair<std::string_view, Step> kSteps[] = {{"layer_types", layer_types},
                                                        {"window_is_all", window_is_all},
                                                        {"qwen_window", qwen_window},
                                                        {"latent_attention", latent_attention},
                                                        {"softmax_scores", softmax_scores},
                                                        {"qwen_experts", qwen_experts},
                                                        {"qwen_shared_expert", qwen_shared_expert},
                                                        {"deepseek_experts", deepseek_experts},
                                                        {"deepseek_v3_experts", deepseek_v3_experts},
                                                        {"gpt_oss_window", gpt_oss_window},
                                                        {"llama4_chunks", llama4_chunks},
                                                        {"llama4_experts", llama4_experts},
                                                        {"dbrx_experts", dbrx_experts},
                                                        {"opt_projection", opt_projection},
                                                        {"mpt", mpt},
                                                        {"falcon", falcon},
                                                        {"roberta_positions", roberta_positions},
                                                        {"t5_activation", t5_activation},
                                                        {"labels", labels},
                                                        {"swin_ffn", swin_ffn}};

// ---- families

struct Family {
  std::string model_type;
  std::string class_prefix;  // the names of its classes in "architectures" begin so
  std::string read_as;       // the family whose fields and steps it has: itself, or one of another name
  bool gated = false, mixture = false;
  Json fields;  // a rule each
  std::vector<Step> steps;
};

// Resolves a family of models/families.json with all its bases. Throws std::exception for a mistake in the file.
Family family_of(const Json& families, const std::string& name) {
  const Json& said = families.at(name);
  Family family;
  if (said.contains("base")) family = family_of(families, said["base"]);
  family.model_type = name;
  family.class_prefix = said.value("class", "");
  if (said.contains("fields") || said.contains("steps") || family.read_as.empty()) family.read_as = name;
  family.gated = said.value("gated", family.gated);
  family.mixture = said.value("mixture", false);
  family.fields.update(said.value("fields", Json::object()));
  for (const std::string step : said.value("steps", Json::array())) {
    const auto known = std::ranges::find(kSteps, step, &std::pair<std::string_view, Step>::first);
    if (known == std::end(kSteps)) throw std::logic_error("models/families.json: no step \"" + step + '"');
    family.steps.push_back(known->second);
  }
  return family;
}

// The content of models/families.json.
struct FamilyFile {
  std::vector<Family> families;  // those that a config.json may be of, by name
  std::vector<std::pair<std::string, std::string>> foreign_keys, foreign_layers;
};
const FamilyFile& family_file() {
  static const FamilyFile read = [] {
    const Json json = parse_embedded("models/families.json");
    const Json& families = json.at("families");
    FamilyFile file{{}, json.at("foreign_keys"), json.at("foreign_layers")};
    for (const auto& [name, said] : families.items())
      if (said.contains("class")) file.families.push_back(family_of(families, name));
    return file;
  }();
  return read;
}
const std::vector<Family>& all_families() { return family_file().families; }

// Sets the fields of a model by the rules of its family, then by its steps.
void read_as(const Family& family, const Config& config, Model& model) {
  std::map<std::string, std::int64_t> read;
  std::size_t applied = 0;
  EachField each([&](const VisitedField& field, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if (const auto rule = family.fields.find(field.name); rule != family.fields.end()) {
      ++applied;
      if constexpr (std::is_same_v<Value, bool>) {
        value = config.truth(*rule);
      } else {
        const auto [key, said] = config.choose(*rule);
        if constexpr (std::is_same_v<Value, std::int64_t>) {
          value = !key.empty()       ? config.integer(key.c_str())
                  : said.is_string() ? read.at(said.get<std::string>().substr(1))  // "=heads"
                                     : said.get<std::int64_t>();
        } else if constexpr (std::is_same_v<Value, double>) {
          value = key.empty() ? said.get<double>() : config.number_or(key.c_str(), 0);
        } else if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
          value = config.integers(key.c_str());
        } else if constexpr (std::is_same_v<Value, std::size_t>) {
          const std::string word = key.empty() ? said.get<std::string>() : config.text_or(key.c_str(), "");
          value = std::string_view(field.name) == "activation"
                      ? static_cast<std::size_t>(activation(config, key.c_str(), word, family.gated))
                      : static_cast<std::size_t>(std::ranges::find(field.names, word) - field.names.begin());
        }
      }
    }
    if constexpr (std::is_same_v<Value, std::int64_t>) read[field.name] = value;
  });
  model.visit_fields(each);
  if (applied != family.fields.size())
    throw std::logic_error("models/families.json: a rule of " + family.model_type + " is for no field of a model");
  for (const Step step : family.steps) step(config, model);
}

// "LlamaForCausalLM", "GPT2LMHeadModel", "ViTModel" are of the families Llama, GPT2, ViT.
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
  for (const Family& family : all_families())
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
    if (other != nullptr && other->read_as != family.read_as)
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
      throw InputError(
          config.at("architectures"), describe(value),
          fmt::format("a class name with For{}: other heads are not modelled", fmt::join(heads, " or For")));
  });
}

// ---- keys that the reader of a family does not look for

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
      for (const auto& [word, what] : family_file().foreign_layers)
        if (name.find(word) != std::string::npos) throw InputError(config.at(key), describe(type), not_modelled(what));
    }
  }
}

void refuse_foreign_keys(const Config& config) {
  refuse_foreign_layers(config);
  const auto says_nothing = [](const Json& value) {
    return value.is_null() || value == false || value == 0 || (value.is_structured() && value.empty()) || value == "";
  };
  for (const auto& [foreign, what] : family_file().foreign_keys)
    for (const auto& [key, value] : config.items()) {
      const bool is = foreign.ends_with('_') ? key.starts_with(foreign) : key == foreign;
      if (!is || says_nothing(value)) continue;
      throw InputError(config.at(key.c_str()), describe(value), not_modelled(what));
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
                       fmt::format("{} for the family {} with this sliding_window",
                                   read_full ? "full_attention" : "sliding_attention", model_type));
  }
  if (static_cast<std::int64_t>(types->size()) != m.layers)
    config.fail("layer_types", fmt::format("{} kinds of attention, one a layer", m.layers));
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

// YaRN's factor on rotated queries and keys, as in transformers' modeling_rope_utils.py.
double rotary_factor(const Config& config) {
  const char* const key = config.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const Json* said = config.find(key);
  if (said == nullptr || !said->is_object()) return 1;
  const Config scaling = config.object(key);
  if (scaling.text_or("rope_type", scaling.text_or("type", "").c_str()) != "yarn") return 1;
  if (scaling.has("attention_factor")) return scaling.number_or("attention_factor", 1);
  const double factor = scaling.number_or("factor", 1);
  const auto of = [&](double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; };
  const double scale = scaling.number_or("mscale", 0), all = scaling.number_or("mscale_all_dim", 0);
  return scale != 0 && all != 0 ? of(scale) / of(all) : of(1);
}

// Throws if the config says something that the model, read as one of `model_type`, does not have.
void refuse_contradictions(const Config& config, std::string_view model_type, const Model& m) {
  const auto as_read = [&](const std::string& what) { return fmt::format("{} for the family {}", what, model_type); };
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
  // Qwen's window only counts if use_sliding_window is set, and in layers from max_window_layers on.
  const bool of_qwen = config.has("max_window_layers");
  const bool window_used = config.boolean_or("use_sliding_window", !of_qwen) &&
                           !(of_qwen && config.integer("max_window_layers") >= m.layers);
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
  const std::vector<Family>& all = all_families();
  std::vector<std::string> valid;
  for (const Family& family : all) valid.push_back(family.model_type);
  const std::string expected = fmt::format("a supported family: {}", fmt::join(valid, ", "));

  if (config.has("model_type")) {
    const std::string type = config.text_or("model_type", "");
    if (config.has("text_config"))
      config.fail("text_config", "a model of only text or only images; its text_config may be one");
    const auto family = std::ranges::find(all, type, &Family::model_type);
    if (family != all.end()) return *family;
    refuse_foreign_keys(config);
    config.fail("model_type", expected, nearest_name(type, valid));
  }
  const Json* classes = config.find("architectures");
  if (classes == nullptr || !classes->is_array() || classes->empty() || !classes->front().is_string())
    config.fail("architectures", "a model_type, or an array with the name of a model class");
  const auto& name = classes->front().get_ref<const std::string&>();
  const auto family = std::ranges::find_if(all, [&](const Family& f) { return of_class(name, f.class_prefix); });
  if (family != all.end()) return *family;
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
  if (!family.mixture) refuse_experts(config, family);
  Model model;
  model.name = config.text_or("_name_or_path", "");
  if (model.name.empty()) model.name = family.model_type;
  model.source = "Hugging Face config.json";
  read_as(family, config, model);
  if (model.positions == Positions::rotary) model.scaled_rotary = rotary_factor(config) != 1;
  refuse_contradictions(config, family.model_type, model);
  if (!model.vision() && model.max_positions < 1)
    throw InputError(where, fmt::format("a longest sequence of {} positions", model.max_positions), "at least 1");
  return model;
}

}  // namespace orrery
