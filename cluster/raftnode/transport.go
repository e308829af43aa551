package raftnode

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/discovery"
)

// Bounds of what servers ask one another.
const (
	// firstByteTimeout is how long a connection may say nothing at its beginning.
	firstByteTimeout = 10 * time.Second
	askTimeout       = 5 * time.Second
	maxQuestion      = 64 << 10 // bytes, an answer too
)

// question is the first byte of a connection that is not raft's, whose own first bytes
// are small numbers.
const question byte = 0xF1

// streams is raft's way to other servers. An address in raft's configuration is a
// server's name, for all time; where that server is now, members tell. So neither a new
// address, nor a transport where there was none, changes anything in raft. Servers ask
// one another over the same connections' layer (ask).
type streams struct {
	under   raft.StreamLayer
	name    string
	members Members
	answer  func(ctx context.Context, q ask) reply
	log     hclog.Logger

	raft     chan net.Conn // those that are raft's
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
		under: cfg.Streams, name: cfg.ID, members: cfg.Members, answer: answer, log: log,
		raft: make(chan net.Conn), conns: map[*trackedConn]struct{}{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.handlers.Go(s.accept)
	return s
}

// accept sorts connections until the listener is closed.
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
			s.drop(conn) // Close may have looked before
		}
		s.mu.Unlock()
		s.handlers.Go(func() { s.sort(tracked) })
	}
}

// sort gives a connection to raft, or answers the question on it.
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
		s.log.Debug("a connection said nothing", "from", conn.RemoteAddr(), "error", err)
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

// drop ends a connection that nobody uses any more.
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

// ask asks another server, by its name.
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
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) }) //nolint:errcheck // a broken connection ends the reading as well
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

// Accept gives raft the connections that are its own.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case conn := <-s.raft:
		return conn, nil
	case <-s.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Dial connects to a server by its name.
func (s *streams) Dial(name raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	for _, m := range s.members.Members() {
		if m.Name == string(name) && m.Role == discovery.Server && m.RPC != "" {
			return s.under.Dial(raft.ServerAddress(m.RPC), timeout)
		}
	}
	return nil, fmt.Errorf("no address is known of server %q: gossip has not seen it", name)
}

// Addr is this server's name.
func (s *streams) Addr() net.Addr { return nameAddr(s.name) }

// Close ends all connections that others made, and waits. It may be called again.
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

// trackedConn gives back the byte that was read to sort it.
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

// pipeline ends when the other server has said no. Raft's leader takes nothing more out of it then, but it may just
// be about to put one more request into it, and would wait for ever for room: its
// replication to that server would stand still, and its shutdown with it.
type pipeline struct {
	raft.AppendPipeline
	answered chan raft.AppendFuture
	closed   chan struct{}
	once     sync.Once
}

// AppendEntriesPipeline is that of raft's transport, but for its end.
func (t *preVoteTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	under, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	p := &pipeline{AppendPipeline: under, answered: make(chan raft.AppendFuture), closed: make(chan struct{})}
	go p.pass()
	return p, nil
}

// Consumer gives what was answered.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answered }

// Close may be called again.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}

// pass passes answers on, up to the first no.
func (p *pipeline) pass() {
	for {
		select {
		case f := <-p.AppendPipeline.Consumer():
			select {
			case p.answered <- f:
			case <-p.closed:
				return
			}
			if !f.Response().Success { // also where there was no answer
				_ = p.Close() // it has no error
				return
			}
		case <-p.closed:
			return
		}
	}
}
