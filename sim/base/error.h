// The one exception type of Orrery. It carries where the fault is and what was expected, and becomes one
// sentence and an exit code at the top of cli/.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace orrery {

// The user's input cannot be used: exit code 2.
class InputError : public std::runtime_error {
 public:
  struct Where {
    std::string file;     // "scenario.json", "--set plan.tensor_parallel=3", "<stdin>"; empty if not from a document
    std::string pointer;  // RFC 6901 JSON pointer, "/plan/tensor_parallel"; empty for the whole document
  };

  // `found` and `expected` are phrases: found "3", expected "a divisor of the 64 attention heads".
  InputError(Where where, std::string found, std::string expected, std::string nearest = {});

  const Where& where() const { return where_; }
  const std::string& found() const { return found_; }
  const std::string& expected() const { return expected_; }
  const std::string& nearest() const { return nearest_; }  // a valid name to suggest; may be empty

  // The same error for a value in an enclosing document: sets the file if it is still empty.
  InputError in_file(const std::string& file) const;

 private:
  Where where_;
  std::string found_, expected_, nearest_;
};

// The valid name with the smallest edit distance to `name`, or "" if none is plausibly meant.
std::string nearest_name(std::string_view name, std::span<const std::string_view> valid);
std::string nearest_name(std::string_view name, const std::vector<std::string>& valid);

}  // namespace orrery
