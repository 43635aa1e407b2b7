// Are the parameter counts those that the models' authors and their checkpoints state?
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/read_model.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

Model read(const Json& json) { return read_model(json, {}); }
std::int64_t count(const Json& json) { return parameters(read(json)); }

struct KnownCount {
  const char* name;
  std::int64_t parameters;
};

// Counts of released checkpoints, to the last parameter: Hugging Face Hub (text models), torchvision (vision).
constexpr KnownCount kKnownCounts[] = {
    {"gpt2-124m", 124'439'808},
    {"gpt2-xl", 1'557'611'200},
    {"gptj-6b", 6'050'882'784},
    {"gpt-neox-20b", 20'554'567'680},
    {"pythia-1.4b", 1'414'647'808},
    {"opt-125m", 125'239'296},
    {"opt-6.7b", 6'658'473'984},
    {"bloom-176b", 176'247'271'424},
    {"bloomberggpt-50b", 50'558'868'480},
    {"mosaicml/mpt-7b", 6'649'286'656},
    {"falcon-7b", 6'921'720'704},
    {"falcon-40b", 41'303'293'952},
    {"llama-7b", 6'738'415'616},
    {"llama-2-7b", 6'738'415'616},
    {"llama-2-13b", 13'015'864'320},
    {"llama-2-70b", 68'976'648'192},
    {"llama-3-8b", 8'030'261'248},
    {"llama-3-70b", 70'553'706'496},
    {"llama-3.1-405b", 405'853'388'800},
    {"llama-3.2-1b", 1'235'814'400},
    {"tinyllama-1.1b", 1'100'048'384},
    {"mistral-7b", 7'241'732'096},
    {"qwen2.5-7b", 7'615'616'512},
    {"qwen2.5-72b", 72'706'203'648},
    {"qwen3-0.6b", 596'049'920},
    {"qwen3-8b", 8'190'735'360},
    {"qwen3-32b", 32'762'123'264},
    {"mixtral-8x7b", 46'702'792'704},
    {"mixtral-8x22b", 140'620'634'112},
    {"deepseek-moe-16b", 16'375'728'128},
    {"deepseek-v2", 235'741'434'880},
    {"deepseek-v2-lite", 15'706'484'224},
    {"deepseek-v3", 671'026'419'200 - 58 * 256},  // without the biases on the scores, which no gradient moves
    {"gpt-oss-20b", 20'914'757'184 - 24 * 64},    // without the attention sinks
    {"gpt-oss-120b", 116'829'156'672 - 36 * 64},
    {"qwen1.5-moe-a2.7b", 14'315'784'192},
    {"qwen3-30b-a3b", 30'532'122'624},
    {"qwen3-235b-a22b", 235'093'634'560},
    {"olmoe-1b-7b", 6'919'161'856},
    {"dbrx", 131'596'523'520},
    {"gemma-7b", 8'537'680'896},
    {"gemma2-9b", 9'241'705'984},
    {"gemma3-1b", 999'885'952},
    {"olmo2-7b", 7'298'617'344},
    {"phi-2", 2'779'683'840},
    {"phi-3-mini", 3'821'079'552},
    {"smollm3-3b", 3'075'098'624},
    {"starcoder2-3b", 3'030'371'328},
    {"roberta-base", 124'697'433},
    {"t5-small", 60'506'624},
    {"t5-11b", 11'307'321'344},
    {"t5-v1.1-base", 247'577'856},
    {"mt5-small", 300'176'768},
    {"vit-b-16", 86'567'656},
    {"vit-l-16", 304'326'632},
    {"vit-h-14", 632'045'800},
    {"swin-t", 28'288'354},
    {"swin-b", 87'768'224},
};

TEST(Parameters, EqualTheCountsOfReleasedCheckpoints) {
  for (const KnownCount& known : kKnownCounts) EXPECT_EQ(count(known.name), known.parameters) << known.name;
}

// Half a unit of the last digit that is not 0: what rounding may have taken away.
double rounding(double published) {
  double unit = 1;
  while (std::fmod(published, unit * 10) == 0) unit *= 10;
  return unit / 2;
}

TEST(Parameters, AreThePublishedOnesForEveryPreset) {
  int stated = 0, exact = 0;
  for (const std::string& name : model_names()) {
    const Model model = read(name);
    if (model.published_parameters == 0) continue;
    ++stated;
    const double published = model.published_parameters, counted = static_cast<double>(parameters(model));
    // A count that is no multiple of ten thousand was counted, not rounded.
    if (rounding(published) < 5'000) {
      ++exact;
      EXPECT_EQ(counted, published) << name;
    } else {
      EXPECT_LE(std::abs(counted - published), std::max(rounding(published), 0.02 * published))
          << name << ": " << counted << ", published " << published;
    }
  }
  EXPECT_GE(stated, 210);
  EXPECT_GE(exact, 100);
}

// Some leave the input embedding out, whose rows are looked up (gpt-oss).
TEST(Parameters, ThatOneTokenMeetsAreThePublishedOnesForEveryPreset) {
  int stated = 0;
  for (const std::string& name : model_names()) {
    const Model model = read(name);
    EXPECT_EQ(active_parameters(model) < parameters(model), model.has_experts()) << name;
    if (model.published_active_parameters == 0) continue;
    ++stated;
    const double published = model.published_active_parameters,
                 tolerance = std::max(rounding(published), 0.02 * published),
                 counted = static_cast<double>(active_parameters(model)),
                 without = counted - (model.tied_embeddings ? 0 : static_cast<double>(model.vocab * model.hidden));
    EXPECT_TRUE(std::abs(counted - published) <= tolerance || std::abs(without - published) <= tolerance)
        << name << ": " << counted << " or " << without << ", published " << published;
  }
  EXPECT_GE(stated, 16);
}

// Narayanan et al. 2021 (arXiv 2104.04473), eq. 2, plus the final layernorm that it leaves out.
TEST(Parameters, FollowMegatronsFormula) {
  for (const char* name :
       {"megatron-1.7b", "megatron-22b", "megatron-145b", "megatron-530b", "megatron-1t", "gpt3-175b"}) {
    const Model m = read(name);
    const std::int64_t h = m.hidden, L = m.layers, V = m.vocab, s = m.max_positions;
    EXPECT_EQ(parameters(m), 12 * L * h * h + 13 * L * h + (V + s) * h + 2 * h) << name;
  }
}

// BertModel of transformers has 109,482,240 parameters; BertForPreTraining adds the MLM transform and norm, the MLM
// bias over the vocabulary and the next-sentence classifier.
TEST(Parameters, OfAnEncoderIncludeItsPretrainingHeads) {
  const std::int64_t h = 768, V = 30522;
  EXPECT_EQ(count("bert-base"), 109'482'240 + (h * h + h) + 2 * h + V + (2 * h + 2));
  EXPECT_EQ(count(Json{{"preset", "bert-base"}, {"pooler", false}}), count("bert-base") - (h * h + h) - (2 * h + 2));
}

// The attention of DeepSeek-V3 (arXiv 2412.19437): 187,107,328 parameters a layer.
TEST(Parameters, OfLatentAttentionAreThoseOfDeepSeek) {
  Json json{{"layers", 1},         {"hidden", 7168},        {"heads", 128},           {"ffn", 18432},
            {"vocab", 129280},     {"attention", "latent"}, {"activation", "swiglu"}, {"query_lora_rank", 1536},
            {"kv_lora_rank", 512}, {"rope_head_dim", 64},   {"nope_head_dim", 128},   {"value_head_dim", 128}};
  const std::int64_t one = count(json);
  json["layers"] = 2;
  EXPECT_EQ(count(json) - one, 187'107'328 + 3 * 7168 * 18432 + 2 * 7168);
  // Full-rank queries, as in DeepSeek-V2-Lite.
  json["query_lora_rank"] = 0;
  EXPECT_EQ(count(json) - one, 187'107'328 + 3 * 7168 * 18432 + 2 * 7168 +
                                   2 * (7168 * 128 * 192 - (7168 * 1536 + 1536 + 1536 * 128 * 192)));
}

// What each field adds to a layer of 48 wide, 6 query heads, 2 key and value heads of 10, and an MLP of 100.
TEST(Parameters, CountEachFieldOnce) {
  const Json base{{"layers", 1},
                  {"hidden", 48},
                  {"heads", 6},
                  {"kv_heads", 2},
                  {"head_dim", 10},
                  {"ffn", 100},
                  {"vocab", 7},
                  {"activation", "gelu"},
                  {"positions", "rotary"},
                  {"norm", "layernorm"},
                  {"linear_bias", false},
                  {"norm_bias", false},
                  {"tied_embeddings", true}};
  const auto with = [&](const Json& change) {
    Json json = base;
    json.update(change);
    return count(json);
  };
  const std::int64_t matrices = 48 * (60 + 20 + 20) + 60 * 48 + 2 * 48 * 100;
  EXPECT_EQ(count(base), 7 * 48 + matrices + 2 * 48 + 48);
  EXPECT_EQ(with({{"layers", 3}}) - count(base), 2 * (matrices + 2 * 48));
  EXPECT_EQ(with({{"qkv_bias", true}}) - count(base), 100);
  EXPECT_EQ(with({{"output_bias", true}}) - count(base), 48);
  EXPECT_EQ(with({{"linear_bias", true}, {"qkv_bias", false}, {"output_bias", false}}) - count(base), 100 + 48);
  EXPECT_EQ(with({{"linear_bias", true}}) - count(base), 100 + 48 + 100 + 48);
  EXPECT_EQ(with({{"norm_bias", true}}) - count(base), 3 * 48);
  EXPECT_EQ(with({{"norm", "rmsnorm"}}) - count(base), 0);
  EXPECT_EQ(with({{"activation", "swiglu"}}) - count(base), 48 * 100);
  EXPECT_EQ(with({{"tied_embeddings", false}}) - count(base), 7 * 48);
  EXPECT_EQ(with({{"head_bias", true}}) - count(base), 7);
  EXPECT_EQ(with({{"qk_norm", true}}) - count(base), 2 * 10);
  EXPECT_EQ(with({{"qk_norm", true}, {"qk_norm_across_heads", true}}) - count(base), 60 + 20);
  EXPECT_EQ(with({{"parallel_block", true}}) - count(base), -48);
  EXPECT_EQ(with({{"parallel_block", true}, {"parallel_norms", true}}) - count(base), 0);
  EXPECT_EQ(with({{"post_norm", true}}) - count(base), -48);
  EXPECT_EQ(with({{"output_norm", true}}) - count(base), 2 * 48);
  EXPECT_EQ(with({{"output_norm", true}, {"input_norm", false}}) - count(base), 0);
  EXPECT_EQ(with({{"embedding_norm", true}}) - count(base), 48);
  EXPECT_EQ(with({{"positions", "learned"}, {"max_positions", 11}, {"extra_positions", 2}}) - count(base), 13 * 48);
  EXPECT_EQ(with({{"positions", "relative"}, {"relative_buckets", 32}}) - count(base), 32 * 6);
  EXPECT_EQ(with({{"positions", "relative"}, {"relative_projection", true}}) - count(base), 48 * 60 + 2 * 60);
  EXPECT_EQ(with({{"kv_heads", 6}}) - count(base), 48 * 80);
  EXPECT_EQ(with({{"dropout", 0.3}, {"sliding_window", 4}}) - count(base), 0);
  EXPECT_EQ(with({{"mtp_num_layers", 1}}) - count(base), 3 * 48 + 2 * 48 * 48 + matrices + 2 * 48);
  const Json experts{{"experts", 4}, {"experts_per_token", 2}, {"expert_ffn", 20}};
  Json predicting = experts;
  predicting["mtp_num_layers"] = 1;
  EXPECT_EQ(with(predicting) - with(experts),
            3 * 48 + 2 * 48 * 48 + matrices + 2 * 48 - 2 * 48 * 100 + 4 * 48 + 4 * 2 * 48 * 20);
}

// The same of experts: 4 of 30 wide, of which a token goes to 3, in one of two layers.
TEST(Parameters, CountEachFieldOfExpertsOnce) {
  const Json base{{"layers", 2},          {"hidden", 48},     {"heads", 6},
                  {"ffn", 100},           {"vocab", 7},       {"activation", "gelu"},
                  {"linear_bias", false}, {"experts", 4},     {"experts_per_token", 3},
                  {"expert_ffn", 30},     {"dense_layers", 1}};
  struct Counts {
    std::int64_t all, active;
    bool operator==(const Counts&) const = default;
  };
  const auto with = [&](const Json& change) {
    Json json = base;
    json.update(change);
    const Model model = read(json);
    return Counts{parameters(model), active_parameters(model)};
  };
  const auto more = [&](const Json& change) {
    const Counts a = with(Json::object()), b = with(change);
    return Counts{b.all - a.all, b.active - a.active};
  };
  const std::int64_t mlp = 2 * 48 * 100, expert = 2 * 48 * 30, router = 48 * 4;
  EXPECT_EQ(more({{"experts", 0}, {"experts_per_token", 0}, {"expert_ffn", 0}, {"dense_layers", 0}}),
            (Counts{mlp - router - 4 * expert, mlp - router - 3 * expert}));
  EXPECT_EQ(more({{"dense_layers", 0}}), (Counts{router + 4 * expert - mlp, router + 3 * expert - mlp}));
  EXPECT_EQ(more({{"dense_layers", 0}, {"expert_period", 2}}), (Counts{0, 0}));
  EXPECT_EQ(more({{"experts", 5}}), (Counts{48 + expert, 48}));
  EXPECT_EQ(more({{"experts_per_token", 2}}), (Counts{0, -expert}));
  EXPECT_EQ(more({{"expert_ffn", 0}}), (Counts{4 * (mlp - expert), 3 * (mlp - expert)}));
  EXPECT_EQ(more({{"activation", "swiglu"},
                  {"norm", "layernorm"},
                  {"tied_embeddings", true},
                  {"positions", "learned"},
                  {"max_positions", 2048}}),
            (Counts{48 * 100 + 4 * 48 * 30, 48 * 100 + 3 * 48 * 30}));
  EXPECT_EQ(more({{"expert_bias", true}}), (Counts{4 * (30 + 48), 3 * (30 + 48)}));
  EXPECT_EQ(more({{"router_bias", true}}), (Counts{4, 4}));
  EXPECT_EQ(more({{"router_noise", true}}), (Counts{48 * 4, 48 * 4})) << "the deviations' projection";
  EXPECT_EQ(more({{"moe_aux_loss_coeff", 0.01}, {"moe_z_loss_coeff", 0.001}}), (Counts{0, 0}));
  EXPECT_EQ(more({{"shared_expert_ffn", 20}}), (Counts{2 * 48 * 20, 2 * 48 * 20}));
  EXPECT_EQ(more({{"shared_expert_ffn", 20}, {"shared_expert_gate", true}}),
            (Counts{2 * 48 * 20 + 48, 2 * 48 * 20 + 48}));
  EXPECT_EQ(more({{"router_score", "sigmoid_of_top"},
                  {"router_score_bias", true},
                  {"router_scale", 2.5},
                  {"router_groups", 2},
                  {"router_best_groups", 2}}),
            (Counts{0, 0}));
}

TEST(Parameters, OfADecoderStackIncludeCrossAttention) {
  Json json{{"kind", "encoder_decoder"}, {"layers", 2}, {"hidden", 48}, {"heads", 6}, {"ffn", 100}, {"vocab", 7},
            {"activation", "relu"}};
  const std::int64_t encoder_layer = 4 * 48 * 48 + 2 * 48 * 100 + 2 * 48;
  const std::int64_t decoder_layer = encoder_layer + 4 * 48 * 48 + 48;
  EXPECT_EQ(count(json), 7 * 48 + 2 * encoder_layer + 2 * decoder_layer + 2 * (32 * 6 + 48));
  json["decoder_layers"] = 5;
  EXPECT_EQ(count(json), 7 * 48 + 2 * encoder_layer + 5 * decoder_layer + 2 * (32 * 6 + 48));
}

TEST(Parameters, OfTheLargestModelThatMayBeWrittenFitIn64Bits) {
  const std::int64_t wide = 1 << 21;
  const Json largest{{"kind", "encoder_decoder"},
                     {"layers", 1 << 16},
                     {"hidden", wide},
                     {"heads", 1 << 10},
                     {"head_dim", 1 << 11},
                     {"ffn", wide},
                     {"vocab", std::int64_t{1} << 31},
                     {"activation", "swiglu"}};
  const double h = static_cast<double>(wide), layers = 1 << 16, tables = 2 * 2147483648.0 * h;
  EXPECT_NEAR(static_cast<double>(count(largest)) / (layers * h * h * (7 + 11) + tables), 1, 1e-5);
}

}  // namespace
}  // namespace orrery
