// The reader of handed_over.c as a Go program. Usage: handed_over_reader IN OUT CONTROL SLOT BULK, with the meaning of handed_over_reader.c.
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"syscall"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(at int) int {
	n, err := strconv.Atoi(os.Args[at])
	must(err)
	return n
}

func send(fd int, data []byte) {
	for len(data) > 0 {
		n, err := syscall.Write(fd, data)
		if err == syscall.EINTR {
			continue
		}
		must(err)
		data = data[n:]
	}
}

func byteAt(offset uint64) byte {
	x := (offset/8 + 1) * 0x9e3779b97f4a7c15
	x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9
	return byte((x ^ (x >> 32)) >> (offset % 8 * 8))
}

func main() {
	in, out, slot, bulk := number(1), number(2), number(4), number(5)
	control, err := os.OpenFile(os.Args[3], os.O_RDWR, 0)
	must(err)
	var words [4]uint64
	note := func() {
		var buffer bytes.Buffer
		must(binary.Write(&buffer, binary.LittleEndian, words))
		_, err := control.WriteAt(buffer.Bytes(), int64(slot*32))
		must(err)
	}
	send(out, bytes.Repeat([]byte("h"), 64*16))
	data := make([]byte, 1<<16)
	crc := uint32(0)
	for {
		n, err := syscall.Read(in, data)
		if err == syscall.EINTR {
			continue
		}
		must(err)
		if n == 0 {
			break
		}
		crc = crc32.Update(crc, crc32.IEEETable, data[:n])
		words[0] += uint64(n)
		words[1] = uint64(crc)
		for _, b := range data[:n] {
			words[2] += uint64(b)
		}
		note()
	}
	words[3] = 1
	note()
	for done := 0; done < bulk; done += len(data) {
		for i := range data {
			data[i] = byteAt(uint64(done + i))
		}
		send(out, data)
	}
	line := fmt.Sprintf("a %d %d %d", words[0], words[1], words[2])
	send(out, []byte(fmt.Sprintf("%-64s", line)))
}
