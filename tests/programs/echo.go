// Echo between two Go processes: echo serve CLIENTS (prints the port), echo call PORT CLIENTS ROUNDS (prints a hash).
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	must(err)
	return n
}

func serve(clients int) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fmt.Println("port", listener.Addr().(*net.TCPAddr).Port)
	var all sync.WaitGroup
	for i := 0; i < clients; i++ {
		connection, err := listener.Accept()
		must(err)
		all.Add(1)
		go func() {
			defer all.Done()
			_, err := io.Copy(connection, connection)
			must(err)
			connection.Close()
		}()
	}
	all.Wait()
}

func call(port string, clients, rounds int) {
	sums := make([][]byte, clients)
	var all sync.WaitGroup
	for i := 0; i < clients; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			connection, err := net.Dial("tcp", "127.0.0.1:"+port)
			must(err)
			hash := sha256.New()
			for round := 0; round < rounds; round++ {
				out := make([]byte, 1+(round*7919+i)%5000)
				for at := range out {
					out[at] = byte(at*round + i)
				}
				_, err := connection.Write(out)
				must(err)
				in := make([]byte, len(out))
				_, err = io.ReadFull(connection, in)
				must(err)
				hash.Write(in)
			}
			connection.Close()
			sums[i] = hash.Sum(nil)
		}(i)
	}
	all.Wait()
	for _, sum := range sums {
		fmt.Printf("%x\n", sum)
	}
}

func main() {
	if os.Args[1] == "serve" {
		serve(number(os.Args[2]))
	} else {
		call(os.Args[2], number(os.Args[3]), number(os.Args[4]))
	}
}
