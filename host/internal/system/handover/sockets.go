package handover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"

	"github.com/coreos/go-systemd/v22/activation"

	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/internal/notify"
	"github.com/pannier/pannier/sdk/wire"
)

// kept is a socket or file that outlives the program.
type kept struct {
	passed
	file     *os.File
	listener net.Listener // nil: none of this program
}

// Sockets are what an agent hands over.
type Sockets struct {
	mu        sync.Mutex
	inherited []kept // what nobody has asked for yet
	kept      []kept
	conns     map[*Conn]struct{}
	held      bool
	tried     bool // this program is
	answering int
	changed   notify.Broadcast // of held and answering
	leaving   context.Context
	leave     context.CancelCauseFunc
}

// NewSockets returns the sockets of an agent; from is what the program before has handed over, nil: nothing. With
// it, calls are held back until Release.
func NewSockets(from *Inheritance) *Sockets {
	s := &Sockets{conns: map[*Conn]struct{}{}}
	if from != nil {
		s.inherited, s.held, s.tried = from.sockets, true, from.Tried()
	}
	s.leaving, s.leave = context.WithCancelCause(context.Background())
	return s
}

// door names a socket of the service manager that a plugin serves.
const door = "door"

// Activate takes the unix sockets that the service manager listens on for this process (sd_listen_fds(3)), or for the
// program before. Listen finds them by their paths, and Door those of plugins, of which doors has the paths.
func (s *Sockets) Activate(doors ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, file := range activation.Files(true) {
		l, err := net.FileListener(file)
		if err != nil {
			return fmt.Errorf("%s of the service manager is no listening socket: %w", file.Name(), err)
		}
		address := l.Addr()
		if err := l.Close(); err != nil {
			return err
		}
		if address.Network() != "unix" {
			return fmt.Errorf("%s of the service manager is not a unix socket", file.Name())
		}
		s.inherited = append(s.inherited, kept{passed: passed{Address: address.String(), Activated: true}, file: file})
	}
	for _, path := range doors {
		k := s.inherit(func(i kept) bool { return i.Activated && i.Address == path })
		if k.file != nil {
			k.Name = door
			s.kept = append(s.kept, k)
		}
	}
	return nil
}

// Door returns the service manager's socket for a plugin, to be closed by the caller; nil: it has none.
func (s *Sockets) Door(path string) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		if k.Name == door && k.Address == path {
			return wire.Duplicate(k.file, door)
		}
	}
	return nil, nil //nolint:nilnil // there need not be one
}

// Unused returns the addresses of the service manager's sockets that nothing listens on.
func (s *Sockets) Unused() (addresses []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.inherited {
		if i.Activated {
			addresses = append(addresses, i.Address)
		}
	}
	return addresses
}

// Activated returns the service manager's sockets, for a program that serves nothing on them.
func (s *Sockets) Activated() (all []net.Listener, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.inherited {
		l, failed := net.FileListener(i.file)
		if failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		all = append(all, l)
	}
	return all, err
}

// Listen returns the listening socket of a name and address that the program before or the service manager has, or
// opens one. plain: its connections are HTTP/1.1 without TLS.
func (s *Sockets) Listen(name, address string, plain bool, open func() (net.Listener, error)) (*Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	k := s.inherit(func(i kept) bool { return i.Address == address && (i.Name == name || i.Activated) })
	if k.file != nil {
		k.listener, err = net.FileListener(k.file)
	} else if k.listener, err = open(); err == nil {
		conn, ok := k.listener.(syscall.Conn)
		if !ok {
			return nil, errors.Join(fmt.Errorf("a %T cannot be handed over", k.listener), k.listener.Close())
		}
		k.file, err = wire.Duplicate(conn, "handover")
	}
	if err != nil {
		return nil, err
	}
	k.Name, k.Address = name, address
	k.keepPath(s.held)
	s.kept = append(s.kept, k)
	return s.newListener(k.listener, plain), nil
}

// inherit takes what the program before has handed over. s.mu is held.
func (s *Sockets) inherit(is func(kept) bool) (found kept) {
	if at := slices.IndexFunc(s.inherited, is); at >= 0 {
		found = s.inherited[at]
		s.inherited = slices.Delete(s.inherited, at, at+1)
	}
	return found
}

// keepPath makes a listener that is closed leave its socket's file, for the next program, or not. A file of the service
// manager stays in any case.
func (k kept) keepPath(keep bool) {
	if socket, ok := k.listener.(*net.UnixListener); ok {
		socket.SetUnlinkOnClose(!keep && !k.Activated)
	}
}

// Inherited returns a file of the program before; nil: there is none.
func (s *Sockets) Inherited(name string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inherit(func(i kept) bool { return i.Name == name }).file
}

// all returns what the next program gets. s.mu is held.
func (s *Sockets) all() []kept {
	all := slices.Clone(s.kept)
	for _, i := range s.inherited {
		if i.Name == parked {
			all = append(all, i) // nobody has accepted it so far
		}
	}
	return all
}

func (s *Sockets) keep(k kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, k)
}

// Lock adds a locked file, which the next program gets. It is closed by its caller.
func (s *Sockets) Lock(name string, f *os.File) error {
	file, err := wire.Duplicate(f, name)
	if err != nil {
		return err
	}
	s.keep(kept{passed: passed{Name: name}, file: file})
	return nil
}

// CloseUnused closes the sockets of the program before that this one does not listen on. Connections wait for Accept.
func (s *Sockets) CloseUnused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inherited = slices.DeleteFunc(s.inherited, func(i kept) bool { return i.Name != parked && i.file.Close() == nil })
}

// enters counts a request, unless calls are held back.
func (s *Sockets) enters() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		return false
	}
	s.answering++
	return true
}

func (s *Sockets) leaves() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answering--
	s.changed.Notify()
}

func (s *Sockets) forget(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// Leaving ends when calls should be given up that the next program can answer.
func (s *Sockets) Leaving() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving
}

// ErrLeaving is the cause of the end of Leaving.
var ErrLeaving = errcode.Unavailable.New("another program answers the call")

// Held reports whether calls are held back.
func (s *Sockets) Held() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// Hold holds calls back, and waits until none is being answered, which fails when ctx ends first. Release undoes it in
// both cases.
func (s *Sockets) Hold(ctx context.Context) error {
	s.set(true)
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

// Release lets calls in.
func (s *Sockets) Release() { s.set(false) }

func (s *Sockets) set(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = held
	if held {
		s.leave(ErrLeaving)
	} else {
		s.leaving, s.leave = context.WithCancelCause(context.Background())
	}
	for _, k := range s.kept {
		k.keepPath(held)
	}
	if !held { // what was closed meanwhile was closed because it was idle for long
		s.kept = slices.DeleteFunc(s.kept, func(k kept) bool { return k.Name == parked && k.file.Close() == nil })
	}
	s.changed.Notify()
}

// parked names connections on which no request is read or answered.
const parked = "connection"

// Listener is a listening socket of an agent.
type Listener struct {
	net.Listener
	sockets *Sockets
	plain   bool
	close   func() error
	closed  chan struct{}
}

func (s *Sockets) newListener(l net.Listener, plain bool) *Listener {
	of := &Listener{Listener: l, sockets: s, plain: plain, closed: make(chan struct{})}
	of.close = sync.OnceValue(func() error {
		close(of.closed)
		s.mu.Lock()
		held, conns := s.held, slices.Collect(maps.Keys(s.conns))
		s.mu.Unlock()
		for _, c := range conns {
			if held && c.of == of && c.idle() {
				_ = c.Close() // net/http leaves new ones open
			}
		}
		return l.Close()
	})
	return of
}

// Close ends Accept, and leaves connections to the next program if there is to be one.
func (l *Listener) Close() error { return l.close() }

// Accept returns the next connection: first those that the program before has parked. A program that is tried accepts
// none, and plain connections are not accepted before calls are let in for the first time.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		changed := l.sockets.changed.Wait()
		if !l.sockets.tried && (!l.plain || !l.sockets.Held()) {
			break
		}
		select {
		case <-changed:
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
	conn, err := l.next()
	if err != nil || !l.plain {
		return conn, err
	}
	c := newConn(conn.(socket), l)
	l.sockets.mu.Lock()
	l.sockets.conns[c] = struct{}{}
	l.sockets.mu.Unlock()
	select {
	case <-l.closed: // while it was accepted
		return nil, errors.Join(net.ErrClosed, c.Close())
	default:
		return c, nil
	}
}

func (l *Listener) next() (net.Conn, error) {
	l.sockets.mu.Lock()
	waits := l.sockets.inherit(func(i kept) bool { return i.Name == parked && i.Address == l.Addr().String() })
	l.sockets.mu.Unlock()
	if waits.file == nil {
		return l.Listener.Accept()
	}
	conn, err := net.FileConn(waits.file)
	return conn, errors.Join(err, waits.file.Close())
}
