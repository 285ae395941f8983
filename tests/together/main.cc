// together: one process with several libraries, MPI, CORBA and plain sockets, alone or all at once. An ordinary program: it knows nothing of Motet.
//
//   mpirun -n 2 together MS OPEN USED SIZE...
//
// OPEN and USED are letters: m MPI, c CORBA, s sockets, x a thread in each process that computes. What is open and not used is idle; several m
// are several threads that use MPI at a time (MPI_THREAD_MULTIPLE). Rank 0 has bytes of each SIZE go to rank 1 and back by all libraries that are used, each in a thread of its
// own, for MS milliseconds, checks them, and prints "ADAPTER SIZE MEDIAN P99 COUNT CPU": ns of a round trip, how many there were, and ns of a CPU that the thread had for each. At last each rank says what its process has:
// engines, node stats pages, and threads, by name.
#include "together.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <dirent.h>
#include <fstream>
#include <map>
#include <mpi.h>
#include <set>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

using namespace together;

namespace {

struct Plan {
    double ms;
    std::string open, used;
    std::vector<size_t> sizes;
};

struct Opened {
    char letter;
    bool used;
    std::unique_ptr<Library> library;
};

int rank;

double now() { return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// What this thread has had of the CPUs, ns.
double cpu()
{
    timespec had;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &had);
    return static_cast<double>(had.tv_sec) * 1e9 + static_cast<double>(had.tv_nsec);
}

// ---- what rank 1 waits for: the other's word, without a library --------------------------------------------------------------

/// A pair of sockets of this host's, connected by name: neither MPI's nor a library's, so that who waits does nothing else.
class Control {
public:
    explicit Control(const std::string &name)
    {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path + 1, name.c_str(), sizeof address.sun_path - 2);
        const auto *at = reinterpret_cast<const sockaddr *>(&address);
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (rank == 1) {
            if (bind(fd, at, sizeof address) || listen(fd, 1)) fail("control");
            listener_ = fd;
            MPI_Barrier(MPI_COMM_WORLD);
            fd_ = accept(fd, nullptr, nullptr);
        } else {
            MPI_Barrier(MPI_COMM_WORLD);
            if (connect(fd, at, sizeof address)) fail("control");
            fd_ = fd;
        }
    }
    ~Control() { close(listener_), close(fd_); }
    void say() const { if (write(fd_, "", 1) != 1) fail("control"); }
    void hear() const
    {
        char byte;
        if (read(fd_, &byte, 1) != 1) fail("the other rank has gone");
    }

private:
    int listener_ = -1, fd_ = -1;
};

// ---- measuring -------------------------------------------------------------------------------------------------------------

void measure(const Opened &opened, size_t size, double ms, std::string &said)
{
    std::vector<unsigned char> bytes(size), expected(size);
    std::vector<double> times;
    const double until = now() + ms * 1e6, had = cpu();
    double begin = now();
    for (uint64_t turn = 0; begin < until || turn < 10; turn++) {
        const bool looks = turn % 64 == 0;
        if (looks)
            for (size_t i = 0; i < size; i++) expected[i] = bytes[i] = static_cast<unsigned char>(i * 7 + turn + static_cast<unsigned char>(opened.letter));
        begin = now();
        opened.library->exchange(bytes);
        const double end = now();
        times.push_back(end - begin);
        begin = end;
        if (looks && bytes != expected) fail(std::string("other bytes came back by library ") + opened.letter);
        if (looks) begin = now();
    }
    std::sort(times.begin(), times.end());
    const auto at = [&](double part) { return times[static_cast<size_t>(part * static_cast<double>(times.size() - 1))]; };
    const double each = (cpu() - had) / static_cast<double>(times.size());
    char line[160];
    std::snprintf(line, sizeof line, "%c %zu %.0f %.0f %zu %.0f\n", opened.letter, size, at(0.5), at(0.99), times.size(), each);
    said = line;
}

void call(std::vector<Opened> &libraries, const Plan &plan)
{
    for (const size_t size : plan.sizes) {
        std::vector<std::thread> threads;
        std::vector<std::string> said(libraries.size());
        for (size_t i = 0; i < libraries.size(); i++)
            if (libraries[i].used) threads.emplace_back(measure, std::cref(libraries[i]), size, plan.ms, std::ref(said[i]));
        for (auto &thread : threads) thread.join();
        for (const auto &line : said) std::fputs(line.c_str(), stdout);
        std::fflush(stdout);
    }
    for (auto &opened : libraries)
        if (opened.used || opened.letter != 'm') opened.library->end();
}

// ---- what the process has --------------------------------------------------------------------------------------------------

/// Mapped files whose names have this in them, by inode.
size_t mapped(const char *name)
{
    std::set<std::string> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        if (line.find(name) == std::string::npos) continue;
        char device[16], inode[32];
        if (std::sscanf(line.c_str(), "%*s %*s %*s %15s %31s", device, inode) == 2) found.insert(std::string(device) + inode);
    }
    return found.size();
}

std::string threads()
{
    std::map<std::string, int> names;
    DIR *folder = opendir("/proc/self/task");
    for (dirent *entry; folder && (entry = readdir(folder));) {
        std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
        std::string name;
        if (entry->d_name[0] != '.' && std::getline(file, name)) names[name]++;
    }
    if (folder) closedir(folder);
    std::string said;
    for (const auto &[name, count] : names) said += " " + name + "=" + std::to_string(count);
    return said;
}

// ---- the whole -------------------------------------------------------------------------------------------------------------

std::vector<Opened> open_all(const Plan &plan)
{
    std::vector<Opened> libraries;
    int numbers = 0;
    for (const char letter : plan.open) {
        std::unique_ptr<Library> library;
        if (letter == 'm') library = mpi(++numbers);
        if (letter == 'c') library = corba();
        if (letter == 's') library = sockets();
        if (letter != 'x' && !library) fail("libraries are m, c, s; x computes");
        if (library) libraries.push_back({letter, plan.used.find(letter) != std::string::npos, std::move(library)});
    }
    for (auto &opened : libraries) {
        char text[4096] = "";
        if (rank == 1) std::strncpy(text, opened.library->where().c_str(), sizeof text - 1);
        MPI_Bcast(text, sizeof text, MPI_BYTE, 1, MPI_COMM_WORLD);
        if (rank == 0) opened.library->meet(text);
    }
    return libraries;
}

void run(const Plan &plan)
{
    int number = rank == 1 ? getpid() : 0;
    MPI_Bcast(&number, 1, MPI_INT, 1, MPI_COMM_WORLD);
    const Control control("together-" + std::to_string(number));
    std::vector<Opened> libraries = open_all(plan);
    std::atomic<bool> over{false};
    std::vector<std::thread> busy;
    for (const char letter : plan.used)
        if (letter == 'x')
            busy.emplace_back([&over] {
                for (volatile double x = 1; !over; x = x * 1.0000001 + 1e-9) {}
            });
    if (rank == 1) {
        const size_t longest = *std::max_element(plan.sizes.begin(), plan.sizes.end());
        for (auto &opened : libraries)
            if (opened.used || opened.letter != 'm') busy.emplace_back([&opened, longest] { opened.library->serve(longest); });
        control.hear();
    } else {
        call(libraries, plan);
        over = true;
        control.say();
    }
    over = true;
    for (auto &thread : busy) thread.join();
    // One after the other; the second one's word comes through the launcher like the first one's.
    const std::string said = threads();
    for (int turn = 0; turn < 2; turn++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (turn == rank) {
            std::printf("rank %d: engines %zu, node stats pages %zu, threads%s\n", rank, mapped("/libmotet.so"), mapped("memfd:motet-links"), said.c_str());
            std::fflush(stdout);
        }
    }
}

} // namespace

int main(int count, char **words)
{
    int offered, ranks;
    MPI_Init_thread(&count, &words, MPI_THREAD_MULTIPLE, &offered);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count < 5 || ranks != 2) fail("mpirun -n 2 together MS OPEN USED SIZE...");
    if (offered < MPI_THREAD_MULTIPLE) fail("this MPI is not for several threads");
    Plan plan{std::stod(words[1]), words[2], words[3], {}};
    for (int i = 4; i < count; i++) plan.sizes.push_back(std::max<size_t>(1, std::stoull(words[i])));
    run(plan);
    MPI_Finalize();
    return 0;
}
