package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/internal/notify"
	"github.com/pannier/pannier/sdk/wire"
)

// parked is a connection between two programs.
type parked struct {
	fd   *os.File
	read []byte // of a request
}

// Listener is a listening socket. While it is frozen it accepts nothing, and the kernel queues who connects.
type Listener struct {
	net.Listener
	of      *Sockets
	address string // as configured
	parks   bool   // its connections
	// activated: the service manager listens too.
	activated bool

	mu     sync.Mutex
	frozen bool
	waits  []parked
	conns  map[*Conn]struct{}
	change notify.Broadcast // of any of these
	closed bool
}

// listening is what net's listeners are.
type listening interface {
	net.Listener
	syscall.Conn
	SetDeadline(t time.Time) error
}

// Accept returns the next connection: first those that were parked.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		changed := l.change.Wait()
		l.mu.Lock()
		switch {
		case l.closed:
			l.mu.Unlock()
			return nil, net.ErrClosed
		case l.frozen:
			l.mu.Unlock()
			<-changed
			continue
		case len(l.waits) > 0:
			next := l.waits[0]
			l.waits = l.waits[1:]
			l.mu.Unlock()
			conn, err := net.FileConn(next.fd)
			if err := errors.Join(err, next.fd.Close()); err != nil {
				continue // its client is gone
			}
			return l.track(&Conn{socket: conn.(socket), unread: next.read, idles: len(next.read) == 0}), nil
		}
		_ = l.Listener.(listening).SetDeadline(time.Time{}) // fails only when it is closed
		l.mu.Unlock()
		conn, err := l.Listener.Accept()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil || !l.parks {
			return conn, err
		}
		return l.track(&Conn{socket: conn.(socket)}), nil
	}
}

func (l *Listener) track(c *Conn) net.Conn {
	c.l = l
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	if l.frozen {
		c.freeze()
	}
	return c
}

// wake makes Accept look again.
func (l *Listener) wake() {
	_ = l.Listener.(listening).SetDeadline(past) // fails only when it is closed
	l.change.Notify()
}

func (l *Listener) park(p parked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits = append(l.waits, p)
	l.wake()
}

func (l *Listener) forget(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	l.change.Notify()
}

func (l *Listener) freeze(frozen bool) {
	l.mu.Lock()
	l.frozen = frozen
	var conns []*Conn
	for c := range l.conns {
		conns = append(conns, c)
	}
	l.wake()
	l.mu.Unlock()
	for _, c := range conns {
		if frozen {
			c.freeze()
		} else {
			c.thaw()
		}
	}
}

// settle waits until every connection is closed or parked, or ctx ends.
func (l *Listener) settle(ctx context.Context) {
	for {
		changed := l.change.Wait()
		l.mu.Lock()
		open := len(l.conns)
		l.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Close ends Accept. The socket stays open for the next program if it was duplicated for it.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	keepPath(l.Listener, l.activated || l.of.Frozen()) // frozen: the path is the next program's
	err := l.Listener.Close()
	l.change.Notify()
	return err
}

// Sockets are what an agent hands over.
type Sockets struct {
	mu        sync.Mutex
	inherited []inherited
	frozen    bool
	listeners map[string]*Listener
	locks     map[string]*os.File
	answering int
	changed   notify.Broadcast // of answering
	leaving   context.Context
	leave     context.CancelCauseFunc
}

// NewSockets returns the sockets of an agent; from is what the program before has handed over, nil: nothing. With
// it they are frozen, until Thaw.
func NewSockets(from *Inheritance) *Sockets {
	s := &Sockets{listeners: map[string]*Listener{}, locks: map[string]*os.File{}}
	if from != nil {
		s.inherited, s.frozen = from.sockets, true
	}
	s.leaving, s.leave = context.WithCancelCause(context.Background())
	return s
}

// Listen returns the listening socket of a name and address that the program before or the service manager has, or
// opens one. parks: its connections are HTTP/1.1 without TLS.
func (s *Sockets) Listen(name, address string, parks bool, open func() (net.Listener, error)) (*Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &Listener{of: s, address: address, parks: parks, frozen: s.frozen, conns: map[*Conn]struct{}{}}
	at := slices.IndexFunc(s.inherited, func(i inherited) bool {
		return i.Address == address && (i.Name == name || i.Name == "" && i.Activated)
	})
	var err error
	if at >= 0 {
		found := s.inherited[at]
		s.inherited = slices.Delete(s.inherited, at, at+1)
		l.waits, l.activated = found.conns, found.Activated
		l.Listener, err = net.FileListener(found.fd)
		err = errors.Join(err, found.fd.Close())
	} else {
		l.Listener, err = open()
	}
	if err != nil {
		return nil, err
	}
	if _, ok := l.Listener.(listening); !ok {
		return nil, errors.Join(fmt.Errorf("a %T cannot be handed over", l.Listener), l.Listener.Close())
	}
	s.listeners[name] = l
	return l, nil
}

// Inherited returns a file of the program before; nil: there is none.
func (s *Sockets) Inherited(name string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.inherited, func(i inherited) bool { return i.Name == name })
	if at < 0 {
		return nil
	}
	found := s.inherited[at]
	s.inherited = slices.Delete(s.inherited, at, at+1)
	return found.fd
}

// Lock adds a locked file, which the next program gets.
func (s *Sockets) Lock(name string, f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locks[name] = f
}

// CloseUnused closes the sockets of the program before that this one does not listen on.
func (s *Sockets) CloseUnused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.inherited {
		i.close()
	}
	s.inherited = nil
}

func (s *Sockets) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answering++
}

func (s *Sockets) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answering--
	s.changed.Notify()
}

// Leaving ends when calls should be given up that the next program can answer.
func (s *Sockets) Leaving() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving
}

// ErrLeaving is the cause of the end of Leaving.
var ErrLeaving = errcode.Unavailable.New("another program answers the call")

// Frozen reports whether nothing is accepted.
func (s *Sockets) Frozen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen
}

// Freeze stops accepting connections and requests, and waits until no request is being answered, which fails when ctx
// ends first. Thaw undoes it in both cases.
func (s *Sockets) Freeze(ctx context.Context) error {
	s.set(true)
	return s.quiet(ctx)
}

// quiet waits until no request is being answered.
func (s *Sockets) quiet(ctx context.Context) error {
	for {
		changed := s.changed.Wait()
		s.mu.Lock()
		answering := s.answering
		s.mu.Unlock()
		if answering == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d calls are being answered: %w", answering, context.Cause(ctx))
		}
	}
}

// Thaw accepts again.
func (s *Sockets) Thaw() { s.set(false) }

// ThawOne accepts again on the listening socket of a name, if there is one.
func (s *Sockets) ThawOne(name string) {
	s.mu.Lock()
	l := s.listeners[name]
	s.mu.Unlock()
	if l != nil {
		l.freeze(false)
	}
}

func (s *Sockets) set(frozen bool) {
	s.mu.Lock()
	s.frozen = frozen
	if frozen {
		s.leave(ErrLeaving)
	} else {
		s.leaving, s.leave = context.WithCancelCause(context.Background())
	}
	var all []*Listener
	for _, l := range s.listeners {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.freeze(frozen)
	}
}

// duplicate returns a second descriptor of a socket or file.
func duplicate(of syscall.Conn) (*os.File, error) { return wire.Duplicate(of, "handover") }
