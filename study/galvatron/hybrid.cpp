#include "study/galvatron/hybrid.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <tuple>

#include "sim/base/error.h"
#include "sim/base/words.h"

namespace orrery::galvatron {
namespace {

constexpr std::array<std::string_view, 4> kDimensionNames{"dp", "sdp", "tp", "pp"};

// The paths of a tree: each level takes a dimension that the path does not have yet and a degree of two or more.
std::int64_t paths(std::int64_t ranks, std::int64_t dimensions) {
  if (ranks == 1) return 1;
  std::int64_t count = 0;
  for (std::int64_t degree = 2; degree <= ranks && dimensions > 0; degree *= 2)
    count += dimensions * paths(ranks / degree, dimensions - 1);
  return count;
}

}  // namespace

std::string text_of(const Hybrid& h) {
  return fmt::format("{}-{}{}-{}{}{}", h.pipeline, h.tensor, h.has_order() && h.tensor_consecutive ? "*" : "", h.data,
                     h.sharded ? "f" : "", h.has_order() && !h.tensor_consecutive ? "*" : "");
}

Hybrid read_hybrid(const std::string& text) {
  const auto fail = [&] {
    return InputError({}, fmt::format("\"{}\"", text), "pipeline-tensor-data, such as 2-2*-2 or 1-1-8f");
  };
  const std::vector<std::string_view> parts = split(text, '-');
  if (parts.size() != 3) throw fail();
  Hybrid h;
  bool data_consecutive = false;
  const auto take = [](std::string_view& part, char mark) {
    if (!part.ends_with(mark)) return false;
    part.remove_suffix(1);
    return true;
  };
  const auto degree = [&](std::string_view part) {
    const std::optional<std::int64_t> value = number_of(part);
    if (!value || *value < 1 || !std::has_single_bit(static_cast<std::uint64_t>(*value))) throw fail();
    return *value;
  };
  std::string_view tensor = parts[1], data = parts[2];
  h.tensor_consecutive = take(tensor, '*');
  data_consecutive = take(data, '*');
  h.sharded = take(data, 'f');
  h.pipeline = degree(parts[0]);
  h.tensor = degree(tensor);
  h.data = degree(data);
  if (h.has_order() ? h.tensor_consecutive == data_consecutive : h.tensor_consecutive || data_consecutive) throw fail();
  if (h.sharded && h.data == 1) throw fail();
  return h;
}

Dimensions read_dimensions(const std::string& text) {
  Dimensions dimensions{.data = false, .sharded = false, .tensor = false, .pipeline = false};
  for (const std::string_view name : split(text, '+')) {
    const auto found = std::ranges::find(kDimensionNames, name);
    if (found == kDimensionNames.end())
      throw InputError({}, fmt::format("\"{}\"", text), "some of dp, sdp, tp, pp, joined by +",
                       nearest_name(name, kDimensionNames));
    *std::array{&dimensions.data, &dimensions.sharded, &dimensions.tensor,
                &dimensions.pipeline}[static_cast<std::size_t>(found - kDimensionNames.begin())] = true;
  }
  return dimensions;
}

std::vector<Hybrid> hybrids(std::int64_t devices, const Dimensions& dimensions) {
  std::vector<Hybrid> all;
  for (std::int64_t pipeline = 1; pipeline <= devices; pipeline *= 2) {
    if (pipeline > 1 && !dimensions.pipeline) break;
    for (std::int64_t tensor = 1; tensor <= devices / pipeline; tensor *= 2) {
      if (tensor > 1 && !dimensions.tensor) break;
      Hybrid h{.pipeline = pipeline, .tensor = tensor, .data = devices / pipeline / tensor};
      for (const bool sharded : {false, true}) {
        if (h.data == 1 ? sharded : !(sharded ? dimensions.sharded : dimensions.data)) continue;
        h.sharded = sharded;
        for (const bool consecutive : {false, true}) {
          if (consecutive && !h.has_order()) continue;
          h.tensor_consecutive = consecutive;
          all.push_back(h);
        }
      }
    }
  }
  return all;
}

std::int64_t unpruned_hybrids(std::int64_t devices) {
  constexpr std::int64_t kWithinAStage = 3;  // data, sharded data, tensor
  std::int64_t count = 0;
  for (std::int64_t ranks = 1; ranks <= devices; ranks *= 2) count += paths(ranks, kWithinAStage);
  return count;
}

std::string runs_text(const std::vector<Hybrid>& layers) {
  std::string text;
  for (std::size_t first = 0, end = 0; first < layers.size(); first = end) {
    while (end < layers.size() && layers[end] == layers[first]) ++end;
    text += fmt::format("{}{} x {}", first == 0 ? "" : ", ", text_of(layers[first]), end - first);
  }
  return text;
}

}  // namespace orrery::galvatron
