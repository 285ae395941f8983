// A connection that is used by C's library and by Go's own system calls in turn. Usage: mixed_calls
//
// The peer, a Python program, sends back what it receives. Nothing is in flight when the calls change.
package main

/*
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static int c_listen(int *port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(fd, (struct sockaddr *)&address, length) || listen(fd, 1) || getsockname(fd, (struct sockaddr *)&address, &length)) return -1;
	*port = ntohs(address.sin_port);
	return fd;
}

static int c_accept(int listener) { return accept(listener, 0, 0); }

static int c_exchange(int fd, const char *mine, char *theirs, int length)
{
	if (send(fd, mine, length, MSG_NOSIGNAL) != length) return -1;
	for (int done = 0; done < length;) {
		int n = recv(fd, theirs + done, length - done, 0);
		if (n <= 0) return -1;
		done += n;
	}
	return 0;
}
*/
import "C"

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"unsafe"
)

const peer = `
import socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while data := s.recv(65536):
    s.sendall(data)
`

func check(good bool, what string, number int) {
	if !good {
		fmt.Fprintln(os.Stderr, what, number)
		os.Exit(1)
	}
}

func goExchange(fd int, mine, theirs []byte) bool {
	if n, err := syscall.Write(fd, mine); err != nil || n != len(mine) {
		return false
	}
	for done := 0; done < len(theirs); {
		n, err := syscall.Read(fd, theirs[done:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return false
		}
		done += n
	}
	return true
}

func main() {
	var port C.int
	listener := C.c_listen(&port)
	check(listener >= 0, "listen", 0)
	echo := exec.Command("python3", "-c", peer, fmt.Sprint(port))
	echo.Stderr = os.Stderr
	check(echo.Start() == nil, "python3", 0)
	fd := C.c_accept(listener)
	check(fd >= 0, "accept", 0)
	for i := 0; i < 300; i++ {
		mine, theirs := bytes.Repeat([]byte{byte(i)}, 1+i*37%3000), make([]byte, 1+i*37%3000)
		good := false
		if i < 100 || (i >= 200 && i%2 == 0) {
			good = C.c_exchange(fd, (*C.char)(unsafe.Pointer(&mine[0])), (*C.char)(unsafe.Pointer(&theirs[0])), C.int(len(mine))) == 0
		} else {
			good = goExchange(int(fd), mine, theirs)
		}
		check(good && bytes.Equal(mine, theirs), "exchange", i)
	}
	syscall.Close(int(fd))
	check(echo.Wait() == nil, "the peer", 0)
	fmt.Println("300 exchanges")
}
