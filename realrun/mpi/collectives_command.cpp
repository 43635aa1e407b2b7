#include "realrun/mpi/collectives_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/cost/exchange_skew.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

CollectiveAlgorithm algorithm_of(const CollectiveSweep& sweep) {
  for (std::size_t i = 1; i < kForcedAlgorithmNames.size(); ++i)
    if (kCollectiveAlgorithmNames[i] == sweep.algorithm) return static_cast<CollectiveAlgorithm>(i);
  if (sweep.algorithm == kCollectiveAlgorithmNames[0])
    return sweep.kind == "all_to_all" || sweep.kind == "send_recv" ? CollectiveAlgorithm::direct
                                                                   : CollectiveAlgorithm::ring;
  throw InputError({"--algorithm", ""}, describe(sweep.algorithm),
                   "ring, tree, halving_doubling, direct or hierarchical");
}

// Small whole numbers, whose sums are exact in fp32.
float value_of(std::size_t rank, std::int64_t i) {
  return static_cast<float>((static_cast<std::int64_t>(rank) * 7 + i) % 101);
}

class Sweep {
 public:
  explicit Sweep(const CollectiveSweep& sweep, const MpiOptions& options)
      : sweep_(sweep), communicator_(make_mpi_communicator(options)), all_(communicator_->everyone()) {
    const std::size_t rank = communicator_->rank(), ranks = communicator_->ranks();
    const auto groups = static_cast<std::size_t>(std::max<std::int64_t>(0, sweep.groups));
    if (groups < 1 || ranks % groups != 0)
      throw InputError({"--groups", ""}, fmt::format("{}", sweep.groups),
                       fmt::format("a number that divides the {} ranks", ranks));
    for (std::size_t r = rank % groups; r < ranks; r += groups) members_.push_back(r);
    own_ = rank / groups;
    if (algorithm_of(sweep) == CollectiveAlgorithm::hierarchical)
      divide_into_nodes();
    else if (sweep.ranks_per_node != 1)
      throw InputError({"--ranks-per-node", ""}, fmt::format("{}", sweep.ranks_per_node),
                       "nothing without --algorithm hierarchical");
  }

  OrderedJson point(double bytes) {
    prepare(bytes);
    run();
    check();
    barrier();
    Clock::time_point begin = Clock::now();
    run();
    const double once = span(begin, Clock::now());
    const std::int64_t iterations =
        sweep_.iterations > 0 ? sweep_.iterations
                              : std::max<std::int64_t>(1, std::llround(sweep_.sample_seconds / std::max(once, 1e-9)));
    std::vector<double> samples;
    const double trips = sweep_.kind == "ping_pong" ? 2 : 1;
    for (std::int64_t s = 0; s < sweep_.samples; ++s) {
      barrier();
      begin = Clock::now();
      for (std::int64_t k = 0; k < iterations; ++k) run();
      samples.push_back(span(begin, Clock::now()) / static_cast<double>(iterations) / trips);
    }
    return {{"bytes", bytes}, {"iterations", iterations}, {"seconds", samples}};
  }

  Communicator& communicator() { return *communicator_; }

 private:
  void barrier() { communicator_->gather_values(all_, "barrier", {}); }
  // From the start of the first rank to the end of the last. They share a clock.
  double span(Clock::time_point begin, Clock::time_point end) {
    const auto seconds = [](Clock::time_point t) {
      return std::chrono::duration<double>(t.time_since_epoch()).count();
    };
    double first = seconds(begin), last = seconds(end);
    for (const std::vector<double>& v : communicator_->gather_values(all_, "times", {first, last})) {
      first = std::min(first, v[0]);
      last = std::max(last, v[1]);
    }
    return last - first;
  }

  void prepare(double bytes) {
    const auto n = static_cast<std::int64_t>(members_.size());
    const bool parts = sweep_.kind == "all_gather" || sweep_.kind == "reduce_scatter" || sweep_.kind == "all_to_all";
    const auto elements = static_cast<std::int64_t>(bytes) / static_cast<std::int64_t>(sizeof(float));
    each_ = std::max<std::int64_t>(1, parts ? elements / n : elements);
    const std::int64_t whole = parts ? n * each_ : each_;
    in_.resize(static_cast<std::size_t>(sweep_.kind == "all_gather" ? each_ : whole));
    out_.resize(static_cast<std::size_t>(sweep_.kind == "reduce_scatter" ? each_ : whole));
    if (!sweep_.rows.empty() && sweep_.kind != "all_to_all")
      throw InputError({"--rows", ""}, describe(sweep_.kind), "all_to_all, the only collective with unequal parts");
    if (!sweep_.rows.empty()) rows_ = rows_of_text(sweep_.rows, n);
    if (sweep_.kind == "all_to_all") prepare_exchange();
    if (!node_.empty()) prepare_routed();
    for (std::size_t i = 0; i < in_.size(); ++i) in_[i] = value_of(communicator_->rank(), static_cast<std::int64_t>(i));
    if (sweep_.kind == "all_reduce" || sweep_.kind == "broadcast") out_ = in_;
  }

  // Elements that one member sends to another in an all_to_all.
  std::int64_t part(std::size_t from, std::size_t to) const {
    return rows_.empty() ? each_ : std::llround(static_cast<double>(each_) * rows_[from * members_.size() + to]);
  }
  void prepare_exchange() {
    sends_.clear(), receives_.clear();
    for (std::size_t m = 0; m < members_.size(); ++m) {
      sends_.push_back(part(own_, m));
      receives_.push_back(part(m, own_));
    }
    // Never empty, as MPI buffers must not be.
    in_.resize(1 + static_cast<std::size_t>(std::reduce(sends_.begin(), sends_.end())));
    out_.assign(1 + static_cast<std::size_t>(std::reduce(receives_.begin(), receives_.end())), 0);
  }

  void run() {
    const std::string& what = sweep_.kind;
    const CollectiveCall of{members_, what};
    const auto n = members_.size();
    if (what == "all_reduce")
      communicator_->all_reduce(of, out_.data(), each_);
    else if (what == "all_gather")
      communicator_->all_gather(of, in_.data(), out_.data(), each_);
    else if (what == "reduce_scatter")
      communicator_->reduce_scatter(of, in_.data(), out_.data(), each_);
    else if (what == "all_to_all")
      communicator_->all_to_all_v(of, in_.data(), sends_, out_.data(), receives_);
    else if (what == "broadcast")
      communicator_->broadcast(of, out_.data(), each_);
    else if (what == "send_recv" && !node_.empty())
      routed_shift();
    else if (what == "send_recv")
      communicator_->permute(of, in_.data(), out_.data(), each_, (own_ + 1) % n, (own_ + n - 1) % n);
    else if (what == "ping_pong")
      ping_pong();
    else
      throw InputError({"KIND", ""}, describe(what),
                       "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv or ping_pong");
  }

  void divide_into_nodes() {
    const std::size_t here = static_cast<std::size_t>(std::max<std::int64_t>(0, sweep_.ranks_per_node)),
                      n = all_.size();
    if (sweep_.kind != "send_recv" || sweep_.groups != 1)
      throw InputError({"--algorithm", ""}, describe(sweep_.algorithm),
                       "another algorithm: only send_recv in one group can be hierarchical");
    if (here < 2 || n % here != 0 || n == here)
      throw InputError({"--ranks-per-node", ""}, fmt::format("{}", sweep_.ranks_per_node),
                       fmt::format("a number from 2 that divides the {} ranks into nodes", n));
    for (std::size_t i = 0; i < here; ++i) node_.push_back(own_ / here * here + i);
    for (std::size_t r = own_ % here; r < n; r += here) rail_.push_back(r);
  }
  // The part of a message leaving a node that goes over its i-th rank.
  std::int64_t routed_part(std::size_t i) const {
    const auto parts = static_cast<std::int64_t>(node_.size()), index = static_cast<std::int64_t>(i);
    return (index + 1) * each_ / parts - index * each_ / parts;
  }
  void prepare_routed() {
    const std::size_t here = node_.size(), i = own_ % here;
    sends_.assign(here, 0), receives_.assign(here, 0);
    for (std::size_t m = 0; m < here; ++m) {
      if (i + 1 == here) sends_[m] = routed_part(m);
      if (m == i + 1) sends_[m] = each_;
      if (m + 1 == i) receives_[m] = each_;
      if (m + 1 == here) receives_[m] += routed_part(i);
    }
    to_door_.assign(here, 0), from_doors_.assign(here, 0);
    to_door_[0] = routed_part(i);
    if (i == 0)
      for (std::size_t m = 0; m < here; ++m) from_doors_[m] = routed_part(m);
    carried_.resize(static_cast<std::size_t>(1 + std::reduce(receives_.begin(), receives_.end())));
    crossed_.resize(static_cast<std::size_t>(1 + routed_part(i)));
  }
  // Every rank sends a message to the next, as CollectiveAlgorithm::hierarchical is modelled: within a node as a whole.
  // A message that leaves the node goes in equal parts to the node's ranks, from each to its counterpart in the next
  // node, and there to the destination.
  void routed_shift() {
    const std::size_t i = own_ % node_.size(), nodes = rail_.size(), at = own_ / node_.size();
    communicator_->all_to_all_v({node_, "send_recv in the node"}, in_.data(), sends_, carried_.data(), receives_);
    const float* const leaves = carried_.data() + (i == 0 ? 0 : each_);
    communicator_->permute({rail_, "send_recv between nodes"}, leaves, crossed_.data(), routed_part(i),
                           (at + 1) % nodes, (at + nodes - 1) % nodes);
    if (i > 0) std::copy_n(carried_.begin(), each_, out_.begin());
    communicator_->all_to_all_v({node_, "send_recv from the doors"}, crossed_.data(), to_door_,
                                i == 0 ? out_.data() : carried_.data(), from_doors_);
  }

  // Every member exchanges messages with the next: there and back.
  void ping_pong() {
    const std::size_t n = members_.size();
    if (n % 2 != 0) throw InputError({"KIND", ""}, fmt::format("ping_pong of {} ranks", n), "an even number of ranks");
    const std::size_t partner = members_[own_ ^ 1];
    constexpr Stream kStream = Stream::compute;
    const MessageTag there{}, back{.backward = true};
    if (own_ % 2 == 0) {
      communicator_->send(partner, there, kStream, in_.data(), each_, Dtype::fp32);
      communicator_->receive(partner, back, kStream, out_.data(), each_, Dtype::fp32);
    } else {
      communicator_->receive(partner, there, kStream, out_.data(), each_, Dtype::fp32);
      communicator_->send(partner, back, kStream, in_.data(), each_, Dtype::fp32);
    }
  }

  // What `out_` begins with after an operation.
  std::vector<float> expected() const {
    const std::string& kind = sweep_.kind;
    const std::size_t n = members_.size();
    std::vector<float> values;
    const auto append = [&](std::size_t from, std::int64_t begin, std::int64_t elements) {
      for (std::int64_t i = begin; i < begin + elements; ++i) values.push_back(value_of(from, i));
    };
    if (kind == "all_reduce" || kind == "reduce_scatter") {
      const std::int64_t begin = kind == "all_reduce" ? 0 : static_cast<std::int64_t>(own_) * each_;
      values.resize(static_cast<std::size_t>(each_));
      for (const std::size_t m : members_)
        for (std::int64_t i = 0; i < each_; ++i) values[static_cast<std::size_t>(i)] += value_of(m, begin + i);
    } else if (kind == "all_gather") {
      for (const std::size_t m : members_) append(m, 0, each_);
    } else if (kind == "all_to_all") {
      for (std::size_t m = 0; m < n; ++m) {
        std::int64_t before = 0;
        for (std::size_t other = 0; other < own_; ++other) before += part(m, other);
        append(members_[m], before, receives_[m]);
      }
    } else {
      append(kind == "broadcast"   ? members_.front()
             : kind == "ping_pong" ? members_[own_ ^ 1]
                                   : members_[(own_ + n - 1) % n],
             0, each_);
    }
    return values;
  }

  void check() const {
    const std::vector<float> right = expected();
    const auto [wrong, truth] = std::mismatch(out_.begin(), out_.end(), right.begin(), right.end());
    if (truth == right.end()) return;
    throw ExecutionError(fmt::format("rank {}: {} over {} ranks gives {} instead of {} at element {}",
                                     communicator_->rank(), sweep_.kind, members_.size(), *wrong, *truth,
                                     wrong - out_.begin()));
  }

  const CollectiveSweep& sweep_;
  const std::unique_ptr<MpiCommunicator> communicator_;
  Members all_, members_;
  std::size_t own_ = 0;
  std::int64_t each_ = 0;
  std::vector<double> rows_;  // if parts differ
  std::vector<std::int64_t> sends_, receives_;
  // For a routed shift: the ranks of this node, and this rank's counterparts in all nodes; otherwise empty.
  Members node_, rail_;
  std::vector<std::int64_t> to_door_, from_doors_;
  std::vector<float> carried_, crossed_;
  std::vector<float> in_, out_;
};

}  // namespace

void run_collective_sweep(const CollectiveSweep& sweep) {
  MpiOptions options = sweep.mpi;
  options.algorithm = algorithm_of(sweep);
  if (sweep.least_bytes < 1) throw InputError({"--minbytes", ""}, fmt::format("{}", sweep.least_bytes), "1 or more");
  if (sweep.step_factor < 2) throw InputError({"--stepfactor", ""}, fmt::format("{}", sweep.step_factor), "2 or more");
  Sweep runs(sweep, options);
  try {
    OrderedJson points = OrderedJson::array();
    for (double bytes = sweep.least_bytes; bytes <= sweep.most_bytes; bytes *= static_cast<double>(sweep.step_factor))
      points.push_back(runs.point(bytes));
    const std::size_t ranks = runs.communicator().ranks();
    runs.communicator().finish();
    if (runs.communicator().rank() != 0) return;
    const OrderedJson json{{"collective", sweep.kind},
                           {"algorithm", name_of(options.algorithm)},
                           {"ranks", ranks},
                           {"groups", sweep.groups},
                           {"points", points}};
    fmt::print("{}\n", json_text(json));
  } catch (...) {
    runs.communicator().fail(std::current_exception());
  }
}

}  // namespace orrery
