package transport

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/pannier/pannier/host/internal/system/pki"
)

const (
	// dialTimeout bounds connecting, including the handshake.
	dialTimeout = 10 * time.Second
	// askTimeout bounds the calls of Agents: people wait for the answers.
	askTimeout = 3 * time.Second
	// unused is how long a connection without calls is kept.
	unused = 5 * time.Minute
)

// Dialer connects to other agents' ports. Close closes the connections that it keeps.
type Dialer struct {
	certs *pki.Certs
	extra []grpc.DialOption // of all calls between agents
	http  *http.Transport   // to servers

	mu     sync.Mutex
	conns  map[target]*pooled
	agents []*http.Transport
	closed bool
}

// target is an agent at an address.
type target struct {
	addr, name string
	role       pki.Role
}

// pooled is a gRPC connection that is kept.
type pooled struct {
	conn  *grpc.ClientConn
	taken time.Time // when Conn last returned it
}

// NewDialer makes a dialer that shows the agent's certificate. The options are added to the options of calls between
// agents.
func NewDialer(certs *pki.Certs, options ...grpc.DialOption) *Dialer {
	d := &Dialer{certs: certs, extra: options, conns: map[target]*pooled{}}
	d.http = overHTTP(func(ctx context.Context, _, addr string) (net.Conn, error) {
		return d.dial(ctx, addr, pki.Server, "", protocolsHTTP...)
	})
	return d
}

// overHTTP returns a transport for requests of the public API.
func overHTTP(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Transport {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Transport{
		DialTLSContext: dial,
		Protocols:      protocols, ForceAttemptHTTP2: true, DisableCompression: true,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: unused,
		HTTP2: &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: patience},
	}
}

// Raft connects to the server of a name at addr for raft. An empty name accepts any server.
func (d *Dialer) Raft(ctx context.Context, name, addr string) (net.Conn, error) {
	return d.dial(ctx, addr, pki.Server, name, protocolRaft)
}

// Transport sends requests of the public API to servers: https://ADDR of their rpc port. It only accepts answers from
// a server's certificate.
func (d *Dialer) Transport() http.RoundTripper { return d.http }

// Agents sends requests of the public API to agents by their names: https://NAME. Only that agent's certificate is
// accepted, wherever find says that it is. Connections are kept by name, so one to another agent is never used.
func (d *Dialer) Agents(find func(name string) (addr string, role pki.Role, known bool)) http.RoundTripper {
	t := overHTTP(func(ctx context.Context, _, host string) (net.Conn, error) {
		name, _, err := net.SplitHostPort(host)
		if err != nil {
			return nil, err
		}
		addr, role, known := find(name)
		if !known {
			return nil, fmt.Errorf("no agent %q is known", name)
		}
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		return d.dial(ctx, addr, role, name, protocolsHTTP...)
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.agents = append(d.agents, t)
	return t
}

func (d *Dialer) dial(ctx context.Context, addr string, role pki.Role, name string, protocols ...string) (net.Conn,
	error,
) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to the %s at %s: %w", role, addr, err)
	}
	conn, err := d.handshake(ctx, raw, role, name, protocols...)
	if err != nil {
		return nil, fmt.Errorf("connect to the %s at %s: %w", role, addr, err)
	}
	return conn, nil
}

// handshake closes raw if it fails.
func (d *Dialer) handshake(ctx context.Context, raw net.Conn, role pki.Role, name string,
	protocols ...string,
) (*tls.Conn, error) {
	conn := tls.Client(raw, d.certs.Client(role, name, protocols...))
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

// Conn returns a connection for calls to the agent with this name and role at addr. An empty name accepts any agent
// with the role. Nothing is dialled before the first call. The connection is shared: call Conn for each call, and do
// not close it. The dialer closes connections that have not been used for a while.
func (d *Dialer) Conn(addr, name string, role pki.Role) (*grpc.ClientConn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("connect to the %s %q at %s: %w", role, name, addr, net.ErrClosed)
	}
	d.sweep()
	to := target{addr, name, role}
	p := d.conns[to]
	if p == nil {
		conn, err := grpc.NewClient("passthrough:///"+addr, d.options(to)...)
		if err != nil {
			return nil, fmt.Errorf("connect to the %s %q at %s: %w", role, name, addr, err)
		}
		p = &pooled{conn: conn}
		d.conns[to] = p
	}
	p.taken = time.Now()
	return p.conn, nil
}

// sweep closes connections that have no calls and that Conn has not returned for a while.
func (d *Dialer) sweep() {
	for to, p := range d.conns {
		if time.Since(p.taken) > 2*unused && p.conn.GetState() == connectivity.Idle {
			_ = p.conn.Close() // no call can fail by it
			delete(d.conns, to)
		}
	}
}

func (d *Dialer) options(to target) []grpc.DialOption {
	return append([]grpc.DialOption{
		grpc.WithTransportCredentials(calling{d, to}),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(unused),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer), grpc.MaxCallSendMsgSize(MaxRequest)),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: silence, Timeout: patience}),
		// A host that is back should be reached soon, so the longest pause is short.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 3 * time.Second,
			},
			MinConnectTimeout: dialTimeout,
		}),
	}, d.extra...)
}

// Close closes all connections; running calls fail.
func (d *Dialer) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for to, p := range d.conns {
		_ = p.conn.Close() // its only error is that it is closed already
		delete(d.conns, to)
	}
	for _, t := range append(d.agents, d.http) {
		t.CloseIdleConnections()
	}
	return nil
}

// calling is the credentials of a connection to one agent.
type calling struct {
	d  *Dialer
	to target
}

func (c calling) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, err := c.d.handshake(ctx, raw, c.to.role, c.to.name, protocolGRPC)
	if err != nil {
		return nil, nil, err
	}
	peer, err := c.d.certs.PeerOf(conn.ConnectionState())
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, newAuthInfo(peer), nil
}

func (c calling) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("these credentials are a client's")
}

func (c calling) Info() credentials.ProtocolInfo          { return protocolInfo }
func (c calling) Clone() credentials.TransportCredentials { return c }
func (c calling) OverrideServerName(string) error         { return nil }

// RaftLayer is what raft connects with (raftnode.Streams), over a port and a dialer.
type RaftLayer struct {
	net.Listener
	dialer *Dialer
}

// NewRaftLayer starts to accept raft connections on the port.
func NewRaftLayer(p *Port, d *Dialer) *RaftLayer { return &RaftLayer{p.Raft(), d} }

// Dial connects to the server of a name for raft.
func (l *RaftLayer) Dial(name, addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return l.dialer.Raft(ctx, name, addr)
}
