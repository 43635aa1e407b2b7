// Sequences packed from documents, which attention does not leave: what the workload says of them, as loads of the
// Program (sim/program/document_load.h).
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

// Micro-batches of unlike work are classes of the Program, of which each layer has a copy: at most so many. Of more,
// those that are next to each other in the order of their work are one, which has the mean of their costs.
inline constexpr std::size_t kMostMicroBatchClasses = 8;

// Of the global batch; null: sequences are no packed documents.
std::shared_ptr<const PackedSequences> sequences_of(const Scenario& scenario);

void check(const Scenario& scenario);
// What no plan changes: that documents and how they are packed can be had. Throws InputError (pointer "/workload/..").
void check_workload(const Scenario& scenario);
void rewrite(const Scenario& scenario, Program& program);
std::unique_ptr<RunController> control(const Scenario& scenario);
bool begins_anew(const Scenario& scenario);
std::span<const FigureKind> figure_kinds();
// Of documents, and of what attention sees within them; none where a sequence is one document.
void figures(const Scenario& scenario, const Program& program, std::vector<Figure>& figures);

}  // namespace orrery::packed_documents
