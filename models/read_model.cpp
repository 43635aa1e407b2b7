#include "models/read_model.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/base/words.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// A preset file is
//   {"defaults": {fields of every entry}, "models": {name: {fields, "aliases": [..]}}}    names in lower case
// or lists models that are known but not modelled: {"not_modelled": {name: {"family": .., "reason": .., "aliases":
// [..]}}}.
constexpr const char* kPresetFolder = "models/presets/";

// Sets the fields of a model from the JSON objects that describe it, the first ones first.
void read_fields(Model& model, const Json& object, const InputError::Where& where,
                 std::initializer_list<const char*> also_known = {}) {
  JsonReader reader(object, where);
  model.visit_fields(reader);
  for (const char* key : also_known) reader.take(key);
  reader.finish();
  // "linear_bias" alone also sets the biases of attention.
  if (object.contains("linear_bias")) {
    if (!object.contains("output_bias")) model.output_bias = model.linear_bias;
    if (!object.contains("qkv_bias")) model.qkv_bias = model.linear_bias;
  }
}

// Adjusts usual values that contradict a field that is given.
void reconcile_usual_values(Model& model, const Json& object) {
  const auto unsaid = [&](const char* key) { return !object.contains(key); };
  if (model.positions != Positions::relative && unsaid("relative_buckets")) model.relative_buckets = 0;
  if ((model.parallel_block || model.output_norm) && unsaid("post_norm")) model.post_norm = false;
  if (model.attention == AttentionKind::latent && unsaid("qkv_bias")) model.qkv_bias = false;
}

// The kind, the activation and the attention determine the values of omitted fields (usual.json).
Model usual_model_of(const Model& model) {
  static const Json usual = parse_embedded("models/usual.json");
  Model made;
  made.kind = model.kind;
  made.activation = model.activation;
  made.attention = model.attention;
  const auto set = [&](const std::string& key) { read_fields(made, usual.at(key), {"models/usual.json", '/' + key}); };
  const std::string kind(kModelKindNames[static_cast<std::size_t>(model.kind)]);
  set(model.gated() && usual.contains(kind + ", gated") ? kind + ", gated" : kind);
  if (model.attention == AttentionKind::latent) set("latent");
  return made;
}

Model read_written_out(const Json& object, const InputError::Where& where) {
  // `orrery show` writes parameter counts beside the fields that determine them.
  Model probe;
  read_fields(probe, object, where, {"parameters", "active_parameters"});
  Model model = usual_model_of(probe);
  read_fields(model, object, where, {"parameters", "active_parameters"});
  reconcile_usual_values(model, object);
  return model;
}

// ---- presets

bool names(const std::string& key, const Json& entry, const std::string& wanted) {
  if (key == wanted) return true;
  const auto aliases = entry.find("aliases");
  return aliases != entry.end() && std::find(aliases->begin(), aliases->end(), wanted) != aliases->end();
}

[[noreturn]] void fail_not_modelled(const std::string& name, const Json& entry, const InputError::Where& where) {
  const std::string reason = entry.at("reason").get<std::string>();
  throw InputError(where, '"' + name + "\", of the family " + entry.at("family").get<std::string>(),
                   "a supported model: " + reason + " are not modelled yet");
}

// The names of the presets in these sections, and their aliases.
std::vector<std::string> names_in(std::initializer_list<const char*> sections, bool with_aliases) {
  std::vector<std::string> all;
  for (const EmbeddedFile& file : embedded_files(kPresetFolder)) {
    const Json presets = parse_json(file.text, std::string(file.path));
    for (const char* section : sections) {
      const Json entries = presets.value(section, Json::object());
      for (const auto& [key, entry] : entries.items()) {
        all.push_back(key);
        if (!with_aliases) continue;
        for (const Json& alias : entry.value("aliases", Json::array())) all.push_back(alias.get<std::string>());
      }
    }
  }
  return all;
}

[[noreturn]] void fail_unknown(const std::string& name, const InputError::Where& where) {
  // Parsing all families takes milliseconds.
  static const std::vector<std::string> valid = names_in({"models", "not_modelled"}, true);
  throw InputError(where, describe(name), "the name of a model, a config.json, or a written-out model",
                   nearest_name(lower_case(name), valid));
}

// Returns the preset as its file states it: fields that are derived from others are not set yet.
std::optional<Model> look_up(const std::string& wanted, const InputError::Where& where) {
  const std::string quoted = Json(wanted).dump(-1, ' ', false, Json::error_handler_t::replace);
  for (const EmbeddedFile& file : embedded_files(kPresetFolder)) {
    // Parsing all families would take longer than the rest of a run.
    if (file.text.find(quoted) == std::string_view::npos) continue;
    const Json presets = parse_json(file.text, std::string(file.path));
    if (presets.contains("not_modelled")) {
      for (const auto& [key, entry] : presets.at("not_modelled").items()) {
        if (names(key, entry, wanted)) fail_not_modelled(wanted, entry, where);
      }
    }
    if (!presets.contains("models")) continue;
    for (const auto& [key, entry] : presets.at("models").items()) {
      if (!names(key, entry, wanted)) continue;
      Model model;
      if (presets.contains("defaults"))
        read_fields(model, presets.at("defaults"), {std::string(file.path), "/defaults"});
      read_fields(model, entry, {std::string(file.path), "/models/" + key}, {"aliases"});
      model.name = key;
      return model;
    }
  }
  return std::nullopt;
}

Model find_preset(const std::string& name, const InputError::Where& where) {
  // In its given case first: ViT-G/14 and ViT-g/14 are two models.
  std::optional<Model> model = look_up(name, where);
  if (!model) model = look_up(lower_case(name), where);
  if (!model) fail_unknown(name, where);
  return *std::move(model);
}

Model read_preset_with_changes(const Json& object, const InputError::Where& where) {
  const Json& preset = object.at("preset");
  const InputError::Where preset_where{where.file, where.pointer + "/preset"};
  if (!preset.is_string()) throw InputError(preset_where, describe(preset), "the name of a model");
  Model model = find_preset(preset.get<std::string>(), preset_where);
  read_fields(model, object, where, {"preset"});
  const bool changed = std::any_of(object.items().begin(), object.items().end(), [](const auto& item) {
    return item.key() != "preset" && item.key() != "name" && item.key() != "source";
  });
  if (changed) {
    if (!object.contains("name")) model.name += ", changed";
    if (!object.contains("published_parameters")) model.published_parameters = 0;
    if (!object.contains("published_active_parameters")) model.published_active_parameters = 0;
  }
  return model;
}

// ---- writing

// The fields of a model, without those whose 0, "" or [] means "as usual" or "none".
Json fields_of(const Model& model) {
  Json json = json_of_fields(model);
  for (auto field = json.begin(); field != json.end();) {
    constexpr double kExact = 9007199254740992.0;  // 2^53: smaller whole numbers are written without a point
    if (field->is_number_integer() && *field == 0) {
      field = json.erase(field);
      continue;
    }
    if (const double value = field->is_number_float() ? field->get<double>() : 0.5;
        value == std::trunc(value) && std::abs(value) < kExact)
      *field = static_cast<std::int64_t>(value);
    ++field;
  }
  return json;
}

// A written-out model has other keys than a config.json. One foreign key may be a slip, several are not.
bool looks_like_huggingface(const Json& object) {
  const auto keys = {"hidden_size",
                     "num_hidden_layers",
                     "num_attention_heads",
                     "intermediate_size",
                     "vocab_size",
                     "n_embd",
                     "n_layer",
                     "n_head",
                     "n_heads",
                     "n_layers",
                     "d_model",
                     "num_layers",
                     "num_heads",
                     "d_ff"};
  return std::count_if(keys.begin(), keys.end(), [&](const char* key) { return object.contains(key); }) >= 2;
}

}  // namespace

Model read_model(const Json& json, const InputError::Where& where) {
  Model model;
  const bool imported =
      json.is_object() && !json.contains("preset") && (json.contains("model_type") || json.contains("architectures"));
  if (json.is_string()) {
    model = find_preset(json.get<std::string>(), where);
  } else if (!json.is_object()) {
    throw InputError(where, describe(json), "the name of a model, or an object that describes one");
  } else if (json.contains("preset")) {
    model = read_preset_with_changes(json, where);
  } else if (imported) {
    model = import_huggingface(json, where);
  } else if (looks_like_huggingface(json)) {
    throw InputError(where, "no model_type: this looks like a Hugging Face config.json",
                     "the \"model_type\" or the \"architectures\" that such a file names");
  } else {
    model = read_written_out(json, where);
  }
  try {
    if (imported) read_fields(model, to_json(model), {});  // checks the ranges of the fields
    model.complete();
  } catch (const InputError& e) {  // errors that know the model but not its place
    // The fields are not keys of a config.json.
    if (imported) throw InputError(where, e.where().pointer.substr(1) + " = " + e.found(), e.expected());
    throw InputError({where.file, where.pointer + e.where().pointer}, e.found(), e.expected(), e.nearest());
  }
  return model;
}

std::vector<std::string> model_names() {
  std::vector<std::string> all = names_in({"models"}, false);
  std::sort(all.begin(), all.end());
  return all;
}

bool is_model_name(const std::string& name) {
  try {
    return look_up(name, {}) || look_up(lower_case(name), {});
  } catch (const InputError&) {  // the preset is not modelled, but its name exists
    return true;
  }
}

nlohmann::json to_json(const Model& model) {
  Json json = fields_of(model);
  // A 0 must be written if the usual value is not 0.
  const Json usual = fields_of(usual_model_of(model));
  for (const auto& [key, value] : usual.items())
    if (value.is_number_integer() && !json.contains(key)) json[key] = 0;
  if (!model.vision()) json.erase("channels");
  if (!model.has_experts())
    for (const char* key : {"shared_expert_gate", "expert_period", "router_score", "router_scale", "router_bias",
                            "router_score_bias", "router_noise", "router_type", "moe_router_load_balancing_type",
                            "expert_bias", "published_active_parameters"})
      json.erase(key);
  return json;
}

}  // namespace orrery
