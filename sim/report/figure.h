// A figure is a number about a step that only some reports have. A strategy, an engine or a real run adds it and brings
// its texts along. So tables, JSON and trainings can show every figure without knowing who added it.
#pragma once

#include <cstdint>
#include <string>

namespace orrery {

enum class FigureUnit : std::uint8_t { number, count, share, times };  // "1.88", "12", "2.1 %", "1.33x"

// What all figures of a kind have in common: where and how they are shown.
struct FigureKind {
  const char* group = "";  // the object of the report's JSON that holds it: "routing"
  const char* key = "";    // its name there
  FigureUnit unit = FigureUnit::number;
  const char* explanation = "";  // for --explain: what is counted
  const char* label = "";        // of its line in the table; empty: the table has no line for it
  // For the table of a training's steps: the column's name in CSV and JSON, and its heading for people. An empty name:
  // no column. `otherwise` is the value of steps without the figure. Unless `always`, the table for people leaves the
  // column out if all steps have that value.
  const char* column = "";
  const char* heading = "";
  double otherwise = 0;
  bool always = false;
};

struct Figure {
  const FigureKind* kind = nullptr;  // must outlive the report
  double value = 0;
  std::string remark{};   // text that follows the value in the table
  std::string caution{};  // a sentence for the notes on MFU: how this value distorts it; empty: it does not
};

std::string figure_text(const Figure& figure);  // the value as text in its unit

}  // namespace orrery
