// Does every preset stand, is a written-out model completed as documented, and do wrong ones get a sentence?
#include "sim/base/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "models/read_model.h"
#include "sim/base/json_reader.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

Model model_of(const Json& json) { return read_model(json, {"scenario.json", "/model"}); }

std::string error_of(const Json& json) {
  try {
    model_of(json);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

Json preset_file(const EmbeddedFile& file) { return parse_json(file.text, std::string(file.path)); }

TEST(Presets, AllStandWithTheirSource) {
  const std::vector<std::string> names = model_names();
  EXPECT_GE(names.size(), 200u);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : names) {
    const Model model = model_of(name);
    EXPECT_EQ(model.name, name);
    EXPECT_FALSE(model.source.empty()) << name;
    EXPECT_GT(parameters(model), 0) << name;
    EXPECT_TRUE(model.max_positions > 0 || model.kind == ModelKind::swin) << name << ": sequence_length 0 means this";
  }
}

TEST(Presets, NamesAndAliasesMeanOneModel) {
  std::set<std::string> seen;
  for (const EmbeddedFile& file : embedded_files("models/presets/")) {
    const Json presets = preset_file(file);
    for (const char* section : {"models", "not_modelled"}) {
      if (!presets.contains(section)) continue;
      for (const auto& [name, entry] : presets.at(section).items()) {
        EXPECT_TRUE(seen.insert(name).second) << name;
        for (const Json& alias : entry.value("aliases", Json::array())) {
          EXPECT_TRUE(seen.insert(alias.get<std::string>()).second) << alias;
          if (section == std::string("not_modelled")) continue;
          EXPECT_EQ(model_of(alias).name, name);
        }
      }
    }
  }
}

TEST(Presets, AreFoundInAnyLetterCase) {
  EXPECT_EQ(model_of("Llama-3-70B").name, "llama-3-70b");
  EXPECT_EQ(model_of("meta-llama/Meta-Llama-3-70B").name, "llama-3-70b");
  EXPECT_EQ(model_of("GPT3-175B").name, "gpt3-175b");
  // Two models whose names differ in nothing else.
  EXPECT_EQ(model_of("vit-G/14").layers, 48);
  EXPECT_EQ(model_of("vit-g/14").layers, 40);
}

TEST(Presets, HaveTheFieldsOfTheirFamily) {
  const Model llama = model_of("llama-3-70b");
  EXPECT_EQ(llama.layers, 80);
  EXPECT_EQ(llama.hidden, 8192);
  EXPECT_EQ(llama.heads, 64);
  EXPECT_EQ(llama.kv_heads, 8);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.ffn, 28672);
  EXPECT_EQ(llama.vocab, 128256);
  EXPECT_EQ(llama.max_positions, 8192);
  EXPECT_EQ(llama.activation, ActivationFunction::swiglu);
  EXPECT_EQ(llama.positions, Positions::rotary);
  EXPECT_EQ(llama.norm, NormKind::rmsnorm);
  EXPECT_FALSE(llama.tied_embeddings || llama.linear_bias || llama.qkv_bias || llama.output_bias);
  EXPECT_EQ(llama.dropout, 0);

  const Model gpt = model_of("megatron-1t");
  EXPECT_EQ(gpt.head_dim, 160);
  EXPECT_EQ(gpt.kv_heads, 160);
  EXPECT_EQ(gpt.ffn, 102400);
  EXPECT_EQ(gpt.positions, Positions::learned);
  EXPECT_TRUE(gpt.tied_embeddings && gpt.linear_bias && gpt.qkv_bias && gpt.output_bias);
  EXPECT_EQ(gpt.dropout, 0.1);

  const Model palm = model_of("palm-540b");
  EXPECT_EQ(palm.kv_heads, 1);
  EXPECT_TRUE(palm.parallel_block && palm.tied_embeddings);
  EXPECT_FALSE(palm.linear_bias || palm.norm_bias);
  EXPECT_EQ(model_of("t5-11b").decoder_layers, 24);
  EXPECT_EQ(model_of("vit-l-16").max_positions, 197);
  EXPECT_EQ(model_of("swin-b").layers, 24);
  EXPECT_EQ(model_of("gemma3-12b").full_attention_period, 6);
}

TEST(Presets, MayBeChanged) {
  const Model model = model_of({{"preset", "Llama-3-8B"}, {"layers", 4}});
  EXPECT_EQ(model.name, "llama-3-8b, changed");
  EXPECT_EQ(model.layers, 4);
  EXPECT_EQ(model.hidden, 4096);
  EXPECT_EQ(model.published_parameters, 0);
  EXPECT_EQ(model_of({{"preset", "llama-3-8b"}, {"layers", 4}, {"name", "slice"}}).name, "slice");
  EXPECT_EQ(model_of({{"preset", "llama-3-8b"}}).published_parameters, 8030261248.0);
  // What the preset leaves to follow from other fields follows from the changed ones.
  const Model wider = model_of({{"preset", "gpt3-175b"}, {"hidden", 6144}});
  EXPECT_EQ(wider.ffn, 4 * 6144);
  EXPECT_EQ(wider.head_dim, 64);
}

TEST(Presets, OfMixturesOfExpertsHaveTheFieldsOfTheirFamily) {
  const Model mixtral = model_of("mixtral");
  EXPECT_EQ(mixtral.name, "mixtral-8x7b");
  EXPECT_EQ(mixtral.experts, 8);
  EXPECT_EQ(mixtral.experts_per_token, 2);
  EXPECT_EQ(mixtral.expert_ffn, 14336);
  EXPECT_EQ(mixtral.router_score, RouterScore::softmax_of_top);
  EXPECT_TRUE(mixtral.is_expert_layer(0));

  const Model deepseek = model_of("deepseek-r1");
  EXPECT_EQ(deepseek.name, "deepseek-v3");
  EXPECT_EQ(deepseek.attention, AttentionKind::latent);
  EXPECT_FALSE(deepseek.is_expert_layer(2));
  EXPECT_TRUE(deepseek.is_expert_layer(3) && deepseek.is_expert_layer(60));
  EXPECT_EQ(deepseek.router_score, RouterScore::sigmoid_of_top);
  EXPECT_TRUE(deepseek.router_score_bias);
  EXPECT_EQ(deepseek.router_scale, 2.5);

  const Model maverick = model_of("llama4-maverick");
  EXPECT_FALSE(maverick.is_expert_layer(0) || maverick.is_expert_layer(46));
  EXPECT_TRUE(maverick.is_expert_layer(1) && maverick.is_expert_layer(47));
  EXPECT_EQ(model_of("gpt-oss-20b").full_attention_period, 2);
  EXPECT_TRUE(model_of("gpt-oss-20b").expert_bias && model_of("gpt-oss-20b").router_bias);
  EXPECT_TRUE(model_of("qwen2-57b-a14b").shared_expert_gate);

  // A changed mixture of experts is none that was published.
  const Model changed = model_of({{"preset", "deepseek-v2"}, {"layers", 4}});
  EXPECT_EQ(changed.published_parameters, 0);
  EXPECT_EQ(changed.published_active_parameters, 0);
}

TEST(Presets, OfDenseModelsSayNothingOfExperts) {
  const Json json = to_json(model_of("llama-3-8b"));
  for (const auto& [key, value] : json.items())
    EXPECT_TRUE(key.find("expert") == std::string::npos && key.find("router") == std::string::npos) << key;
}

TEST(WrittenOut, ASwigluDecoderIsLikeLlama) {
  const Model model = model_of({{"layers", 32},
                                {"hidden", 4096},
                                {"heads", 32},
                                {"kv_heads", 8},
                                {"head_dim", 128},
                                {"ffn", 14336},
                                {"activation", "swiglu"},
                                {"vocab", 128256}});
  EXPECT_EQ(parameters(model), 8'030'261'248);
  EXPECT_EQ(model.dropout, 0);
  EXPECT_EQ(model.name, "custom");
}

TEST(WrittenOut, AGeluDecoderIsLikeGpt) {
  const Model model =
      model_of({{"layers", 96}, {"hidden", 12288}, {"heads", 96}, {"activation", "gelu"}, {"vocab", 51200}});
  EXPECT_EQ(parameters(model), parameters(model_of("gpt3-175b")));
  EXPECT_EQ(model.dropout, 0.1);
}

TEST(WrittenOut, OtherKindsAreLikeTheirFirstModel) {
  const Json sizes{{"layers", 12}, {"hidden", 768}, {"heads", 12}};
  const auto with = [&](const Json& fields) {
    Json json = sizes;
    json.update(fields);
    return parameters(model_of(json));
  };
  EXPECT_EQ(with({{"kind", "encoder"}, {"vocab", 30522}}), parameters(model_of("bert-base")));
  EXPECT_EQ(with({{"kind", "encoder_decoder"}, {"vocab", 32128}, {"activation", "relu"}}),
            parameters(model_of("t5-base")));
  EXPECT_EQ(with({{"kind", "encoder_decoder"}, {"vocab", 32128}, {"activation", "geglu"}, {"ffn", 2048}}),
            parameters(model_of("t5-v1.1-base")));
  EXPECT_EQ(with({{"kind", "vit"}, {"patch_size", 16}}), parameters(model_of("vit-b-16")));
  EXPECT_EQ(parameters(model_of({{"kind", "swin"},
                                 {"hidden", 96},
                                 {"patch_size", 4},
                                 {"window", 7},
                                 {"stage_layers", {2, 2, 6, 2}},
                                 {"stage_heads", {3, 6, 12, 24}}})),
            parameters(model_of("swin-t")));
}

TEST(WrittenOut, LinearBiasAloneSpeaksForAttention) {
  const Json sizes{{"layers", 1}, {"hidden", 8}, {"heads", 2}, {"vocab", 5}};
  Json json = sizes;
  json["linear_bias"] = false;
  const Model none = model_of(json);
  EXPECT_FALSE(none.linear_bias || none.output_bias || none.qkv_bias);
  json["qkv_bias"] = true;
  const Model qkv = model_of(json);
  EXPECT_TRUE(qkv.qkv_bias);
  EXPECT_FALSE(qkv.output_bias);
}

TEST(WrittenOut, EveryPresetSurvivesWritingAndReading) {
  for (const std::string& name : model_names()) {
    const Json json = to_json(model_of(name));
    EXPECT_EQ(to_json(model_of(json)), json) << name;
  }
}

TEST(Mistakes, KnownModelsThatAreNotModelledAreNamed) {
  EXPECT_EQ(error_of("qwen3-next-80b-a3b"),
            "scenario.json: /model: found \"qwen3-next-80b-a3b\", of the family Qwen3-Next, expected a supported "
            "model: hybrids of attention and gated delta nets are not modelled yet");
  for (const EmbeddedFile& file : embedded_files("models/presets/")) {
    const Json presets = preset_file(file);
    if (!presets.contains("not_modelled")) continue;
    for (const auto& [name, entry] : presets.at("not_modelled").items()) {
      EXPECT_THAT(error_of(name), HasSubstr("not modelled yet"));
      EXPECT_THAT(error_of(name), HasSubstr("of the family " + entry.at("family").get<std::string>()));
    }
  }
}

struct BadModel {
  const char* json;
  const char* sentence;  // part of it
};

const BadModel kBadModels[] = {
    {R"("llama-3-7b")", R"(: found "llama-3-7b", expected the name of a model, a config.json, or a written-out model)"},
    {R"("lama-3-8b")", R"(did you mean "llama-3-8b"?)"},
    {R"("")", R"(: found "", expected the name of a model)"},
    {"3", ": found 3, expected the name of a model, or an object that describes one"},
    {"[]", ": found an empty array, expected the name of a model, or"},
    {"null", ": found null, expected the name of a model, or"},
    {"{}", "/hidden: found 0, expected at least 1"},
    {R"({"preset": 3})", "/preset: found 3, expected the name of a model"},
    {R"({"preset": "gpt3-175"})", R"(written-out model (did you mean "gpt3-175b"?))"},
    {R"({"preset": "llama-3-8b", "layer": 4})",
     R"(/layer: found the unknown key "layer", expected a known key (did you mean "layers"?))"},
    {R"({"preset": "llama-3-8b", "kv_heads": 5})", "/kv_heads: found 5, expected a divisor of the 32 attention heads"},
    {R"({"preset": "llama-3-8b", "experts": 8})", "/experts_per_token: found 0, expected from 1 to the 8 experts"},
    {R"({"preset": "llama-3-8b", "experts_per_token": 2})",
     "/experts_per_token: found 2, expected nothing without experts"},
    {R"({"preset": "llama-3-8b", "expert_period": 2})", "/expert_period: found 2, expected nothing without experts"},
    {R"({"preset": "llama-3-8b", "router_best_groups": 2})",
     "/router_best_groups: found 2, expected nothing without experts"},
    {R"({"preset": "llama-3-8b", "router_bias": true})", "/router_bias: found true, expected false without experts"},
    {R"({"preset": "llama-3-8b", "router_score": "sigmoid"})",
     "/router_score: found \"sigmoid\", expected nothing without experts"},
    {R"({"preset": "llama-3-8b", "router_scale": 2})",
     "/router_scale: found 2, expected nothing without experts"},
    {R"({"preset": "mixtral-8x7b", "experts_per_token": 9})",
     "/experts_per_token: found 9, expected from 1 to the 8 experts"},
    {R"({"preset": "mixtral-8x7b", "dense_layers": 32})",
     "/dense_layers: found 32, expected less than the 32 layers: the others have experts"},
    {R"({"preset": "mixtral-8x7b", "dense_layers": 30, "expert_period": 3})",
     "/expert_period: found 3, expected at most the 2 layers after the dense ones"},
    {R"({"preset": "llama-3-8b", "router_noise": true})", "/router_noise: found true, expected false without experts"},
    {R"({"preset": "llama-3-8b", "moe_aux_loss_coeff": 0.01})",
     "/moe_aux_loss_coeff: found 0.01, expected nothing without experts"},
    {R"({"preset": "llama-3-8b", "moe_z_loss_coeff": 0.01})",
     "/moe_z_loss_coeff: found 0.01, expected nothing without experts"},
    {R"({"preset": "llama-3-8b", "moe_router_load_balancing_type": "seq_aux_loss"})",
     "/moe_router_load_balancing_type: found \"seq_aux_loss\", expected nothing without experts"},
    {R"({"preset": "mixtral-8x7b", "shared_expert_gate": true})",
     "/shared_expert_gate: found true, expected false without shared_expert_ffn"},
    {R"({"preset": "mixtral-8x7b", "router_groups": 4})",
     "/router_best_groups: found 0, expected at least 1 of the router_groups"},
    {R"({"preset": "mixtral-8x7b", "router_best_groups": 1})",
     "/router_best_groups: found 1, expected nothing without router_groups"},
    {R"({"preset": "mixtral-8x7b", "router_groups": 3, "router_best_groups": 1})",
     "/router_groups: found 3, expected a divisor of the 8 experts"},
    {R"({"preset": "mixtral-8x7b", "router_groups": 4, "router_best_groups": 5})",
     "/router_best_groups: found 5, expected at most the 4 router_groups"},
    {R"({"preset": "mixtral-8x7b", "router_groups": 8, "router_best_groups": 1})",
     "/experts_per_token: found 2, expected at most the 1 experts of router_best_groups groups"},
    {R"({"preset": "llama-3-8b", "router_type": "base"})",
     "/router_type: found \"base\", expected nothing without experts"},
    {R"({"preset": "mixtral-8x7b", "router_type": "expert_choice"})",
     "/router_score: found \"softmax_of_top\", expected \"softmax\" or \"sigmoid\" with router_type \"expert_choice\""},
    {R"({"preset": "mixtral-8x7b", "router_type": "base"})",
     "/experts_per_token: found 2, expected 1 with router_type \"base\""},
    {R"({"preset": "mixtral-8x7b", "router_type": "hash", "experts_per_token": 1})",
     "/router_score: found \"softmax_of_top\", expected nothing with router_type \"hash\""},
    {R"({"preset": "mixtral-8x7b", "router_type": "hash", "experts_per_token": 1, "router_score": "softmax",
         "moe_z_loss_coeff": 0.1})",
     "/moe_z_loss_coeff: found 0.1, expected nothing with router_type \"hash\", which has no logits"},
    {R"({"preset": "mixtral-8x7b", "router_type": "base", "experts_per_token": 1, "moe_aux_loss_coeff": 0.1})",
     "/moe_aux_loss_coeff: found 0.1, expected nothing with router_type \"base\", which balances by itself"},
    {R"({"preset": "mixtral-8x7b", "router_type": "base", "experts_per_token": 1, "router_noise": true})",
     "/router_noise: found true, expected false with router_type \"base\""},
    {R"({"preset": "deepseek-v3", "router_type": "expert_choice", "router_score": "sigmoid"})",
     "/router_groups: found 8, expected nothing with router_type \"expert_choice\""},
    {R"({"preset": "mixtral-8x7b", "router_score": "softmx"})", R"(did you mean "softmax"?)"},
    {R"({"preset": "gptj-6b", "experts": 8, "experts_per_token": 1})",
     "/parallel_block: found true, expected false with experts"},
    {R"({"preset": "bert-base", "experts": 8, "experts_per_token": 1})",
     "/experts: found 8, expected nothing except in a decoder"},
    {R"({"preset": "t5-base", "experts": 8, "experts_per_token": 1})",
     "/experts: found 8, expected nothing except in a decoder"},
    {R"({"hiden": 64})", R"(/hiden: found the unknown key "hiden", expected a known key (did you mean "hidden"?))"},
    {R"({"layers": 0, "hidden": 64, "heads": 4, "vocab": 8})", "/layers: found 0, expected at least 1"},
    {R"({"layers": -1})", "/layers: found -1, expected an integer from 0 to 65536"},
    {R"({"layers": 2.5})", "/layers: found 2.5, expected an integer from 0 to 65536"},
    {R"({"layers": "two"})", R"(/layers: found "two", expected an integer)"},
    {R"({"layers": 2, "hidden": 64, "vocab": 8})", "/heads: found 0, expected at least 1"},
    {R"({"layers": 2, "hidden": 64, "heads": 4})", "/vocab: found 0, expected at least 1"},
    {R"({"layers": 2, "hidden": 64, "heads": 3, "vocab": 8})",
     "/heads: found 3, expected a divisor of hidden = 64, or an explicit head_dim"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 8, "vocab": 8})",
     "/kv_heads: found 8, expected a divisor of the 4 attention heads"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "activation": "swish"})",
     R"(/activation: found "swish", expected one of "gelu", "relu")"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "activation": "swigl"})", R"(did you mean "swiglu"?)"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "kind": "cnn"})",
     R"(/kind: found "cnn", expected one of "decoder", "encoder")"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "dropout": 1})", "/dropout: found 1, expected less than 1"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "dropout": -0.1})",
     "/dropout: found -0.1, expected a number from 0 to 1"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "tied_embeddings": 1})",
     "/tied_embeddings: found 1, expected true or false"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "max_positions": 0})",
     "/max_positions: found 0, expected an integer from 1 to"},
    {R"({"layers": 2, "hidden": 60, "heads": 4, "vocab": 8, "positions": "rotary"})",
     "/head_dim: found 15, expected an even number"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "positions": "relative"})",
     "/relative_buckets: found 0, expected at least 1"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "decoder_layers": 2})",
     "/decoder_layers: found 2, expected nothing except in an encoder-decoder model"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "image_size": 224})",
     "/image_size: found 224, expected nothing in a text model"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "window": 7})",
     "/window: found 7, expected nothing except for a Swin Transformer (text models: sliding_window)"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "post_norm": true, "parallel_block": true})",
     "/post_norm: found true, expected false in a parallel block"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "parallel_norms": true})",
     "/parallel_norms: found true, expected false without parallel_block"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "input_norm": false})",
     "/input_norm: found false, expected true unless output_norm is true"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "qk_norm_across_heads": true})",
     "/qk_norm_across_heads: found true, expected false without qk_norm"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "full_attention_period": 2})",
     "/full_attention_period: found 2, expected nothing without a sliding_window"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "attention": "latent"})",
     "/kv_lora_rank: found 0, expected at least 1 for latent attention"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "kv_lora_rank": 16})",
     "/kv_lora_rank: found 16, expected nothing unless attention is latent"},
    {R"({"layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "topk": 2})",
     R"(/topk: found the unknown key "topk", expected one of: name, source, kind,)"},
    {R"({"layers": 2, "hidden": 3000000, "heads": 4, "vocab": 8})",
     "/hidden: found 3000000, expected an integer from 0 to 2097152"},
    {R"({"layers": 2, "hidden": 64, "heads": 4096, "head_dim": 4096, "vocab": 8})",
     "/head_dim: found 4096, expected heads x head_dim of at most 2097152"},
    {R"({"kind": "vit", "layers": 2, "hidden": 64, "heads": 4})", "/patch_size: found 0, expected at least 1"},
    {R"({"kind": "vit", "layers": 2, "hidden": 64, "heads": 4, "patch_size": 15})",
     "/patch_size: found 15, expected a divisor of image_size = 224"},
    {R"({"kind": "vit", "layers": 2, "hidden": 64, "heads": 4, "patch_size": 16, "max_positions": 196})",
     "/max_positions: found 196, expected the 197 patches and class token"},
    {R"({"kind": "vit", "layers": 2, "hidden": 64, "heads": 4, "patch_size": 16, "activation": "swiglu"})",
     "/activation: found \"swiglu\", expected gelu, relu or quick_gelu"},
    {R"({"kind": "swin", "hidden": 96, "patch_size": 4, "window": 7})",
     "/stage_layers: found nothing, expected the layers of each stage"},
    {R"({"kind": "swin", "hidden": 96, "patch_size": 4, "window": 7, "stage_layers": [2, 2], "stage_heads": [3, 5]})",
     "/stage_heads/1: found 5, expected a divisor of the 192 channels of stage 2"},
    {R"({"kind": "swin", "hidden": 96, "patch_size": 4, "window": 7, "stage_layers": [2, "x"]})",
     R"(/stage_layers/1: found "x", expected an integer)"},
    {R"({"kind": "swin", "hidden": 96, "patch_size": 4, "window": 7, "image_size": 28, "stage_layers": [1, 1],
         "stage_heads": [3, 6]})",
     "/image_size: found 28, expected a multiple of patch_size x 2^1"},
    {R"({"kind": "encoder_decoder", "layers": 2, "hidden": 64, "heads": 4, "vocab": 8, "sliding_window": 4})",
     "/sliding_window: found 4, expected nothing in an encoder-decoder model"},
};

TEST(Mistakes, GetASentence) {
  for (const BadModel& bad : kBadModels) {
    const std::string sentence = error_of(Json::parse(bad.json));
    EXPECT_THAT(sentence, StartsWith("scenario.json: /model")) << bad.json;
    EXPECT_THAT(sentence, HasSubstr(bad.sentence)) << bad.json;
  }
}

}  // namespace
}  // namespace orrery
