// Does `orrery pack` write what it measures, whole or not at all, and say in a sentence what it cannot use?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/cli/command.h"

namespace orrery {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Pack, WritesSequencesAndTheirMeasures) {
  const Workplace place;
  place.write("d.jsonl",
              "{\"id\": \"a\", \"tokens\": 7}\n{\"id\": \"b\", \"tokens\": 12}\n{\"id\": \"c\", \"tokens\": 3}\n");
  const CommandResult result = place.orrery("pack d.jsonl --context 10 --out s.jsonl --json m.json --csv -");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(place.read("s.jsonl"),
            "{\"documents\":[{\"id\":\"b\",\"start\":0,\"first\":0,\"tokens\":10}],\"tokens\":10}\n"
            "{\"documents\":[{\"id\":\"a\",\"start\":0,\"first\":0,\"tokens\":7},"
            "{\"id\":\"c\",\"start\":7,\"first\":0,\"tokens\":3}],\"tokens\":10}\n"
            "{\"documents\":[{\"id\":\"b\",\"start\":0,\"first\":10,\"tokens\":2}],\"tokens\":2}\n");
  const auto measures = nlohmann::json::parse(place.read("m.json")).at(0);
  EXPECT_EQ(measures["sequences"], 3);
  EXPECT_EQ(measures["truncated_documents"], 1);
  EXPECT_EQ(measures["padding_tokens"], 8);
  EXPECT_NEAR(measures["attention_share"].get<double>(), (1 + 0.58 + 0.04) / 3, 1e-9);
  EXPECT_THAT(result.out, AllOf(HasSubstr("policy,context,documents"), HasSubstr("\nbest_fit,10,3,22,3,1,")));
}

TEST(Pack, SaysWhatFillsABatchOfFewSequences) {
  const Workplace place;
  const std::string few = "pack --generate 10 --scenario llama-3-70b-512-h100";
  EXPECT_THAT(place.orrery(few).out, HasSubstr("the step repeats them in turn: best_fit has 1\n"));
  EXPECT_THAT(place.orrery("pack --generate 10000 --scenario llama-3-70b-512-h100").out,
              testing::Not(HasSubstr("in turn")));
}

TEST(Pack, ReadsEmbeddingsAsJsonDoes) {
  const Workplace place;
  EXPECT_EQ(
      place.python("-c \"import struct; h = b\\\"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2), }\\\" + "
                   "b' ' * 8 + b'\\n'; open('e.npy', 'wb').write(b'\\x93NUMPY\\1\\0' + struct.pack('<H', len(h)) + h + "
                   "struct.pack('<8f', 1, 0, 0, 1, 1, 0, 0, 1))\""),
      0);
  place.write("d.jsonl", "{\"tokens\": 5}\n{\"tokens\": 5}\n{\"tokens\": 5}\n{\"tokens\": 5}\n");
  place.write("e.jsonl",
              "{\"tokens\": 5, \"embedding\": [1, 0]}\n{\"tokens\": 5, \"embedding\": [0, 1]}\n"
              "{\"tokens\": 5, \"embedding\": [1, 0]}\n{\"tokens\": 5, \"embedding\": [0, 1]}\n");
  const CommandResult binary = place.orrery("pack d.jsonl --embeddings e.npy --context 10 --policy datasculpt --out -");
  EXPECT_EQ(binary.code, 0) << binary.err;
  EXPECT_EQ(binary.out, place.orrery("pack e.jsonl --context 10 --policy datasculpt --out -").out);
  EXPECT_THAT(binary.out, HasSubstr("[{\"id\":0,\"start\":0,\"first\":0,\"tokens\":5},{\"id\":2,"));
}

TEST(Pack, AMaskWithinDocumentsMakesAStepShorter) {
  const Workplace place;
  const CommandResult result = place.orrery(
      "pack --generate 2000 --lengths web-en --scenario llama-3-70b-512-h100 --policy pad --policy best_fit --json -");
  EXPECT_EQ(result.code, 0) << result.err;
  const auto full = nlohmann::json::parse(place.orrery("simulate llama-3-70b-512-h100 --json -").out);
  for (const auto& row : nlohmann::json::parse(result.out)) {
    EXPECT_EQ(row["context"], 8192);
    EXPECT_EQ(row["step_seconds"], full["step_seconds"]);
    EXPECT_LT(row["masked_step_seconds"].get<double>(), row["step_seconds"].get<double>());
    EXPECT_GT(row["masked_step_seconds"].get<double>(), 0.8 * row["step_seconds"].get<double>());
  }
}

TEST(Pack, RefusesInASentenceAndWritesNothing) {
  const Workplace place;
  place.write("good.jsonl", "{\"tokens\": 5}\n{\"tokens\": 6}\n");
  place.write("zero.jsonl", "{\"tokens\": 5}\n{\"tokens\": 0}\n");
  place.write("widths.jsonl", "{\"tokens\": 5, \"embedding\": [1]}\n{\"tokens\": 1, \"embedding\": [1, 2]}\n");
  place.write("cut.npy", "\x93NUMPY");
  const auto before = place.files();
  struct Refused {
    const char *arguments, *says;
  };
  for (const Refused& c :
       {Refused{"zero.jsonl --context 8", "zero.jsonl: line 2"}, Refused{"widths.jsonl --context 8", "line 2"},
        Refused{"good.jsonl --context 0", "/context"}, Refused{"good.jsonl", "--context"},
        Refused{"good.jsonl --context 8 --policy datasculpt", "embedding"},
        Refused{"good.jsonl --context 8 --embeddings cut.npy", "cut.npy"},
        Refused{"missing.jsonl --context 8", "missing.jsonl"}, Refused{". --context 8", "found nothing"},
        Refused{"--context 8", "no documents"}, Refused{"good.jsonl --generate 5 --context 8", "either a file"},
        Refused{"--generate 0 --context 8", "/count"}, Refused{"--generate 5 --lengths web-em --context 8", "web-en"},
        Refused{"good.jsonl --context 9 --scenario llama-3-70b-512-h100", "8192"},
        Refused{"good.jsonl --context 8 --set plan.tensor_parallel=4", "--scenario"},
        Refused{"good.jsonl --scenario two-jobs-one-spine", "several jobs"},
        Refused{"good.jsonl --scenario packed_documents", "/workload/documents"}}) {
    const CommandResult result = place.orrery(std::string("pack ") + c.arguments + " --out s.jsonl");
    EXPECT_EQ(result.code, 2) << c.arguments;
    EXPECT_THAT(result.err, AllOf(HasSubstr("orrery: error: "), HasSubstr(c.says))) << c.arguments;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_EQ(place.files(), before) << c.arguments;
  }
  EXPECT_EQ(place.orrery("pack good.jsonl --context 8 --policy pad --policy concat --out s.jsonl").code, 2);
  EXPECT_EQ(place.orrery("pack good.jsonl --context 8 --out good.jsonl").code, 2);
}

// Files that end are whole. Where reading ends with an error, nobody knows how much is missing.
TEST(Pack, AnErrorOfReadingIsNoEndOfTheInput) {
  const Workplace place;
  place.write("fail.py", R"py(
import os, socket, subprocess, sys
mine, its = socket.socketpair()
mine.sendall(sys.argv[1].encode() + b"\n")
its.send(b"x")  # which is never read: that resets the connection
mine.close()
sys.exit(subprocess.run([os.environ["ORRERY"], *sys.argv[2:]], stdin=its).returncode)
)py");
  for (const char* arguments :
       {R"('{"tokens": 5}' pack - --context 8)", R"('"small-gpt"' simulate --batch - --json -)"}) {
    const CommandResult result = place.shell(std::string("python3 fail.py ") + arguments);
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr("<stdin>: found 1 lines, and then an error of reading (Connection reset"));
  }
}

TEST(Pack, HasAnEnd) {
  const Workplace place;
  place.write("one.jsonl", "{\"tokens\": 1073741824}\n");
  const CommandResult many = place.shell("(ulimit -v 1000000; $ORRERY pack one.jsonl --context 1)");
  EXPECT_EQ(many.code, 2);
  EXPECT_THAT(many.err, HasSubstr("found 1, for 1073741824 tokens: 1073741825 pieces, which need about 40.0 GiB"));
  const CommandResult endless = place.orrery("pack /dev/zero --context 8");
  EXPECT_EQ(endless.code, 2);
  EXPECT_THAT(endless.err, HasSubstr("/dev/zero:1: found a line of more than 16 MiB"));
}

TEST(Pack, NamesDoNotActOnATerminal) {
  const Workplace place;
  place.write("d.jsonl", "{\"tokens\": 5, \"id\": \"a\xe2\x80\xae\xc2\x9b\x7f\xc3\xa9\"}\n");
  EXPECT_THAT(place.orrery("pack d.jsonl --context 8 --out -").out,
              HasSubstr("\"id\":\"a\\u202e\\u009b\\u007f\xc3\xa9\""));
}

}  // namespace
}  // namespace orrery
