// A number about a step beyond those that every report has, of whoever knows what it counts: a strategy, an engine, a
// real run. Tables, JSON and trainings show what they are given, without knowing whose it is.
#pragma once

#include <cstdint>
#include <string>

namespace orrery {

enum class FigureUnit : std::uint8_t { number, count, share, times };  // "1.88", "12", "2.1 %", "1.33x"

// What is said of a figure before any step is known.
struct FigureKind {
  const char* group = "";  // the object of the report's JSON that holds it: "routing"
  const char* key = "";    // its name there
  FigureUnit unit = FigureUnit::number;
  const char* explanation = "";  // for --explain: what is counted
  const char* label = "";        // of its line in the table; empty: it has none
  // A training tabulates it step by step where it has a name there; steps that lack it have `otherwise`.
  const char* column = "";
  const char* heading = "";
  double otherwise = 0;
  bool always = false;  // people see the column also where all steps have `otherwise`
};

struct Figure {
  const FigureKind* kind = nullptr;  // outlives the report
  double value = 0;
  std::string remark{};   // behind the value in the table
  std::string caution{};  // what it makes of MFU, a sentence for the report's notes; empty: nothing
};

std::string figure_text(const Figure& figure);  // its value, by its unit

}  // namespace orrery
