// Do a workload's sequences hold its documents, and are files that hold none refused by line?
#include "traces/packing/packed_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace orrery {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class DocumentsFileOnDisk {
 public:
  explicit DocumentsFileOnDisk(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("packed_workload_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + "_" +
               std::to_string(++number_) + ".jsonl")) {
    std::ofstream(path_) << text;
  }
  ~DocumentsFileOnDisk() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  inline static int number_ = 0;
  std::filesystem::path path_;
};

Workload recorded(const std::string& text, std::int64_t batch, PackingPolicy packing = PackingPolicy::concat) {
  const DocumentsFileOnDisk file(text);
  Workload w;
  w.global_batch_size = batch;
  w.packing = packing;
  w.recorded_documents = std::make_shared<const RecordedDocuments>(read_recorded_documents(file.path()));
  return w;
}
std::vector<std::vector<std::int64_t>> ends_of(const PackedSequences& packed) {
  std::vector<std::vector<std::int64_t>> all;
  for (std::int64_t s = 0; s < packed.count(); ++s) {
    const auto ends = packed.ends_of(s);
    all.emplace_back(ends.begin(), ends.end());
  }
  return all;
}
std::string refusal_of_file(const std::string& text, std::int64_t length = 10) {
  try {
    (void)packed_sequences(recorded(text, 1), length);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}
Workload drawn(const char* documents, std::int64_t batch) {
  Workload w;
  w.documents = documents;
  w.global_batch_size = batch;
  return w;
}

constexpr const char* kDocuments = "{\"tokens\": 7}\n{\"tokens\": 12}\n{\"tokens\": 3}\n";

TEST(PackedWorkload, ConcatenatesAndCutsDocumentsOfAFile) {
  const auto packed = packed_sequences(recorded(kDocuments, 3), 10);
  EXPECT_EQ(packed->length, 10);
  EXPECT_THAT(ends_of(*packed), ElementsAre(ElementsAre(7, 10), ElementsAre(9, 10), ElementsAre(2, 10)));
  EXPECT_EQ(packed->padded_positions, 8) << "a document of its own";
}

TEST(PackedWorkload, StepsTakeSequencesInTurn) {
  Workload w = recorded(kDocuments, 2);
  w.step = 1;
  EXPECT_THAT(ends_of(*packed_sequences(w, 10)), ElementsAre(ElementsAre(2, 10), ElementsAre(7, 10)));
}

TEST(PackedWorkload, PadsADocumentASequence) {
  const auto packed = packed_sequences(recorded(kDocuments, 3, PackingPolicy::pad), 10);
  EXPECT_THAT(ends_of(*packed), ElementsAre(ElementsAre(7, 10), ElementsAre(10), ElementsAre(3, 10)));
}

// What `orrery pack --out` writes.
TEST(PackedWorkload, TakesSequencesThatArePacked) {
  const auto packed =
      packed_sequences(recorded("{\"documents\":[{\"id\":\"b\",\"start\":0,\"first\":0,\"tokens\":10}],\"tokens\":10}\n"
                                "{\"documents\":[{\"id\":\"a\",\"start\":0,\"first\":0,\"tokens\":4},"
                                "{\"id\":\"c\",\"start\":4,\"first\":0,\"tokens\":3}],\"tokens\":7}\n",
                                2),
                       10);
  EXPECT_THAT(ends_of(*packed), ElementsAre(ElementsAre(10), ElementsAre(4, 7, 10)));
}

TEST(PackedWorkload, TakesSequencesThatAreListed) {
  Workload w = drawn("20, 30;100 ; 1,2,3", 2);
  EXPECT_THAT(ends_of(*packed_sequences(w, 100)), ElementsAre(ElementsAre(20, 50, 100), ElementsAre(100)));
  w.step = 1;
  EXPECT_THAT(ends_of(*packed_sequences(w, 100)), ElementsAre(ElementsAre(1, 3, 6, 100), ElementsAre(20, 50, 100)));
  EXPECT_EQ(packed_sequences(w, 100)->padded_positions, 94 + 50);
}

TEST(PackedWorkload, RefusesListsByWhatIsWrongWithThem) {
  for (const auto& [text, found] :
       {std::pair{"20,x", "found \"x\" in a list of document lengths"}, std::pair{"20;;30", "found \"\" in a list"},
        std::pair{" ;20", "found \"\" in a list"}, std::pair{"+5", "found \"+5\" in a list"},
        std::pair{"20,0", "found \"0\" in a list"}, std::pair{"20,-5", "found \"-5\" in a list"},
        std::pair{"20,30.5", "found \"30.5\" in a list"},
        std::pair{"20;60,41", "found sequence 2 of 101 tokens, expected at most 100"},
        std::pair{"99999999999999999999", "in a list of document lengths"}}) {
    try {
      packed_sequences(drawn(text, 1), 100);
      ADD_FAILURE() << text;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, "/workload/documents") << text;
      EXPECT_THAT(error.what(), HasSubstr(found)) << text;
    }
  }
}

TEST(PackedWorkload, DrawsTheSameAgainAndOthersInEachStep) {
  Workload w = drawn("web-en=3,code=1", 16);
  const auto first = packed_sequences(w, 4096), again = packed_sequences(w, 4096);
  EXPECT_EQ(ends_of(*first), ends_of(*again));
  w.step = 1;
  EXPECT_NE(ends_of(*packed_sequences(w, 4096)), ends_of(*first));
  w.step = 0;
  w.documents_seed = 2;
  EXPECT_NE(ends_of(*packed_sequences(w, 4096)), ends_of(*first));
}

TEST(PackedWorkload, EveryPolicyFillsEverySequenceOnce) {
  for (const PackingPolicy policy : {PackingPolicy::pad, PackingPolicy::concat, PackingPolicy::first_fit_decreasing,
                                     PackingPolicy::best_fit_decreasing, PackingPolicy::best_fit}) {
    Workload w = drawn("wikipedia", 24);
    w.packing = policy;
    const auto packed = packed_sequences(w, 2048);
    ASSERT_EQ(packed->count(), 24);
    std::int64_t documents = 0;
    for (const std::vector<std::int64_t>& ends : ends_of(*packed)) {
      EXPECT_EQ(ends.back(), 2048);
      std::int64_t begin = 0;
      for (const std::int64_t end : ends) EXPECT_GT(end, std::exchange(begin, end));
      documents += static_cast<std::int64_t>(ends.size());
    }
    EXPECT_GT(documents, 24) << "of unequal length";
    if (policy == PackingPolicy::concat) {
      EXPECT_EQ(packed->padded_positions, 0);
    }
  }
}

// However few documents make a batch: what the last one lacks the next document begins.
TEST(PackedWorkload, ADrawnBatchOfOneIsFull) {
  for (std::int64_t seed = 1; seed <= 20; ++seed) {
    Workload w = drawn("paper-en", 1);
    w.documents_seed = seed;
    EXPECT_EQ(packed_sequences(w, 65536)->padded_positions, 0) << seed;
  }
}

// Sequences of the longest documents come first out of a policy that sorts; a step has any.
TEST(PackedWorkload, ABatchOfSortedDocumentsIsAsMixedAsAll) {
  Workload w = drawn("wikipedia", 32);
  w.packing = PackingPolicy::best_fit;
  Workload all = w;
  all.global_batch_size = kPackedTogether;
  const auto per_sequence = [](const PackedSequences& p) {
    return static_cast<double>(p.ends.size()) / static_cast<double>(p.count());
  };
  const double some = per_sequence(*packed_sequences(w, 4096)), whole = per_sequence(*packed_sequences(all, 4096));
  EXPECT_NEAR(some, whole, 0.5 * whole);
}

TEST(PackedWorkload, RefusesFilesByLine) {
  const std::string sequence = "{\"documents\":[{\"tokens\":4},{\"tokens\":3}],\"tokens\":7}\n";
  EXPECT_EQ(refusal_of_file(sequence), "accepted");
  EXPECT_THAT(refusal_of_file(""), HasSubstr("no documents"));
  EXPECT_THAT(refusal_of_file("{\"documents\":[{\"tokens\":5}],\"tokens\":9}\n"),
              HasSubstr("found 9 \"tokens\" of a sequence, expected 5, the sum of its documents"));
  EXPECT_THAT(refusal_of_file(sequence + "{\"documents\":[{\"start\":0,\"tokens\":4},{\"start\":2,\"tokens\":3}]}\n"),
              AllOf(HasSubstr("line 2"),
                    HasSubstr("found \"start\" 2 of a document, expected 4, the end of the documents before it")));
  EXPECT_THAT(refusal_of_file("{\"tokens\": 0}\n"), AllOf(HasSubstr("line 1"), HasSubstr("tokens: found 0")));
  EXPECT_THAT(refusal_of_file("{\"tokens\": 4}\n{\"tokens\": -1}\n"),
              AllOf(HasSubstr("line 2"), HasSubstr("tokens: found -1")));
  for (const char* bad :
       {"{\"documents\":[]}", "{\"documents\":[{\"tokens\":0}]}", "{\"documents\":[{\"tokens\":-2}]}",
        "{\"documents\":[{\"tokens\":1.5}]}", "{\"documents\":[{\"tokens\":18446744073709551615}]}",
        "{\"documents\":[{}]}", "{\"documents\":[7]}", "{\"documents\":3}", "{\"tokens\":3}", "[1]", "{", ""})
    EXPECT_THAT(refusal_of_file(sequence + bad + "\n"), HasSubstr("line 2")) << bad;
  EXPECT_THAT(refusal_of_file(sequence + "{\"documents\":[{\"tokens\":8},{\"tokens\":3}],\"tokens\":11}\n"),
              AllOf(HasSubstr("line 2"), HasSubstr("found a sequence of 11 tokens"), HasSubstr("at most 10")));
}

TEST(PackedWorkload, RefusesDistributionsAndBatchesByTheirField) {
  const auto refused = [](const Workload& w, std::int64_t length) -> std::string {
    try {
      (void)packed_sequences(w, length);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused(drawn("wikipedai", 1), 1024), AllOf(HasSubstr("/workload/documents"), HasSubstr("wikipedia")));
  EXPECT_THAT(refused(drawn("others", 1 << 22), 1 << 15), HasSubstr("/workload/global_batch_size"));
  EXPECT_THAT(refused(drawn("others", 1), std::int64_t{1} << 25), HasSubstr("/workload/sequence_length"));
  EXPECT_THAT(refused(recorded(kDocuments, std::int64_t{1} << 32), 10), HasSubstr("/workload/global_batch_size"));
}

}  // namespace
}  // namespace orrery
