package discovery

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"
	"golang.org/x/time/rate"
)

// Bounds of the TCP connections of gossip. memberlist reads up to 20 MiB of each before it decrypts them, so before it
// knows whether they come from somebody who has the key.
const (
	maxStreams   = 256 // at a time
	maxOfAddress = 128 // of those, of one address
	// Bytes that were read from connections that are open, of one address and in all.
	maxBytesOfAddress = 24 << 20
	maxBytes          = 64 << 20
)

// boundedTransport is memberlist's own transport with bounds.
type boundedTransport struct {
	*memberlist.NetTransport
	log     hclog.Logger
	tell    *rate.Limiter
	streams chan net.Conn
	stopped chan struct{}
	closing sync.Once

	mu    sync.Mutex
	count int
	bytes int64
	of    map[netip.Addr]*usage
}

// usage is what the connections of an address hold.
type usage struct {
	count int
	bytes int64
}

// newTransport listens for gossip, as memberlist does by itself. Port 0 in the configuration is replaced by the one
// that was found.
func newTransport(ml *memberlist.Config, log hclog.Logger) (*boundedTransport, error) {
	tries := 1
	if ml.BindPort == 0 {
		tries = 10 // the port must be free for TCP and UDP
	}
	for {
		under, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{ml.BindAddr}, BindPort: ml.BindPort, Logger: ml.Logger,
		})
		if tries--; err != nil && tries > 0 && strings.Contains(err.Error(), "address already in use") {
			continue
		}
		if err != nil {
			return nil, err
		}
		if ml.BindPort == 0 {
			ml.BindPort = under.GetAutoBindPort()
			ml.AdvertisePort = ml.BindPort
		}
		t := &boundedTransport{
			NetTransport: under, log: log, tell: rate.NewLimiter(1, 10), streams: make(chan net.Conn),
			stopped: make(chan struct{}), of: map[netip.Addr]*usage{},
		}
		go t.pass()
		return t, nil
	}
}

// StreamCh returns the connections within the bounds.
func (t *boundedTransport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown may be called again. The listeners end first: they may be handing over a connection.
func (t *boundedTransport) Shutdown() error {
	err := t.NetTransport.Shutdown()
	t.closing.Do(func() { close(t.stopped) })
	return err
}

func (t *boundedTransport) pass() {
	for {
		select {
		case <-t.stopped:
			return
		case conn := <-t.NetTransport.StreamCh():
			bounded, err := t.begin(conn)
			if err != nil {
				t.refused(conn, err)
				_ = conn.Close()
				continue
			}
			select {
			case t.streams <- bounded:
			case <-t.stopped:
				_ = bounded.Close()
				return
			}
		}
	}
}

func (t *boundedTransport) refused(conn net.Conn, err error) {
	if t.tell.Allow() {
		t.log.Warn("a connection for gossip was refused", "address", conn.RemoteAddr(), "error", err)
	}
}

func (t *boundedTransport) begin(conn net.Conn) (*boundedStream, error) {
	var from netip.Addr
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		from = tcp.AddrPort().Addr().Unmap()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	u := t.of[from]
	if u == nil {
		u = &usage{}
	}
	switch {
	case u.count >= maxOfAddress:
		return nil, fmt.Errorf("there are %d of this address already", u.count)
	case t.count >= maxStreams:
		return nil, fmt.Errorf("there are %d already", t.count)
	}
	t.count++
	u.count++
	t.of[from] = u
	return &boundedStream{Conn: conn, t: t, from: from, of: u}, nil
}

// boundedStream is a connection whose bytes count until it is closed.
type boundedStream struct {
	net.Conn
	t    *boundedTransport
	from netip.Addr
	of   *usage

	read   int64 // with the transport's lock
	closed bool
}

func (s *boundedStream) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.closed {
		return n, err
	}
	s.read += int64(n)
	s.of.bytes += int64(n)
	s.t.bytes += int64(n)
	if s.of.bytes > maxBytesOfAddress || s.t.bytes > maxBytes {
		err = fmt.Errorf("%d MiB are read from connections of this address, and %d MiB from all",
			s.of.bytes>>20, s.t.bytes>>20)
		s.t.refused(s.Conn, err)
		return 0, err
	}
	return n, err
}

// Close may be called again.
func (s *boundedStream) Close() error {
	s.t.mu.Lock()
	if !s.closed {
		s.closed = true
		s.t.count--
		s.of.count--
		s.of.bytes -= s.read
		s.t.bytes -= s.read
		if s.of.count == 0 {
			delete(s.t.of, s.from)
		}
	}
	s.t.mu.Unlock()
	return s.Conn.Close()
}
