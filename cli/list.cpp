// orrery list: lists what Orrery knows by name.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/output.h"
#include "sim/base/error.h"
#include "sim/base/json_writer.h"
#include "sim/report/format.h"
#include "study/answers/listing.h"

namespace orrery {
namespace {

std::string text_of(const Listing& listing, bool summaries) {
  const std::vector<std::string> names = listing.names();
  std::size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  std::string text;
  for (const std::string& name : names)
    text += (summaries ? left(name, width) + "  " + listing.summary(name) : name) + "\n";
  return text;
}

}  // namespace

void add_list(Command app) {
  struct Arguments {
    std::string kind;
    bool json = false, names = false;
  };
  auto arguments = std::make_shared<Arguments>();
  const Command command =
      app.add_subcommand("list", "What Orrery knows by name: models, clusters, scenarios, prices, fields and more");
  command.footer(
      "Examples:\n  orrery list models\n  orrery list scenarios --json\n"
      "  orrery list measurements                published ones, whose ids stand for their scenarios\n"
      "  orrery list fields | grep recompute     what --set can change\n"
      "  orrery list prices | grep H100          what a plan may name");
  std::vector<std::string> kinds;
  for (const Listing& listing : listings()) kinds.emplace_back(listing.name);
  command.add_option("KIND", arguments->kind, "What to list").required().one_of(kinds);
  command.add_flag("--json", arguments->json, "As a JSON array");
  command.add_flag("--names", arguments->names, "Names alone, one a line");
  command.callback([arguments] {
    if (arguments->json && arguments->names) throw InputError({"--names", ""}, "--json as well", "one of them");
    for (const Listing& listing : listings())
      if (arguments->kind == listing.name)
        print(arguments->json ? json_text(listing_json(listing), 2) + "\n" : text_of(listing, !arguments->names));
  });
}

}  // namespace orrery
