// The measurements of a calibration so far, one line of JSON each, so that an interrupted calibration can be continued.
#pragma once

#include <cstdio>
#include <map>
#include <string>

#include "realrun/backend.h"
#include "realrun/calibrate/measure.h"

namespace orrery {

// The first line: what was measured, and with what. Points under a different header are from another machine.
struct JournalHeader {
  std::string kind, device, software;
  std::string date;  // of the first measurement, "2026-11-21"; not compared
  bool same_machine(const JournalHeader& other) const {
    return kind == other.kind && device == other.device && software == other.software;
  }
};

class Journal {
 public:
  // Opens a journal to continue it, or begins one. Throws InputError if `path` cannot be written, is not a journal, or
  // belongs to another device or software. A last line that was cut off is measured again.
  Journal(std::string path, const JournalHeader& header);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  const JournalHeader& header() const { return header_; }
  const std::map<std::string, Measurement>& points() const { return points_; }
  // Adds a measurement; it is on disk on return. The fastest of several measurements of a point counts.
  void add(const std::string& id, const Measurement& measurement);

 private:
  void write(const std::string& line);

  std::string path_;
  JournalHeader header_;
  std::map<std::string, Measurement> points_;
  std::FILE* file_ = nullptr;
};

// A finished journal.
struct JournalContents {
  JournalHeader header;
  std::map<std::string, Measurement> points;
};
JournalContents read_journal(const std::string& path);

}  // namespace orrery
