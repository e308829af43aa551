package raftnode

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/discovery"
)

// Bounds of the requests between servers (ask).
const (
	// firstByteTimeout is how long a new connection may stay silent.
	firstByteTimeout = 10 * time.Second
	askTimeout       = 5 * time.Second
	maxQuestion      = 64 << 10 // of an ask or a reply, in bytes
)

// question is the first byte of a connection that carries an ask. The first bytes of raft's own connections are
// small numbers.
const question byte = 0xF1

// streams connects raft to other servers. In raft's configuration a server's address is its name, which never
// changes; members say where that server is now. So neither a new address nor a transport that was added later
// changes anything in raft. Asks between servers use the same stream layer.
//
// A holder of the gossip key can announce any address, so a server is looked for at the address that the ledger has for
// it too, and only the one whose certificate has its name is believed.
type streams struct {
	under   Streams
	name    string
	members Members
	vet     func(discovery.Member) error
	known   func(server string) (address string)
	answer  func(ctx context.Context, q ask) reply
	log     hclog.Logger

	raft     chan net.Conn // raft's own connections
	ctx      context.Context
	stop     context.CancelFunc
	handlers sync.WaitGroup

	mu    sync.Mutex
	conns map[*trackedConn]struct{} // accepted, and not closed yet

	closing  sync.Once
	closeErr error
}

func newStreams(cfg Config, log hclog.Logger, answer func(context.Context, ask) reply) *streams {
	s := &streams{
		under: cfg.Streams, name: cfg.ID, members: cfg.Members, vet: cfg.Vet, known: cfg.Known, answer: answer, log: log,
		raft: make(chan net.Conn), conns: map[*trackedConn]struct{}{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.handlers.Go(s.accept)
	return s
}

// accept hands out connections until the listener is closed.
func (s *streams) accept() {
	for {
		conn, err := s.under.Accept()
		if err != nil {
			if s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			s.log.Error("cannot accept connections of other servers", "error", err)
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		tracked := &trackedConn{Conn: conn, all: s}
		s.mu.Lock()
		s.conns[tracked] = struct{}{}
		if s.ctx.Err() != nil {
			s.drop(conn) // Close may have gone through conns already
		}
		s.mu.Unlock()
		s.handlers.Go(func() { s.sort(tracked) })
	}
}

// sort passes a connection to raft, or answers the ask on it.
func (s *streams) sort(conn *trackedConn) {
	first := make([]byte, 1)
	err := conn.SetDeadline(time.Now().Add(firstByteTimeout))
	if err == nil {
		_, err = io.ReadFull(conn.Conn, first)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		s.log.Debug("a connection stayed silent", "from", conn.RemoteAddr(), "error", err)
		s.drop(conn)
		return
	}
	if first[0] != question {
		conn.first = first
		select {
		case s.raft <- conn:
		case <-s.ctx.Done():
			s.drop(conn)
		}
		return
	}
	defer conn.Close()
	if err := s.reply(conn); err != nil {
		s.log.Debug("a server's question was not answered", "from", conn.RemoteAddr(), "error", err)
	}
}

// drop closes a connection that is no longer used.
func (s *streams) drop(conn net.Conn) {
	if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		s.log.Debug("a connection could not be closed", "from", conn.RemoteAddr(), "error", err)
	}
}

func (s *streams) reply(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(askTimeout)); err != nil {
		return err
	}
	var q ask
	if err := readLine(conn, &q); err != nil {
		return err
	}
	return json.NewEncoder(conn).Encode(s.answer(s.ctx, q))
}

// ask sends an ask to another server, by name.
func (s *streams) ask(ctx context.Context, server string, q ask) (r reply, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("ask server %q: %w", server, err)
		}
	}()
	if server == s.name {
		return s.answer(ctx, q), nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	end, _ := ctx.Deadline()
	conn, err := s.Dial(raft.ServerAddress(server), time.Until(end))
	if err != nil {
		return r, err
	}
	stop := context.AfterFunc(ctx, func() {
		conn.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // a broken connection ends the reading as well
	})
	defer stop()
	defer conn.Close()
	line, err := json.Marshal(q)
	if err != nil {
		return r, err
	}
	if _, err := conn.Write(append(append([]byte{question}, line...), '\n')); err != nil {
		return r, err
	}
	err = readLine(conn, &r)
	return r, err
}

func readLine(from io.Reader, into any) error {
	line, err := bufio.NewReader(io.LimitReader(from, maxQuestion)).ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, into)
}

// Accept returns the connections that are raft's.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case conn := <-s.raft:
		return conn, nil
	case <-s.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Dial connects to a server by its name, at the first address where it answers.
func (s *streams) Dial(name raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	addresses, err := s.addresses(string(name))
	if len(addresses) == 0 {
		return nil, err
	}
	type answer struct {
		conn net.Conn
		err  error
	}
	answers := make(chan answer)
	for _, address := range addresses {
		go func() {
			conn, err := s.under.Dial(string(name), address, timeout)
			answers <- answer{conn, err}
		}()
	}
	errs := []error{err}
	for left := len(addresses) - 1; left >= 0; left-- {
		a := <-answers
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		go func() {
			for range left {
				if late := <-answers; late.err == nil {
					s.drop(late.conn)
				}
			}
		}()
		return a.conn, nil
	}
	return nil, errors.Join(errs...)
}

// addresses returns where a server may be. The error explains why it is not looked for where gossip sees it.
func (s *streams) addresses(name string) (addresses []string, err error) {
	err = fmt.Errorf("no address is known for server %q: gossip has not seen it", name)
	var refused string
	for _, m := range s.members.Members() {
		if m.Name != name || m.Role != discovery.Server || m.RPC == "" {
			continue
		}
		if err = nil; s.vet != nil {
			err = s.vet(m)
		}
		if err != nil {
			refused = m.RPC
		} else {
			addresses = append(addresses, m.RPC)
		}
	}
	if s.known != nil {
		if a := s.known(name); a != "" && a != refused && !slices.Contains(addresses, a) {
			addresses = append(addresses, a)
		}
	}
	return addresses, err
}

// Addr returns this server's name.
func (s *streams) Addr() net.Addr { return nameAddr(s.name) }

// Close closes all accepted connections and waits. It may be called again.
func (s *streams) Close() error {
	s.closing.Do(func() {
		s.stop()
		if err := s.under.Close(); !errors.Is(err, net.ErrClosed) {
			s.closeErr = err
		}
		s.mu.Lock()
		for c := range s.conns {
			s.drop(c.Conn)
		}
		s.mu.Unlock()
		s.handlers.Wait()
	})
	return s.closeErr
}

type nameAddr string

func (nameAddr) Network() string  { return "pannier" }
func (n nameAddr) String() string { return string(n) }

// trackedConn returns the byte that was read to identify the connection.
type trackedConn struct {
	net.Conn
	first []byte
	all   *streams
}

func (c *trackedConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 && len(p) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

func (c *trackedConn) Close() error {
	c.all.mu.Lock()
	delete(c.all.conns, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// pipeline closes itself after the first refused answer. Raft's leader stops reading answers then, but its
// writer may be waiting for room that only the reader makes: it would block forever, the follower would get
// no entries, and the server could not shut down.
type pipeline struct {
	raft.AppendPipeline
	withheld *atomic.Bool
	answered chan raft.AppendFuture
	closed   chan struct{}
	once     sync.Once
}

// AppendEntriesPipeline wraps the pipeline of raft's transport.
func (t *confirmingTransport) AppendEntriesPipeline(id raft.ServerID,
	target raft.ServerAddress,
) (raft.AppendPipeline, error) {
	under, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	p := &pipeline{
		AppendPipeline: under, withheld: t.withheld, answered: make(chan raft.AppendFuture), closed: make(chan struct{}),
	}
	go p.pass()
	return p, nil
}

// AppendEntries sends entries, unless that is withheld.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture,
	error,
) {
	if p.withheld.Load() {
		return nil, errWithheld
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}

// Consumer returns the answers.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answered }

// Close may be called again.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}

// pass passes answers on, up to the first refusal.
func (p *pipeline) pass() {
	for {
		select {
		case f := <-p.AppendPipeline.Consumer():
			select {
			case p.answered <- f:
			case <-p.closed:
				return
			}
			if !f.Response().Success { // also if there was no answer
				_ = p.Close() // never fails
				return
			}
		case <-p.closed:
			return
		}
	}
}
