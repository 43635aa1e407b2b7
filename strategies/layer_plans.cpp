#include "strategies/layer_plans.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

// The values of the fields of Scope::layer.
std::vector<AnyFieldValue> layer_fields_of(const Plan& plan) {
  std::vector<AnyFieldValue> values;
  EachField each([&](const VisitedField& field, const auto& value) {
    if (field.scope == Scope::layer) values.emplace_back(value);
  });
  Plan(plan).visit_fields(each);
  return values;
}

// Applies a range's fields on top of `plan`.
void lay_over(const Plan& range, Plan& plan) {
  const std::vector<AnyFieldValue> values = layer_fields_of(range);
  auto next = values.begin();
  EachField each([&](const VisitedField& field, auto& value) {
    if (field.scope == Scope::layer) value = std::get<std::decay_t<decltype(value)>>(*next++);
  });
  plan.visit_fields(each);
}

std::int64_t end_of(const LayerRange& range, std::int64_t layers) { return range.to > 0 ? range.to : layers; }

// Returns the variant of a piece for a plan: the piece itself for the first plan that is met.
std::uint16_t variant(Program& program, std::uint16_t piece, std::uint16_t plan) {
  if (program.pieces[piece].variant_of == kNoPiece) {
    program.pieces[piece].variant_of = piece;
    program.pieces[piece].plan = plan;
    return piece;
  }
  for (std::size_t p = 0; p < program.pieces.size(); ++p)
    if (program.pieces[p].variant_of == piece && program.pieces[p].plan == plan) return static_cast<std::uint16_t>(p);
  Piece copy = program.pieces[piece];
  copy.plan = plan;
  program.pieces.push_back(std::move(copy));
  return static_cast<std::uint16_t>(program.pieces.size() - 1);
}

}  // namespace

std::uint16_t LayerPlans::number_of(const Plan& plan) {
  const auto values = layer_fields_of(plan);
  if (values == layer_fields_of(base_)) return 0;
  const auto same =
      std::find_if(others_.begin(), others_.end(), [&](const Plan& other) { return layer_fields_of(other) == values; });
  if (same != others_.end()) return static_cast<std::uint16_t>(same - others_.begin() + 1);
  others_.push_back(plan);
  return static_cast<std::uint16_t>(others_.size());
}

void LayerPlans::change(std::int64_t from, std::int64_t to, std::int64_t step, const std::function<void(Plan&)>& by) {
  if (of_layer_.empty()) of_layer_.assign(static_cast<std::size_t>(layers_), 0);
  constexpr std::uint16_t kUnknown = 0xffff;
  std::vector<std::uint16_t> changed(others_.size() + 1, kUnknown);  // by previous number
  for (std::int64_t layer = from; layer < to; layer += step) {
    std::uint16_t& number = of_layer_[static_cast<std::size_t>(layer)];
    std::uint16_t& now = changed[number];
    if (now == kUnknown) {
      Plan copy = plan(number);
      copy.layers.clear();
      by(copy);
      now = number_of(copy);
    }
    number = now;
  }
}

void LayerPlans::split(Program& program) const {
  if (of_layer_.empty()) return;
  std::vector<PieceRun> runs;
  auto next = of_layer_.begin();
  for (const PieceRun& run : program.line) {
    const Piece& piece = program.pieces[run.piece];
    if (piece.layers == 0) {
      const bool between = is_layer(piece) && next != of_layer_.end();
      runs.push_back({between ? variant(program, run.piece, *next) : run.piece, run.count});
      continue;
    }
    const auto end = next + run.count;
    while (next != end) {
      const auto change = std::find_if(next, end, [&](std::uint16_t number) { return number != *next; });
      runs.push_back({variant(program, run.piece, *next), change - next});
      next = change;
    }
  }
  program.line = std::move(runs);
}

LayerPlans layer_plans(const Scenario& scenario) {
  LayerPlans plans(scenario);
  for (const LayerRange& range : scenario.plan.layers)
    plans.change(range.from, end_of(range, scenario.model.total_layers()), range.step,
                 [&](Plan& plan) { lay_over(range.plan, plan); });
  for (const Strategy& strategy : all_strategies())
    if (strategy.plan_layers != nullptr) strategy.plan_layers(scenario, plans);
  return plans;
}

bool is_another_for_layers(const Plan& range, const Plan& around) {
  return layer_fields_of(range) != layer_fields_of(around);
}

void check_ranges(const Scenario& scenario) {
  const auto& ranges = scenario.plan.layers;
  if (ranges.empty()) return;
  const std::int64_t layers = scenario.model.total_layers();
  const std::string all = "layers 0 to " + std::to_string(layers - 1);
  std::vector<std::size_t> owner(static_cast<std::size_t>(layers), ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const LayerRange& range = ranges[i];
    const std::int64_t end = end_of(range, layers);
    const auto fail = [&](const char* key, std::int64_t found, const std::string& expected) {
      throw InputError({"", "/plan/layers/" + std::to_string(i) + "/" + key}, std::to_string(found), expected);
    };
    if (range.from >= layers) fail("from", range.from, "one of the model's " + all);
    if (end > layers)
      fail("to", end,
           "at most " + std::to_string(layers) + ": the model has " + all + ", and \"to\" is one past the last");
    if (end <= range.from)
      fail("to", end,
           "more than \"from\", " + std::to_string(range.from) + ": \"to\" is the first layer after the range");
    for (std::int64_t layer = range.from; layer < end; layer += range.step) {
      std::size_t& of = owner[static_cast<std::size_t>(layer)];
      if (of < ranges.size())
        throw InputError({"", "/plan/layers/" + std::to_string(i)},
                         "layer " + std::to_string(layer) + ", which is also in /plan/layers/" + std::to_string(of),
                         "ranges that do not overlap");
      of = i;
    }
  }
}

}  // namespace orrery
