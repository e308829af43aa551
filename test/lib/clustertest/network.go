package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/command"
)

// network is the TCP between a cluster's servers, which can be partitioned.
type network struct {
	mu      sync.Mutex
	names   map[string]string // of servers, by address
	running map[string]*cluster.Node
	apart   []string // disconnected from all servers that are not in it
	conns   map[*wire]struct{}
}

func newNetwork() *network {
	return &network{names: map[string]string{}, running: map[string]*cluster.Node{}, conns: map[*wire]struct{}{}}
}

func (n *network) listen(name string) (*layer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[l.Addr().String()] = name
	return &layer{Listener: l, net: n, name: name}, nil
}

func (n *network) add(name string, node *cluster.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.running[name] = node
}

func (n *network) remove(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.running, name)
}

// cut disconnects some servers from the others, and closes the connections between them.
func (n *network) cut(names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.apart = names
	for w := range n.conns {
		if !n.reach(w.from, w.to) {
			_ = w.Conn.Close() // it may be closed already
		}
	}
}

// reach reports whether two servers are connected. The lock is held.
func (n *network) reach(from, to string) bool {
	return slices.Contains(n.apart, from) == slices.Contains(n.apart, to)
}

// leader returns the leader, if one at from can reach it.
func (n *network) leader(from string) *cluster.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, node := range n.running {
		if n.reach(from, name) && node.Leader() {
			return node
		}
	}
	return nil
}

func (n *network) reachable(from string, node *cluster.Node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, running := range n.running {
		if running == node {
			return n.reach(from, name)
		}
	}
	return false
}

// layer is one server's connections to the others (raftnode.Streams).
type layer struct {
	net.Listener
	net  *network
	name string
}

// Dial connects to another server, which has the name as if it had shown a certificate.
func (l *layer) Dial(name, address string, timeout time.Duration) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", address, timeout)
	if err != nil {
		return nil, err
	}
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	w := &wire{conn, l.net, l.name, l.net.names[address]}
	if w.to != name {
		return nil, errors.Join(fmt.Errorf("%s answers at %s, not %s", w.to, address, name), conn.Close())
	}
	if !l.net.reach(w.from, w.to) {
		return nil, errors.Join(fmt.Errorf("%s cannot reach %s: the net is cut", w.from, w.to), conn.Close())
	}
	l.net.conns[w] = struct{}{}
	return w, nil
}

// wire is a connection between two servers.
type wire struct {
	net.Conn
	net      *network
	from, to string
}

func (w *wire) Close() error {
	w.net.mu.Lock()
	defer w.net.mu.Unlock()
	delete(w.net.conns, w)
	return w.Conn.Close()
}

// remote calls the leader in this process, encoded as between agents. An answer is lost if the connection is cut
// meanwhile.
type remote struct {
	net  *network
	from string
}

func (r *remote) Apply(ctx context.Context, c command.Command) (any, error) {
	if err := cluster.SetKey(ctx, c); err != nil {
		return nil, err
	}
	entry, err := command.Encode(c)
	if err != nil {
		return nil, err
	}
	outcome, err := r.call(ctx, func(n *cluster.Node) ([]byte, error) {
		there, err := command.Decode(entry)
		if err != nil {
			return nil, err
		}
		result, err := n.ApplyHere(ctx, there)
		if moved(ctx, err) {
			return nil, err
		}
		return command.EncodeOutcome(result, err)
	})
	if err != nil {
		return nil, err
	}
	return command.DecodeOutcome(c, outcome)
}

func (r *remote) Ask(ctx context.Context, q command.Query) (any, uint64, error) {
	answer, err := r.call(ctx, func(n *cluster.Node) ([]byte, error) {
		result, index, err := n.AskHere(ctx, q)
		if moved(ctx, err) {
			return nil, err
		}
		return command.EncodeAnswer(result, index, err)
	})
	if err != nil {
		return nil, 0, err
	}
	return command.DecodeAnswer(q, answer)
}

// moved reports whether the error is not the answer: another server has to be asked, or the caller has given up.
func moved(ctx context.Context, err error) bool {
	return errors.Is(err, command.ErrNotLeader) || errors.Is(err, command.ErrUncertain) ||
		errors.Is(err, command.ErrClosed) ||
		err != nil && ctx.Err() != nil
}

func (r *remote) call(ctx context.Context, do func(*cluster.Node) ([]byte, error)) ([]byte, error) {
	for {
		if leader := r.net.leader(r.from); leader != nil {
			answer, err := do(leader)
			if err == nil && r.net.reachable(r.from, leader) {
				return answer, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: no leader answers: %w", command.ErrUncertain, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
