// Does every bad input get one sentence with its place, exit code 2, and nothing written?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

void expect_refused(const Workplace& place, const CommandResult& result, const std::set<std::string>& files_before,
                    const std::string& sentence) {
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, StartsWith("orrery: error: "));
  EXPECT_THAT(result.err, HasSubstr(sentence));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << "one line: " << result.err;
  EXPECT_EQ(place.files(), files_before) << "nothing may be written";
}

// ---- the example scenario with one value changed

struct BadValue {
  const char* pointer;  // RFC 6901; of a value to set, or to remove where `value` is empty
  const char* value;    // JSON
  const char* sentence;

  friend std::ostream& operator<<(std::ostream& out, const BadValue& bad) {
    return out << bad.pointer << " = " << bad.value;
  }
};

const BadValue kBadValues[] = {
    // The document.
    {"/modle", "1",
     "scenario.json: /modle: found the unknown key \"modle\", expected a known key (did you mean \"model\"?)"},
    {"/model", "", "/model: found nothing, expected a model"},
    {"/cluster", "", "/cluster: found nothing, expected a cluster"},
    {"/workload", "", "/workload: found nothing, expected a workload: an object or a file"},
    {"", "[]", "scenario.json: found an empty array, expected an object"},
    {"", "17", "scenario.json: found 17, expected an object"},
    {"/plan", "3", "/plan: found 3, expected an object"},
    {"/plan", "\"plan\"",
     "/plan: found \"plan\", expected an object, the path of a JSON file, or the name of a bundled scenario"},
    {"/plan", "\"llama-3-70b-512-h10\"", "(did you mean \"llama-3-70b-512-h100\"?)"},
    {"/plan", "\"plans/none.json\"",
     "/plan: found \"plans/none.json\", expected the path of a file (there is no plans/none.json)"},
    {"/workload", "[1]", "/workload: found an array of 1, expected an object"},
    // The model.
    {"/model", "\"llama-3-70\"", "/model: found \"llama-3-70\", expected"},
    {"/model", "\"lama-3-70b\"", "(did you mean \"llama-3-70b\"?)"},
    {"/model", "70", "/model: found 70, expected"},
    {"/model", "{}", "/model"},
    {"/model", "{\"preset\": \"llama-3-70b\", \"layers\": -1}", "/model/layers: found -1, expected an integer"},
    {"/model", "{\"preset\": \"llama-3-70b\", \"layres\": 8}", "/model/layres: found the unknown key \"layres\""},
    {"/model", "{\"preset\": \"llama-3-70b\", \"norm\": \"rms\"}", "/model/norm: found \"rms\", expected one of"},
    {"/model", "{\"model_type\": \"unheard-of\"}", "/model"},
    {"/model", "\"models/none.json\"", "/model: found \"models/none.json\", expected the path of a file"},
    // The cluster.
    {"/cluster", "\"dgx-h10\"", "/cluster: found \"dgx-h10\", expected"},
    {"/cluster", "{}", "/cluster"},
    {"/cluster/node", "\"dgx-h10\"", "/cluster/node: found \"dgx-h10\", expected"},
    {"/cluster/node", "7", "/cluster/node: found 7, expected"},
    {"/cluster/nodes", "0", "/cluster/nodes: found 0, expected an integer from 1 to"},
    {"/cluster/nodes", "-3", "/cluster/nodes: found -3, expected an integer from 1 to"},
    {"/cluster/nodes", "\"64\"", "/cluster/nodes: found \"64\", expected an integer from 1 to"},
    {"/cluster/nodes", "1.5", "/cluster/nodes: found 1.5, expected an integer from 1 to"},
    {"/cluster/node_count", "4", "/cluster/node_count: found the unknown key \"node_count\""},
    {"/cluster/fabric", "\"infiniban\"", "/cluster/fabric: found \"infiniban\", expected"},
    {"/cluster/nic_bytes_per_second", "-1",
     "/cluster/nic_bytes_per_second: found -1, expected 0 or a number from 1000 to 1e+16"},
    // The workload.
    {"/workload/sequence_length", "-1",
     "/workload/sequence_length: found -1, expected an integer from 0 to 4294967296"},
    {"/workload/sequence_length", "true",
     "/workload/sequence_length: found true, expected an integer from 0 to 4294967296"},
    {"/workload/sequence_len", "8192",
     "/workload/sequence_len: found the unknown key \"sequence_len\", expected a known key "
     "(did you mean \"sequence_length\"?)"},
    {"/workload/global_batch_size", "0",
     "/workload/global_batch_size: found 0, expected an integer from 1 to 4294967296"},
    {"/workload/global_batch_size", "null",
     "/workload/global_batch_size: found null, expected an integer from 1 to 4294967296"},
    {"/workload/global_batch_size", "511", "/workload/global_batch_size: found 511, expected a multiple of 16"},
    {"/workload/global_batch_size", "1e30",
     "/workload/global_batch_size: found 1e+30, expected an integer from 1 to 4294967296"},
    // The plan, field by field.
    {"/plan/tensor_paralel", "8",
     "/plan/tensor_paralel: found the unknown key \"tensor_paralel\", expected a known key "
     "(did you mean \"tensor_parallel\"?)"},
    {"/plan/tp", "8", "(did you mean \"tensor_parallel\"?)"},
    {"/plan/tensor_parallel", "0", "/plan/tensor_parallel: found 0, expected an integer from 1 to 1048576"},
    {"/plan/tensor_parallel", "-8", "/plan/tensor_parallel: found -8, expected an integer from 1 to 1048576"},
    {"/plan/tensor_parallel", "8.5", "/plan/tensor_parallel: found 8.5, expected an integer from 1 to 1048576"},
    {"/plan/tensor_parallel", "\"8\"", "/plan/tensor_parallel: found \"8\", expected an integer from 1 to 1048576"},
    {"/plan/tensor_parallel", "[8]",
     "/plan/tensor_parallel: found an array of 1, expected an integer from 1 to 1048576"},
    {"/plan/sequence_parallel", "1", "/plan/sequence_parallel: found 1, expected true or false"},
    {"/plan/sequence_parallel", "\"yes\"", "/plan/sequence_parallel: found \"yes\", expected true or false"},
    {"/plan/pipeline_parallel", "0", "/plan/pipeline_parallel: found 0, expected an integer from 1 to 1048576"},
    {"/plan/virtual_pipeline", "0", "/plan/virtual_pipeline: found 0, expected an integer from 1 to 1048576"},
    {"/plan/pipeline_schedule", "\"1b1f\"",
     "/plan/pipeline_schedule: found \"1b1f\", expected one of \"gpipe\", \"1f1b\""},
    {"/plan/pipeline_schedule", "\"1F1B\"", "(did you mean \"1f1b\"?)"},
    {"/plan/pipeline_schedule", "7", "/plan/pipeline_schedule: found 7, expected one of"},
    {"/plan/pipeline_stage_layers", "80", "/plan/pipeline_stage_layers: found 80, expected an array of integers"},
    {"/plan/pipeline_stage_layers", "[4, -4]",
     "/plan/pipeline_stage_layers/1: found -4, expected an integer of at least 0"},
    {"/plan/context_parallel", "0", "/plan/context_parallel: found 0, expected an integer from 1 to 1048576"},
    {"/plan/context_parallel_type", "\"rings\"",
     "/plan/context_parallel_type: found \"rings\", expected one of \"ring\", \"p2p\", "},
    {"/plan/context_parallel_type", "\"ulyses\"", "(did you mean \"ulysses\"?)"},
    {"/plan/ulysses_degree", "-1", "/plan/ulysses_degree: found -1, expected an integer from 0 to 1048576"},
    {"/plan/ulysses_degree", "2",
     "/plan/ulysses_degree: found 2, expected 0 or 1 with context_parallel 1: there is no other rank to exchange with"},
    {"/plan/ulysses_inner", "1", "/plan/ulysses_inner: found 1, expected true or false"},
    {"/plan/fpdt_chunk_tokens", "0", "/plan/fpdt_chunk_tokens: found 0, expected an integer from 1 to 1048576"},
    {"/plan/fpdt_chunk_tokens", "4096",
     "/plan/fpdt_chunk_tokens: found 4096, expected 65536, the default, unless context_parallel_type is \"fpdt\""},
    {"/plan/fpdt_offload", "1", "/plan/fpdt_offload: found 1, expected true or false"},
    {"/plan/context_parallel_balance", "\"zig\"", "/plan/context_parallel_balance: found \"zig\", expected one of"},
    {"/plan/data_parallel", "-1", "/plan/data_parallel: found -1, expected an integer from 0 to 1048576"},
    {"/plan/zero_stage", "4", "/plan/zero_stage: found 4, expected an integer from 0 to 3"},
    {"/plan/zero_stage", "-1", "/plan/zero_stage: found -1, expected an integer from 0 to 3"},
    {"/plan/zero_stage", "true", "/plan/zero_stage: found true, expected an integer from 0 to 3"},
    {"/plan/micro_batch_size", "0", "/plan/micro_batch_size: found 0, expected an integer from 1 to 1048576"},
    {"/plan/recompute", "\"selectiv\"",
     "/plan/recompute: found \"selectiv\", expected one of \"none\", \"selective\", \"full\", "
     "\"selective_op\", \"all_but_attention\" (did you mean \"selective\"?)"},
    {"/plan/recompute", "true", "/plan/recompute: found true, expected one of"},
    {"/plan/recompute_every", "0", "/plan/recompute_every: found 0, expected an integer from 1 to 64"},
    {"/plan/recompute_layers", "-2", "/plan/recompute_layers: found -2, expected an integer from -1 to 1048576"},
    {"/plan/precision", "\"bf61\"", "/plan/precision: found \"bf61\", expected one of"},
    {"/plan/optimizer", "\"lamb\"", "/plan/optimizer: found \"lamb\", expected one of"},
    {"/plan/flash_attention", "\"true\"", "/plan/flash_attention: found \"true\", expected true or false"},
    {"/plan/framework", "\"megatron\"", "/plan/framework: found \"megatron\", expected one of"},
    {"/plan/bucket_bytes", "-1", "/plan/bucket_bytes: found -1, expected an integer of at least 0"},
    // Ranges of layers, of the model's 80.
    {"/plan/layers", "3", "/plan/layers: found 3, expected an array of ranges of layers"},
    {"/plan/layers", "[3]", "/plan/layers/0: found 3, expected an object"},
    {"/plan/layers", "[{\"from\": -1}]", "/plan/layers/0/from: found -1, expected an integer from 0 to 1048576"},
    {"/plan/layers", "[{\"to\": 0}]", "/plan/layers/0/to: found 0, expected an integer from 1 to 1048576"},
    {"/plan/layers", "[{\"step\": 0}]", "/plan/layers/0/step: found 0, expected an integer from 1 to 1048576"},
    {"/plan/layers", "[{\"to\": 4, \"recompute\": \"full\"}, {\"from\": 80, \"recompute\": \"full\"}]",
     "/plan/layers/1/from: found 80, expected one of the model's layers 0 to 79"},
    {"/plan/layers", "[{\"from\": 70, \"to\": 81, \"recompute\": \"full\"}]",
     "/plan/layers/0/to: found 81, expected at most 80: the model has layers 0 to 79, and \"to\" is one past the last"},
    {"/plan/layers", "[{\"from\": 20, \"to\": 20, \"recompute\": \"full\"}]",
     "/plan/layers/0/to: found 20, expected more than \"from\", 20: \"to\" is the first layer after the range"},
    {"/plan/layers",
     "[{\"to\": 20, \"recompute\": \"full\"}, {\"from\": 30, \"recompute\": \"full\"}, {\"from\": 19, \"to\": 25, "
     "\"recompute\": \"full\"}]",
     "/plan/layers/2: found layer 19, which is also in /plan/layers/0, expected ranges that do not overlap"},
    {"/plan/layers", "[{\"step\": 2, \"recompute\": \"full\"}, {\"step\": 3, \"from\": 1, \"recompute\": \"full\"}]",
     "/plan/layers/1: found layer 4, which is also in /plan/layers/0, expected ranges that do not overlap"},
    {"/plan/layers", "[{\"recomputed\": \"full\"}]",
     "/plan/layers/0/recomputed: found the unknown key \"recomputed\", expected a known key (did you mean "
     "\"recompute\"?)"},
    {"/plan/layers", "[{\"recompute\": \"ful\"}]",
     "/plan/layers/0/recompute: found \"ful\", expected one of \"none\", \"selective\", \"full\", \"selective_op\", "
     "\"all_but_attention\" (did you mean \"full\"?)"},
    {"/plan/layers", "[{\"tensor_parallel\": 4}]",
     "/plan/layers/0/tensor_parallel: found 4, expected no tensor_parallel for a range of layers: all layers share one "
     "mesh; ranges may give from, to, step, "},
    {"/plan/layers", "[{\"sequence_parallel\": true}]",
     "/plan/layers/0/sequence_parallel: found true, expected no sequence_parallel for a range of layers: all layers "
     "divide the residual stream in the same way; ranges may give "},
    {"/plan/layers", "[{\"zero_stage\": 2}]",
     "/plan/layers/0/zero_stage: found 2, expected no zero_stage for a range of layers: buckets of gradients span "
     "several layers; ranges may give "},
    {"/plan/layers", "[{\"recompute\": \"full\"}, {\"from\": 3, \"to\": 20}]",
     "/plan/layers/1: found a range of layers that changes no field, expected the fields that differ there, one of: "
     "tensor_parallel_overlap, context_parallel_type, "},
    {"/plan/layers", "[{\"optimizer\": \"sgd\"}]",
     "/plan/layers/0/optimizer: found \"sgd\", expected no optimizer for a range of layers: it holds for the whole "
     "step; ranges may give from, to, step, "},
    {"/plan/layers", "[{\"layers\": []}]", "/plan/layers/0/layers: found the unknown key \"layers\""},
    {"/plan/layers", "[{\"recompute\": \"selective\", \"recompute_every\": 2}]",
     "/plan/layers/0/recompute_every: found 2, expected 1 unless recompute is \"full\""},
    {"/plan/layers", "[{\"recompute\": \"full\", \"recompute_every\": 65}]",
     "/plan/layers/0/recompute_every: found 65, expected an integer from 1 to 64"},
    {"/plan/layers", "[{\"precision\": \"fp16\"}]",
     "/plan/layers/0/precision: found \"fp16\", expected a mix that keeps activations in bf16, the dtype that the "
     "other layers pass on"},
    {"/plan/layers", "[{\"prefetch\": 1001}]",
     "/plan/layers/0/prefetch: found 1001, expected an integer from 0 to 1000"},
    // Perturbations (all of them: tests/strategies/perturbations_test.cpp) and jobs (jobs_test.cpp there).
    {"/perturbations", "{}", "/perturbations: found an empty object, expected an array of perturbations"},
    {"/perturbations", "[{\"kind\": \"slow_link\", \"factor\": 0.5}]",
     "/perturbations/0/link: found nothing, expected a value: \"slow_link\" needs one"},
    {"/perturbations", "[{\"kind\": \"failing_node\", \"nodes\": [64]}]",
     "/perturbations/0/nodes/0: found 64, expected one of the cluster's nodes, 0 to 63"},
    {"/jobs", "[]", "/jobs: found jobs that share a cluster, expected --engine des"},
    // The plan against the model and the cluster.
    {"/plan/tensor_parallel", "3", "/plan/tensor_parallel: found "},
    {"/plan/tensor_parallel", "1024",
     "/plan/tensor_parallel: found 1024 x 1 x 4 = 4096 for tensor_parallel x context_parallel x pipeline_parallel, "
     "expected at most the cluster's 512 devices"},
    {"/plan/tensor_parallel", "128",
     "/plan/tensor_parallel: found 128, expected a divisor of the model's 64 attention heads"},
    {"/plan/data_parallel", "17", "/plan/data_parallel: found 17, expected at most 16"},
    {"/plan/pipeline_parallel", "1024",
     "8 x 1 x 1024 = 8192 for tensor_parallel x context_parallel x pipeline_parallel, expected at most the cluster's "
     "512"},
    {"/plan/virtual_pipeline", "1000", "/plan/"},
    {"/plan/pipeline_stage_layers", "[80]", "/plan/pipeline_stage_layers"},
    {"/workload/global_batch_size", "96",
     "/workload/global_batch_size: found 6 micro-batches, expected a multiple of the 4"},
    {"/plan/context_parallel", "3", "/plan/"},
    {"/workload/sequence_length", "8191", "/plan/sequence_parallel: found sequences of 8191 tokens"},
    {"/plan/zero_shard_degree", "3",
     "/plan/zero_shard_degree: found 3, expected a divisor of the data-parallel degree 16"},
    {"/plan/zero_hpz_partition_size", "-1", "/plan/zero_hpz_partition_size: found -1, expected an integer from 0"},
    {"/plan/zero_hpz_partition_size", "8", "/plan/zero_hpz_partition_size: found 8, expected 0 below zero_stage 3"},
    {"/plan/mics_shard_size", "8", "/plan/mics_shard_size: found 8, expected 0 below zero_stage 3"},
    {"/plan/mics_hierarchical_params_gather", "true",
     "/plan/mics_hierarchical_params_gather: found true, expected false with mics_shard_size 0"},
    {"/plan/recompute_every", "2", "/plan/recompute_every: found 2, expected 1 unless recompute is \"full\""},
};

class BadScenario : public testing::TestWithParam<BadValue> {};

TEST_P(BadScenario, IsRefusedInOneSentence) {
  const BadValue& bad = GetParam();
  json scenario = json::parse(example_scenario());
  const json::json_pointer pointer(bad.pointer);
  if (*bad.value == '\0') {
    scenario.erase(std::string(bad.pointer).substr(1));
  } else {
    scenario[pointer] = json::parse(bad.value);
  }
  const Workplace place;
  place.write("scenario.json", scenario.dump());
  const auto result =
      place.orrery("simulate scenario.json --json out.json --csv out.csv --trace out.trace --svg out.svg");
  expect_refused(place, result, {"scenario.json"}, bad.sentence);
}

INSTANTIATE_TEST_SUITE_P(Table, BadScenario, testing::ValuesIn(kBadValues),
                         [](const auto& test) { return std::to_string(test.index); });

// ---- command lines

struct BadCommand {
  const char* arguments;
  const char* sentence;

  friend std::ostream& operator<<(std::ostream& out, const BadCommand& bad) { return out << bad.arguments; }
};

const BadCommand kBadCommands[] = {
    {"", "A subcommand is required"},
    {"simulat x", "(did you mean \"simulate\"?)"},
    {"simulate", "found no scenario, expected either a scenario or --batch"},
    {"simulate example.json --jsn -", "(did you mean \"--json\"?)"},
    {"simulate example.json --json ''", "--json: found an empty text, expected the name of a file"},
    {"simulate example.json --engine warp", "--engine"},
    {"simulate example.json --fidelity step-exact", "--fidelity: found \"step-exact\", expected --engine des with it"},
    {"simulate example.json --routing sprayed", "--routing: found \"sprayed\", expected --engine des with it"},
    {"simulate example.json --engine des --fidelity exact", "--fidelity"},
    {"simulate example.json --engine des --routing rip", "--routing"},
    {"simulate --batch lines.jsonl --engine both", "--batch: found --engine both as well, expected one engine"},
    {"compare example.json --engine both", "--engine"},
    {"simulate two-jobs-one-spine", "/jobs: found jobs that share a cluster, expected --engine des"},
    {"simulate two-jobs-one-spine --engine both", "/jobs: found jobs that share a cluster, expected --engine des"},
    {"simulate two-jobs-one-spine --engine des --svg out.svg", "--svg: found jobs, expected a scenario of one job"},
    {"simulate two-jobs-one-spine --engine des --explain bubble", "--explain: found jobs"},
    {"validate --gpu MI100", "MI100-32GB has no published measurement, expected part of the name of a device with"},
    {"validate --gpu H1000", "--gpu: found \"H1000\""},
    {"simulate two-jobs-one-spine --engine des --set jobs.1.plan.zero_stage=7",
     "--set jobs.1.plan.zero_stage=7: /jobs/1/plan/zero_stage: found 7"},
    {"simulate two-jobs-one-spine --engine des --set jobs.1.plan.tensor_parallel=1024",
     "--set jobs.1.plan.tensor_parallel=1024: /jobs/1/plan/tensor_parallel: found "},
    {"simulate two-jobs-one-spine --engine des --set jobs.1.first_node=0", "/jobs/1/first_node: found "},
    {"compare two-jobs-one-spine", "/jobs: found an array of 2, expected one model, workload and plan"},
    {"run small-gpt --steps 1.5", "--steps: found \"1.5\", expected a whole number from 0 to 1000000"},
    {"run small-gpt --steps -1", "--steps: found \"-1\", expected a whole number from 0 to 1000000"},
    {"run small-gpt --seed -1", "--seed: found \"-1\", expected a whole number of 64 bits, 0 or more"},
    {"run small-gpt --seed 18446744073709551616", "--seed: found \"18446744073709551616\", expected a whole number"},
    {"run small-gpt --tolerance nan", "--tolerance: found \"nan\", expected a number greater than 0"},
    {"run small-gpt --check --set plan.data_parallel=4 --set plan.local_steps=2 --set plan.local_workers=2",
     "--check: found a plan with workers that agree on one model"},
    {"run small-gpt --check --set plan.data_parallel=4 --set plan.gradient_compression=onebit_adam",
     "--check: found a plan with workers that agree on one model"},
    {"run small-gpt --tolerance 0", "--tolerance: found \"0\", expected a number greater than 0"},
    {"bench compare a b --alpha 7", "--alpha: found \"7\", expected a number from 1e-12 to 0.5"},
    {"run small-gpt --set model=gpt3-175b", "--set model=gpt3-175b: /model: found a model that takes "},
    {"simulate none.json", "none.json: found nothing (No such file or directory), expected a readable JSON file"},
    {"simulate .", "expected a readable JSON file"},
    {"simulate llama-3-70b-512-h10", "(did you mean \"llama-3-70b-512-h100\"?)"},
    {"sweep scalin --db x.db",
     "found \"scalin\", expected a sweep's file, or the name of a bundled one (orrery list sweeps) (did you mean "
     "\"scaling"},
    {"simulate broken.json", "broken.json: found a syntax error at line 2, column 3"},
    {"simulate twice.json", "twice.json: found the key \"model\" a second time at line 1"},
    {"simulate - ", "<stdin>: found a syntax error at line 1, column 1 (unexpected end of input"},
    {"simulate example.json --set plan.tensor_parallel",
     "--set: found \"plan.tensor_parallel\", expected key.key=value, such as plan.tensor_parallel=4"},
    {"simulate example.json --set =4", "--set: found \"=4\", expected key.key=value"},
    {"simulate example.json --set plan..x=4", "--set: found \"plan..x=4\", expected key.key=value"},
    {"simulate example.json --set plan.recompute=full --set plan.recompute_layers=2 --set "
     "'plan.layers=[{\"recompute\":\"none\"}]'",
     "/plan/layers/0/recompute: found \"none\", expected no recompute for a range of layers with recompute_layers: "
     "both choose layers"},
    {"simulate example.json --set 'plan.layers=[{\"from\":90,\"freeze\":true}]'",
     "/plan/layers/0/from: found 90, expected one of"},
    {"simulate example.json --set plan.layers.0.to=10",
     "--set plan.layers.0.to=10: /plan/layers: found \"0\", expected a name: there is no list to take an index of"},
    {"simulate example.json --set cluster.nics=0",
     "--set cluster.nics=0: /cluster/nics: found 0, expected more than 0"},
    {"simulate example.json --set cluster.node.nics=0",
     "--set cluster.node.nics=0: /cluster/node/nics: found 0, expected more than 0"},
    {"simulate example.json --set 'plan.layers=[{}]' --set plan.layers.1.from=2",
     "/plan/layers: found \"1\", expected an index into an array of 1"},
    {"simulate example.json --set plan.tensor_parallel=5",
     "--set plan.tensor_parallel=5: /plan/tensor_parallel: found "},
    {"simulate fsmoe --set model.shared_expert_ffn=1", "a divisor of the shared experts' width of 1"},
    {"simulate small-gpt --set plan.moe_balancer=given --steps 2", "/plan/moe_balancer: found \"given\""},
    {"simulate example.json --set plan.tensor_parallel=many",
     "--set plan.tensor_parallel=many: /plan/tensor_parallel: found \"many\", expected an integer from 1 to 1048576"},
    {"simulate example.json --set plan.tensor_parallel=1024 --set plan.zero_stage=7",
     "--set plan.zero_stage=7: /plan/zero_stage: found 7, expected an integer from 0 to 3"},
    {"simulate example.json --set plan.tensr_parallel=4",
     "--set plan.tensr_parallel=4: /plan/tensr_parallel: found the unknown key \"tensr_parallel\""},
    {"simulate example.json --set plan.tensor_parallel.x=4",
     "--set plan.tensor_parallel.x=4: /plan/tensor_parallel: found 8, expected an object to set \"x\" in"},
    {"simulate example.json --set plan.pipeline_stage_layers=[4] --set plan.pipeline_stage_layers.1=4",
     "found \"1\", expected an index into an array of 1"},
    {"simulate example.json --set cluster.nodes=0", "--set cluster.nodes=0: /cluster/nodes: found 0"},
    {"simulate example.json --set model=llama-3-70", "--set model=llama-3-70: /model: found \"llama-3-70\""},
    {"simulate example.json --set model.layers=0", "--set model.layers=0: /model/layers"},
    {"simulate example.json --set modle=gpt", "--set modle=gpt: /modle: found the unknown key \"modle\""},
    {"simulate example.json --json /nonexistent/out.json",
     "/nonexistent/out.json: found a path that cannot be written"},
    {"simulate example.json --json . ", "cannot be written"},
    {"simulate example.json --json out.json --csv /nonexistent/out.csv",
     "/nonexistent/out.csv: found a path that cannot be written"},
    {"simulate example.json --json - --csv -", "standard output: found several outputs"},
    {"simulate example.json --explain layer.forward.fc9 --json out.json",
     "--explain: found \"layer.forward.fc9\", expected an op"},
    {"simulate example.json --explain bubbel", "(did you mean \"bubble\"?)"},
    {"simulate --batch none.jsonl", "none.jsonl: found nothing (No such file or directory)"},
    {"simulate example.json --batch lines.jsonl", "found a scenario as well as --batch"},
    {"simulate --batch lines.jsonl --trace out.json", "--batch: found an output for a single scenario as well"},
    {"simulate --batch lines.jsonl --json /nonexistent/out.jsonl", "cannot be written"},
    {"simulate --batch lines.jsonl --json - --csv -", "standard output: found several outputs"},
    {"simulate --batch lines.jsonl --fields mfu,step_second",
     "--fields: found the unknown field \"step_second\", expected names of the columns that --csv has, separated by "
     "commas (did you mean \"step_seconds\"?)"},
    {"simulate --batch lines.jsonl --fields mfu,", "--fields: found the unknown field \"\""},
    {"simulate --batch lines.jsonl --fields mfu,devices,mfu", "--fields: found \"mfu\" a second time"},
    {"simulate --batch lines.jsonl --fields mfu --ops", "--fields: found --ops as well"},
    {"simulate example.json --fields mfu", "--fields: found no --batch"},
    {"simulate example.json --calibration a.json b.json",
     "not expected: b.json (--calibration takes one value: --calibration a.json --calibration b.json)"},
    {"compare", "A is required"},
    {"compare example.json none.json", "none.json: found nothing (No such file or directory)"},
    {"compare example.json --set-b plan.zero_stage=7", "error: --set-b plan.zero_stage=7: /plan/zero_stage: found 7"},
    {"compare example.json --set-a plan.zero_stage=7", "error: --set-a plan.zero_stage=7: /plan/zero_stage: found 7"},
    {"compare example.json --set plan.zero_stage=7 --set-b plan.zero_stage=8",
     "error: --set plan.zero_stage=7: /plan/zero_stage: found 7"},
    {"compare example.json --set-b plan.zero_stage",
     "error: --set-b: found \"plan.zero_stage\", expected key.key=value"},
    {"simulate example.json --set plan.collective_algorithm=collnet",
     "/plan/collective_algorithm: found \"collnet\", expected another algorithm without "
     "cluster.fabric.in_network_reduction"},
    {"simulate example.json --set plan.recompute=full --set plan.recompute_layers=200",
     "/plan/recompute_layers: found 200, expected at most the 4 layers of a stage's chunk"},
    {"simulate example.json --set plan.activation_offload=true --set plan.activation_offload_layers=200",
     "/plan/activation_offload_layers: found 200, expected at most the 4 layers of a stage's chunk"},
    {"simulate example.json --set plan.reshard_after_forward=false",
     "/plan/reshard_after_forward: found false, expected true below zero_stage 3"},
    {"simulate example.json --set plan.framework=torchtitan", "(did you mean \"fsdp\"?)"},
    {"simulate example.json --set plan.framework=megatron-lm", "(did you mean \"megatron-core\"?)"},
    {"simulate example.json --set plan.framework=fsdp2", "(did you mean \"fsdp\"?)"},
    {"collective all_reduce --cluster dgx-h100 --calibration example.json",
     "example.json: found neither a calibration of kernels nor one of collectives, expected a file from `orrery "
     "calibrate`"},
    {"compare - -", "standard input"},
    {"list", "KIND is required: one of models, "},
    {"list planets", "planets"},
    {"show", "NAME is required"},
    {"show llama-3-70", "found \"llama-3-70\", expected a name that `orrery list` prints"},
    {"show dgx-h10", "(did you mean \"dgx-h100\"?)"},
    {"show llama-3-70b eos", "found \"eos\", expected one name to show"},
    {"show links", "found nothing after links, expected a cluster"},
    {"show links dgx-h10", "found \"dgx-h10\", expected a cluster, node or scenario, or a file with one"},
    {"show links none.json", "none.json: found nothing (No such file or directory)"},
    {"show links example.json node0.nick0", "found \"node0.nick0\", expected the name of a link"},
    {"show links eos --routing rip", "--routing"},
    // A plan that the device cannot run.
    {"simulate example.json --set cluster.node=dgx-a100 --set plan.precision=fp8",
     "--set plan.precision=fp8: /plan/precision: found \"fp8\""},
    // Numbers whose products leave 64 bits.
    {"simulate example.json --set plan.tensor_parallel=4611686018427387904", "/plan/tensor_parallel: found "},
    {"simulate example.json --set plan.micro_batch_size=9223372036854775807", "found "},
    {"simulate example.json --set plan.data_parallel=9223372036854775807", "/plan/data_parallel: found "},
    {"simulate example.json --set cluster.nodes=9223372036854775807", "/cluster/nodes: found "},
    {"simulate example.json --set workload.sequence_length=9223372036854775807", "found "},
};

class BadCommandLine : public testing::TestWithParam<BadCommand> {};

TEST_P(BadCommandLine, IsRefusedInOneSentence) {
  const BadCommand& bad = GetParam();
  const Workplace place;
  place.write("example.json", example_scenario());
  place.write("broken.json", "{\n  model: 3\n}\n");
  place.write("twice.json", R"({"model": "llama-3-8b", "model": "llama-3-70b"})");
  place.write("lines.jsonl", json::parse(example_scenario()).dump() + "\n");
  const auto before = place.files();
  expect_refused(place, place.orrery(bad.arguments), before, bad.sentence);
}

INSTANTIATE_TEST_SUITE_P(Table, BadCommandLine, testing::ValuesIn(kBadCommands),
                         [](const auto& test) { return std::to_string(test.index); });

}  // namespace
}  // namespace orrery
