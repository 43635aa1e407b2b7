// A file of SQLite that one of Orrery's commands keeps its results in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct sqlite3;
struct sqlite3_stmt;

namespace orrery {

// What is kept in a file, and by which tables: what InputErrors name.
struct DatabaseKind {
  std::string name;              // "a history"
  std::string made_by;           // "orrery bench --history"
  std::int64_t application = 0;  // SQLite's mark of whose file it is
  std::int64_t version = 0;      // of the schema
  std::string schema;            // SQL that makes the tables
  bool write_ahead = false;      // keeps a log (SQLite's WAL): readers and one writer do not wait for each other
};

// Transactions are there whole or not at all, after a crash or a kill too. Several processes may use one file; each
// waits for the others' transactions.
class Database {
 public:
  enum class Mode { read, write };  // write: creates the file if it is not there
  // Throws InputError for what is no file of this kind and version, and where it cannot be opened (or written, for
  // Mode::write).
  Database(const std::string& path, Mode mode, const DatabaseKind& kind);

  // All throw InputError: "found that SQLite cannot write it (...)", with what they were `doing`.
  void execute(const std::string& sql, const char* doing) const;
  void check(int code, const char* doing) const;
  // The first column of the first row.
  std::int64_t number(const char* sql) const;
  std::int64_t last_row() const;
  // As if the transaction under way had never begun.
  void roll_back() const;

  const std::string& path() const { return path_; }

 private:
  friend class Statement;
  void begin_write_ahead_log() const;

  std::string path_, expected_;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> database_;
};

// Takes back what was written since, unless it is committed.
class Transaction {
 public:
  explicit Transaction(const Database& database) : database_(database) {
    database_.execute("BEGIN IMMEDIATE", "write");
  }
  ~Transaction() {
    if (!committed_) database_.roll_back();
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit() {
    database_.execute("COMMIT", "write");
    committed_ = true;
  }

 private:
  const Database& database_;
  bool committed_ = false;
};

// One prepared statement; columns and parameters from 0. The database outlives it.
class Statement {
 public:
  Statement(const Database& database, const std::string& sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // The next parameter.
  Statement& bind(const std::string& text);
  Statement& bind(std::int64_t number);
  Statement& bind(double number);
  Statement& bind_null();

  bool step();  // false: no more rows
  void run();   // to the end; then its parameters can be bound anew
  bool is_null(int column) const;
  bool is_text(int column) const;
  std::string text(int column) const;
  std::int64_t integer(int column) const;
  double number(int column) const;

 private:
  const Database& database_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

}  // namespace orrery
