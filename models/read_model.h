// Reads a complete Model from JSON: a preset's name, a written-out model, or a Hugging Face config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/model.h"
#include "sim/base/error.h"

namespace orrery {

// Reads the model in `json`, which stands at `where`. The result is complete (Model::complete). Accepted:
//
//   "llama-3-8b"                             a preset or one of its aliases, letter case ignored
//   {"preset": "llama-3-8b", "layers": 16}   a preset with changed fields; it is named "llama-3-8b, changed" unless
//                                            "name" is given, and loses the preset's published_parameters
//   {"model_type": "llama", ...}             a Hugging Face config.json (also recognised by "architectures")
//   {"layers": 32, "hidden": 4096, ...}      written out: the fields of Model (models/model.h)
//
// Fields that a written-out model omits take the usual values for its kind, activation and attention (usual.json).
// "linear_bias" alone also sets output_bias and qkv_bias. kv_heads, head_dim, ffn and decoder_layers have the defaults
// of Model.
Model read_model(const nlohmann::json& json, const InputError::Where& where);

// The names that read_model accepts, without aliases, sorted.
std::vector<std::string> model_names();

// Whether read_model takes `name` as a preset's name or alias. The preset's architecture may not be modelled.
bool is_model_name(const std::string& name);

// Returns every field that is set; read_model reads the same model from it.
nlohmann::json to_json(const Model& model);

// Import of Hugging Face `config.json` files (transformers).

// Returns the architecture that `config` describes, chosen by its "model_type" (or the class in "architectures").
// Ignores keys that do not concern the architecture. Absent keys take the default of the family's configuration class
// if all sizes share one; otherwise they are missing: InputError with the pointer.
// Throws InputError that names the family for: unknown families; experts in a family that is read as dense; keys that
// contradict the family; classes in "architectures" of another known family or with another head than the modelled one;
// and keys of an architecture that is not modelled (state-space layers, linear and sparse attention, and the like).
// If hidden and attention dropout differ, takes the hidden one. Omits layers of multi-token prediction (DeepSeek-V3),
// attention sinks (gpt-oss), and query and key norms without weights (Llama 4). The result is not complete yet:
// read_model completes it.
Model import_huggingface(const nlohmann::json& config, const InputError::Where& where);

}  // namespace orrery
