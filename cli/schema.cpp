// orrery schema: the schema of scenarios, for editors and programs.
#include "strategies/schema.h"

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/output.h"

namespace orrery {

void add_schema(Command app) {
  const Command command = app.add_subcommand("schema", "What a scenario may contain, as a JSON Schema");
  command.footer(
      "Examples:\n  orrery schema > scenario.schema.json     then \"$schema\": \"./scenario.schema.json\" in a "
      "scenario");
  command.callback([] { print(scenario_schema().dump(2) + "\n"); });
}

}  // namespace orrery
