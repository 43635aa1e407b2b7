// Sequences packed from documents: attention does not cross a document's borders. Turns the workload's documents into
// loads of the Program (sim/program/load.h).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/one_line.h"
#include "sim/program/work.h"
#include "sim/report/format.h"
#include "strategies/strategy.h"
#include "traces/packing/packed_workload.h"

namespace orrery::packed_documents {
namespace {

// Micro-batches with different work become classes of the Program, with a copy of each layer per class: at most this
// many. If there are more, neighbours in the order of their work are joined, with the mean of their costs.
constexpr std::size_t kMostMicroBatchClasses = 8;

[[noreturn]] void refuse(const char* pointer, std::string found, std::string expected) {
  throw InputError({"", pointer}, std::move(found), std::move(expected));
}

const char* field_of(const Workload& workload) {
  return workload.recorded_documents ? "/workload/documents_file" : "/workload/documents";
}

// The sets of replicas that wait for each other in each micro-batch.
class ReplicaSets {
 public:
  explicit ReplicaSets(const Program& program) {
    const MeshGroup replicas = program.mesh.replicas();
    replicas_ = static_cast<std::size_t>(program.mesh.size(replicas));
    MeshGroup met;
    for (const Piece& piece : program.pieces)
      for (const Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient})
        for (const Op& op : block->ops)
          if (is_communication(op.kind) && op.when == When::every_micro_batch) met = met | (op.group & replicas);
    const MeshGroup apart = replicas.without(met);
    members_.resize(static_cast<std::size_t>(program.mesh.size(apart)));
    std::vector<bool> seen(replicas_, false);
    for (std::int64_t rank = 0; rank < program.mesh.ranks(); ++rank) {
      const auto replica = static_cast<std::size_t>(program.mesh.coordinate(rank, replicas)),
                 set = static_cast<std::size_t>(program.mesh.coordinate(rank, apart));
      if (seen[replica]) continue;
      seen[replica] = true;
      members_[set].push_back(replica);
    }
    for (std::vector<std::size_t>& members : members_) std::ranges::sort(members);
  }

  std::size_t replicas() const { return replicas_; }
  const std::vector<std::vector<std::size_t>>& all() const { return members_; }

 private:
  std::size_t replicas_ = 1;
  std::vector<std::vector<std::size_t>> members_;
};

// The work of attention, by replica and micro-batch.
class Work {
 public:
  Work(const PackedSequences& packed, std::size_t replicas, std::size_t micro_batches)
      : micro_batches_(micro_batches),
        size_(static_cast<std::size_t>(packed.count()) / (replicas * micro_batches)),
        pairs_(replicas * micro_batches) {
    for (std::size_t i = 0; i < pairs_.size(); ++i)
      for (const std::int64_t s : sequences(i / micro_batches, i % micro_batches))
        pairs_[i] += whole_pairs(packed.ends_of(s));
  }

  std::size_t micro_batches() const { return micro_batches_; }
  double at(std::size_t replica, std::size_t micro_batch) const {
    return pairs_[replica * micro_batches_ + micro_batch];
  }
  double most(const std::vector<std::size_t>& replicas, std::size_t micro_batch) const {
    double most = 0;
    for (const std::size_t r : replicas) most = std::max(most, at(r, micro_batch));
    return most;
  }
  double sum_of_most(const std::vector<std::size_t>& replicas) const {
    double sum = 0;
    for (std::size_t m = 0; m < micro_batches_; ++m) sum += most(replicas, m);
    return sum;
  }
  std::vector<std::int64_t> sequences(std::size_t replica, std::size_t micro_batch) const {
    std::vector<std::int64_t> numbers(size_);
    std::iota(numbers.begin(), numbers.end(),
              static_cast<std::int64_t>((replica * micro_batches_ + micro_batch) * size_));
    return numbers;
  }

 private:
  std::size_t micro_batches_, size_;
  std::vector<double> pairs_;
};

// Returns the class of each micro-batch; the first has class 0.
std::vector<std::uint8_t> classes_of(const Work& work, const ReplicaSets& sets,
                                     const std::vector<std::size_t>& slowest) {
  const std::size_t n = work.micro_batches();
  std::map<std::vector<double>, std::size_t> alike;
  std::vector<std::size_t> of(n);
  for (std::size_t m = 0; m < n; ++m) {
    std::vector<double> of_replicas(sets.replicas());
    for (std::size_t r = 0; r < of_replicas.size(); ++r) of_replicas[r] = work.at(r, m);
    of[m] = alike.emplace(std::move(of_replicas), alike.size()).first->second;
  }
  if (alike.size() > kMostMicroBatchClasses) {
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(
        order, [&](std::size_t a, std::size_t b) { return work.most(slowest, a) < work.most(slowest, b); });
    for (std::size_t i = 0; i < n; ++i) of[order[i]] = i * kMostMicroBatchClasses / n;
  }
  std::map<std::size_t, std::uint8_t> number;
  std::vector<std::uint8_t> classes;
  for (const std::size_t c : of)
    classes.push_back(number.try_emplace(c, static_cast<std::uint8_t>(number.size())).first->second);
  return classes;
}

std::vector<DocumentLoad> loads_of(const Work& work, const ReplicaSets& sets, const std::vector<std::size_t>& slowest,
                                   const std::vector<std::uint8_t>& classes) {
  std::vector<DocumentLoad> loads(1u + *std::ranges::max_element(classes));
  for (DocumentLoad& load : loads) load.sequences.resize(sets.replicas());
  for (const std::vector<std::size_t>& set : sets.all()) {
    std::vector<double> of_all(sets.replicas(), 0);
    for (const std::size_t r : set)
      for (std::size_t m = 0; m < work.micro_batches(); ++m) of_all[r] += work.at(r, m);
    // The replica with the i-th most work of a micro-batch represents the one with the i-th most work in total.
    std::vector<std::size_t> places = set;
    std::ranges::stable_sort(places, [&](std::size_t a, std::size_t b) { return of_all[a] > of_all[b]; });
    for (std::size_t m = 0; m < work.micro_batches(); ++m) {
      std::vector<std::size_t> here = set;
      std::ranges::stable_sort(here, [&](std::size_t a, std::size_t b) { return work.at(a, m) > work.at(b, m); });
      for (std::size_t i = 0; i < set.size(); ++i) {
        std::vector<std::int64_t>& all = loads[classes[m]].sequences[places[i]];
        const std::vector<std::int64_t> more = work.sequences(here[i], m);
        all.insert(all.end(), more.begin(), more.end());
      }
    }
    if (set == slowest)
      for (DocumentLoad& load : loads) load.slowest_replica = static_cast<std::int64_t>(places.front());
  }
  for (const std::uint8_t c : classes) ++loads[c].micro_batches;
  return loads;
}

// Whether it attends at all.
bool give_load(std::size_t load, Piece& piece) {
  bool any = false;
  for (Block* block : {&piece.forward, &piece.backward, &piece.weight_gradient})
    for (Op& op : block->ops) {
      if (op.kind == OpKind::softmax)
        refuse("/plan/flash_attention", "false", "true: kernels that store the scores cannot mask documents");
      if (!is_attention(op.kind)) continue;
      op.documents = TableIndex<DocumentLoad>(load);
      any = true;
    }
  return any;
}

void lay_classes(const std::vector<std::uint8_t>& classes, Program& program) {
  const std::size_t pieces = program.pieces.size(), all = program.document_loads.size();
  std::vector<std::vector<std::uint16_t>> copies(all, std::vector<std::uint16_t>(pieces));
  for (std::size_t p = 0; p < pieces; ++p) {
    const bool attends = give_load(0, program.pieces[p]);
    for (std::size_t c = 0; c < all; ++c) {
      copies[c][p] = static_cast<std::uint16_t>(attends && c > 0 ? program.pieces.size() : p);
      if (!attends || c == 0) continue;
      if (program.pieces[p].variant_of == kNoPiece) program.pieces[p].variant_of = static_cast<std::uint16_t>(p);
      Piece copy = program.pieces[p];
      give_load(c, copy);
      program.pieces.push_back(std::move(copy));
    }
  }
  if (all == 1) return;
  for (std::size_t c = 1; c < all; ++c) {
    MicroBatchClass other{program.line, program.stages};
    const auto rename = [&](std::vector<PieceRun>& runs) {
      for (PieceRun& run : runs) run.piece = copies[c][run.piece];
    };
    rename(other.line);
    for (std::vector<Chunk>& stage : other.stages)
      for (Chunk& chunk : stage) rename(chunk.runs);
    program.other_classes.push_back(std::move(other));
  }
  program.micro_batch_class = classes;
}

class DocumentsController final : public TrainingController {
 public:
  std::uint64_t state(const Scenario& scenario) const override {
    return static_cast<std::uint64_t>(scenario.workload.step);
  }
};

// What no plan changes: that documents and how they are packed can be had. Throws InputError (pointer "/workload/..").
void check_workload(const Scenario& scenario) {
  const Workload& workload = scenario.workload;
  if (!workload.has_documents()) {
    const char* const expected = "nothing without \"documents\" or \"documents_file\"";
    if (workload.packing != Workload().packing)
      refuse("/workload/packing",
             fmt::format("\"{}\"", kPackingPolicyNames[static_cast<std::size_t>(workload.packing)]), expected);
    if (workload.documents_seed != Workload().documents_seed)
      refuse("/workload/documents_seed", std::to_string(workload.documents_seed), expected);
    return;
  }
  if (workload.recorded_documents && !workload.documents.empty())
    refuse("/workload/documents", "\"" + workload.documents + "\"",
           "nothing with \"documents_file\", which gives the lengths of documents");
  if (workload.packing == PackingPolicy::datasculpt)
    refuse("/workload/packing", "\"datasculpt\"",
           "a policy that packs by length: documents of a workload have no embeddings");
  (void)packed_sequences(scenario);
  const bool packed =
      lists_sequences(workload.documents) || (workload.recorded_documents && workload.recorded_documents->packed());
  if (packed && workload.packing != PackingPolicy::concat)
    refuse("/workload/packing", fmt::format("\"{}\"", kPackingPolicyNames[static_cast<std::size_t>(workload.packing)]),
           "\"concat\" for sequences that are listed or in a file: they are packed already");
}

void check(const Scenario& scenario) {
  check_workload(scenario);
  if (!scenario.workload.has_documents()) return;
  const Model& model = scenario.model;
  if (model.kind != ModelKind::decoder)
    refuse(field_of(scenario.workload), "documents for a model that is not a decoder",
           "a decoder, whose attention is causal");
  if (model.relative_projection)
    refuse(field_of(scenario.workload), "documents for a model whose attention stores its scores",
           "none: such kernels cannot mask documents");
  if (!scenario.plan.framework.flash_attention)
    refuse("/plan/flash_attention", "false", "true: kernels that store the scores cannot mask documents");
}

void rewrite(const Scenario&, Program& program) {
  if (program.packed == nullptr) return;
  if (!program.micro_batch_class.empty())
    refuse("/workload/routing", "routing that differs between micro-batches",
           "the same routing for all: packed documents already make micro-batches differ");
  const ReplicaSets sets(program);
  const Work work(*program.packed, sets.replicas(), static_cast<std::size_t>(program.schedule.micro_batches));
  const std::vector<std::size_t>& slowest = *std::ranges::max_element(
      sets.all(), {}, [&](const std::vector<std::size_t>& set) { return work.sum_of_most(set); });
  const std::vector<std::uint8_t> classes = classes_of(work, sets, slowest);
  program.document_loads = loads_of(work, sets, slowest, classes);
  lay_classes(classes, program);
}

std::unique_ptr<TrainingController> control(const Scenario& scenario) {
  return scenario.workload.has_documents() ? std::make_unique<DocumentsController>() : nullptr;
}

bool begins_anew(const Scenario& scenario) { return scenario.workload.has_documents() && scenario.workload.step > 0; }

constexpr std::array<FigureKind, 6> kKinds{
    {{"documents", "documents_per_sequence", FigureUnit::number, "documents of a sequence in the mean; padding is one",
      "documents per sequence"},
     {"documents", "longest_document", FigureUnit::count, "positions of the longest document of the step"},
     {"documents", "padded_share", FigureUnit::share, "padding, of all positions of the step"},
     {"documents", "attention_share", FigureUnit::share,
      "pairs that attention sees, over those of the causal mask of whole sequences", "attention within documents"},
     {"documents", "busiest_replica_over_mean", FigureUnit::times,
      "pairs of the busiest replica over the mean of replicas", "attention, busiest replica"},
     {"documents", "busiest_micro_batch_over_mean", FigureUnit::times,
      "pairs of the busiest micro-batch of a replica over the mean of all"}}};

void figures(const Scenario&, const Program& program, std::vector<Figure>& figures) {
  if (program.document_loads.empty()) return;
  const PackedSequences& packed = *program.packed;
  const auto sequences = static_cast<double>(packed.count()), length = static_cast<double>(packed.length);
  const double padded_share = static_cast<double>(packed.padded_positions) / (sequences * length);
  const auto replicas = program.document_loads.front().sequences.size();
  const std::int64_t of_replica = packed.count() / static_cast<std::int64_t>(replicas),
                     of_micro_batch = of_replica / program.schedule.micro_batches;
  std::int64_t longest = 0;
  double all = 0, replica = 0, busiest = 0, micro_batch = 0, most = 0;
  for (std::int64_t s = 0; s < packed.count(); ++s) {
    if (s % of_replica == 0) replica = 0;
    if (s % of_micro_batch == 0) micro_batch = 0;
    for_each_document(packed.ends_of(s),
                      [&](std::int64_t begin, std::int64_t end) { longest = std::max(longest, end - begin); });
    const double pairs = whole_pairs(packed.ends_of(s));
    all += pairs;
    busiest = std::max(busiest, replica += pairs);
    most = std::max(most, micro_batch += pairs);
  }
  const double busiest_micro_batch = most / (all * static_cast<double>(of_micro_batch) / sequences);
  figures.push_back(
      {&kKinds[0], static_cast<double>(packed.ends.size()) / sequences,
       fmt::format("the longest has {} tokens; {} of all positions are padding", longest, percent_text(padded_share))});
  figures.push_back({&kKinds[1], static_cast<double>(longest)});
  figures.push_back({&kKinds[2], padded_share});
  figures.push_back({&kKinds[3], all / (sequences * length * length / 2), "of the query-key pairs of whole sequences"});
  figures.push_back({&kKinds[4], busiest / (all / static_cast<double>(replicas)),
                     fmt::format("its pairs over the mean; at most {:.2f}x in a micro-batch", busiest_micro_batch)});
  figures.push_back({&kKinds[5], busiest_micro_batch});
}

std::string documents_text(const Evaluated& here, const Evaluate&) {
  const Program& program = here.program();
  if (program.document_loads.empty()) return "documents: none, attention sees the whole sequence\n";
  const PackedSequences& packed = *program.packed;
  const Workload& w = here.scenario().workload;
  constexpr std::size_t kMostOfList = 60;
  const auto replicas = static_cast<double>(program.document_loads.front().sequences.size()),
             micro_batches = static_cast<double>(program.schedule.micro_batches);
  double mean = 0;  // pairs of a micro-batch
  for (std::int64_t s = 0; s < packed.count(); ++s) mean += whole_pairs(packed.ends_of(s)) / (replicas * micro_batches);
  std::string text = fmt::format(
      "documents: {}, step {}; {} sequences of {} tokens\nquery-key pairs within documents, relative to the mean "
      "micro-batch, by class of micro-batches:\n",
      w.recorded_documents ? "recorded in " + w.documents_file : one_line(w.documents, kMostOfList), w.step,
      packed.count(), packed.length);
  constexpr std::string_view kColumns = "micro-batches|documents|slowest replica|mean";
  std::vector<std::vector<std::string>> rows;
  for (const DocumentLoad& load : program.document_loads) {
    double documents = 0, all = 0, slowest = 0;
    for (std::size_t r = 0; r < load.sequences.size(); ++r)
      for (const std::int64_t s : load.sequences[r]) {
        documents += static_cast<double>(packed.ends_of(s).size());
        all += whole_pairs(packed.ends_of(s));
        if (static_cast<std::int64_t>(r) == load.slowest_replica) slowest += whole_pairs(packed.ends_of(s));
      }
    const auto of_class = static_cast<double>(load.micro_batches);
    rows.push_back({std::to_string(load.micro_batches), fmt::format("{:.1f}", documents / replicas / of_class),
                    fmt::format("{:.3f}x", slowest / of_class / mean),
                    fmt::format("{:.3f}x", all / replicas / of_class / mean)});
  }
  return text + grid(kColumns, rows) +
         fmt::format(
             "the analytical step is that of replica {}, the slowest over all micro-batches; attention time follows "
             "from each document: --explain attention\n",
             program.document_loads.front().slowest_replica);
}

constexpr std::string_view kNames[]{"documents", "documents per sequence", "attention within documents",
                                    "attention, busiest replica"};
constexpr Topic kTopics[]{
    {.names = kNames, .summary = "attention within the documents of each micro-batch", .text = documents_text}};

}  // namespace

Strategy describe() {
  return {.name = "packed_documents",
          .summary = "sequences packed from documents of unequal length, which attention does not leave",
          .paper = "Krell et al. 2021, arXiv 2107.02027",
          .check = check,
          .rewrite = rewrite,
          .control = control,
          .check_workload = check_workload,
          .begins_anew = begins_anew,
          .figure_kinds = kKinds,
          .figures = figures,
          .topics = kTopics};
}

}  // namespace orrery::packed_documents
