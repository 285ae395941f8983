// sockets.cc: a TCP connection between the two processes, and blocking calls. Bytes come in frames: their length, then they.
#include "together.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace together {
namespace {

class Sockets : public Library {
public:
    ~Sockets() override
    {
        if (listener_ >= 0) close(listener_);
        if (fd_ >= 0) close(fd_);
    }

    std::string where() override
    {
        sockaddr_in address = local(0);
        socklen_t length = sizeof address;
        auto *at = reinterpret_cast<sockaddr *>(&address);
        listener_ = socket(AF_INET, SOCK_STREAM, 0);
        if (listener_ < 0 || bind(listener_, at, length) || listen(listener_, 1) || getsockname(listener_, at, &length)) fail("listen");
        return std::to_string(ntohs(address.sin_port));
    }

    void meet(const std::string &where) override
    {
        const sockaddr_in address = local(static_cast<uint16_t>(std::stoi(where)));
        fd_ = socket(AF_INET, SOCK_STREAM, 0);
        if (fd_ < 0 || connect(fd_, reinterpret_cast<const sockaddr *>(&address), sizeof address)) fail("connect");
        at_once();
    }

    void serve(size_t longest) override
    {
        fd_ = accept(listener_, nullptr, nullptr);
        if (fd_ < 0) fail("accept");
        at_once();
        std::vector<unsigned char> bytes(longest);
        for (uint64_t length; take(&length, sizeof length) && length <= longest && take(bytes.data(), length);) {
            put(&length, sizeof length);
            put(bytes.data(), length);
        }
    }

    void exchange(std::vector<unsigned char> &bytes) override
    {
        uint64_t length = bytes.size();
        put(&length, sizeof length);
        put(bytes.data(), length);
        if (!take(&length, sizeof length) || length != bytes.size() || !take(bytes.data(), length)) fail("sockets: no answer");
    }

    void end() override { shutdown(fd_, SHUT_WR); }

private:
    static sockaddr_in local(uint16_t port)
    {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return address;
    }

    void at_once() const
    {
        const int on = 1;
        if (setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail("TCP_NODELAY");
    }

    void put(const void *from, size_t length) const
    {
        for (size_t at = 0; at < length;) {
            const ssize_t sent = send(fd_, static_cast<const char *>(from) + at, length - at, MSG_NOSIGNAL);
            if (sent <= 0) fail("send");
            at += static_cast<size_t>(sent);
        }
    }

    bool take(void *into, size_t length) const
    {
        for (size_t at = 0; at < length;) {
            const ssize_t got = recv(fd_, static_cast<char *>(into) + at, length - at, 0);
            if (got <= 0) return false;
            at += static_cast<size_t>(got);
        }
        return true;
    }

    int listener_ = -1, fd_ = -1;
};

} // namespace

std::unique_ptr<Library> sockets() { return std::make_unique<Sockets>(); }

} // namespace together
