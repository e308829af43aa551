package transport

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
)

// Bounds of what is held of requests that have not been answered, in bytes.
const (
	// maxPeerBytes bounds one peer's: 8 of the largest messages.
	maxPeerBytes = 8 * MaxRequest
	// maxAllBytes bounds the bytes of all peers together. One that holds less than freeBytes is not refused because of
	// others, so that heartbeats get through.
	maxAllBytes = 4 * maxPeerBytes
	freeBytes   = 1 << 20
	// streamBytes is what a request costs beside its body: its headers, a goroutine, buffers.
	streamBytes = 16 << 10
)

// Bytes counts what is held of requests that have not been answered, in all and by peer.
type Bytes struct {
	mu  sync.Mutex
	all int64
	of  map[string]int64
}

// take refuses what is over a bound.
func (b *Bytes) take(peer string, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch held := b.of[peer]; {
	case held+n > maxPeerBytes:
		return fmt.Errorf("%s has requests of %d MiB in flight already, the most for one peer", peer, held>>20)
	case b.all+n > maxAllBytes && held+n > freeBytes:
		return fmt.Errorf("requests of %d MiB are in flight already, of which %d KiB are of %s", b.all>>20, held>>10, peer)
	}
	b.all += n
	b.of[peer] += n
	return nil
}

func (b *Bytes) give(peer string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all -= n
	if b.of[peer] -= n; b.of[peer] <= 0 {
		delete(b.of, peer)
	}
}

// Held is what one request holds. It is for one goroutine at a time.
type Held struct {
	bytes *Bytes
	peer  string
	n     int64
}

// Hold begins to count a request of a peer; the caller ends it by Release, also after an error.
func (b *Bytes) Hold(peer string) (*Held, error) {
	h := &Held{bytes: b, peer: peer}
	err := h.Take(streamBytes)
	return h, err
}

// Take counts n more bytes.
func (h *Held) Take(n int) error {
	if err := h.bytes.take(h.peer, int64(n)); err != nil {
		return err
	}
	h.n += int64(n)
	return nil
}

// Grow counts as many more bytes as are missing to n in all.
func (h *Held) Grow(n int) error {
	if more := int64(n) - h.n; more > 0 {
		return h.Take(int(more))
	}
	return nil
}

// Release ends the request. It may be called again.
func (h *Held) Release() {
	h.bytes.give(h.peer, h.n)
	h.n = 0
}

// metered is a connection with calls between agents that counts what is held of each call, from its first byte to its
// end. gRPC has no such bound: it lets each of maxStreams calls send MaxRequest before anything sees the message.
// The connection of a peer that is over a bound fails.
type metered struct {
	*tls.Conn
	bytes   *Bytes
	peer    Peer
	refused func(error)
	in, out frames

	mu     sync.Mutex
	calls  map[uint32]int64 // bytes by stream
	closed bool
}

// prefaceLen is the length of what an HTTP/2 client says first (RFC 9113, 3.4).
const prefaceLen = 24

func newMetered(conn *tls.Conn, peer Peer, bytes *Bytes, refused func(error)) *metered {
	return &metered{
		Conn: conn, bytes: bytes, peer: peer, refused: refused, in: frames{skip: prefaceLen},
		calls: map[uint32]int64{},
	}
}

// Types and flags of frames (RFC 9113, 6).
const (
	frameData, frameHeaders, frameReset = 0, 1, 3

	endStream = 1
)

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	var over error
	m.in.feed(p[:n], func(kind, _ byte, stream uint32, length int) {
		switch {
		case over != nil:
		case kind == frameHeaders:
			over = m.take(stream, streamBytes, true)
		case kind == frameData:
			over = m.take(stream, int64(length), false)
		case kind == frameReset:
			m.end(stream)
		}
	})
	if over != nil {
		m.refused(over)
		return 0, over
	}
	return n, err
}

// Write looks for the end of calls: gRPC ends each with headers (trailers) or a reset.
func (m *metered) Write(p []byte) (int, error) {
	n, err := m.Conn.Write(p)
	m.out.feed(p[:n], func(kind, flags byte, stream uint32, _ int) {
		if kind == frameReset || kind == frameHeaders && flags&endStream != 0 {
			m.end(stream)
		}
	})
	return n, err
}

// take counts bytes of a call. What still comes of one that has ended is dropped by gRPC.
func (m *metered) take(stream uint32, n int64, begins bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return net.ErrClosed
	case !begins && m.calls[stream] == 0:
		return nil
	}
	if err := m.bytes.take(m.peer.String(), n); err != nil {
		return err
	}
	m.calls[stream] += n
	return nil
}

func (m *metered) end(stream uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.calls[stream]; n > 0 {
		m.bytes.give(m.peer.String(), n)
		delete(m.calls, stream)
	}
}

// Close may be called again.
func (m *metered) Close() error {
	m.mu.Lock()
	for _, n := range m.calls {
		m.bytes.give(m.peer.String(), n)
	}
	m.calls, m.closed = map[uint32]int64{}, true
	m.mu.Unlock()
	return m.Conn.Close()
}

// frames finds the headers of HTTP/2's frames in a stream of bytes (RFC 9113, 4.1).
type frames struct {
	skip   int // bytes up to the next header
	header [9]byte
	have   int // bytes of header
}

func (f *frames) feed(p []byte, frame func(kind, flags byte, stream uint32, length int)) {
	for len(p) > 0 {
		if n := min(f.skip, len(p)); n > 0 {
			f.skip -= n
			p = p[n:]
			continue
		}
		n := copy(f.header[f.have:], p)
		p = p[n:]
		if f.have += n; f.have < len(f.header) {
			return
		}
		f.have = 0
		f.skip = int(binary.BigEndian.Uint32(f.header[:]) >> 8)
		frame(f.header[3], f.header[4], binary.BigEndian.Uint32(f.header[5:])&(1<<31-1), f.skip)
	}
}
