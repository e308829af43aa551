package conformance

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
)

// held is a backend before another one: it passes nothing on until it is released, and
// tells when something has come.
type held struct {
	backend
	came    chan struct{} // closed when something has come
	release func()
}

// hold puts a held backend before the one on a socket, until the check is over.
func (r *run) hold(c *checking, socket string) (*held, error) {
	dir, err := r.folder()
	if err != nil {
		return nil, err
	}
	own := filepath.Join(dir, "s")
	l, err := net.Listen("unix", own)
	if err != nil {
		return nil, fmt.Errorf("make a backend that is slow: %w", err)
	}
	released := make(chan struct{})
	h := &held{backend: r.at(own, r.secret), came: make(chan struct{}), release: sync.OnceFunc(func() { close(released) })}
	coming := sync.OnceFunc(func() { close(h.came) })
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				first := make([]byte, 1)
				if _, err := io.ReadFull(conn, first); err != nil {
					return
				}
				coming()
				<-released
				pass(conn, first, socket)
			})
		}
	})
	c.ends(func() {
		_ = l.Close()
		h.release()
		serving.Wait() // the plugin's process has ended, and with it its connections
	})
	return h, nil
}

// pass carries bytes between a connection and a socket, until both sides have closed.
func pass(conn net.Conn, first []byte, socket string) {
	to, err := net.Dial("unix", strings.TrimPrefix(socket, "unix://"))
	if err != nil {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(conn, to) // its end is all that matters
		_ = conn.Close()
	})
	if _, err := to.Write(first); err == nil {
		_, _ = io.Copy(to, conn)
	}
	_ = to.Close()
	back.Wait()
}
