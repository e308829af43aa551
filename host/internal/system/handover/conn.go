package handover

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/sdk/wire"
)

// socket is what net's connections are.
type socket interface {
	net.Conn
	syscall.Conn
}

// Conn is a connection of HTTP/1.1 without TLS. Of a request that is not begun nothing is read, so that the socket can
// be passed on with it.
type Conn struct {
	socket
	of   *Listener
	gone chan struct{} // closed by Close

	mu    sync.Mutex
	begun bool // a request is read or answered
	// counts: Hold waits for the answer.
	counts bool
	http2  bool // it is one of HTTP/2 after all
	// overdue is closed when a read is to end.
	overdue chan struct{}
	closed  bool
}

func newConn(c socket, of *Listener) *Conn {
	return &Conn{socket: c, of: of, gone: make(chan struct{}), overdue: make(chan struct{})}
}

// Of returns the connection under others, such as one that is counted; nil: it is none.
func Of(conn net.Conn) *Conn {
	for {
		switch c := conn.(type) {
		case *Conn:
			return c
		case interface{ NetConn() net.Conn }:
			conn = c.NetConn()
		default:
			return nil
		}
	}
}

// Track follows the states of connections (http.Server.ConnState).
func Track(conn net.Conn, state http.ConnState) {
	if c := Of(conn); c != nil && state == http.StateIdle {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.begun = c.http2
		c.uncount()
	}
}

// Uncount lets Hold end without waiting for the answer.
func (c *Conn) Uncount() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uncount()
}

func (c *Conn) uncount() {
	if c.counts {
		c.counts = false
		c.of.sockets.leaves()
	}
}

// HTTP2 reports whether the connection is one of HTTP/2.
func (c *Conn) HTTP2() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.http2
}

// Read begins a request unless calls are held back: then it waits.
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	begun, http2, overdue := c.begun, c.http2, c.overdue
	c.mu.Unlock()
	switch {
	case !begun:
		if err := c.begin(); err != nil {
			return 0, err
		}
	case !http2 && len(p) == 1: // net/http looks whether the client is gone, while a handler runs
		if err := c.await(); err != nil {
			return 0, err
		}
		select { // the next request stays in the socket
		case <-overdue:
			return 0, os.ErrDeadlineExceeded
		case <-c.gone:
			return 0, net.ErrClosed
		}
	}
	return c.socket.Read(p)
}

// begin waits for a request, and until it may be read.
func (c *Conn) begin() error {
	for {
		if err := c.await(); err != nil {
			return err
		}
		changed := c.of.sockets.changed.Wait()
		c.mu.Lock()
		begins := !c.closed && c.of.sockets.enters()
		if begins {
			c.begun, c.counts = true, true
		}
		c.mu.Unlock()
		if begins {
			return c.detect()
		}
		select {
		case <-changed:
		case <-c.gone:
			return net.ErrClosed
		}
	}
}

// await waits until something can be read. At the end of the connection it fails.
func (c *Conn) await() error {
	n, err := c.peek(make([]byte, 1))
	if err == nil && n == 0 {
		err = io.EOF
	}
	return err
}

// detect finds out whether the connection is one of HTTP/2 (RFC 9113, section 3.4).
func (c *Conn) detect() error {
	first := make([]byte, 3)
	_, err := c.peek(first)
	c.mu.Lock()
	defer c.mu.Unlock()
	if string(first) == "PRI" {
		c.http2 = true
		c.uncount()
	}
	return err
}

// peek waits until something can be read, and leaves it in the socket.
func (c *Conn) peek(p []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	if err := raw.Read(func(fd uintptr) bool {
		n, _, failed = unix.Recvfrom(int(fd), p, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	}); err != nil {
		return 0, err
	}
	return n, failed
}

// SetReadDeadline ends also a read that only waits.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !t.IsZero() && !t.After(time.Now()) {
		close(c.overdue)
		c.overdue = make(chan struct{})
	}
	return c.socket.SetReadDeadline(t)
}

// Close closes the connection. While calls are held back one that is idle is left to the next program.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.uncount()
	if !c.begun && c.of.sockets.Held() {
		if file, err := wire.Duplicate(c.socket, "handover"); err == nil { // else it is lost
			c.of.sockets.keep(kept{passed: passed{Name: parked, Address: c.of.Addr().String()}, file: file})
		}
	}
	close(c.gone)
	c.of.sockets.forget(c)
	return c.socket.Close()
}

// idle reports whether no request is read or answered.
func (c *Conn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.begun
}
