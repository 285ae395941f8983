// A server and its client (see the program's file): `program serve ADDRESS`, `program ask ADDRESS`.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c"
)

func some(seed int64, n int) []byte {
	data := make([]byte, n)
	rand.New(rand.NewSource(seed)).Read(data)
	return data
}

func answer(w http.ResponseWriter, r *http.Request) {
	if r.Method == "GET" {
		n, _ := strconv.Atoi(r.URL.Path[1:])
		w.Write(some(int64(n), n))
		return
	}
	sum := sha256.New()
	io.Copy(sum, r.Body)
	fmt.Fprintf(w, "%x\n", sum.Sum(nil))
}

func ask(client *http.Client, url string) (right int) {
	var wait sync.WaitGroup
	var lock sync.Mutex
	for worker := 0; worker < 16; worker++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := 0; i < 40; i++ {
				data := some(int64(worker*100+i), i*4999)
				got, err := client.Post(url, "application/octet-stream", bytes.NewReader(data))
				if err != nil {
					log.Fatal(err)
				}
				text, _ := io.ReadAll(got.Body)
				got.Body.Close()
				lock.Lock()
				if string(text) == fmt.Sprintf("%x\n", sha256.Sum256(data)) {
					right++
				}
				lock.Unlock()
			}
		}()
	}
	wait.Wait()
	return right
}

func main() {
	if os.Args[1] == "serve" {
		log.Fatal(http.ListenAndServe(os.Args[2], h2c.NewHandler(http.HandlerFunc(answer), &http2.Server{})))
	}
	url := "http://" + os.Args[2] + "/"
	two := &http2.Transport{AllowHTTP: true, DialTLSContext: func(_ context.Context, network, to string, _ *tls.Config) (net.Conn, error) { return net.Dial(network, to) }}
	fmt.Println("HTTP/1.1", ask(&http.Client{}, url))
	fmt.Println("HTTP/2", ask(&http.Client{Transport: two}, url))
}
