#include "cli/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <type_traits>

#include "sim/base/error.h"
#include "sim/base/one_line.h"
#include "sim/base/words.h"

namespace orrery {
namespace {

// The subcommand that was given, or the program.
const CLI::App* given_command(const CLI::App& app) {
  return app.get_subcommands().empty() ? &app : app.get_subcommands().back();
}

// Suggests the option or subcommand that a mistyped word was meant to be.
std::string suggestion(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* const command = given_command(app);
  std::vector<std::string> known;
  for (const CLI::Option* option : command->get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  for (const CLI::App* subcommand : command->get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(subcommand->get_name());
  for (int i = 1; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
    const bool is_known = std::find(known.begin(), known.end(), word) != known.end();
    if (is_known || (command != &app && !word.starts_with("--"))) continue;
    const std::string nearest = nearest_name(word, known);
    if (!nearest.empty()) return " (did you mean \"" + nearest + "\"?)";
  }
  return {};
}

// If a required argument with a fixed set of words is missing, returns these words.
std::string words_of_missing(const CLI::App& app, const ValueDescriptions& values) {
  for (const CLI::Option* option : given_command(app)->get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    const auto known = values.find(option);
    if (known == values.end() || !known->second.only_words) return {};
    return fmt::format(": one of {}", fmt::join(known->second.words, ", "));
  }
  return {};
}

// If there is one word too many after an option's value: a hint if that option takes one value each time it is given.
std::string one_value_hint(const CLI::App& app, int argc, const char* const* argv) {
  const std::vector<std::string> unexpected = app.remaining(true);
  for (int i = 3; i < argc; ++i) {
    if (std::find(unexpected.begin(), unexpected.end(), argv[i]) == unexpected.end()) continue;
    const std::string_view before(argv[i - 2]);
    if (!before.starts_with("--")) continue;
    const CLI::Option* option = given_command(app)->get_option_no_throw(std::string(before));
    const bool repeatable = option != nullptr && !option->get_allow_extra_args() &&
                            option->get_items_expected_max() >= CLI::detail::expected_max_vector_size;
    if (repeatable) return fmt::format(" ({0} takes one value: {0} {1} {0} {2})", before, argv[i - 1], argv[i]);
  }
  return {};
}

// Parses `text` as a decimal number that fits a Number, or returns nothing. CLI11 itself reads 010 as 8, and too large
// numbers as the largest one.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  return number_of<Number>(text);
}

// Rewrites the text so that CLI11 reads the same number. If `accept` refuses it, the answer has the form of an
// InputError. CLI11 adds the option's name in front.
template <class Number, class Accept>
CLI::Validator number_that(Accept accept, const std::string& expected, const std::string& help = {}) {
  const auto read = [=](std::string& text) -> std::string {
    const std::optional<Number> number = number_in<Number>(text);
    constexpr std::size_t kLongest = 60;
    if (!number || !accept(*number)) return fmt::format("found \"{}\", expected {}", clipped(text, kLongest), expected);
    text = fmt::format("{}", *number);
    return {};
  };
  return {read, help};
}

// The type of an option's value, of which an optional one holds a number.
template <class Value>
struct NumberOf : std::type_identity<Value> {};
template <class Value>
struct NumberOf<std::optional<Value>> : std::type_identity<Value> {};

// Returns the names of the commands from the program down to this one, separated by spaces.
std::string command_path(const CLI::App& app) {
  if (app.get_parent() == nullptr) return {};
  const std::string before = command_path(*app.get_parent());
  return before.empty() ? app.get_name() : before + " " + app.get_name();
}

OptionDescription described(const CLI::Option& option, const ValueDescriptions& values) {
  OptionDescription description;
  description.text = option.get_description();
  description.is_required = option.get_required();
  if (const auto known = values.find(&option); known != values.end()) description.value = known->second;
  if (option.get_positional()) description.names.push_back(option.get_name());
  for (const std::string& name : option.get_snames()) description.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) description.names.push_back("--" + name);
  ValueDescription& value = description.value;
  if (option.get_items_expected_max() == 0) return description;  // a flag
  // Without an explicit type name, CLI11 appends the name of the check: "INT:INT in [0 - 10]".
  if (value.type.empty()) value.type = option.get_type_name().substr(0, option.get_type_name().find(':'));
  value.usual = option.get_default_str();
  value.is_file = value.is_file || value.type == "FILE";
  value.is_folder = value.type == "FOLDER";
  description.is_repeated = option.get_items_expected_max() >= CLI::detail::expected_max_vector_size;
  description.value_is_optional = option.get_items_expected_min() == 0;
  return description;
}

CommandDescription described(const CLI::App& app, const ValueDescriptions& values) {
  CommandDescription description;
  description.name = command_path(app);
  description.text = app.get_description();
  description.footer = app.get_footer();
  description.needs_subcommand = app.get_require_subcommand_min() > 0;
  for (const CLI::Option* option : app.get_options())
    (option->get_positional() ? description.arguments : description.options).push_back(described(*option, values));
  for (const CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; }))
    description.subcommands.push_back(described(*subcommand, values));
  return description;
}

}  // namespace

const Option& Option::required() const { return option_->required(), *this; }
const Option& Option::type_name(const char* name) const {
  value().type = name;
  return option_->type_name(name), *this;
}
const Option& Option::capture_default() const { return option_->capture_default_str(), *this; }
const Option& Option::one_of(const std::vector<std::string>& words, bool in_any_case) const {
  value().only_words = true;
  value().words = words;
  in_any_case ? option_->transform(CLI::IsMember(words, CLI::ignore_case)) : option_->check(CLI::IsMember(words));
  return *this;
}
const Option& Option::between(std::int64_t least, std::int64_t most) const {
  const auto within = [=](std::int64_t number) { return number >= least && number <= most; };
  value().range = fmt::format("a whole number from {} to {}", least, most);
  option_->transform(number_that<std::int64_t>(within, value().range, fmt::format("INT in [{} - {}]", least, most)));
  return *this;
}
const Option& Option::within(double least, double most) const {
  const auto within = [=](double number) { return number >= least && number <= most; };
  value().range = fmt::format("a number from {:g} to {:g}", least, most);
  option_->transform(number_that<double>(within, value().range, fmt::format("FLOAT in [{:g} - {:g}]", least, most)));
  return *this;
}
const Option& Option::positive() const {
  const auto positive = [](double number) { return number > 0; };
  value().range = "a number greater than 0";
  return option_->transform(number_that<double>(positive, value().range, "POSITIVE")), *this;
}
const Option& Option::bytes() const { return option_->transform(CLI::AsSizeValue(false)), *this; }
const Option& Option::names_a_file() const {
  const auto check = [](const std::string& text) {
    return std::string(text.empty() ? "found an empty text, expected the name of a file" : "");
  };
  return option_->check(check), *this;
}
const Option& Option::one_value_each() const { return option_->allow_extra_args(false), *this; }
const Option& Option::value_optional() const { return option_->expected(0, 1), *this; }
const Option& Option::offers_names(const std::vector<std::string>& kinds, const char* after) const {
  value().name_kinds = kinds;
  value().after_name = after;
  return *this;
}
const Option& Option::offers_words(const std::vector<std::string>& words) const { return value().words = words, *this; }
const Option& Option::offers_files() const { return value().is_file = true, *this; }
bool Option::is_given() const { return option_->count() > 0; }
std::string Option::name() const { return option_->get_name(); }

Command Command::add_subcommand(const char* name, const char* description) const {
  return Command(app_->add_subcommand(name, description), *values_);
}
void Command::footer(const std::string& text) const { app_->footer(text); }
void Command::require_subcommand(std::size_t least, std::size_t most) const { app_->require_subcommand(least, most); }
void Command::callback(const std::function<void()>& run) const { app_->callback(run); }
bool Command::has_subcommand_given() const { return !app_->get_subcommands().empty(); }
CommandDescription Command::description() const { return described(*app_, *values_); }

template <class Value>
Option Command::add_option(const char* names, Value& value, const char* description, const char* type) const {
  CLI::Option* const option = app_->add_option(names, value, description);
  using Number = typename NumberOf<Value>::type;
  if constexpr (std::is_arithmetic_v<Number>) {
    const char* const expected = !std::is_integral_v<Number> ? "a number"
                                 : std::is_signed_v<Number>  ? "a whole number of 64 bits"
                                                             : "a whole number of 64 bits, 0 or more";
    // CLI11 runs the last transformation first, so a range, which says more of what is expected, comes before this.
    option->transform(number_that<Number>([](Number) { return true; }, expected));
    if constexpr (std::is_same_v<Number, Value>) option->capture_default_str();
  }
  const Option added(option, *values_);
  return *type == '\0' ? added : added.type_name(type);
}
template Option Command::add_option(const char*, std::string&, const char*, const char*) const;
template Option Command::add_option(const char*, std::vector<std::string>&, const char*, const char*) const;
template Option Command::add_option(const char*, std::int64_t&, const char*, const char*) const;
template Option Command::add_option(const char*, std::optional<std::int64_t>&, const char*, const char*) const;
template Option Command::add_option(const char*, std::uint64_t&, const char*, const char*) const;
template Option Command::add_option(const char*, double&, const char*, const char*) const;
template Option Command::add_option(const char*, std::optional<double>&, const char*, const char*) const;

Option Command::add_option(const char* names, const std::function<void(const std::string&)>& take,
                           const char* description, const char* type) const {
  return Option(app_->add_option_function<std::string>(names, take, description), *values_).type_name(type);
}
Option Command::add_file(const char* names, std::string& path, const char* description) const {
  return add_option(names, path, description, "FILE").names_a_file();
}
Option Command::add_several(const char* names, std::vector<std::string>& values, const char* description,
                            const char* type) const {
  return add_option(names, values, description, type).one_value_each();
}
void Command::add_flag(const char* names, bool& value, const char* description) const {
  app_->add_flag(names, value, description);
}

CommandLine::CommandLine(const char* description, const char* examples, const std::string& version)
    : app_(std::make_unique<CLI::App>(description)) {
  if (!version.empty()) app_->set_version_flag("--version", version);
  app_->require_subcommand(1);
  app_->footer(examples);
}
CommandLine::~CommandLine() = default;

void CommandLine::parse(int argc, const char* const* argv) const {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    app_->exit(asked, text, text);
    throw Exit{0, text.str()};
  } catch (const CLI::ExtrasError& error) {
    const std::string hint = one_value_hint(*app_, argc, argv);
    throw UsageError(error.what() + (hint.empty() ? suggestion(*app_, argc, argv) : hint));
  } catch (const CLI::RequiredError& error) {
    throw UsageError(error.what() + words_of_missing(*app_, *values_) + suggestion(*app_, argc, argv));
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what() + suggestion(*app_, argc, argv));
  }
}

void CommandLine::check(std::vector<std::string> words) const {
  struct Parsed {};
  app_->parse_complete_callback([] { throw Parsed(); });  // before the subcommands run
  words.insert(words.begin(), "program");
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  try {
    parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const Parsed&) {
  }
}

}  // namespace orrery
