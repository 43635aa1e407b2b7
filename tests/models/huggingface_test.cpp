// Is a Hugging Face config.json read as the model it describes, and is what cannot be read refused with a sentence?
#include "models/huggingface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

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
  for (const char* key : {"name", "source", "published_parameters"}) json.erase(key);
  return json;
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
  EXPECT_GE(samples, 30);
}

TEST(HuggingFace, FamilyIsAlsoToldByTheClass) {
  for (const char* name : {"llama-3-8b", "gpt2-124m", "qwen2.5-7b", "gemma-7b", "gemma2-9b", "phi-2", "phi-3-mini",
                           "swin-t", "swin-v2-t"}) {
    Json config = sample(name);
    config.erase("model_type");
    EXPECT_EQ(architecture(read_model(config, {})), architecture(read_model(name, {}))) << name;
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
  gemma["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(read_model(gemma, {}).full_attention_period, 2);

  Json qwen = sample("qwen2.5-7b");
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 0;
  EXPECT_EQ(read_model(qwen, {}).sliding_window, 131072);

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
  EXPECT_THROW(read_model(config, {}), InputError);
  config["num_hidden_layers"] = 3;
  const Model model = read_model(config, {});
  EXPECT_EQ(model.attention, AttentionKind::latent);
  EXPECT_EQ(model.head_dim, 192);
  EXPECT_EQ(parameters(model), 2 * 129280LL * 7168 + 3 * (187'107'328 + 3 * 7168LL * 18432 + 2 * 7168) + 7168);
}

struct BadConfig {
  const char* sample;  // changed by `patch` (null removes the key)
  const char* patch;
  const char* sentence;  // part of it
};

const BadConfig kBadConfigs[] = {
    {"llama-3-8b", R"({"model_type": "mixtral"})",
     R"(/model/model_type: found "mixtral", expected a dense model: mixture-of-experts models are not modelled yet)"},
    {"llama-3-8b", R"({"model_type": "qwen3_moe"})",
     R"(found "qwen3_moe", expected a dense model: mixture-of-experts)"},
    {"llama-3-8b", R"({"model_type": "qwen2_moe"})",
     R"(found "qwen2_moe", expected a dense model: mixture-of-experts)"},
    {"llama-3-8b", R"({"model_type": "gpt_oss"})", R"(found "gpt_oss", expected a dense model: mixture-of-experts)"},
    {"llama-3-8b", R"({"num_local_experts": 8})",
     "/model/num_local_experts: found 8, expected a dense model: mixture-of-experts"},
    {"minicpm3-4b", R"({"model_type": "deepseek_v3", "n_routed_experts": 256, "first_k_dense_replace": 3})",
     "/model/n_routed_experts: found 256, expected a dense model: mixture-of-experts"},
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
     "/model/text_config: found an empty object, expected a model of text or of images alone"},
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
     R"(expected "full_attention" and "sliding_attention" only)"},
    {"mpt-7b-alibi", R"({"attn_config": 3})", "/model/attn_config: found 3, expected an object"},
    {"mpt-7b-alibi", R"({"attn_config": {"alibi": 1}})", "/model/attn_config/alibi: found 1, expected true or false"},
    {"mpt-7b-alibi", R"({"expansion_ratio": 0})", "/model/expansion_ratio: found 0, expected a number greater than 0"},
    {"roberta-base", R"({"max_position_embeddings": 2})",
     "/model/max_position_embeddings: found 2, expected an integer of at least 3"},
    {"t5-small", R"({"feed_forward_proj": "gated-tanh"})", R"(/model/feed_forward_proj: found "gated-tanh", expected)"},
    {"vit-b-16", R"({"num_labels": null})", "/model/num_labels: found nothing, expected an integer"},
    {"vit-b-16", R"({"patch_size": 15})", "/model: found patch_size = 15, expected a divisor of image_size = 224"},
    {"swin-t", R"({"depths": 12})", "/model/depths: found 12, expected an array of integers"},
    {"swin-t", R"({"num_heads": [3, 6]})", "/model: found stage_heads = 2, expected as many values as the 4 stages"},
    {"swin-t", R"({"window_size": 8})",
     "/model: found window = 8, expected a divisor of the feature map's side, 28 in stage 2"},
    {"swin-t", R"({"mlp_ratio": 2.5})", "/model/mlp_ratio: found 2.5, expected a whole number"},
    {"minicpm3-4b", R"({"kv_lora_rank": null})", "/model/kv_lora_rank: found nothing, expected an integer"},
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
