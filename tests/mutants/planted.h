// What mutants.py puts before each source in its copy of the tree: is this the mutant that is switched on?
//   ORRERY_MUTANT=17         the mutant; none without
//   ORRERY_MUTANT_LOG=FILE   each mutant's number goes there once, when its place is reached
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <type_traits>

// Mutants may do what no author should.
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wunused"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wreturn-type"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wbool-compare"
#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Waddress"
#pragma GCC diagnostic ignored "-Wdiv-by-zero"

inline bool orrery_log_mutant(const char* path, int number) {
  static std::atomic<bool> reached[10000];
  if (reached[number].exchange(true)) return false;
  char line[16];
  const int size = std::snprintf(line, sizeof line, "%d\n", number);
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
  if (write(file, line, static_cast<std::size_t>(size)) < 0) std::abort();
  close(file);
  return false;
}

inline bool orrery_mutant(int number) {
  static const char* const text = std::getenv("ORRERY_MUTANT");
  static const char* const log = std::getenv("ORRERY_MUTANT_LOG");
  static const int chosen = text == nullptr ? 0 : std::atoi(text);
  return chosen == number || (log != nullptr && orrery_log_mutant(log, number));
}
