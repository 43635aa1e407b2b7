#include "realrun/calibrate/journal.h"
#include "tests/fuzz/file_of_input.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::calibration_journal(std::string_view input) {
  const FileOfInput file(input);
  const JournalContents contents = read_journal(file.path());
  for (const auto& [id, m] : contents.points) require(m.seconds > 0, "a point took time");
  require(Journal(file.path(), contents.header).points().size() == contents.points.size(), "what is read goes on");
}
