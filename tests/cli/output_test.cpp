// Does an output ever take an input's place, another output's, or leave something behind?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

struct Case {
  const char* arguments;
  const char* input;  // must stay as it is
};

TEST(Output, NeverReplacesAnInput) {
  Workplace place;
  const std::string line = json::parse(example_scenario()).dump() + "\n";
  place.write("a.json", example_scenario());
  place.write("b.json", example_scenario());
  place.write("lines.jsonl", line);
  place.shell("ln -s a.json link.json; ln a.json hard.json; cp " ORRERY_SOURCE_DIR
              "/strategies/framework/example-small-gpt.json small.json");
  for (const Case& c : {Case{"simulate a.json --json a.json", "a.json"},
                        {"simulate a.json --json ./a.json", "a.json"},
                        {"simulate a.json --svg link.json", "a.json"},
                        {"simulate a.json --trace hard.json", "a.json"},
                        {"simulate link.json --csv a.json", "a.json"},
                        {"simulate - --json a.json <a.json", "a.json"},
                        {"compare a.json b.json --json b.json", "b.json"},
                        {"simulate --batch lines.jsonl --json lines.jsonl", "lines.jsonl"},
                        {"simulate --batch - --csv lines.jsonl <lines.jsonl", "lines.jsonl"},
                        {"run small.json --steps 1 --json small.json", "small.json"},
                        {"collective all_reduce --cluster a.json --json a.json", "a.json"}}) {
    const std::string before = place.read(c.input);
    const auto result = place.shell(std::string("$ORRERY ") + c.arguments);
    EXPECT_EQ(result.code, 2) << c.arguments;
    EXPECT_THAT(result.err, HasSubstr("a file that this command reads")) << c.arguments;
    EXPECT_EQ(place.read(c.input), before) << c.arguments;
  }
}

// What a line of a batch names is read when its turn comes, after the output has been opened.
TEST(Output, NeverReplacesWhatIsReadLater) {
  Workplace place;
  json scenario = json::parse(example_scenario());
  place.write("cluster.json", scenario["cluster"].dump());
  scenario["cluster"] = "cluster.json";
  place.write("lines.jsonl", scenario.dump() + "\n");
  ASSERT_EQ(place.orrery("simulate --batch lines.jsonl --json results.jsonl").code, 0);
  const std::string before = place.read("cluster.json");
  const auto result = place.orrery("simulate --batch lines.jsonl --json cluster.json");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("cluster.json: found a file that this command reads"));
  EXPECT_EQ(place.read("cluster.json"), before);
}

TEST(Output, NeverReplacesAnother) {
  Workplace place;
  place.write("a.json", example_scenario());
  for (const char* arguments :
       {"simulate a.json --json o --csv o", "simulate a.json --json o --csv ./o",
        "simulate a.json --trace o --svg $PWD/o", "simulate --batch a.json --json o --csv ./o"}) {
    const auto result = place.orrery(arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_THAT(result.err, HasSubstr("one file for several purposes")) << arguments;
    EXPECT_THAT(place.files(), UnorderedElementsAre("a.json")) << arguments;
  }
}

TEST(Output, FollowsLinksAndKeepsTheMode) {
  Workplace place;
  place.write("a.json", example_scenario());
  place.write("real.json", "old");
  place.shell("ln -s real.json link.json; chmod 640 real.json");
  ASSERT_EQ(place.orrery("simulate a.json --json link.json").code, 0);
  EXPECT_TRUE(json::accept(place.read("real.json")));
  place.shell("ln -s yet.json dangling.json");
  ASSERT_EQ(place.orrery("simulate a.json --json dangling.json").code, 0);
  EXPECT_EQ(place.shell("test -L dangling.json && test -s yet.json").code, 0);
  EXPECT_EQ(place.shell("test -L link.json && test $(stat -c %a real.json) = 640").code, 0);
}

TEST(Output, TakesNamesOfAnyLength) {
  Workplace place;
  place.write("a.json", example_scenario());
  const std::string name(255, 'n');
  EXPECT_EQ(place.orrery("simulate a.json --json " + name).code, 0);
  EXPECT_TRUE(json::accept(place.read(name)));
}

// However the process ends: nothing is written under a name before all of it is there.
TEST(Output, LeavesNothingWhenKilled) {
  Workplace place;
  place.write("a.json", example_scenario());
  const auto killed = place.shell(
      "yes \"$(tr -d '\\n' <a.json)\" | $ORRERY simulate --batch - --json results.jsonl & "
      "pid=$!; sleep 0.3; kill -9 $pid; wait $pid; test $? -eq 137");
  EXPECT_EQ(killed.code, 0) << killed.err;
  EXPECT_THAT(place.files(), UnorderedElementsAre("a.json"));
}

TEST(Output, ErrorsAreOneLineOnAnyTerminal) {
  Workplace place;
  place.write("deep.json", std::string(1000, '['));
  place.write("long.json", "{\"" + std::string(1 << 20, 'k') + "\": 1}");
  for (const char* arguments : {"simulate deep.json", "simulate long.json", "simulate $'a\\e[31mb'"}) {
    const auto result = place.shell(std::string("$ORRERY ") + arguments);
    EXPECT_EQ(result.code, 2) << arguments;
    EXPECT_LT(result.err.size(), 5000u) << arguments;
    EXPECT_EQ(result.err.find('\x1b'), std::string::npos) << arguments;
  }
  EXPECT_EQ(place.shell("$ORRERY simulate none.json 2>/dev/full").code, 2);
  EXPECT_EQ(place.shell("$ORRERY simulate none.json 2>&-").code, 2);
  EXPECT_EQ(place.shell("$ORRERY --help >/dev/full").code, 2);
}

// Read by Python's own pickle: events neither overlap nor free what is not there, and end with what the blocks say.
TEST(MemoryTrace, IsASnapshotAsPyTorchWritesThem) {
  const Workplace here;
  for (const char* allocator : {"", " --expandable-segments", " --planned-memory"}) {
    const CommandResult result = here.orrery("simulate small-gpt --memory-trace step.pickle" + std::string(allocator));
    ASSERT_EQ(result.code, 0) << result.err;
    here.write("read.py", R"(
import pickle
s = pickle.load(open('step.pickle', 'rb'))
blocks = {b['address']: b for g in s['segments'] for b in g['blocks']}
for g in s['segments']:
    assert sum(b['size'] for b in g['blocks']) == g['total_size']
    at = g['address']
    for b in g['blocks']:
        assert b['address'] == at
        at += b['size']
live = {}
for e in s['device_traces'][0]:
    if e['action'] == 'alloc':
        assert e['addr'] not in live and e['frames'][0]['name'] and e['frames'][0]['filename']
        live[e['addr']] = e['size']
    elif e['action'] == 'free_completed':
        assert live.pop(e['addr']) == e['size']
assert not live
kept = [b for b in blocks.values() if b['state'] == 'active_allocated']
assert kept and all('parameter' in b['frames'][0]['filename'] or 'gradient' in b['frames'][0]['filename'] or
                    'optimizer' in b['frames'][0]['filename'] for b in kept), {b['frames'][0]['filename'] for b in kept}
print(s['allocator_settings']['expandable_segments'])
)");
    EXPECT_EQ(here.python("read.py"), 0);
  }
  for (const char* refused : {"--steps 2 --memory-trace m", "--expandable-segments", "--planned-memory",
                              "--memory-trace m --planned-memory --expandable-segments"}) {
    const CommandResult result = here.orrery("simulate small-gpt " + std::string(refused));
    EXPECT_EQ(result.code, 2) << refused;
  }
  EXPECT_EQ(here.files().count("m"), 0u);
}

}  // namespace
}  // namespace orrery
