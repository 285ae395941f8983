// The command line of both codes. Not the case: that is a file (case_file.h).
#pragma once

#include <stdexcept>
#include <string>

namespace coupling {

struct Options {
  std::string case_path;
  std::string naming;  // HOST:PORT
  std::string output;  // an existing directory
};

// Throws std::runtime_error with the usage.
inline Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--case") options.case_path = argv[i + 1];
    if (name == "--naming") options.naming = argv[i + 1];
    if (name == "--output") options.output = argv[i + 1];
  }
  if (argc != 7 || options.case_path.empty() || options.naming.empty() || options.output.empty()) {
    throw std::runtime_error(std::string("usage: ") + argv[0] + " --case FILE --naming HOST:PORT --output DIRECTORY");
  }
  return options;
}

}  // namespace coupling
