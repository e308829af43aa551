package handover

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"
)

// maxReplay bounds the bytes of a request that are kept for the next program. A longer request is not given up.
const maxReplay = 256 << 10

// maxIdle is how much longer a connection that was parked may be idle than a new one.
const maxIdle = 2 * time.Minute

// preface begins a connection of HTTP/2 (RFC 9113, 3.4), which has a state that no other program can continue.
var preface = []byte("PRI * HTTP/2.0")

// past is a deadline that ends reads at once.
var past = time.Unix(1, 0)

// socket is what net's connections are.
type socket interface {
	net.Conn
	syscall.Conn
}

// Conn is a connection of HTTP/1.1 that can be parked between two requests.
type Conn struct {
	socket
	l *Listener

	mu sync.Mutex
	// unread was read by the program before, and is read again first.
	unread []byte
	// read has the bytes since the last answer. next follows them: net/http reads a byte ahead while a handler runs.
	read, next []byte
	over       bool // read is more than maxReplay
	// reading is closed when the running Read has noted what it has read; nil: none runs.
	reading chan struct{}
	idles   bool // it was parked, and nothing has come since
	http2   bool
	busy    bool // a handler runs
	counts  bool // Freeze waits for the handler
	wrote   bool // since the last answer
	frozen  bool
	// interrupted: a read was ended by Freeze, so net/http closes the connection.
	interrupted bool
	closed      bool
}

// Of returns the connection under others, such as one that is counted; nil: it is none of a Listener that parks.
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
		c.idle()
	}
}

// Enter says that a handler begins to answer a request. With waits, Freeze waits until it has ended. False: it must end
// at once without an answer, by http.ErrAbortHandler, and the request is answered by the next program.
func (c *Conn) Enter(waits bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen || c.interrupted {
		return false
	}
	c.busy, c.counts = true, waits
	if waits {
		c.l.of.begin()
	}
	return true
}

// Leave gives a request up, which must end by http.ErrAbortHandler: it is answered by the next program, or by this one
// after Thaw. False: something was answered, or the request is too long; it must be answered here.
func (c *Conn) Leave() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrote || c.over {
		return false
	}
	c.end()
	c.interrupt()
	return true
}

// HTTP2 reports whether the connection cannot be parked.
func (c *Conn) HTTP2() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.http2
}

// end ends a handler. c.mu is held.
func (c *Conn) end() {
	if c.busy && c.counts {
		c.l.of.end()
	}
	c.busy, c.counts = false, false
	if c.frozen {
		c.interrupt()
	}
}

// idle says that an answer is complete.
func (c *Conn) idle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read, c.next, c.over, c.wrote = c.next, nil, false, false
	c.end()
}

// freeze makes net/http close the connection unless a handler runs, and Close park it.
func (c *Conn) freeze() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http2 {
		return
	}
	c.frozen = true
	if !c.busy {
		c.interrupt()
	}
}

func (c *Conn) thaw() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frozen = false
}

// interrupt ends a read. c.mu is held.
func (c *Conn) interrupt() {
	c.interrupted = true
	_ = c.socket.SetReadDeadline(past) // fails only when it is closed
}

// Read fails while the connection is to be parked, as if its deadline had passed.
func (c *Conn) Read(p []byte) (n int, err error) {
	c.mu.Lock()
	if c.interrupted {
		c.mu.Unlock()
		return 0, os.ErrDeadlineExceeded
	}
	if len(c.unread) > 0 {
		defer c.mu.Unlock()
		n = copy(p, c.unread)
		c.unread = c.unread[n:]
		c.note(p[:n], len(p))
		return n, nil
	}
	reading := make(chan struct{})
	c.reading = reading
	c.mu.Unlock()
	n, err = c.socket.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(p[:n], len(p))
	c.reading = nil
	close(reading)
	return n, err
}

// note keeps what was read. c.mu is held.
func (c *Conn) note(p []byte, room int) {
	if c.http2 || len(p) == 0 {
		return
	}
	c.idles = false
	if c.busy && room == 1 { // net/http looks whether the client is gone
		c.next = append(c.next, p...)
		return
	}
	if c.over {
		return
	}
	if c.read = append(c.read, p...); len(c.read) > maxReplay {
		c.read, c.over = nil, true
	} else if bytes.HasPrefix(c.read, preface) && !c.busy && !c.interrupted {
		c.read, c.http2 = nil, true
	}
}

// Write sends a part of an answer. It fails while the connection is to be parked and nothing was sent: of a request
// whose first line or a header was read in part when Read failed, net/http takes the part for the whole, and would
// answer 400.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.interrupted && !c.wrote {
		c.mu.Unlock()
		return 0, os.ErrDeadlineExceeded
	}
	c.wrote = true
	c.mu.Unlock()
	return c.socket.Write(p)
}

// SetReadDeadline has no effect while the connection is to be parked. One that was parked may be idle for longer:
// net/http takes it for a new one, whose first request should be there soon.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.interrupted {
		return nil
	}
	if c.idles && t.After(past) {
		t = t.Add(maxIdle)
	}
	return c.socket.SetReadDeadline(t)
}

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Close parks a connection that Freeze has interrupted.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed = true
	for c.interrupted && c.reading != nil { // what it reads belongs to the request
		reading := c.reading
		c.mu.Unlock()
		<-reading
		c.mu.Lock()
	}
	keep := c.interrupted && !c.wrote && !c.over
	c.end()
	request := bytes.Join([][]byte{c.read, c.next, c.unread}, nil)
	c.mu.Unlock()
	if keep {
		if fd, err := duplicate(c.socket); err == nil {
			c.l.park(parked{fd, request})
		}
	}
	c.l.forget(c)
	return c.socket.Close()
}
