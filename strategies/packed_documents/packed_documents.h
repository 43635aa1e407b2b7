// Sequences packed from documents: attention does not cross a document's borders. Turns the workload's documents into
// loads of the Program (sim/program/document_load.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/program/program.h"
#include "sim/report/figure.h"
#include "strategies/run_controller.h"
#include "strategies/scenario.h"

namespace orrery::packed_documents {

// Micro-batches with different work become classes of the Program, with a copy of each layer per class: at most this
// many. If there are more, neighbours in the order of their work are joined, with the mean of their costs.
inline constexpr std::size_t kMostMicroBatchClasses = 8;

// The sequences of the global batch; null: sequences are not packed from documents.
std::shared_ptr<const PackedSequences> sequences_of(const Scenario& scenario);

void check(const Scenario& scenario);
// Checks that documents exist and can be packed, which no plan changes. Throws InputError (pointer "/workload/..").
void check_workload(const Scenario& scenario);
void rewrite(const Scenario& scenario, Program& program);
std::unique_ptr<RunController> control(const Scenario& scenario);
bool begins_anew(const Scenario& scenario);
std::span<const FigureKind> figure_kinds();
// Of documents, and of what attention sees within them; none where a sequence is one document.
void figures(const Scenario& scenario, const Program& program, std::vector<Figure>& figures);

}  // namespace orrery::packed_documents
