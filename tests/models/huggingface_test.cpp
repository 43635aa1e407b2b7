// Is a Hugging Face config.json read as the model it describes, and is what cannot be read refused with a sentence?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <vector>

#include "models/read_model.h"
#include "sim/base/json_reader.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

const std::filesystem::path kData = std::filesystem::path(ORRERY_SOURCE_DIR) / "tests/models/data";

Json sample(const std::string& name) { return parse_json_file((kData / (name + ".json")).string()); }

// The architecture alone.
Json architecture(const Model& model) {
  Json json = to_json(model);
  for (const char* key : {"name", "source", "published_parameters", "published_active_parameters"}) json.erase(key);
  return json;
}

Json every_second_is_full(std::int64_t layers, const char* others) {
  Json types = Json::array();
  for (std::int64_t i = 0; i < layers; ++i) types.push_back(i % 2 == 0 ? others : "full_attention");
  return types;
}

TEST(HuggingFace, ConfigOfAReleasedModelIsThePreset) {
  int samples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kData)) {
    const std::string name = entry.path().stem().string();
    const Model imported = read_model(sample(name), {}), preset = read_model(name, {});
    EXPECT_EQ(architecture(imported), architecture(preset)) << name;
    EXPECT_EQ(parameters(imported), parameters(preset)) << name;
    ++samples;
  }
  EXPECT_GE(samples, 45);
}

TEST(HuggingFace, FamilyIsAlsoToldByTheClass) {
  for (const char* name :
       {"llama-3-8b",       "gpt2-124m",   "qwen2.5-7b",  "gemma-7b",     "gemma2-9b",         "phi-2",
        "phi-3-mini",       "swin-t",      "swin-v2-t",   "mixtral-8x7b", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b",
        "deepseek-moe-16b", "deepseek-v2", "deepseek-v3", "kimi-k2",      "gpt-oss-20b",       "dbrx",
        "olmoe-1b-7b",      "grok-1"}) {
    Json config = sample(name);
    config.erase("model_type");
    EXPECT_EQ(architecture(read_model(config, {})), architecture(read_model(name, {}))) << name;
  }
}

TEST(HuggingFace, ClassesOfForksAreTaken) {
  for (const auto& [name, class_name] :
       {std::pair{"llama-3-8b", "LLaMAForCausalLM"}, std::pair{"llama-3-8b", "BaichuanForCausalLM"},
        std::pair{"llama-3-8b", "OPTIMUSForCausalLM"}, std::pair{"llama-3-8b", "LlamaModel"},
        std::pair{"gpt2-124m", "GPT2LMHeadCustomModel"}, std::pair{"kimi-k2", "KimiK2ForCausalLM"},
        std::pair{"t5-small", "T5WithLMHeadModel"}, std::pair{"bert-base", "BertForPreTraining"},
        std::pair{"vit-b-16", "ViTModel"}}) {
    Json config = sample(name);
    config["architectures"] = {class_name};
    EXPECT_EQ(architecture(read_model(config, {})), architecture(read_model(name, {}))) << name << ' ' << class_name;
  }
}

// Libraries write out keys of what a model does not have.
TEST(HuggingFace, KeysThatSayNothingAreOfNoOtherArchitecture) {
  Json config = sample("llama-3-8b");
  const Model plain = read_model(config, {});
  for (const Json& nothing : {Json(), Json(false), Json(0), Json(""), Json::array(), Json::object()}) {
    config["attn_layer_period"] = nothing;
    EXPECT_EQ(architecture(read_model(config, {})), architecture(plain)) << nothing;
  }
  for (const Json& something : {Json(true), Json(8), Json("some"), Json{1, 2}}) {
    config["attn_layer_period"] = something;
    EXPECT_THROW(read_model(config, {}), InputError) << something;
  }
}

// In every family a key that agrees with the model changes nothing, and one that contradicts it is refused, unless the
// family goes by it.
TEST(HuggingFace, KeysAgreeWithTheModelOrAreRefusedInEveryFamily) {
  std::size_t refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kData)) {
    const std::string name = entry.path().stem().string();
    const Json config = sample(name);
    const Model model = read_model(config, {});
    if (model.vision()) continue;
    std::vector<std::tuple<const char*, Json, Json>> keys{
        // agrees, contradicts
        {"is_encoder_decoder", model.kind == ModelKind::encoder_decoder, model.kind != ModelKind::encoder_decoder},
        {"attention_bias", model.qkv_bias, !model.qkv_bias},
        {"attention_out_bias", model.output_bias, !model.output_bias},
        {"attention_output_bias", model.output_bias, !model.output_bias}};
    if (config.value("model_type", "") != "llama4_text")
      for (const char* key : {"use_qk_norm", "qk_norm", "qk_layernorm"})
        keys.emplace_back(key, model.qk_norm, !model.qk_norm);
    if (model.attention != AttentionKind::latent) {
      const std::int64_t kv = model.kv_heads > 0 ? model.kv_heads : model.heads;
      const std::int64_t dim = model.head_dim > 0 ? model.head_dim : model.hidden / model.heads;
      keys.emplace_back("num_key_value_heads", kv, kv == 1 ? 2 : kv / 2);
      keys.emplace_back("head_dim", dim, 2 * dim);
      keys.emplace_back("kv_lora_rank", 0, 512);
      keys.emplace_back("q_lora_rank", 0, 512);
    }
    for (const char* key : {"n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size"})
      if (model.shared_expert_ffn == 0) keys.emplace_back(key, 0, 3);
    if (model.has_experts()) {
      keys.emplace_back("moe_intermediate_size", model.expert_ffn, 2 * model.expert_ffn);
      if (model.dense_layers == 0 && model.expert_period == 1) keys.emplace_back("first_k_dense_replace", 0, 1);
      if (model.shared_expert_ffn == 0) keys.emplace_back("shared_intermediate_size", 0, 3);
    } else {
      for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts",
                              "num_moe_experts", "num_routed_experts"}) {
        keys.emplace_back(key, 0, 2);
        keys.emplace_back(key, 1, 8);
      }
      for (const char* key : {"moe_num_shared_experts", "moe_intermediate_size", "num_experts_per_tok",
                              "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_topk"})
        keys.emplace_back(key, 0, 1);
    }
    for (const auto& [key, agrees, contradicts] : keys) {
      Json changed = config;
      changed[key] = agrees;
      try {
        EXPECT_EQ(architecture(read_model(changed, {})), architecture(model)) << name << ' ' << key << ' ' << agrees;
      } catch (const InputError& error) {
        ADD_FAILURE() << name << ' ' << key << ' ' << agrees << ": " << error.what();
      }
      changed[key] = contradicts;
      try {
        EXPECT_NE(architecture(read_model(changed, {})), architecture(model)) << name << ' ' << key << " passed over";
      } catch (const InputError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 600u);
}

// Every key and word of another architecture that models/families.json has, wherever it may stand.
TEST(HuggingFace, EveryForeignKeyIsNamedAndMayBeEmpty) {
  const Json file = parse_json_file(ORRERY_SOURCE_DIR "/models/families.json");
  const Json config = sample("llama-3-8b");
  const Model plain = read_model(config, {});
  const auto refusal = [](const Json& changed) {
    try {
      read_model(changed, {"config.json", ""});
    } catch (const InputError& error) {
      return error.where().pointer + ": " + error.expected();
    }
    return std::string("read");
  };
  for (const Json& pair : file.at("foreign_keys")) {
    const std::string said = pair[0], key = said.ends_with('_') ? said + "x" : said;
    const std::string expected =
        "/" + key + ": a model without " + pair[1].get<std::string>() + ": that is not modelled";
    for (const Json& something : {Json(true), Json(1), Json(0.5), Json("a"), Json{0}, Json{{"a", 0}}}) {
      Json changed = config;
      changed[key] = something;
      EXPECT_EQ(refusal(changed), expected) << something;
      changed["model_type"] = "something_new";
      EXPECT_EQ(refusal(changed), expected) << "said before that the family is unknown: " << something;
    }
    for (const Json& nothing : {Json(), Json(false), Json(0), Json(0.0), Json(""), Json::array(), Json::object()}) {
      Json changed = config;
      changed[key] = nothing;
      EXPECT_EQ(architecture(read_model(changed, {})), architecture(plain)) << key << ' ' << nothing;
    }
  }
  for (const Json& pair : file.at("foreign_layers"))
    for (const char* key : {"layer_types", "layers_block_type", "block_types"}) {
      Json changed = config;
      changed[key] = {"full_attention", "a_" + pair[0].get<std::string>() + "_layer"};
      EXPECT_EQ(refusal(changed),
                std::string("/") + key + ": a model without " + pair[1].get<std::string>() + ": that is not modelled");
    }
}

// In every family a size that is not the sample's is another model, or refused; and numbers that are none are refused
// wherever a family reads one.
TEST(HuggingFace, EverySizeThatIsReadCounts) {
  const std::set<std::string> sizes{"hidden_size",
                                    "num_hidden_layers",
                                    "num_attention_heads",
                                    "vocab_size",
                                    "intermediate_size",
                                    "n_embd",
                                    "n_layer",
                                    "n_head",
                                    "d_model",
                                    "n_layers",
                                    "n_heads",
                                    "num_heads",
                                    "d_ff",
                                    "d_kv",
                                    "num_layers",
                                    "ffn_dim",
                                    "moe_intermediate_size",
                                    "num_experts",
                                    "num_local_experts",
                                    "n_routed_experts",
                                    "num_experts_per_tok",
                                    "embed_dim",
                                    "image_size",
                                    "patch_size",
                                    "q_lora_rank",
                                    "kv_lora_rank",
                                    "qk_rope_head_dim",
                                    "qk_nope_head_dim",
                                    "v_head_dim",
                                    "n_positions",
                                    "max_position_embeddings"};
  std::size_t changed_keys = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kData)) {
    const std::string name = entry.path().stem().string();
    const Json config = sample(name);
    const Json whole = architecture(read_model(config, {}));
    for (const auto& [key, value] : config.items()) {
      if (!value.is_number_integer() || !sizes.contains(key) || value == 0) continue;
      if (key == "num_layers" && config.contains("depths")) continue;  // Swin's: how many depths there are
      Json changed = config;
      ++changed_keys;
      changed[key] = 2 * value.get<std::int64_t>();
      try {
        EXPECT_NE(architecture(read_model(changed, {})), whole) << name << ' ' << key;
      } catch (const InputError&) {
      }
      for (const Json& wrong : {Json("a"), Json(-1), Json(1.5), Json(std::int64_t{1} << 41)}) {
        changed[key] = wrong;
        EXPECT_THROW(read_model(changed, {}), InputError) << name << ' ' << key << ' ' << wrong;
      }
    }
  }
  EXPECT_GT(changed_keys, 300u);
}

TEST(HuggingFace, ExpertsOfADenseFamilyMayBeNone) {
  Json config = sample("llama-3-8b");
  config.update({{"num_experts", 0}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 1408}});
  EXPECT_FALSE(read_model(config, {}).has_experts());
}

TEST(HuggingFace, MixtureWithoutTheCountOfItsExpertsIsRefused) {
  for (const auto& [name, key] :
       {std::pair{"deepseek-v3", "n_routed_experts"}, std::pair{"deepseek-v2", "n_routed_experts"},
        std::pair{"deepseek-moe-16b", "n_routed_experts"}, std::pair{"mixtral-8x7b", "num_local_experts"},
        std::pair{"qwen3-30b-a3b", "num_experts"}, std::pair{"llama4-scout", "num_local_experts"}}) {
    Json config = sample(name);
    config.erase(key);
    try {
      read_model(config, {"config.json", ""});
      ADD_FAILURE() << name << " is read as a dense model";
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, std::string("/") + key) << name;
    }
  }
}

TEST(HuggingFace, ConfigThatNamesNoFamilyIsToldFromAModel) {
  Json config = sample("llama-3-8b");
  config.erase("model_type");
  config.erase("architectures");
  try {
    read_model(config, {"config.json", ""});
    ADD_FAILURE() << "a family is guessed";
  } catch (const InputError& error) {
    EXPECT_EQ(error.found(), "no model_type: this looks like a Hugging Face config.json");
  }
}

TEST(HuggingFace, NameIsThatOfTheCheckpoint) {
  Json config = sample("llama-3-8b");
  EXPECT_EQ(read_model(config, {}).name, "llama");
  config["_name_or_path"] = "meta-llama/Meta-Llama-3-8B";
  EXPECT_EQ(read_model(config, {}).name, "meta-llama/Meta-Llama-3-8B");
  config["_name_or_path"] = "a\x1b[31m\nb";
  try {
    read_model(config, {"config.json", ""});
    ADD_FAILURE() << "acts on a terminal";
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/_name_or_path");
    EXPECT_EQ(error.expected(), "a text without control characters");
  }
}

TEST(HuggingFace, VariantsOfAFamilyAreTold) {
  Json gptneo = sample("pythia-1.4b");
  gptneo["use_parallel_residual"] = false;
  EXPECT_FALSE(read_model(gptneo, {}).parallel_block);

  Json vit = sample("vit-b-16");
  vit.erase("num_labels");
  vit["id2label"] = {{"0", "cat"}, {"1", "dog"}, {"2", "orrery"}};
  EXPECT_EQ(read_model(vit, {}).classes, 3);

  Json gemma = sample("gemma3-1b");
  gemma.erase("sliding_window_pattern");
  gemma["layer_types"] = every_second_is_full(gemma["num_hidden_layers"], "sliding_attention");
  EXPECT_EQ(read_model(gemma, {}).full_attention_period, 2);

  Json qwen = sample("qwen2.5-7b");
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 0;
  EXPECT_EQ(read_model(qwen, {}).sliding_window, 131072);
  qwen["sliding_window"] = 4096;
  qwen["max_window_layers"] = qwen["num_hidden_layers"];  // layers from this one on have a window
  EXPECT_EQ(read_model(qwen, {}).sliding_window, 0);

  Json llama = sample("llama-3-8b");
  llama["attention_bias"] = true;
  const Model biased = read_model(llama, {});
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias);
  EXPECT_FALSE(biased.linear_bias);

  Json opt = sample("opt-1.3b");
  opt["do_layer_norm_before"] = false;
  EXPECT_TRUE(read_model(opt, {}).post_norm);
}

// The dense layers that open a DeepSeek model are a model of their own.
TEST(HuggingFace, DeepSeekCutToItsDenseLayersIsRead) {
  Json config{{"model_type", "deepseek_v3"}, {"num_hidden_layers", 61},
              {"hidden_size", 7168},         {"num_attention_heads", 128},
              {"num_key_value_heads", 128},  {"intermediate_size", 18432},
              {"vocab_size", 129280},        {"max_position_embeddings", 163840},
              {"q_lora_rank", 1536},         {"kv_lora_rank", 512},
              {"qk_rope_head_dim", 64},      {"qk_nope_head_dim", 128},
              {"v_head_dim", 128},           {"n_routed_experts", 256},
              {"first_k_dense_replace", 3},  {"attention_bias", false}};
  EXPECT_THROW(read_model(config, {}), InputError);  // what a token goes to is missing
  config["num_hidden_layers"] = 3;
  EXPECT_FALSE(read_model(config, {}).has_experts());
  const Model model = read_model(config, {});
  EXPECT_EQ(model.attention, AttentionKind::latent);
  EXPECT_EQ(model.head_dim, 192);
  EXPECT_EQ(parameters(model), 2 * 129280LL * 7168 + 3 * (187'107'328 + 3 * 7168LL * 18432 + 2 * 7168) + 7168);
}

// Which layers have experts is said in as many ways as there are families.
TEST(HuggingFace, LayersWithExpertsAreTold) {
  const auto layers = [](const char* name, const char* patch) {
    Json config = sample(name);
    config.update(Json::parse(patch));
    const Model model = read_model(config, {});
    std::string kinds;
    for (std::int64_t layer = 0; model.has_experts() && layer < model.layers; ++layer)
      kinds += model.is_expert_layer(layer) ? 'e' : 'd';
    return kinds;
  };
  EXPECT_EQ(layers("mixtral-8x7b", R"({"num_hidden_layers": 3})"), "eee");
  EXPECT_EQ(layers("deepseek-v3", R"({"num_hidden_layers": 5})"), "dddee");
  EXPECT_EQ(layers("deepseek-v3", R"({"num_hidden_layers": 4})"), "ddde");
  EXPECT_EQ(layers("deepseek-moe-16b", R"({"num_hidden_layers": 7, "moe_layer_freq": 2})"), "ddedede");
  EXPECT_EQ(layers("deepseek-moe-16b", R"({"num_hidden_layers": 7, "moe_layer_freq": 3})"), "dddedde");
  EXPECT_EQ(layers("deepseek-moe-16b", R"({"num_hidden_layers": 2, "n_routed_experts": null})"), "");
  EXPECT_EQ(layers("qwen3-30b-a3b", R"({"num_hidden_layers": 4, "decoder_sparse_step": 2})"), "dede");
  EXPECT_EQ(layers("qwen3-30b-a3b", R"({"num_hidden_layers": 4, "mlp_only_layers": [1, 0]})"), "ddee");
  EXPECT_EQ(layers("qwen3-30b-a3b", R"({"num_hidden_layers": 2, "mlp_only_layers": [0, 1]})"), "");
  EXPECT_EQ(layers("llama4-maverick", R"({"num_hidden_layers": 4})"), "dede");
  EXPECT_EQ(layers("llama4-maverick", R"({"num_hidden_layers": 4, "moe_layers": [2, 3]})"), "ddee");
  EXPECT_EQ(layers("llama4-maverick", R"({"num_hidden_layers": 4, "moe_layers": []})"), "");
}

TEST(HuggingFace, RoutersAreTold) {
  const auto with = [](const char* name, const char* patch) {
    Json config = sample(name);
    config.update(Json::parse(patch));
    return read_model(config, {});
  };
  EXPECT_EQ(with("qwen3-30b-a3b", R"({"norm_topk_prob": false})").router_score, RouterScore::softmax);
  EXPECT_EQ(with("olmoe-1b-7b", R"({"norm_topk_prob": true})").router_score, RouterScore::softmax_of_top);
  EXPECT_EQ(with("deepseek-v3", R"({"norm_topk_prob": false})").router_score, RouterScore::sigmoid);
  EXPECT_EQ(with("deepseek-v3", R"({"scoring_func": "softmax"})").router_score, RouterScore::softmax_of_top);
  EXPECT_FALSE(with("deepseek-v3", R"({"topk_method": "greedy"})").router_score_bias);
  EXPECT_EQ(with("deepseek-v2", R"({"topk_method": "greedy"})").router_groups, 0);
  EXPECT_EQ(with("deepseek-v3", R"({"n_shared_experts": 3})").shared_expert_ffn, 3 * 2048);
  EXPECT_EQ(with("deepseek-v3", R"({"n_shared_experts": null})").shared_expert_ffn, 0);
  EXPECT_FALSE(with("qwen2-57b-a14b", R"({"shared_expert_intermediate_size": 0})").shared_expert_gate);
  EXPECT_EQ(
      with("dbrx", R"({"ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}})").router_score,
      RouterScore::softmax);
  // Layers of multi-token prediction are no part of the main model.
  EXPECT_EQ(parameters(with("deepseek-v3", R"({"num_nextn_predict_layers": 0})")),
            parameters(with("deepseek-v3", R"({"num_nextn_predict_layers": 2})")));
}

// transformers, modeling_rope_utils.py: the factor is 0.1 ln(factor) + 1 unless the configuration says otherwise.
TEST(HuggingFace, YarnScalesUnlessItsFactorIsOne) {
  const auto scales = [](const char* name, Json scaling) {
    Json config = sample(name);
    config["rope_scaling"] = std::move(scaling);
    return read_model(config, {}).scaled_rotary;
  };
  const Json yarn{{"rope_type", "yarn"}, {"factor", 4.0}};
  const auto with = [&](Json more) {
    more.update(yarn);
    return more;
  };
  EXPECT_TRUE(scales("qwen3-8b", yarn));
  EXPECT_TRUE(scales("qwen3-8b", {{"type", "yarn"}, {"factor", 4.0}}));
  EXPECT_TRUE(scales("qwen3-8b", with({{"mscale", 1.0}})));
  EXPECT_TRUE(scales("deepseek-v3", with({{"mscale", 0.7}, {"mscale_all_dim", 1.0}})));
  EXPECT_FALSE(scales("deepseek-v3", with({{"mscale", 1.0}, {"mscale_all_dim", 1.0}})));
  EXPECT_FALSE(scales("qwen3-8b", with({{"attention_factor", 1.0}})));
  EXPECT_FALSE(scales("qwen3-8b", {{"rope_type", "yarn"}, {"factor", 1.0}}));
  EXPECT_FALSE(scales("qwen3-8b", {{"rope_type", "llama3"}, {"factor", 8.0}}));
  EXPECT_FALSE(scales("qwen3-8b", nullptr));
  EXPECT_FALSE(scales("gpt2-124m", yarn));
}

TEST(HuggingFace, ChunksOfLlama4AreWindows) {
  const auto with = [](const char* patch) {
    Json config = sample("llama4-scout");
    config.update(Json::parse(patch));
    return read_model(config, {});
  };
  EXPECT_EQ(with(R"({"no_rope_layer_interval": 3})").full_attention_period, 3);
  EXPECT_EQ(with(R"({"no_rope_layers": [1, 0, 1, 0]})").full_attention_period, 2);
  const Json types = every_second_is_full(sample("llama4-scout")["num_hidden_layers"], "chunked_attention");
  EXPECT_EQ(with(Json{{"layer_types", types}}.dump().c_str()).full_attention_period, 2);
  EXPECT_EQ(with(R"({"attention_chunk_size": null})").sliding_window, 0);
}

struct BadConfig {
  const char* sample;  // changed by `patch` (null removes the key)
  const char* patch;
  const char* sentence;  // part of it
};

const BadConfig kBadConfigs[] = {
    {"llama-3-8b", R"({"model_type": "mixtral", "architectures": null})",
     "/model/num_local_experts: found nothing, expected an integer"},
    {"llama-3-8b", R"({"model_type": "glm4_moe"})",
     R"(/model/model_type: found "glm4_moe", expected a supported family: bert, bloom,)"},
    {"llama-3-8b", R"({"model_type": "qwen3_next"})",
     R"(found "qwen3_next", expected a supported family: bert, bloom,)"},
    {"llama-3-8b", R"({"num_local_experts": 8})",
     "/model/num_local_experts: found 8, expected no experts in the family llama, which is read as a dense model"},
    {"minicpm3-4b", R"({"n_routed_experts": 256})",
     "/model/n_routed_experts: found 256, expected no experts in the family minicpm3, which is read as a dense model"},
    {"mixtral-8x7b", R"({"num_experts_per_tok": 9})",
     "/model: found experts_per_token = 9, expected from 1 to the 8 experts"},
    {"mixtral-8x7b", R"({"num_local_experts": 0})",
     "/model: found experts_per_token = 2, expected nothing without experts"},
    {"qwen3-30b-a3b", R"({"mlp_only_layers": [5]})",
     "/model/mlp_only_layers: found an array of 1, expected experts in every n-th layer after the first dense ones"},
    {"qwen3-30b-a3b", R"({"decoder_sparse_step": 0})",
     "/model/decoder_sparse_step: found 0, expected an integer of at least 1"},
    {"qwen3-30b-a3b", R"({"moe_intermediate_size": null})",
     "/model/moe_intermediate_size: found nothing, expected an integer"},
    {"deepseek-moe-16b", R"({"first_k_dense_replace": 0, "moe_layer_freq": 2})",
     "/model/moe_layer_freq: found 2, expected experts in every n-th layer after the first dense ones"},
    {"deepseek-v3", R"({"scoring_func": "tanh"})",
     R"(/model/scoring_func: found "tanh", expected "softmax" or "sigmoid")"},
    {"deepseek-v3", R"({"topk_method": "random"})", R"(/model/topk_method: found "random", expected "greedy",)"},
    {"deepseek-v3", R"({"topk_group": null})", "/model/topk_group: found nothing, expected an integer"},
    {"deepseek-v3", R"({"n_group": 7})", "/model: found router_groups = 7, expected a divisor of the 256 experts"},
    {"deepseek-v3", R"({"topk_group": 9})",
     "/model: found router_best_groups = 9, expected at most the 8 router_groups"},
    // What the family's reader would not look for.
    {"qwen3-8b", R"({"layer_types": ["full_attention", "linear_attention"]})",
     R"(/model/layer_types: found "linear_attention", expected a model without linear attention: that is not)"},
    {"qwen3-8b", R"({"linear_num_value_heads": 48})",
     "/model/linear_num_value_heads: found 48, expected a model without linear"},
    {"qwen3-8b", R"({"full_attention_interval": 4})", "expected a model without linear attention"},
    {"qwen3-8b", R"({"attn_output_gate": true})",
     "/model/attn_output_gate: found true, expected a model without gates"},
    {"qwen3-8b", R"({"vision_config": {"depth": 27}})", "expected a model without image input"},
    {"qwen3-8b", R"({"use_qk_norm": false})", "/model/use_qk_norm: found false, expected true for the family qwen3"},
    {"qwen3-8b", R"({"attention_bias": false, "layer_types": ["sliding_attention"]})",
     R"(found "sliding_attention" in layer 0, expected full_attention for the family qwen3)"},
    {"qwen2.5-7b", R"({"attention_bias": false})", "/model/attention_bias: found false, expected true"},
    {"deepseek-v3", R"({"index_topk": 2048})",
     "/model/index_topk: found 2048, expected a model without sparse attention"},
    {"deepseek-v3", R"({"model_type": "deepseek_v32", "index_topk": 2048})",
     "expected a model without sparse attention"},
    {"mixtral-8x7b", R"({"model_type": "granitemoehybrid", "mamba_d_state": 128})",
     "/model/mamba_d_state: found 128, expected a model without state-space layers: that is not modelled"},
    {"mixtral-8x7b", R"({"model_type": null, "architectures": ["JambaForCausalLM"], "attn_layer_period": 8})",
     "expected a model without state-space layers"},
    {"mixtral-8x7b", R"({"shared_expert_intermediate_size": 512})",
     "/model/shared_expert_intermediate_size: found 512, expected 0 for the family mixtral"},
    {"mixtral-8x7b", R"({"moe_intermediate_size": 512})", "/model/moe_intermediate_size: found 512, expected 14336"},
    {"llama-3-8b", R"({"sliding_window": 4096})",
     "/model/sliding_window: found 4096, expected no window for the family"},
    {"llama-3-8b", R"({"kv_lora_rank": 512})", "/model/kv_lora_rank: found 512, expected 0 for the family llama"},
    {"llama-3-8b", R"({"use_qk_norm": true})", "/model/use_qk_norm: found true, expected false for the family llama"},
    {"llama-3-8b", R"({"attention_bias": true, "attention_out_bias": false})",
     "/model/attention_out_bias: found false, expected true for the family llama"},
    {"llama-3-8b", R"({"is_encoder_decoder": true})", "/model/is_encoder_decoder: found true, expected false"},
    {"llama-3-8b", R"({"num_moe_experts": 8})", "expected no experts in the family llama"},
    {"pythia-1.4b", R"({"num_key_value_heads": 4})", "/model/num_key_value_heads: found 4, expected 16"},
    {"gpt-oss-20b", R"({"layer_types": ["chunked_attention"]})",
     R"(/model/layer_types: found an array of 1, expected "full_attention" and "sliding_attention" only)"},
    {"llama4-scout", R"({"no_rope_layers": [1, 0, 0]})",
     "/model/no_rope_layers: found an array of 3, expected full attention in every n-th layer"},
    {"llama4-scout", R"({"model_type": "llama4", "text_config": {}})",
     "/model/text_config: found an empty object, expected a model of only text or only images; its text_config may be"},
    {"dbrx", R"({"ffn_config": {"ffn_hidden_size": 8, "moe_num_experts": 4, "moe_top_k": 2,
                                "moe_normalize_expert_weights": 2}})",
     "/model/ffn_config/moe_normalize_expert_weights: found 2, expected 1 or null"},
    {"dbrx", R"({"ffn_config": {"ffn_hidden_size": 8, "moe_num_experts": 4, "moe_top_k": 2, "ffn_act_fn": "gelu"}})",
     R"(/model/ffn_config/ffn_act_fn: found "gelu", expected an object)"},
    {"dbrx", R"({"ffn_config": null})", "/model/ffn_config: found nothing, expected an object"},
    {"llama-3-8b", R"({"model_type": "lama"})",
     R"(/model/model_type: found "lama", expected a supported family: bert, bloom,)"},
    {"llama-3-8b", R"({"model_type": "lama"})", R"(did you mean "llama"?)"},
    {"llama-3-8b", R"({"model_type": "mamba2"})", R"(found "mamba2", expected a supported family: )"},
    {"llama-3-8b", R"({"model_type": 3})", "/model/model_type: found 3, expected a string"},
    {"llama-3-8b", R"({"model_type": null, "architectures": ["LamaForCausalLM"]})",
     R"(/model/architectures: found "LamaForCausalLM", expected a supported family: )"},
    {"llama-3-8b", R"({"model_type": null, "architectures": []})",
     "/model/architectures: found an empty array, expected a model_type"},
    {"gemma3-1b", R"({"model_type": "gemma3", "text_config": {}})",
     "/model/text_config: found an empty object, expected a model of only text or only images"},
    {"llama-3-8b", R"({"hidden_size": null})", "/model/hidden_size: found nothing, expected an integer"},
    {"llama-3-8b", R"({"vocab_size": null})", "/model/vocab_size: found nothing, expected an integer"},
    {"llama-3-8b", R"({"hidden_size": "4096"})", R"(/model/hidden_size: found "4096", expected an integer)"},
    {"llama-3-8b", R"({"hidden_size": -4096})", "/model/hidden_size: found -4096, expected an integer of at least 0"},
    {"llama-3-8b", R"({"hidden_size": 1000000000})",
     "/model: found hidden = 1000000000, expected an integer from 0 to 2097152"},
    {"llama-3-8b", R"({"num_hidden_layers": 0})", "/model: found layers = 0, expected at least 1"},
    {"llama-3-8b", R"({"num_attention_heads": 33})",
     "/model: found kv_heads = 8, expected a divisor of the 33 attention heads"},
    {"llama-3-8b", R"({"num_attention_heads": 24})",
     "/model: found heads = 24, expected a divisor of hidden = 4096, or"},
    {"llama-3-8b", R"({"hidden_act": "tanh"})",
     R"(/model/hidden_act: found "tanh", expected "silu" or a "gelu" in a gated MLP)"},
    {"llama-3-8b", R"({"tie_word_embeddings": "no"})",
     R"(/model/tie_word_embeddings: found "no", expected true or false)"},
    {"llama-3-8b", R"({"attention_dropout": "none"})", R"(/model/attention_dropout: found "none", expected a number)"},
    {"llama-3-8b", R"({"attention_dropout": 1.5})", "/model: found dropout = 1.5, expected a number from 0 to 1"},
    {"gpt2-124m", R"({"activation_function": "silu"})",
     R"(/model/activation_function: found "silu", expected "relu", "relu2")"},
    {"gpt2-124m", R"({"n_positions": null, "n_ctx": null})", "/model/n_positions: found nothing, expected an integer"},
    {"opt-1.3b", R"({"word_embed_proj_dim": 512})",
     "/model/word_embed_proj_dim: found 512, expected hidden_size = 2048: projected embeddings are not modelled"},
    {"phi-2", R"({"qk_layernorm": true})", "/model/qk_layernorm: found true, expected false"},
    {"qwen2.5-7b", R"({"use_sliding_window": true, "max_window_layers": 14})",
     "/model/max_window_layers: found 14, expected 0 or num_hidden_layers"},
    {"olmo3-32b", R"({"layer_types": ["full_attention", "sliding_attention"]})",
     "/model/layer_types: found an array of 2, expected full attention in every n-th layer"},
    {"olmo3-32b", R"({"layer_types": ["linear_attention"]})",
     R"(found "linear_attention", expected a model without linear attention: that is not)"},
    {"qwen3-8b", R"({"layer_types": ["full_attention", "full_attention"]})",
     "/model/layer_types: found an array of 2, expected 36 kinds of attention, one a layer"},
    {"mpt-7b-alibi", R"({"attn_config": 3})", "/model/attn_config: found 3, expected an object"},
    {"mpt-7b-alibi", R"({"attn_config": {"alibi": 1}})", "/model/attn_config/alibi: found 1, expected true or false"},
    {"mpt-7b-alibi", R"({"expansion_ratio": 0})", "/model/expansion_ratio: found 0, expected a number greater than 0"},
    {"roberta-base", R"({"max_position_embeddings": 2})",
     "/model/max_position_embeddings: found 2, expected an integer of at least 3"},
    {"t5-small", R"({"feed_forward_proj": "gated-tanh"})", R"(/model/feed_forward_proj: found "gated-tanh", expected)"},
    {"vit-b-16", R"({"num_labels": null})", "/model/num_labels: found nothing, expected an integer"},
    {"vit-b-16", R"({"patch_size": 15})", "/model: found patch_size = 15, expected a divisor of image_size = 224"},
    {"swin-t", R"({"depths": 12})", "/model/depths: found 12, expected an array of integers"},
    {"swin-t", R"({"num_heads": [3, 6]})",
     "/model: found stage_heads = an array of 2, expected as many values as the 4 stages"},
    {"swin-t", R"({"window_size": 8})",
     "/model: found window = 8, expected a divisor of the feature map's side, 28 in stage 2"},
    {"swin-t", R"({"mlp_ratio": 2.5})", "/model/mlp_ratio: found 2.5, expected a whole number"},
    {"minicpm3-4b", R"({"kv_lora_rank": null})", "/model/kv_lora_rank: found nothing, expected an integer"},
    // Classes of other families and with other heads.
    {"llama-3-8b", R"({"architectures": ["LlamaForSequenceClassification"]})",
     R"(/model/architectures: found "LlamaForSequenceClassification", expected a class name with ForCausalLM or For)"},
    {"llama-3-8b", R"({"architectures": ["LlamaForTokenClassification"]})", "other heads are not modelled"},
    {"llama-3-8b", R"({"architectures": "LlamaForTokenClassification"})", "other heads are not modelled"},
    {"llama-3-8b", R"({"model_type": null, "architectures": ["LlamaForQuestionAnswering"]})", "other heads are not"},
    {"llama-3-8b", R"({"architectures": ["T5EncoderModel"]})",
     R"(/model/architectures: found "T5EncoderModel", expected a class of the model_type llama, not of t5)"},
    {"llama-3-8b", R"({"architectures": ["MixtralForCausalLM"]})", "a class of the model_type llama, not of mixtral"},
    {"llama-3-8b", R"({"architectures": ["MPTForCausalLM"]})", "a class of the model_type llama, not of mpt"},
    {"llama-3-8b", R"({"architectures": ["MistralTunedForCausalLM"]})", "of the model_type llama, not of mistral"},
    {"phi-2", R"({"architectures": ["Phi3ForCausalLM"]})", "a class of the model_type phi, not of phi3"},
    {"t5-small", R"({"architectures": ["T5EncoderModel"]})",
     "expected a class name with ForConditionalGeneration: other"},
    {"bert-base", R"({"architectures": ["BertForSequenceClassification"]})",
     "expected a class name with ForMaskedLM or ForPre"},
    {"vit-b-16", R"({"architectures": ["ViTForMaskedImageModeling"]})",
     "expected a class name with ForImageClassification"},
    // Experts that a dense family would pass over, and experts that a mixture does not count.
    {"llama-3-8b", R"({"n_shared_experts": 2})", "/model/n_shared_experts: found 2, expected no experts in the family"},
    {"llama-3-8b", R"({"moe_intermediate_size": 1408})", "/model/moe_intermediate_size: found 1408, expected no exp"},
    {"llama-3-8b", R"({"num_experts_per_tok": 2})", "/model/num_experts_per_tok: found 2, expected no experts in"},
    {"deepseek-v3", R"({"n_routed_experts": null})", "/model/n_routed_experts: found nothing, expected an integer"},
    {"llama-3-8b", R"({"intermediate_size": 0})", "/model/intermediate_size: found 0, expected an integer of at least"},
    {"qwen3-30b-a3b", R"({"moe_intermediate_size": 0})", "/model/moe_intermediate_size: found 0, expected an integer"},
    {"dbrx", R"({"ffn_config": {"ffn_hidden_size": 0, "moe_num_experts": 4, "moe_top_k": 2}})",
     "/model/ffn_config/ffn_hidden_size: found 0, expected an integer of at least 1"},
    {"gpt2-124m", R"({"n_inner": 0})", "/model/n_inner: found 0, expected an integer of at least 1"},
    {"t5-small", R"({"num_decoder_layers": 0})", "/model/num_decoder_layers: found 0, expected an integer of at least"},
};

TEST(HuggingFace, WhatCannotBeReadGetsASentence) {
  for (const BadConfig& bad : kBadConfigs) {
    Json config = sample(bad.sample);
    config.update(Json::parse(bad.patch));
    try {
      read_model(config, {"scenario.json", "/model"});
      ADD_FAILURE() << bad.sample << " with " << bad.patch << " was accepted";
    } catch (const InputError& e) {
      EXPECT_THAT(e.what(), HasSubstr(bad.sentence)) << bad.sample << " with " << bad.patch;
      EXPECT_EQ(e.where().file, "scenario.json");
    }
  }
}

}  // namespace
}  // namespace orrery
