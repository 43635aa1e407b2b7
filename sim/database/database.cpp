#include "sim/database/database.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "sim/base/error.h"
#include "sim/base/input_file.h"
#include "sim/base/one_line.h"

namespace orrery {
namespace {

constexpr int kBusyMilliseconds = 60'000;  // wait for another process to finish its transaction

bool can_be_read(sqlite3* database) {
  const int code = sqlite3_exec(database, "PRAGMA user_version", nullptr, nullptr, nullptr);
  return code != SQLITE_READONLY && code != SQLITE_CANTOPEN;
}

bool has_log(const std::string& path) {
  struct stat status {};
  return ::stat((path + "-wal").c_str(), &status) == 0 && status.st_size > 0;
}

// https://www.sqlite.org/uri.html
std::string immutable_uri(const std::string& path) {
  return (path.starts_with('/') ? "file://" : "file:") + escaped(path, {{'%', "%25"}, {'?', "%3f"}, {'#', "%23"}}) +
         "?immutable=1";
}

}  // namespace

void Database::check(int code, const char* doing) const {
  if (code == SQLITE_OK) return;
  if (code == SQLITE_NOTADB || code == SQLITE_CORRUPT)
    throw InputError({path_, ""}, "a file that is not an SQLite database, or is damaged", expected_);
  throw InputError({path_, ""},
                   fmt::format("a file that SQLite cannot {} ({})", doing,
                               database_ ? sqlite3_errmsg(database_.get()) : sqlite3_errstr(code)),
                   expected_);
}

void Database::execute(const std::string& sql, const char* doing) const {
  check(sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr), doing);
}

std::int64_t Database::number(const char* sql) const {
  Statement statement(*this, sql);
  statement.step();
  return statement.integer(0);
}

std::int64_t Database::last_row() const { return sqlite3_last_insert_rowid(database_.get()); }

// The switch to the log needs the file exclusively, and SQLite does not wait for that.
void Database::begin_write_ahead_log() const {
  constexpr auto kPause = std::chrono::milliseconds(10);
  for (int waited = 0;; waited += static_cast<int>(kPause.count())) {
    const int code = sqlite3_exec(database_.get(), "PRAGMA journal_mode = WAL", nullptr, nullptr, nullptr);
    if (code != SQLITE_BUSY && code != SQLITE_LOCKED) {
      check(code, "write");
      break;
    }
    if (waited >= kBusyMilliseconds) check(code, "write");
    std::this_thread::sleep_for(kPause);
  }
  Statement mode(*this, "PRAGMA journal_mode");
  mode.step();
  if (mode.text(0) != "wal")
    throw InputError({path_, ""}, fmt::format("a file system on which SQLite keeps journals of type {}", mode.text(0)),
                     "one that supports SQLite's write-ahead log, where processes share memory");
}

void Database::roll_back() const { sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr); }

Database::Database(const std::string& path, Mode mode, const DatabaseKind& kind)
    : path_(path), expected_(fmt::format("{} ({})", kind.name, kind.made_by)), database_(nullptr, sqlite3_close) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (!exists && mode == Mode::read)
    throw InputError({path, ""}, fmt::format("nothing ({})", std::strerror(errno)), expected_);
  if (exists && !S_ISREG(status.st_mode)) throw InputError({path, ""}, "a file that is not regular", kind.name);
  const bool is_new = !exists || status.st_size == 0;  // empty: the process that was to create it was killed
  if (is_new && mode == Mode::read) throw InputError({path, ""}, "an empty file", expected_);
  sqlite3* opened = nullptr;
  const int flags = mode == Mode::read ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  const int code = sqlite3_open_v2(path.c_str(), &opened, flags, nullptr);
  database_.reset(opened);
  check(code, "open");
  remember_input(path);
  if (mode == Mode::read && !can_be_read(opened) && !has_log(path)) {
    // With a write-ahead log, readers also write beside the file. If they may not, no other process does either.
    database_.reset();
    check(sqlite3_open_v2(immutable_uri(path).c_str(), &opened, flags | SQLITE_OPEN_URI, nullptr), "open");
    database_.reset(opened);
  }
  sqlite3_busy_timeout(opened, kBusyMilliseconds);
  if (mode == Mode::write && sqlite3_db_readonly(opened, "main") != 0)
    throw InputError({path, ""}, "a path that cannot be written", "the path of a file to write");
  bool begun = false;
  if (mode == Mode::write && number("PRAGMA user_version") == 0) {
    execute("BEGIN IMMEDIATE", "write");
    begun = true;
    // Another process may have created it in the meantime.
    if (number("SELECT count(*) FROM sqlite_master") == 0) {
      execute(kind.schema, "write");
      execute(fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kind.application, kind.version),
              "write");
    }
  }
  const std::int64_t application = number("PRAGMA application_id"), version = number("PRAGMA user_version");
  if (application != kind.application) throw InputError({path, ""}, "an SQLite file of another program", expected_);
  if (version != kind.version)
    throw InputError({path, ""}, fmt::format("{} of version {}", kind.name, version),
                     fmt::format("one of version {}: made by this version of orrery", kind.version));
  if (begun) execute("COMMIT", "write");
  if (mode == Mode::write && kind.write_ahead) begin_write_ahead_log();
}

Statement::Statement(const Database& database, const std::string& sql) : database_(database) {
  database_.check(sqlite3_prepare_v2(database_.database_.get(), sql.c_str(), -1, &statement_, nullptr), "read");
}
Statement::~Statement() { sqlite3_finalize(statement_); }

Statement& Statement::bind(const std::string& text) {
  sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
  return *this;
}
Statement& Statement::bind(std::int64_t number) {
  sqlite3_bind_int64(statement_, ++bound_, number);
  return *this;
}
Statement& Statement::bind(double number) {
  sqlite3_bind_double(statement_, ++bound_, number);
  return *this;
}
Statement& Statement::bind_null() {
  sqlite3_bind_null(statement_, ++bound_);
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(statement_);
  if (code != SQLITE_ROW && code != SQLITE_DONE) database_.check(code, "use");
  return code == SQLITE_ROW;
}
void Statement::run() {
  step();
  sqlite3_reset(statement_);
  bound_ = 0;
}

bool Statement::is_text(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_TEXT; }
bool Statement::is_null(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
std::string Statement::text(int column) const {
  const unsigned char* value = sqlite3_column_text(statement_, column);
  return value == nullptr ? std::string() : reinterpret_cast<const char*>(value);
}
std::int64_t Statement::integer(int column) const { return sqlite3_column_int64(statement_, column); }
double Statement::number(int column) const { return sqlite3_column_double(statement_, column); }

}  // namespace orrery
