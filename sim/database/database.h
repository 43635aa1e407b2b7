// A SQLite file in which a command of Orrery keeps its results.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct sqlite3;
struct sqlite3_stmt;

namespace orrery {

// The kind of results in a file, and its tables; InputErrors name them.
struct DatabaseKind {
  std::string name;              // "a history"
  std::string made_by;           // "orrery bench --history"
  std::int64_t application = 0;  // SQLite's application_id, which marks the owner of a file
  std::int64_t version = 0;      // version of the schema
  std::string schema;            // SQL that creates the tables
  bool write_ahead = false;      // uses SQLite's write-ahead log: readers and one writer do not wait for each other
};

// Transactions are atomic, even after a crash or a kill. Several processes may use one file; each waits for the others'
// transactions.
class Database {
 public:
  enum class Mode { read, write };  // write: creates the file if it is not there
  // Throws InputError if the file is not of this kind and version, or cannot be opened (or written, for Mode::write).
  Database(const std::string& path, Mode mode, const DatabaseKind& kind);

  // All throw InputError: "found that SQLite cannot write it (...)", together with `doing`.
  void execute(const std::string& sql, const char* doing) const;
  void check(int code, const char* doing) const;
  // The value in the first column of the first row.
  std::int64_t number(const char* sql) const;
  std::int64_t last_row() const;
  // Undoes the current transaction.
  void roll_back() const;

  const std::string& path() const { return path_; }

 private:
  friend class Statement;
  void begin_write_ahead_log() const;

  std::string path_, expected_;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> database_;
};

// Rolls back what was written since its construction, unless it is committed.
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

// One prepared statement; columns and parameters count from 0. REQUIRES: the database outlives it.
class Statement {
 public:
  Statement(const Database& database, const std::string& sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Bind the next parameter.
  Statement& bind(const std::string& text);
  Statement& bind(std::int64_t number);
  Statement& bind(double number);
  Statement& bind_null();

  bool step();  // false: no more rows
  void run();   // runs to the end; afterwards its parameters can be bound again
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
