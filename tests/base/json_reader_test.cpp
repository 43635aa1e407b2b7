// Is every way in which a document can be wrong said in one sentence, with its place, and is what is right read right?
#include "sim/base/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace orrery {
namespace {

using nlohmann::json;
using testing::HasSubstr;

enum class Colour { red, green };
constexpr std::array<std::string_view, 2> kColourNames{"red", "green"};

struct Options {
  std::int64_t degree = 1;
  std::int64_t stage = 0;
  double ratio = 0.5;
  bool overlap = false;
  std::string label = "none";
  std::vector<std::int64_t> layers;
  Colour colour = Colour::green;

  void visit_fields(FieldVisitor& v) {
    v.field("tensor_parallel", degree, at_least(1), "");
    v.field("zero_stage", stage, IntegerRange{0, 3}, "");
    v.field("ratio", ratio, positive(), "");
    v.field("overlap", overlap, "");
    v.field("label", label, "");
    v.field("layers", layers, at_least(0), "");
    v.field("colour", colour, kColourNames, "");
  }
};

Options read(std::string_view text) {
  const json document = parse_json(text, "file.json");
  JsonReader reader(document, {"file.json", "/plan"});
  Options options;
  options.visit_fields(reader);
  reader.finish();
  return options;
}

std::string message_of(std::string_view text) {
  try {
    read(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(JsonReader, ReadsEveryTypeOfField) {
  const Options options = read(R"({"tensor_parallel": 8, "zero_stage": 3, "ratio": 2, "overlap": true, "label": "x",
                                   "layers": [1, 0, 2], "colour": "red"})");
  EXPECT_EQ(options.degree, 8);
  EXPECT_EQ(options.stage, 3);
  EXPECT_EQ(options.ratio, 2.0);
  EXPECT_TRUE(options.overlap);
  EXPECT_EQ(options.label, "x");
  EXPECT_EQ(options.layers, (std::vector<std::int64_t>{1, 0, 2}));
  EXPECT_EQ(options.colour, Colour::red);
}

TEST(JsonReader, AbsentFieldsKeepTheirValues) {
  const Options options = read("{}");
  EXPECT_EQ(options.degree, 1);
  EXPECT_EQ(options.ratio, 0.5);
  EXPECT_EQ(options.colour, Colour::green);
}

TEST(JsonReader, CommentsAndDocumentationKeysChangeNothing) {
  EXPECT_EQ(read("{ // eight\n \"tensor_parallel\": /* ranks */ 8, \"source\": \"a paper\" }").degree, 8);
}

TEST(JsonReader, AnIntegerMayBeWrittenWithAFractionOfZero) { EXPECT_EQ(read(R"({"tensor_parallel": 8.0})").degree, 8); }

TEST(JsonReader, SaysWhereAndWhatIsWrong) {
  const struct {
    const char* text;
    const char* sentence;
  } cases[] = {
      {R"([])", "file.json: /plan: found an empty array, expected an object"},
      {R"({"tensor_parallel": 0})", "file.json: /plan/tensor_parallel: found 0, expected an integer of at least 1"},
      {R"({"tensor_parallel": "8"})", "/plan/tensor_parallel: found \"8\", expected an integer of at least 1"},
      {R"({"tensor_parallel": 1.5})", "found 1.5, expected an integer of at least 1"},
      {R"({"tensor_parallel": null})", "found null, expected an integer of at least 1"},
      {R"({"tensor_parallel": 1e300})", "found 1e+300, expected an integer of at least 1"},
      {R"({"tensor_parallel": 18446744073709551615})", "found 18446744073709551615, expected an integer"},
      {R"({"tensor_parallel": 99999999999999999999999})", "expected an integer of at least 1"},
      {R"({"zero_stage": 4})", "/plan/zero_stage: found 4, expected an integer from 0 to 3"},
      {R"({"zero_stage": -1})", "found -1, expected an integer from 0 to 3"},
      {R"({"zero_stage": {}})", "found an empty object, expected an integer from 0 to 3"},
      {R"({"ratio": 0})", "/plan/ratio: found 0, expected a number greater than 0"},
      {R"({"ratio": true})", "found true, expected a number greater than 0"},
      {R"({"overlap": 1})", "/plan/overlap: found 1, expected true or false"},
      {R"({"label": 7})", "/plan/label: found 7, expected a string"},
      {R"({"label": "a\u001b[31m"})",
       "/plan/label: found \"a\\u001b[31m\", expected a text without control characters"},
      {R"({"label": "a\u007f"})", "/plan/label: found \"a\\x7f\", expected a text without control characters"},
      {R"({"a\u0000b": 1})", "/plan/a\\x00b: found the unknown key \"a\\u0000b\", expected one of: "},
      {R"({"layers": 7})", "/plan/layers: found 7, expected an array of integers"},
      {R"({"layers": [1, 2, -3]})", "/plan/layers/2: found -3, expected an integer of at least 0"},
      {R"({"layers": [1, "a"]})", "/plan/layers/1: found \"a\", expected an integer"},
      {R"({"colour": "rde"})",
       "/plan/colour: found \"rde\", expected one of \"red\", \"green\" (did you mean \"red\"?)"},
      {R"({"colour": 1})", "/plan/colour: found 1, expected one of \"red\", \"green\""},
      {R"({"tensor_paralell": 8})",
       "file.json: /plan/tensor_paralell: found the unknown key \"tensor_paralell\", expected a known key "
       "(did you mean \"tensor_parallel\"?)"},
      {R"({"q~/": 8})", "file.json: /plan/q~0~1: found the unknown key \"q~/\", expected one of: tensor_parallel, "},
      {R"({"zero_stage": 1, "zero_stage": 2})",
       "file.json: found the key \"zero_stage\" a second time at line 1, column 30, expected each key once"},
      {"{\n  \"zero_stage\": 1,\n}", "file.json: found a syntax error at line 3, column 1 ("},
      {"{} {}", "file.json: found a syntax error at line 1, column 4 ("},
      {"", "file.json: found a syntax error at line 1, column 1 (unexpected end of input"},
      {"{\"a\": tru}", "file.json: found a syntax error at line 1, column 10 ("},
      {"{\"a\": \"\xff\"}", "file.json: found a syntax error at line 1, column 8 ("},
      {"{ /* open", "file.json: found a syntax error at line 1, column "},
      {"{\"zero_stage\": 1e999}", "file.json: found a number too large at line 1, column"},
  };
  for (const auto& [text, sentence] : cases) EXPECT_THAT(message_of(text), HasSubstr(sentence)) << text;
}

TEST(JsonReader, NamesAKnownKeyOnceHoweverOftenItIsRead) {
  const nlohmann::json object{{"rate", 1}};
  JsonReader reader(object, {"file.json", ""});
  for (const char* key : {"simple", "ll", "simple"}) reader.take(key);
  try {
    reader.finish();
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::EndsWith("found the unknown key \"rate\", expected one of: simple, ll"));
  }
}

struct Layers {
  std::int64_t from = 0, degree = 1;
  bool whole = true, bucket = false, recompute = false, clip = true;

  void visit_fields(FieldVisitor& v) {
    v.field("degree", degree, at_least(1), "", Scope::mesh);
    v.field("whole", whole, "", Scope::stream);
    v.field("bucket", bucket, "", Scope::buckets);
    v.field("clip", clip, "");
    v.field("recompute", recompute, "", Scope::layer);
  }
};

TEST(JsonReader, RefusesWhatHoldsForMoreThanARangeOfLayersWithTheReason) {
  const auto message = [](const char* text) -> std::string {
    const json document = json::parse(text);
    JsonReader reader(document, {"", "/0"});
    Layers layers;
    reader.field("from", layers.from, at_least(0), "");
    reader.begin_layers();
    layers.visit_fields(reader);
    try {
      reader.finish();
    } catch (const InputError& error) {
      return error.what();
    }
    EXPECT_EQ(layers.degree, 1) << "not read";
    return layers.recompute ? "recomputed" : "";
  };
  EXPECT_EQ(message(R"({"from": 3, "recompute": true})"), "recomputed");
  EXPECT_THAT(message(R"({"degree": 2})"),
              HasSubstr("/0/degree: found 2, expected no degree for a range of layers: all layers share one mesh; "
                        "ranges may give from, recompute"));
  EXPECT_THAT(message(R"({"whole": false})"),
              HasSubstr("all layers divide the residual stream in the same way; ranges may"));
  EXPECT_THAT(message(R"({"bucket": true})"), HasSubstr("buckets of gradients span several layers; ranges may"));
  EXPECT_THAT(message(R"({"clip": false})"), HasSubstr("it holds for the whole step; ranges may give from, recompute"));
  EXPECT_THAT(message(R"({"recomputed": true})"), HasSubstr("did you mean \"recompute\"?"));
  for (const char* nothing : {R"({})", R"({"from": 3})", R"({"from": 3, "comment": "the last ones"})"})
    EXPECT_THAT(message(nothing), HasSubstr("/0: found a range of layers that changes no field, expected the fields "
                                            "that differ there, one of: recompute"));
}

TEST(JsonReader, EqualKeysOfDifferentObjectsAreNoDuplicates) {
  EXPECT_NO_THROW(parse_json(R"({"a": {"x": 1}, "b": {"x": 2}, "c": [{"x": 1}, {"x": 2}]})", "f"));
}

TEST(JsonReader, LongValuesAreShortenedInMessages) {
  const std::string shown = describe(json(std::string(1000, 'x')));
  EXPECT_LT(shown.size(), 100u);
  EXPECT_THAT(shown, HasSubstr("xxx..."));
  // Never cut inside a character of several bytes.
  std::string accents;
  for (int i = 0; i < 100; ++i) accents += "\xc3\xa9";
  EXPECT_THAT(describe(json("x" + accents)), HasSubstr("\xc3\xa9..."));
}

TEST(JsonReader, LongKeysAreShortenedInPointers) {
  EXPECT_EQ(pointer_to("/plan", std::string(1000, 'x')), "/plan/" + std::string(200, 'x') + "...");
  EXPECT_EQ(pointer_to("", std::string(200, 'x')), "/" + std::string(200, 'x'));
}

TEST(JsonReader, NestingHasAnEnd) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(200), "deep"));
  EXPECT_THROW(parse_json(nested(202), "deep"), InputError);
  EXPECT_THROW(parse_json(std::string(200000, '['), "deep"), InputError);
}

TEST(JsonFile, ThatCannotBeReadIsAnInputError) {
  for (const std::string path : {"/nonexistent/scenario.json", "/tmp"}) {
    try {
      parse_json_file(path);
      FAIL() << path;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path + ": found nothing ("));
      EXPECT_THAT(error.what(), HasSubstr("expected a readable JSON file"));
    }
  }
}

TEST(JsonFile, IsReadWhole) {
  const std::string path = testing::TempDir() + "orrery_json_file_test.json";
  std::ofstream(path) << "{\"text\": \"" << std::string(300000, 'a') << "\"}";
  EXPECT_EQ(parse_json_file(path)["text"].get<std::string>().size(), 300000u);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace orrery
