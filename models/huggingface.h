// Import of Hugging Face `config.json` files (transformers).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/model.h"
#include "sim/base/error.h"

namespace orrery {

// The architecture that `config` describes, chosen by its "model_type" (or the class in "architectures"). Keys that do
// not concern the architecture are ignored; absent keys take the default of the family's configuration class where it
// has one that every size shares, else they are missing: InputError with the pointer. Unknown families, and experts in
// one that is read as dense, are InputErrors that name the family. So are keys that contradict the family, classes
// in "architectures" of another known family or with another head than the one that is modelled, and keys of an
// architecture that is not modelled: state-space layers, linear and sparse attention, and the like. Where hidden and
// attention dropout differ, it takes the hidden one. It leaves out layers of multi-token prediction (DeepSeek-V3),
// attention sinks (gpt-oss), and query and key norms without weights (Llama 4). The result is not complete yet:
// read_model completes it.
Model import_huggingface(const nlohmann::json& config, const InputError::Where& where);

}  // namespace orrery
