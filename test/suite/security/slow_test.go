package security_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

func dialSocket(t *testing.T, h *testhost.Host) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", h.Socket())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

const request = "POST /pannier.host.v1.VolumeService/RegisterVolume HTTP/1.1\r\nHost: pannier\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

// post sends a request over a connection and returns the first line of the answer. It is empty if the
// connection was closed before one could be read.
func post(t *testing.T, conn net.Conn, body []byte) string {
	t.Helper()
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testhost.Wait))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(conn, io.MultiReader(strings.NewReader(fmt.Sprintf(request, len(body))), bytes.NewReader(body)))
	}()
	answer := make([]byte, 256)
	n, err := io.ReadAtLeast(conn, answer, 12)
	if n < 12 && !cutOff(err) {
		t.Errorf("no answer: %v", err)
	}
	_ = conn.Close()
	<-sent
	line, _, _ := strings.Cut(string(answer[:n]), "\r\n")
	return line
}

func cutOff(err error) bool {
	if err == nil {
		return false
	}
	for _, is := range []string{
		io.EOF.Error(), io.ErrUnexpectedEOF.Error(), syscall.ECONNRESET.Error(),
		syscall.EPIPE.Error(),
	} {
		if strings.Contains(err.Error(), is) {
			return true
		}
	}
	return false
}

// refusedHTTP reports whether an answer is a refusal or a closed connection.
func refusedHTTP(line string) bool {
	return line == "" || strings.HasPrefix(line, "HTTP/1.1 4") || strings.HasPrefix(line, "HTTP/1.1 5")
}

// Clients that send nothing, or one byte at a time, and thousands of connections do not prevent others from
// being served. A client that does not identify itself or send its request in time is disconnected.
func slowClients(t *testing.T, i intruder) {
	leader := i.c.Leader()
	operator := i.ours("cli", "operator")
	var all, toBeCut, bodies []net.Conn
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
	}()
	node, answered := i.ours("node", "node-2"), make(chan error, 1)
	go func() { answered <- i.unfinished(leader, node) }()
	const each = 30
	for n := range each {
		silent, err := i.dial(leader, testcluster.RPCPort)
		if err != nil {
			t.Fatal(err)
		}
		if n%2 == 1 { // the first bytes of a handshake
			_, _ = silent.Write([]byte{22, 3, 1, 2, 0, 1})
		}
		header, err := i.speak(leader, operator, httpProtocol)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(header, "POST /pannier.host.v1.VolumeService/RegisterVolume HTTP/1.1\r\nHost: p\r\nX-Slow: ")
		body, err := i.speak(leader, operator, httpProtocol)
		if err != nil {
			t.Fatal(err)
		}
		local := dialSocket(t, leader)
		for _, conn := range []net.Conn{body, local} {
			_, _ = io.WriteString(conn, fmt.Sprintf(request, 1000)+`{"spec":`)
		}
		all = append(all, silent, header, body, local)
		toBeCut, bodies = append(toBeCut, silent, header), append(bodies, body)
	}
	// Only a hundred unidentified connections from one address are served; the others are closed at once.
	strangers := i.connect(leader, testcluster.RPCPort, 2000)
	all = append(append(all, strangers...), i.connect(leader, httpPort, 1000)...)
	goesOn(t, i.c)
	for _, conn := range append(toBeCut, strangers...) {
		if err := heard(conn); !cutOff(err) {
			t.Fatalf("a slow client is not disconnected: %v", err)
		}
	}
	for _, conn := range bodies {
		_ = conn.SetReadDeadline(time.Now().Add(testhost.Wait))
		if _, err := io.Copy(io.Discard, conn); err != nil && !cutOff(err) { // it may be told why
			t.Fatalf("a client that does not send its body is not disconnected: %v", err)
		}
	}
	if err := <-answered; errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call between agents whose request does not come is kept: %v", err)
	}
	logged(i.c.Servers(), "a connection was refused", "not_told=")
}

// httpPort serves health, metrics and, over HTTPS, the API.
const httpPort = 7420

// connect makes connections that send nothing.
func (i intruder) connect(to *testhost.Host, port uint16, count int) (open []net.Conn) {
	i.t.Helper()
	err := i.net.Do(func() error {
		for range count {
			conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(to.Net.Addr, port).String(), testhost.Wait)
			if err != nil {
				return err
			}
			open = append(open, conn)
		}
		return nil
	})
	if err != nil {
		i.t.Fatal(err)
	}
	return open
}
