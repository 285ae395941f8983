// together.h: what a library is to together.cc: one that sends bytes to the other process and has them back.
#ifndef TOGETHER_H
#define TOGETHER_H

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace together {

/// The end of a test that has gone wrong.
[[noreturn]] inline void fail(const std::string &what)
{
    std::fprintf(stderr, "together: %s\n", what.c_str());
    std::exit(1);
}

/// An end of one library. Rank 0 calls, rank 1 serves.
class Library {
public:
    virtual ~Library() = default;
    /// How rank 1 is found, as text that goes to rank 0.
    virtual std::string where() { return {}; }
    /// Rank 0 has been told.
    virtual void meet(const std::string &) {}
    /// Rank 1: answers until the caller has had enough. Returns at once where the library has threads for that.
    virtual void serve(size_t longest) = 0;
    /// Rank 0: there and back.
    virtual void exchange(std::vector<unsigned char> &bytes) = 0;
    /// Rank 0: has had enough.
    virtual void end() = 0;
};

/// By letter: m MPI, c CORBA, s sockets. `number`: of those of the same kind.
std::unique_ptr<Library> mpi(int number);
std::unique_ptr<Library> corba();
std::unique_ptr<Library> sockets();

} // namespace together

#endif
