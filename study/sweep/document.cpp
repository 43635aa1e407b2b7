#include "study/sweep/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "models/read_model.h"
#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "strategies/schema.h"
#include "study/search/plan_field.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostPoints = 100'000'000;
constexpr std::size_t kMostValues = 1'000'000;  // of an axis
constexpr const char* kPerturbations = "perturbations";

using Where = InputError::Where;  // of a value in the sweep's document

Where inside(const Where& place, std::string_view key) { return {place.file, pointer_to(place.pointer, key)}; }

InputError unlike(const Where& place, const Json& found, const char* expected) {
  return {place, describe(found), expected};
}

// {"from": 1, "to": 8, "step": 1} or {"from": 1, "to": 8, "factor": 2}.
std::vector<Json> read_range(const Json& range, const Where& place) {
  JsonReader reader(range, place);
  for (const char* key : {"from", "to", "step", "factor"}) reader.take(key);
  reader.finish();
  const auto number = [&](const char* key) -> const Json& {
    static const Json absent;
    const auto at = range.find(key);
    if (at == range.end() || !at->is_number()) reader.fail(key, "a number");
    return *at;
  };
  if (reader.has("step") == reader.has("factor"))
    throw InputError(place, reader.has("step") ? "both a step and a factor" : "neither a step nor a factor",
                     R"(a list, {"from": 8, "to": 64, "step": 8} or {"from": 8, "to": 64, "factor": 2})");
  const char* const by_key = reader.has("step") ? "step" : "factor";
  const bool adds = reader.has("step");
  const Json &from = number("from"), &to = number("to"), &by = number(by_key);
  const auto as_double = [](const Json& json) { return json.get<double>(); };
  if (adds ? !(as_double(by) > 0) : !(as_double(by) > 1)) reader.fail(by_key, adds ? "more than 0" : "more than 1");
  if (!adds && !(as_double(from) > 0)) reader.fail("from", "more than 0: a factor cannot start from there");
  if (as_double(to) < as_double(from)) reader.fail("to", "at least \"from\"");
  const bool whole = from.is_number_integer() && by.is_number_integer();
  const double steps = adds ? (as_double(to) - as_double(from)) / as_double(by)
                            : std::log(as_double(to) / as_double(from)) / std::log(as_double(by));
  if (!(steps < kMostValues)) throw InputError(place, "a range of too many values", "at most a million");
  std::vector<Json> values;
  if (whole) {
    // Limits are compared in doubles, which tell whole numbers apart as far as this.
    constexpr double kExact = 0x1p53;
    for (const char* const key : {"from", "to", by_key})
      if (!(std::abs(as_double(number(key))) <= kExact)) reader.fail(key, "a number of at most 2^53");
    const auto first = from.get<std::int64_t>(), step = by.get<std::int64_t>(),
               last = static_cast<std::int64_t>(std::floor(as_double(to)));
    for (std::int64_t value = first; value <= last; value = adds ? value + step : value * step) {
      values.emplace_back(value);
      if (!adds && value > last / step) break;  // whose product need not fit 64 bits
    }
  } else {
    // 0.1, 0.2, ... ends at 0.3 although three times 0.1 is more.
    constexpr double kRounding = 1e-9;
    const auto count = static_cast<std::int64_t>(std::floor(steps * (1 + kRounding) + kRounding));
    for (std::int64_t i = 0; i <= count; ++i) {
      const auto times = static_cast<double>(i);
      values.emplace_back(adds ? as_double(from) + times * as_double(by)
                               : as_double(from) * std::pow(as_double(by), times));
    }
  }
  return values;
}

std::vector<Json> read_values(const Json& values, const Where& place) {
  if (values.is_object()) return read_range(values, place);
  if (!values.is_array() || values.empty())
    throw unlike(place, values,
                 R"(a list of values, {"from": 8, "to": 64, "step": 8} or {"from": 8, "to": 64, "factor": 2})");
  std::vector<Json> read(values.begin(), values.end());
  for (std::size_t i = 0; i < read.size(); ++i)
    for (std::size_t j = 0; j < i && read.size() <= 1000; ++j)
      if (read[i] == read[j])
        throw InputError(inside(place, std::to_string(i)), describe(read[i]) + " a second time", "each value once");
  return read;
}

// Reads what stands beside "scenario".
class AxesReader {
 public:
  AxesReader(SweepDocument& sweep, const std::string& file) : sweep_(sweep), file_(file) {}

  void read_axes(const Json& axes, const Where& place, const std::vector<SweepAxis::Condition>& conditions) {
    if (!axes.is_object() || axes.empty()) throw unlike(place, axes, "an object of fields and their values");
    for (const auto& [field, values] : axes.items()) {
      SweepAxis axis{{field}, {}, conditions};
      const Where at = inside(place, field);
      for (Json& value : read_values(values, at)) axis.values.push_back({beside_document(field, std::move(value))});
      add(std::move(axis), at);
    }
  }

  void read_zip(const Json& zips, const Where& place) {
    if (!zips.is_array() || zips.empty())
      throw unlike(place, zips, "a list of objects, each of fields that change together");
    for (std::size_t i = 0; i < zips.size(); ++i) {
      const Where at = inside(place, std::to_string(i));
      if (!zips[i].is_object() || zips[i].empty()) throw unlike(at, zips[i], "an object of fields and their values");
      SweepAxis axis;
      for (const auto& [field, values] : zips[i].items()) {
        std::vector<Json> read;
        if (values.is_array() && !values.empty()) {
          read.assign(values.begin(), values.end());  // one of them may come twice
        } else {
          read = read_values(values, inside(at, field));
        }
        if (axis.values.empty()) axis.values.resize(read.size());
        if (read.size() != axis.values.size())
          throw InputError(inside(at, field), fmt::format("{} values", read.size()),
                           fmt::format("as many as \"{}\": {}", axis.fields.front(), axis.values.size()));
        axis.fields.push_back(field);
        for (std::size_t j = 0; j < read.size(); ++j)
          axis.values[j].push_back(beside_document(field, std::move(read[j])));
      }
      add(std::move(axis), at);
    }
  }

  void read_when(const Json& whens, const Where& place) {
    if (!whens.is_array() || whens.empty()) throw unlike(place, whens, R"(a list of {"if": {...}, "axes": {...}})");
    for (std::size_t i = 0; i < whens.size(); ++i) {
      const Where at = inside(place, std::to_string(i));
      JsonReader reader(whens[i], at);
      const Json* condition = reader.take("if");
      const Json* axes = reader.take("axes");
      reader.finish();
      if (condition == nullptr || !condition->is_object() || condition->empty())
        reader.fail("if", "an object of fields of other axes and the values for which these axes apply");
      if (axes == nullptr) reader.fail("axes", "an object of fields and their values");
      std::vector<SweepAxis::Condition> conditions;
      const std::size_t known = sweep_.axes.size();
      for (const auto& [field, values] : condition->items())
        conditions.push_back(read_condition(field, values, inside(inside(at, "if"), field), known));
      read_axes(*axes, inside(at, "axes"), conditions);
    }
  }

  // What is drawn at random in a scenario is drawn by a perturbation's seed.
  void read_seeds(const Json& seeds, const Where& place) {
    const std::vector<Json> read = read_values(seeds, place);
    SweepAxis axis;
    const Json drawn = sweep_.base.value("perturbations", Json::array());
    for (std::size_t i = 0; drawn.is_array() && i < drawn.size(); ++i)
      if (drawn[i].is_object() && (drawn[i].contains("count") || drawn[i].value("kind", Json()) == "jitter"))
        axis.fields.push_back(fmt::format("perturbations.{}.seed", i));
    if (axis.fields.empty())
      throw InputError(place, "seeds for a scenario without random draws",
                       R"(perturbations with "count" or of kind "jitter")");
    if (sweep_.simulation.engine != Engine::des) throw InputError(place, "seeds with the analytical engine", kDes);
    for (const Json& seed : read) axis.values.emplace_back(axis.fields.size(), seed);
    add(std::move(axis), place);
  }

  // Where each axis came from, in their order.
  const std::vector<Where>& places() const { return places_; }

 private:
  // Paths in a document start from its folder; apply_set takes them from the working directory.
  Json beside_document(const std::string& field, Json value) const {
    const bool is_file = field.ends_with("_file");  // cluster.topology_file, workload.routing_file, ...
    const bool names_file = is_file || field == "model" || field == "cluster" || field == "workload" || field == "plan";
    if (!names_file || !value.is_string()) return value;
    const auto& path = value.get_ref<const std::string&>();
    if (!is_file && !path.ends_with(".json") && path.find('/') == std::string::npos) return value;
    const std::filesystem::path beside = std::filesystem::path(file_).parent_path() / path;
    std::error_code error;
    if (field == "model" && !std::filesystem::exists(beside, error) && is_model_name(path)) return value;
    return beside.string();
  }

  SweepAxis::Condition read_condition(const std::string& field, const Json& values, const Where& place,
                                      std::size_t known) const {
    SweepAxis::Condition condition;
    std::vector<std::string> fields;
    std::vector<Json> wanted(1, values);
    if (values.is_array()) wanted.assign(values.begin(), values.end());
    for (Json& value : wanted) value = beside_document(field, std::move(value));
    std::vector<bool> met(wanted.size());
    for (std::size_t i = 0; i < known; ++i) {
      const SweepAxis& axis = sweep_.axes[i];
      fields.insert(fields.end(), axis.fields.begin(), axis.fields.end());
      const auto at = std::find(axis.fields.begin(), axis.fields.end(), field);
      if (at == axis.fields.end()) continue;
      std::vector<bool> holds;
      for (const std::vector<Json>& choice : axis.values) {
        const Json& value = choice[static_cast<std::size_t>(at - axis.fields.begin())];
        const auto found = std::find(wanted.begin(), wanted.end(), value);
        holds.push_back(found != wanted.end());
        if (found != wanted.end()) met[static_cast<std::size_t>(found - wanted.begin())] = true;
      }
      condition.any_of.emplace_back(i, std::move(holds));
    }
    if (condition.any_of.empty())
      throw InputError(place, "a field of no earlier axis", "a field of \"axes\" or \"zip\"",
                       nearest_name(field, fields));
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (!met[i])
        throw InputError(place, describe(wanted[i]) + ", which its axis does not have", "values of that axis");
    return condition;
  }

  void add(SweepAxis axis, const Where& place) {
    if (sweep_.simulation.engine == Engine::analytical &&
        std::any_of(axis.fields.begin(), axis.fields.end(),
                    [](const std::string& field) { return field.starts_with(kPerturbations); }))
      throw InputError(place, "perturbations with the analytical engine", kDes);
    for (const SweepAxis& other : sweep_.axes) {
      if (!axis.conditions.empty() && !other.conditions.empty()) continue;  // there may be either
      for (const std::string& field : axis.fields)
        if (std::find(other.fields.begin(), other.fields.end(), field) != other.fields.end())
          throw InputError(place, fmt::format("\"{}\" on a second axis", field), "one axis for each field");
    }
    sweep_.axes.push_back(std::move(axis));
    places_.push_back(place);
  }

  static constexpr const char* kDes = R"("engine": "des", which simulates perturbations)";

  SweepDocument& sweep_;
  std::string file_;
  std::vector<Where> places_;
};

// "plan" of "plan.tensor_parallel".
std::string part_of_field(const std::string& field) { return field.substr(0, field.find('.')); }

std::string pointer_of_field(const std::string& field) {
  std::string pointer = pointer_to("", field);
  std::ranges::replace(pointer, '.', '/');
  return pointer;
}

// Each value is one that its field can hold; whether plans can be laid out is each point's matter.
void check_values(const SweepDocument& sweep, const std::vector<Where>& places) {
  ScenarioReader reader;
  Json first = sweep.base;
  const auto blame = [&](const InputError& error, std::size_t last) -> InputError {
    for (std::size_t i = last + 1; i-- > 0;)
      for (const std::string& field : sweep.axes[i].fields) {
        const std::string pointer = pointer_of_field(field);
        const std::string& at = error.where().pointer;
        if (!at.starts_with(pointer) || (at.size() > pointer.size() && at[pointer.size()] != '/')) continue;
        std::vector<std::string> names;
        for (ScenarioField& known : scenario_fields()) names.push_back(std::move(known.name));
        const bool known = std::find(names.begin(), names.end(), field) != names.end();
        const Where place = sweep.axes[i].fields.size() == 1 ? places[i] : inside(places[i], field);
        return {place, error.found(), error.expected(),
                known || at.size() > pointer.size() ? error.nearest() : nearest_name(field, names)};
      }
    return error;
  };
  const auto read = [&](const Json& document, std::size_t last) {
    try {
      reader.read(document, sweep.source);
    } catch (const InputError& error) {
      throw blame(error, last);
    }
  };
  const auto set = [&](Json& document, std::size_t axis, std::size_t choice) {
    try {
      for (std::size_t i = 0; i < sweep.axes[axis].fields.size(); ++i)
        apply_set(document, sweep.axes[axis].set(choice, i), sweep.source.file);
    } catch (const InputError& error) {
      throw InputError(places[axis], error.found(), error.expected(), error.nearest());
    }
  };
  for (std::size_t i = 0; i < sweep.axes.size(); ++i)
    if (sweep.axes[i].conditions.empty()) set(first, i, 0);
  if (!sweep.axes.empty()) read(first, sweep.axes.size() - 1);
  constexpr std::size_t kMostChecked = 1000;  // of a longer axis the ends; what is wrong between is its points' error
  for (std::size_t i = 0; i < sweep.axes.size(); ++i)
    for (std::size_t choice = 0; choice < sweep.axes[i].values.size(); ++choice) {
      if (choice > kMostChecked) choice = sweep.axes[i].values.size() - 1;
      Json document = first;
      set(document, i, choice);
      read(document, i);
    }
}

SweepSearch read_search(const Json& json, const Where& place, const SweepDocument& sweep) {
  JsonReader reader(json, place);
  SweepSearch search;
  // What the search would say at each point is said at once, and of the document.
  const auto here = [](const Where& at, const auto& call) {
    try {
      return call();
    } catch (const InputError& error) {
      throw InputError(at, error.found(), error.expected(), error.nearest());
    }
  };
  if (const Json* over = reader.take("over")) {
    if (!over->is_object()) reader.fail("over", R"(an object of fields of the plan and the values to try, or "usual")");
    for (const auto& [field, values] : over->items()) {
      const Where at = inside(inside(place, "over"), field);
      AxisRequest request{here(at, [&name = field] { return plan_field_named(name); }), {}};
      if (values != "usual") request.values = read_values(values, at);
      for (const Json& value : request.values)
        here(at, [&] {
          Plan plan;
          set_field(plan, request.field, value);
        });
      for (const std::string& axis : sweep.fields())
        if (axis == "plan." + request.field)
          throw InputError(at, "a field that an axis sets", "a field that no axis sets");
      search.space.over.push_back(std::move(request));
    }
  }
  if (const Json* fix = reader.take("fix")) {
    if (!fix->is_array()) reader.fail("fix", "a list of fields of the plan");
    for (std::size_t i = 0; i < fix->size(); ++i) {
      const Json& field = (*fix)[i];
      if (!field.is_string()) reader.fail("fix", "a list of fields of the plan");
      const Where at = inside(inside(place, "fix"), std::to_string(i));
      std::string name = here(at, [&] { return plan_field_named(field.get_ref<const std::string&>()); });
      for (const AxisRequest& request : search.space.over)
        if (request.field == name) throw InputError(at, "a field both fixed and searched", "one of the two");
      search.space.fixed.push_back(std::move(name));
    }
  }
  reader.field("global_batch_sizes", search.space.global_batch_sizes, at_least(1),
               "global batch sizes that are also searched");
  reader.field("all", search.space.all, "also fields that are not usually searched");
  reader.field("safe", search.safe, "predicted peaks must fit with their margin");
  reader.field("max_memory_bytes", search.most_memory_bytes, NumberRange{},
               "memory of a device, instead of its capacity");
  reader.finish();
  constexpr std::string_view kPlan = "plan.";
  // What an axis sets stays.
  for (const std::string& field : sweep.fields())
    if (field.starts_with(kPlan))
      search.space.fixed.push_back(field.substr(kPlan.size(), field.find('.', kPlan.size()) - kPlan.size()));
  std::vector<std::string>& fixed = search.space.fixed;
  std::sort(fixed.begin(), fixed.end());
  fixed.erase(std::unique(fixed.begin(), fixed.end()), fixed.end());
  return search;
}

}  // namespace

std::vector<std::string> SweepDocument::fields() const {
  std::vector<std::string> names;
  for (const SweepAxis& axis : axes)
    for (const std::string& field : axis.fields)
      if (std::find(names.begin(), names.end(), field) == names.end()) names.push_back(field);
  return names;
}

bool SweepDocument::leaves_out_perturbations() const {
  const auto of_base = base.find(kPerturbations);
  return simulation.engine == Engine::analytical && of_base != base.end() && !of_base->empty();
}

SweepDocument read_sweep(const Json& document, const std::string& file) {
  const Where top{file, ""};
  JsonReader reader(document, top);
  const Json* scenario = reader.take("scenario");
  const Json* axes = reader.take("axes");
  const Json* zip = reader.take("zip");
  const Json* when = reader.take("when");
  const Json* seeds = reader.take("seeds");
  const Json* search = reader.take("search");
  SweepDocument sweep;
  sweep.file = file;
  reader.field("engine", sweep.simulation.engine, kEngineNames, "how programs are timed");
  reader.field("fidelity", sweep.simulation.fidelity, kFidelityNames, "des: how collectives are simulated");
  reader.field("routing", sweep.simulation.routing, kRoutingNames, "des: how switches choose among several up-links");
  reader.finish();
  for (const char* key : {"fidelity", "routing"})
    if (reader.has(key) && sweep.simulation.engine != Engine::des)
      reader.fail(key, R"("engine": "des" with it: the analytical engine has no such choice)");
  if (scenario == nullptr) reader.fail("scenario", "a scenario: a bundled one's name, a file, or an object");
  if (scenario->is_string()) {
    std::string name = scenario->get<std::string>();
    if (name.find('/') != std::string::npos || name.ends_with(".json"))
      name = (std::filesystem::path(file).parent_path() / name).string();
    try {
      sweep.base = load_scenario_document(name, {}, sweep.source);
    } catch (const InputError& error) {
      if (!error.where().file.empty()) throw;
      throw InputError(inside(top, "scenario"), error.found(), error.expected(), error.nearest());
    }
  } else {
    sweep.base = *scenario;
    sweep.source.file = file;
  }
  if (!sweep.base.is_object())
    throw unlike(inside(top, "scenario"), sweep.base, "a scenario: a name, a file, or an object");
  if (has_jobs(sweep.base))
    throw InputError({sweep.source.file, "/jobs"}, "jobs that share a cluster", "a scenario of one job");
  AxesReader all(sweep, file);
  if (axes == nullptr && zip == nullptr && seeds == nullptr)
    reader.fail("axes", "an object of fields and their values, over which to sweep");
  if (axes != nullptr) all.read_axes(*axes, inside(top, "axes"), {});
  if (zip != nullptr) all.read_zip(*zip, inside(top, "zip"));
  if (when != nullptr) all.read_when(*when, inside(top, "when"));
  if (seeds != nullptr) all.read_seeds(*seeds, inside(top, "seeds"));
  check_values(sweep, all.places());
  if (search != nullptr) sweep.search = read_search(*search, inside(top, "search"), sweep);
  sweep.given = sweep.whole = document;
  sweep.whole["scenario"] = sweep.base;
  return sweep;
}

std::vector<BundledDocument> bundled_sweeps() { return bundled_documents("study/sweep/examples/"); }

SweepCursor::SweepCursor(const std::vector<SweepAxis>& axes) : axes_(axes), choices_(axes.size()) { begin(0); }

bool SweepCursor::holds(const SweepAxis& axis) const {
  return std::all_of(axis.conditions.begin(), axis.conditions.end(), [&](const SweepAxis::Condition& condition) {
    return std::any_of(condition.any_of.begin(), condition.any_of.end(), [&](const auto& of) {
      const int choice = choices_[of.first];
      return choice != kAbsent && of.second[static_cast<std::size_t>(choice)];
    });
  });
}

void SweepCursor::begin(std::size_t axis) {
  for (; axis < axes_.size(); ++axis) choices_[axis] = holds(axes_[axis]) ? 0 : kAbsent;
}

bool SweepCursor::advance() {
  for (std::size_t axis = axes_.size(); axis-- > 0;) {
    int& choice = choices_[axis];
    if (choice == kAbsent || static_cast<std::size_t>(choice) + 1 == axes_[axis].values.size()) continue;
    ++choice;
    begin(axis + 1);
    ++number_;
    return true;
  }
  begin(0);
  number_ = 0;
  return false;
}

std::int64_t count_points(const SweepDocument& sweep) {
  const auto refuse = [&](std::string found) {
    return InputError({sweep.file, "/axes"}, std::move(found), fmt::format("at most {} points", kMostPoints));
  };
  // Without conditions it is a product; with them each point is met once.
  double most = 1;
  std::int64_t product = 1;
  bool conditional = false;
  for (const SweepAxis& axis : sweep.axes) {
    conditional = conditional || !axis.conditions.empty();
    if (!axis.conditions.empty()) continue;
    most *= static_cast<double>(axis.values.size());
    if (most > static_cast<double>(kMostPoints)) throw refuse(fmt::format("{:.3g} points or more", most));
    product *= static_cast<std::int64_t>(axis.values.size());
  }
  if (!conditional) return product;
  SweepCursor cursor(sweep.axes);
  std::int64_t points = 1;
  while (cursor.advance())
    if (++points > kMostPoints) throw refuse(fmt::format("more than {} points", kMostPoints));
  return points;
}

SweepLines::SweepLines(const SweepDocument& sweep) : sweep_(sweep) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : sweep.base.items()) keys.push_back(key);
  for (const std::string& field : sweep.fields())
    if (std::string key = part_of_field(field); std::find(keys.begin(), keys.end(), key) == keys.end())
      keys.push_back(std::move(key));
  for (const std::string& key : keys) {
    Part part{key, {}, "", {}};
    for (std::size_t i = 0; i < sweep.axes.size(); ++i)
      if (std::ranges::find(sweep.axes[i].fields, key, part_of_field) != sweep.axes[i].fields.end())
        part.axes.push_back(i);
    if (part.axes.empty()) part.text = Json(key).dump() + ":" + sweep.base[key].dump();
    parts_.push_back(std::move(part));
  }
}

const std::string& SweepLines::text_of(Part& part, const std::vector<int>& choices) {
  if (part.axes.empty()) return part.text;
  choices_key_.clear();
  bool given = sweep_.base.contains(part.key);
  for (const std::size_t axis : part.axes) {
    fmt::format_to(std::back_inserter(choices_key_), "{},", choices[axis]);
    given = given || choices[axis] != SweepCursor::kAbsent;
  }
  const auto found = part.texts.find(choices_key_);
  if (found != part.texts.end()) return found->second;
  std::string text;
  if (given) {
    Json document = Json::object();
    if (sweep_.base.contains(part.key)) document[part.key] = sweep_.base[part.key];
    for (const std::size_t number : part.axes) {
      if (choices[number] == SweepCursor::kAbsent) continue;
      const SweepAxis& axis = sweep_.axes[number];
      for (std::size_t i = 0; i < axis.fields.size(); ++i)
        if (part_of_field(axis.fields[i]) == part.key)
          apply_set(document, axis.set(static_cast<std::size_t>(choices[number]), i), sweep_.source.file);
    }
    text = Json(part.key).dump() + ":" + document[part.key].dump();
  }
  constexpr std::size_t kMost = 1 << 12;  // those that never come again would fill the memory in the end
  if (part.texts.size() >= kMost) part.texts.clear();
  return part.texts.emplace(choices_key_, std::move(text)).first->second;
}

const std::string& SweepLines::line(const std::vector<int>& choices) {
  line_ = "{";
  for (Part& part : parts_) {
    const std::string& text = text_of(part, choices);
    if (text.empty()) continue;
    if (line_.size() > 1) line_ += ',';
    line_ += text;
  }
  line_ += '}';
  return line_;
}

std::string SweepLines::fields(const std::vector<int>& choices) const {
  std::string text = "{";
  for (std::size_t number = 0; number < choices.size(); ++number) {
    if (choices[number] == SweepCursor::kAbsent) continue;
    const SweepAxis& axis = sweep_.axes[number];
    for (std::size_t i = 0; i < axis.fields.size(); ++i)
      fmt::format_to(std::back_inserter(text), "{}{}:{}", text.size() > 1 ? "," : "", Json(axis.fields[i]).dump(),
                     axis.values[static_cast<std::size_t>(choices[number])][i].dump());
  }
  return text + "}";
}

}  // namespace orrery
