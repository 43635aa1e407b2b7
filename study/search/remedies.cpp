#include "study/search/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/base/error.h"

namespace orrery {
namespace {

class Attempts {
 public:
  Attempts(const SearchOptions& options, const UserCalibration& user) : options_(options), user_(user) {
    options_.top = 1;
    options_.front = 1;
    options_.leanest = false;
  }

  // False: it is not enough.
  bool attempt(const std::string& what, const Scenario& base, const SpaceOptions& fields) {
    const Space space(base, fields);
    SearchResult result = search(space, options_, user_);
    if (result.best.empty()) return false;
    found_.push_back({what, space.scenario(result.best.front().values), std::move(result.best.front())});
    return true;
  }
  std::vector<Remedy> take() { return std::move(found_); }

 private:
  SearchOptions options_;
  const UserCalibration& user_;
  std::vector<Remedy> found_;
};

}  // namespace

std::vector<Remedy> remedies(const Scenario& base, const SpaceOptions& fields, const SearchOptions& options,
                             const UserCalibration& user) {
  Attempts attempts(options, user);
  for (std::size_t i = 0; i < fields.fixed.size(); ++i) {
    SpaceOptions freed = fields;
    freed.fixed.erase(freed.fixed.begin() + static_cast<std::ptrdiff_t>(i));
    attempts.attempt(fmt::format("plan.{} searched", fields.fixed[i]), base, freed);
  }
  for (std::size_t i = 0; i < fields.over.size(); ++i) {
    if (fields.over[i].values.empty()) continue;
    SpaceOptions freed = fields;
    freed.over.erase(freed.over.begin() + static_cast<std::ptrdiff_t>(i));
    attempts.attempt(fmt::format("plan.{} with other values", fields.over[i].field), base, freed);
  }
  if (!fields.all) {
    SpaceOptions all = fields;
    all.all = true;
    attempts.attempt("fields that are not usually searched (--all)", base, all);
  }
  constexpr std::int64_t kMostTimes = 16;
  // What is said of single nodes does not go for more of them.
  const bool nodes_alike = base.cluster.placement.nodes.empty();
  for (std::int64_t times = 2; nodes_alike && times <= kMostTimes; times *= 2) {
    Scenario larger = base;
    larger.cluster.nodes *= times;
    if (attempts.attempt(fmt::format("{} nodes instead of {}", larger.cluster.nodes, base.cluster.nodes), larger,
                         fields))
      break;
  }
  for (std::int64_t parts = 2; parts <= kMostTimes && base.workload.sequence_length % parts == 0; parts *= 2) {
    Scenario shorter = base;
    shorter.workload.sequence_length /= parts;
    if (shorter.workload.sequence_length == 0) break;
    if (attempts.attempt(fmt::format("sequences of {} tokens instead of {}", shorter.workload.sequence_length,
                                     base.workload.sequence_length),
                         shorter, fields))
      break;
  }
  return attempts.take();
}

}  // namespace orrery
