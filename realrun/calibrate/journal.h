// What a calibration has measured so far, a line of JSON each, so that one that was interrupted goes on where it was.
#pragma once

#include <cstdio>
#include <map>
#include <string>

#include "realrun/backend.h"
#include "realrun/calibrate/measure.h"

namespace orrery {

// The first line: what was measured, with what. Points of another header are another machine's.
struct JournalHeader {
  std::string kind, device, software;
  std::string date;  // of the beginning, "2026-11-21"; not compared
  bool same_machine(const JournalHeader& other) const {
    return kind == other.kind && device == other.device && software == other.software;
  }
};

class Journal {
 public:
  // Opens a journal to be continued, or begins one. Throws InputError when `path` cannot be written, is no journal, or
  // is that of another device or software. A last line that was cut off is measured again.
  Journal(std::string path, const JournalHeader& header);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  const JournalHeader& header() const { return header_; }
  const std::map<std::string, Measurement>& points() const { return points_; }
  // On disk when it returns. Of several measurements of a point the fastest counts.
  void add(const std::string& id, const Measurement& measurement);

 private:
  std::string path_;
  JournalHeader header_;
  std::map<std::string, Measurement> points_;
  std::FILE* file_ = nullptr;
};

// A finished one.
struct JournalContents {
  JournalHeader header;
  std::map<std::string, Measurement> points;
};
JournalContents read_journal(const std::string& path);

}  // namespace orrery
