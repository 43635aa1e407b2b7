// From JSON to a complete Model: a preset's name, a written-out model, or a Hugging Face config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/model.h"
#include "sim/base/error.h"

namespace orrery {

// `json` stands at `where`. The model returned is complete (Model::complete). Accepted:
//
//   "llama-3-8b"                             a preset or one of its aliases, letter case ignored
//   {"preset": "llama-3-8b", "layers": 16}   a preset with fields changed; then named "llama-3-8b, changed" unless
//   "name"
//                                            is given, and without the preset's published_parameters
//   {"model_type": "llama", ...}             a Hugging Face config.json (also told by "architectures")
//   {"layers": 32, "hidden": 4096, ...}      written out: the fields of Model (models/model.h)
//
// Fields that a written-out model leaves out take the usual value for its kind and activation:
//   decoder, swiglu or geglu    as Llama: rotary, rmsnorm, no biases, untied embeddings, dropout 0
//   decoder, others             as GPT: learned positions (2048), layernorm, biases, tied embeddings, dropout 0.1
//   encoder                     as BERT: learned positions (512), layernorm after the residual and the embedding,
//   biases,
//                               tied embeddings, pooler, dropout 0.1
//   encoder_decoder             as T5: relative positions (32 buckets), rmsnorm, no biases, tied embeddings unless the
//                               activation is gated (T5 v1.1), dropout 0.1
//   vit, swin                   learned, respectively relative positions, layernorm, biases, 224 x 224 images, 1000
//                               classes, dropout 0
//   "attention": "latent"       besides: no query, key and value biases
// "linear_bias" alone speaks for output_bias and qkv_bias too. kv_heads, head_dim, ffn and decoder_layers have the
// defaults of Model.
Model read_model(const nlohmann::json& json, const InputError::Where& where);

// The names that read_model accepts, without aliases, sorted.
std::vector<std::string> model_names();

// Returns whether a preset has that name or alias, so that read_model takes it for one. The preset may be of a model
// that is not modelled.
bool is_model_name(const std::string& name);

// Every field that is set; read_model gives the same model back.
nlohmann::json to_json(const Model& model);

}  // namespace orrery
