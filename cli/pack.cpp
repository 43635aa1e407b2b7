// orrery pack: packs documents into training sequences.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/offers.h"
#include "cli/output.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/report/format.h"
#include "strategies/read_scenario.h"
#include "study/answers/arguments.h"
#include "study/prediction/prediction.h"
#include "traces/packing/document_generator.h"
#include "traces/packing/documents.h"
#include "traces/packing/packed_workload.h"
#include "traces/packing/packing.h"

namespace orrery {
namespace {

struct PackArguments {
  std::string documents, embeddings;
  std::optional<std::int64_t> generate, context;
  DocumentGenerator generator;
  std::string weighting = "tokens";
  std::vector<std::string> policies;
  DataSculptOptions datasculpt;
  std::int64_t seed = 1;
  std::string scenario;
  std::vector<std::string> sets;
  std::string out, json, csv;
};

constexpr const char* kPackExamples = R"(Examples:
  orrery pack documents.jsonl --context 8192 --out sequences.jsonl       best-fit decreasing
  orrery pack documents.jsonl --context 8192 --policy concat --policy best_fit
  orrery pack documents.jsonl --embeddings embeddings.npy --context 16384 --policy datasculpt --out sequences.jsonl
  orrery pack --generate 100000 --lengths datasculpt --context 32768     without documents
  orrery pack --generate 100000 --lengths web-en=3,code=1 --context 8192 --csv -
  orrery pack --generate 100000 --scenario llama-3-70b-512-h100          what the mask is worth to a training step)";

// Compares a training step with the causal mask of whole sequences and one with attention within documents.
class MaskedStep {
 public:
  MaskedStep(const std::string& name, const std::vector<std::string>& sets) {
    const nlohmann::json document = scenario_argument(name, sets, source_);
    if (has_jobs(document)) refuse("/jobs", "several jobs", "one training, the one with packed sequences");
    scenario_ = read_scenario(document, source_);
    if (scenario_.model.kind != ModelKind::decoder)
      refuse("/model", "a model that is not a decoder", "a decoder, whose attention is causal");
    Workload& workload = scenario_.workload;
    if (workload.has_documents())
      refuse(workload.documents.empty() ? "/workload/documents_file" : "/workload/documents",
             "documents in the scenario", "none in addition to those that are packed");
    workload.packing = PackingPolicy::concat;
    if (workload.sequence_length == 0) workload.sequence_length = scenario_.model.max_positions;
    full_seconds_ = seconds(scenario_);
  }

  std::int64_t sequence_length() const { return scenario_.workload.sequence_length; }
  const std::string& file() const { return source_.file; }
  std::int64_t batch() const { return scenario_.workload.global_batch_size; }
  double full_seconds() const { return full_seconds_; }
  // Seconds for a batch of the packing: its first sequences if documents are concatenated, else drawn by `seed`.
  double seconds(const Packing& packing, bool in_order, std::uint64_t seed) {
    auto documents = std::make_shared<RecordedDocuments>();
    for (std::int64_t s = 0; s < packing.sequences(); ++s) {
      std::vector<std::int64_t>& tokens = documents->sequences.emplace_back();
      for (const DocumentPart& piece : packing.sequence(s)) tokens.push_back(piece.tokens);
    }
    if (!in_order) shuffle_sequences(seed, 0, documents->sequences);
    Scenario masked = scenario_;
    masked.workload.recorded_documents = std::move(documents);
    return seconds(masked);
  }

 private:
  [[noreturn]] void refuse(const char* pointer, std::string found, std::string expected) const {
    throw InputError({source_.file, pointer}, std::move(found), std::move(expected));
  }
  double seconds(const Scenario& scenario) {
    try {
      return predict(calibrator_.prepare(scenario)).step_seconds;
    } catch (const InputError& error) {
      throw source_.blame(error);
    }
  }

  ScenarioSource source_;
  Scenario scenario_;
  Calibrator calibrator_;
  double full_seconds_ = 0;
};

struct PackRow {
  std::string_view policy;
  PackingMeasures measures;
  std::optional<double> masked_seconds;
};

struct Packed {
  std::int64_t context = 0;
  bool has_embeddings = false;
  std::optional<double> full_seconds;
  std::int64_t batch = 0;  // of the step
  std::vector<PackRow> rows;
};

std::string table_of(const Packed& packed) {
  const PackingMeasures& first = packed.rows.front().measures;
  std::string text = fmt::format("{} document{}, {} tokens, packed into sequences of {}\n", first.documents,
                                 first.documents == 1 ? "" : "s", first.document_tokens, packed.context);
  if (packed.full_seconds)
    text += fmt::format("A step with the causal mask of whole sequences: {}\n", seconds_text(*packed.full_seconds));
  std::string columns = "<policy|sequences|truncated||dropped tokens|padding|pieces|most|attention|most";
  if (packed.has_embeddings) columns += "|similarity";
  if (packed.full_seconds) columns += "|step, masked";
  std::vector<std::vector<std::string>> rows;
  for (const PackRow& row : packed.rows) {
    const PackingMeasures& m = row.measures;
    std::vector<std::string>& cells = rows.emplace_back();
    cells = {std::string(row.policy),
             fmt::format("{}", m.sequences),
             fmt::format("{}", m.truncated),
             percent_text(m.truncated_share()),
             fmt::format("{}", m.dropped_tokens),
             fmt::format("{:.3f} %", kPercent * m.padding_share()),
             fmt::format("{:.2f}", m.pieces),
             fmt::format("{}", m.most_pieces),
             percent_text(m.attention_share),
             percent_text(m.largest_attention_share)};
    if (packed.has_embeddings) cells.push_back(m.has_similarity ? fmt::format("{:.3f}", m.similarity) : "-");
    if (packed.full_seconds) cells.push_back(seconds_text(*row.masked_seconds));
  }
  text += "\n" + grid(columns, rows);
  std::string repeated;
  for (const PackRow& row : packed.rows)
    if (packed.full_seconds && row.measures.sequences < packed.batch)
      repeated += fmt::format("{}{} has {}", repeated.empty() ? "" : ", ", row.policy, row.measures.sequences);
  if (!repeated.empty())
    text += fmt::format("\nA step takes {} sequences. Where a packing has fewer, the step repeats them in turn: {}\n",
                        packed.batch, repeated);
  return text;
}

// Names and values of a row, in the order of columns; the same for JSON and CSV.
nlohmann::ordered_json values_of(const Packed& packed, const PackRow& row) {
  const PackingMeasures& m = row.measures;
  nlohmann::ordered_json values{{"policy", row.policy},
                                {"context", packed.context},
                                {"documents", m.documents},
                                {"document_tokens", m.document_tokens},
                                {"sequences", m.sequences},
                                {"truncated_documents", m.truncated},
                                {"truncated_share", m.truncated_share()},
                                {"dropped_tokens", m.dropped_tokens},
                                {"padding_tokens", m.padding_tokens},
                                {"padding_share", m.padding_share()},
                                {"pieces_per_sequence", m.pieces},
                                {"most_pieces", m.most_pieces},
                                {"attention_share", m.attention_share},
                                {"largest_attention_share", m.largest_attention_share},
                                {"similarity", nullptr},
                                {"step_seconds", nullptr},
                                {"masked_step_seconds", nullptr}};
  if (m.has_similarity) values["similarity"] = m.similarity;
  if (packed.full_seconds) values["step_seconds"] = *packed.full_seconds;
  if (row.masked_seconds) values["masked_step_seconds"] = *row.masked_seconds;
  return values;
}

std::string json_of(const Packed& packed) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PackRow& row : packed.rows) rows.push_back(values_of(packed, row));
  return json_text(rows, 2) + "\n";
}

std::string csv_of(const Packed& packed) {
  std::string text;
  for (const PackRow& row : packed.rows) {
    std::string names, line;
    const nlohmann::ordered_json values = values_of(packed, row);
    for (const auto& [name, value] : values.items()) {
      names += (names.empty() ? "" : ",") + name;
      line += line.empty() ? "" : ",";
      line += value.is_null() ? "" : value.is_string() ? csv_text(value.get<std::string>()) : json_text(value);
    }
    text += (text.empty() ? names + "\n" : "") + line + "\n";
  }
  return text;
}

// Writes one sequence per line: where each piece begins in it, and which tokens of its document it holds.
void write_sequences(const Documents& documents, const Packing& packing, OutputStream& out) {
  constexpr std::size_t kBytesAtOnce = std::size_t{1} << 20;
  std::string text;
  const auto to = std::back_inserter(text);
  for (std::int64_t s = 0; s < packing.sequences(); ++s) {
    std::int64_t start = 0;
    fmt::format_to(to, "{{\"documents\":[");
    for (const DocumentPart& piece : packing.sequence(s)) {
      fmt::format_to(to, "{}{{\"id\":{},\"start\":{},\"first\":{},\"tokens\":{}}}", start == 0 ? "" : ",",
                     documents.id(piece.document), start, piece.first, piece.tokens);
      start += piece.tokens;
    }
    fmt::format_to(to, "],\"tokens\":{}}}\n", start);
    if (text.size() < kBytesAtOnce) continue;
    out.write(text);
    text.clear();
  }
  out.write(text);
}

Documents documents_of(const PackArguments& arguments) {
  if (arguments.documents.empty() == !arguments.generate)
    throw InputError({}, arguments.generate ? "documents as well as --generate" : "no documents",
                     "either a file of documents or --generate (orrery pack --help)");
  if (!arguments.generate) {
    Documents documents = read_documents(arguments.documents);
    if (!arguments.embeddings.empty()) read_embeddings(arguments.embeddings, documents);
    return documents;
  }
  if (!arguments.embeddings.empty())
    throw InputError({"--embeddings", ""}, "--generate as well", "--dimension, which draws them");
  DocumentGenerator generator = arguments.generator;
  generator.count = *arguments.generate;
  generator.by_documents = arguments.weighting == "documents";
  generator.seed = static_cast<std::uint64_t>(arguments.seed);
  return generate_documents(generator);
}

void pack_documents(const PackArguments& arguments) {
  std::vector<std::string> policies = arguments.policies;
  if (policies.empty()) policies.emplace_back(kPackingPolicyNames[static_cast<std::size_t>(PackingPolicy::best_fit)]);
  if (!arguments.out.empty() && policies.size() > 1)
    throw InputError({"--out", ""}, fmt::format("{} policies", policies.size()),
                     "one policy for the written sequences");
  if (arguments.scenario.empty() && !arguments.sets.empty())
    throw InputError({"--set", ""}, "no --scenario", "--scenario as well, whose field it changes");
  std::optional<MaskedStep> step;
  if (!arguments.scenario.empty()) step.emplace(arguments.scenario, arguments.sets);
  if (!step && !arguments.context)
    throw InputError({"--context", ""}, "nothing",
                     "the tokens of a sequence, or --scenario, which has a sequence length");
  Packed packed;
  packed.context = arguments.context ? *arguments.context : step->sequence_length();
  if (step && packed.context != step->sequence_length())
    throw InputError({"--context", ""}, std::to_string(packed.context),
                     fmt::format("{}, the sequence length of {}", step->sequence_length(), step->file()));
  if (step) {
    packed.full_seconds = step->full_seconds();
    packed.batch = step->batch();
  }
  check_outputs({arguments.out, arguments.json, arguments.csv});

  ProgressLine progress;
  progress.show(arguments.generate ? "drawing documents" : "reading documents");
  const Documents documents = documents_of(arguments);
  packed.has_embeddings = documents.have_embeddings();
  std::optional<OutputStream> out;
  if (!arguments.out.empty()) out.emplace(arguments.out);
  for (const std::string& name : policies) {
    PackingOptions options{.context = packed.context,
                           .policy = chosen<PackingPolicy>("--policy", name, kPackingPolicyNames),
                           .datasculpt = arguments.datasculpt};
    options.datasculpt.seed = static_cast<std::uint64_t>(arguments.seed);
    options.progress = [&, shown = -1](std::string_view what, double done) mutable {
      const int percent = static_cast<int>(kPercent * done);
      if (percent != std::exchange(shown, percent)) progress.show(fmt::format("{}: {}, {} %", name, what, percent));
    };
    progress.show(name);
    Packing packing;
    try {
      packing = pack(documents, options);
    } catch (const InputError& error) {
      const std::string& pointer = error.where().pointer;
      throw InputError({arguments.generate ? "--generate" : arguments.documents, pointer}, error.found(),
                       error.expected());
    }
    PackRow& row =
        packed.rows.emplace_back(PackRow{.policy = kPackingPolicyNames[static_cast<std::size_t>(options.policy)],
                                         .measures = measures(documents, packing),
                                         .masked_seconds = {}});
    if (step)
      row.masked_seconds =
          step->seconds(packing, keeps_order(options.policy), static_cast<std::uint64_t>(arguments.seed));
    if (out) {
      progress.show(fmt::format("{}: writing", name));
      write_sequences(documents, packing, *out);
    }
  }
  progress.clear();
  Outputs outputs;
  outputs.add_wanted(arguments.json, [&] { return json_of(packed); });
  outputs.add_wanted(arguments.csv, [&] { return csv_of(packed); });
  const bool has_table = !outputs.on_standard_output() && arguments.out != "-";
  if (out) out->commit();
  if (has_table) outputs.add("-", table_of(packed));
  outputs.commit();
}

}  // namespace

void add_pack(Command app) {
  const auto [command, arguments] = app.declare<PackArguments>(
      "pack", "How documents pack into training sequences: what is cut, padded and attended to", kPackExamples,
      pack_documents);
  command.add_file("DOCUMENTS", arguments.documents,
                   "Lines of JSON, a document each: {\"id\": .., \"tokens\": .., \"embedding\": [..]}");
  command.add_file("--embeddings", arguments.embeddings, "Embeddings of DOCUMENTS in a .npy file, one row each");
  command.add_option("--context", arguments.context, "Tokens of a sequence [that of --scenario]", "N");
  command.add_option("--policy", arguments.policies, "How to pack; several are compared [best_fit]")
      .one_value_each()
      .one_of(texts(kPackingPolicyNames));
  command.add_option("--generate", arguments.generate, "Draw this many documents instead of reading DOCUMENTS", "N");
  command
      .add_option("--lengths", arguments.generator.lengths,
                  "Their lengths: names of published histograms and log-normal:MU:SIGMA, mixed by weights",
                  "NAME=WEIGHT,...")
      .capture_default()
      .offers_words(length_distribution_names());
  command.add_option("--weighting", arguments.weighting, "What the weights of --lengths count")
      .one_of({"tokens", "documents"})
      .capture_default();
  command.add_option("--dimension", arguments.generator.dimension, "Dimension of drawn embeddings; 0: none", "N");
  command.add_option("--topics", arguments.generator.topics,
                     "Number of topics, the directions around which embeddings are drawn", "N");
  command.add_option("--similarity", arguments.generator.similarity, "Cosine of a drawn embedding and its topic");
  command.add_option("--seed", arguments.seed, "Seed of all drawn values and of datasculpt's sample")
      .between(0, std::int64_t{1} << 62);
  command
      .add_option("--delta", arguments.datasculpt.delta,
                  "datasculpt: cosine above which documents join a cluster and clusters merge")
      .within(-1, 1);
  command.add_option("--epsilon", arguments.datasculpt.epsilon, "datasculpt: clustering ends when centres move by less")
      .within(0, 2);
  command
      .add_option("--iterations", arguments.datasculpt.iterations,
                  "datasculpt: clustering ends after this many iterations")
      .between(1, 1000);
  offer_scenarios(command.add_option(
      "--scenario", arguments.scenario,
      "Also predict this scenario's step with each packing's mask: a name or a JSON file", "SCENARIO"));
  add_fields(command, "--set", arguments.sets, "Override a field of --scenario");
  command.add_file("--out", arguments.out, "Write the sequences as lines of JSON; - for standard output");
  command.add_file("--json", arguments.json, "Write the measures as JSON; - for standard output");
  command.add_file("--csv", arguments.csv, "Write the measures as CSV; - for standard output");
}

}  // namespace orrery
