// Are documents and embeddings read as they were written, and refused with file and line where they are none?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "traces/packing/documents.h"

namespace orrery {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Documents parsed(const std::string& text) { return parse_documents(text, "d.jsonl"); }
std::string refusal(const std::string& text) {
  try {
    parsed(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DocumentsFile, ReadsWhatIsThere) {
  const Documents documents = parsed(
      "{\"id\": \"a\\\"b\", \"tokens\": 812, \"embedding\": [3, 4]}\r\n{\"tokens\": 5, \"id\": 7, \"embedding\": [0, "
      "-1e-3]}");
  EXPECT_EQ(documents.count(), 2);
  EXPECT_EQ(documents.tokens(0), 812);
  EXPECT_EQ(documents.all_tokens(), 817);
  EXPECT_EQ(documents.id(0), "\"a\\\"b\"");
  EXPECT_EQ(documents.id(1), "7");
  EXPECT_FLOAT_EQ(documents.embedding(0)[0], 0.6f);
  EXPECT_FLOAT_EQ(documents.embedding(1)[1], -1.0f);
  EXPECT_EQ(parsed("{\"tokens\": 1}\n{\"tokens\": 2}\n").id(1), "1");
}

TEST(DocumentsFile, RefusesByLine) {
  const std::string good = "{\"id\": 1, \"tokens\": 2, \"embedding\": [1, 2]}\n";
  EXPECT_THAT(refusal(""), AllOf(HasSubstr("d.jsonl"), HasSubstr("no documents")));
  for (const char* bad :
       {"{\"id\": 1, \"tokens\": 0, \"embedding\": [1, 2]}", "{\"id\": 1, \"tokens\": -3, \"embedding\": [1, 2]}",
        "{\"id\": 1, \"tokens\": 1.5, \"embedding\": [1, 2]}",
        "{\"id\": 1, \"tokens\": 18446744073709551615, \"embedding\": [1, 2]}",
        "{\"id\": 1, \"tokens\": 2000000000, \"embedding\": [1, 2]}", "{\"id\": 1, \"embedding\": [1, 2]}",
        "{\"id\": 1, \"tokens\": 2, \"embedding\": [1, 2, 3]}", "{\"id\": 1, \"tokens\": 2, \"embedding\": [0, 0]}",
        "{\"id\": 1, \"tokens\": 2, \"embedding\": [1, \"2\"]}",
        "{\"id\": 1, \"tokens\": 2, \"embedding\": [1, 1e999]}", "{\"id\": 1, \"tokens\": 2, \"embedding\": 3}",
        "{\"id\": 1, \"tokens\": 2}", "{\"tokens\": 2, \"embedding\": [1, 2]}",
        "{\"id\": [1], \"tokens\": 2, \"embedding\": [1, 2]}", "{\"id\": 1, \"token\": 2}", "[1]", "{\"id\": 1,", ""})
    EXPECT_THAT(refusal(good + bad + "\n"), AllOf(HasSubstr("d.jsonl"), HasSubstr("line 2"))) << bad;
}

// A .npy file of version 1.
std::string npy(const std::string& header, const std::vector<float>& numbers) {
  std::string text = "\x93NUMPY";
  text += {'\x01', '\0', static_cast<char>(header.size()), '\0'};
  text += header;
  text.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  return text;
}

std::string refusal_of_embeddings(const std::string& bytes) {
  const std::string path = testing::TempDir() + "orrery_embeddings_test.npy";
  std::ofstream(path, std::ios::binary) << bytes;
  Documents documents = parsed("{\"tokens\": 1}\n{\"tokens\": 2}\n");
  std::string found = "accepted";
  try {
    read_embeddings(path, documents);
    if (documents.dimension() != 2 || documents.embedding(1)[1] != -1) found = "read otherwise";
  } catch (const InputError& error) {
    found = error.what();
    EXPECT_THAT(found, HasSubstr(path));
  }
  std::remove(path.c_str());
  return found;
}

TEST(DocumentsFile, EmbeddingsAreNumPys) {
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }     \n";
  const std::vector<float> numbers{3, 4, 0, -2};
  const auto with = [&](const std::string& what, const std::string& other) {
    std::string changed = header;
    return changed.replace(changed.find(what), what.size(), other);
  };
  EXPECT_EQ(refusal_of_embeddings(npy(header, numbers)), "accepted");
  EXPECT_THAT(refusal_of_embeddings(""), HasSubstr("no .npy file"));
  EXPECT_THAT(refusal_of_embeddings(npy(header, numbers).substr(0, 30)), HasSubstr("cut"));
  EXPECT_THAT(refusal_of_embeddings(npy(header, {3, 4, 0})), HasSubstr("12 bytes"));
  EXPECT_THAT(refusal_of_embeddings(npy(header, {3, 4, 0, 1, 1})), HasSubstr("20 bytes"));
  EXPECT_THAT(refusal_of_embeddings(npy(header, {3, 4, 0, 0})), HasSubstr("row 1"));
  EXPECT_THAT(refusal_of_embeddings(npy(with("'<f4'", "'<f8'"), numbers)), HasSubstr("'<f8'"));
  EXPECT_THAT(refusal_of_embeddings(npy(with("False", "True"), numbers)), HasSubstr("column order"));
  EXPECT_THAT(refusal_of_embeddings(npy(with("(2, 2)", "(4,)"), numbers)), HasSubstr("shape (4)"));
  EXPECT_THAT(refusal_of_embeddings(npy(with("(2, 2)", "(1, 4)"), numbers)), HasSubstr("2 documents"));
  EXPECT_THAT(refusal_of_embeddings(npy(with("'shape'", "'form'"), numbers)), HasSubstr("unknown key \"form\""));
  EXPECT_EQ(refusal_of_embeddings(npy("{'shape':(2,2),'fortran_order':False,'descr':\n'<f4'}", numbers)), "accepted");
  // What is no dictionary of these three keys is none, though the words be there.
  for (const auto& [what, other] : {std::pair("(2, 2)", "(2;2)"),
                                    {"(2, 2)", "(2 2)"},
                                    {"(2, 2)", "(-2, 2)"},
                                    {"(2, 2)", "(2, 2, x)"},
                                    {"(2, 2)", "(2, 2"},
                                    {"(2, 2)", "2, 2"},
                                    {"(2, 2)", "(2, 2) 3"},
                                    {"False", "False True"},
                                    {"False", "Falsehood"},
                                    {"False,", "False, spam,"},
                                    {"False,", "False, 'descr': '<f4',"},
                                    {"False,", "False, 'more': 1,"},
                                    {"False,", "False"},
                                    {"{", ""},
                                    {"{", "x{"},
                                    {"}", ""},
                                    {"}", "} y"},
                                    {"'descr':", "'descr'"}})
    EXPECT_NE(refusal_of_embeddings(npy(with(what, other), numbers)), "accepted") << other;
  for (const auto& [major, minor] : {std::pair('\x09', '\x09'), {'\x00', '\x00'}, {'\x01', '\x01'}, {'\x04', '\x00'}}) {
    std::string bytes = npy(header, numbers);
    bytes[6] = major, bytes[7] = minor;
    EXPECT_THAT(refusal_of_embeddings(bytes), HasSubstr("of the format, expected 1.0, 2.0 or 3.0"));
  }
}

}  // namespace
}  // namespace orrery
