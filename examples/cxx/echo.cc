// echo.cc: motet.h from C++. One process, both ends of a connection, a deadline and a look at who is at the other end.
//
//   c++ -std=c++17 -I include examples/cxx/echo.cc -L target/release -lmotet -pthread -o echo
//   LD_LIBRARY_PATH=target/release ./echo
#include <motet.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

void check(bool good, const char* what)
{
    if (!good) throw std::runtime_error(what);
}

// A stream that ends with its scope, and its descriptor after it.
class Stream {
public:
    Stream(int fd, motet_role role) : fd_(fd)
    {
        motet_upgrade_options options = {sizeof options, static_cast<uint32_t>(role), 0};
        check(motet_upgrade(fd, &options, &handle_) == 0, "motet_upgrade");
    }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream()
    {
        motet_close(handle_);
        close(fd_);
    }

    void send(const std::string& text) const
    {
        check(motet_send(handle_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()), "motet_send");
    }
    std::string receive(size_t length) const
    {
        std::string text(length, '\0');
        check(motet_recv(handle_, &text[0], length, MSG_WAITALL) == static_cast<ssize_t>(length), "motet_recv");
        return text;
    }
    motet_stream handle() const { return handle_; }

private:
    int fd_;
    motet_stream handle_ = 0;
};

}  // namespace

int main()
try {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const auto where = reinterpret_cast<sockaddr*>(&address);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, where, size) == 0 && listen(listener, 1) == 0 && getsockname(listener, where, &size) == 0, "listen");

    constexpr int rounds = 1000;
    const std::string word = "one stream among several";
    std::thread server([&] {
        const Stream stream(accept(listener, nullptr, nullptr), MOTET_ROLE_ACCEPTED);
        for (int i = 0; i < rounds; i++) stream.send(stream.receive(word.size()));
        stream.receive(1); // keep the connection until the client is done
    });

    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(fd, where, size) == 0, "connect");
    {
        const Stream stream(fd, MOTET_ROLE_CONNECTED);
        for (int i = 0; i < rounds; i++) {
            stream.send(word);
            check(stream.receive(word.size()) == word, "the echo differs");
        }
        // The peer sends no more: a receive ends at its deadline.
        timespec now{};
        clock_gettime(CLOCK_MONOTONIC, &now);
        motet_set_deadline(stream.handle(), now.tv_sec * INT64_C(1000000000) + now.tv_nsec + 20000000);
        char byte;
        check(motet_recv(stream.handle(), &byte, 1, 0) == -ETIMEDOUT, "a receive outlived its deadline");

        motet_stream_info info{};
        info.size = sizeof info;
        check(motet_info(stream.handle(), &info) == 0, "motet_info");
        stream.send(".");
        std::printf("%d echoes; path %s; peer is process %d of user %lld\n", rounds, info.path == MOTET_PATH_SHM ? "shm" : "tcp",
                    info.peer_pid, static_cast<long long>(info.peer_uid));
    }
    server.join();
    close(listener);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "echo: %s\n", error.what());
    return 1;
}
