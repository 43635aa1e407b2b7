#include "cli/sibling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "realrun/backend.h"
#include "realrun/cuda/nccl_communicator.h"
#include "realrun/sibling.h"
#include "sim/base/error.h"
#include "sim/des/engine.h"
#include "sim/memory/address_layout.h"

namespace orrery {
namespace {

struct Sibling {
  const char* program;
  bool (*is_here)();    // whether this program has the part, too
  const char* missing;  // what a sentence calls the program; empty: who uses the part says what is missing
};
// In the order of Part.
constexpr Sibling kSiblings[] = {
    {"orrery-des", built_with_simgrid, "orrery-des"},
    {"orrery-des", built_with_cbc, "orrery-des, which is built with COIN-OR CBC,"},
    {"orrery-gpu", built_with_cuda, ""},
    {"orrery-mpi", [] { return false; }, ""},
};

// Returns if this program has the part, or no other has it.
void become_if_there(const Sibling& sibling) {
  if (sibling.is_here()) return;
  if (const auto program = sibling_program(sibling.program)) become(*program);
}

const Sibling& sibling_with(Part part) { return kSiblings[static_cast<std::size_t>(part)]; }

}  // namespace

void become_program_with(Part part, const char* option, const std::string& asked, const char* instead) {
  const Sibling& sibling = sibling_with(part);
  become_if_there(sibling);
  if (!sibling.is_here())
    throw InputError({option, ""}, fmt::format("{} without the program {} next to this one", asked, sibling.missing),
                     instead);
}

void become_program_for(char** argv) {
  std::vector<std::string_view> words;
  for (; *argv != nullptr; ++argv) words.emplace_back(*argv);
  const auto asks_for = [&](std::string_view word) { return std::ranges::find(words, word) != words.end(); };
  constexpr std::array<std::string_view, 2> kOnGpu{"--device", "cuda"};
  if (asks_for("--device=cuda") || !std::ranges::search(words, kOnGpu).empty())
    become_if_there(sibling_with(Part::cuda));
  if (words.size() < 2 || words[1] != "sweep" || !asks_for("--mpi")) return;
  become_if_there(sibling_with(Part::mpi));
  if (const std::optional<RankOfJob> place = rank_of_environment(); place && place->rank > 0) throw Exit{0};
}

}  // namespace orrery
