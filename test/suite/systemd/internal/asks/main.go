// Asks asks a socket for a credential as systemd does: from an abstract address, which is the first argument. The
// second is the socket. It prints how many bytes it gets, and the bytes.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

func main() {
	conn, err := net.DialUnix("unix", &net.UnixAddr{Name: os.Args[1], Net: "unix"},
		&net.UnixAddr{Name: os.Args[2], Net: "unix"})
	if err == nil {
		err = conn.CloseWrite()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	said, err := io.ReadAll(conn)
	fmt.Printf("%d bytes: %s\n", len(said), said)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
