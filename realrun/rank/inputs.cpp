#include "realrun/rank/inputs.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace orrery::realrun {
namespace {

// The number of different ids, and the stream of random numbers that draws them.
struct Ids {
  std::int64_t kinds = 0;
  std::uint64_t stream = 0;
};
Ids ids_of(Input input, const Model& model) {
  switch (input) {
    case Input::targets:
      return {model.vision() ? model.classes : model.vocab, 1};
    case Input::token_types:
      return {model.token_types, 2};
    case Input::next_sentence:
      return {2, 3};
    case Input::decoder_tokens:
      return {model.vocab, 5};
    case Input::next_targets:
      return {model.vocab, 6};
    default:
      return {model.vocab, 0};
  }
}
constexpr std::uint64_t kPatches = 4;  // a different stream

}  // namespace

std::vector<std::int64_t> sequence_positions(const PiecePlan& plan, const Tensor& t, const Position& position) {
  const int d = t.find(Axis::sequence);
  if (d < 0) return {};
  const std::int64_t whole = t.sizes[d] * position.mesh->size(t.over[d].group());
  if (whole != plan.sequence() && t.over[d].empty() && t.sequence_begin == 0) return {};
  std::vector<std::int64_t> positions =
      dealt_indices(t.deal(d), t.over[d], whole, t.sizes[d], *position.mesh, static_cast<std::int64_t>(position.rank));
  for (std::int64_t& at : positions) at += t.sequence_begin;
  return positions;
}

std::vector<float> input_values(const RunSetup& setup, const Position& position, const PiecePlan& plan, const Tensor& t,
                                std::int64_t micro_batch) {
  constexpr std::uint64_t kInputs = std::uint64_t{1} << 40;  // separate from the parameters' streams
  const Model& model = setup.scenario.model;
  std::vector<float> values(static_cast<std::size_t>(t.elements()));
  const std::int64_t sequences = t.sizes[0], width = t.elements() / sequences;
  const std::int64_t first = (position.replica * setup.program.schedule.micro_batches + micro_batch) * sequences;
  const auto draw = [&](std::uint64_t stream, std::int64_t index) {
    return counter_uniform(setup.options.seed, kInputs + stream, static_cast<std::uint64_t>(index));
  };
  const auto set = [&](std::int64_t e, auto value) { values[static_cast<std::size_t>(e)] = static_cast<float>(value); };
  switch (t.input) {
    case Input::none:
    case Input::sinusoids:  // for models that cannot be run yet (check_runnable)
      throw std::logic_error(std::string("\"") + t.name + "\" is given no values from outside");
    case Input::distances:
    case Input::past_distances:
      for (std::int64_t e = 0; e < t.elements(); ++e)
        set(e, position_bucket(e % width - e / width, t.input == Input::past_distances, model.relative_buckets));
      break;
    case Input::patches:
      for (std::int64_t e = 0; e < t.elements(); ++e) set(e, draw(kPatches, first * width + e));
      break;
    default: {
      const auto [kinds, stream] = ids_of(t.input, model);
      const std::vector<std::int64_t> positions = sequence_positions(plan, t, position);
      for (std::int64_t e = 0; e < t.elements(); ++e) {
        const std::int64_t at = positions.empty() ? e % width : positions[static_cast<std::size_t>(e % width)];
        const double u = draw(stream, (first + e / width) * plan.sequence() + at);
        set(e, std::min(kinds - 1, static_cast<std::int64_t>((u + 1) / 2 * static_cast<double>(kinds))));
      }
    }
  }
  return values;
}

}  // namespace orrery::realrun
