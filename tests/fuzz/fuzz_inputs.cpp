// Runs readers on inputs that are changed at random, without coverage: with any compiler, on the
// program's own objects. libfuzzer.cpp does the same with coverage and sanitizers.
//
//   fuzz_inputs KIND RUNS [SEED]     fuzz_inputs KIND < FILE     fuzz_inputs
//
// The last one lists the kinds. An input that crashes, takes over two seconds or makes an error
// that it must not make is written to finding-KIND, and the exit code is 1.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/clock.h"
#include "fuzz/inputs.h"

namespace {

using namespace pipetrain::fuzz;

const Input* the_kind = nullptr;
std::string the_input;

[[noreturn]] void report(const char* what) {
  const std::string path = std::string("finding-") + the_kind->name;
  std::ofstream(path, std::ios::binary) << the_input;
  std::fprintf(stderr, "%s: %s; the input is in %s\n", the_kind->name, what, path.c_str());
  ::_exit(1);
}

void crashed(int number) {
  report(number == SIGALRM ? "no end after 10 s" : number == SIGABRT ? "aborted" : "crashed");
}

void read_one(const std::string& input) {
  the_input = input;
  ::alarm(10);
  const double start = pipetrain::thread_cpu_seconds();
  try {
    the_kind->read(input);
  } catch (const std::exception& error) {
    report(error.what());
  }
  if (pipetrain::thread_cpu_seconds() - start > 2) report("slow");
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    for (const Input& input : inputs()) std::puts(input.name);
    return 0;
  }
  the_kind = &input_named(arguments[1]);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM})
    ::signal(number, crashed);
  const rlimit memory{std::uint64_t{4} << 30, std::uint64_t{4} << 30};
  ::setrlimit(RLIMIT_AS, &memory);
  if (count < 3) {
    read_one({std::istreambuf_iterator<char>(std::cin), {}});
    return 0;
  }
  const std::uint64_t runs = std::strtoull(arguments[2], nullptr, 10);
  Random random(count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1);
  const std::vector<std::string> seeds = the_kind->seeds();
  for (const std::string& seed : seeds) read_one(seed);
  // Changes of what has been changed: most inputs differ a little from a good one, some a lot.
  std::string input;
  for (std::uint64_t run = 0; run < runs; ++run) {
    if (run % 8 == 0 || input.size() > 100'000) input = seeds[random.below(seeds.size())];
    the_kind->mutate(input, random);
    read_one(input);
  }
  std::printf("%s: %llu inputs from %zu, %.2f s\n", the_kind->name,
              static_cast<unsigned long long>(runs), seeds.size(), pipetrain::thread_cpu_seconds());
  return 0;
}
